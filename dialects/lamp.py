"""
The `lamp` dialect: LampAttention with every format, rounding and recompute branch explicit (level 4).

The ops stand in the body of an `attn.tile_loop` and describe one lane's step over one key tile. A tile's keys are `N_k`
sub-blocks (the loop's `sub_blocks`); ops that touch some of them take a `!lamp.mask`. The two recompute ops hold the
recomputation as a region that runs for the sub-blocks that need it. Scores are [keys of a tile, rows], maxima [sub-blocks,
rows].
Source: docs/lampattention.md section 4; arXiv 2609.39361.
"""

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
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

from lampc.dialects.attn_tiled import LaneType
from lampc.dialects.lamp_regions import DisruptiveOp, RecomputeOp, RecomputeUnsafeOp, YieldOp, verify_format
from lampc.dialects.lamp_types import FloatType, MaskType, OrderType

ROUNDINGS = ("rne", "rtz", "stochastic")
OVERFLOWS = ("saturate", "nan")
SHIFTS = ("truncate", "exact")
ABOVE_ONE = ("clamp", "keep")
TIES = ("slack", "first")


def _tensor(value: SSAValue) -> TensorType[Attribute]:
    return SSAValue.get(value, type=TensorType).type


def _verify_choice(attribute: StringAttr, name: str, allowed: Sequence[str]) -> None:
    if attribute.data not in allowed:
        raise VerifyException(f"{name} must be one of {', '.join(allowed)}, got {attribute.data!r}")


@irdl_op_definition
class AccumulateOp(IRDLOperation):
    """
    Key-query products accumulated in the result's format: c = round(f32(c + f32(key * query))) for each element in order.

    With `accumulate_block` b, b products are summed in FP32 before each rounded add. Values beyond the largest finite one
    saturate, or become NaN under `overflow = "nan"`, which the format must have. `at %sb` computes one sub-block,
    [keys of a sub-block, rows], otherwise the whole tile.
    Source: docs/lampattention.md section 4.2.
    """

    name = "lamp.accumulate"
    key = operand_def(TensorType)
    query = operand_def(TensorType)
    sub_block = opt_operand_def(IndexType)
    result = result_def(TensorType)
    rounding = prop_def(StringAttr)
    overflow = prop_def(StringAttr)
    accumulate_block = prop_def(IntegerAttr)
    seed = opt_prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$key `,` $query (`at` $sub_block^)? attr-dict `:` type($key) `,` type($query) `->` type($result)"

    def verify_(self) -> None:
        accumulator = verify_format(self.result, "the accumulator")
        if not accumulator.signed:
            raise VerifyException(f"the accumulator must be signed, {accumulator} is not")
        _verify_choice(self.rounding, "rounding", ROUNDINGS)
        _verify_choice(self.overflow, "overflow", OVERFLOWS)
        if self.overflow.data == "nan" and accumulator.nan == "none":
            raise VerifyException(f"overflow = nan needs a format with a NaN, {accumulator} has none")
        if self.accumulate_block.value.data < 1:
            raise VerifyException("accumulate_block must be at least 1")
        if (self.rounding.data == "stochastic") != (self.seed is not None):
            raise VerifyException("stochastic rounding, and no other, takes a seed")
        keys, size = _tensor(self.key).get_shape()
        rows, size2 = _tensor(self.query).get_shape()
        if size != size2:
            raise VerifyException(f"key has head size {size}, query {size2}")
        result = _tensor(self.result).get_shape()
        if result[1] != rows or keys % result[0] or (self.sub_block is None and result[0] != keys):
            raise VerifyException(f"a {keys}-key tile and {rows} rows do not give scores of shape {result}")


@irdl_op_definition
class SubBlockMaxOp(IRDLOperation):
    """Largest live score of each sub-block and row, [sub-blocks, rows]; -inf where none is live; a NaN stays (section 4.4)."""

    name = "lamp.subblock_max"
    scores = operand_def(TensorType)
    live = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$scores `,` $live attr-dict `:` type($scores) `,` type($live) `->` type($result)"

    def verify_(self) -> None:
        keys, rows = _tensor(self.scores).get_shape()
        sub_blocks, rows2 = _tensor(self.result).get_shape()
        if rows != rows2 or keys % sub_blocks:
            raise VerifyException(f"{keys} keys do not make {sub_blocks} sub-blocks of {rows2} rows")
        if _tensor(self.scores).element_type != _tensor(self.result).element_type:
            raise VerifyException("a maximum has the format of the scores")


