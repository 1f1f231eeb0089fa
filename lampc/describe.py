"""What an attention function computes, read off its IR: shape and formats."""

from typing import Any

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.dialects.lamp_types import FloatType
from lampc.ir import tensor_shape

Json = dict[str, Any]


def describe(module: ModuleOp) -> dict[str, Json]:
    """Shape and formats of every attention function of a module at level 3 or 4, by its name."""
    functions = [op for op in module.body.ops if isinstance(op, FuncOp)]
    return {function.sym_name.data: {"shape": _shape(function), "formats": _formats(function)} for function in functions}


def kept(module: ModuleOp) -> dict[str, Json]:
    """Shape of every attention that `lamp-keep-attention` cut out, by the name of its function."""
    described: dict[str, Json] = {}
    for function in module.body.ops:
        shape = function.attributes.get("attn.shape")
        if isinstance(function, FuncOp) and isinstance(shape, DictionaryAttr):
            sizes = {name: size.value.data for name, size in shape.data.items() if isinstance(size, IntegerAttr)}
            described[function.sym_name.data] = {"shape": sizes, "formats": {}}
    return described


def _shape(function: FuncOp) -> Json:
    for lanes in function.walk():
        if isinstance(lanes, tiled.LanesOp):
            loads = [op for op in lanes.walk() if isinstance(op, tiled.LoadQueryOp | tiled.LoadTileOp)]
            query, key, value = (tensor_shape(op.source) for op in loads[:3])
            names = ("batch", "query_heads", "kv_heads", "queries", "keys", "head_size", "value_size")
            return dict(zip(names, (*query[:2], key[1], query[2], key[2], query[3], value[3]), strict=True))
    return {}


def _formats(function: FuncOp) -> Json:
    """Storage type of Q, and the accumulator and exponential formats that occur."""
    found: dict[str, list[str]] = {"operands": [], "accumulators": [], "exponentials": []}
    for op in function.walk():
        role, value = None, None
        match op:
            case tiled.LoadQueryOp():
                role, value = "operands", op.source
            case tiled.ScoresOp() | lamp.AccumulateOp():
                role, value = "accumulators", op.result
            case tiled.OnlineSoftmaxOp():
                role, value = "exponentials", op.scores
            case lamp.ExponentialOp():
                role, value = "exponentials", op.result
            case _:
                continue
        element = SSAValue.get(value, type=TensorType).type.element_type
        name = element.format.name if isinstance(element, FloatType) else str(element)
        if name not in found[role]:
            found[role].append(name)
    return found
