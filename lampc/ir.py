"""One helper for passes: insert ops at a place, every one with the location of what it came from."""

from typing import TypeVar

from xdsl.builder import Builder
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint

OpT = TypeVar("OpT", bound=Operation)


class Emitter:
    """
    Insert ops one after another, each at `source`'s location: xDSL does not carry locations over by itself.
    """

    def __init__(self, source: Operation, at: InsertPoint):
        self._source = source
        self._builder = Builder(at)

    def add(self, op: OpT, *hints: str) -> OpT:
        """Insert `op`; `hints` name its results in printed IR."""
        op.location = self._source.location
        for result, hint in zip(op.results, hints, strict=False):
            result.name_hint = hint
        return self._builder.insert(op)

    def into(self, at: InsertPoint) -> "Emitter":
        """An emitter for another place with the same location."""
        return Emitter(self._source, at)


def tensor_shape(value: SSAValue[Attribute]) -> tuple[int, ...]:
    """The static shape of a tensor value."""
    return SSAValue.get(value, type=TensorType).type.get_shape()
