"""One mask on the way from the query-key product to the softmax: an addition, a selection, or a blend of two products."""

import math
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue

from lampc.dialects.onnx import ConstantOp, InitializerOp, MaskAttr, NodeOp
from lampc.passes.raising.axis_maps import Layout, broadcast
from lampc.passes.raising.graph import Refusal, constant, element_of, is_node, node_of, scalar, shape_of

MASKING = -1e4
"""A constant at most this large in a mask means "masked" (lampattention.md §4.3)."""


@dataclass(frozen=True)
class MaskTerm:
    """
    `score + factor * value`, or as a selection `score where value else masked`.

    inverted   the selection is live where `value` is false
    """

    node: NodeOp
    value: SSAValue
    layout: Layout
    factor: float = 1.0
    selects: bool = False
    masked: float = -math.inf
    inverted: bool = False


def selection(node: NodeOp, layout: Layout, factor: float) -> tuple[SSAValue, MaskTerm]:
    """
    The score and the mask of `Where(live, score, c)` or `Where(dead, c, score)`; `factor` follows below.

    Raises Refusal if c is no masking constant.
    """
    condition, positive, negative = node.operands
    masked, inverted, value = scalar(negative), False, positive
    if masked is None:
        masked, inverted, value = scalar(positive), True, negative
    if masked is None:
        raise Refusal("a selection between two tensors", node)
    if shape_of(value) != shape_of(node.results[0]):
        raise Refusal("a selection that broadcasts the scores", node)
    if not masked * factor <= MASKING:
        raise Refusal(f"a selection of {masked:g}, which is no masking constant", node)
    where = broadcast(layout, shape_of(condition))
    return value, MaskTerm(node, condition, where, 1.0, True, masked * factor, inverted)


def blend(total: NodeOp, product: SSAValue, other: SSAValue, layout: Layout) -> tuple[SSAValue, MaskTerm] | None:
    """
    The score and the mask of `score * live + c * dead`, which is how tf2onnx writes a selection, live and dead being 0 or 1.

    `product` is the operand of `total` that multiplies the score; None if the two do not complement each other.
    """
    multiplication = node_of(product)
    if multiplication is None or not is_node(multiplication, "Mul"):
        return None
    for value, live in (multiplication.operands, reversed(multiplication.operands)):
        if shape_of(value) != shape_of(total.results[0]):
            continue
        condition = _cast_from(live)
        masked = _masked_where_not(other, condition) if condition is not None else None
        if condition is not None and masked is not None and masked <= MASKING:
            where = broadcast(layout, shape_of(condition))
            return value, MaskTerm(total, condition, where, 1.0, True, masked)
        if _complements(live, other):
            return value, MaskTerm(total, other, broadcast(layout, shape_of(other)))
    return None


def _cast_from(value: SSAValue) -> SSAValue | None:
    """The boolean that `value` is cast from."""
    node = node_of(value)
    if node is None or not is_node(node, "Cast") or element_of(node.operands[0]) != IntegerType(1):
        return None
    return node.operands[0]


def _masked_where_not(value: SSAValue, condition: SSAValue) -> float | None:
    """c if `value` is `c * Cast(Not(condition))`."""
    node = node_of(value)
    if node is None or not is_node(node, "Mul"):
        return None
    for factor, other in (node.operands, reversed(node.operands)):
        dead = _cast_from(other)
        negation = node_of(dead) if dead is not None else None
        if negation is not None and is_node(negation, "Not") and negation.operands[0] is condition:
            return scalar(factor)
    return None


def _complements(live: SSAValue, other: SSAValue) -> bool:
    """Whether two inline constants are 1 and 0 where a score lives, 0 and a masking number where it does not."""
    ones, bias = constant(live), constant(other)
    if ones is None or bias is None or ones.dtype == np.bool_ or bias.dtype == np.bool_:
        return False
    try:
        ones, bias = np.broadcast_arrays(ones, bias)
    except ValueError:
        return False
    alive = ones == 1
    return bool(np.all(alive | (ones == 0)) and np.all(bias[alive] == 0) and np.all(bias[~alive] <= MASKING))


def content_of(value: SSAValue) -> MaskAttr | None:
    """What the importer says about a constant mask."""
    return value.owner.content if isinstance(value.owner, ConstantOp | InitializerOp) else None
