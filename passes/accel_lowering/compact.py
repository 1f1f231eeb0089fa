"""
One tile's step under register layout `compact`: it branches where a second sub-block would need recomputation.

Source: docs/lampattention.md section 7, docs/accelerator.md section 2.
"""

from collections.abc import Iterable

from xdsl.ir import Block, Operation, SSAValue

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.passes.accel_lowering.description import Description, format_of
from lampc.passes.accel_lowering.step import Scores, StepLowering, reads_keys


class CompactStep(StepLowering):
    """
    Writes the step of a live tile that has a `lamp.disruptive`.

    There is room for one 16-bit sub-block. The instructions count what is to be recomputed as soon as it is known, and go on
    only while that is at most one sub-block:

        stage 1, count; if fewer than two: { up to stage 2's choice, count; if fewer than two: { the rest } }
        if two or more: the sequential update

    What only the rest needs is then written and read inside it, so that its registers are free elsewhere.
    """

    def lower(self, bias: SSAValue | None) -> None:
        """Write the step; `bias` is the descriptor of the bias, if there is one."""
        w, branch = self._w, _disruptive(self._d)
        assert branch is not None
        self._begin(bias)
        ops = [op for op in self._d.loop.body.block.ops if op is not branch]
        ends = [1 + ops.index(_owner(mask)) for mask in branch.masks]
        with w.at(branch):
            count = w.scalar("recomputed")
            if len(ends) == 1:
                self._no_blocks()  # both sides of the branch want it
        self._run(ops[: ends[0]])
        many, few = self._decide(branch, [branch.masks[0]], count)
        with w.inside(few):
            if len(ends) == 2:
                self._run(ops[ends[0] : ends[1]])
                _, rest = self._decide(branch, branch.masks, count)
                with w.inside(rest):
                    self._finish(ops[ends[1] :], branch)
            else:
                self._finish(ops[ends[0] :], branch)
        if len(ends) == 2:
            with w.inside(many), w.at(branch):  # what stage 2 would choose is not decided
                w.inst("p.const", pd=self._registers[branch.masks[1]], imm=0)
        with w.at(branch):
            many, _ = w.if_at_least(count, 2)
            with w.inside(many):
                self._sequential(branch)

    def _run(self, ops: Iterable[Operation]) -> None:
        for op in ops:
            with self._w.at(op):
                self._op(op)

    def _decide(self, branch: lamp.DisruptiveOp, masks: Iterable[SSAValue], count: SSAValue) -> tuple[Block, Block]:
        """Count the sub-blocks in the masks; the blocks for two or more, and for fewer."""
        w = self._w
        first, *more = (self._registers[mask] for mask in masks)
        with w.at(branch):
            for mask in more:
                both = w.mask("high_all")
                w.inst("p.or", pd=both, pa=first, pb=mask)
                first = both
            w.inst("p.cnt", sd=count, pa=first)
            return w.if_at_least(count, 2)

    def _finish(self, ops: list[Operation], branch: lamp.DisruptiveOp) -> None:
        """The rest of the step where at most one sub-block is 16 bit; the keys are left after their last reader."""
        readers = [op for op in ops if reads_keys(op)]
        if not readers:
            with self._w.at(branch):
                self._rings.release(self._w, "k")
        for op in ops:
            with self._w.at(op):
                if isinstance(op, tiled.YieldOp):
                    self._move(branch.otherwise)
                else:
                    self._op(op)
                if readers and op is readers[-1]:
                    self._rings.release(self._w, "k")

    def _stage1(self, op: lamp.RecomputeUnsafeOp) -> None:
        """Recompute the first unsafe sub-block in threat order; a second one is only found, and joins the mask."""
        w = self._w
        order, top, maximum = (self._registers[value] for value in (op.order, op.top, op.maximum))
        raised, high = w.vector("muh"), w.mask("high")
        unsafe, left, second = w.mask("unsafe"), w.mask("left"), w.mask("second")
        w.inst("v.mov", vd=raised, va=maximum)
        w.inst("v.test", pd=unsafe, vb=top, va=raised, at=self._live)
        w.inst("p.next", pd=high, pa=unsafe, order=order)
        some, _ = w.if_some(high)
        with w.inside(some):
            scores = self._recompute(op.body.block, op.scores, high)
            self._maxima(scores, top)
            w.inst("v.vmax", vd=raised, va=raised, vb=top, at=high)
            w.inst("p.after", pd=left, pa=self._live, pb=high, order=order)
            w.inst("v.test", pd=unsafe, vb=top, va=raised, at=left)
            w.inst("p.next", pd=second, pa=unsafe, order=order)
            w.inst("p.or", pd=high, pa=high, pb=second)
        self._scores[op.scores] = Scores(scores.format, high, masked=True)
        self._registers[op.new_maximum] = raised
        self._registers[op.recomputed] = high

    def _sequential(self, branch: lamp.DisruptiveOp) -> None:
        """The tile again from its entry, a chunk of sub-blocks at a time."""
        w, nk, chunk = self._w, self._d.config.nk, branch.chunk.value.data
        self._op(next(op for op in self._d.loop.body.block.ops if isinstance(op, lamp.RecordOp)))
        sub_blocks, partial = w.mask("sbs"), w.mask("sbs_partial")
        for start in range(0, nk, chunk):
            bits = sum(1 << theta for theta in range(start, min(nk, start + chunk)))
            w.inst("p.const", pd=sub_blocks, imm=bits)
            w.inst("p.and", pd=sub_blocks, pa=self._live, pb=sub_blocks)
            some, _ = w.if_some(sub_blocks)
            with w.inside(some):
                w.inst("p.and", pd=partial, pa=sub_blocks, pb=self._partial)
                self._chunk(sub_blocks, partial).lower_chunk(branch, self._bias)
        for tensor in ("k", "v"):
            self._rings.release(w, tensor)

    def _chunk(self, sub_blocks: SSAValue, partial: SSAValue) -> "_ChunkStep":
        return _ChunkStep(
            self._w,
            self._d,
            self._rings,
            self._state,
            self._query,
            sub_blocks,
            partial,
            self._tile,
            self._entries,
            scores=self._t,
        )


