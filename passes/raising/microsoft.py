"""
Match onnxruntime's own `Attention`, `MultiHeadAttention` and what is like them (domain com.microsoft), and pass on the rest.

Projection, bias, caches and masks go to the host as nodes of their own. Their semantics were found by trial on onnxruntime 1.32
(docs/onnx.md §3): padding adds `mask_filter_value` where causality excludes.
"""

import math

from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising import decoder_step, group_query
from lampc.passes.raising.axis_maps import Axis, axis
from lampc.passes.raising.fused_inputs import (
    Inputs,
    bias_term,
    heads_apart,
    joined,
    padding_term,
    refuse,
    sliced,
    used,
    with_bias,
)
from lampc.passes.raising.graph import (
    Refusal,
    float_attribute,
    int_attribute,
    integers_attribute,
    operand,
    shape_of,
)
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_structure import Structure, split_masks
from lampc.passes.raising.mask_terms import MaskTerm
from lampc.passes.raising.plan import Operand, Plan

SUPPORTED = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention")

UNSUPPORTED = {
    "DecoderAttention": "it projects, caches and attends in one, by switches that are inputs",
    "DecoderMaskedSelfAttention": "it projects inside and has a cache of keys and values in one tensor",
    "DynamicSparseAttention": "which keys a query sees is computed inside",
    "LongformerAttention": "its windows and global tokens have projections of their own",
    "PackedAttention": "its batch is packed into one axis by token offsets",
    "PackedMultiHeadAttention": "its batch is packed into one axis by token offsets",
    "PagedAttention": "its cache is in pages found by a block table",
    "QAttention": "its inputs and weights are quantised",
    "SparseAttention": "its mask is a table of blocks in CSR form",
    "SparsePagedAttention": "its cache is in pages found by a block table",
}
"""Operators of com.microsoft that the host runs as they are, if onnxruntime has a kernel, and why."""


def match(node: NodeOp, host: HostNodes) -> Plan:
    """The attention that a com.microsoft node computes; `host` takes nodes to be added. Raises Refusal with the reason."""
    if node.op_type.data == "GroupQueryAttention":
        return group_query.match(node, host)
    heads = int_attribute(node, "num_heads", 0)
    if heads < 1:
        raise Refusal(f"num_heads is {heads}", node)
    readers = {
        "Attention": _attention,
        "MultiHeadAttention": _multi_head,
        "DecoderMaskedMultiHeadAttention": decoder_step.inputs_of,
    }
    inputs = readers[node.op_type.data](node, host, heads)
    batch, queries, _ = shape_of(inputs.query)
    keys, size, value_size = _sizes(node, inputs, heads)
    b, h, l, k = axis("b", batch), axis("h", heads), axis("l", queries), axis("k", keys)
    d, e = axis("d", size), axis("d", value_size)
    canonical = (b, h, l, k)

    def place(value: SSAValue, rows: Axis, inner: Axis) -> Operand:
        target = (b, h, rows, inner)
        return Operand(value, target if len(shape_of(value)) == 4 else (b, rows, (*h, *inner)), target)

    causal = int_attribute(node, "unidirectional", 0) == 1
    if causal and queries != keys - inputs.past:
        raise Refusal("unidirectional with another number of keys than queries", node)
    terms: list[MaskTerm] = []
    if inputs.live is not None:
        terms.append(MaskTerm(node, inputs.live, (k,), selects=True))
    if inputs.padding is not None:
        terms.append(padding_term(node, host, inputs.padding, canonical, (batch, queries, keys)))
    if inputs.bias is not None:
        terms.append(bias_term(node, inputs.bias, canonical, (batch, heads, queries, keys)))
    structure, tensors = split_masks(terms, l, k, Structure(inputs.past) if causal else None)
    scale = float_attribute(node, "scale", 0.0) or 1 / math.sqrt(size)
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
        other_results=inputs.others,
    )


