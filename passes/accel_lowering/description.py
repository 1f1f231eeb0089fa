"""What an `attn.lanes` computes, read from its ops: the configuration of a program and the tensors it takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float16Type,
    Float32Type,
    IntegerAttr,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.dialects.accel import Config
from lampc.dialects.lamp_types import FloatType
from lampc.ir import tensor_shape
from lampc.numerics.formats import E4M3, E4M11, UE5M3_EXP, UE5M3_SHIFT, UE5M11_EXP, UE5M11_SHIFT, FloatFormat
from lampc.passes.accel_lowering.refuse import refuse

OpT = TypeVar("OpT", bound=Operation)

_OPERANDS: dict[type[Attribute], str] = {
    Float32Type: "f32",
    BFloat16Type: "bf16",
    Float16Type: "f16",
    Float8E4M3FNType: "e4m3",
}


@dataclass(frozen=True)
class Description:
    """
    One attention.

    tensors   by the program's names: q, k, v and, where it reads them, mask, bias, sinks
    mixed     level 4; otherwise FP32 (level 3)
    """

    lanes: tiled.LanesOp
    loop: tiled.TileLoopOp
    live: tiled.LiveEntriesOp
    tensors: dict[str, SSAValue]
    config: Config
    mixed: bool


def describe(lanes: tiled.LanesOp) -> Description:
    """Read an `attn.lanes`. Raises CompileError, naming the node, for what is no program of the machine."""
    loop = _only(lanes, tiled.TileLoopOp)
    live = _only(loop, tiled.LiveEntriesOp)
    rules = _only(lanes, tiled.LivenessOp)
    query = _only(lanes, tiled.LoadQueryOp)
    key, value = _key_and_value(loop)
    tensors: dict[str, SSAValue] = {"q": query.source, "k": key.source, "v": value.source}
    if rules.mask is not None:
        tensors["mask"] = rules.mask
    biases = {op.bias: None for op in _all(loop, tiled.AddBiasOp)}
    if len(biases) > 1:
        refuse(lanes, "a program adds one bias")
    if biases:
        tensors["bias"] = next(iter(biases))
    sinks = _only(lanes, tiled.SoftmaxInitOp).sinks
    if sinks is not None:
        tensors["sinks"] = sinks
    mixed = any(True for _ in _all(loop, lamp.AccumulateOp))
    _check_formats(loop)
    batch, heads, queries, size = tensor_shape(query.source)
    _, kv_heads, keys, value_size = tensor_shape(value.source)
    tile_keys = tensor_shape(live.result)[0]
    sub_blocks = loop.sub_blocks.value.data
    stage1 = next(_all(loop, lamp.RecomputeUnsafeOp), None)
    stage2 = next(_all(loop, lamp.KeepLowOp), None)
    cap = _caps(lanes, loop)
    policy = "fp32"
    if mixed:
        low = any(op.sub_block is None for op in _all(loop, lamp.AccumulateOp))
        policy = "high" if not low else "lamp" if stage1 or stage2 else "low"
    config = Config(
        bq=lanes.count("rows"),
        bk=tile_keys // sub_blocks,
        nk=sub_blocks,
        nq=lanes.count("warps"),
        d=size,
        dv=value_size,
        lq=queries,
        lk=keys,
        batch=batch,
        hq=heads,
        hkv=kv_heads,
        scale=_only(lanes, tiled.ScaleQueryOp).scale.value.data,
        delta=stage1.delta.value.data if stage1 else 0.0,
        tau=stage2.tau.value.data if stage2 else 1.0,
        tie=stage2.tie.data if stage2 else "slack",
        cap=cap,
        causal=rules.causal is not None,
        causal_offset=_integer(rules, "causal_offset"),
        window=_integer(rules, "window"),
        layout=lanes.layout.data if lanes.layout is not None else "safe",
        policy=policy,
        kv_order=loop.order.data,
        overflow=_overflow(lanes, loop),
        accumulate_block=_accumulate_block(lanes, loop),
        operand=_operand(lanes, [tensors[name] for name in "qkv"]),
        has_mask="mask" in tensors,
        has_bias="bias" in tensors,
        has_sinks="sinks" in tensors,
    )
    return Description(lanes, loop, live, tensors, config, mixed)


def format_of(value: SSAValue) -> str:
    """Suffix of the mnemonics for scores of a value's type: e4m3, e4m11 or f32."""
    element = SSAValue.get(value, type=TensorType).type.element_type
    return element.format.name if isinstance(element, FloatType) else "f32"


def _all(root: Operation, kind: type[OpT]) -> Iterator[OpT]:
    return (op for op in root.walk() if isinstance(op, kind))


