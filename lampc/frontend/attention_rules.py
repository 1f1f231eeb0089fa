"""
What the standard `Attention` (versions 23, 24 and 25) takes and gives, checked at import where onnx.checker looks at nothing.

Each disagreement between the reference, the function body and onnxruntime is decided as onnx.md §1.4 says; the semantics are
those of onnx 1.23. Nodes written for version 24 are accepted under version 25, which came to opset 25 after it had shipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto, TypeProto

from lampc.errors import ModelError
from lampc.frontend.types import Shape, dtype_of, shape_of, tensor_type

_PRECISIONS = (0, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_MOST_HEADS = 2**20
_NAMES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def _differ(*sizes: int | None) -> bool:
    known = {size for size in sizes if size is not None}
    return len(known) > 1


@dataclass(frozen=True)
class _Operand:
    """One of Q, K, V, as [batch, heads, length, size]; None where a size is not known."""

    batch: int | None
    heads: int | None
    length: int | None
    size: int | None


class AttentionRules:
    """
    The checks of one node.

    where       what errors call the node
    version     23, 24 or 25
    attributes  Python values
    types       types of the inputs, None for an absent or unknown one
    present     which of the inputs are there
    outputs     which of the outputs are there
    """

    def __init__(
        self,
        where: str,
        version: int,
        attributes: Mapping[str, Any],
        types: Sequence[TypeProto | None],
        present: Sequence[bool],
        outputs: Sequence[bool],
    ):
        self.where = where
        self.version = version
        self.attributes = attributes
        padding = len(_NAMES) - len(types)
        self.types = [*types, *[None] * padding]
        self.present = [*present, *[False] * padding]
        self.outputs = [*outputs, *[False] * (4 - len(outputs))]
        self.warnings: list[str] = []

    def _error(self, message: str, code: str) -> ModelError:
        return ModelError(message, where=self.where, code=code)

    def _shape(self, index: int) -> Shape:
        return shape_of(self.types[index])

    def _text(self, index: int) -> str:
        shape = self._shape(index)
        return f"{_NAMES[index]} " + str(["?" if size is None else size for size in shape or ()]).replace("'", "")

    def check_attributes(self) -> None:
        """Raises ModelError E-ATTR-VALUE."""
        values = self.attributes
        scale = values.get("scale")
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise self._error(f"scale is {scale}; it must be a positive number", "E-ATTR-VALUE")
        softcap = values.get("softcap", 0.0)
        if not (math.isfinite(softcap) and softcap >= 0):
            raise self._error(f"softcap is {softcap}; it must be 0 (off) or a positive number", "E-ATTR-VALUE")
        for name, allowed in (("is_causal", (0, 1)), ("qk_matmul_output_mode", (0, 1, 2, 3))):
            if values.get(name, 0) not in allowed:
                raise self._error(f"{name} is {values[name]}; it must be one of {list(allowed)}", "E-ATTR-VALUE")
        if "softmax_precision" in values and values["softmax_precision"] not in _PRECISIONS[1:]:
            raise self._error(
                f"softmax_precision is {values['softmax_precision']}; it must be a floating-point type: 1, 10, 11 or 16",
                "E-ATTR-VALUE",
            )
        for name in ("q_num_heads", "kv_num_heads"):
            if name in values and not 0 < values[name] <= _MOST_HEADS:
                raise self._error(f"{name} is {values[name]}; it must be 1 to {_MOST_HEADS}", "E-ATTR-VALUE")
        for name in ("left_window_size", "right_window_size"):
            if values.get(name, -1) < -1:
                raise self._error(f"{name} is {values[name]}; it must be -1 (off) or a number of keys", "E-ATTR-VALUE")

    def _operand(self, index: int) -> _Operand | None:
        """Q, K or V in canonical form; None if its rank is not known."""
        shape = self._shape(index)
        if shape is None:
            return None
        name = "q_num_heads" if index == 0 else "kv_num_heads"
        heads: int | None = self.attributes.get(name)
        if len(shape) == 4:
            if _differ(heads, shape[1]):
                raise self._error(
                    f"{name} is {heads}, but {self._text(index)} has {shape[1]} heads; remove the attribute", "E-ATTN-HEADS"
                )
            return _Operand(*shape)
        if len(shape) != 3:
            raise self._error(f"{self._text(index)} has rank {len(shape)}; Attention takes 3 or 4", "E-ATTN-SHAPE")
        if heads is None:
            raise self._error(f"{self._text(index)} has rank 3, which needs the attribute {name}", "E-ATTN-HEADS")
        batch, length, hidden = shape
        if hidden is not None and hidden % heads:
            raise self._error(f"the last axis of {self._text(index)} is not divisible by {name} = {heads}", "E-ATTN-HEADS")
        return _Operand(batch, heads, length, None if hidden is None else hidden // heads)

    def _check_operands(self, q: _Operand, k: _Operand, v: _Operand) -> None:
        ranks = {len(self._shape(index) or ()) for index in range(3)}
        if len(ranks) > 1:
            raise self._error("Q, K and V must all have rank 3 or all rank 4", "E-ATTN-SHAPE")
        shown = ", ".join(self._text(index) for index in range(3))
        if _differ(q.batch, k.batch, v.batch):
            raise self._error(f"the batch sizes of {shown} differ; expand K and V", "E-ATTN-SHAPE")
        if _differ(q.size, k.size):
            raise self._error(f"Q has head size {q.size} and K {k.size} ({shown}); they must be equal", "E-ATTN-SHAPE")
        if _differ(k.heads, v.heads):
            raise self._error(f"K has {k.heads} heads and V {v.heads} ({shown}); they must be equal", "E-ATTN-SHAPE")
        if _differ(k.length, v.length):
            raise self._error(f"K has {k.length} positions and V {v.length} ({shown}); they must be equal", "E-ATTN-SHAPE")
        if q.heads is not None and k.heads is not None and (not k.heads or q.heads % k.heads):
            raise self._error(f"{q.heads} query heads cannot share {k.heads} key heads evenly", "E-ATTN-HEADS")
        if q.size == 0:
            raise self._error("the head size is 0", "E-ATTN-SHAPE")

    def _past_length(self, k: _Operand, v: _Operand) -> int | None:
        """Positions in the cache; 0 without one."""
        if self.present[4] != self.present[5]:
            raise self._error("it has one of past_key and past_value; give both or none", "E-ATTN-CACHE")
        if not self.present[4]:
            return 0
        past_key, past_value = self._shape(4), self._shape(5)
        for index, past, new in ((4, past_key, k), (5, past_value, v)):
            if past is None:
                continue
            if len(past) != 4:
                raise self._error(f"{self._text(index)} has rank {len(past)}; a cache has 4", "E-ATTN-CACHE")
            if _differ(past[0], new.batch) or _differ(past[1], new.heads) or _differ(past[3], new.size):
                raise self._error(
                    f"{self._text(index)} does not fit [{new.batch}, {new.heads}, past, {new.size}] of the new positions",
                    "E-ATTN-CACHE",
                )
        lengths = [past[2] for past in (past_key, past_value) if past is not None]
        if _differ(*lengths):
            raise self._error(f"{self._text(4)} and {self._text(5)} differ in length", "E-ATTN-CACHE")
        return next((length for length in lengths if length is not None), None)

    def _check_lengths(self, q: _Operand) -> None:
        if not self.present[6]:
            return
        if self.present[4]:
            raise self._error("nonpad_kv_seqlen together with past_key is not defined; use one", "E-ATTN-CACHE")
        if self.version >= 25 and (self.outputs[1] or self.outputs[2]):
            raise self._error("nonpad_kv_seqlen together with present outputs is not defined; use one", "E-ATTN-CACHE")
        shape = self._shape(6)
        if shape is not None and (len(shape) != 1 or _differ(shape[0], q.batch)):
            raise self._error(f"{self._text(6)} must be [batch] = [{q.batch}]", "E-ATTN-CACHE")

    def _check_mask(self, q: _Operand, keys: int | None) -> None:
        mask = self._shape(3)
        if not self.present[3] or mask is None:
            return
        if not 1 <= len(mask) <= 4:
            raise self._error(
                f"{self._text(3)} has rank {len(mask)}; Attention takes 1 to 4. Reshape it to [batch, heads, queries, keys].",
                "E-ATTN-MASK-RANK",
            )
        want = (q.batch, q.heads, q.length, keys)
        last = mask[-1]
        for have, need in zip(mask[-2::-1], (q.length, q.heads, q.batch), strict=False):
            if have != 1 and _differ(have, need):
                raise self._error(
                    f"{self._text(3)} does not broadcast to [batch, heads, queries, keys] = {list(want)}", "E-ATTN-MASK-SHAPE"
                )
        if last is None or keys is None or last == keys:
            return
        if last > keys:
            raise self._error(f"{self._text(3)} is longer than the {keys} keys; cut it", "E-ATTN-MASK-SHAPE")
        if self.version == 23 and last != 1:
            raise self._error(
                f"{self._text(3)} is shorter than the {keys} keys, which opset 23 does not define; pad it", "E-ATTN-MASK-SHAPE"
            )
        told = f"{self.where}: {self._text(3)} has {last} {'key' if last == 1 else 'keys'} where there are {keys}"
        if self.version >= 24:
            also = "; in opset 23 it is broadcast" if last == 1 else ""
            self.warnings.append(f"{told}: from opset 24 on the others are masked{also}")

    def outputs_types(self) -> list[TypeProto | None]:
        """
        Check the node; returns the types of Y, present_key, present_value and qk_matmul_output.

        Raises ModelError: E-ATTR-VALUE, E-ATTN-SHAPE, E-ATTN-HEADS, E-ATTN-CACHE, E-ATTN-MASK-RANK, E-ATTN-MASK-SHAPE.
        """
        self.check_attributes()
        if (self.outputs[1] != self.outputs[2]) and self.version >= 25:
            raise self._error("it has one of present_key and present_value; use both or none", "E-ATTN-CACHE")
        q, k, v = (self._operand(index) for index in range(3))
        kinds = (dtype_of(self.types[0]), dtype_of(self.types[0]), dtype_of(self.types[2]), dtype_of(self.types[0]))
        if q is None or k is None or v is None:
            return [tensor_type(kind, None) if kind else None for kind in kinds]
        self._check_operands(q, k, v)
        past = self._past_length(k, v)
        length = k.length if k.length is not None else v.length
        keys = None if past is None or length is None else past + length
        self._check_lengths(q)
        self._check_mask(q, keys)
        batch = next((o.batch for o in (q, k, v) if o.batch is not None), None)
        packed = None if q.heads is None or v.size is None else q.heads * v.size
        y = (batch, q.heads, q.length, v.size) if len(self._shape(0) or ()) == 4 else (batch, q.length, packed)
        heads = k.heads if k.heads is not None else v.heads
        shapes = (y, (batch, heads, keys, k.size), (batch, heads, keys, v.size), (batch, q.heads, q.length, keys))
        return [tensor_type(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]


def attention_types(
    where: str,
    version: int,
    attributes: Mapping[str, Any],
    types: Sequence[TypeProto | None],
    present: Sequence[bool],
    outputs: Sequence[bool],
) -> tuple[list[TypeProto | None], list[str]]:
    """
    Check an `Attention` node of the standard domain; returns the types of its outputs and warnings.

    Inference of onnx is not asked: it writes 0 where it does not know a size (onnx.md §1.4). Parameters as `AttentionRules`.
    Raises ModelError as `AttentionRules.outputs_types` does.
    """
    rules = AttentionRules(where, version, attributes, types, present, outputs)
    return rules.outputs_types()[: len(outputs)], rules.warnings
