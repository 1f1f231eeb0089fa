"""What the attention operators of com.microsoft have in common: heads in one axis, caches, masks of ones and zeros."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import AnyFloat, f32, i1, i64
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, onnx_dtype
from lampc.passes.raising.axis_maps import Layout
from lampc.passes.raising.graph import Refusal, element_of, float_attribute, operand, shape_of
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_terms import MaskTerm

Results = tuple[tuple[SSAValue, SSAValue], ...]
"""Results of a node and what stands for them."""


@dataclass(frozen=True)
class Inputs:
    """
    One call, ready for attention.

    query       [batch, queries, heads * size]
    key, value  the same, or [batch, heads, keys, size]
    past        keys that come from a cache
    padding     ones and zeros or lengths, see `padding_term`; bias: a number to add
    live        bool [keys], which keys there are; None: all
    others      what stands for results beside the first
    """

    query: SSAValue
    key: SSAValue
    value: SSAValue
    past: int = 0
    padding: SSAValue | None = None
    bias: SSAValue | None = None
    live: SSAValue | None = None
    others: Results = ()


def refuse(node: NodeOp, inputs: dict[int, str], outputs: dict[int, str]) -> None:
    """Raises Refusal if one of the inputs is given or one of the outputs used."""
    for index, name in inputs.items():
        if operand(node, index) is not None:
            raise Refusal(f"its input {name} is given", node)
    for index, name in outputs.items():
        if used(node, index):
            raise Refusal(f"its output {name} is used", node)


def used(node: NodeOp, index: int) -> bool:
    return index < len(node.results) and bool(node.results[index].uses)


def sliced(host: HostNodes, value: SSAValue, widths: Sequence[int], where: int) -> list[SSAValue]:
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


def with_bias(node: NodeOp, host: HostNodes, parts: Sequence[SSAValue], bias: SSAValue | None) -> list[SSAValue]:
    """Query, key and value with their part of one bias vector added."""
    if bias is None:
        return [*parts]
    widths = [shape_of(part)[2] for part in parts]
    if shape_of(bias) != (sum(widths),):
        raise Refusal(f"a bias of shape {shape_of(bias)} for hidden sizes {widths}", node)
    return [host.node("Add", [part, own]) for part, own in zip(parts, sliced(host, bias, widths, 0), strict=True)]


def heads_apart(host: HostNodes, value: SSAValue, heads: int) -> SSAValue:
    """[batch, heads, length, size] of [batch, length, heads * size]."""
    batch, length, width = shape_of(value)
    split = host.reshape(value, (batch, length, heads, width // heads))
    return host.node("Transpose", [split], shape=(batch, heads, length, width // heads), perm=(0, 2, 1, 3))


def joined(host: HostNodes, past: SSAValue | None, new: SSAValue, name: str | None = None) -> SSAValue:
    """A cache [batch, heads, past, size] and what follows it."""
    if past is None:
        return host.node("Identity", [new], name=name)
    batch, heads, length, size = shape_of(past)
    return host.node("Concat", [past, new], shape=(batch, heads, length + shape_of(new)[2], size), axis=2, name=name)


def padding_term(node: NodeOp, host: HostNodes, mask: SSAValue, canonical: Layout, sizes: tuple[int, int, int]) -> MaskTerm:
    """
    What a mask adds: 0 or `mask_filter_value`, [batch, 1, queries or 1, keys].

    mask   ones and zeros [batch, keys] or [batch, queries, keys]; where keys end [batch]; where they end, then where they begin
           [2 * batch]
    sizes  batch, queries, keys

    Raises Refusal for other shapes.
    """
    batch, queries, keys = sizes
    shape = shape_of(mask)
    if shape in ((batch, keys), (batch, queries, keys)):
        rows = 1 if len(shape) == 2 else queries
        live = host.reshape(host.node("Cast", [mask], i1, to=onnx_dtype(i1)), (batch, 1, rows, keys))
    elif shape in ((batch,), (2 * batch,)):
        rows = 1
        limits = host.reshape(host.node("Cast", [mask], i64, to=onnx_dtype(i64)), (shape[0] // batch, batch, 1, 1, 1))
        steps = host.steps(keys)
        ends = sliced(host, limits, [1] * (shape[0] // batch), 0)
        live = host.node("Less", [steps, host.reshape(ends[0], (batch, 1, 1, 1))], i1)
        if len(ends) == 2:
            begun = host.node("GreaterOrEqual", [steps, host.reshape(ends[1], (batch, 1, 1, 1))], i1)
            live = host.node("And", [live, begun])
    else:
        raise Refusal(f"a mask of shape {shape}", node)
    filler = float_attribute(node, "mask_filter_value", -10000.0)
    chosen = [live, host.constant(np.zeros((), np.float32)), host.constant(np.array(filler, np.float32))]
    return MaskTerm(node, host.node("Where", chosen, f32), (canonical[0], (), canonical[2] if rows > 1 else (), canonical[3]))


def bias_term(node: NodeOp, bias: SSAValue, canonical: Layout, scores: tuple[int, int, int, int]) -> MaskTerm:
    """attention_bias, which is added."""
    shape = shape_of(bias)
    if len(shape) != 4 or any(n not in (1, full) for n, full in zip(shape, scores, strict=True)):
        raise Refusal(f"an attention_bias of shape {shape} for scores of shape {scores}", node)
    if not isinstance(element_of(bias), AnyFloat):
        raise Refusal(f"an attention_bias of {element_of(bias)}", node)
    return MaskTerm(node, bias, tuple(() if n == 1 else group for n, group in zip(shape, canonical, strict=True)))
