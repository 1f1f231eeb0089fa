"""Run one attention call after another on a target, and keep what was counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from lampc.dialects.onnx_attributes import Array
from lampc.numerics.statistics import Statistics
from lampc.targets.numpy.run import NumpyTarget


@dataclass
class AttentionRecord:
    """
    One attention call of a run.

    node         the ONNX node it came from
    function     the function that equal attentions share
    shape        batch, query heads, key-value heads, queries, keys, head size, value size
    statistics   docs/lampattention.md section 6
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
        self.records: list[AttentionRecord] = []

    def __call__(self, function: str, index: int, node: str, operands: list[Array]) -> Array:
        result = self._target.run(function, operands)
        self.records.append(AttentionRecord(node, function, result.statistics))
        return result.output.astype(model_type(operands))


def model_type(operands: Sequence[Array]) -> npt.DTypeLike:
    """An attention gives its query's type back."""
    return operands[0].dtype if operands[0].dtype != np.bool_ else np.float32
