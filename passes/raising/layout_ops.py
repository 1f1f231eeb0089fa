"""One step up a layout chain: from the result of a Transpose, Reshape, Expand, ... to its operand, axis map included."""

import numpy as np
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Layout, broadcast, regroup, tiled, transposed
from lampc.passes.raising.graph import int_attribute, integers, integers_attribute, is_absent, is_node, scalar, shape_of

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
LAYOUT_OPS = (*RESHAPES, "Transpose")


def through_layout(node: NodeOp, layout: Layout) -> Layout | None:
    """
    The axis map of the first operand of a reshape or transposition whose result has map `layout`; None for other nodes.

    Raises LayoutError if the shapes do not factor.
    """
    if is_node(node, "Transpose"):
        default = tuple(reversed(range(len(layout))))
        return transposed(layout, integers_attribute(node, "perm", default))
    if is_node(node, *RESHAPES):
        return regroup(layout, shape_of(node.operands[0]))
    return None


def through_repeat(node: NodeOp, layout: Layout) -> Layout | None:
    """
    The same for Expand, Tile, Concat of copies and Gather of repeated indices: the operand lacks the atoms it is repeated over.

    None for other nodes.
    """
    shape = shape_of(node.operands[0])
    if is_node(node, "Expand"):
        return broadcast(layout, shape)
    if is_node(node, "Tile") and len(shape) == len(layout):
        return tiled(layout, shape)
    if is_node(node, "Concat") and all(value is node.operands[0] for value in node.operands):
        return tiled(layout, shape)
    return _gathered(node, layout, shape) if is_node(node, "Gather") else None


def _gathered(node: NodeOp, layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    """The operand of a Gather that repeats every index in place (0 0 1 1), or all of them in turn (0 1 0 1)."""
    where, indices = int_attribute(node, "axis", 0) % len(shape), integers(node.operands[1])
    if indices is None or len(shape_of(node.operands[1])) != 1 or not shape[where] or len(indices) % shape[where]:
        return None
    size, copies = shape[where], len(indices) // shape[where]
    steps = np.arange(size)
    before, after = layout[:where], layout[where + 1 :]
    if np.array_equal(np.asarray(indices) % size, np.tile(steps, copies)):
        return tiled(layout, shape)
    if np.array_equal(np.asarray(indices) % size, np.repeat(steps, copies)):
        return (*before, regroup((layout[where],), (size, copies))[0], *after)
    return None


def unchanged(node: NodeOp) -> SSAValue | None:
    """
    The operand that the first result equals: Identity, Dropout at inference, a Cast that keeps the type, + 0, * 1, / 1.

    None for a node that does something.
    """
    if is_node(node, "Identity") or (is_node(node, "Dropout") and not _trains(node)):
        return node.operands[0]
    if is_node(node, "Sum", "Max", "Min", "Mean", "Concat") and len(node.operands) == 1:
        return node.operands[0]
    if is_node(node, "Cast", "CastLike"):
        return node.operands[0] if node.results[0].type == node.operands[0].type else None
    neutral = 0.0 if is_node(node, "Add", "Sub") else 1.0 if is_node(node, "Mul", "Div") else None
    if neutral is None:
        return None
    left, right = node.operands
    if scalar(right) == neutral and left.type == node.results[0].type:
        return left
    commutes = is_node(node, "Add", "Mul")
    return right if commutes and scalar(left) == neutral and right.type == node.results[0].type else None


def _trains(node: NodeOp) -> bool:
    if node.version.value.data < 7:
        return int_attribute(node, "is_test", 0) == 0
    if len(node.operands) < 3 or is_absent(node.operands[2]):
        return False
    ratio = node.operands[1]
    return scalar(node.operands[2]) != 0.0 and (is_absent(ratio) or scalar(ratio) != 0.0)
