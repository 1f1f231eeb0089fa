"""One tile's step as instructions: each op of the loop's body in turn, its values kept in the registers they share."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.passes.accel_lowering.description import Description, format_of
from lampc.passes.accel_lowering.refuse import refuse
from lampc.passes.accel_lowering.stream import StreamWriter


@dataclass
class Rings:
    """The rings of key and value tiles, as one stream sees them."""

    key: SSAValue
    value: SSAValue
    slots: dict[str, int]
    buffers: dict[str, SSAValue]
    barriers: dict[str, SSAValue]
    _loaded: set[str] = field(default_factory=set[str])

    def of(self, tensor: str) -> SSAValue:
        """Slot and phase of the ring of `k` or `v`."""
        return self.key if tensor == "k" else self.value

    def loaded(self, tensor: str) -> bool:
        """Whether `load` has been written for the tensor."""
        return tensor in self._loaded

    def load(self, w: StreamWriter, tensor: str, descriptor: SSAValue, tile: SSAValue) -> None:
        """Fill the current slot once every warp has left it."""
        self._loaded.add(tensor)
        w.inst(
            "dma.ld",
            buf=self.buffers[tensor],
            desc=descriptor,
            tile=tile,
            ring=self.of(tensor),
            wait=self.barriers[f"{tensor}_empty"],
            xor=True,
            signal=self.barriers[f"{tensor}_full"],
        )

    def release(self, w: StreamWriter, tensor: str, *, wait: bool = False) -> None:
        """Leave the current slot; a warp that has not read it must `wait` for it, or it would run a ring ahead."""
        full = self.barriers[f"{tensor}_full"] if wait else None
        w.inst("bar.arrive", bar=self.barriers[f"{tensor}_empty"], ring=self.of(tensor), wait=full)

    def release_all(self, w: StreamWriter) -> None:
        """Leave both current slots unread."""
        for tensor in ("k", "v"):
            self.release(w, tensor, wait=True)

    def advance(self, w: StreamWriter) -> None:
        """Both rings to the next slot."""
        for tensor in ("k", "v"):
            w.inst("s.ring", ring=self.of(tensor), imm=self.slots[tensor])


@dataclass
class State:
    """Where the online-softmax state lives from tile to tile."""

    maximum: SSAValue
    sum: SSAValue
    output: SSAValue


@dataclass
class Scores:
    """
    Scores in the tile registers: their format, the sub-blocks that hold them, and whether dead entries have the dead code yet.
    """

    format: str
    blocks: SSAValue
    masked: bool = False


@dataclass
class Exponentials:
    """
    Exponentials in the tile registers: which sub-blocks are 16 bit (None: none are).

    before, changed  the exponentials that these differ from in the sub-blocks `changed`, if they come from others
    sums             row sums of these by the register they start from
    """

    high: SSAValue | None
    before: "Exponentials | None" = None
    changed: SSAValue | None = None
    sums: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])


class StepLowering:
    """
    Writes the step of one live tile. Scores of either precision, shifts and exponentials all live in one scores tile: a value
    that is computed for some sub-blocks overwrites what they held.
    """

    def __init__(
        self,
        w: StreamWriter,
        description: Description,
        rings: Rings,
        state: State,
        query: SSAValue,
        live: SSAValue,
        partial: SSAValue,
        tile: SSAValue,
        entries: dict[str, SSAValue],
        scores: SSAValue | None = None,
    ):
        self._w = w
        self._d = description
        self._rings = rings
        self._state = state
        self._query = query
        self._live, self._partial = live, partial
        self._tile = tile
        self._entries = entries
        self._t = scores or w.tile("scores", description.config.geometry.tile_granules(wide=not description.mixed))
        self._bias: SSAValue | None = None
        self._none: SSAValue | None = None
        self._cut: tuple[SSAValue, SSAValue] | None = None
        self._registers: dict[SSAValue, SSAValue] = {}
        self._scores: dict[SSAValue, Scores] = {}
        self._exponentials: dict[SSAValue, Exponentials] = {}
        self._key_read = False
        self._leave_key = False

    def lower(self, bias: SSAValue | None) -> None:
        """Write the step; `bias` is the descriptor of the bias, if there is one."""
        self._begin(bias)
        ops = list(self._d.loop.body.block.ops)
        last_reader = [op for op in ops if reads_keys(op)][-1]
        for op in ops:
            with self._w.at(op):
                self._leave_key = op is last_reader
                self._op(op)
                if self._leave_key:  # its reads may not be reached
                    self._rings.release(self._w, "k")

    def _begin(self, bias: SSAValue | None) -> None:
        loop = self._d.loop
        carried = loop.body.block.args[1:]
        for value, register in zip(carried, (self._state.maximum, self._state.sum, self._state.output), strict=True):
            self._registers[value] = register
        if bias is not None:
            op = next(op for op in loop.walk() if isinstance(op, tiled.AddBiasOp))
            with self._w.at(op):
                self._bias = self._w.tile("bias", 4 * self._d.config.nk)
                self._w.inst("dma.ldb", bias=self._bias, desc=bias, tile=self._tile)

    def _format(self, value: SSAValue) -> str:
        """Suffix of the mnemonics for scores of a value's type."""
        return format_of(value)

    def _mixed(self) -> str:
        """Suffix of the mnemonics that take exponentials of every precision."""
        return "mix"

    def _op(self, op: Operation) -> None:
        match op:
            case tiled.LoadTileOp() | tiled.LiveEntriesOp():
                pass
            case lamp.AccumulateOp() | tiled.ScoresOp():
                self._accumulate(op, self._live)
            case tiled.SoftCapOp() | tiled.AddBiasOp():
                self._adjust(op)
            case lamp.LiveBlocksOp():
                self._registers[op.result] = self._live
            case lamp.SubBlockMaxOp():
                self._registers[op.result] = self._top(op.scores)
            case lamp.ThreatOrderOp():
                order = self._registers[op.result] = self._w.order("order")
                top, maximum = self._registers[op.top], self._registers[op.maximum]
                self._w.inst("v.threat", order=order, vb=top, va=maximum, at=self._live)
            case lamp.RaiseMaximumOp():
                self._registers[op.result] = self._raised(self._registers[op.maximum], self._registers[op.top])
            case lamp.RecomputeUnsafeOp():
                self._stage1(op)
            case lamp.RecomputeOp():
                self._recompute(op.body.block, op.scores, self._registers[op.mask])
            case lamp.WithoutOp():
                result = self._registers[op.result] = self._w.mask(_hint(op.result, "rest"))
                source, taken = self._registers[op.source], self._registers[op.taken]
                self._w.inst("p.andn", pd=result, pa=source, pb=taken)
            case lamp.ExponentialOp():
                self._exponential(op)
            case lamp.MergeOp():
                self._merge(op)
            case lamp.RescaleOp():
                self._registers[op.result] = self._factor(self._registers[op.maximum], self._registers[op.new_maximum])
            case lamp.ScaleSumOp():
                self._registers[op.result] = self._product(self._registers[op.factor], self._registers[op.sum])
            case lamp.RowSumOp():
                self._row_sum(op)
            case lamp.DisturbanceOp():
                self._weights(op)
            case lamp.KeepLowOp():
                keep = self._registers[op.result] = self._w.mask("keep")
                weights, total = self._registers[op.weights], self._registers[op.sum]
                self._w.inst("knap", pd=keep, vb=weights, va=total, pa=self._registers[op.free])
            case lamp.UpdateOutputOp():
                self._update(op.result, op.output, self._registers[op.factor], self._exponentials[op.exponentials])
            case lamp.RecordOp():
                self._record(*(None if mask is None else self._registers[mask] for mask in (op.stage1, op.stage2)))
            case tiled.OnlineSoftmaxOp():
                self._online(op)
            case tiled.YieldOp():
                self._move(op.values)
            case _:
                refuse(op, f"{op.name} is no part of a tile's step on the accelerator")

    # Scores

    def _accumulate(self, op: lamp.AccumulateOp | tiled.ScoresOp, blocks: SSAValue, *, skip0: bool = False) -> None:
        fmt = self._format(op.result)
        leave = self._leave_key and not isinstance(op.parent_op(), lamp.RecomputeUnsafeOp)
        self._w.inst(
            f"mx.qk.{fmt}",
            t=self._t,
            q=self._query,
            buf=self._rings.buffers["k"],
            ring=self._rings.key,
            at=blocks,
            wait=None if self._key_read else self._rings.barriers["k_full"],
            signal=self._rings.barriers["k_empty"] if leave else None,
            skip0=skip0,
        )
        self._key_read = True
        self._leave_key &= not leave
        self._scores[op.result] = Scores(fmt, blocks)

    def _adjust(self, op: tiled.SoftCapOp | tiled.AddBiasOp) -> None:
        scores = self._scores[op.scores]
        skip0 = scores.blocks is not self._live
        if isinstance(op, tiled.SoftCapOp):
            self._w.inst(f"v.cap.{scores.format}", t=self._t, at=scores.blocks, skip0=skip0)
        else:
            assert self._bias is not None
            self._w.inst(f"v.bias.{scores.format}", t=self._t, bias=self._bias, at=scores.blocks, skip0=skip0)
        self._scores[op.result] = Scores(scores.format, scores.blocks)

    def _mask(self, scores: Scores) -> None:
        """Mark dead entries, of those sub-blocks that have live ones too."""
        if scores.masked:
            return
        scores.masked = True
        mixed = self._partial
        if scores.blocks is not self._live:
            mixed = self._w.mask("some_dead")
            self._w.inst("p.and", pd=mixed, pa=scores.blocks, pb=self._partial)
        self._w.inst(f"v.mask.{scores.format}", self._entries, t=self._t, tile=self._tile, at=mixed, skip0=True)

    def _top(self, value: SSAValue) -> SSAValue:
        top = self._w.vector("top", self._d.config.nk)
        self._maxima(self._scores[value], top)
        return top

    def _maxima(self, scores: Scores, top: SSAValue) -> None:
        self._mask(scores)
        self._w.inst(f"v.rmax.{scores.format}", vd=top, t=self._t, at=scores.blocks)

    def _raised(self, maximum: SSAValue, top: SSAValue) -> SSAValue:
        raised = self._w.vector("muh")
        self._w.inst("v.vmax", vd=raised, va=maximum, vb=top, at=self._live)
        return raised

    def _recompute(self, region: Block, result: SSAValue, blocks: SSAValue) -> Scores:
        """The ops of a recompute region, for all sub-blocks of a mask at once."""
        for op in region.ops:
            with self._w.at(op):
                match op:
                    case lamp.AccumulateOp():
                        self._accumulate(op, blocks, skip0=blocks is not self._live)
                    case tiled.SoftCapOp() | tiled.AddBiasOp():
                        self._adjust(op)
                    case lamp.YieldOp():
                        self._scores[result] = self._scores[op.values[0]]
                    case _:
                        refuse(op, f"{op.name} is no part of a recomputation on the accelerator")
        return self._scores[result]

    def _stage1(self, op: lamp.RecomputeUnsafeOp) -> None:
        """
        Test what is left against the maximum so far, recompute the first unsafe sub-block in threat order, go on behind it.

        What lies before it in the order was safe when its turn came, and stays so whatever the maximum becomes.
        """
        w = self._w
        order, top, maximum = (self._registers[value] for value in (op.order, op.top, op.maximum))
        raised, left, high, one = w.vector("muh"), w.mask("left"), w.mask("high"), w.mask("one")
        w.inst("v.mov", vd=raised, va=maximum)
        w.inst("p.mov", pd=left, pa=self._live)
        w.inst("p.const", pd=high, imm=0)
        test, body = w.while_some(one)
        with w.inside(test):
            unsafe = w.mask("unsafe")
            w.inst("v.test", pd=unsafe, vb=top, va=raised, at=left)
            w.inst("p.next", pd=one, pa=unsafe, order=order)
        with w.inside(body):
            scores = self._recompute(op.body.block, op.scores, one)
            # The low maximum of a sub-block that is recomputed is not needed again.
            self._maxima(scores, top)
            w.inst("v.vmax", vd=raised, va=raised, vb=top, at=one)
            w.inst("p.after", pd=left, pa=left, pb=one, order=order)
            w.inst("p.or", pd=high, pa=high, pb=one)
        self._scores[op.scores] = Scores(scores.format, high, masked=True)
        self._registers[op.new_maximum] = raised
        self._registers[op.recomputed] = high

    # Exponentials

    def _exponential(self, op: lamp.ExponentialOp) -> None:
        scores, blocks = self._scores[op.scores], self._registers[op.mask]
        maximum = self._registers[op.maximum]
        self._mask(scores)
        if op.cut is not None:
            maximum = self._cut_maximum(maximum)
        self._shift_and_exp(scores.format, maximum, blocks, op.unit.data)
        self._exponentials[op.result] = Exponentials(None if op.unit.data == "lut" else blocks)

    def _shift_and_exp(self, fmt: str, maximum: SSAValue, blocks: SSAValue, unit: str) -> None:
        skip0 = blocks is not self._live
        self._w.inst(f"v.sub.{fmt}", t=self._t, va=maximum, at=blocks, skip0=skip0)
        mnemonic = "exp.lut" if unit == "lut" else f"exp.sfu.{fmt}"
        self._w.inst(mnemonic, t=self._t, at=blocks, skip0=skip0)

    def _cut_maximum(self, maximum: SSAValue) -> SSAValue:
        if self._cut is None or self._cut[0] is not maximum:
            self._cut = maximum, self._w.vector("muh_cut")
            self._w.inst("v.trunc", vd=self._cut[1], va=maximum)
        return self._cut[1]

    def _merge(self, op: lamp.MergeOp) -> None:
        """The scores tile holds both operands already; only which sub-blocks are 16 bit is new."""
        low, high = self._exponentials[op.low], self._exponentials[op.high]
        if op.low is op.high or high.high is None:
            self._exponentials[op.result] = low
        elif low.high is None:
            self._exponentials[op.result] = high
        else:
            both = self._w.mask("high_all")
            self._w.inst("p.or", pd=both, pa=low.high, pb=high.high)
            self._exponentials[op.result] = Exponentials(both, before=low, changed=high.high)

    def _high(self, e: Exponentials) -> SSAValue:
        return self._no_blocks() if e.high is None else e.high

    def _no_blocks(self) -> SSAValue:
        if self._none is None:
            self._none = self._w.mask("none")
            self._w.inst("p.const", pd=self._none, imm=0)
        return self._none

    # Sums and state

    def _factor(self, old: SSAValue, new: SSAValue) -> SSAValue:
        factor = self._w.vector("lambda")
        self._w.inst("exp.lambda", vd=factor, va=old, vb=new)
        return factor

    def _product(self, factor: SSAValue, total: SSAValue) -> SSAValue:
        product = self._w.vector("alpha")
        self._w.inst("v.mul", vd=product, va=factor, vb=total)
        return product

    def _row_sum(self, op: lamp.RowSumOp) -> None:
        """Where nothing changed since an earlier sum from the same start, that sum is the sum."""
        w, e, start = self._w, self._exponentials[op.exponentials], self._registers[op.start]
        high = self._high(e)
        result = self._carried_register(op.result) or w.vector(_hint(op.result, "omega_hat"))
        known = e.before.sums.get(start) if e.before is not None else None
        if known is not None and e.changed is not None:
            w.inst("v.mov", vd=result, va=known)
            some, _ = w.if_some(e.changed)
            with w.inside(some):
                w.inst(f"v.rsum.{self._mixed()}", vd=result, va=start, t=self._t, hi=high, at=self._live)
        else:
            w.inst(f"v.rsum.{self._mixed()}", vd=result, va=start, t=self._t, hi=high, at=self._live)
        self._registers[op.result] = e.sums[start] = result

    def _weights(self, op: lamp.DisturbanceOp) -> None:
        """Only the sub-blocks that stage 2 may choose from need a weight."""
        readers = [use.operation for use in op.result.uses]
        free = {reader.free for reader in readers if isinstance(reader, lamp.KeepLowOp)}
        blocks = self._registers[free.pop()] if len(free) == 1 else self._live
        result = self._registers[op.result] = self._w.vector("xi", self._d.config.nk)
        high = self._high(self._exponentials[op.exponentials])
        self._w.inst("v.xi", vd=result, va=self._registers[op.sum], t=self._t, hi=high, at=blocks)

    def _update(self, result: SSAValue, output: SSAValue, factor: SSAValue, e: Exponentials) -> None:
        rows = self._registers[result] = self._registers[output]
        high = self._high(e)
        self._w.inst("v.scale", o=rows, va=factor)
        self._multiply(rows, self._mixed(), high)

    def _multiply(self, rows: SSAValue, fmt: str, high: SSAValue) -> None:
        self._w.inst(
            f"mx.pv.{fmt}",
            o=rows,
            t=self._t,
            buf=self._rings.buffers["v"],
            ring=self._rings.value,
            hi=high,
            at=self._live,
            wait=self._rings.barriers["v_full"],
            signal=self._rings.barriers["v_empty"],
        )

    def _record(self, stage1: SSAValue | None, stage2: SSAValue | None) -> None:
        first, second = (self._no_blocks() if mask is None else mask for mask in (stage1, stage2))
        self._w.inst("v.stat", pa=first, pb=second)

    def _online(self, op: tiled.OnlineSoftmaxOp) -> None:
        """A FlashAttention-2 step in FP32."""
        old_maximum, old_sum = self._registers[op.maximum], self._registers[op.sum]
        scores = self._scores[op.scores]
        maximum = self._raised(old_maximum, self._top(op.scores))
        self._shift_and_exp(scores.format, maximum, self._live, "sfu")
        factor = self._factor(old_maximum, maximum)
        alpha = self._product(factor, old_sum)
        none = self._no_blocks()
        total = self._carried_register(op.new_sum) or self._w.vector("omega1")
        self._w.inst("v.rsum.f32", vd=total, va=alpha, t=self._t, hi=none, at=self._live)
        rows = self._registers[op.output]
        self._w.inst("v.scale", o=rows, va=factor)
        self._multiply(rows, "f32", none)
        self._w.inst("v.stat", pa=none, pb=none)
        for value, register in ((op.new_maximum, maximum), (op.new_sum, total), (op.new_output, rows)):
            self._registers[value] = register

    def _move(self, values: Iterable[SSAValue]) -> None:
        """Move the new state to where the next step expects it."""
        homes = (self._state.maximum, self._state.sum, self._state.output)
        for home, value in zip(homes, values, strict=True):
            now = self._registers[value]
            if now is not home:
                self._w.inst("v.mov", vd=home, va=now)

    def _carried_register(self, value: SSAValue) -> SSAValue | None:
        """The register of the carried state that `value` becomes, if nothing reads the old state from here on."""
        block = self._d.loop.body.block
        last = block.last_op
        if last is None or value not in last.operands:
            return None
        argument = block.args[1 + list(last.operands).index(value)]
        owner = value.owner
        assert isinstance(owner, Operation)
        position = {op: index for index, op in enumerate(block.ops)}
        later = [use for use in argument.uses if position.get(use.operation, len(position)) > position[owner]]
        return None if later else self._registers[argument]


def reads_keys(op: Operation) -> bool:
    """Whether an op of the loop's body reads the key tile."""
    return any(isinstance(inner, lamp.AccumulateOp | tiled.ScoresOp) for inner in op.walk())


def _hint(value: SSAValue, otherwise: str) -> str:
    return value.name_hint or otherwise
