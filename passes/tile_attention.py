"""Cut `attn.attention` into FlashAttention-2 tiles."""

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float16Type,
    Float32Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    ModuleOp,
    TensorType,
    f32,
    i1,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from lampc.dialects import attn_tiled as tiled
from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.errors import UsageError
from lampc.ir import Emitter, tensor_shape
from lampc.numerics.formats import FP32_LARGEST
from lampc.numerics.sets import MAX_SUB_BLOCKS

_ELEMENTS: dict[str, Attribute] = {
    "f32": Float32Type(),
    "bf16": BFloat16Type(),
    "f16": Float16Type(),
    "e4m3": Float8E4M3FNType(),
}


@dataclass(frozen=True)
class TileAttentionPass(ModulePass):
    """
    Replace each `attn.attention` by parallel lanes over (batch, head, query block, warp) and a rolled loop over key tiles that
    carries the online-softmax state: running maximum, running sum, output.

    `bq` query rows make a warp and `nq` warps a thread block; `nk` sub-blocks of `bk` keys make a key tile. `operands` is the
    type Q, K and V are stored in (`model`: as they come). `kv-order` is the order of the key tiles. A finite mask entry of at
    most `mask-threshold` kills its key where the row has a live key above it.

    Before:
    ```mlir
    func.func @attention(%q: tensor<1x9x40x64xf32>, %k: tensor<1x3x40x64xf32>, %v: tensor<1x3x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %o = attn.attention %q, %k, %v {scale = 0.125 : f32, causal} : tensor<1x9x40x64xf32>, tensor<1x3x40x64xf32>, tensor<1x3x40x64xf32> -> tensor<1x9x40x64xf32>
      func.return %o : tensor<1x9x40x64xf32>
    }
    ```
    After `lamp-tile-attention{bq=16 nq=8 bk=16 nk=4}`:
    ```mlir
    func.func @attention(%q: tensor<1x9x40x64xf32>, %k: tensor<1x3x40x64xf32>, %v: tensor<1x3x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %o = attn.lanes %lane in (batch = 1, heads = 9, group = 3, blocks = 1, warps = 8, rows = 16) -> tensor<1x9x40x64xf32> {
        %query = attn.load_query %q[%lane] : tensor<1x9x40x64xf32> -> tensor<16x64xf32>
        %scaled = attn.scale_query %query {scale = 1.250000e-01 : f32} : tensor<16x64xf32>
        %liveness = attn.liveness %lane {queries = 40 : i64, keys = 40 : i64, causal}
        %mu0, %omega0, %acc0 = attn.softmax_init %lane : tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>
        %mu_out, %omega_out, %acc_out = attn.tile_loop %t in 1 sub_blocks 4 order "forward" where %liveness iter(%mu = %mu0, %omega = %omega0, %acc = %acc0) : (tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>) {
          %key = attn.load_tile %k[%lane, %t] : tensor<1x3x40x64xf32> -> tensor<64x64xf32>
          %value = attn.load_tile %v[%lane, %t] : tensor<1x3x40x64xf32> -> tensor<64x64xf32>
          %live = attn.live_entries %liveness[%t] : tensor<64x16xi1>
          %y = attn.scores %key, %scaled : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<64x16xf32>
          %mu1, %omega1, %acc1 = attn.online_softmax %mu, %omega, %acc, %y, %live, %value : tensor<64x16xf32>, tensor<64x16xi1>, tensor<64x64xf32> -> tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>
          attn.yield %mu1, %omega1, %acc1 : tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>
        }
        %rows = attn.normalize %acc_out, %omega_out : tensor<16x64xf32>, tensor<16xf32>
        attn.yield %rows : tensor<16x64xf32>
      }
      func.return %o : tensor<1x9x40x64xf32>
    }
    ```
    Source: docs/lampattention.md section 3; FlashAttention-2 (arXiv 2307.08691), algorithm 1.
    """  # noqa: E501

    name = "lamp-tile-attention"

    bq: int = 16
    nq: int = 8
    bk: int = 16
    nk: int = 4
    operands: Literal["model", "f32", "bf16", "f16", "e4m3"] = "model"
    kv_order: Literal["forward", "reverse", "sink-first"] = "forward"
    mask_threshold: float = -1.0e4

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for name, value, most in (
            ("bq", self.bq, 64),
            ("nq", self.nq, 64),
            ("bk", self.bk, 256),
            ("nk", self.nk, MAX_SUB_BLOCKS),
        ):
            if not 1 <= value <= most:
                note = " (stage 2 enumerates the 2^nk masks of a tile)" if name == "nk" else ""
                raise UsageError(f"option {name}={value}: must be from 1 to {most}{note}")
        if not abs(self.mask_threshold) <= FP32_LARGEST:
            raise UsageError(f"option mask-threshold={self.mask_threshold}: must be a number that is finite in FP32")
        PatternRewriteWalker(_TileAttention(self), apply_recursively=False).rewrite_module(op)


