"""Writing a stream of instructions: registers on top, then instructions in order, each at the location it comes from."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from xdsl.ir import Block, Operation, Region, SSAValue

from lampc.dialects.accel import IfAtLeastOp, IfMaskOp, LoopOp, StreamOp, WhileOp
from lampc.dialects.accel_inst import InstOp
from lampc.dialects.accel_registers import MaskOp, OrderOp, PartOp, ScalarOp, TileOp, VectorOp

OpT = TypeVar("OpT", bound=Operation)


class StreamWriter:
    """
    Builds the body of one `accel.stream`.

    Everything written has the location of `source`, which `at` changes for a while.
    """

    def __init__(self, source: Operation):
        self._body = Block()
        self._block = self._body
        self._source = source
        self._registers: list[Operation] = []

    def finish(self, name: str) -> StreamOp:
        """The stream `name`; nothing can be written after."""
        first = self._body.first_op
        if first is None:
            self._body.add_ops(self._registers)
        else:
            self._body.insert_ops_before(self._registers, first)
        stream = StreamOp(name, Region(self._body))
        stream.location = self._source.location
        return stream

    @contextmanager
    def at(self, source: Operation) -> Generator[None]:
        """Give what is written inside the location of `source`."""
        before, self._source = self._source, source
        yield
        self._source = before

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        """Write into `block`."""
        before, self._block = self._block, block
        yield
        self._block = before

    def inst(
        self,
        mnemonic: str,
        more: Mapping[str, SSAValue] | None = None,
        *,
        at: SSAValue | None = None,
        wait: SSAValue | None = None,
        xor: bool = False,
        signal: SSAValue | None = None,
        skip0: bool = False,
        imm: int | None = None,
        value: float | None = None,
        **registers: SSAValue,
    ) -> InstOp:
        """Append one instruction; its registers are `registers` and `more`."""
        return self._add(
            InstOp(
                mnemonic,
                registers | dict(more or {}),
                imm=imm,
                value=value,
                predicate=at,
                wait=wait,
                xor=xor,
                signal=signal,
                skip0=skip0,
            ),
            self._block,
        )

    def loop(self, counter: SSAValue) -> Block:
        """Append a loop; the block is its body."""
        return self._add(LoopOp(counter, Region(Block())), self._block).body.block

    def while_some(self, mask: SSAValue) -> tuple[Block, Block]:
        """Append a loop that runs its second block while `mask`, which the first computes, is not empty."""
        op = self._add(WhileOp(mask, Region(Block()), Region(Block())), self._block)
        return op.test.block, op.body.block

    def if_some(self, mask: SSAValue) -> tuple[Block, Block]:
        """Append a branch on `mask` not being empty: the blocks for yes and for no."""
        op = self._add(IfMaskOp(mask, Region(Block())), self._block)
        return op.then.block, op.otherwise.block

    def if_at_least(self, scalar: SSAValue, bound: int) -> tuple[Block, Block]:
        """Append a branch on a scalar being at least `bound`: the blocks for yes and for no."""
        op = self._add(IfAtLeastOp(scalar, bound, Region(Block())), self._block)
        return op.then.block, op.otherwise.block

    def tile(self, hint: str, granules: int) -> SSAValue:
        """Declare tile registers."""
        return self._declare(TileOp(granules), hint)

    def vector(self, hint: str, count: int = 1) -> SSAValue:
        """Declare row vectors."""
        return self._declare(VectorOp(count), hint)

    def mask(self, hint: str) -> SSAValue:
        """Declare a sub-block mask."""
        return self._declare(MaskOp(), hint)

    def order(self, hint: str) -> SSAValue:
        """Declare an order of sub-blocks."""
        return self._declare(OrderOp(), hint)

    def scalar(self, hint: str, count: int = 1) -> SSAValue:
        """Declare scalars."""
        return self._declare(ScalarOp(count), hint)

    def part(self, run: SSAValue, offset: int, hint: str) -> SSAValue:
        """Name one register of a declared run."""
        return self._declare(PartOp(run, offset), hint)

    def ring(self, hint: str) -> SSAValue:
        """Declare a ring's slot and phase and set them to 0."""
        ring = self.scalar(hint, 2)
        self.inst("s.mov", sd=ring, imm=0)
        self.inst("s.mov", sd=self.part(ring, 1, f"{hint}_phase"), imm=0)
        return ring

    def _declare(self, op: Operation, hint: str) -> SSAValue:
        op.location = self._source.location
        op.results[0].name_hint = hint
        self._registers.append(op)
        return op.results[0]

    def _add(self, op: OpT, block: Block) -> OpT:
        op.location = self._source.location
        block.add_op(op)
        return op
