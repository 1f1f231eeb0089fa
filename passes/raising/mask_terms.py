"""One mask on the way from the query-key product to the softmax: an addition, a selection, or a blend of two products."""

import math
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from lampc.dialects.onnx import ConstantOp, InitializerOp, MaskAttr, NodeOp
from lampc.passes.raising.axis_maps import Layout, broadcast
from lampc.passes.raising.graph import Refusal, constant, element_of, is_node, node_of, scalar, shape_of

MASKING = -1e4
"""A constant at most this large in a mask means "masked" (lampattention.md §4.3)."""

_LARGEST_DIVISOR = 32
"""The square root of the largest head size: exp(-1e4 / 32) is 0 in FP32, beside a score of -200 too."""


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


def scores_layout(value: SSAValue, node: NodeOp, layout: Layout) -> Layout | None:
    """The axis map of an operand that a pointwise node does not broadcast, but for axes of one in front; else None."""
    extra = len(layout) - len(shape_of(value))
    wide = shape_of(node.results[0])
    return layout[extra:] if wide == (*(1,) * extra, *shape_of(value)) else None


def selection(node: NodeOp, layout: Layout, factor: float) -> tuple[SSAValue, Layout, MaskTerm]:
    """
    The score, its axis map and the mask of `Where(live, score, c)` or `Where(dead, c, score)`; `factor` follows below.

    Raises Refusal if c is no masking constant.
    """
    condition, positive, negative = node.operands
    masked, inverted, value = scalar(negative), False, positive
    if masked is None:
        masked, inverted, value = scalar(positive), True, negative
    if masked is None:
        raise Refusal("a selection between two tensors", node)
    above = scores_layout(value, node, layout)
    if above is None:
        raise Refusal("a selection that broadcasts the scores", node)
    if not _is_masking(masked, factor):
        raise Refusal(f"a selection of {masked:g}, which is no masking constant", node)
    where = broadcast(layout, shape_of(condition))
    return value, above, MaskTerm(node, condition, where, 1.0, True, masked * factor, inverted)


def _is_masking(constant: float, factor: float) -> bool:
    """Whether a score of this constant is masked; scaled by 1/sqrt(head size) below, it still is nothing beside others."""
    return constant <= MASKING and constant * factor <= MASKING / _LARGEST_DIVISOR


def blend(total: NodeOp, product: SSAValue, other: SSAValue, layout: Layout, factor: float) -> tuple[SSAValue, MaskTerm] | None:
    """
    The score and the mask of `score * live + c * dead` or `score * live - c * dead`, live and dead being 0 or 1.

    So tf2onnx writes a selection, and GPT-2 its causal mask. `product` is the operand of `total` that multiplies the score,
    `factor` follows below; None if the two do not complement each other.
    """
    multiplication = node_of(product)
    if multiplication is None or not is_node(multiplication, "Mul"):
        return None
    sign = -1.0 if is_node(total, "Sub") else 1.0
    for value, live in (multiplication.operands, reversed(multiplication.operands)):
        if shape_of(value) != shape_of(total.results[0]):
            continue
        keeps, scaled = _indicator(live), _scaled_indicator(other)
        if keeps is not None and scaled is not None:
            (condition, inverted), (masked, kills) = keeps, scaled
            if kills == (condition, not inverted) and _is_masking(masked * sign, factor):
                where = broadcast(layout, shape_of(condition))
                return value, MaskTerm(total, condition, where, 1.0, True, masked * sign * factor, inverted)
        if _complements(live, other, sign):
            return value, MaskTerm(total, other, broadcast(layout, shape_of(other)), sign * factor)
    return None


def _indicator(value: SSAValue) -> tuple[SSAValue, bool] | None:
    """`(condition, inverted)` if `value` is 1 where the condition is true (false, if inverted) and 0 elsewhere."""
    node = node_of(value)
    if node is None:
        return None
    if is_node(node, "Sub") and scalar(node.operands[0]) == 1.0:
        inner = _indicator(node.operands[1])
        return (inner[0], not inner[1]) if inner is not None else None
    if not is_node(node, "Cast"):
        return None
    condition, inverted = node.operands[0], False
    if element_of(condition) != i1:
        return _indicator(condition)
    while (negation := node_of(condition)) is not None and is_node(negation, "Not"):
        condition, inverted = negation.operands[0], not inverted
    return condition, inverted


def _scaled_indicator(value: SSAValue) -> tuple[float, tuple[SSAValue, bool]] | None:
    """`(c, indicator)` if `value` is their product."""
    node = node_of(value)
    if node is None or not is_node(node, "Mul"):
        return None
    for factor, other in (node.operands, reversed(node.operands)):
        number, indicator = scalar(factor), _indicator(other)
        if number is not None and indicator is not None:
            return number, indicator
    return None


def _complements(live: SSAValue, other: SSAValue, sign: float) -> bool:
    """Whether two constants are 1 and 0 where a score lives, 0 and (times `sign`) a masking number where it does not."""
    kept, masked = content_of(live), content_of(other)
    if kept is not None and masked is not None and kept.kind.data == "factor" and masked.is_causal:
        if shape_of(live)[-2:] != shape_of(other)[-2:] or masked.masked.value.data * sign > MASKING:
            return False
        return (kept.offset, kept.window) == (masked.offset, masked.window)
    ones, bias = constant(live), constant(other)
    if ones is None or bias is None or ones.dtype == np.bool_ or bias.dtype == np.bool_:
        return False
    try:
        ones, bias = np.broadcast_arrays(ones, np.multiply(bias, sign, dtype=np.float64))
    except ValueError:
        return False
    alive = ones == 1
    return bool(np.all(alive | (ones == 0)) and np.all(bias[alive] == 0) and np.all(bias[~alive] <= MASKING))


def content_of(value: SSAValue) -> MaskAttr | None:
    """What the importer says about a constant mask."""
    return value.owner.content if isinstance(value.owner, ConstantOp | InitializerOp) else None
