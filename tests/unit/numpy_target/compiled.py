"""One attention from arrays and options: compiled to level 3 or 4, and as the scalar reference computes it."""

from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, f32, i1
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from lampc.dialects.attn import AttentionOp
from lampc.numerics import reference
from lampc.numerics.formats import HW, UNBOUNDED
from lampc.numerics.masks import MASK_THRESHOLD, split_mask
from lampc.numerics.statistics import Statistics
from lampc.passes.mixed_precision import MixedPrecisionPass
from lampc.passes.register_layout import RegisterLayoutPass
from lampc.passes.tile_attention import TileAttentionPass
from lampc.targets.numpy.run import NumpyTarget

Array = np.ndarray[Any, Any]


@dataclass
class Case:
    """Operands q [B, H, Lq, d], k, v, and everything that `attn.attention` and the passes take."""

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    sinks: Array | None = None
    attention: dict[str, Any] = field(default_factory=dict[str, Any])
    tiling: dict[str, Any] = field(default_factory=dict[str, Any])
    precision: dict[str, Any] | None = field(default_factory=dict[str, Any])
    layout: Literal["safe", "compact"] = "safe"

    def module(self) -> ModuleOp:
        """The function `attention`, tiled, and in mixed precision unless `precision` is None."""
        arrays = [a for a in (self.q, self.k, self.v, self.mask, self.sinks) if a is not None]
        types = [TensorType(i1 if a.dtype == np.bool_ else f32, a.shape) for a in arrays]
        block = Block(arg_types=types)
        extra = iter(block.args[3:])
        op = AttentionOp(
            *block.args[:3],
            mask=next(extra) if self.mask is not None else None,
            sinks=next(extra) if self.sinks is not None else None,
            **{"scale": 1.0, **self.attention},
        )
        block.add_ops([op, ReturnOp(op.output)])
        function = FuncOp("attention", FunctionType.from_lists(types, [op.output.type]), Region(block))
        module = ModuleOp([function])
        module.verify()
        TileAttentionPass(**self.tiling).apply(Context(), module)
        if self.precision is not None:
            MixedPrecisionPass(**self.precision).apply(Context(), module)
        RegisterLayoutPass(self.layout).apply(Context(), module)
        module.verify()
        return module

    def arguments(self) -> list[Array]:
        """What the function takes, in order."""
        return [a for a in (self.q, self.k, self.v, self.mask, self.sinks) if a is not None]

    def run(self) -> tuple[Array, Statistics]:
        """Output and statistics of the numpy target."""
        result = NumpyTarget(self.module()).run("attention", self.arguments())
        return result.output, result.statistics

    def expected(self) -> tuple[Array, Statistics]:
        """The same from the scalar reference, head by head."""
        batch, heads, queries, _ = self.q.shape
        keys = self.k.shape[2]
        group = heads // self.k.shape[1]
        attention: dict[str, Any] = {"scale": 1.0, **self.attention}
        masked_value = attention.pop("masked_value", -np.inf)
        structure: dict[str, Any] = {
            name: attention[name] for name in ("causal", "causal_offset", "window") if name in attention
        }
        tiling: dict[str, Any] = {name: value for name, value in self.tiling.items() if name in ("bq", "bk", "nk", "kv_order")}
        live, bias = split_mask(
            self.mask,
            masked_value=masked_value,
            threshold=self.tiling.get("mask_threshold", MASK_THRESHOLD),
            shape=(batch, heads, queries, keys),
            **structure,
        )
        q, k, v = (_stored(x, self.tiling.get("operands", "model")) for x in (self.q, self.k, self.v))
        precision: dict[str, Any] = dict(self.precision) if self.precision is not None else {"policy": "fp32"}
        formats = UNBOUNDED if precision.pop("range", "hw") == "unbounded" else HW
        output = np.zeros((batch, heads, queries, self.v.shape[3]), np.float32)
        total = Statistics(heads, self.tiling.get("nk", 4))
        for item in range(batch):
            for head in range(heads):
                one = reference.Head(
                    q[item, head],
                    k[item, head // group],
                    v[item, head // group],
                    mask=_of_head(live, item, head, queries, keys),
                    bias=_of_head(bias, item, head, queries, keys),
                    sink=None if self.sinks is None else float(self.sinks[head]),
                    **attention,
                )
                options = reference.Options(
                    formats=formats,
                    stream=item * heads + head,
                    layout=self.layout,
                    mask_threshold=self.tiling.get("mask_threshold", MASK_THRESHOLD),
                    **tiling,
                    **precision,
                )
                output[item, head], counted = reference.attention(one, options)
                wide = Statistics(heads, counted.sub_blocks)
                for name in ("stage1", "final", "dead_tiles", "above_one", "largest"):
                    getattr(wide, name)[head] = getattr(counted, name)[0]
                for name, count in counted.saturated.items():
                    wide.saturated[name] = np.zeros(heads, np.int64)
                    wide.saturated[name][head] = count[0]
                total.merge(wide)
        return output, total


def _stored(x: Array, operands: str) -> Array:
    """Rounded to a storage type, by others; e4m3 saturates."""
    if operands in ("model", "f32"):
        return x
    types: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}
    with np.errstate(all="ignore"):
        return (
            np.clip(x, -448, 448).astype(types[operands]).astype(np.float32)
            if operands == "e4m3"
            else (x.astype(types[operands]).astype(np.float32))
        )


def _of_head(table: Array | None, item: int, head: int, queries: int, keys: int) -> Any:
    if table is None:
        return None
    item, head = min(item, table.shape[0] - 1), min(head, table.shape[1] - 1)
    return np.broadcast_to(table[item, head], (queries, keys))


def same_bits(a: Array, b: Array) -> bool:
    """Equal in every bit, NaN equal to NaN whatever its payload."""
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan]))


def operands(
    seed: int, *, batch: int = 1, heads: int = 2, kv_heads: int = 2, queries: int = 20, keys: int = 40, d: int = 8, dv: int = 8
) -> tuple[Array, Array, Array]:
    """Seeded normal q, k, v with logits wide enough that both stages have work."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, heads, queries, d), np.float32)
    k = rng.standard_normal((batch, kv_heads, keys, d), np.float32)
    v = rng.standard_normal((batch, kv_heads, keys, dv), np.float32)
    return q, k, v
