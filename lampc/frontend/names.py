"""
Names from models made harmless at the door: printable ASCII, no quotes or backslashes, of bounded length, still unique.

A value renamed here is renamed everywhere in the model; the names a user sees on inputs and outputs are kept beside it.
Source: onnx.md §6 (55).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from lampc.errors import ModelError, printable

_CLEAN = re.compile(r"[ !#-\[\]-~]{0,200}")
_DIRTY_CHARACTER = re.compile(r"[^ !#-\[\]-~]")


def is_clean(name: str) -> bool:
    """True if a name can stand in IR, assembly and file contents as it is."""
    return _CLEAN.fullmatch(name) is not None


def cleaned(name: str) -> str:
    """A readable, harmless form of a name; different names may get the same."""
    return _DIRTY_CHARACTER.sub("_", name)[:120]


def node_label(node: NodeProto) -> str:
    """How errors call a node: its name, else its first output; with the operator."""
    name = node.name or next((output for output in node.output if output), "")
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return f"node '{printable(name)}' ({printable(operator, 60)})"


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """(attribute name, graph) for each subgraph of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for graph in attribute.graphs:
            yield attribute.name, graph


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """`graph` and every graph nested in it."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            stack.extend(inner for _, inner in subgraphs(node))


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node of a graph and of the graphs nested in it."""
    for current in all_graphs(graph):
        yield from current.node


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @name.setter
    def name(self, value: str, /) -> None: ...


def _named(graph: GraphProto) -> Iterator[_Named]:
    for current in all_graphs(graph):
        for group in (current.input, current.output, current.value_info, current.initializer):
            yield from group
        for sparse in current.sparse_initializer:
            yield sparse.values


def _bodies(model: ModelProto) -> Iterator[tuple[Iterable[NodeProto], GraphProto | FunctionProto]]:
    yield all_nodes(model.graph), model.graph
    for function in model.functions:
        nested = (node for outer in function.node for _, graph in subgraphs(outer) for node in all_nodes(graph))
        yield (*function.node, *nested), function


def _other_texts(model: ModelProto) -> Iterator[str]:
    """Texts that are read but never become names in the IR; they only have to be text."""
    yield from (opset.domain for opset in model.opset_import)
    for function in model.functions:
        yield function.overload
        yield from (opset.domain for opset in function.opset_import)
    for graph in all_graphs(model.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
        for tensor in graph.initializer:
            yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for nodes, _ in _bodies(model):
        for node in nodes:
            yield node.overload
            for attribute in node.attribute:
                yield attribute.ref_attr_name
                yield from (text for entry in attribute.t.external_data for text in (entry.key, entry.value))


def _every_name(model: ModelProto) -> Iterator[str]:
    for info in _named(model.graph):
        yield info.name
    for nodes, body in _bodies(model):
        if isinstance(body, FunctionProto):
            yield from (body.name, body.domain, *body.input, *body.output, *(info.name for info in body.value_info))
            for node in body.node:
                for _, graph in subgraphs(node):
                    yield from (info.name for info in _named(graph))
        for node in nodes:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)


def sanitise(model: ModelProto) -> dict[str, str]:
    """
    Rename what is not clean, in place; returns clean name -> original for the values renamed.

    Raises ModelError E-PARSE for names that are not UTF-8 (protobuf hands them out as bytes), E-OP-UNKNOWN for operators,
    domains and attributes that are not clean: those mean something and cannot be renamed.
    """
    dirty: dict[str, str] = {}
    taken: set[str] = set()
    for text in chain(_every_name(model), _other_texts(model)):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModelError("a name in it is not UTF-8 text; the file is broken", code="E-PARSE")
    taken.update(_every_name(model))
    for name in sorted(name for name in taken if not is_clean(name)):
        base = cleaned(name)
        number = 1
        while (candidate := f"{base}~{number}") in taken:
            number += 1
        taken.add(candidate)
        dirty[name] = candidate
    if dirty:
        _rename(model, dirty)
    return {clean: original for original, clean in dirty.items()}


def _rename(model: ModelProto, names: dict[str, str]) -> None:
    def rename_list(values: list[str]) -> list[str]:
        return [names.get(value, value) for value in values]

    def rename_infos(infos: Iterable[_Named]) -> None:
        for info in infos:
            if info.name in names:
                info.name = names[info.name]

    rename_infos(_named(model.graph))
    for nodes, body in _bodies(model):
        if isinstance(body, FunctionProto):
            if body.name in names or body.domain in names:
                raise ModelError(f"function '{printable(body.name)}' has an unusable name", code="E-OP-UNKNOWN")
            body.input[:] = rename_list(list(body.input))
            body.output[:] = rename_list(list(body.output))
            rename_infos(body.value_info)
            for node in body.node:
                for _, graph in subgraphs(node):
                    rename_infos(_named(graph))
        for node in nodes:
            meaning = (node.op_type, node.domain, *(attribute.name for attribute in node.attribute))
            if any(name in names for name in meaning):
                raise ModelError(
                    "its operator, domain or an attribute has an unusable name", where=node_label(node), code="E-OP-UNKNOWN"
                )
            node.name = names.get(node.name, node.name)
            node.input[:] = rename_list(list(node.input))
            node.output[:] = rename_list(list(node.output))
