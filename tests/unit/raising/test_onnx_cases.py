"""ONNX's own test cases of Attention, as operator and expanded: what is raised gives the expected outputs."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from lampc.frontend.model import load_bytes
from tests.models.whole import raised
from tests.unit.frontend.builders import onnx_node_cases

REASONS = {
    "its result is also used by",
}


@cache
def _cases() -> dict[str, Any]:
    return {case.name: case for case in onnx_node_cases() if case.name.startswith("test_attention")}


@pytest.mark.parametrize("name", _cases())
def test_case(name: str):
    case = _cases()[name]
    (data,) = case.data_sets
    inputs = {info.name: np.asarray(array) for info, array in zip(case.model.graph.input, data[0], strict=True)}
    expected = {info.name: np.asarray(array) for info, array in zip(case.model.graph.output, data[1], strict=True)}
    result = raised(load_bytes(case.model.SerializeToString(), name), inputs)
    if not result.attentions:
        assert len(expected) > 1  # somebody wants the scores or the probabilities
        assert any(reason in text for text in result.rejected.values() for reason in REASONS)
        if name.endswith("_expanded"):  # only the probabilities themselves: scores may be read by others
            assert all("SoftmaxOutSafe': its result is also used by" in text for text in result.rejected.values())
        return
    assert result.rejected == {} and len(result.attentions) == 1
    half = any(array.dtype.itemsize == 2 for array in (*inputs.values(), *expected.values()))
    for difference in result.against(inputs, expected):
        assert difference.within(2e-2 if half else 1e-5), difference
