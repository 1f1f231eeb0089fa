"""
Types of values: ONNX TypeProto, dimensions bound, to and from the IR's types.

A shape is a tuple of sizes, None where a size is not known; None instead of the tuple means that not even the rank is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from onnx import TypeProto
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, UnrankedTensorType
from xdsl.ir import Attribute

from lampc.dialects.onnx import OptionalType, SequenceType, UnknownType, element_of_dtype, element_type, onnx_dtype
from lampc.dialects.onnx_attributes import Array
from lampc.frontend.dims import Binding
from lampc.frontend.tensors import tensor_dtype

Shape: TypeAlias = tuple[int | None, ...] | None


def tensor_type(dtype: int, shape: Shape) -> TypeProto:
    """A tensor type of an ONNX data type and a shape."""
    proto = TypeProto()
    proto.tensor_type.elem_type = dtype
    if shape is not None:
        dims = proto.tensor_type.shape
        dims.SetInParent()
        for size in shape:
            dim = dims.dim.add()
            if size is not None:
                dim.dim_value = size
    return proto


def type_of_array(array: Array) -> TypeProto:
    """The type of a constant."""
    return tensor_type(onnx_dtype(element_of_dtype(array.dtype)), array.shape)


def dtype_of(type_: TypeProto | None) -> int:
    """ONNX data type of a tensor type; 0 if it is no tensor or not known."""
    return 0 if type_ is None else type_.tensor_type.elem_type


def shape_of(type_: TypeProto | None) -> Shape:
    """Shape of a tensor type."""
    if type_ is None or not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in type_.tensor_type.shape.dim
    )


def static_shape(type_: TypeProto | None) -> tuple[int, ...] | None:
    """The shape if every size is known."""
    shape = shape_of(type_)
    if shape is None:
        return None
    sizes = tuple(size for size in shape if size is not None)
    return sizes if len(sizes) == len(shape) else None


def bound(type_: TypeProto, binding: Binding) -> TypeProto:
    """A declared type with its symbols replaced by their sizes; unknown ones are left open."""
    if not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return type_
    shape = tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else binding.size(dim.dim_param.strip() or None)
        if dim.HasField("dim_param")
        else None
        for dim in type_.tensor_type.shape.dim
    )
    return tensor_type(type_.tensor_type.elem_type, shape)


def shapes_agree(a: Shape, b: Shape) -> bool:
    """False if two shapes differ in rank or in a size known to both."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x is None or y is None or x == y for x, y in zip(a, b, strict=True))


def refine(a: Shape, b: Shape) -> Shape:
    """What two agreeing shapes say together."""
    if a is None or b is None:
        return b if a is None else a
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def common(types: Sequence[TypeProto | None]) -> TypeProto | None:
    """The most exact type that all of `types` have: sizes that differ become unknown."""
    first = types[0]
    if first is None or any(type_ is None or type_.WhichOneof("value") != "tensor_type" for type_ in types):
        return first if all(type_ == first for type_ in types) else None
    if any(dtype_of(type_) != dtype_of(first) for type_ in types):
        return None
    shapes = [shape_of(type_) for type_ in types]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) > 1 or None in ranks:
        return tensor_type(dtype_of(first), None)
    columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return tensor_type(dtype_of(first), tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns))


def to_ir(type_: TypeProto | None, where: str) -> Attribute:
    """The IR's type; ModelError E-DTYPE for element types lampc does not have."""
    if type_ is None:
        return UnknownType()
    match type_.WhichOneof("value"):
        case "tensor_type":
            dtype = type_.tensor_type.elem_type
            if not dtype:
                return UnknownType()
            tensor_dtype(dtype, where)
            element = element_type(dtype)
            shape = shape_of(type_)
            if shape is None:
                return UnrankedTensorType(element)
            return TensorType(element, [DYNAMIC_INDEX if size is None else size for size in shape])
        case "sequence_type":
            return SequenceType(to_ir(type_.sequence_type.elem_type, where))
        case "optional_type":
            return OptionalType(to_ir(type_.optional_type.elem_type, where))
        case _:
            return UnknownType()


def element_count(shape: tuple[int, ...]) -> int:
    """Number of elements, as a Python integer that does not overflow."""
    return int(np.prod(np.array(shape, dtype=np.object_), initial=1))
