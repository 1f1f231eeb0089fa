"""
The `attn` dialect: attention as a mathematician writes it (level 2) and as FlashAttention-2 tiles it (level 3).

Level 2 is one op, `attn.attention`, and `attn.rearrange`, which brings a model's layout to the canonical four axes.
The tiled ops are in `attn_tiled`; both halves are one dialect.
"""

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lampc.dialects import attn_tiled
from lampc.dialects.axes import Rearrangement


def _shape(value: SSAValue) -> tuple[int, ...]:
    return SSAValue.get(value, type=TensorType).type.get_shape()


@irdl_op_definition
class AttentionOp(IRDLOperation):
    """
    `softmax(mask(softcap(scale * Q K^T))) V` for every batch and query head, on canonical operands.

    query   [batch, query heads, queries, head size]
    key     [batch, key-value heads, keys, head size]
    value   [batch, key-value heads, keys, value size]
    mask    at most four axes, broadcast from the right to [batch, query heads, queries, keys]; boolean: true is live, a
            false entry adds `masked_value` (-inf without one); float: added to the scaled scores
    sinks   [query heads], one extra logit per head that has no value

    Query head h reads key-value head h // (query heads / key-value heads). `causal` keeps key i for query j if
    i <= j + causal_offset; a `window` w drops keys i <= j + causal_offset - w. A row without a live key gives zeros.
    Source: docs/lampattention.md sections 3 and 4.
    """

    name = "attn.attention"

    query = operand_def(TensorType)
    key = operand_def(TensorType)
    value = operand_def(TensorType)
    mask = opt_operand_def(TensorType)
    sinks = opt_operand_def(TensorType)
    output = result_def(TensorType)

    scale = prop_def(FloatAttr)
    causal = opt_prop_def(UnitAttr)
    causal_offset = opt_prop_def(IntegerAttr)
    window = opt_prop_def(IntegerAttr)
    softcap = opt_prop_def(FloatAttr)
    masked_value = opt_prop_def(FloatAttr)

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    traits = traits_def(Pure())

    assembly_format = (
        "$query `,` $key `,` $value (`mask` $mask^ `:` type($mask))? (`sinks` $sinks^ `:` type($sinks))? "
        "attr-dict `:` type($query) `,` type($key) `,` type($value) `->` type($output)"
    )

    def __init__(
        self,
        query: SSAValue,
        key: SSAValue,
        value: SSAValue,
        *,
        scale: float,
        mask: SSAValue | None = None,
        sinks: SSAValue | None = None,
        causal: bool = False,
        causal_offset: int = 0,
        window: int | None = None,
        softcap: float | None = None,
        masked_value: float | None = None,
    ):
        query_type = SSAValue.get(query, type=TensorType).type
        output_shape = (*query_type.get_shape()[:-1], _shape(value)[-1])
        properties: dict[str, Attribute] = {"scale": FloatAttr(scale, f32)}
        if causal:
            properties["causal"] = UnitAttr()
        if causal_offset:
            properties["causal_offset"] = IntegerAttr(causal_offset, i64)
        if window is not None:
            properties["window"] = IntegerAttr(window, i64)
        if softcap is not None:
            properties["softcap"] = FloatAttr(softcap, f32)
        if masked_value is not None:
            properties["masked_value"] = FloatAttr(masked_value, f32)
        super().__init__(
            operands=[query, key, value, [mask] if mask else [], [sinks] if sinks else []],
            result_types=[TensorType(query_type.element_type, output_shape)],
            properties=properties,
        )

    def verify_(self) -> None:
        query, key, value, output = map(_shape, (self.query, self.key, self.value, self.output))
        for role, shape in (("query", query), ("key", key), ("value", value), ("output", output)):
            if len(shape) != 4:
                raise VerifyException(f"{role} has {len(shape)} axes; expected [batch, heads, length, size]")
            if any(size < 0 for size in shape):
                raise VerifyException(f"{role} has an unbound dimension; bind every dimension before raising")
        if not query[0] == key[0] == value[0] == output[0]:
            raise VerifyException("query, key, value and output differ in batch")
        if key[1] != value[1]:
            raise VerifyException(f"key has {key[1]} heads, value {value[1]}")
        if key[1] == 0 or query[1] % key[1]:
            raise VerifyException(f"{query[1]} query heads are no multiple of {key[1]} key-value heads")
        if query[3] != key[3]:
            raise VerifyException(f"query has head size {query[3]}, key {key[3]}")
        if key[2] != value[2]:
            raise VerifyException(f"key has {key[2]} rows, value {value[2]}")
        if output != (*query[:3], value[3]):
            raise VerifyException(f"expected an output of shape {(*query[:3], value[3])}")
        if self.mask is not None:
            verify_broadcast(_shape(self.mask), (query[0], query[1], query[2], key[2]))
        if self.sinks is not None and _shape(self.sinks) != (query[1],):
            raise VerifyException(f"sinks must have one element for each of the {query[1]} query heads")
        scale = self.scale.value.data
        if not 0 < scale < float("inf"):
            raise VerifyException(f"scale must be positive and finite, got {scale}")
        if self.window is not None and self.window.value.data < 1:
            raise VerifyException("a window keeps at least one key")
        if self.softcap is not None and not 0 < self.softcap.value.data < float("inf"):
            raise VerifyException("softcap must be positive and finite")


