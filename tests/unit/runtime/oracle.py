"""Attention in plain NumPy, a level-2 function at a time: the tests' oracle (onnx.md §1.4, lampattention.md §4.3)."""

import numpy as np
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.dialects.onnx import is_tensor, numpy_dtype
from lampc.dialects.onnx_attributes import Array

THRESHOLD = -1e4


def run_function(function: FuncOp, arrays: list[Array]) -> Array:
    """The result of a function of rearrangements and one attention."""
    values: dict[SSAValue, Array] = dict(zip(function.body.block.args, arrays, strict=True))
    for op in function.body.block.ops:
        if isinstance(op, RearrangeOp):
            how = op.rearrangement
            array = values[op.input].reshape(how.split_shape).transpose(how.permutation)
            values[op.output] = array.reshape(how.result_shape)
        elif isinstance(op, AttentionOp):
            values[op.output] = attention(op, *(values[v] for v in op.operands))
        elif isinstance(op, ReturnOp):
            return values[op.operands[0]]
        else:
            raise AssertionError(op.name)
    raise AssertionError("no return")


def attention(op: AttentionOp, query: Array, key: Array, value: Array, *rest: Array) -> Array:
    """One `attn.attention` in float64."""
    others = iter(rest)
    mask = next(others) if op.mask is not None else None
    sinks = next(others) if op.sinks is not None else None
    group = query.shape[1] // key.shape[1]
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores: Array = np.einsum("bhqd,bhkd->bhqk", q, k) * op.scale.value.data
    if op.softcap is not None:
        cap = op.softcap.value.data
        scores = cap * np.tanh(scores / cap)
    rows, keys = np.indices(scores.shape[-2:])
    last = rows + (op.causal_offset.value.data if op.causal_offset else 0)
    live: Array = np.broadcast_to(keys <= last if op.causal else keys == keys, scores.shape).copy()
    if op.window is not None:
        live = live & (keys > last - op.window.value.data)
    if mask is not None and mask.dtype == np.bool_:
        masked = op.masked_value.value.data if op.masked_value is not None else -np.inf
        mask = np.where(mask, 0.0, masked)
    if mask is not None:
        bias = np.broadcast_to(np.asarray(mask, np.float64), scores.shape)
        above = np.logical_or.reduce(live & (bias > THRESHOLD), axis=-1, keepdims=True)
        live = live & (bias != -np.inf) & ((bias > THRESHOLD) | ~above)
        with np.errstate(invalid="ignore"):
            # FP32, in which the lowest number swallows every score
            scores = (scores.astype(np.float32) + bias.astype(np.float32)).astype(np.float64)
    scores = np.where(live, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, np.float64)[None, :, None, None])
    top = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[None, :, None, None] - top)
    output = np.einsum("bhqk,bhkd->bhqd", weights, v) / np.where(total == 0, 1, total)
    assert is_tensor(op.output.type)
    return output.astype(numpy_dtype(op.output.type.element_type))
