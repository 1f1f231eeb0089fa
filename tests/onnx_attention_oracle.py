"""
ONNX's `Attention`, versions 23 to 25, in NumPy and FP64: what lampc's results are compared with.

Written from the text of onnx 1.23 and the decisions of docs/onnx.md sections 1.1 and 1.4; it shares no code with lampc.
What the decisions reject raises Rejected.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


class Rejected(Exception):
    """What docs/onnx.md section 1.4 decides to reject."""


@dataclass(frozen=True)
class Result:
    """The four outputs; present_key and present_value [batch, heads, past + keys, size] also without a cache."""

    y: Array
    present_key: Array
    present_value: Array
    qk: Array


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    version: int,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 1,
    qk_matmul_output_mode: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> Result:
    """The operator with its inputs and attributes; results in the types of `query` (y, present_key, qk) and `value`."""
    if softmax_precision not in (1, 10, 11, 16):  # the softmax runs in FP32 at least, here always in FP64
        raise Rejected("softmax_precision")
    if is_causal not in (0, 1) or qk_matmul_output_mode not in (0, 1, 2, 3) or softcap < 0:
        raise Rejected("an attribute")
    rank, kind = query.ndim, query.dtype
    q = _heads(query, q_num_heads)
    k, v = _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1] or q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
        raise Rejected("shapes")
    if scale is None:
        scale = 1 / math.sqrt(q.shape[3])
    if not (scale > 0 and math.isfinite(scale)):
        raise Rejected("scale")

    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    present = k, v
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]

    bias = np.zeros((batch, heads, queries, keys))
    if mask is not None:
        bias = bias + _additive(mask, kind, keys, version)
    q64, k64, v64 = (np.asarray(x, np.float64) for x in (q, k, v))
    i, j = np.indices((queries, keys))
    offset: Array = np.full((batch, 1, 1, 1), past)  # without a cache causality is top-left
    if nonpad_kv_seqlen is not None:
        if not np.all((nonpad_kv_seqlen >= 0) & (nonpad_kv_seqlen <= keys)):
            raise Rejected("nonpad_kv_seqlen")
        length = nonpad_kv_seqlen.reshape(batch, 1, 1, 1)
        offset = length - queries
        bias = np.where(j < length, bias, -np.inf)
        there = np.indices((keys,)).reshape(1, 1, keys, 1) < length  # the padding of a cache is garbage: it is not read
        k64, v64 = np.where(there, k64, 0), np.where(there, v64, 0)
    position = i + offset
    if is_causal:
        bias = np.where(j <= position, bias, -np.inf)
    if left_window_size >= 0:
        bias = np.where(j >= position - left_window_size, bias, -np.inf)
    if right_window_size >= 0:
        bias = np.where(j <= position + right_window_size, bias, -np.inf)

    group = heads // k.shape[1]  # query head h reads h // group
    k64, v64 = np.repeat(k64, group, axis=1), np.repeat(v64, group, axis=1)
    raw = scale * (q64 @ k64.swapaxes(2, 3))
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    biased = capped + bias  # the soft cap comes before the mask
    weights = _softmax(biased, bias)
    y = weights @ v64
    if rank == 3:
        y = y.swapaxes(1, 2).reshape(batch, queries, heads * v.shape[3])
    with np.errstate(over="ignore"):
        qk = (raw, capped, biased, weights)[qk_matmul_output_mode].astype(kind)
        return Result(y.astype(kind), *present, qk)


def _heads(x: Array, count: int | None) -> Array:
    """[batch, heads, length, size] of that or of [batch, length, heads * size]."""
    if x.ndim == 4:
        if count not in (None, x.shape[1]):
            raise Rejected("head attributes on four axes that differ from the tensors")
        return x
    if count is None or x.shape[2] % count:
        raise Rejected("three axes without head attributes that fit")
    batch, length, width = x.shape
    return x.reshape(batch, length, count, width // count).swapaxes(1, 2)


def _additive(mask: Array, kind: np.dtype[Any], keys: int, version: int) -> F64:
    """What is added to the scores: of a boolean 0 or -inf, of a number of any type the number itself, in the query's type."""
    if not 1 <= mask.ndim <= 4 or mask.shape[-1] > keys:
        raise Rejected("attn_mask")
    if mask.dtype == np.bool_:
        bias = np.where(mask, 0.0, -np.inf)
    else:
        with np.errstate(over="ignore"):
            bias = mask.astype(kind).astype(np.float64)
    missing = keys - mask.shape[-1]
    if missing and version >= 24:  # padded, also from one key; in version 23 one key is broadcast
        return np.pad(bias, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=-np.inf)
    if missing and mask.shape[-1] != 1:
        raise Rejected("a short attn_mask")
    return bias


def _softmax(scores: F64, bias: F64) -> F64:
    """Over keys; rows whose bias is -inf everywhere, or that have no key, are zeros."""
    live = np.any(bias != -np.inf, axis=-1, keepdims=True)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(live, top, 0.0))
    total = powers.sum(axis=-1, keepdims=True)
    return np.where(live, powers / np.where(live, total, 1.0), 0.0)
