"""Nodes that the host runs beside the model's own: joining a cache, combining masks."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, f32, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from lampc.dialects.onnx import ConstantOp, NodeOp, onnx_dtype, schema_of
from lampc.dialects.onnx_attributes import Array
from lampc.passes.raising.graph import Refusal, element_of, shape_of

OpT = TypeVar("OpT", bound=Operation)


class HostNodes:
    """
    The ops of one attention in the making, not in the module yet, all with the anchor's location.

    Their ONNX names begin with `lampc/`, which no importer writes for the model's own.
    """

    def __init__(self, anchor: NodeOp, opset: int):
        self.anchor = anchor
        self.opset = opset
        self.ops: list[Operation] = []
        self.stem = next((name.data for name in anchor.names if name.data), "attention")

    def add(self, op: OpT) -> OpT:
        op.location = self.anchor.location
        self.ops.append(op)
        return op

    def discard(self) -> None:
        """Forget the ops, so that nothing uses the model's values on their account."""
        for op in reversed(self.ops):
            op.erase()
        self.ops.clear()

    def commit(self, results: Sequence[tuple[SSAValue, SSAValue]]) -> None:
        """Put the ops before the anchor and let everybody use the new results, the second of each pair."""
        Rewriter.insert_op(self.ops, InsertPoint.before(self.anchor))
        for old, new in results:
            new.name_hint = old.name_hint or None
            old.replace_all_uses_with(new)

    def constant(self, values: Array) -> SSAValue:
        return self.add(ConstantOp(self._fresh(), values)).result

    def integers(self, *values: int) -> SSAValue:
        """A constant int64 vector."""
        return self.constant(np.array(values, np.int64))

    def integer(self, value: int) -> SSAValue:
        """A constant int64 scalar."""
        return self.constant(np.array(value, np.int64))

    def node(
        self,
        op_type: str,
        operands: Sequence[SSAValue],
        element: Attribute | None = None,
        shape: Sequence[int] | None = None,
        *,
        name: str | None = None,
        **attributes: int | Sequence[int],
    ) -> SSAValue:
        """
        A node of ai.onnx with one result; element type and shape are by default the first operand's and the broadcast one.

        Raises Refusal if the model's opset has no such operator.
        """
        schema = schema_of(op_type, "", self.opset)
        if schema is None:
            raise Refusal(f"the mask or cache needs {op_type}, which opset {self.opset} has not", self.anchor)
        if shape is None:
            shape = np.broadcast_shapes(*(shape_of(value) for value in operands))
        type_ = TensorType(element_of(operands[0]) if element is None else element, shape)
        written: dict[str, Attribute] = {
            key: IntegerAttr(value, i64) if isinstance(value, int) else DenseArrayBase.from_list(i64, list(value))
            for key, value in attributes.items()
        }
        node = NodeOp(
            op_type,
            operands,
            [type_],
            names=[name or self._fresh()],
            version=schema.since_version,
            attributes=written,
        )
        return self.add(node).results[0]

    def reshape(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        return self.node("Reshape", [value, self.integers(*shape)], shape=shape)

    def steps(self, count: int) -> SSAValue:
        """0 to count - 1, int64."""
        return self.node("Range", [self.integer(n) for n in (0, count, 1)], shape=(count,))

    def zeros(self, shape: Sequence[int], element: Attribute, name: str | None = None) -> SSAValue:
        """Zeros, made when the model runs."""
        zeros = self.node("ConstantOfShape", [self.integers(*shape)], f32, shape, name=None if element != f32 else name)
        return zeros if element == f32 else self.node("Cast", [zeros], element, name=name, to=onnx_dtype(element))

    def limited(self, value: SSAValue, most: int, what: str) -> SSAValue:
        """
        int64 `value`; where one is not 0 to `most`, onnxruntime fails with an error that calls it `what`.

        ONNX has no assertion, but looking up an index that is not there is an error.
        """
        low = self.node("Less", [value, self.integer(0)], i1)
        index = self.node("Where", [low, self.integer(most + 1), value], i64)
        table = self.steps(most + 1)
        return self.node("Gather", [table, index], shape=shape_of(value), name=f"{self._fresh()}/{what} is not 0 to {most}")

    def _fresh(self) -> str:
        return f"lampc/{self.stem}/{len(self.ops)}"
