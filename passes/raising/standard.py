"""
Match the standard `Attention` operator (versions 23, 24 and 25).

A cache given as past_key and past_value is joined by the host, windows
with a right side and lengths of padded keys become a mask that the host computes.
Semantics and the decision for each disagreement between ONNX's own evaluators: onnx.md §1.1 and §1.4.
"""

import math
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, numpy_dtype, onnx_dtype
from lampc.passes.raising.axis_maps import Axis, Layout, axis
from lampc.passes.raising.graph import Refusal, element_of, float_attribute, int_attribute, operand, shape_of
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_structure import Structure, split_masks
from lampc.passes.raising.mask_terms import MaskTerm
from lampc.passes.raising.plan import Nothing, Operand, Plan
from lampc.passes.raising.score_output import score_output

FLOATING = (1, 10, 11, 16)
"""Floating softmax_precision values; the softmax runs in FP32 for all of them."""


@dataclass(frozen=True)
class _Sizes:
    """Sizes of one node; `keys` without the cache, `past` of the cache."""

    rank: int
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    past: int

    @property
    def total(self) -> int:
        return self.past + self.keys


def match(node: NodeOp, host: HostNodes) -> Plan | Nothing:
    """The attention a standard `Attention` node computes; `host` takes nodes to be added. Raises Refusal with the reason."""
    _refuse_unsupported(node)
    sizes = _sizes(node)
    b, l, k = axis("b", sizes.batch), axis("l", sizes.queries), axis("k", sizes.total)
    h, kv = axis("h", sizes.heads), axis("h", sizes.key_heads)
    d, e = axis("d", sizes.size), axis("d", sizes.value_size)
    canonical = (b, h, l, k)
    cached, others = _cache(node, host, sizes)
    if 0 in (sizes.batch, sizes.queries, sizes.total, sizes.value_size):
        return _nothing(node, host, sizes, others)
    lengths = _lengths(node, host, sizes)

    def place(x: SSAValue, head: Axis, rows: Axis, inner: Axis) -> Operand:
        target = (b, head, rows, inner)
        packed = sizes.rank == 3 and len(shape_of(x)) == 3
        return Operand(x, (b, rows, (*head, *inner)) if packed else target, target)

    mask = operand(node, 3)
    if mask is not None:
        mask = _checked_mask(node, host, mask, sizes)
    structure, terms = _masks(node, host, canonical, sizes, mask, lengths)
    if _used(node, 3):
        others += ((node.results[3], _scores(node, host, canonical, sizes, cached[0], mask, lengths)),)
    return Plan(
        node,
        place(node.operands[0], h, l, d),
        place(cached[0], kv, k, d),
        place(cached[1], kv, k, e),
        (b, h, l, e) if sizes.rank == 4 else (b, l, (*h, *e)),
        canonical,
        e,
        _scale(node, sizes.size),
        structure=structure,
        terms=terms,
        softcap=_softcap(node),
        other_results=others,
    )


def _used(node: NodeOp, index: int) -> bool:
    return index < len(node.results) and bool(node.results[index].uses)


def _refuse_unsupported(node: NodeOp) -> None:
    past = [operand(node, 4) is not None, operand(node, 5) is not None]
    if any(past) and not all(past):
        raise Refusal("only one of past_key and past_value is given", node)
    if operand(node, 6) is not None and (any(past) or _used(node, 1) or _used(node, 2)):
        raise Refusal("nonpad_kv_seqlen together with a cache", node)
    if int_attribute(node, "qk_matmul_output_mode", 0) not in (0, 1, 2, 3):
        raise Refusal("qk_matmul_output_mode is none of 0 to 3", node)
    if int_attribute(node, "is_causal", 0) not in (0, 1):
        raise Refusal("is_causal is neither 0 nor 1", node)
    if int_attribute(node, "softmax_precision", 1) not in FLOATING:
        raise Refusal("softmax_precision is no floating type", node)


def _sizes(node: NodeOp) -> _Sizes:
    """Check the shapes against each other; onnx.checker does not."""
    shapes = [shape_of(value) for value in node.operands[:3]]
    query, key, value = shapes
    rank = len(query)
    if rank not in (3, 4) or any(len(shape) != rank for shape in shapes):
        raise Refusal(f"query, key and value of ranks {', '.join(str(len(s)) for s in shapes)}", node)
    heads, key_heads = int_attribute(node, "q_num_heads", 0), int_attribute(node, "kv_num_heads", 0)
    if rank == 4:
        if (heads or query[1], key_heads or key[1]) != (query[1], key[1]):
            raise Refusal(f"head attributes {heads} and {key_heads}, but tensors of {query[1]} and {key[1]} heads", node)
        heads, key_heads = query[1], key[1]
        if value[1] != key_heads:
            raise Refusal(f"{key_heads} key heads and {value[1]} value heads", node)
    if heads < 1 or key_heads < 1 or heads % key_heads:
        raise Refusal(f"{heads} query heads on {key_heads} key-value heads", node)
    if rank == 3 and (query[2] % heads or key[2] % key_heads or value[2] % key_heads):
        raise Refusal("a hidden size that the heads do not divide", node)
    size, key_size, value_size = (
        shape[3] if rank == 4 else shape[2] // count for shape, count in zip(shapes, (heads, key_heads, key_heads), strict=True)
    )
    past = _past(node, query[0], key_heads, size, value_size)
    if key_size != size or key[0] != query[0] or value[0] != query[0] or value[-2] != key[-2]:
        raise Refusal(f"query, key and value of shapes {query}, {key} and {value}", node)
    if not size:
        raise Refusal("a head size of 0", node)
    return _Sizes(rank, query[0], heads, key_heads, query[-2], key[-2], size, value_size, past)


