"""Rewrite tiled FP32 attention into LampAttention: explicit formats and recompute branches."""

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, ModuleOp, StringAttr, TensorType, f32, i64
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.dialects.lamp_types import FloatType, MaskType, OrderType
from lampc.errors import UsageError
from lampc.ir import Emitter, tensor_shape
from lampc.numerics.formats import (
    E4M3,
    E4M11,
    FP32_LARGEST,
    UE5M3_EXP,
    UE5M3_SHIFT,
    UE5M11_EXP,
    UE5M11_SHIFT,
    FloatFormat,
    unbounded,
)


@dataclass(frozen=True)
class MixedPrecisionPass(ModulePass):
    """
    Replace each FP32 step of a tile loop by LampAttention's: low accumulation, stage 1, exponentials, stage 2, update.

    `policy` `lamp` is the whole method, `low` never recomputes, `high` computes everything in 16 bit; FP32 attention is what
    stays when this pass does not run. `delta` is the margin of stage 1, `tau` the threshold of stage 2, `tie` its choice among
    equally large sets; `stage1=false` and `stage2=false` are the paper's ablations. `range` `hw` takes the formats of the
    machine, `unbounded` FP32's exponent range with their mantissas. `shift`, `exp-above-one`, `rounding` (with `seed`), `overflow`
    and `accumulate-block` are the options of the same names of docs/lampattention.md section 5.

    Before:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x64x8xf32>, %v: tensor<1x1x64x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.attention %q, %k, %v {scale = 0.5 : f32} : tensor<1x1x16x8xf32>, tensor<1x1x64x8xf32>, tensor<1x1x64x8xf32> -> tensor<1x1x16x8xf32>
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    After `lamp-tile-attention{nq=1},lamp-mixed-precision{policy=lamp}`:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x64x8xf32>, %v: tensor<1x1x64x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) -> tensor<1x1x16x8xf32> {
        %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<16x8xf32>
        %scaled = attn.scale_query %query {scale = 5.000000e-01 : f32} : tensor<16x8xf32>
        %liveness = attn.liveness %lane {queries = 16 : i64, keys = 64 : i64}
        %mu0, %omega0, %acc0 = attn.softmax_init %lane : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>
        %mu_out, %omega_out, %acc_out = attn.tile_loop %t in 1 sub_blocks 4 order "forward" where %liveness iter(%mu = %mu0, %omega = %omega0, %acc = %acc0) : (tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>) {
          %key = attn.load_tile %k[%lane, %t] : tensor<1x1x64x8xf32> -> tensor<64x8xf32>
          %value = attn.load_tile %v[%lane, %t] : tensor<1x1x64x8xf32> -> tensor<64x8xf32>
          %live = attn.live_entries %liveness[%t] : tensor<64x16xi1>
          %blocks = lamp.live_blocks %live : tensor<64x16xi1> -> !lamp.mask<4>
          %y8 = lamp.accumulate %key, %scaled {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16x!lamp.float<e4m3>>
          %top = lamp.subblock_max %y8, %live : tensor<64x16x!lamp.float<e4m3>>, tensor<64x16xi1> -> tensor<4x16x!lamp.float<e4m3>>
          %order = lamp.threat_order %top, %mu : tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>> -> !lamp.order<4>
          %y16, %mu1, %high = lamp.recompute_unsafe %sb in %order margin(%top, %mu, %live) delta = 3.906250e-03 : (!lamp.order<4>, tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>) -> tensor<64x16x!lamp.float<e4m11>> {
            %y = lamp.accumulate %key, %scaled at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<16x16x!lamp.float<e4m11>>
            lamp.yield %y : tensor<16x16x!lamp.float<e4m11>>
          }
          %low = lamp.without %blocks, %high : !lamp.mask<4>
          %e8 = lamp.exponential %y8, %mu1, %live in %low {shift_format = !lamp.float<ue5m3, bias = 22>, shift = "truncate", above_one = "clamp", unit = "lut", cut = !lamp.float<e4m3>} : tensor<64x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m3, bias = 31>>
          %e16 = lamp.exponential %y16, %mu1, %live in %high {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
          %e = lamp.merge %e8, %e16 in %high : tensor<64x16x!lamp.float<ue5m3, bias = 31>>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
          %lambda = lamp.rescale %mu, %mu1 : tensor<16x!lamp.float<e4m11>> -> tensor<16xf32>
          %alpha = lamp.scale_sum %omega, %lambda : tensor<16xf32>
          %omega_hat = lamp.row_sum %alpha, %e, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
          %xi = lamp.disturbance %omega_hat, %e, %live : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1> -> tensor<4x16xf32>
          %keep = lamp.keep_low %xi, %omega_hat among %low {tau = 5.000000e-01 : f32, tie = "slack"} : tensor<4x16xf32>, tensor<16xf32>, !lamp.mask<4> -> !lamp.mask<4>
          %again = lamp.without %low, %keep : !lamp.mask<4>
          %y16b = lamp.recompute %sb_1 in %again : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
            %y_1 = lamp.accumulate %key, %scaled at %sb_1 {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<16x16x!lamp.float<e4m11>>
            lamp.yield %y_1 : tensor<16x16x!lamp.float<e4m11>>
          }
          %e16_1 = lamp.exponential %y16b, %mu1, %live in %again {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
          %e_1 = lamp.merge %e, %e16_1 in %again : tensor<64x16xf32>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
          %omega1 = lamp.row_sum %alpha, %e_1, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
          %acc1 = lamp.update_output %acc, %lambda, %e_1, %live, %value : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1>, tensor<64x8xf32> -> tensor<16x8xf32>
          lamp.record %lane stage1 %high : !lamp.mask<4> stage2 %again : !lamp.mask<4>
          attn.yield %mu1, %omega1, %acc1 : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>
        }
        %rows = attn.normalize %acc_out, %omega_out : tensor<16x8xf32>, tensor<16xf32>
        attn.yield %rows : tensor<16x8xf32>
      }
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    Source: docs/lampattention.md sections 2 and 4; arXiv 2609.39361.
    """  # noqa: E501

    name = "lamp-mixed-precision"

    policy: Literal["lamp", "low", "high"] = "lamp"
    delta: float = 0.00390625
    tau: float = 0.5
    tie: Literal["slack", "first"] = "slack"
    stage1: bool = True
    stage2: bool = True
    range: Literal["hw", "unbounded"] = "hw"
    shift: Literal["truncate", "exact"] = "truncate"
    exp_above_one: Literal["clamp", "keep"] = "clamp"
    rounding: Literal["rne", "rtz", "stochastic"] = "rne"
    overflow: Literal["saturate", "nan"] = "saturate"
    accumulate_block: int = 1
    seed: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not 0 <= self.delta <= FP32_LARGEST:
            raise UsageError(f"option delta={self.delta}: the margin of stage 1 is finite in FP32 and not negative")
        if not 0 <= self.tau <= FP32_LARGEST:
            raise UsageError(f"option tau={self.tau}: the threshold of stage 2 is finite in FP32 and not negative")
        if self.accumulate_block < 1:
            raise UsageError(f"option accumulate-block={self.accumulate_block}: must be at least 1")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"option seed={self.seed}: must be from 0 to 2^64 - 1")
        if self.range == "hw" and self.exp_above_one == "keep":
            raise UsageError("option exp-above-one=keep needs range=unbounded: the hw shift format is unsigned")
        PatternRewriteWalker(_Lamp(self), apply_recursively=False).rewrite_module(op)