def _only(root: Operation, kind: type[OpT]) -> OpT:
    found = list(_all(root, kind))
    if len(found) != 1:
        refuse(root, f"a program of the accelerator has one {kind.name}, this attention {len(found)}")
    return found[0]


def _key_and_value(loop: tiled.TileLoopOp) -> tuple[tiled.LoadTileOp, tiled.LoadTileOp]:
    """The loads of the key and the value tile, told apart by who reads them."""
    keys = {op.key for op in loop.walk() if isinstance(op, lamp.AccumulateOp | tiled.ScoresOp)}
    values = {op.value for op in loop.walk() if isinstance(op, lamp.UpdateOutputOp | tiled.OnlineSoftmaxOp)}
    loads = [[op for op in _all(loop, tiled.LoadTileOp) if op.result in tiles] for tiles in (keys, values)]
    if [len(found) for found in loads] != [1, 1]:
        refuse(loop, "a tile loop of the accelerator loads one key tile and one value tile")
    return loads[0][0], loads[1][0]


def _integer(op: Operation, name: str) -> int:
    attribute = op.properties.get(name)
    return attribute.value.data if isinstance(attribute, IntegerAttr) else 0


def _operand(lanes: tiled.LanesOp, values: list[SSAValue]) -> str:
    names = {_OPERANDS.get(type(SSAValue.get(value, type=TensorType).type.element_type)) for value in values}
    name = names.pop()
    if name is None or names:
        refuse(lanes, "Q, K and V must be stored in one type, f32, bf16, f16 or e4m3; choose it with --operands")
    return name


def _caps(lanes: tiled.LanesOp, loop: tiled.TileLoopOp) -> float:
    caps = {op.cap.value.data for op in _all(loop, tiled.SoftCapOp)}
    if len(caps) > 1:
        refuse(lanes, "a program has one soft cap")
    return caps.pop() if caps else 0.0


def _accumulate_block(lanes: tiled.LanesOp, loop: tiled.TileLoopOp) -> int:
    blocks = {op.accumulate_block.value.data for op in _all(loop, lamp.AccumulateOp)}
    if len(blocks) > 1:
        refuse(lanes, "a program has one accumulate_block")
    return blocks.pop() if blocks else 1


def _overflow(lanes: tiled.LanesOp, loop: tiled.TileLoopOp) -> str:
    found = {
        op.overflow.data
        for kind in (lamp.AccumulateOp, tiled.SoftCapOp, tiled.AddBiasOp)
        for op in _all(loop, kind)
        if op.overflow
    }
    if len(found) > 1:
        refuse(lanes, "a program has one overflow, of accumulation, cap and bias")
    return found.pop() if found else "saturate"


def _check_formats(loop: tiled.TileLoopOp) -> None:
    """Every format, rounding and shift is what the instructions have; what is not is refused."""
    for op in loop.walk():
        rounding = op.properties.get("rounding")
        if isinstance(rounding, StringAttr) and rounding.data != "rne":
            refuse(op, f"rounding = {rounding.data} is not a program of the machine, which rounds to nearest even")
        if isinstance(op, lamp.AccumulateOp):
            _check(op, op.result, E4M3 if op.sub_block is None else E4M11)
        elif isinstance(op, lamp.ExponentialOp):
            low = op.unit.data == "lut"
            _check(op, op.scores, E4M3 if low else E4M11)
            _check(op, op.result, UE5M3_EXP if low else UE5M11_EXP)
            _check_format(op, op.shift_format.format, UE5M3_SHIFT if low else UE5M11_SHIFT)
            if op.above_one.data != "clamp":
                refuse(op, f"exp_above_one = {op.above_one.data} is not a program of the machine; use clamp")
            if op.shift.data != ("truncate" if low else "exact"):
                refuse(op, f"shift = {op.shift.data} of {E4M3 if low else E4M11} scores is not a program of the machine")
            if op.cut is not None:
                _check_format(op, op.cut.format, E4M3)


def _check(op: Operation, value: SSAValue, expected: FloatFormat) -> None:
    element = SSAValue.get(value, type=TensorType).type.element_type
    _check_format(op, element.format if isinstance(element, FloatType) else None, expected)


def _check_format(op: Operation, found: FloatFormat | None, expected: FloatFormat) -> None:
    if found == expected:
        return
    if found is not None and found.min_exponent == -126:
        refuse(op, "range = unbounded (preset paper-sim) is not a program of the machine; use --preset hw or --target numpy")
    refuse(op, f"{op.name} in format {found} is not a program of the machine, which has {expected} there")