def _past(node: NodeOp, batch: int, heads: int, size: int, value_size: int) -> int:
    """The length of the cache."""
    past_key, past_value = operand(node, 4), operand(node, 5)
    if past_key is None or past_value is None:
        return 0
    length = shape_of(past_key)[2] if len(shape_of(past_key)) == 4 else -1
    expected = ((batch, heads, length, size), (batch, heads, length, value_size))
    if (shape_of(past_key), shape_of(past_value)) != expected:
        raise Refusal(f"past_key and past_value of shapes {shape_of(past_key)} and {shape_of(past_value)}", node)
    return length


def _cache(node: NodeOp, host: HostNodes, sizes: _Sizes) -> tuple[list[SSAValue], tuple[tuple[SSAValue, SSAValue], ...]]:
    """Keys and values behind the cache, and what stands for the outputs present_key and present_value."""
    joined: list[SSAValue] = []
    others: list[tuple[SSAValue, SSAValue]] = []
    for value, index, size in ((node.operands[1], 0, sizes.size), (node.operands[2], 1, sizes.value_size)):
        past, present = operand(node, 4 + index), _used(node, 1 + index)
        if past is None and not present:
            joined.append(value)
            continue
        if sizes.rank == 3:
            split = host.reshape(value, (sizes.batch, sizes.keys, sizes.key_heads, size))
            shape = (sizes.batch, sizes.key_heads, sizes.keys, size)
            value = host.node("Transpose", [split], shape=shape, perm=(0, 2, 1, 3))
        name = node.names.data[1 + index].data if present else None
        shape = (sizes.batch, sizes.key_heads, sizes.total, size)
        if past is not None:
            value = host.node("Concat", [past, value], shape=shape, axis=2, name=name)
        else:
            value = host.node("Identity", [value], name=name)
        joined.append(value)
        if present:
            others.append((node.results[1 + index], value))
    return joined, tuple(others)


def _nothing(node: NodeOp, host: HostNodes, sizes: _Sizes, others: tuple[tuple[SSAValue, SSAValue], ...]) -> Nothing:
    """Results without elements, or zeros where there are queries and no keys."""
    results = [*others]
    for index in (0, 3):
        if _used(node, index):
            name, shape = node.names.data[index].data, shape_of(node.results[index])
            results.append((node.results[index], host.zeros(shape, element_of(node.results[index]), name)))
    return Nothing(tuple(results), "there are no keys: its result is zeros" if not sizes.total else "its result is empty")


def _lengths(node: NodeOp, host: HostNodes, sizes: _Sizes) -> SSAValue | None:
    """nonpad_kv_seqlen [batch], checked when the model runs."""
    lengths = operand(node, 6)
    if lengths is None:
        return None
    if shape_of(lengths) != (sizes.batch,):
        raise Refusal(f"nonpad_kv_seqlen of shape {shape_of(lengths)} for a batch of {sizes.batch}", node)
    return host.limited(lengths, sizes.keys, "nonpad_kv_seqlen")


def _scale(node: NodeOp, size: int) -> float:
    scale = float_attribute(node, "scale", 1 / math.sqrt(size))
    if not (scale > 0 and math.isfinite(scale)):
        raise Refusal(f"a scale of {scale:g}", node)
    return scale


def _softcap(node: NodeOp) -> float | None:
    cap = float_attribute(node, "softcap", 0.0)
    if not 0 <= cap < math.inf:
        raise Refusal(f"a soft-cap of {cap:g}", node)
    return cap or None


def _scores(
    node: NodeOp,
    host: HostNodes,
    canonical: Layout,
    sizes: _Sizes,
    key: SSAValue,
    mask: SSAValue | None,
    lengths: SSAValue | None,
) -> SSAValue:
    """What stands for the output qk_matmul_output."""

    def four_axes(value: SSAValue, heads: int) -> SSAValue:
        if len(shape_of(value)) == 4:
            return value
        rows = shape_of(value)[1]
        split = host.reshape(value, (sizes.batch, rows, heads, sizes.size))
        return host.node("Transpose", [split], shape=(sizes.batch, heads, rows, sizes.size), perm=(0, 2, 1, 3))

    names = ("left_window_size", "right_window_size")
    bounded = int_attribute(node, "is_causal", 0) == 1 or any(int_attribute(node, name, -1) >= 0 for name in names)
    live = _positions(node, host, canonical, sizes, lengths).value if bounded or lengths is not None else None
    return score_output(
        node,
        host,
        four_axes(node.operands[0], sizes.heads),
        four_axes(key, sizes.key_heads),
        scale=_scale(node, sizes.size),
        softcap=_softcap(node),
        mask=mask,
        live=live,
    )


