"""
Match onnxruntime's own `Attention` and `MultiHeadAttention` (domain com.microsoft) in their plain forms, and pass on the rest.

Projection, bias and mask go to the host as nodes of their own. Their semantics were found by trial on onnxruntime 1.32
(docs/onnx.md §3): padding adds `mask_filter_value` where causality excludes.
"""

import math
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import AnyFloat, f32, i1
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, onnx_dtype
from lampc.passes.raising import group_query
from lampc.passes.raising.axis_maps import Axis, Layout, axis
from lampc.passes.raising.graph import (
    Refusal,
    element_of,
    float_attribute,
    int_attribute,
    integers_attribute,
    is_node,
    operand,
    shape_of,
)
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_structure import Structure, split_masks
from lampc.passes.raising.mask_terms import MaskTerm
from lampc.passes.raising.plan import Operand, Plan

SUPPORTED = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


@dataclass(frozen=True)
class _Inputs:
    """Query, key and value [batch, length, heads * size], biases added, and the two masks."""

    query: SSAValue
    key: SSAValue
    value: SSAValue
    padding: SSAValue | None
    bias: SSAValue | None


def match(node: NodeOp, host: HostNodes) -> Plan:
    """The attention that a com.microsoft node computes; `host` takes nodes to be added. Raises Refusal with the reason."""
    if is_node(node, "GroupQueryAttention", domain="com.microsoft"):
        return group_query.match(node, host)
    heads = int_attribute(node, "num_heads", 0)
    inputs = _attention(node, host) if is_node(node, "Attention", domain="com.microsoft") else _multi_head(node, host)
    (batch, queries, width), (_, keys, key_width), (_, _, value_width) = (
        shape_of(value) for value in (inputs.query, inputs.key, inputs.value)
    )
    if heads < 1 or width % heads or value_width % heads or key_width != width or 0 in (batch, queries, keys, width):
        raise Refusal(f"{heads} heads on hidden sizes {width}, {key_width} and {value_width}", node)
    b, h, l, k = axis("b", batch), axis("h", heads), axis("l", queries), axis("k", keys)
    d, e = axis("d", width // heads), axis("d", value_width // heads)
    canonical = (b, h, l, k)

    def place(value: SSAValue, rows: Axis, inner: Axis) -> Operand:
        return Operand(value, (b, rows, (*h, *inner)), (b, h, rows, inner))

    causal = int_attribute(node, "unidirectional", 0) == 1
    if causal and queries != keys:
        raise Refusal("unidirectional with another number of keys than queries", node)
    terms: list[MaskTerm] = []
    if inputs.padding is not None:
        terms.append(_padding(node, host, inputs.padding, canonical, (batch, keys)))
    if inputs.bias is not None:
        terms.append(_bias(node, inputs.bias, canonical, (batch, heads, queries, keys)))
    structure, tensors = split_masks(terms, l, k, Structure() if causal else None)
    scale = float_attribute(node, "scale", 0.0) or 1 / math.sqrt(width // heads)
    if not (scale > 0 and math.isfinite(scale)):
        raise Refusal(f"a scale of {scale:g}", node)
    return Plan(
        node,
        place(inputs.query, l, d),
        place(inputs.key, k, d),
        place(inputs.value, k, e),
        (b, l, (*h, *e)),
        canonical,
        e,
        scale,
        structure=structure,
        terms=tensors,
    )


def _refuse(node: NodeOp, inputs: dict[int, str], outputs: dict[int, str]) -> None:
    for index, name in inputs.items():
        if operand(node, index) is not None:
            raise Refusal(f"its input {name} is given", node)
    for index, name in outputs.items():
        if index < len(node.results) and node.results[index].uses:
            raise Refusal(f"its output {name} is used", node)


def _attention(node: NodeOp, host: HostNodes) -> _Inputs:
    """`Attention`: one projection for query, key and value."""
    _refuse(node, {4: "past", 6: "past_sequence_length"}, {1: "present"})
    if int_attribute(node, "do_rotary", 0):
        raise Refusal("do_rotary is set", node)
    x, weights = node.operands[0], node.operands[1]
    (batch, length, _), (_, total) = shape_of(x), shape_of(weights)
    widths = integers_attribute(node, "qkv_hidden_sizes", (total // 3,) * 3)
    if sum(widths) != total or len(widths) != 3:
        raise Refusal(f"qkv_hidden_sizes {widths} on weights of {total} columns", node)
    projected = host.node("MatMul", [x, weights], shape=(batch, length, total))
    bias = operand(node, 2)
    if bias is not None:
        projected = host.node("Add", [projected, bias])
    parts = _slices(host, projected, widths, 2)
    return _Inputs(parts[0], parts[1], parts[2], operand(node, 3), operand(node, 5))


def _multi_head(node: NodeOp, host: HostNodes) -> _Inputs:
    """`MultiHeadAttention` on three inputs of three axes."""
    _refuse(
        node,
        {6: "past_key", 7: "past_value", 8: "past_sequence_length", 9: "cache_indirection"},
        {1: "present_key", 2: "present_value", 3: "qk"},
    )
    values = [operand(node, index) for index in range(3)]
    parts = [value for value in values if value is not None and len(shape_of(value)) == 3]
    if len(parts) != 3:
        raise Refusal("packed or four-dimensional inputs", node)
    bias = operand(node, 3)
    if bias is not None:
        widths = [shape_of(part)[2] for part in parts]
        if shape_of(bias) != (sum(widths),):
            raise Refusal(f"a bias of shape {shape_of(bias)} for hidden sizes {widths}", node)
        biases = _slices(host, bias, widths, 0)
        parts = [host.node("Add", [part, own]) for part, own in zip(parts, biases, strict=True)]
    return _Inputs(parts[0], parts[1], parts[2], operand(node, 4), operand(node, 5))


def _slices(host: HostNodes, value: SSAValue, widths: "tuple[int, ...] | list[int]", where: int) -> list[SSAValue]:
    """`value` cut along axis `where`."""
    parts: list[SSAValue] = []
    start = 0
    for width in widths:
        shape = [*shape_of(value)]
        shape[where] = width
        limits = [host.integers(start), host.integers(start + width), host.integers(where)]
        parts.append(host.node("Slice", [value, *limits], shape=shape))
        start += width
    return parts


def _padding(node: NodeOp, host: HostNodes, mask: SSAValue, canonical: Layout, sizes: tuple[int, int]) -> MaskTerm:
    """A mask [batch, keys] of ones and zeros or lengths [batch] as the number that is added, [batch, 1, 1, keys]."""
    batch, keys = sizes
    if shape_of(mask) == (batch, keys):
        live = host.reshape(host.node("Cast", [mask], i1, to=onnx_dtype(i1)), (batch, 1, 1, keys))
    elif shape_of(mask) == (batch,):
        lengths = host.reshape(host.node("Cast", [mask], element_of(host.integer(0)), to=7), (batch, 1, 1, 1))
        steps = host.node("Range", [host.integer(n) for n in (0, keys, 1)], shape=(keys,))
        live = host.node("Less", [steps, lengths], i1)
    else:
        raise Refusal(f"a mask of shape {shape_of(mask)}", node)
    filler = float_attribute(node, "mask_filter_value", -10000.0)
    chosen = [live, host.constant(np.zeros((), np.float32)), host.constant(np.array(filler, np.float32))]
    return MaskTerm(node, host.node("Where", chosen, f32), (canonical[0], (), (), canonical[3]))


def _bias(node: NodeOp, bias: SSAValue, canonical: Layout, scores: tuple[int, int, int, int]) -> MaskTerm:
    """attention_bias, which is added."""
    shape = shape_of(bias)
    if len(shape) != 4 or any(n not in (1, full) for n, full in zip(shape, scores, strict=True)):
        raise Refusal(f"an attention_bias of shape {shape} for scores of shape {scores}", node)
    if not isinstance(element_of(bias), AnyFloat):
        raise Refusal(f"an attention_bias of {element_of(bias)}", node)
    return MaskTerm(node, bias, tuple(() if n == 1 else group for n, group in zip(shape, canonical, strict=True)))
