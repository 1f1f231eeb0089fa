"""A softmax in every spelling: as one node, as the exponential of a LogSoftmax, or written out."""

from dataclasses import dataclass

from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Axis, Layout, leaves
from lampc.passes.raising.graph import (
    Refusal,
    int_attribute,
    integers,
    integers_attribute,
    is_absent,
    is_node,
    node_of,
    shape_of,
)


@dataclass(frozen=True)
class Softmax:
    """
    `softmax(source)`.

    form       operators that write it, for the report
    nodes      all of them, the last one first
    reduction  the one that says over which axes
    """

    form: str
    source: SSAValue
    nodes: tuple[NodeOp, ...]
    reduction: NodeOp

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the source that it runs over. Raises Refusal if they are not constant."""
        one_node = is_node(self.reduction, "Softmax", "LogSoftmax")
        return flattened_axes(self.reduction) if one_node else reduced_axes(self.reduction)


def softmax_of(node: NodeOp) -> Softmax | None:
    """The softmax whose result is the first result of `node`; None if it ends none."""
    if is_node(node, "Softmax"):
        return Softmax("Softmax", node.operands[0], (node,), node)
    if is_node(node, "Exp"):
        return _exponential(node)
    if is_node(node, "Div"):
        return _quotient(node, node.operands[0], node_of(node.operands[1]), ())
    if is_node(node, "Mul"):
        for powers, other in (tuple(node.operands), tuple(reversed(node.operands))):
            inverse = node_of(other)
            if inverse is not None and is_node(inverse, "Reciprocal"):
                return _quotient(node, powers, node_of(inverse.operands[0]), (inverse,))
    return None


def _exponential(node: NodeOp) -> Softmax | None:
    """`Exp(LogSoftmax(x))` and `Exp(x - ReduceLogSumExp(x))`."""
    inner = node_of(node.operands[0])
    if inner is None:
        return None
    if is_node(inner, "LogSoftmax"):
        return Softmax("LogSoftmax, Exp", inner.operands[0], (node, inner), inner)
    total = node_of(inner.operands[1]) if is_node(inner, "Sub") else None
    if total is None or not is_node(total, "ReduceLogSumExp") or total.operands[0] is not inner.operands[0]:
        return None
    if not int_attribute(total, "keepdims", 1):
        return None
    return Softmax("ReduceLogSumExp, Sub, Exp", inner.operands[0], (node, inner, total), total)


def _quotient(node: NodeOp, powers: SSAValue, total: NodeOp | None, between: tuple[NodeOp, ...]) -> Softmax | None:
    """`Exp(x) / ReduceSum(Exp(x))`; a subtracted maximum is part of x."""
    exponential = node_of(powers)
    if exponential is None or total is None or not is_node(exponential, "Exp") or not is_node(total, "ReduceSum"):
        return None
    if total.operands[0] is not powers or not int_attribute(total, "keepdims", 1):
        return None
    form = ", ".join(n.op_type.data for n in (exponential, total, *between, node))
    return Softmax(form, exponential.operands[0], (node, *between, total, exponential), total)


def flattened_axes(node: NodeOp) -> tuple[int, ...]:
    """The axes a Softmax or LogSoftmax runs over: one, or before opset 13 all from `axis` on, which it flattens."""
    rank = len(shape_of(node.operands[0]))
    if node.version.value.data >= 13:
        return (int_attribute(node, "axis", -1) % rank,)
    return tuple(range(int_attribute(node, "axis", 1) % rank, rank))


def reduced_axes(node: NodeOp) -> tuple[int, ...]:
    """The axes a Reduce node runs over, from its attribute or its second input. Raises Refusal if they are not constant."""
    rank = len(shape_of(node.operands[0]))
    if len(node.operands) > 1 and not is_absent(node.operands[1]):
        axes = integers(node.operands[1])
        if axes is None:
            raise Refusal("its axes are not constant", node)
        return tuple(sorted(a % rank for a in axes))
    return tuple(sorted(a % rank for a in integers_attribute(node, "axes", tuple(range(rank)))))


def run_over_keys(node: NodeOp, axes: tuple[int, ...], layout: Layout, keys: Axis) -> None:
    """Raise Refusal unless `axes` of a tensor with map `layout` are exactly the key axis."""
    run = leaves(atom for a in axes for atom in layout[a])
    if run != leaves(keys):
        raise Refusal("it does not run over the keys alone", node)
