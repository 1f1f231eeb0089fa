"""Run one attention call after another on a target, and keep what was counted."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.utils.hints import isa

from lampc.dialects.onnx import numpy_dtype
from lampc.dialects.onnx_attributes import Array
from lampc.numerics.statistics import Statistics
from lampc.targets.numpy.run import NumpyTarget


@dataclass
class AttentionRecord:
    """
    One attention call of a run.

    node         the ONNX node it came from
    function     the function that equal attentions share
    statistics   docs/lampattention.md section 6
    extra        what the target adds to the report
    """

    node: str
    function: str
    statistics: Statistics
    extra: dict[str, object] = field(default_factory=dict[str, object])


class AttentionEngine(Protocol):
    """What computes the attentions of a model: called once for each, in execution order."""

    records: list[AttentionRecord]

    def __call__(self, function: str, index: int, node: str, operands: list[Array]) -> Array: ...


class NumpyEngine:
    """Attentions on the numpy target."""

    def __init__(self, module: ModuleOp):
        self._target = NumpyTarget(module)
        self._types = result_types(module)
        self.records: list[AttentionRecord] = []

    def __call__(self, function: str, index: int, node: str, operands: list[Array]) -> Array:
        result = self._target.run(function, operands)
        self.records.append(AttentionRecord(node, function, result.statistics))
        return result.output.astype(self._types[function])


def result_types(module: ModuleOp) -> dict[str, np.dtype[Any]]:
    """What each attention function gives back: targets compute in FP32, the model goes on in its own type."""
    types: dict[str, np.dtype[Any]] = {}
    for function in module.body.ops:
        if isinstance(function, FuncOp):
            (output,) = function.function_type.outputs.data
            if isa(output, TensorType):
                types[function.sym_name.data] = numpy_dtype(output.element_type)
    return types
