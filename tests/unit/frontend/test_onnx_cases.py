"""Every node test of ONNX for attention and its neighbours imports, plain and as its function body."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType

from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from tests.unit.frontend.builders import load, onnx_node_cases

FAMILIES = ("attention", "rotary", "rms_norm", "softmax", "tensor_scatter", "einsum", "causal_conv", "swiglu")


def test_cases_import_with_the_shapes_they_compute() -> None:
    seen = 0
    for case in onnx_node_cases():
        if not any(family in case.name for family in FAMILIES):
            continue
        proto: ModelProto = case.model
        inputs, outputs = case.data_sets[0]
        made = load(proto)
        shapes = {info.name: tuple(array.shape) for info, array in zip(proto.graph.input, inputs, strict=True)}
        module = import_model(made, bind_dims(made, shapes=shapes))
        module.verify()
        seen += 1
        (function,) = module.ops
        end: Any = function.regions[0].block.last_op
        for type_, array in zip(end.operand_types, outputs, strict=True):
            assert isinstance(type_, TensorType), case.name
            sizes = zip(type_.get_shape(), array.shape, strict=True)
            assert all(size in (DYNAMIC_INDEX, real) for size, real in sizes), case.name
    assert seen, "ONNX has no such cases any more"
