"""Evaluating constants: ONNX's own node tests, casts, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from lampc.dialects.onnx import schema_of
from lampc.dialects.onnx_attributes import Array
from lampc.frontend.attributes import python_attributes
from lampc.frontend.fold import FOLDABLE, CannotFold, fold
from lampc.frontend.limits import Limits
from tests.unit.frontend.builders import model, node, onnx_node_cases, value

WITHOUT_CASES = {"Cast", "CastLike"}
"""Their cases are about types that are not folded, or have two nodes; `test_casts` has some."""


def onnx_cases() -> Iterator[Any]:
    """ONNX's tests of single nodes whose inputs and outputs are tensors."""
    for case in onnx_node_cases():
        arrays = [array for group in case.data_sets[0] for array in group]
        graph = case.model.graph
        if (
            len(graph.node) == 1
            and graph.node[0].op_type in FOLDABLE
            and all(isinstance(array, (np.ndarray, np.generic)) for array in arrays)
        ):
            yield case


def test_onnx_node_cases() -> None:
    done: dict[str, int] = {}
    refused = 0
    for case in onnx_cases():
        made: ModelProto = case.model
        single = made.graph.node[0]
        inputs, outputs = ([np.asarray(array) for array in group] for group in case.data_sets[0])
        named = dict(zip((info.name for info in made.graph.input), inputs, strict=True))
        schema = schema_of(single.op_type, "", made.opset_import[0].version)
        assert schema is not None
        arrays = [named.get(name) for name in single.input]
        attributes = python_attributes(single, Limits())
        try:
            results = fold(single.op_type, schema.since_version, arrays, attributes, len(single.output))
        except CannotFold:
            refused += 1
            continue
        done[single.op_type] = done.get(single.op_type, 0) + 1
        for result, expected in zip(results, outputs, strict=True):
            assert result.dtype == expected.dtype, case.name
            np.testing.assert_allclose(result, expected, rtol=1e-6, err_msg=case.name)
    assert set(done) == FOLDABLE - WITHOUT_CASES
    assert refused < sum(done.values()) / 10


def reference(op_type: str, arrays: list[Array], opset: int = 23, **attributes: Any) -> Array:
    """The result of one node by onnx's reference evaluator."""
    names = [f"x{index}" for index in range(len(arrays))]
    inputs = [value(name, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for name, a in zip(names, arrays, strict=True)]
    made = model([node(op_type, names, ["y"], **attributes)], inputs, [value("y", None, 0)], opset=opset)
    evaluator: Any = ReferenceEvaluator(made)
    return evaluator.run(None, dict(zip(names, arrays, strict=True)))[0]


NUMBERS = np.array([-2.7, -0.5, 0.0, 0.5, 1.5, 2.5, 100.0], np.float32)


@pytest.mark.parametrize(
    "target", [TensorProto.INT64, TensorProto.INT8, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.DOUBLE]
)
def test_casts(target: int) -> None:
    (result,) = fold("Cast", 13, [NUMBERS], {"to": target}, 1)
    expected = reference("Cast", [NUMBERS], to=target)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes"),
    [
        ("Cast", [np.array([1e10], np.float32)], {"to": TensorProto.INT32}),
        ("Cast", [np.array([np.nan], np.float32)], {"to": TensorProto.INT64}),
        ("Cast", [NUMBERS], {"to": TensorProto.FLOAT8E4M3FN}),
        ("Cast", [NUMBERS], {"to": TensorProto.STRING}),
        ("Div", [np.array([1, 2]), np.array([1, 0])], {}),
        ("Mod", [np.array([1, 2]), np.array([1, 0])], {}),
        ("Gather", [np.arange(3), np.array([3])], {}),
        ("Reshape", [np.arange(3), np.array([2, 2])], {}),
        ("Range", [np.array(0.0), np.array(np.inf), np.array(1.0)], {}),
        ("Range", [np.array(0), np.array(5), np.array(0)], {}),
        ("Add", [np.arange(3), np.arange(4)], {}),
        ("Add", [np.arange(3), None], {}),
        ("ReduceMax", [np.empty(0, np.float32)], {}),
    ],
)
def test_what_is_undefined_is_not_folded(op_type: str, arrays: list[Array | None], attributes: dict[str, Any]) -> None:
    with pytest.raises(CannotFold):
        fold(op_type, 13, arrays, attributes, 1)


def test_integers_divide_toward_zero() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    assert fold("Div", 14, [a, b], {}, 1)[0].tolist() == [3, -3, -3, 3]


@pytest.mark.parametrize("axes", [None, [0], [-1], [0, 1]])
def test_axes_by_attribute_and_by_input(axes: list[int] | None) -> None:
    data = np.arange(6, dtype=np.int64).reshape(2, 3)
    old = fold("ReduceSum", 1, [data], {} if axes is None else {"axes": axes}, 1)
    new = fold("ReduceSum", 13, [data, None if axes is None else np.array(axes)], {}, 1)
    np.testing.assert_array_equal(old[0], new[0])


def test_old_broadcasting_is_left_alone() -> None:
    with pytest.raises(CannotFold):
        fold("Add", 6, [np.arange(3), np.arange(3)], {"broadcast": 1}, 1)
