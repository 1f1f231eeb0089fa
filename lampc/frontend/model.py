"""
Open an ONNX file that nobody vouches for.

The order of checks is fixed, each safe because of those before: size and parse limits, names, IR and opset versions, tensor
sizes and external data, order and names of the graph, functions (counted before they are inlined), operators by their
schemas. Types and shapes follow at import. Source: onnx.md §6 ("Order").
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, SparseTensorProto, TensorProto, TypeProto, ValueInfoProto

from lampc.dialects.onnx_attributes import Array
from lampc.errors import LampcError, ModelError, printable
from lampc.frontend.constants import Constants
from lampc.frontend.external import ExternalData
from lampc.frontend.functions import inline_functions
from lampc.frontend.graphs import check_graph, check_size
from lampc.frontend.limits import Limits, raise_it
from lampc.frontend.names import all_graphs, all_nodes, node_label, sanitise, subgraphs
from lampc.frontend.operators import check_nodes, check_versions
from lampc.frontend.tensors import check_tensor, densify, is_external, strip, tensor_array, tensor_dtype, to_proto

Dim = int | str | None
"""A dimension as declared: a number, a symbol or expression, or nothing."""


@dataclass(frozen=True)
class GraphValue:
    """
    A graph input or output as declared.

    name      as in `Model.proto`: printable, unique
    original  as in the file, the name users give
    proto     its type; `dims` is None where no shape is declared or it is no tensor
    """

    name: str
    original: str
    proto: TypeProto
    dims: tuple[Dim, ...] | None

    @property
    def is_tensor(self) -> bool:
        """False for sequences, optionals and maps."""
        return self.proto.HasField("tensor_type")

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of a tensor."""
        return tensor_dtype(self.proto.tensor_type.elem_type, f"input '{printable(self.original)}'")

    def shape_text(self) -> str:
        """The declared shape for messages, such as [batch, 16, ?]."""
        if self.dims is None:
            return "[...]"
        return "[" + ", ".join("?" if dim is None else printable(str(dim), 60) for dim in self.dims) + "]"


@dataclass
class Model:
    """
    A checked ONNX model: functions inlined, nodes in order, large payloads outside.

    path       where it came from, or None
    file       what errors call it
    sha256     of the file's bytes
    source     the graph as it was loaded; values of initializers over `Limits.inline_elements` are only in `constants`
               (see `tensors.STRIPPED`)
    proto      `source`, or after `import_model` the same with constant branches in place
    opsets     domain ("" for ai.onnx) to version
    inputs     graph inputs without those that an initializer gives a value
    outputs    graph outputs
    constants  values by name: initializers at once, folded ones after `import_model`
    originals  renamed value names: name in `proto` to name in the file
    warnings   what a user should know, one line each
    """

    path: Path | None
    file: str
    sha256: str
    source: ModelProto
    proto: ModelProto
    opsets: dict[str, int]
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    constants: Constants
    originals: dict[str, str]
    warnings: list[str]
    limits: Limits

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbolic dimensions of the inputs, in order of appearance, expressions included."""
        dims = (dim for value in self.inputs for dim in value.dims or ())
        return tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))

    def original(self, name: str) -> str:
        """The name a value has in the file."""
        return self.originals.get(name, name)


def _read(path: Path, limits: Limits) -> bytes:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ModelError(f"cannot open it: {error.strerror}", code="E-FILE-MISSING") from error
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ModelError(f"it is {what}; name the .onnx file", code="E-FILE-KIND")
    if status.st_size > limits.model_bytes:
        raise ModelError(
            f"{status.st_size} bytes are more than protobuf can hold; save the weights as external data", code="E-FILE-SIZE"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read it: {error.strerror}", code="E-FILE-MISSING") from error


def _parse(data: bytes) -> ModelProto:
    if not data:
        raise ModelError("the file is empty", code="E-PARSE")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise ModelError("it is nested deeper than protobuf allows; flatten the model", code="E-NESTING") from error
        raise ModelError("it is no ONNX model, or cut off (protobuf cannot be decoded)", code="E-PARSE") from error
    if not proto.HasField("graph") or not proto.HasField("ir_version"):
        raise ModelError("it is no ONNX model: it has no graph or no IR version", code="E-PARSE")
    return proto


def _inner_tensors(proto: ModelProto) -> Iterator[tuple[str, TensorProto | SparseTensorProto]]:
    """Every tensor that is no initializer of the main graph, with words for it."""
    roots = [proto.graph.node, *(function.node for function in proto.functions)]
    for graph in (g for nodes in roots for node in nodes for _, sub in subgraphs(node) for g in all_graphs(sub)):
        for tensor in graph.initializer:
            yield f"initializer '{printable(tensor.name)}'", tensor
        for sparse in graph.sparse_initializer:
            yield f"initializer '{printable(sparse.values.name)}'", sparse
    nested = (node for nodes in roots for outer in nodes for _, sub in subgraphs(outer) for node in all_nodes(sub))
    for node in (*(node for nodes in roots for node in nodes), *nested):
        for attribute in node.attribute:
            what = f"{node_label(node)} attribute '{printable(attribute.name)}'"
            if attribute.HasField("t"):
                yield what, attribute.t
            if attribute.HasField("sparse_tensor"):
                yield what, attribute.sparse_tensor
            yield from ((what, tensor) for tensor in attribute.tensors)
            yield from ((what, tensor) for tensor in attribute.sparse_tensors)


def _embed(proto: ModelProto, external: ExternalData, limits: Limits) -> None:
    """Check the tensors inside nodes and subgraphs, and copy in those that are external."""
    for what, tensor in _inner_tensors(proto):
        if isinstance(tensor, SparseTensorProto):
            densify(tensor, what, limits)
            continue
        if not is_external(tensor):
            check_tensor(tensor, what, limits)
            continue
        where = external.locate(tensor, what, limits)
        if where.length > limits.embedded_bytes:
            raise ModelError(
                f"external data of {where.length} bytes inside a node or subgraph, more than {limits.embedded_bytes}; "
                f"make it an initializer of the main graph, or {raise_it('embedded_bytes')}",
                where=what,
                code="E-UNSUPPORTED",
            )
        array = external.read(tensor, where, what)
        tensor.CopyFrom(to_proto(array, tensor.name))


def _take_initializers(proto: ModelProto, external: ExternalData, limits: Limits) -> dict[str, Callable[[], Array]]:
    """Check the main graph's initializers; returns a loader for each and strips the large ones in `proto`."""
    loaders: dict[str, Callable[[], Array]] = {}
    large: list[TensorProto] = []
    for tensor in proto.graph.initializer:
        what = f"initializer '{printable(tensor.name)}'"
        if is_external(tensor):
            where = external.locate(tensor, what, limits)
            plain = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
            loaders[tensor.name] = partial(external.read, plain, where, what)
            if check_tensor(tensor, what, limits) <= limits.inline_elements:
                tensor.CopyFrom(to_proto(loaders[tensor.name](), tensor.name))
            else:
                large.append(tensor)
            continue
        # Read now: a loader that keeps the message would keep all stripped weights alive with it.
        array = tensor_array(tensor, what, limits)
        loaders[tensor.name] = partial(_same, array)
        if array.size > limits.inline_elements:
            large.append(tensor)
    for sparse in proto.graph.sparse_initializer:
        name = sparse.values.name
        array = densify(sparse, f"initializer '{printable(name)}'", limits)
        array.flags.writeable = False
        loaders[name] = partial(_same, array)
        dense = proto.graph.initializer.add()
        if array.size <= limits.inline_elements:
            dense.CopyFrom(to_proto(array, name))
        else:
            dense.name, dense.data_type = name, sparse.values.data_type
            dense.dims.extend(sparse.dims)
            large.append(dense)
    del proto.graph.sparse_initializer[:]
    strip(large)
    return loaders


