"""
One onnxruntime session per host segment, built from the model's own nodes.

Weights never enter the sub-model: they are injected as `OrtValue`s over the model's arrays, so that all segments share one
copy and no sub-model comes near protobuf's 2 GB; nothing is opened by path. Inferred shapes are left out, since onnxruntime
refuses real tensors that contradict them. Source: docs/onnx.md §5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from lampc.dialects.onnx import (
    AbsentType,
    ConstantOp,
    InitializerOp,
    NodeOp,
    OptionalType,
    SegmentOp,
    SequenceType,
    ValuesAttr,
    is_tensor,
    onnx_dtype,
)
from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError, printable

ort: Any = onnxruntime  # untyped: every use of it is in this file

INJECTED_LOCATION = "lampc-holds-these-values"
_NO_NUMPY = frozenset((TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2))


def session_options(threads: int | None) -> Any:
    """Quiet, one pool per session that sleeps when idle (a model has many sessions), `threads` workers (None: all cores)."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def ort_value(array: Array, dtype: int) -> Any:
    """A view of `array` as onnxruntime's tensor of ONNX data type `dtype`; it keeps the array alive."""
    if dtype in _NO_NUMPY:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, dtype)
    return ort.OrtValue.ortvalue_from_numpy(array)


@dataclass
class Weights:
    """The model's large constants as OrtValues, made once and shared by all sessions."""

    arrays: Mapping[str, Array]
    values: dict[str, Any] = field(default_factory=dict[str, Any])

    def value(self, name: str, dtype: int) -> Any:
        if name not in self.values:
            self.values[name] = ort_value(self.arrays[name], dtype)
        return self.values[name]


def injected(name: str, dtype: int, shape: Sequence[int]) -> TensorProto:
    """An initializer without values, to be injected."""
    tensor = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=INJECTED_LOCATION)
    return tensor


def start(model: onnx.ModelProto, options: Any, what: str) -> Any:
    """
    An onnxruntime session on the CPU.

    Raises ModelError with onnxruntime's reason if it cannot run the model.
    """
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot load it: {first_line(error)}", where=what) from error


def first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return printable(text.splitlines()[0], 300)


class SegmentSession:
    """A host segment, ready to run on arrays in the order of the segment's operands."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        originals: Mapping[str, onnx.NodeProto],
        weights: Weights,
        segment: SegmentOp,
        function: FuncOp,
        threads: int | None,
    ):
        self.name = function.sym_name.data
        self.inputs = [name.data for name in segment.input_names]
        self.outputs = [name.data for name in segment.output_names]
        builder = _Builder(originals)
        graph = builder.graph(self.name, function, self.inputs, self.outputs)
        model = onnx.ModelProto(ir_version=proto.ir_version, graph=graph)
        model.opset_import.extend(proto.opset_import)
        model.functions.extend(proto.functions)
        options = session_options(threads)
        if builder.injected:
            names = list(builder.injected)
            values = [weights.value(name, dtype) for name, dtype in builder.injected.items()]
            options.add_external_initializers(names, values)
        self.session = start(model, options, f"host segment '{self.name}'")

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """
        Run the segment.

        Raises ModelError with onnxruntime's reason.
        """
        try:
            return list(self.session.run(self.outputs, dict(zip(self.inputs, arrays, strict=True))))
        except Exception as error:
            raise ModelError(f"onnxruntime failed: {first_line(error)}", where=f"host segment '{self.name}'") from error


class _Builder:
    """Writes a segment's function as an ONNX graph."""

    def __init__(self, originals: Mapping[str, onnx.NodeProto]):
        self.originals = originals
        self.injected: dict[str, int] = {}

    def graph(self, name: str, function: FuncOp, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.GraphProto:
        graph = onnx.GraphProto(name=name)
        block = function.body.block
        names: dict[SSAValue, str] = dict(zip(block.args, inputs, strict=True))
        for arg in block.args:
            graph.input.append(onnx.ValueInfoProto(name=names[arg], type=type_proto(arg.type)))
        for op in block.ops:
            if isinstance(op, ConstantOp | InitializerOp):
                names[op.result] = op.tensor_name.data
                graph.initializer.append(self._initializer(op))
            elif isinstance(op, NodeOp):
                names.update((result, name.data) for result, name in zip(op.results, op.names, strict=True))
                graph.node.append(self._node(op, names))
        last = block.last_op
        assert last is not None
        for value, output in zip(last.operands, outputs, strict=True):
            graph.output.append(onnx.ValueInfoProto(name=output, type=type_proto(value.type)))
        return graph

    def _initializer(self, op: ConstantOp | InitializerOp) -> TensorProto:
        name = op.tensor_name.data
        if isinstance(op, ConstantOp):
            return values_proto(op.values, name)
        type_ = op.result.type
        assert is_tensor(type_)
        dtype = onnx_dtype(type_.element_type)
        self.injected[name] = dtype
        return injected(name, dtype, type_.get_shape())

    def _node(self, op: NodeOp, names: Mapping[SSAValue, str]) -> onnx.NodeProto:
        inputs = ["" if isinstance(value.type, AbsentType) else names[value] for value in op.operands]
        original = next((self.originals[n.data] for n in op.names if n.data in self.originals), None)
        node = onnx.NodeProto()
        if original is not None and original.op_type == op.op_type.data:
            node.CopyFrom(original)
            del node.input[:]
        else:  # a node that lampc added for the host
            outputs = [name.data for name in op.names]
            node = helper.make_node(op.op_type.data, [], outputs, domain=op.domain.data)
            node.attribute.extend(_attribute(key, value) for key, value in op.node_attributes.data.items())
        node.input.extend(inputs)
        return node


def _attribute(name: str, value: Attribute) -> onnx.AttributeProto:
    match value:
        case IntegerAttr():
            return helper.make_attribute(name, value.value.data)
        case FloatAttr():
            return helper.make_attribute(name, value.value.data)
        case StringAttr():
            return helper.make_attribute(name, value.data)
        case DenseArrayBase():
            return helper.make_attribute(name, list(integers_of(value)))
        case ArrayAttr():
            return helper.make_attribute(name, [v.value.data for v in value.data if isinstance(v, FloatAttr)])
        case ValuesAttr():
            return helper.make_attribute(name, values_proto(value, ""))
        case _:
            raise ModelError(f"an attribute '{printable(name)}' that cannot be written for onnxruntime")


def integers_of(array: DenseArrayBase) -> tuple[int, ...]:
    """The elements of an integer array attribute."""
    return tuple(int(value) for value in array.get_values())  # pyright: ignore


def values_proto(values: ValuesAttr, name: str) -> TensorProto:
    """Inline values as a TensorProto."""
    return numpy_helper.from_array(values.to_numpy(), name)


def type_proto(type_: Attribute) -> onnx.TypeProto:
    """The ONNX type of a value without its shape; an empty one where lampc knows none."""
    proto = onnx.TypeProto()
    if is_tensor(type_):
        proto.tensor_type.elem_type = onnx_dtype(type_.element_type)
    elif isinstance(type_, SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_proto(type_.element))
    elif isinstance(type_, OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_proto(type_.element))
    return proto
