"""Reading `onnx.node` graphs: defining nodes, attributes, constant operands, and the refusal that says why a match stopped."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, IntegerAttr, NameLoc, StringAttr, TensorType, i1
from xdsl.ir import Attribute, Operation, SSAValue

from lampc.dialects.onnx import AbsentOp, ConstantOp, InitializerOp, NodeOp, is_tensor, numpy_dtype


class Refusal(Exception):
    """Why a candidate is not raised; `node` is where matching stopped, `depth` how far it had come."""

    def __init__(self, reason: str, node: NodeOp | None = None, depth: int = 0):
        super().__init__(reason)
        self.reason = reason
        self.node = node
        self.depth = depth

    def __str__(self) -> str:
        return f"stopped at {title(self.node)}: {self.reason}" if self.node is not None else self.reason


def name_of(op: Operation) -> str:
    """The ONNX node's name: its location, else its first output."""
    if isinstance(op.location, NameLoc):
        return op.location.desc.data
    return next((n.data for n in op.names if n.data), "") if isinstance(op, NodeOp) else op.name


def title(node: NodeOp) -> str:
    """`Softmax 'layers.0/softmax'`."""
    domain = f"{node.domain.data}." if node.domain.data else ""
    return f"{domain}{node.op_type.data} '{name_of(node)}'"


def node_of(value: SSAValue) -> NodeOp | None:
    """The node that computes `value`, or None for graph inputs and constants."""
    return value.owner if isinstance(value.owner, NodeOp) else None


def is_node(node: NodeOp | None, *op_types: str, domain: str = "") -> bool:
    return node is not None and node.domain.data == domain and node.op_type.data in op_types


def is_absent(value: SSAValue) -> bool:
    """Whether an optional input is left out."""
    return isinstance(value.owner, AbsentOp)


def operand(node: NodeOp, index: int) -> SSAValue | None:
    """Input number `index`, None if it is left out."""
    if index >= len(node.operands) or is_absent(node.operands[index]):
        return None
    return node.operands[index]


def tensor_type(value: SSAValue) -> TensorType[Attribute]:
    """The static tensor type of `value`. Raises Refusal if a dimension or the rank is unknown."""
    type_ = value.type
    if not is_tensor(type_) or not type_.has_static_shape():
        raise Refusal(f"{value_title(value)} has no static shape; bind the model's dimensions", node_of(value))
    return type_


def value_title(value: SSAValue) -> str:
    """The ONNX name of a value, quoted, as far as it is known."""
    node = node_of(value)
    if node is not None:
        return f"'{node.names.data[node.results.index(value)].data}'"  # pyright: ignore[reportArgumentType]
    return f"'{value.name_hint}'" if value.name_hint else "a value"


def shape_of(value: SSAValue) -> tuple[int, ...]:
    return tensor_type(value).get_shape()


def element_of(value: SSAValue) -> Attribute:
    return tensor_type(value).element_type


def int_attribute(node: NodeOp, name: str, default: int) -> int:
    attribute = node.node_attributes.data.get(name)
    return attribute.value.data if isinstance(attribute, IntegerAttr) else default


def float_attribute(node: NodeOp, name: str, default: float) -> float:
    attribute = node.node_attributes.data.get(name)
    return attribute.value.data if isinstance(attribute, FloatAttr) else default


def text_attribute(node: NodeOp, name: str, default: str) -> str:
    attribute = node.node_attributes.data.get(name)
    return attribute.data if isinstance(attribute, StringAttr) else default


def integers_attribute(node: NodeOp, name: str, default: Sequence[int]) -> tuple[int, ...]:
    attribute = node.node_attributes.data.get(name)
    return tuple(int(v) for v in attribute.get_values()) if isinstance(attribute, DenseArrayBase) else tuple(default)


def constant(value: SSAValue) -> npt.NDArray[np.generic] | None:
    """The values of an inline constant, also one that a CastLike converts; else None."""
    if isinstance(value.owner, ConstantOp):
        return value.owner.to_numpy()
    node = node_of(value)
    source = constant(node.operands[0]) if node is not None and is_node(node, "CastLike") else None
    if source is None or not is_tensor(value.type):
        return None
    with np.errstate(over="ignore"):
        return source.astype(numpy_dtype(value.type.element_type))


def scalar(value: SSAValue) -> float | None:
    """The value of a constant whose elements are all equal and numeric, one element at least; else None."""
    if isinstance(value.owner, InitializerOp):
        content = value.owner.content
        if content is None or element_of(value) == i1:
            return None
        return 0.0 if content.allows_all else content.filled
    array = constant(value)
    if array is None or not array.size or array.dtype == np.bool_:
        return None
    first = array.reshape(-1)[0]
    if array.size > 1 and array.tobytes() != first.tobytes() * array.size:
        return None
    return float(first)  # pyright: ignore[reportArgumentType]


def integers(value: SSAValue) -> list[int] | None:
    """The elements of a constant integer tensor, else None."""
    array = constant(value)
    return [int(v) for v in array.reshape(-1).tolist()] if array is not None and array.dtype.kind in "iu" else None
