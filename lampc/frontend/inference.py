"""
Types of a node's outputs, by onnx's own inference for one node, with known constants, after checks it does badly or not at all.

Source: onnx.md §1.4 (shape inference), §6 (48, 49, 52, 53).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx.defs
from onnx import NodeProto, OperatorSetIdProto, TensorProto, TypeProto, numpy_helper, shape_inference

from lampc.errors import ModelError, printable
from lampc.frontend.fold import range_length
from lampc.frontend.names import node_label
from lampc.frontend.tensors import dtype_name
from lampc.frontend.types import dtype_of, refine, shape_of, shapes_agree, tensor_type

_AXIS_OPERATORS = frozenset(
    (
        "ArgMax",
        "ArgMin",
        "Concat",
        "Gather",
        "GatherElements",
        "Hardmax",
        "LayerNormalization",
        "LogSoftmax",
        "RMSNormalization",
        "ScatterElements",
        "Softmax",
        "Split",
        "TopK",
    )
)
_PREFIX = re.compile(r"^(\[\w+\]\s*|\(op_type:[^)]*\):\s*)+")


@cache
def _schema(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(op_type, version, domain)


def check_values(node: NodeProto, attributes: Mapping[str, Any], types: Sequence[TypeProto | None]) -> None:
    """Raises ModelError E-ATTR-VALUE for an axis outside the tensor or a perm that is no permutation."""
    shape = shape_of(types[0]) if types else None
    if shape is None:
        return
    rank = len(shape)
    if node.op_type in _AXIS_OPERATORS and "axis" in attributes and not -rank <= attributes["axis"] < max(rank, 1):
        raise ModelError(
            f"axis is {attributes['axis']}, but its input has {rank} dimensions", where=node_label(node), code="E-ATTR-VALUE"
        )
    if node.op_type == "Transpose" and "perm" in attributes and sorted(attributes["perm"]) != list(range(rank)):
        raise ModelError(
            f"perm {list(attributes['perm'])} is no permutation of the {rank} axes of its input",
            where=node_label(node),
            code="E-ATTR-VALUE",
        )


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return printable(_PREFIX.sub("", text), 200)


def _range_types(node: NodeProto, dtype: int, constants: Mapping[str, TensorProto]) -> list[TypeProto | None]:
    """
    Range with constant ends has a known length. Not left to onnx: it refuses the one-element tensors that exporters and
    onnxruntime allow, and gives no length where it overflows.
    """
    count = None
    if all(name in constants for name in node.input):
        start, limit, delta = (numpy_helper.to_array(constants[name]).reshape(()) for name in node.input)
        count = range_length(start, limit, delta)
    return [tensor_type(dtype, (None if count is None else min(count, 2**62),))]


def infer_types(
    node: NodeProto,
    version: int,
    types: Mapping[str, TypeProto],
    constants: Mapping[str, TensorProto],
    opsets: Sequence[OperatorSetIdProto],
    ir_version: int,
) -> list[TypeProto | None]:
    """
    Types of the outputs of a node of a known operator; None where nothing is known.

    types      of the node's inputs by name; if one is missing, nothing is inferred
    constants  values of small constant inputs

    Raises ModelError E-SHAPE if the inputs do not fit each other.
    """
    if any(name and name not in types for name in node.input):
        return [None] * len(node.output)
    if node.op_type == "Range" and not node.domain:
        return _range_types(node, dtype_of(types[node.input[0]]), constants)
    schema = _schema(node.op_type, "" if node.domain == "ai.onnx" else node.domain, version)
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node, dict(types), dict(constants), None, list(opsets), ir_version
        )
    except shape_inference.InferenceError as error:
        raise ModelError(f"its inputs do not fit: {_message(error)}", where=node_label(node), code="E-SHAPE") from error
    except Exception as error:  # the C++ side raises its own kinds for each way to be wrong
        raise ModelError(f"its type cannot be inferred: {_message(error)}", where=node_label(node), code="E-SHAPE") from error
    result: list[TypeProto | None] = []
    for name in node.output:
        type_ = inferred.get(name) if name else None
        kind = None if type_ is None else type_.WhichOneof("value")
        result.append(None if kind is None or (kind == "tensor_type" and not dtype_of(type_)) else type_)
    return result


def with_declared(inferred: TypeProto | None, declared: TypeProto | None, where: str, *, is_output: bool) -> TypeProto | None:
    """
    An inferred type completed by what the model declares. Declared shapes of values inside the graph give way to inference:
    exporters leave traced sizes there.

    Raises ModelError E-TYPE-CONFLICT, and for graph outputs E-SHAPE-CONFLICT, if the two contradict each other.
    """
    if declared is None or not declared.HasField("tensor_type"):
        return inferred if inferred is not None else declared
    if inferred is None:
        return declared if dtype_of(declared) else None
    if not inferred.HasField("tensor_type"):
        return inferred
    if dtype_of(declared) and dtype_of(declared) != dtype_of(inferred):
        names = [dtype_name(dtype_of(type_)).lower() for type_ in (declared, inferred)]
        raise ModelError(
            f"it is declared {names[0]}, but its operator gives {names[1]}; correct the declaration",
            where=where,
            code="E-TYPE-CONFLICT",
        )
    shape, wanted = shape_of(inferred), shape_of(declared)
    if shapes_agree(shape, wanted):
        return tensor_type(dtype_of(inferred), refine(shape, wanted))
    if is_output:
        shown = [str(["?" if size is None else size for size in s or ()]).replace("'", "") for s in (wanted, shape)]
        raise ModelError(
            f"it is declared {shown[0]}, but its operator gives {shown[1]}; correct the declaration or the sizes",
            where=where,
            code="E-SHAPE-CONFLICT",
        )
    return inferred
