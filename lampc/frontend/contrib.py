"""
Result types of the com.microsoft operators that stand around attention, for which ONNX has no schema.

Source: onnx.md §3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto, TypeProto

from lampc.frontend.types import Shape, dtype_of, shape_of, tensor_type

_LIKE_FIRST = frozenset(
    (
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "QuickGelu",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
    )
)

_ATTENTIONS = ("Attention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention")


def _embedding(ids: Shape, inputs: Sequence[TypeProto | None]) -> list[TypeProto | None]:
    """Embeddings [batch, length, hidden] and the mask index [batch]."""
    table = inputs[2] if len(inputs) > 2 else None
    hidden = (shape_of(table) or (None, None))[-1]
    batch, length = ids if ids is not None and len(ids) == 2 else (None, None)
    return [
        tensor_type(dtype_of(table), (batch, length, hidden)) if table is not None else None,
        tensor_type(TensorProto.INT32, (batch,)),
    ]


def _product(a: Shape, b: Shape, attributes: Mapping[str, Any]) -> Shape:
    """Shape of a matrix product with equal batch axes; None for others."""
    if a is None or b is None or len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2]:
        return None
    rows = a[-1 if attributes.get("transA", 0) else -2]
    columns = b[-2 if attributes.get("transB", 0) else -1]
    return (*a[:-2], rows, columns)


def contrib_types(op_type: str, attributes: Mapping[str, Any], inputs: Sequence[TypeProto | None]) -> list[TypeProto | None]:
    """Types of the leading outputs as far as they are known; empty for an operator nobody described."""
    first = inputs[0] if inputs else None
    if first is None:
        return []
    if op_type in _LIKE_FIRST:
        return [first]
    shape = shape_of(first)
    if op_type in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        statistics = tensor_type(TensorProto.FLOAT, None if shape is None else (*shape[:-1], 1))
        return [first, statistics, statistics, first]
    if op_type == "EmbedLayerNormalization":
        return _embedding(shape, inputs)
    if op_type == "FusedMatMul":
        return [tensor_type(dtype_of(first), _product(shape, shape_of(inputs[1]), attributes))]
    if shape is None or len(shape) != 3:
        return [tensor_type(dtype_of(first), None)] if op_type in _ATTENTIONS else []
    batch, length, hidden = shape
    width: int | None = None
    match op_type:
        case "Attention":
            weights = shape_of(inputs[1]) if len(inputs) > 1 else None
            total = weights[1] if weights is not None and len(weights) == 2 else None
            sizes: Sequence[int] = attributes.get("qkv_hidden_sizes", ())
            width = sizes[2] if len(sizes) == 3 else None if total is None else total // 3
        case "MultiHeadAttention" | "DecoderMaskedMultiHeadAttention":
            value = shape_of(inputs[2]) if len(inputs) > 2 else None
            if value is not None and len(value) == 3:
                width = value[2]
            elif value is not None and len(value) == 4 and value[1] is not None and value[3] is not None:
                width = value[1] * value[3]
        case "GroupQueryAttention":
            packed = len(inputs) < 2 or inputs[1] is None
            heads, shared = int(attributes.get("num_heads", 1)), int(attributes.get("kv_num_heads", 1))
            width = hidden if not packed or hidden is None else hidden * heads // max(heads + 2 * shared, 1)
        case _:
            return []
    return [tensor_type(dtype_of(first), (batch, length, width)), *_present(op_type, attributes, inputs, width)]


def _present(
    op_type: str, attributes: Mapping[str, Any], inputs: Sequence[TypeProto | None], width: int | None
) -> list[TypeProto | None]:
    """Types of the caches that an attention gives back; of GroupQueryAttention the length depends on values."""
    heads = int(attributes.get("num_heads", 0))

    def shape(index: int) -> Shape:
        return shape_of(inputs[index]) if index < len(inputs) else None

    def longer(past: int | None, new: int | None) -> int | None:
        return None if past is None or new is None else past + new

    def cache(past: int, new: int) -> TypeProto | None:
        """[batch, heads, past + new, size]"""
        fresh = shape(new)
        if fresh is None or len(fresh) != 3 or heads < 1:
            return None
        size = None if fresh[2] is None else fresh[2] // heads
        given = past < len(inputs) and inputs[past] is not None
        old = shape(past)
        length = 0 if not given else old[2] if old is not None and len(old) == 4 else None
        return tensor_type(dtype_of(inputs[new]), (fresh[0], heads, longer(length, fresh[1]), size))

    match op_type:
        case "MultiHeadAttention":
            return [cache(6, 1), cache(7, 2)]
        case "DecoderMaskedMultiHeadAttention":
            return [inputs[index] if index < len(inputs) else None for index in (5, 6)]
        case "Attention" if heads > 0 and (first := shape(0)) is not None:
            given = len(inputs) > 4 and inputs[4] is not None
            old = shape(4)
            length = 0 if not given else old[3] if old is not None and len(old) == 5 else None
            size = None if width is None else width // heads
            return [tensor_type(dtype_of(inputs[0]), (2, first[0], heads, longer(length, first[1]), size))]
        case _:
            return []