def verify_broadcast(mask: Sequence[int], scores: tuple[int, int, int, int]) -> None:
    """Raise VerifyException unless `mask` broadcasts from the right to [batch, heads, queries, keys]."""
    if len(mask) > 4:
        raise VerifyException(f"mask has rank {len(mask)}; at most 4 axes broadcast to the scores")
    for size, full in zip(reversed(mask), reversed(scores), strict=False):
        if size not in (1, full):
            raise VerifyException(f"mask of shape {tuple(mask)} does not broadcast to scores {scores}")


@irdl_op_definition
class RearrangeOp(IRDLOperation):
    """
    Split, merge and permute axes: `attn.rearrange %x {pattern = "b l (h d) -> b h l d", sizes = {h = 9 : i64}}`.

    The pattern is einops' notation without repetition or reduction: every name stands once on each side, `1` is an axis of
    size one that appears or vanishes. The element type does not change.
    """

    name = "attn.rearrange"

    input = operand_def(TensorType)
    output = result_def(TensorType)
    pattern = prop_def(StringAttr)
    sizes = opt_prop_def(DictionaryAttr)

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($output)"

    def __init__(self, input: SSAValue, pattern: str, sizes: dict[str, int] | None = None):
        type = SSAValue.get(input, type=TensorType).type
        rearrangement = Rearrangement.parse(pattern, sizes or {}, type.get_shape())
        properties: dict[str, Attribute] = {"pattern": StringAttr(pattern)}
        if sizes:
            properties["sizes"] = DictionaryAttr({k: IntegerAttr(v, i64) for k, v in sizes.items()})
        super().__init__(
            operands=[input],
            result_types=[TensorType(type.element_type, rearrangement.result_shape)],
            properties=properties,
        )

    @property
    def rearrangement(self) -> "Rearrangement":
        """The parsed pattern on the operand's shape. Raises ValueError if they do not fit."""
        sizes: dict[str, int] = {}
        if self.sizes is not None:
            for key, value in self.sizes.data.items():
                assert isinstance(value, IntegerAttr)
                sizes[key] = value.value.data
        return Rearrangement.parse(self.pattern.data, sizes, _shape(self.input))

    def verify_(self) -> None:
        try:
            shape = self.rearrangement.result_shape
        except ValueError as error:
            raise VerifyException(str(error)) from error
        if _shape(self.output) != shape:
            raise VerifyException(f"pattern {self.pattern.data!r} gives shape {shape}")
        input_type = SSAValue.get(self.input, type=TensorType).type
        if SSAValue.get(self.output, type=TensorType).type.element_type != input_type.element_type:
            raise VerifyException("a rearrangement keeps the element type")


Attn = Dialect(
    "attn",
    [AttentionOp, RearrangeOp, *attn_tiled.OPERATIONS],
    [*attn_tiled.ATTRIBUTES],
)

__all__ = ["AttentionOp", "Attn", "RearrangeOp", "verify_broadcast"]
