"""Tiny models for the tests of the frontend."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp

from lampc.dialects.onnx import NodeOp
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.limits import Limits
from lampc.frontend.model import Model, load_bytes

FLOAT = TensorProto.FLOAT
HEADS = (1, 2, 4, 8)
"""Shape of Q, K and V in most tests: [batch, heads, length, size]."""


def value(name: str, shape: Sequence[int | str | None] | None = HEADS, dtype: int = FLOAT) -> ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, array: npt.ArrayLike, dtype: Any = None) -> TensorProto:
    """An initializer with raw data."""
    return numpy_helper.from_array(np.array(array, dtype), name)


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> NodeProto:
    """A node, named after its first output."""
    return helper.make_node(op_type, inputs, outputs, name=f"node_{outputs[0]}", domain=domain, **attributes)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
    *,
    opset: int = 23,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[FunctionProto] = (),
    values: Sequence[ValueInfoProto] = (),
) -> ModelProto:
    """A model of IR version 10."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers), value_info=list(values))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def attention(
    extra_inputs: Sequence[ValueInfoProto] = (),
    *,
    q: Sequence[int | str | None] | None = HEADS,
    k: Sequence[int | str | None] | None = HEADS,
    v: Sequence[int | str | None] | None = HEADS,
    outputs: int = 1,
    opset: int = 23,
    names: Sequence[str] | None = None,
    **attributes: Any,
) -> ModelProto:
    """One Attention node; `names` are all its inputs, by default Q, K, V and the extra ones."""
    inputs = [value("Q", q), value("K", k), value("V", v), *extra_inputs]
    results = ["Y", "present_key", "present_value", "qk"][:outputs]
    made = node("Attention", names or [info.name for info in inputs], results, **attributes)
    return model([made], inputs, [value(name, None) for name in results], opset=opset)


def load(proto: ModelProto, limits: Limits | None = None) -> Model:
    """`load_bytes` on a model built in memory."""
    return load_bytes(proto.SerializeToString(), "test.onnx", limits=limits)


def imported(proto: ModelProto, dims: Mapping[str, int] | None = None, limits: Limits | None = None) -> tuple[Model, ModuleOp]:
    """Loaded, bound, imported and verified."""
    loaded = load(proto, limits)
    module = import_model(loaded, bind_dims(loaded, dims))
    module.verify()
    return loaded, module


@cache
def onnx_node_cases() -> tuple[Any, ...]:
    """
    ONNX's own tests of operators: model, inputs, outputs. They take seconds to make.

    The one place that collects them: what onnx collects first in a process decides what it finds later.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases: list[Any] = collect_testcases(None)  # pyright: ignore[reportUnknownVariableType, reportArgumentType]
    return tuple(cases)


def nodes_of(module: ModuleOp) -> list[NodeOp]:
    """Every onnx.node, nested ones included, in order."""
    return [op for op in module.walk() if isinstance(op, NodeOp)]