def _same(array: Array) -> Array:
    return array


def _graph_value(info: ValueInfoProto, originals: dict[str, str]) -> GraphValue:
    tensor = info.type.tensor_type
    dims: tuple[Dim, ...] | None = None
    if info.type.HasField("tensor_type") and tensor.HasField("shape"):
        dims = tuple(
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else dim.dim_param.strip() or None
            if dim.HasField("dim_param")
            else None
            for dim in tensor.shape.dim
        )
    proto = TypeProto()
    proto.CopyFrom(info.type)
    return GraphValue(info.name, originals.get(info.name, info.name), proto, dims)


def _check(data: bytes, path: Path | None, file: str, external_dir: Path | None, limits: Limits) -> Model:
    proto = _parse(data)
    digest = hashlib.sha256(data).hexdigest()
    del data
    check_size(proto, limits)
    originals = sanitise(proto)
    check_versions(proto)
    external = ExternalData(path, external_dir)
    _embed(proto, external, limits)
    embedded = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    loaders = _take_initializers(proto, external, limits)
    if embedded > 2**20:
        # protobuf frees a message as a whole: only a fresh one is without the stripped weights
        proto = ModelProto.FromString(proto.SerializeToString())
    warnings = external.warnings
    if check_graph(proto.graph):
        warnings.append("its nodes are not in order; sorted")
    proto = inline_functions(proto, limits)
    opsets = check_versions(proto)
    check_nodes(proto, opsets)
    given = set(loaders)
    return Model(
        path=path,
        file=file,
        sha256=digest,
        source=proto,
        proto=proto,
        opsets=opsets,
        inputs=tuple(_graph_value(info, originals) for info in proto.graph.input if info.name not in given),
        outputs=tuple(_graph_value(info, originals) for info in proto.graph.output),
        constants=Constants(loaders, external.unload),
        originals=originals,
        warnings=warnings,
        limits=limits,
    )


def load_bytes(data: bytes, name: str, *, path: Path | None = None, limits: Limits | None = None) -> Model:
    """
    Check a model given as bytes; external data is looked for beside `path`, if there is one.

    name   what errors call it

    Raises ModelError; see `load_model`.
    """
    try:
        return _check(data, path, name, None, limits or Limits())
    except LampcError as error:
        error.file = error.file or printable(name)
        raise


def load_model(path: str | Path, *, external_data_dir: str | Path | None = None, limits: Limits | None = None) -> Model:
    """
    Open and check an ONNX file. Weights are mapped, not read.

    external_data_dir  a folder to look for external data in before the model's own
    limits             budgets, `Limits()` if None

    Raises ModelError with a code of onnx.md §6: E-FILE-*, E-PARSE, E-NESTING, E-NODE-BUDGET, E-IR-*, E-OPSET-*, E-DTYPE,
    E-DIMS-*, E-TENSOR-*, E-SPARSE-*, E-EXTDATA-*, E-GRAPH-*, E-FUNC-*, E-OP-*, E-ATTR-*, E-DOMAIN.
    """
    path = Path(path)
    limits = limits or Limits()
    extra = None if external_data_dir is None else Path(external_data_dir)
    try:
        return _check(_read(path, limits), path, str(path), extra, limits)
    except LampcError as error:
        error.file = error.file or printable(str(path))
        raise
