"""
Guards of the probabilities: `Where(dead row, 0, p)`.

Rows without a live key give zeros in `attn.attention`, so a guard goes if the rows it looks for are dead there too. Exporters
look for NaN, for a maximum of -inf (ONNX's own expansion), or whether all entries are -inf (torch's `_safe_softmax`).
"""

import math
from dataclasses import dataclass

from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.graph import constant, element_of, int_attribute, is_node, node_of, scalar, shape_of
from lampc.passes.raising.mask_terms import content_of
from lampc.passes.raising.softmaxes import reduced_axes


@dataclass(frozen=True)
class Guard:
    """
    Rows are dead where all entries of `source` along its last axis are -inf, or false (true if `inverted`).

    nodes  those that find out, which nobody else needs to use
    """

    source: SSAValue | None
    inverted: bool = False
    nodes: tuple[NodeOp, ...] = ()


def guard_of(condition: SSAValue, probabilities: SSAValue) -> Guard | None:
    """What the condition of a selection between 0 and the probabilities looks for; no source if NaN, None if it is no guard."""
    folded, content = constant(condition), content_of(condition)
    if (folded is not None and not folded.any()) or (content is not None and content.allows_all and content.is_inverted):
        return Guard(None)
    node = node_of(condition)
    if node is not None and is_node(node, "IsNaN") and node.operands[0] is probabilities:
        return Guard(None, nodes=(node,))
    return _rows(condition, dead=True)


def _rows(condition: SSAValue, *, dead: bool) -> Guard | None:
    """A boolean that is true for dead rows (for those with a live key, if not `dead`)."""
    node = node_of(condition)
    if node is None:
        return None
    if is_node(node, "Not"):
        return _rows(node.operands[0], dead=not dead)
    if is_node(node, "Cast"):
        counted = _over_keys(node.operands[0], "ReduceMin" if dead else "ReduceMax")
        inner = node_of(counted) if counted is not None else None
        return _entries(inner.operands[0], dead=dead) if inner is not None and is_node(inner, "Cast") else None
    if dead and _is_minus_infinity(node):
        source = _over_keys(node.operands[0], "ReduceMax")
        return Guard(source) if source is not None else None
    return None


def _over_keys(value: SSAValue, op_type: str) -> SSAValue | None:
    """The operand of a reduction over the last axis that keeps it."""
    node = node_of(value)
    if node is None or not is_node(node, op_type) or not int_attribute(node, "keepdims", 1):
        return None
    return node.operands[0] if reduced_axes(node) == (len(shape_of(node.operands[0])) - 1,) else None


def _is_minus_infinity(node: NodeOp) -> bool:
    """Whether a node compares its first operand with -inf."""
    if is_node(node, "IsInf"):
        return not int_attribute(node, "detect_positive", 1)
    return is_node(node, "Equal") and scalar(node.operands[1]) == -math.inf


def _entries(value: SSAValue, *, dead: bool) -> Guard | None:
    """A boolean that is true for dead entries (for live ones, if not `dead`)."""
    node = node_of(value)
    if node is not None and is_node(node, "Not"):
        return _entries(node.operands[0], dead=not dead)
    if dead and node is not None and _is_minus_infinity(node):
        return Guard(node.operands[0])
    return Guard(value, inverted=dead) if element_of(value) == i1 else None
