"""Attributes of nodes: to Python values for computing, to attributes of the IR for printing."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, StringAttr, f32, i64
from xdsl.ir import Attribute

from lampc.dialects.onnx import ValuesAttr
from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError, printable
from lampc.frontend.limits import Limits
from lampc.frontend.names import node_label
from lampc.frontend.tensors import densify, tensor_array
from lampc.frontend.types import to_ir


def _text(value: bytes) -> str:
    """A string attribute, readable and harmless."""
    return printable(value.decode("utf-8", "backslashreplace"), 4096)


def python_attributes(node: NodeProto, limits: Limits) -> dict[str, Any]:
    """Values of a node's attributes: int, float, bytes, lists of those, arrays; subgraphs and types are left out."""
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        match attribute.type:
            case AttributeProto.FLOAT:
                values[attribute.name] = attribute.f
            case AttributeProto.INT:
                values[attribute.name] = attribute.i
            case AttributeProto.STRING:
                values[attribute.name] = attribute.s
            case AttributeProto.FLOATS:
                values[attribute.name] = list(attribute.floats)
            case AttributeProto.INTS:
                values[attribute.name] = list(attribute.ints)
            case AttributeProto.STRINGS:
                values[attribute.name] = list(attribute.strings)
            case AttributeProto.TENSOR:
                values[attribute.name] = tensor_array(attribute.t, f"{node_label(node)} attribute '{attribute.name}'", limits)
            case _:
                pass
    return values


def _tensor_attribute(array: Array, where: str) -> Attribute:
    if array.dtype == np.object_:
        return ArrayAttr(StringAttr(_text(item)) for item in array.reshape(-1))
    if array.size > 2**16:
        raise ModelError(
            f"a tensor attribute of {array.size} elements; make it an initializer", where=where, code="E-UNSUPPORTED"
        )
    return ValuesAttr.from_numpy(array)


def ir_attributes(node: NodeProto, limits: Limits) -> dict[str, Attribute]:
    """A node's attributes for `onnx.node`; subgraphs are left out. Raises ModelError E-UNSUPPORTED for kinds nobody uses."""
    result: dict[str, Attribute] = {}
    for attribute in node.attribute:
        where = f"{node_label(node)} attribute '{attribute.name}'"
        match attribute.type:
            case AttributeProto.FLOAT:
                value: Attribute = FloatAttr(attribute.f, f32)
            case AttributeProto.INT:
                value = IntegerAttr(attribute.i, i64)
            case AttributeProto.STRING:
                value = StringAttr(_text(attribute.s))
            case AttributeProto.FLOATS:
                value = ArrayAttr(FloatAttr(item, f32) for item in attribute.floats)
            case AttributeProto.INTS:
                value = DenseArrayBase.from_list(i64, list(attribute.ints))
            case AttributeProto.STRINGS:
                value = ArrayAttr(StringAttr(_text(item)) for item in attribute.strings)
            case AttributeProto.TENSOR:
                value = _tensor_attribute(tensor_array(attribute.t, where, limits), where)
            case AttributeProto.SPARSE_TENSOR:
                value = _tensor_attribute(densify(attribute.sparse_tensor, where, limits), where)
            case AttributeProto.TYPE_PROTO:
                value = to_ir(attribute.tp, where)
            case AttributeProto.GRAPH | AttributeProto.GRAPHS:
                continue
            case _:
                raise ModelError("lists of tensors or types are not supported", where=where, code="E-UNSUPPORTED")
        result[attribute.name] = value
    return result
