"""
Local functions: checked, counted, then inlined.

The count comes first: 26 functions that each call the previous one twice are 3 kB on disk and 67 million nodes when inlined.
Source: onnx.md §6 (20 to 23).
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import FunctionProto, ModelProto, NodeProto, inliner

from lampc.dialects.onnx import schema_of
from lampc.errors import ModelError, printable
from lampc.frontend.graphs import check_function
from lampc.frontend.limits import Limits, raise_it
from lampc.frontend.names import all_nodes, node_label, subgraphs

_ANY_VERSION = 2**31 - 1
_Key = tuple[str, str, str]


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _key(function: FunctionProto) -> _Key:
    return _domain(function.domain), function.name, function.overload


def _called(node: NodeProto) -> _Key:
    return _domain(node.domain), node.op_type, node.overload


def _nodes_of(function: FunctionProto) -> Iterable[NodeProto]:
    for node in function.node:
        yield node
        for _, graph in subgraphs(node):
            yield from all_nodes(graph)


def _label(function: FunctionProto) -> str:
    domain = f"{function.domain}::" if function.domain else ""
    return f"function '{printable(domain + function.name)}'"


def _calls(nodes: Iterable[NodeProto], functions: dict[_Key, FunctionProto]) -> list[_Key]:
    calls: list[_Key] = []
    for node in nodes:
        key = _called(node)
        if key not in functions:
            continue
        function = functions[key]
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ModelError(
                f"it has {len(node.input)} inputs and {len(node.output)} outputs, the function takes {len(function.input)} and "
                f"gives {len(function.output)}",
                where=node_label(node),
                code="E-OP-ARITY",
            )
        calls.append(key)
    return calls


def _expanded_sizes(functions: dict[_Key, FunctionProto], limits: Limits) -> dict[_Key, int]:
    """Nodes of each function once everything in it is inlined; callees first, so no recursion in Python either."""
    calls = {key: _calls(_nodes_of(function), functions) for key, function in functions.items()}
    sizes: dict[_Key, int] = {}
    for start in functions:
        path: list[_Key] = []
        stack: list[tuple[_Key, bool]] = [(start, False)]
        while stack:
            key, done = stack.pop()
            if done:
                path.pop()
                own = sum(1 for _ in _nodes_of(functions[key])) - len(calls[key])
                sizes[key] = min(own + sum(sizes[callee] for callee in calls[key]), limits.nodes + 1)
            elif key in path:
                raise ModelError(
                    "it calls itself; ONNX forbids recursion", where=_label(functions[key]), code="E-FUNC-RECURSION"
                )
            elif key not in sizes:
                path.append(key)
                stack.append((key, True))
                stack.extend((callee, False) for callee in dict.fromkeys(calls[key]))
    return sizes


def _check_versions(function: FunctionProto, imports: dict[str, int]) -> None:
    """A body written for another version of an operator would change its meaning when inlined."""
    own = {_domain(opset.domain): opset.version for opset in function.opset_import}
    for node in _nodes_of(function):
        domain = _domain(node.domain)
        if domain not in own or domain not in imports or own[domain] == imports[domain]:
            continue
        mine = schema_of(node.op_type, domain, own[domain])
        models = schema_of(node.op_type, domain, imports[domain])
        if mine is not None and (models is None or mine.since_version != models.since_version):
            raise ModelError(
                f"{_label(function)} imports opset {own[domain]} and the model {imports[domain]}, where {node.op_type} "
                "differs; convert the model to one opset",
                where=node_label(node),
                code="E-FUNC-OPSET",
            )


def inline_functions(model: ModelProto, limits: Limits) -> ModelProto:
    """
    The model without local functions.

    Raises ModelError: E-FUNC-SHADOW (a function with a standard operator's name), E-FUNC-DUPLICATE, E-FUNC-RECURSION,
    E-FUNC-BUDGET, E-FUNC-OPSET, E-OP-ARITY, and what `check_function` raises.
    """
    if not model.functions:
        return model
    functions: dict[_Key, FunctionProto] = {}
    for function in model.functions:
        key = _key(function)
        if key in functions:
            raise ModelError("it is defined twice", where=_label(function), code="E-FUNC-DUPLICATE")
        if schema_of(function.name, key[0], _ANY_VERSION) is not None:
            raise ModelError(
                "it has the name of a standard operator, and programs disagree which of the two runs; rename it",
                where=_label(function),
                code="E-FUNC-SHADOW",
            )
        functions[key] = function
    imports = {_domain(opset.domain): opset.version for opset in model.opset_import}
    sizes = _expanded_sizes(functions, limits)
    main_nodes = list(all_nodes(model.graph))
    total = len(main_nodes) + sum(sizes[key] for key in _calls(main_nodes, functions))
    if total > limits.nodes:
        raise ModelError(
            f"its functions inline to more than {limits.nodes} nodes; {raise_it('nodes')}",
            code="E-FUNC-BUDGET",
        )
    for function in functions.values():
        check_function(function)
        _check_versions(function, imports)
    missing = {
        _domain(opset.domain): opset.version
        for function in functions.values()
        for opset in function.opset_import
        if _domain(opset.domain) not in imports
    }
    try:
        inlined = inliner.inline_local_functions(model)
    except Exception as error:
        raise ModelError(
            f"its functions cannot be inlined: {printable(str(error), 200)}; inline them before export", code="E-FUNC-INLINE"
        ) from error
    present = {_domain(opset.domain) for opset in inlined.opset_import}
    for domain, version in missing.items():
        if domain not in present:
            inlined.opset_import.add(domain=domain, version=version)
    return inlined
