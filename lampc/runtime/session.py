"""
One onnxruntime session per host segment, built from the model's own nodes.

Weights never enter the sub-model: they are injected as `OrtValue`s over the model's arrays, so that all segments share one
copy and no sub-model comes near protobuf's 2 GB; nothing is opened by path. Inferred shapes are left out, since onnxruntime
refuses real tensors that contradict them. Source: docs/onnx.md §5.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, StringAttr, bf16
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from lampc.dialects.onnx import (
    INLINE_ELEMENTS,
    AbsentType,
    ConstantOp,
    InitializerOp,
    NodeOp,
    OptionalType,
    SegmentOp,
    SequenceType,
    ValuesAttr,
    element_of_dtype,
    is_tensor,
    numpy_dtype,
    onnx_dtype,
)
from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError, printable
from lampc.frontend.graphs import free_names
from lampc.runtime.narrow import runs_narrow, widened

ort: Any = onnxruntime  # untyped: every use of it is in this file

INJECTED_LOCATION = "lampc-holds-these-values"
bfloat16 = np.dtype(ml_dtypes.bfloat16)
_NO_NUMPY = frozenset((TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2))


class Arrays(Protocol):
    """Arrays by name, some of them mapped from files."""

    def __getitem__(self, name: str, /) -> Array: ...

    def __contains__(self, name: object, /) -> bool: ...

    def unload(self) -> None:
        """Let go of the memory of mapped arrays; they are read again when they are used."""
        ...


class HostModel(Protocol):
    """
    What the runtime needs of a loaded model: its graph without weights as loaded and with chosen branches in place, and the
    arrays of its large constants by name.
    """

    @property
    def source(self) -> onnx.ModelProto: ...

    @property
    def proto(self) -> onnx.ModelProto: ...

    @property
    def constants(self) -> Arrays: ...


_pool: list[int | None] = []
"""Workers of the process's one pool, once there is one; onnxruntime then lets no session have its own, nor changes it."""


def share_pool(threads: int | None) -> None:
    """
    From now on all sessions of this process share one pool of `threads` workers (None: all cores) that wait busily for a while.

    Best where sessions follow each other closely. Not where other work runs between them, whose cores the workers would take.
    """
    if not _pool:
        ort.set_global_thread_pool_sizes(threads or 0, 1)
        _pool.append(threads)


@cache
def _share_arena() -> None:
    """One arena for all sessions of the process: segments run one by one, and each would keep memory of its own."""
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(place, None)


def session_options(threads: int | None) -> Any:
    """
    Quiet; memory from one arena; the shared pool if there is one, else a pool for each session that sleeps when idle (there are
    many), with `threads` workers (None: all cores).
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    _share_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    if _pool:
        options.use_per_session_threads = False
        return options
    if threads is not None:
        options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def ort_value(array: Array, dtype: int) -> Any:
    """`array` as onnxruntime's tensor of ONNX data type `dtype`: a view that keeps it alive, a copy if it is strided."""
    array = np.require(array, requirements=["C", "A"])
    if dtype in _NO_NUMPY:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, dtype)
    return ort.OrtValue.ortvalue_from_numpy(array)


@dataclass
class Weights:
    """The model's large constants as OrtValues, made once and shared by all sessions."""

    arrays: Arrays
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


def inject(options: Any, weights: Weights, names: Mapping[str, int], graph: onnx.GraphProto) -> None:
    """Give a session of `graph` the constants that it names without values (ONNX data types by name)."""
    if names:
        values = [weights.value(name, dtype) for name, dtype in names.items()]
        options.add_external_initializers(list(names), values)
        rewritten = _rewritten(graph)
        for name, value in zip(names, values, strict=True):
            if name not in rewritten:
                options.add_initializer(name, value)  # lets onnxruntime drop the copy that it makes of an injected one


_KEEPS_WEIGHTS = frozenset(("MatMul", "Gemm", "MatMulNBits", "MatMulInteger", "QLinearMatMul"))


def _rewritten(graph: onnx.GraphProto) -> set[str]:
    """
    Names that onnxruntime may give other values than the model's: inputs of all but matrix products, subgraphs' too.

    Its transpose optimizer transposes the constants of element-wise nodes under their old names; a value given by
    `add_initializer` would then come back in the old shape.
    """
    names: set[str] = set()
    for node in graph.node:
        if node.op_type not in _KEEPS_WEIGHTS:
            names.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= _rewritten(inner)
    return names


def run_session(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any], what: str) -> list[Any]:
    """
    One run of an onnxruntime session, outputs in order.

    Raises ModelError with onnxruntime's reason.
    """
    try:
        if any(array.dtype == bfloat16 for array in feeds.values()) or any(
            output.type == "tensor(bfloat16)" for output in session.get_outputs()
        ):
            return _run_narrow(session, outputs, feeds)
        return list(session.run(list(outputs), dict(feeds)))
    except Exception as error:
        raise ModelError(f"onnxruntime failed: {first_line(error)}", where=what) from error


def _run_narrow(session: Any, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Any]:
    """A run with bf16 tensors, which onnxruntime does not exchange with NumPy: it gets and gives their bits."""
    values = {name: ort_value(array, TensorProto.BFLOAT16 if array.dtype == bfloat16 else 0) for name, array in feeds.items()}
    results: list[Any] = []
    for value in session.run_with_ort_values(list(outputs), values):
        if value.data_type() != "tensor(bfloat16)":
            results.append(value.numpy())
            continue
        shape = tuple(value.shape())
        bits = np.empty(shape, np.uint16)
        if bits.size:
            ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
        results.append(bits.view(bfloat16))
    return results