@dataclass
class _TileAttention(RewritePattern):
    options: TileAttentionPass

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AttentionOp, rewriter: PatternRewriter) -> None:
        options = self.options
        emit = Emitter(op, InsertPoint.before(op))
        query, key, value = (self._stored(emit, operand) for operand in (op.query, op.key, op.value))
        batch, heads, queries, size = tensor_shape(query)
        _, kv_heads, keys, value_size = tensor_shape(value)
        live_mask, bias = _masks(emit, op, options.mask_threshold)
        rows, tile_keys = options.bq, options.bk * options.nk
        block_rows = rows * options.nq

        body = tiled.single_block([tiled.LaneType()])
        lane = body.block.args[0]
        lane.name_hint = "lane"
        inner = emit.into(InsertPoint.at_end(body.block))
        query_rows = inner.add(tiled.LoadQueryOp(query, lane, TensorType(f32, [rows, size])), "query")
        scaled = inner.add(tiled.ScaleQueryOp(query_rows.result, op.scale), "scaled")
        liveness = inner.add(
            tiled.LivenessOp.build(
                operands=[lane, [live_mask] if live_mask else []],
                result_types=[tiled.LivenessType()],
                properties={"queries": IntegerAttr(queries, i64), "keys": IntegerAttr(keys, i64), **_structure(op)},
            ),
            "liveness",
        )
        vector, output = TensorType(f32, [rows]), TensorType(f32, [rows, value_size])
        state = inner.add(
            tiled.SoftmaxInitOp.build(operands=[lane, [op.sinks] if op.sinks else []], result_types=[vector, vector, output]),
            "mu0",
            "omega0",
            "acc0",
        )
        loop_body = tiled.single_block([IndexType(), vector, vector, output])
        tile, *carried = loop_body.block.args
        for argument, hint in zip(loop_body.block.args, ("t", "mu", "omega", "acc"), strict=True):
            argument.name_hint = hint
        step = inner.into(InsertPoint.at_end(loop_body.block))
        key_tile = step.add(tiled.LoadTileOp(key, lane, tile, TensorType(f32, [tile_keys, size])), "key")
        value_tile = step.add(tiled.LoadTileOp(value, lane, tile, TensorType(f32, [tile_keys, value_size])), "value")
        live = step.add(
            tiled.LiveEntriesOp.build(operands=[liveness.result, tile], result_types=[TensorType(i1, [tile_keys, rows])]),
            "live",
        )
        scores_type = TensorType(f32, [tile_keys, rows])
        scores: SSAValue = step.add(
            tiled.ScoresOp.build(operands=[key_tile.result, scaled.result], result_types=[scores_type]), "y"
        ).result
        if op.softcap is not None:
            cap = tiled.SoftCapOp.build(operands=[scores, []], result_types=[scores_type], properties={"cap": op.softcap})
            scores = step.add(cap, "capped").result
        if bias is not None:
            added = tiled.AddBiasOp.build(operands=[scores, bias, lane, tile, []], result_types=[scores_type])
            scores = step.add(added, "biased").result
        new = step.add(
            tiled.OnlineSoftmaxOp.build(
                operands=[*carried, scores, live.result, value_tile.result], result_types=[vector, vector, output]
            ),
            "mu1",
            "omega1",
            "acc1",
        )
        step.add(tiled.YieldOp(*new.results))
        loop = inner.add(
            tiled.TileLoopOp(
                liveness.result,
                state.results,
                loop_body,
                tiles=-(-keys // tile_keys),
                sub_blocks=options.nk,
                order=options.kv_order,
            ),
            "mu_out",
            "omega_out",
            "acc_out",
        )
        _, total, accumulated = loop.outputs
        normalized = inner.add(tiled.NormalizeOp.build(operands=[accumulated, total], result_types=[output]), "rows")
        inner.add(tiled.YieldOp(normalized.result))
        lanes = emit.add(
            tiled.LanesOp(
                body,
                TensorType(f32, tensor_shape(op.output)),
                batch=batch,
                heads=heads,
                group=heads // kv_heads,
                blocks=-(-queries // block_rows),
                warps=options.nq,
                rows=rows,
            )
        )
        lanes.output.name_hint = op.output.name_hint
        result: SSAValue = lanes.output
        if op.output.type != lanes.output.type:
            result = emit.add(tiled.RoundOperandOp(lanes.output, _element(op.output))).output
        rewriter.replace(op, [], [result])

    def _stored(self, emit: Emitter, operand: SSAValue) -> SSAValue:
        """The operand in the type it is stored in; float64 becomes FP32, which is what the scores are made from."""
        name = self.options.operands
        element = _element(operand)
        wanted = _ELEMENTS[name] if name != "model" else element
        if wanted not in _ELEMENTS.values():
            wanted = f32
        if wanted == element:
            return operand
        return emit.add(tiled.RoundOperandOp(operand, wanted), operand.name_hint or "operand").output


def _element(value: SSAValue) -> Attribute:
    return SSAValue.get(value, type=TensorType).type.element_type


def _structure(op: AttentionOp) -> dict[str, Attribute]:
    names = ("causal", "causal_offset", "window")
    return {name: op.properties[name] for name in names if name in op.properties}


def _masks(emit: Emitter, op: AttentionOp, threshold: float) -> tuple[SSAValue | None, SSAValue | None]:
    """The boolean mask and the bias that the tiles read, each with four axes, or None."""
    if op.mask is None:
        return None, None
    shape = tensor_shape(op.mask)
    if _element(op.mask) == i1 and op.masked_value is None:
        if len(shape) == 4:
            return op.mask, None
        names = "abc"[: len(shape)]
        pattern = f"{' '.join(names)} -> {' '.join(['1'] * (4 - len(shape)) + list(names))}"
        return emit.add(RearrangeOp(op.mask, pattern), "mask").output, None
    full = [1] * (4 - len(shape)) + list(shape)
    if op.causal is not None or op.window is not None:  # rows that share a mask row see different keys
        full[2] = tensor_shape(op.query)[2]
    properties: dict[str, Attribute] = {"threshold": FloatAttr(threshold, f32), **_structure(op)}
    if op.masked_value is not None:
        properties["masked_value"] = op.masked_value
    properties["queries"] = IntegerAttr(tensor_shape(op.query)[2], i64)
    properties["keys"] = IntegerAttr(tensor_shape(op.key)[2], i64)
    split = tiled.SplitMaskOp.build(
        operands=[op.mask], result_types=[TensorType(i1, full), TensorType(f32, full)], properties=properties
    )
    emit.add(split, "live_mask", "bias")
    return split.live, split.bias