def _sizes(node: NodeOp, inputs: Inputs, heads: int) -> tuple[int, int, int]:
    """Keys, head size and value size. Raises Refusal if the shapes do not fit each other."""
    batch, queries, width = shape_of(inputs.query)
    apart: list[tuple[int, ...]] = []
    for value in (inputs.key, inputs.value):
        shape = shape_of(value)
        if len(shape) == 3 and not shape[2] % heads:
            shape = (shape[0], heads, shape[1], shape[2] // heads)
        apart.append(shape)
    key, value = apart
    lead = (batch, heads, key[-2])
    if width != heads * key[-1] or key[:-1] != lead or value[:-1] != lead or 0 in (*lead, queries, key[-1], value[-1]):
        shapes = ", ".join(str(shape_of(x)) for x in (inputs.query, inputs.key, inputs.value))
        raise Refusal(f"query, key and value of shapes {shapes} for {heads} heads", node)
    return key[-2], key[-1], value[-1]


def _attention(node: NodeOp, host: HostNodes, heads: int) -> Inputs:
    """`Attention`: one projection for query, key and value; past and present [2, batch, heads, keys, size]."""
    refuse(node, {6: "past_sequence_length"}, {})
    if int_attribute(node, "do_rotary", 0):
        raise Refusal("do_rotary is set", node)
    x, weights = node.operands[0], node.operands[1]
    (batch, length, _), (_, total) = shape_of(x), shape_of(weights)
    widths = integers_attribute(node, "qkv_hidden_sizes", (total // 3,) * 3)
    if sum(widths) != total or len(widths) != 3 or any(width % heads for width in widths):
        raise Refusal(f"qkv_hidden_sizes {widths} on weights of {total} columns and {heads} heads", node)
    projected = host.node("MatMul", [x, weights], shape=(batch, length, total))
    bias = operand(node, 2)
    if bias is not None:
        projected = host.node("Add", [projected, bias])
    query, key, value = sliced(host, projected, widths, 2)
    past = operand(node, 4)
    if past is None and not used(node, 1):
        return Inputs(query, key, value, padding=operand(node, 3), bias=operand(node, 5))
    if widths[1] != widths[2]:
        raise Refusal("a cache of keys and values of different sizes", node)
    key, value = heads_apart(host, key, heads), heads_apart(host, value, heads)
    count = 0
    if past is not None:
        count = shape_of(past)[3] if len(shape_of(past)) == 5 else -1
        shape = (batch, heads, count, widths[1] // heads)
        if shape_of(past) != (2, *shape):
            raise Refusal(f"a past of shape {shape_of(past)}", node)
        pasts = [host.reshape(part, shape) for part in sliced(host, past, (1, 1), 0)]
        key, value = joined(host, pasts[0], key), joined(host, pasts[1], value)
    others: list[tuple[SSAValue, SSAValue]] = []
    if used(node, 1):
        both = [host.reshape(part, (1, *shape_of(part))) for part in (key, value)]
        present = host.node("Concat", both, shape=(2, *shape_of(key)), axis=0, name=node.names.data[1].data)
        others.append((node.results[1], present))
    return Inputs(query, key, value, count, operand(node, 3), operand(node, 5), others=tuple(others))


def _multi_head(node: NodeOp, host: HostNodes, heads: int) -> Inputs:
    """`MultiHeadAttention`: keys and values with heads in one axis, with a cache before them, or [batch, heads, keys, size]."""
    refuse(node, {8: "past_sequence_length", 9: "cache_indirection"}, {3: "qk"})
    query, key, value = operand(node, 0), operand(node, 1), operand(node, 2)
    if query is None or len(shape_of(query)) != 3:
        raise Refusal("packed query, key and value", node)
    if key is None or value is None or not len(shape_of(key)) == len(shape_of(value)) in (3, 4):
        raise Refusal("packed key and value, or ones of other ranks", node)
    bias, pasts = operand(node, 3), [operand(node, 6), operand(node, 7)]
    masks = operand(node, 4), operand(node, 5)
    if len(shape_of(key)) == 4:
        refuse(node, {6: "past_key", 7: "past_value"}, {})
        kept = [(i, x, node.names.data[i].data) for i, x in ((1, key), (2, value)) if used(node, i)]
        others = tuple((node.results[i], joined(host, None, x, name)) for i, x, name in kept)
        if bias is not None:  # keys and values have theirs already
            query = host.node("Add", [query, sliced(host, bias, [shape_of(query)[2]], 0)[0]])
        return Inputs(query, key, value, padding=masks[0], bias=masks[1], others=others)
    query, key, value = with_bias(node, host, [query, key, value], bias)
    if (pasts[0] is None) != (pasts[1] is None):
        raise Refusal("only one of past_key and past_value is given", node)
    if pasts[0] is None and not used(node, 1) and not used(node, 2):
        return Inputs(query, key, value, padding=masks[0], bias=masks[1])
    count = 0 if pasts[0] is None else shape_of(pasts[0])[2] if len(shape_of(pasts[0])) == 4 else -1
    whole: list[SSAValue] = []
    presents: list[tuple[SSAValue, SSAValue]] = []
    for index, (past, new) in enumerate(zip(pasts, (key, value), strict=True), 1):
        if shape_of(new)[2] % heads:
            raise Refusal(f"{heads} heads on a hidden size of {shape_of(new)[2]}", node)
        if past is not None and shape_of(past) != (shape_of(new)[0], heads, count, shape_of(new)[2] // heads):
            raise Refusal(f"a cache of shape {shape_of(past)} before {shape_of(new)} of {heads} heads", node)
        name = node.names.data[index].data if used(node, index) else None
        whole.append(joined(host, past, heads_apart(host, new, heads), name))
        if name is not None:
            presents.append((node.results[index], whole[-1]))
    return Inputs(query, whole[0], whole[1], count, *masks, others=tuple(presents))