@dataclass
class _Formats:
    """The six formats of one run, as IR types."""

    low: FloatType
    high: FloatType
    low_shift: FloatType
    high_shift: FloatType
    low_exp: FloatType
    high_exp: FloatType

    @classmethod
    def of(cls, range: str) -> "_Formats":
        def type(format: FloatFormat) -> FloatType:
            return FloatType.of(unbounded(format) if range == "unbounded" else format)

        return cls(*map(type, (E4M3, E4M11, UE5M3_SHIFT, UE5M11_SHIFT, UE5M3_EXP, UE5M11_EXP)))


@dataclass
class _Lamp(RewritePattern):
    options: MixedPrecisionPass

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tiled.OnlineSoftmaxOp, rewriter: PatternRewriter) -> None:
        loop = op.parent_op()
        if not isinstance(loop, tiled.TileLoopOp):
            return
        chain = _scores_chain(op.scores)
        step = _Step(self.options, op, loop, chain)
        _retype_maximum(loop, step.formats.high, rewriter)
        step.emit(rewriter)
        for old in reversed(chain):
            rewriter.erase(old)


def _retype_maximum(loop: tiled.TileLoopOp, high: FloatType, rewriter: PatternRewriter) -> None:
    """The running maximum is always a value of the high accumulator format (section 3)."""
    position = list(loop.initial).index(next(v for v in loop.initial if isinstance(v.owner, tiled.SoftmaxInitOp)))
    vector = TensorType(high, tensor_shape(loop.initial[position]))
    for value in (loop.initial[position], loop.body.block.args[1 + position], loop.outputs[position]):
        rewriter.replace_value_with_new_type(value, vector)


def _scores_chain(scores: SSAValue) -> list[Operation]:
    """`attn.scores`, then the soft cap and the bias if they are there."""
    chain: list[Operation] = []
    while True:
        owner = scores.owner
        assert isinstance(owner, (tiled.ScoresOp, tiled.SoftCapOp, tiled.AddBiasOp))
        chain.insert(0, owner)
        if isinstance(owner, tiled.ScoresOp):
            return chain
        scores = owner.scores