@irdl_op_definition
class LiveBlocksOp(IRDLOperation):
    """The sub-blocks that have a live entry."""

    name = "lamp.live_blocks"
    live = operand_def(TensorType)
    result = result_def(MaskType)
    traits = traits_def(Pure())
    assembly_format = "$live attr-dict `:` type($live) `->` type($result)"


@irdl_op_definition
class WithoutOp(IRDLOperation):
    """The sub-blocks in `from` that are not in `taken`."""

    name = "lamp.without"
    T: ClassVar = VarConstraint("T", BaseAttr(MaskType))
    source = operand_def(T)
    taken = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$source `,` $taken attr-dict `:` type($result)"


@irdl_op_definition
class ThreatOrderOp(IRDLOperation):
    """
    Sub-blocks by how far they reach above the running maximum: T = max over rows of f32(top - maximum), descending, ties to the
    lower index, NaN first (section 4.4).
    """

    name = "lamp.threat_order"
    top = operand_def(TensorType)
    maximum = operand_def(TensorType)
    result = result_def(OrderType)
    traits = traits_def(Pure())
    assembly_format = "$top `,` $maximum attr-dict `:` type($top) `,` type($maximum) `->` type($result)"


@irdl_op_definition
class RaiseMaximumOp(IRDLOperation):
    """The running maximum after sub-blocks with maxima `top`: policies `low` and `high`, and stage 1 off (section 4)."""

    name = "lamp.raise_maximum"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    maximum = operand_def(T)
    top = operand_def(TensorType)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$maximum `,` $top attr-dict `:` type($top) `,` type($result)"


@irdl_op_definition
class ExponentialOp(IRDLOperation):
    """
    E = round(exp(-s)) with s = round(f32(m - score)) for the live entries of the sub-blocks in the mask; 0 elsewhere.

    s is rounded to `shift_format`, E to the result's. `shift = "truncate"` takes for m the running maximum cut to `cut` by
    dropping mantissa bits, `"exact"` the running maximum itself. A score above the running maximum gives E = 1 under
    `above_one = "clamp"` and E > 1 under `"keep"`; both count it. `unit` says what evaluates it: `lut` (8 bit, one clock)
    or `sfu` (16 bit). Source: docs/lampattention.md sections 4.6 and 4.8.
    """

    name = "lamp.exponential"
    scores = operand_def(TensorType)
    maximum = operand_def(TensorType)
    live = operand_def(TensorType)
    mask = operand_def(MaskType)
    result = result_def(TensorType)
    shift_format = prop_def(FloatType)
    shift = prop_def(StringAttr)
    cut = opt_prop_def(FloatType)
    above_one = prop_def(StringAttr)
    unit = prop_def(StringAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$scores `,` $maximum `,` $live `in` $mask attr-dict `:` "
        "type($scores) `,` type($maximum) `,` type($live) `,` type($mask) `->` type($result)"
    )

    def verify_(self) -> None:
        verify_format(self.result, "the exponential")
        _verify_choice(self.shift, "shift", SHIFTS)
        _verify_choice(self.above_one, "above_one", ABOVE_ONE)
        _verify_choice(self.unit, "unit", ("lut", "sfu"))
        if (self.shift.data == "truncate") != (self.cut is not None):
            raise VerifyException("shift = truncate, and no other, names the format of the cut")
        if self.above_one.data == "keep" and self.shift_format.format.min_exponent != -126:
            raise VerifyException("above_one = keep needs an unbounded range: the hw shift format is unsigned")


