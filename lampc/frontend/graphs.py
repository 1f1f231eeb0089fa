"""
Is it a graph: every name defined once and before its use, no cycles, bounded size.

Nodes that are merely listed in the wrong order are sorted. Source: onnx.md §6 (14 to 19, 25, 47, 50).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, MutableSequence, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from lampc.errors import ModelError, printable
from lampc.frontend.limits import Limits, raise_it
from lampc.frontend.names import node_label, subgraphs


def check_size(model: ModelProto, limits: Limits) -> None:
    """Raises ModelError E-NESTING or E-NODE-BUDGET if the graphs and functions are nested too deep or have too many nodes."""
    roots: list[Iterable[NodeProto]] = [model.graph.node, *(function.node for function in model.functions)]
    stack: list[tuple[Iterable[NodeProto], int]] = [(nodes, 0) for nodes in roots]
    total = 0
    while stack:
        nodes, depth = stack.pop()
        if depth > limits.nesting:
            raise ModelError(
                f"subgraphs are nested deeper than {limits.nesting}; flatten the model, or {raise_it('nesting')}",
                code="E-NESTING",
            )
        for node in nodes:
            total += 1
            if total > limits.nodes:
                raise ModelError(f"it has more than {limits.nodes} nodes; {raise_it('nodes')}", code="E-NODE-BUDGET")
            stack.extend((graph.node, depth + 1) for _, graph in subgraphs(node))


def free_names(node: NodeProto) -> set[str]:
    """Names a node reads from the graph it stands in: its inputs and what its subgraphs do not define themselves."""
    used = {name for name in node.input if name}
    for _, graph in subgraphs(node):
        used |= _free_names_of(graph)
    return used


def _defined_outside_nodes(graph: GraphProto) -> Iterator[str]:
    yield from (info.name for info in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)


def _free_names_of(graph: GraphProto) -> set[str]:
    used = {info.name for info in graph.output if info.name}
    defined = set(_defined_outside_nodes(graph))
    for node in graph.node:
        used |= free_names(node)
        defined.update(node.output)
    return used - defined


def _producers(nodes: Sequence[NodeProto], given: set[str]) -> dict[str, int]:
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producers:
                first = node_label(nodes[producers[name]])
                raise ModelError(
                    f"'{printable(name)}' is already the output of {first}; every value has one producer",
                    where=node_label(node),
                    code="E-GRAPH-SSA",
                )
            if name in given:
                raise ModelError(
                    f"its output '{printable(name)}' is also an input or initializer of the graph; rename one",
                    where=node_label(node),
                    code="E-GRAPH-SSA",
                )
            producers[name] = index
    return producers


def _cycle(needs: Sequence[set[int]], left: set[int]) -> list[int]:
    """One cycle among the nodes `left`, each of which needs another of them."""
    path: list[int] = []
    seen: dict[int, int] = {}
    current = min(left)
    while current not in seen:
        seen[current] = len(path)
        path.append(current)
        current = min(needs[current] & left)
    return path[seen[current] :]


def _order(nodes: Sequence[NodeProto], producers: dict[str, int]) -> list[int] | None:
    """An order in which every node follows what it needs, close to the present one; None if it is the present one."""
    needs = [{producers[name] for name in free_names(node) if name in producers} for node in nodes]
    if all(not need or max(need) < index for index, need in enumerate(needs)):
        return None
    users: list[list[int]] = [[] for _ in nodes]
    for index, need in enumerate(needs):
        for producer in need:
            users[producer].append(index)
    missing = [len(need) for need in needs]
    ready = [index for index, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        cycle = _cycle(needs, {index for index, count in enumerate(missing) if count})
        names = " needs ".join(node_label(nodes[index]) for index in (*cycle[:8], cycle[0]))
        raise ModelError(f"the nodes form a cycle: {names}", code="E-GRAPH-CYCLE")
    return order


def _sort(nodes: MutableSequence[NodeProto], producers: dict[str, int]) -> bool:
    order = _order(nodes, producers)
    if order is None:
        return False
    copies: list[NodeProto] = []
    for index in order:
        copy = NodeProto()
        copy.CopyFrom(nodes[index])
        copies.append(copy)
    del nodes[:]
    nodes.extend(copies)
    return True


def _check_given(graph: GraphProto, visible: set[str], where: str | None) -> set[str]:
    inputs: set[str] = set()
    initializers: set[str] = set()
    groups = (
        ("input", (info.name for info in graph.input), inputs),
        ("initializer", (tensor.name for tensor in graph.initializer), initializers),
        ("initializer", (sparse.values.name for sparse in graph.sparse_initializer), initializers),
    )
    for what, names, seen in groups:
        for name in names:
            if not name:
                raise ModelError(f"an {what} of the graph has no name", where=where, code="E-GRAPH-SSA")
            if name in seen:
                raise ModelError(f"the graph has two {what}s named '{printable(name)}'", where=where, code="E-GRAPH-SSA")
            if name in visible:
                raise ModelError(
                    f"subgraph {what} '{printable(name)}' hides a value of the graph around it; rename it",
                    where=where,
                    code="E-GRAPH-SSA",
                )
            seen.add(name)
    # An initializer may give a graph input its default value.
    return inputs | initializers


def _check_nodes(
    nodes: MutableSequence[NodeProto], outputs: Iterable[str], given: set[str], visible: set[str], where: str | None
) -> bool:
    producers = _producers(nodes, given)
    sorted_now = _sort(nodes, producers)
    known = visible | given
    for node in nodes:
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"its input '{printable(name)}' is produced by nothing; the model is cut or broken",
                    where=node_label(node),
                    code="E-GRAPH-UNDEFINED",
                )
        for attribute, graph in subgraphs(node):
            inner = f"{node_label(node)} graph '{printable(attribute)}'"
            sorted_now |= _check_graph(graph, known, inner)
        for name in node.output:
            if name and name in visible:
                raise ModelError(
                    f"its output '{printable(name)}' hides a value of the graph around it; rename it",
                    where=node_label(node),
                    code="E-GRAPH-SSA",
                )
            if name:
                known.add(name)
    for name in outputs:
        if name not in known:
            raise ModelError(
                f"graph output '{printable(name)}' is produced by nothing; remove it or the model is cut",
                where=where,
                code="E-GRAPH-OUTPUT",
            )
    return sorted_now


def _check_graph(graph: GraphProto, visible: set[str], where: str | None) -> bool:
    given = _check_given(graph, visible, where)
    return _check_nodes(graph.node, [info.name for info in graph.output], given, visible, where)


def check_graph(graph: GraphProto) -> bool:
    """
    Check names, order and cycles of a graph and its subgraphs, sorting nodes where needed; true if any were sorted.

    Raises ModelError: E-GRAPH-SSA, E-GRAPH-UNDEFINED, E-GRAPH-OUTPUT, E-GRAPH-CYCLE.
    """
    return _check_graph(graph, set(), None)


def check_function(function: FunctionProto) -> None:
    """Raises what `check_graph` raises, for the body of a local function."""
    where = f"function '{printable(function.name)}'"
    given: set[str] = set()
    for name in function.input:
        if name in given:
            raise ModelError(f"it has two inputs named '{printable(name)}'", where=where, code="E-GRAPH-SSA")
        given.add(name)
    _check_nodes(function.node, function.output, given, set(), where)
