"""Helpers for passes: insert ops with the location of what they came from, shapes, names of graph inputs."""

from typing import TypeVar

from xdsl.builder import Builder
from xdsl.dialects.builtin import DictionaryAttr, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
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


def argument_name(function: FuncOp, index: int) -> str | None:
    """The ONNX name of a graph input (argument attribute `onnx.name`)."""
    attributes = function.arg_attrs.data[index] if function.arg_attrs is not None else None
    name = attributes.data.get("onnx.name") if isinstance(attributes, DictionaryAttr) else None
    return name.data if isinstance(name, StringAttr) else None