def first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return printable(text.splitlines()[0], 300)


class ModelSession:
    """The whole unmodified model in onnxruntime: the reference."""

    def __init__(self, proto: onnx.ModelProto, weights: Weights, threads: int | None):
        options = session_options(threads)
        outside = {t.name: t.data_type for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL}
        model = onnx.ModelProto()
        model.CopyFrom(proto)
        self.tables = {name: weights.arrays[name] for name in take_tables(model.graph, outside)}
        inject(options, weights, outside, model.graph)
        self.session = start(model, options, "the model")
        weights.arrays.unload()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """
        All graph outputs by name.

        Raises ModelError with onnxruntime's reason.
        """
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, run_session(self.session, names, {**inputs, **self.tables}, "the model"), strict=True))


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
        self.empty = _empty(segment.result_types)
        builder = _Builder(originals, weights.arrays)
        graph = builder.graph(self.name, function, self.inputs, self.outputs)
        self.tables = {name: weights.arrays[name] for name in take_tables(graph, builder.injected)}
        model = onnx.ModelProto(ir_version=proto.ir_version, graph=graph)
        model.opset_import.extend(proto.opset_import)
        model.functions.extend(proto.functions)
        options = session_options(threads)
        inject(options, weights, builder.injected, graph)
        self.session = start(model, options, f"host segment '{self.name}'")
        weights.arrays.unload()

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """
        Run the segment.

        Raises ModelError with onnxruntime's reason.
        """
        if self.empty is not None:
            return list(self.empty)
        feeds = dict(zip(self.inputs, arrays, strict=True)) | self.tables
        return run_session(self.session, self.outputs, feeds, f"host segment '{self.name}'")


def _empty(types: Sequence[Attribute]) -> list[Array] | None:
    """The results if none has an element: onnxruntime has kernels that refuse such sizes. None if one may have."""
    tensors = [type_ for type_ in types if is_tensor(type_)]
    shapes = [type_.get_shape() for type_ in tensors]
    if not types or len(tensors) < len(types) or any(0 not in shape or min(shape) < 0 for shape in shapes):
        return None
    return [np.zeros(shape, numpy_dtype(type_.element_type)) for shape, type_ in zip(shapes, tensors, strict=True)]


def take_tables(graph: onnx.GraphProto, outside: dict[str, int]) -> list[str]:
    """
    Make inputs of the injected constants that are only looked up in; returns their names, which are taken out of `outside`.

    onnxruntime copies a constant while it loads, which for a lookup table gains nothing.
    """
    looked_up: set[str] = set()
    others = {output.name for output in graph.output} | {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type == "Gather" and not node.domain:
            looked_up.add(node.input[0])
            others.update(node.input[1:])
        else:
            others |= free_names(node)
    tables = [name for name, dtype in outside.items() if name in looked_up - others and dtype not in _NO_NUMPY]
    for tensor in [tensor for tensor in graph.initializer if tensor.name in tables]:
        graph.initializer.remove(tensor)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, None))
        del outside[tensor.name]
    return tables


class _Builder:
    """Writes a segment's function as an ONNX graph."""

    def __init__(self, originals: Mapping[str, onnx.NodeProto], constants: Arrays):
        self.originals = originals
        self.constants = constants
        self.injected: dict[str, int] = {}
        self.node_names: set[str] = set()

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
                node = self._node(op, names)
                if op.regions:
                    self._captured(node, graph, set(names.values()))
                graph.node.extend(_runnable(op, node))
        last = block.last_op
        assert last is not None
        for value, output in zip(last.operands, outputs, strict=True):
            graph.output.append(onnx.ValueInfoProto(name=output, type=type_proto(value.type)))
        return graph

    def _captured(self, node: onnx.NodeProto, graph: onnx.GraphProto, known: set[str]) -> None:
        """
        Provide what bodies of a node read and the module does not say, because import computed it.

        Raises ModelError if it can only be had from another segment.
        """
        for name in sorted(free_names(node) - known):
            known.add(name)
            if name in self.constants:
                graph.initializer.append(self._provided(name, self.constants[name]))
            elif name in self.originals:
                producer = self.originals[name]
                self._captured(producer, graph, known)
                known.update(producer.output)
                graph.node.append(producer)
            else:
                raise ModelError(
                    "one of its bodies reads a value of another part of the model, which lampc cannot cut there",
                    where=f"node '{printable(node.name or node.output[0])}'",
                    code=f"E-UNSUPPORTED({node.op_type})",
                )

    def _provided(self, name: str, array: Array) -> TensorProto:
        if array.size <= INLINE_ELEMENTS:
            return numpy_helper.from_array(array, name)
        self.injected[name] = onnx_dtype(element_of_dtype(array.dtype))
        return injected(name, self.injected[name], array.shape)

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
            node = helper.make_node(op.op_type.data, [], outputs, name=outputs[0], domain=op.domain.data)
            node.attribute.extend(_attribute(key, value) for key, value in op.node_attributes.data.items())
        node.input.extend(inputs)
        if node.name in self.node_names:  # a branch put in its place may use names that the graph around it has too
            node.name = ""
        self.node_names.add(node.name)
        return node


def _runnable(op: NodeOp, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The node, or what computes the same where onnxruntime has no kernel for bf16."""
    narrow = [[is_tensor(v.type) and v.type.element_type == bf16 for v in values] for values in (op.operands, op.results)]
    if not any(map(any, narrow)) or op.regions or runs_narrow(op.domain.data, op.op_type.data, op.version.value.data):
        return [node]
    return widened(node, *narrow)


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