class _Step:
    """One tile step under the chosen policy, emitted before the FP32 step that it replaces."""

    def __init__(self, options: MixedPrecisionPass, old: tiled.OnlineSoftmaxOp, loop: tiled.TileLoopOp, chain: list[Operation]):
        lanes = loop.parent_op()
        assert isinstance(lanes, tiled.LanesOp)
        scores = chain[0]
        assert isinstance(scores, tiled.ScoresOp)
        self.options = options
        self.formats = _Formats.of(options.range)
        self.old = old
        self.lane = lanes.body.block.args[0]
        self.chain = chain
        self.key, self.query = scores.key, scores.query
        self.keys, self.rows = tensor_shape(old.scores)
        self.sub_blocks = loop.sub_blocks.value.data
        self.out = Emitter(old, InsertPoint.before(old))

    def emit(self, rewriter: PatternRewriter) -> None:
        options, old = self.options, self.old
        blocks = self.out.add(
            lamp.LiveBlocksOp.build(operands=[old.live], result_types=[MaskType.of(self.sub_blocks)]), "blocks"
        ).result
        low = blocks
        recomputed: SSAValue | None = None
        again: SSAValue | None = None
        if options.policy == "high":
            scores = self._recompute(blocks, "y16")
            maximum = self._raised(self._top(scores, self.formats.high))
            exponentials = self._widened(self._exponential(scores, maximum, blocks, high=True), blocks)
            recomputed = blocks
        else:
            low_scores = self._accumulate(self.out, None)
            top = self._top(low_scores, self.formats.low)
            if options.policy == "lamp" and options.stage1:
                stage1 = self._stage1(top)
                maximum, recomputed = stage1.new_maximum, stage1.recomputed
                low = self._without(blocks, recomputed, "low")
                low_exp = self._exponential(low_scores, maximum, low, high=False)
                high_exp = self._exponential(stage1.scores, maximum, recomputed, high=True)
                exponentials = self._merge(low_exp, high_exp, recomputed)
            else:
                maximum = self._raised(top)
                exponentials = self._widened(self._exponential(low_scores, maximum, low, high=False), blocks)
        factor = self.out.add(
            lamp.RescaleOp.build(operands=[old.maximum, maximum], result_types=[self._vector()]), "lambda"
        ).result
        alpha = self.out.add(lamp.ScaleSumOp.build(operands=[old.sum, factor], result_types=[self._vector()]), "alpha").result
        if options.policy == "lamp" and options.stage2:
            again = self._stage2(alpha, exponentials, low)
            second = self._recompute(again, "y16b")
            exponentials = self._merge(exponentials, self._exponential(second, maximum, again, high=True), again)
        total = self._row_sum(alpha, exponentials, "omega1")
        output = self.out.add(
            lamp.UpdateOutputOp.build(
                operands=[old.output, factor, exponentials, old.live, old.value], result_types=[old.output.type]
            ),
            "acc1",
        ).result
        self.out.add(lamp.RecordOp.build(operands=[self.lane, [recomputed] if recomputed else [], [again] if again else []]))
        rewriter.replace(old, [], [maximum, total, output])

    def _vector(self) -> TensorType[Attribute]:
        return TensorType(f32, [self.rows])

    def _scores_type(self, element: Attribute, keys: int | None = None) -> TensorType[Attribute]:
        return TensorType(element, [keys or self.keys, self.rows])

    def _accumulate(self, emit: Emitter, sub_block: SSAValue | None) -> SSAValue:
        """Accumulation, cap and bias: low for the whole tile, high for one sub-block (sections 4.2 and 4.3)."""
        options = self.options
        element = self.formats.low if sub_block is None else self.formats.high
        type = self._scores_type(element, None if sub_block is None else self.keys // self.sub_blocks)
        properties: dict[str, Attribute] = {
            "rounding": StringAttr(options.rounding),
            "overflow": StringAttr(options.overflow),
            "accumulate_block": IntegerAttr(options.accumulate_block, i64),
        }
        if options.rounding == "stochastic":
            properties["seed"] = IntegerAttr(options.seed, i64)
        at = [] if sub_block is None else [sub_block]
        accumulate = lamp.AccumulateOp.build(operands=[self.key, self.query, at], result_types=[type], properties=properties)
        scores: SSAValue = emit.add(accumulate, "y8" if sub_block is None else "y").result
        rounding: dict[str, Attribute] = {
            "rounding": StringAttr(options.rounding),
            "overflow": StringAttr(options.overflow),
        }
        if options.rounding == "stochastic":
            rounding["seed"] = IntegerAttr(options.seed, i64)
        for op in self.chain[1:]:
            if isinstance(op, tiled.SoftCapOp):
                cap = tiled.SoftCapOp.build(
                    operands=[scores, at],
                    result_types=[type],
                    properties={"cap": op.cap, **rounding},
                )
                scores = emit.add(cap, "capped").result
            else:
                assert isinstance(op, tiled.AddBiasOp)
                bias = tiled.AddBiasOp.build(
                    operands=[scores, op.bias, op.lane, op.tile, at], result_types=[type], properties=rounding
                )
                scores = emit.add(bias, "biased").result
        return scores

    def _region(self) -> tuple[Emitter, SSAValue, Region]:
        region = tiled.single_block([IndexType()])
        sub_block = region.block.args[0]
        sub_block.name_hint = "sb"
        return self.out.into(InsertPoint.at_end(region.block)), sub_block, region

    def _recompute(self, mask: SSAValue, hint: str) -> SSAValue:
        emit, sub_block, region = self._region()
        emit.add(lamp.YieldOp(self._accumulate(emit, sub_block)))
        return self.out.add(lamp.RecomputeOp(mask, region, self._scores_type(self.formats.high)), hint).scores

    def _stage1(self, top: SSAValue) -> lamp.RecomputeUnsafeOp:
        order = self.out.add(
            lamp.ThreatOrderOp.build(operands=[top, self.old.maximum], result_types=[OrderType.of(self.sub_blocks)]),
            "order",
        )
        emit, sub_block, region = self._region()
        emit.add(lamp.YieldOp(self._accumulate(emit, sub_block)))
        stage1 = lamp.RecomputeUnsafeOp(
            order.result,
            top,
            self.old.maximum,
            self.old.live,
            region,
            self._scores_type(self.formats.high),
            delta=self.options.delta,
        )
        return self.out.add(stage1, "y16", "mu1", "high")

    def _stage2(self, alpha: SSAValue, exponentials: SSAValue, low: SSAValue) -> SSAValue:
        """The sub-blocks to recompute after all (section 4.8)."""
        total = self._row_sum(alpha, exponentials, "omega_hat")
        weights = self.out.add(
            lamp.DisturbanceOp.build(
                operands=[total, exponentials, self.old.live],
                result_types=[TensorType(f32, [self.sub_blocks, self.rows])],
            ),
            "xi",
        ).result
        properties: dict[str, Attribute] = {
            "tau": FloatAttr(self.options.tau, f32),
            "tie": StringAttr(self.options.tie),
        }
        keep = self.out.add(
            lamp.KeepLowOp.build(operands=[weights, total, low], result_types=[low.type], properties=properties), "keep"
        )
        return self._without(low, keep.result, "again")

    def _top(self, scores: SSAValue, element: FloatType) -> SSAValue:
        type = TensorType(element, [self.sub_blocks, self.rows])
        top = lamp.SubBlockMaxOp.build(operands=[scores, self.old.live], result_types=[type])
        return self.out.add(top, "top").result

    def _raised(self, top: SSAValue) -> SSAValue:
        raised = lamp.RaiseMaximumOp.build(operands=[self.old.maximum, top], result_types=[self.old.maximum.type])
        return self.out.add(raised, "mu1").result

    def _without(self, source: SSAValue, taken: SSAValue, hint: str) -> SSAValue:
        op = lamp.WithoutOp.build(operands=[source, taken], result_types=[source.type])
        return self.out.add(op, hint).result

    def _row_sum(self, start: SSAValue, exponentials: SSAValue, hint: str) -> SSAValue:
        op = lamp.RowSumOp.build(operands=[start, exponentials, self.old.live], result_types=[start.type])
        return self.out.add(op, hint).result

    def _exponential(self, scores: SSAValue, maximum: SSAValue, mask: SSAValue, *, high: bool) -> SSAValue:
        options, formats = self.options, self.formats
        shift = "exact" if high else options.shift
        properties: dict[str, Attribute] = {
            "shift_format": formats.high_shift if high else formats.low_shift,
            "shift": StringAttr(shift),
            "above_one": StringAttr(options.exp_above_one),
            "unit": StringAttr("sfu" if high else "lut"),
        }
        if shift == "truncate":
            properties["cut"] = formats.low
        op = lamp.ExponentialOp.build(
            operands=[scores, maximum, self.old.live, mask],
            result_types=[self._scores_type(formats.high_exp if high else formats.low_exp)],
            properties=properties,
        )
        return self.out.add(op, "e16" if high else "e8").result

    def _merge(self, low: SSAValue, high: SSAValue, mask: SSAValue) -> SSAValue:
        op = lamp.MergeOp.build(operands=[low, high, mask], result_types=[self._scores_type(f32)])
        return self.out.add(op, "e").result

    def _widened(self, exponentials: SSAValue, mask: SSAValue) -> SSAValue:
        """Exponentials of one format in FP32: a merge of a tile with itself."""
        return self._merge(exponentials, exponentials, mask)
