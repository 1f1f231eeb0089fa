"""
Put the chosen branch of an If in its place, where the condition is known at import.

Exporters leave such conditions in graphs for ranks and sizes that are fixed once the inputs are, and for inputs that say which
way to go, as `use_cache_branch` of a decoder does; attention inside can then be compiled like any other. Source: onnx.md §6
("Attention inside subgraphs").
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto, helper

from lampc.frontend.fold import FOLDABLE
from lampc.frontend.names import all_graphs, all_nodes, subgraphs


def names_in(graph: GraphProto) -> set[str]:
    """Every name that a graph or a graph nested in it defines or uses."""
    names: set[str] = set()
    for current in all_graphs(graph):
        for group in (current.input, current.output, current.initializer, current.value_info):
            names.update(item.name for item in group)
        names.update(sparse.values.name for sparse in current.sparse_initializer)
        for node in current.node:
            names.update(node.input)
            names.update(node.output)
    return names


def deciding_names(graph: GraphProto) -> set[str]:
    """Names that conditions of Ifs anywhere in a graph are computed from, through nodes that import evaluates."""
    producers: dict[str, list[NodeProto]] = {}
    pending: list[str] = []
    for node in all_nodes(graph):
        if node.op_type == "If" and node.domain in ("", "ai.onnx"):
            pending.append(node.input[0])
        elif node.op_type in FOLDABLE:
            for name in node.output:
                producers.setdefault(name, []).append(node)
    names: set[str] = set()
    while pending:
        name = pending.pop()
        if name and name not in names:
            names.add(name)
            pending += (read for node in producers.get(name, ()) for read in node.input)
    return names


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node and its subgraphs read and write; subgraphs define none of `names` themselves."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for _, graph in subgraphs(node):
        for info in graph.output:
            info.name = names.get(info.name, info.name)
        for inner in graph.node:
            _rename(inner, names)


def chosen_branch(node: NodeProto, condition: bool, taken: set[str]) -> list[NodeProto]:
    """
    Nodes that do what an If with a known condition does, initializers of the branch as Constant nodes.

    taken  names in use anywhere in the model; values of the branch get new ones, which are added
    """
    wanted = "then_branch" if condition else "else_branch"
    (branch,) = (graph for name, graph in subgraphs(node) if name == wanted)
    prefix = next((name for name in node.output if name), node.name)
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in branch.initializer]
    nodes += [
        helper.make_node("Constant", [], [sparse.values.name], sparse_value=sparse) for sparse in branch.sparse_initializer
    ]
    for inner in branch.node:
        copy = NodeProto()
        copy.CopyFrom(inner)
        nodes.append(copy)
    names: dict[str, str] = {}
    for name in (name for inner in nodes for name in inner.output if name):
        fresh = f"{prefix}/{name}"
        while fresh in taken:
            fresh += "~"
        taken.add(fresh)
        names[name] = fresh
    for inner in nodes:
        _rename(inner, names)
    for result, info in zip(node.output, branch.output, strict=True):
        if result:
            value = names.get(info.name, info.name)
            nodes.append(helper.make_node("Identity", [value], [result], name=f"{node.name}/{wanted}/{result}"))
    return nodes
