"""One step up a layout chain: from the result of a Transpose, Reshape, Expand, ... to its operand, axis map included."""

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Layout, broadcast, regroup, tiled, transposed
from lampc.passes.raising.graph import int_attribute, integers_attribute, is_absent, is_node, scalar, shape_of

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
REPEATS = ("Expand", "Tile")
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
    """The same for Expand and Tile, whose operand lacks the atoms it is repeated over; None for other nodes."""
    shape = shape_of(node.operands[0])
    if is_node(node, "Expand"):
        return broadcast(layout, shape)
    if is_node(node, "Tile") and len(shape) == len(layout):
        return tiled(layout, shape)
    return None


def is_identity(node: NodeOp) -> bool:
    """Identity, Dropout at inference, a Cast that keeps the type: the first result is the first operand."""
    if is_node(node, "Identity"):
        return True
    if is_node(node, "Cast", "CastLike"):
        return node.results[0].type == node.operands[0].type
    return is_node(node, "Dropout") and not _trains(node)


def _trains(node: NodeOp) -> bool:
    if node.version.value.data < 7:
        return int_attribute(node, "is_test", 0) == 0
    if len(node.operands) < 3 or is_absent(node.operands[2]):
        return False
    ratio = node.operands[1]
    return scalar(node.operands[2]) != 0.0 and (is_absent(ratio) or scalar(ratio) != 0.0)
