"""NumPy semantics of the `lamp` dialect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Block, Operation, SSAValue

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.numerics import kernels, sets
from lampc.numerics.philox import SITE_HIGH, SITE_LOW
from lampc.targets.numpy.attn_functions import element_format, random_site, shape_of
from lampc.targets.numpy.lanes import F32, Bools, Ints, Run, SubBlocks, TileRef

# A mask is bool [lanes, sub-blocks] here; an order int8 [lanes, sub-blocks].


@dataclass(frozen=True)
class Late:
    """Exponentials that are computed when they are merged into others, in place: they are needed nowhere else."""

    into: Callable[[F32 | None], F32]


def _merged_only(op: lamp.ExponentialOp) -> bool:
    """Whether the result is only merged into other exponentials, in the sub-blocks that it is computed for."""
    uses = list(op.result.uses)
    merge = uses[0].operation if len(uses) == 1 else None
    return isinstance(merge, lamp.MergeOp) and merge.high is op.result and merge.mask is op.mask


def _is_last_use(value: SSAValue, op: Operation) -> bool:
    """Whether no op after `op` reads `value`."""
    users = {use.operation for use in value.uses} - {op}
    later = op.next_op
    while later is not None:
        if later in users or later.regions:
            return False
        later = later.next_op
    return all(user.parent is op.parent for user in users)


@register_impls
class LampFunctions(InterpreterFunctions):
    """Implementations of `lamp.*` on the lanes of `run`."""

    def __init__(self, run: Run):
        super().__init__()
        self.run = run

    @impl_terminator(lamp.YieldOp)
    def run_yield(self, interpreter: Interpreter, op: lamp.YieldOp, args: PythonValues) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()

    @impl(lamp.AccumulateOp)
    def run_accumulate(self, interpreter: Interpreter, op: lamp.AccumulateOp, args: PythonValues) -> PythonValues:
        step = self.run.in_step()
        tile: TileRef = args[0]
        count = shape_of(op.result)[0]
        key_value, index, head, live = step.lanes.key_value, step.index, step.lanes.head, step.live
        start = np.full(len(index), tile.start, np.int64)
        if op.sub_block is not None:
            at: SubBlocks = args[2]
            start = start[at.lane] + at.theta * count
            live = _blocks(live, at, count)
            key_value, index, head = key_value[at.lane], index[at.lane], head[at.lane]
        fmt = element_format(op.result)
        assert fmt is not None
        rounding: Any = op.rounding.data
        overflow: Any = op.overflow.data
        scores = kernels.accumulate(
            tile.data,
            key_value,
            start,
            args[1],
            index,
            count,
            fmt,
            block=op.accumulate_block.value.data,
            rounding=rounding,
            overflow=overflow,
            random=random_site(self.run, op, SITE_LOW if op.sub_block is None else SITE_HIGH, start, args[2:]),
        )
        counts, largest = kernels.count_saturated(scores, live, fmt, overflow)
        if op.sub_block is None or step.held is None:
            self.run.counts().add_saturation(fmt.name, head, counts, largest)
        else:
            self._hold_saturation(step.held, fmt.name, args[2].lane, head, counts, largest)
        return (scores,)

    def _hold_saturation(
        self, held: list[Callable[[Bools], None]], name: str, lane: Ints, head: Ints, counts: Ints, largest: F32
    ) -> None:
        """Count the high accumulations of sub-blocks of `lane` when it is known which lanes stay."""

        def count(stays: Bools) -> None:
            kept = stays[lane]
            self.run.counts().add_saturation(name, head[kept], counts[kept], largest[kept])

        held.append(count)

    @impl(lamp.SubBlockMaxOp)
    def run_max(self, interpreter: Interpreter, op: lamp.SubBlockMaxOp, args: PythonValues) -> PythonValues:
        return (kernels.subblock_max(args[0], args[1], shape_of(op.result)[0]),)

    @impl(lamp.LiveBlocksOp)
    def run_live_blocks(self, interpreter: Interpreter, op: lamp.LiveBlocksOp, args: PythonValues) -> PythonValues:
        return (self.run.in_step().live_rows(op.result.type.sub_blocks.data).any(axis=2),)

    @impl(lamp.WithoutOp)
    def run_without(self, interpreter: Interpreter, op: lamp.WithoutOp, args: PythonValues) -> PythonValues:
        return (args[0] & ~args[1],)

    @impl(lamp.ThreatOrderOp)
    def run_order(self, interpreter: Interpreter, op: lamp.ThreatOrderOp, args: PythonValues) -> PythonValues:
        return (kernels.threat_order(args[0], args[1]),)

    @impl(lamp.RaiseMaximumOp)
    def run_raise(self, interpreter: Interpreter, op: lamp.RaiseMaximumOp, args: PythonValues) -> PythonValues:
        return (np.maximum(args[0], args[1].max(axis=1)),)

    @impl(lamp.RecomputeUnsafeOp)
    def run_stage1(self, interpreter: Interpreter, op: lamp.RecomputeUnsafeOp, args: PythonValues) -> PythonValues:
        order, top, maximum, live = args
        lanes: int = order.shape[0]
        sub_blocks = op.recomputed.type.sub_blocks.data
        keys, rows = shape_of(op.scores)
        size = keys // sub_blocks
        any_live = self.run.in_step().live_rows(sub_blocks)
        live_blocks: Bools = np.logical_or.reduce(any_live, axis=2)
        scores = np.empty((lanes, sub_blocks, size, rows), np.float32)
        recomputed = np.zeros((lanes, sub_blocks), np.bool_)
        maximum = maximum.copy()
        everybody = np.arange(lanes, dtype=np.int64)
        for position in range(sub_blocks):
            theta = order[:, position].astype(np.int64)
            unsafe: Bools = kernels.is_unsafe(top[everybody, theta], maximum, any_live[everybody, theta], op.delta.value.data)
            chosen = np.flatnonzero(unsafe & live_blocks[everybody, theta])
            if not len(chosen):
                continue
            at = SubBlocks(chosen, theta[chosen])
            (part,) = interpreter.run_ssacfg_region(op.body, (at,), "recompute_unsafe")
            scores.reshape(-1, size, rows)[at.lane * sub_blocks + at.theta] = part
            column = kernels.subblock_max(part, _blocks(live, at, size), 1)[:, 0]
            maximum[chosen] = np.maximum(maximum[chosen], column)
            recomputed[at.lane, at.theta] = True
        return scores.reshape(lanes, keys, rows), maximum, recomputed

    @impl(lamp.RecomputeOp)
    def run_recompute(self, interpreter: Interpreter, op: lamp.RecomputeOp, args: PythonValues) -> PythonValues:
        mask: Bools = args[0]
        lanes, sub_blocks = mask.shape
        keys, rows = shape_of(op.scores)
        scores = np.empty((lanes, sub_blocks, keys // sub_blocks, rows), np.float32)
        at = SubBlocks(*np.nonzero(mask))
        if len(at.lane):
            (part,) = interpreter.run_ssacfg_region(op.body, (at,), "recompute")
            scores.reshape(-1, keys // sub_blocks, rows)[at.lane * sub_blocks + at.theta] = part
        return (scores.reshape(lanes, keys, rows),)

    @impl(lamp.ExponentialOp)
    def run_exponential(self, interpreter: Interpreter, op: lamp.ExponentialOp, args: PythonValues) -> PythonValues:
        scores, maximum, live, mask = args
        if not mask.any():
            return (np.broadcast_to(np.float32(0), scores.shape),)
        self._count_above_one(kernels.count_above_one(scores, live, maximum, mask))
        shifted = maximum if op.cut is None else kernels.truncate(maximum, op.cut.format)
        clamp = op.above_one.data == "clamp"
        exp_format = element_format(op.result)
        shift_format = op.shift_format.format
        late = Late(
            lambda out: kernels.shift_exp(scores, live, shifted, shift_format, exp_format, clamp=clamp, mask=mask, out=out)
        )
        return (late if _merged_only(op) else late.into(None),)

    def _count_above_one(self, counts: Ints) -> None:
        step, head = self.run.in_step(), self.run.running().head
        if step.held is None:
            self.run.counts().add_above_one(head, counts)
        else:
            step.held.append(lambda stays: self.run.counts().add_above_one(head[stays], counts[stays]))

    @impl(lamp.DisruptiveOp)
    def run_disruptive(self, interpreter: Interpreter, op: lamp.DisruptiveOp, args: PythonValues) -> PythonValues:
        run, step = self.run, self.run.in_step()
        live: Bools = args[len(op.masks)]
        rest = args[len(op.masks) + 1 :]
        entry, otherwise = rest[: len(op.entry)], rest[len(op.entry) :]
        recomputed = np.logical_or.reduce(args[: len(op.masks)])
        branches = recomputed.sum(axis=1) >= 2
        for count in step.held or ():
            count(~branches)
        step.held = None
        chosen = np.flatnonzero(branches)
        if not len(chosen):
            return tuple(otherwise)
        results = [value.copy() for value in otherwise]
        for result, value in zip(results, entry, strict=True):
            result[chosen] = value[chosen]
        sub_blocks, chunk = recomputed.shape[1], op.chunk.value.data
        size = live.shape[1] // sub_blocks
        for first in range(0, sub_blocks, chunk):
            inside = slice(first * size, (first + chunk) * size)
            some = chosen[live[chosen, inside].any(axis=(1, 2))]
            if not len(some):
                continue
            alive = np.zeros((len(some), *live.shape[1:]), np.bool_)
            alive[:, inside] = live[some, inside]
            blocks = alive.reshape(len(some), sub_blocks, -1).any(axis=2)
            run.step = step.part(some, alive)
            state = interpreter.run_ssacfg_region(op.body, (blocks, alive, *(x[some] for x in results)), "disruptive")
            for result, value in zip(results, state, strict=True):
                result[some] = value
        run.step = step
        return tuple(results)

    @impl(lamp.MergeOp)
    def run_merge(self, interpreter: Interpreter, op: lamp.MergeOp, args: PythonValues) -> PythonValues:
        low: F32 = args[0]
        high: F32 | Late = args[1]
        mask: Bools = args[2]
        if low is high or not mask.any():
            return (low,)
        if not isinstance(high, Late):
            return (kernels.merge_blocks(low, high, mask),)
        own = low.flags.writeable and low.flags.c_contiguous and _is_last_use(op.low, op)
        return (high.into(low if own else low.copy()),)

    @impl(lamp.RescaleOp)
    def run_rescale(self, interpreter: Interpreter, op: lamp.RescaleOp, args: PythonValues) -> PythonValues:
        return (kernels.rescale(args[0], args[1]),)

    @impl(lamp.ScaleSumOp)
    def run_scale_sum(self, interpreter: Interpreter, op: lamp.ScaleSumOp, args: PythonValues) -> PythonValues:
        with np.errstate(over="ignore", invalid="ignore"):
            return (args[0] * args[1],)

    @impl(lamp.RowSumOp)
    def run_row_sum(self, interpreter: Interpreter, op: lamp.RowSumOp, args: PythonValues) -> PythonValues:
        return (kernels.row_sum(args[0], args[1], args[2]),)

    @impl(lamp.DisturbanceOp)
    def run_disturbance(self, interpreter: Interpreter, op: lamp.DisturbanceOp, args: PythonValues) -> PythonValues:
        return (kernels.stage2_weights(args[0], args[1], args[2], shape_of(op.result)[0]),)

    @impl(lamp.KeepLowOp)
    def run_keep_low(self, interpreter: Interpreter, op: lamp.KeepLowOp, args: PythonValues) -> PythonValues:
        weights, total, free = args
        tie: Any = op.tie.data
        kept = kernels.keep_low(weights, total, sets.pack(free), op.tau.value.data, tie)
        return (sets.unpack(kept, free.shape[1]),)

    @impl(lamp.UpdateOutputOp)
    def run_update(self, interpreter: Interpreter, op: lamp.UpdateOutputOp, args: PythonValues) -> PythonValues:
        output, factor, exponentials, live, value = args
        start = np.full(len(output), value.start, np.int64)
        key_value = self.run.running().key_value
        # What the loop carries is nobody else's, so where nothing else reads it the update is in place.
        carried = isinstance(op.output.owner, Block) and isinstance(op.output.owner.parent_op(), tiled.TileLoopOp)
        out = output if carried and op.output.has_one_use() and output.flags.c_contiguous else None
        return (kernels.update_output(output, factor, exponentials, live, value.data, key_value, start, out=out),)

    @impl(lamp.RecordOp)
    def run_record(self, interpreter: Interpreter, op: lamp.RecordOp, args: PythonValues) -> PythonValues:
        masks = list(args[1:])
        head = self.run.running().head
        none = np.zeros(len(head), np.int64)
        stage1 = masks.pop(0).sum(axis=1) if op.stage1 is not None else none
        stage2 = masks.pop(0).sum(axis=1) if op.stage2 is not None else none
        final = stage1 + stage2
        if op.at_most is not None:
            stage1, final = (np.minimum(count, op.at_most.value.data) for count in (stage1, final))
        self.run.counts().add_tiles(head, stage1, final)
        return ()


def _blocks(live: Bools, at: SubBlocks, size: int) -> Bools:
    """The chosen sub-blocks of a tile's live entries, [chosen, keys of a sub-block, rows]."""
    lanes, keys, rows = live.shape
    return live.reshape(lanes, keys // size, size, rows)[at.lane, at.theta]