class _ChunkStep(StepLowering):
    """Writes the body of a `lamp.disruptive` for one chunk: `live` are its sub-blocks, `scores` the tile it works in."""

    def lower_chunk(self, branch: lamp.DisruptiveOp, bias: SSAValue | None) -> None:
        """Write the step from the carried state to the carried state; `bias` is the loaded tile, if there is one."""
        self._bias = bias
        mask, _, *state = branch.body.block.args
        homes = (self._state.maximum, self._state.sum, self._state.output)
        self._registers |= {mask: self._live} | dict(zip(state, homes, strict=True))
        for op in branch.body.block.ops:
            with self._w.at(op):
                if isinstance(op, lamp.YieldOp):
                    self._move(op.values)
                else:
                    self._op(op)

    def _format(self, value: SSAValue) -> str:
        return f"{format_of(value)}.seq"

    def _mixed(self) -> str:
        return "e4m11.seq"

    def _multiply(self, rows: SSAValue, fmt: str, high: SSAValue) -> None:
        """Both chunks read the value tile, which is left after the last."""
        self._w.inst(
            f"mx.pv.{fmt}",
            o=rows,
            t=self._t,
            buf=self._rings.buffers["v"],
            ring=self._rings.value,
            hi=high,
            at=self._live,
            wait=self._rings.barriers["v_full"],
        )


def step_of(description: Description) -> type[StepLowering]:
    """How the steps of an attention are written: with a branch or without."""
    return StepLowering if _disruptive(description) is None else CompactStep


def _disruptive(description: Description) -> lamp.DisruptiveOp | None:
    return next((op for op in description.loop.body.block.ops if isinstance(op, lamp.DisruptiveOp)), None)


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation)
    return value.owner