@irdl_op_definition
class MergeOp(IRDLOperation):
    """Exponentials in FP32: those of `high` for the sub-blocks in the mask, those of `low` elsewhere. Widening is exact."""

    name = "lamp.merge"
    low = operand_def(TensorType)
    high = operand_def(TensorType)
    mask = operand_def(MaskType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$low `,` $high `in` $mask attr-dict `:` type($low) `,` type($high) `,` type($mask) `->` type($result)"

    def verify_(self) -> None:
        if not _tensor(self.low).get_shape() == _tensor(self.high).get_shape() == _tensor(self.result).get_shape():
            raise VerifyException("merged exponentials have one shape")


@irdl_op_definition
class RescaleOp(IRDLOperation):
    """lambda = f32(exp(maximum - new_maximum)), in float64; 0 where the maximum was -inf (section 4.7)."""

    name = "lamp.rescale"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    maximum = operand_def(T)
    new_maximum = operand_def(T)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$maximum `,` $new_maximum attr-dict `:` type($maximum) `->` type($result)"


@irdl_op_definition
class ScaleSumOp(IRDLOperation):
    """alpha = f32(lambda * sum) (section 4.7)."""

    name = "lamp.scale_sum"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    sum = operand_def(T)
    factor = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$sum `,` $factor attr-dict `:` type($result)"


@irdl_op_definition
class RowSumOp(IRDLOperation):
    """`start` plus the live exponentials of each row, added one by one in FP32, in key order (sections 4.7 and 4.9)."""

    name = "lamp.row_sum"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    start = operand_def(T)
    exponentials = operand_def(TensorType)
    live = operand_def(TensorType)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$start `,` $exponentials `,` $live attr-dict `:` type($exponentials) `,` type($live) `->` type($result)"


@irdl_op_definition
class DisturbanceOp(IRDLOperation):
    """
    Stage-2 weights: xi = sum over a sub-block's keys, in order, of f32(f32(sum - E) * E), [sub-blocks, rows] (section 4.8).
    """

    name = "lamp.disturbance"
    sum = operand_def(TensorType)
    exponentials = operand_def(TensorType)
    live = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = (
        "$sum `,` $exponentials `,` $live attr-dict `:` type($sum) `,` type($exponentials) `,` type($live) `->` type($result)"
    )


@irdl_op_definition
class KeepLowOp(IRDLOperation):
    """
    Stage 2: a largest subset of the sub-blocks in `free` whose weights stay at most tau * sum^2 in every row.

    Of several largest sets `tie = "slack"` takes the one with the smallest largest share, `"first"` the one whose recompute set
    is the smallest bit mask. Source: section 4.8, paper equation 8.
    """

    name = "lamp.keep_low"
    weights = operand_def(TensorType)
    sum = operand_def(TensorType)
    free = operand_def(MaskType)
    result = result_def(MaskType)
    tau = prop_def(FloatAttr)
    tie = prop_def(StringAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$weights `,` $sum `among` $free attr-dict `:` type($weights) `,` type($sum) `,` type($free) `->` type($result)"
    )

    def verify_(self) -> None:
        _verify_choice(self.tie, "tie", TIES)
        if not self.tau.value.data >= 0:
            raise VerifyException(f"tau must not be negative or NaN, got {self.tau.value.data}")


@irdl_op_definition
class UpdateOutputOp(IRDLOperation):
    """output' = f32(output*lambda), then + E*value for the live keys in order, every operation in FP32 (section 4.9)."""

    name = "lamp.update_output"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    output = operand_def(T)
    factor = operand_def(TensorType)
    exponentials = operand_def(TensorType)
    live = operand_def(TensorType)
    value = operand_def(TensorType)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$output `,` $factor `,` $exponentials `,` $live `,` $value attr-dict `:` "
        "type($factor) `,` type($exponentials) `,` type($live) `,` type($value) `->` type($result)"
    )


@irdl_op_definition
class RecordOp(IRDLOperation):
    """
    Count this tile in the statistics: sub-blocks recomputed after stage 1 and after both stages (section 6).

    `at_most` n counts more as n: layout `compact` tells 0, 1 and 2 apart.
    """

    name = "lamp.record"
    lane = operand_def(LaneType)
    stage1 = opt_operand_def(MaskType)
    stage2 = opt_operand_def(MaskType)
    at_most = opt_prop_def(IntegerAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = "$lane (`stage1` $stage1^ `:` type($stage1))? (`stage2` $stage2^ `:` type($stage2))? attr-dict"


Lamp = Dialect(
    "lamp",
    [
        YieldOp,
        AccumulateOp,
        SubBlockMaxOp,
        LiveBlocksOp,
        WithoutOp,
        ThreatOrderOp,
        RaiseMaximumOp,
        RecomputeUnsafeOp,
        RecomputeOp,
        DisruptiveOp,
        ExponentialOp,
        MergeOp,
        RescaleOp,
        ScaleSumOp,
        RowSumOp,
        DisturbanceOp,
        KeepLowOp,
        UpdateOutputOp,
        RecordOp,
    ],
    [FloatType, MaskType, OrderType],
)
