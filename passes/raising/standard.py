"""
Match the standard `Attention` operator (versions 23, 24 and 25).

Semantics and the decision for each disagreement between ONNX's own evaluators: onnx.md §1.1 and §1.4.
"""

import math

from xdsl.dialects.builtin import AnyFloat, IntegerType
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Axis, Layout, axis
from lampc.passes.raising.decomposed import content_of, structure_of
from lampc.passes.raising.graph import Refusal, element_of, float_attribute, int_attribute, operand, shape_of
from lampc.passes.raising.plan import Operand, Plan, Structure
from lampc.passes.raising.scores import MaskTerm

PRECISIONS = (1, 10, 11, 16)
"""Floating softmax_precision values; the softmax runs in FP32 for all of them."""


def match(node: NodeOp) -> Plan:
    """The attention a standard `Attention` node computes. Raises Refusal with the reason."""
    query, key, value = node.operands[:3]
    _refuse_unsupported(node)
    shapes = [shape_of(v) for v in (query, key, value)]
    rank = len(shapes[0])
    if rank not in (3, 4) or any(len(s) != rank for s in shapes):
        raise Refusal(f"query, key and value of ranks {', '.join(str(len(s)) for s in shapes)}", node)
    heads, key_heads = _heads(node, shapes)
    batch, queries, keys = shapes[0][0], shapes[0][-2], shapes[1][-2]
    size, value_size = (shapes[0][3], shapes[2][3]) if rank == 4 else (shapes[0][2] // heads, shapes[2][2] // key_heads)
    if 0 in (batch, queries, keys, size, value_size):
        raise Refusal("an empty tensor", node)
    key_size = shapes[1][3] if rank == 4 else shapes[1][2] // key_heads
    if key_size != size or shapes[1][0] != batch or shapes[2][0] != batch or shapes[2][-2] != keys:
        raise Refusal(f"query, key and value of shapes {shapes[0]}, {shapes[1]} and {shapes[2]}", node)
    b, l, k, d, e = (axis(n, size) for n, size in zip("blkde", (batch, queries, keys, size, value_size), strict=True))
    h, kv = axis("h", heads), axis("h", key_heads)

    def place(x: SSAValue, head: Axis, rows: Axis, inner: Axis) -> Operand:
        target = (b, head, rows, inner)
        return Operand(x, target if rank == 4 else (b, rows, (*head, *inner)), target)

    canonical = (b, h, l, k)
    structure, terms = _masks(node, canonical, (batch, heads, queries, keys))
    return Plan(
        node,
        place(query, h, l, d),
        place(key, kv, k, d),
        place(value, kv, k, e),
        (b, h, l, e) if rank == 4 else (b, l, (*h, *e)),
        canonical,
        e,
        _scale(node, size),
        structure=structure,
        terms=terms,
        softcap=_softcap(node),
    )


def _refuse_unsupported(node: NodeOp) -> None:
    for index, name in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if operand(node, index) is not None:
            raise Refusal(f"{name} is given", node)
    for index, name in ((1, "present_key"), (2, "present_value"), (3, "qk_matmul_output")):
        if index < len(node.results) and node.results[index].uses:
            raise Refusal(f"its output {name} is used", node)
    if int_attribute(node, "qk_matmul_output_mode", 0) not in (0, 1, 2, 3):
        raise Refusal("qk_matmul_output_mode is none of 0 to 3", node)
    if int_attribute(node, "is_causal", 0) not in (0, 1):
        raise Refusal("is_causal is neither 0 nor 1", node)
    if int_attribute(node, "softmax_precision", 1) not in PRECISIONS:
        raise Refusal("softmax_precision is no floating type", node)
    if int_attribute(node, "right_window_size", -1) >= 0:
        raise Refusal("a right window", node)


def _heads(node: NodeOp, shapes: list[tuple[int, ...]]) -> tuple[int, int]:
    heads, key_heads = int_attribute(node, "q_num_heads", 0), int_attribute(node, "kv_num_heads", 0)
    if len(shapes[0]) == 4:
        actual = (shapes[0][1], shapes[1][1])
        if (heads or actual[0], key_heads or actual[1]) != actual:
            raise Refusal(f"head attributes {heads}, {key_heads} contradict the shapes' {actual[0]}, {actual[1]}", node)
        heads, key_heads = actual
        if shapes[2][1] != key_heads:
            raise Refusal(f"{key_heads} key heads and {shapes[2][1]} value heads", node)
    if heads < 1 or key_heads < 1 or heads % key_heads:
        raise Refusal(f"{heads} query heads on {key_heads} key-value heads", node)
    if len(shapes[0]) == 3 and (shapes[0][2] % heads or shapes[1][2] % key_heads or shapes[2][2] % key_heads):
        raise Refusal("a hidden size that the heads do not divide", node)
    return heads, key_heads


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


def _masks(node: NodeOp, canonical: Layout, sizes: tuple[int, int, int, int]) -> tuple[Structure | None, tuple[MaskTerm, ...]]:
    structure = _attributes(node)
    mask = operand(node, 3)
    if mask is None:
        return structure, ()
    shape = shape_of(mask)
    element = element_of(mask)
    if len(shape) > 4:
        raise Refusal(f"attn_mask has rank {len(shape)}", node)
    if not isinstance(element, AnyFloat) and element != IntegerType(1):
        raise Refusal(f"attn_mask of {element} (numbers are added, as ONNX says; cast it to bool or float)", node)
    if any(n not in (1, full) for n, full in zip(reversed(shape), reversed(sizes), strict=False)):
        raise Refusal(f"attn_mask of shape {shape} for scores {sizes}", node)
    if node.version.value.data >= 24 and shape and shape[-1] == 1 and sizes[3] > 1:
        raise Refusal("attn_mask of one column, which is padded with -inf since version 24", node)
    layout = tuple(() if n == 1 else axis_ for n, axis_ in zip(shape, canonical[4 - len(shape) :], strict=True))
    term = MaskTerm(node, mask, layout, selects=element == IntegerType(1))
    content = content_of(mask)
    if content is not None and not content.is_causal:
        return structure, ()
    found = structure_of(content, term, sizes[2], sizes[3]) if shape[-2:] == sizes[2:] else None
    if found is not None and structure in (None, found):
        return found, ()
    if found is not None and structure is not None and structure.offset == found.offset:
        windows = [w for w in (structure.window, found.window) if w is not None]
        return Structure(found.offset, min(windows, default=None)), ()
    return structure, (term,)


def _attributes(node: NodeOp) -> Structure | None:
    """is_causal is top-left without a cache; left_window_size = W keeps W + 1 keys."""
    left = int_attribute(node, "left_window_size", -1)
    causal = int_attribute(node, "is_causal", 0) == 1
    if left >= 0 and not causal:
        raise Refusal("a left window without is_causal", node)
    return Structure(0, left + 1 if left >= 0 else None) if causal else None
