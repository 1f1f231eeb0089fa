"""Choose the register layout of the score tiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, f32, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.errors import UsageError
from lampc.ir import Emitter

OpT = TypeVar("OpT", bound=Operation)


@dataclass(frozen=True)
class RegisterLayoutPass(ModulePass):
    """
    Name the register layout (`layout`) of every `attn.lanes`, and make what it changes explicit.

    `safe` keeps space for all sub-blocks of a tile in 16 bit, so that no recomputation changes the schedule. `compact` is the
    paper's: 8 bit for all and one 16-bit sub-block. A tile that needs a second recomputed sub-block is disruptive there: it
    is updated again from its entry, floor(N_k/2)+1 sub-blocks at a time, all in 16 bit (`lamp.disruptive`). Statistics then
    count 0, 1 and 2 or more. FP32 tiles and those that recompute nothing only get the name.

    Before:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x64x8xf32>, %v: tensor<1x1x64x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.attention %q, %k, %v {scale = 0.5 : f32} : tensor<1x1x16x8xf32>, tensor<1x1x64x8xf32>, tensor<1x1x64x8xf32> -> tensor<1x1x16x8xf32>
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    After `lamp-tile-attention{nq=1},lamp-mixed-precision{policy=high},lamp-register-layout{layout=compact}`:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x64x8xf32>, %v: tensor<1x1x64x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) layout "compact" -> tensor<1x1x16x8xf32> {
        %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<16x8xf32>
        %scaled = attn.scale_query %query {scale = 5.000000e-01 : f32} : tensor<16x8xf32>
        %liveness = attn.liveness %lane {queries = 16 : i64, keys = 64 : i64}
        %mu0, %omega0, %acc0 = attn.softmax_init %lane : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>
        %mu_out, %omega_out, %acc_out = attn.tile_loop %t in 1 sub_blocks 4 order "forward" where %liveness iter(%mu = %mu0, %omega = %omega0, %acc = %acc0) : (tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>) {
          %key = attn.load_tile %k[%lane, %t] : tensor<1x1x64x8xf32> -> tensor<64x8xf32>
          %value = attn.load_tile %v[%lane, %t] : tensor<1x1x64x8xf32> -> tensor<64x8xf32>
          %live = attn.live_entries %liveness[%t] : tensor<64x16xi1>
          %blocks = lamp.live_blocks %live : tensor<64x16xi1> -> !lamp.mask<4>
          %y16 = lamp.recompute %sb in %blocks : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
            %y = lamp.accumulate %key, %scaled at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<16x16x!lamp.float<e4m11>>
            lamp.yield %y : tensor<16x16x!lamp.float<e4m11>>
          }
          %top = lamp.subblock_max %y16, %live : tensor<64x16x!lamp.float<e4m11>>, tensor<64x16xi1> -> tensor<4x16x!lamp.float<e4m11>>
          %mu1 = lamp.raise_maximum %mu, %top : tensor<4x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>
          %e16 = lamp.exponential %y16, %mu1, %live in %blocks {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
          %e = lamp.merge %e16, %e16 in %blocks : tensor<64x16x!lamp.float<ue5m11, bias = 31>>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
          %lambda = lamp.rescale %mu, %mu1 : tensor<16x!lamp.float<e4m11>> -> tensor<16xf32>
          %alpha = lamp.scale_sum %omega, %lambda : tensor<16xf32>
          %omega1 = lamp.row_sum %alpha, %e, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
          %acc1 = lamp.update_output %acc, %lambda, %e, %live, %value : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1>, tensor<64x8xf32> -> tensor<16x8xf32>
          lamp.record %lane stage1 %blocks : !lamp.mask<4> {at_most = 2 : i64}
          %mu_c, %omega_c, %acc_c = lamp.disruptive %sbs, %alive, %m, %o_1, %a in chunks of 3 where(%blocks) live(%live) entry(%mu, %omega, %acc) otherwise(%mu1, %omega1, %acc1) : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>) {
            %y_1 = lamp.recompute %sb_1 in %sbs : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
              %y_2 = lamp.accumulate %key, %scaled at %sb_1 {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<16x16x!lamp.float<e4m11>>
              lamp.yield %y_2 : tensor<16x16x!lamp.float<e4m11>>
            }
            %top_1 = lamp.subblock_max %y_1, %alive : tensor<64x16x!lamp.float<e4m11>>, tensor<64x16xi1> -> tensor<4x16x!lamp.float<e4m11>>
            %m1 = lamp.raise_maximum %m, %top_1 : tensor<4x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>
            %e16_1 = lamp.exponential %y_1, %m1, %alive in %sbs {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
            %e_1 = lamp.merge %e16_1, %e16_1 in %sbs : tensor<64x16x!lamp.float<ue5m11, bias = 31>>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
            %lambda_1 = lamp.rescale %m, %m1 : tensor<16x!lamp.float<e4m11>> -> tensor<16xf32>
            %alpha_1 = lamp.scale_sum %o_1, %lambda_1 : tensor<16xf32>
            %o1 = lamp.row_sum %alpha_1, %e_1, %alive : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
            %a1 = lamp.update_output %a, %lambda_1, %e_1, %alive, %value : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1>, tensor<64x8xf32> -> tensor<16x8xf32>
            lamp.yield %m1, %o1, %a1 : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>
          }
          attn.yield %mu_c, %omega_c, %acc_c : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>
        }
        %rows = attn.normalize %acc_out, %omega_out : tensor<16x8xf32>, tensor<16xf32>
        attn.yield %rows : tensor<16x8xf32>
      }
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    Source: docs/lampattention.md section 7.
    """  # noqa: E501

    name = "lamp-register-layout"

    layout: Literal["safe", "compact"] = "safe"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for lanes in op.walk():
            if not isinstance(lanes, tiled.LanesOp):
                continue
            if lanes.layout is not None and lanes.layout.data == "compact" and self.layout == "safe":
                raise UsageError("option layout=safe: the module already has layout compact, which cannot be undone")
            if self.layout == "compact":
                for loop in lanes.body.block.ops:
                    if isinstance(loop, tiled.TileLoopOp):
                        _branch_where_disruptive(loop)
            lanes.properties["layout"] = StringAttr(self.layout)


def _branch_where_disruptive(loop: tiled.TileLoopOp) -> None:
    """Put a `lamp.disruptive` before the end of the body, which then yields its results."""
    record, high = _first(loop, lamp.RecordOp), _high_exponential(loop)
    last, update = loop.body.block.last_op, _first(loop, lamp.UpdateOutputOp)
    done = _first(loop, lamp.DisruptiveOp) is not None
    if done or record is None or high is None or update is None or not isinstance(last, tiled.YieldOp):
        return
    live, sub_blocks = update.live, loop.sub_blocks.value.data
    entry = loop.body.block.args[1:]
    masks = [mask for mask in (record.stage1, record.stage2) if mask is not None]
    body = tiled.single_block([masks[0].type, live.type, *(value.type for value in entry)])
    for argument, hint in zip(body.block.args, ("sbs", "alive", "m", "o", "a"), strict=True):
        argument.name_hint = hint
    emit = Emitter(record, InsertPoint.at_end(body.block))
    emit.add(lamp.YieldOp(*_high_step(emit, body.block.args, loop, high, update)))
    branch = lamp.DisruptiveOp(masks, live, entry, last.values, body, chunk=sub_blocks // 2 + 1)
    Emitter(record, InsertPoint.before(last)).add(branch, "mu_c", "omega_c", "acc_c")
    last.operands = branch.outputs
    record.properties["at_most"] = IntegerAttr(2, i64)


def _high_step(
    emit: Emitter,
    arguments: Sequence[SSAValue],
    loop: tiled.TileLoopOp,
    high: lamp.ExponentialOp,
    update: lamp.UpdateOutputOp,
) -> list[SSAValue]:
    """One step under policy `high` of the sub-blocks and live entries in `arguments`: maximum, sum and output after it."""
    mask, live, maximum, total, output = arguments
    recompute = _first(loop, lamp.RecomputeUnsafeOp) or _first(loop, lamp.RecomputeOp)
    assert recompute is not None
    scores_type = SSAValue.get(recompute.scores, type=TensorType).type
    scores = emit.add(lamp.RecomputeOp(mask, recompute.body.clone(), scores_type), "y").scores
    rows = scores_type.get_shape()[1]
    top_type = TensorType(scores_type.element_type, [loop.sub_blocks.value.data, rows])
    top = emit.add(lamp.SubBlockMaxOp.build(operands=[scores, live], result_types=[top_type]), "top").result
    raised = emit.add(lamp.RaiseMaximumOp.build(operands=[maximum, top], result_types=[maximum.type]), "m1").result
    exponential = lamp.ExponentialOp.build(
        operands=[scores, raised, live, mask], result_types=[high.result.type], properties=dict(high.properties)
    )
    narrow = emit.add(exponential, "e16").result
    merged_type = SSAValue.get(update.exponentials).type
    merge = lamp.MergeOp.build(operands=[narrow, narrow, mask], result_types=[merged_type])
    weights = emit.add(merge, "e").result
    vector = TensorType(f32, [rows])
    factor = emit.add(lamp.RescaleOp.build(operands=[maximum, raised], result_types=[vector]), "lambda").result
    alpha = emit.add(lamp.ScaleSumOp.build(operands=[total, factor], result_types=[vector]), "alpha").result
    summed = emit.add(lamp.RowSumOp.build(operands=[alpha, weights, live], result_types=[vector]), "o1").result
    updated = lamp.UpdateOutputOp.build(operands=[output, factor, weights, live, update.value], result_types=[output.type])
    return [raised, summed, emit.add(updated, "a1").result]


def _high_exponential(loop: tiled.TileLoopOp) -> lamp.ExponentialOp | None:
    """An exponential of recomputed scores; None where nothing is recomputed."""
    for op in loop.body.block.ops:
        if isinstance(op, lamp.ExponentialOp) and isinstance(op.scores.owner, lamp.RecomputeOp | lamp.RecomputeUnsafeOp):
            return op
    return None


def _first(loop: tiled.TileLoopOp, kind: type[OpT]) -> OpT | None:
    return next((op for op in loop.body.block.ops if isinstance(op, kind)), None)