def _masks(
    node: NodeOp, host: HostNodes, canonical: Layout, sizes: _Sizes, mask: SSAValue | None, lengths: SSAValue | None
) -> tuple[Structure | None, tuple[MaskTerm, ...]]:
    """is_causal, windows, lengths and attn_mask as numbers and tensors."""
    left, right = int_attribute(node, "left_window_size", -1), int_attribute(node, "right_window_size", -1)
    causal = int_attribute(node, "is_causal", 0) == 1
    structure: Structure | None = None
    terms: list[MaskTerm] = []
    if lengths is None and right < 0 and (causal or left < 0):
        # without a cache causal is top-left; left_window_size = W keeps W + 1 keys
        structure = Structure(sizes.past, left + 1 if left >= 0 else None) if causal else None
    else:
        terms.append(_positions(node, host, canonical, sizes, lengths))
    if mask is None:
        return structure, tuple(terms)
    shape = shape_of(mask)
    layout = tuple(() if n == 1 else group for n, group in zip(shape, canonical[4 - len(shape) :], strict=True))
    term = MaskTerm(node, mask, layout, selects=element_of(mask) == i1)
    return split_masks((*terms, term), canonical[2], canonical[3], structure)


def _checked_mask(node: NodeOp, host: HostNodes, mask: SSAValue, sizes: _Sizes) -> SSAValue:
    """
    attn_mask as ONNX adds it: numbers of any type in Q's type, padded to all keys as version 24 says.

    Raises Refusal for what ONNX's evaluators disagree on.
    """
    shape, element = shape_of(mask), element_of(mask)
    scores = (sizes.batch, sizes.heads, sizes.queries, sizes.total)
    if not 1 <= len(shape) <= 4:
        raise Refusal(f"attn_mask has rank {len(shape)}", node)
    if element not in (i1, element_of(node.operands[0])):
        element = element_of(node.operands[0])
        mask = host.node("Cast", [mask], element, to=onnx_dtype(element))
    if node.version.value.data >= 24 and shape[-1] < sizes.total:
        missing = host.integers(*[0] * (2 * len(shape) - 1), sizes.total - shape[-1])
        dead = host.constant(np.array(False if element == i1 else -np.inf, numpy_dtype(element)))
        shape = (*shape[:-1], sizes.total)
        mask = host.node("Pad", [mask, missing, dead], shape=shape)
    if any(n not in (1, full) for n, full in zip(reversed(shape), reversed(scores), strict=False)):
        raise Refusal(f"attn_mask of shape {shape} for scores of shape {scores}", node)
    return mask


def _positions(node: NodeOp, host: HostNodes, canonical: Layout, sizes: _Sizes, lengths: SSAValue | None) -> MaskTerm:
    """
    Causality, windows and nonpad_kv_seqlen [batch] as a boolean [batch, 1, queries, keys] that the host computes.

    With o the cache's length, or length - queries, key i is live for query j if i < length (where lengths are given),
    i <= j + o (is_causal), i >= j + o - left and i <= j + o + right.
    """
    left, right = int_attribute(node, "left_window_size", -1), int_attribute(node, "right_window_size", -1)
    if int_attribute(node, "is_causal", 0):
        right = 0
    key = host.steps(sizes.total)
    distance = host.node("Sub", [key, host.reshape(host.steps(sizes.queries), (sizes.queries, 1))])
    offset = host.integer(sizes.past)
    live: list[SSAValue] = []
    if lengths is not None:
        length = host.reshape(lengths, (sizes.batch, 1, 1, 1))
        offset = host.node("Sub", [length, host.integer(sizes.queries)])
        live.append(host.node("Less", [key, length], i1))
    if left >= 0:
        live.append(host.node("GreaterOrEqual", [distance, host.node("Sub", [offset, host.integer(left)])], i1))
    if right >= 0:
        live.append(host.node("LessOrEqual", [distance, host.node("Add", [offset, host.integer(right)])], i1))
    mask = live[0]
    for other in live[1:]:
        mask = host.node("And", [mask, other])
    if len(shape_of(mask)) < 3:  # the same for the whole batch
        return MaskTerm(node, mask, canonical[2:], selects=True)
    rows = canonical[2] if left >= 0 or right >= 0 else ()
    return MaskTerm(node, mask, (canonical[0], (), rows, canonical[3]), selects=True)
