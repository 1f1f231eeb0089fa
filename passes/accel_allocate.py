"""Give every register, buffer and barrier of a program its number."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lampc.dialects.accel import IfAtLeastOp, IfMaskOp, LoopOp, ProgramOp, StreamOp, WhileOp
from lampc.dialects.accel_inst import InstOp
from lampc.dialects.accel_registers import COUNT, BarrierOp, BufferOp, DeclarationOp, DescriptorOp, MaskOp, PartOp
from lampc.errors import CompileError

LINE_BYTES = 64
"""Buffers start at multiples of this."""


@dataclass(frozen=True)
class AccelAllocatePass(ModulePass):
    """
    Give registers, descriptors, buffers and barriers their numbers, and buffers their place in SRAM.

    A register is taken from its first to its last use, throughout every loop that carries its value round or past; two that are
    never needed at once may share a number.

    Before:
    ```mlir
    accel.program @attention_program {bq = 16 : i64, bk = 16 : i64, nk = 2 : i64, nq = 1 : i64, d = 8 : i64, dv = 8 : i64, lq = 16 : i64, lk = 32 : i64, batch = 1 : i64, hq = 1 : i64, hkv = 1 : i64, scale = 5.000000e-01 : f64, delta = 0.000000e+00 : f64, tau = 1.000000e+00 : f64, tie = "slack", cap = 0.000000e+00 : f64, causal = true, causal_offset = 0 : i64, window = 0 : i64, layout = "safe", policy = "fp32", kv_order = "forward", rounding = "rne", overflow = "saturate", seed = 0 : i64, accumulate_block = 1 : i64, operand = "f32", has_mask = false, has_bias = false, has_sinks = false} {
      %k = accel.descriptor {tensor = "k"}
      %k_buffer = accel.buffer {buffer = "k", slots = 3 : i64, bytes = 1024 : i64}
      %k_full = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64}
      %k_empty = accel.barrier {barrier = "k_empty", slots = 3 : i64, expected = 1 : i64}
      accel.stream "warp" {
        %ring = accel.scalar {count = 2 : i64}
        %query = accel.tile {granules = 2 : i64}
        %scores = accel.tile {granules = 8 : i64}
        %mu = accel.vector {count = 1 : i64}
        %top = accel.vector {count = 2 : i64}
        %muh = accel.vector {count = 1 : i64}
        %lambda = accel.vector {count = 1 : i64}
        accel.inst "v.const"(vd = %mu, value = -inf)
        accel.inst "mx.qk.f32"(t = %scores, q = %query, buf = %k_buffer, ring = %ring) wait %k_full signal %k_empty
        accel.inst "v.rmax.f32"(vd = %top, t = %scores)
        accel.inst "v.vmax"(vd = %muh, va = %mu, vb = %top)
        accel.inst "exp.lambda"(vd = %lambda, va = %mu, vb = %muh)
      }
      accel.stream "dma" {
        %ring_1 = accel.scalar {count = 2 : i64}
        %tile = accel.scalar {count = 1 : i64}
        accel.inst "dma.ld"(buf = %k_buffer, desc = %k, tile = %tile, ring = %ring_1) wait %k_empty xor signal %k_full
      }
    }
    ```
    After `lamp-accel-allocate`:
    ```mlir
    accel.program @attention_program {bq = 16 : i64, bk = 16 : i64, nk = 2 : i64, nq = 1 : i64, d = 8 : i64, dv = 8 : i64, lq = 16 : i64, lk = 32 : i64, batch = 1 : i64, hq = 1 : i64, hkv = 1 : i64, scale = 5.000000e-01 : f64, delta = 0.000000e+00 : f64, tau = 1.000000e+00 : f64, tie = "slack", cap = 0.000000e+00 : f64, causal = true, causal_offset = 0 : i64, window = 0 : i64, layout = "safe", policy = "fp32", kv_order = "forward", rounding = "rne", overflow = "saturate", seed = 0 : i64, accumulate_block = 1 : i64, operand = "f32", has_mask = false, has_bias = false, has_sinks = false} {
      %k = accel.descriptor {tensor = "k", index = 0 : i64}
      %k_buffer = accel.buffer {buffer = "k", slots = 3 : i64, bytes = 1024 : i64, index = 0 : i64, base = 0 : i64}
      %k_full = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64, index = 0 : i64}
      %k_empty = accel.barrier {barrier = "k_empty", slots = 3 : i64, expected = 1 : i64, index = 3 : i64}
      accel.stream "warp" {
        %ring = accel.scalar {count = 2 : i64, index = 0 : i64}
        %query = accel.tile {granules = 2 : i64, index = 8 : i64}
        %scores = accel.tile {granules = 8 : i64, index = 0 : i64}
        %mu = accel.vector {count = 1 : i64, index = 2 : i64}
        %top = accel.vector {count = 2 : i64, index = 0 : i64}
        %muh = accel.vector {count = 1 : i64, index = 3 : i64}
        %lambda = accel.vector {count = 1 : i64, index = 0 : i64}
        accel.inst "v.const"(vd = %mu, value = -inf)
        accel.inst "mx.qk.f32"(t = %scores, q = %query, buf = %k_buffer, ring = %ring) wait %k_full signal %k_empty
        accel.inst "v.rmax.f32"(vd = %top, t = %scores)
        accel.inst "v.vmax"(vd = %muh, va = %mu, vb = %top)
        accel.inst "exp.lambda"(vd = %lambda, va = %mu, vb = %muh)
      }
      accel.stream "dma" {
        %ring_1 = accel.scalar {count = 2 : i64, index = 0 : i64}
        %tile = accel.scalar {count = 1 : i64, index = 2 : i64}
        accel.inst "dma.ld"(buf = %k_buffer, desc = %k, tile = %tile, ring = %ring_1) wait %k_empty xor signal %k_full
      }
    }
    ```
    Source: docs/accelerator.md section 1.
    """  # noqa: E501

    name = "lamp-accel-allocate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in op.walk():
            if isinstance(program, ProgramOp):
                _number_shared(program)
                for stream in program.body.block.ops:
                    if isinstance(stream, StreamOp):
                        _Lifetimes(stream).allocate()


def _number_shared(program: ProgramOp) -> None:
    descriptors = buffers = barriers = base = 0
    for op in program.body.block.ops:
        match op:
            case DescriptorOp():
                op.allocate(descriptors)
                descriptors += 1
            case BufferOp():
                op.allocate(buffers)
                op.properties["base"] = IntegerAttr(base, i64)
                base += -(-op.bytes.value.data * op.slots.value.data // LINE_BYTES) * LINE_BYTES
                buffers += 1
            case BarrierOp():
                op.allocate(barriers)
                barriers += op.size
            case _:
                pass


@dataclass(frozen=True)
class _Access:
    position: int
    block: Block
    writes_only: bool


@dataclass
class _Lifetimes:
    """When each register of a stream holds a value that is still needed, in positions of instructions written in a row."""

    stream: StreamOp
    _position: int = 0
    _accesses: dict[DeclarationOp, list[_Access]] = field(default_factory=dict[DeclarationOp, list[_Access]])
    _loops: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def allocate(self) -> None:
        """Number the registers: the lowest ones free for as long as each is needed, long runs first."""
        self._walk(self.stream.body.block)
        for declaration in self.stream.body.block.ops:
            if isinstance(declaration, DeclarationOp) and declaration not in self._accesses:
                declaration.allocate(_lowest(declaration))  # nobody uses it, so any number will do
        spans = [(self._span(accesses), declaration) for declaration, accesses in self._accesses.items()]
        taken: dict[str, list[tuple[int, int, int, int]]] = {}
        for (first, last), declaration in sorted(spans, key=lambda item: (-item[1].size, item[0])):
            kind = str(declaration.KIND)
            others = taken.setdefault(kind, [])
            busy = sorted((start, end) for start, end, begin, until in others if begin <= last and first <= until)
            at = _lowest(declaration)
            for start, end in busy:
                if at + declaration.size <= start:
                    break
                at = max(at, end)
            if at + declaration.size > COUNT[declaration.KIND]:
                raise CompileError(
                    f"the program needs more than the {COUNT[declaration.KIND]} registers of kind {kind} that a word can name; "
                    "take a smaller head size, smaller nk or larger bk"
                )
            declaration.allocate(at)
            others.append((at, at + declaration.size, first, last))

    def _walk(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case InstOp():
                    fields = {f.name: f for f in op.row.fields}
                    for name, register in op.named().items():
                        self._note(register, block, writes_only=fields[name].writes and not fields[name].reads)
                    if op.predicate is not None:
                        self._note(op.predicate, block)
                case LoopOp():
                    self._note(op.counter, block)
                    with_end = self._loop(op.body.block)
                    self._note(op.counter, with_end)
                case WhileOp():
                    first = self._position
                    self._walk(op.test.block)
                    self._note(op.mask, op.test.block)
                    self._walk(op.body.block)
                    self._loops.append((first, self._position))
                case IfMaskOp() | IfAtLeastOp():
                    self._note(op.operands[0], block)
                    self._walk(op.then.block)
                    self._walk(op.otherwise.block)
                case _:
                    continue
            self._position += 1

    def _loop(self, body: Block) -> Block:
        first = self._position
        self._walk(body)
        self._loops.append((first, self._position))
        return body

    def _note(self, register: SSAValue, block: Block, *, writes_only: bool = False) -> None:
        owner = register.owner
        while isinstance(owner, PartOp):
            # Writing a part keeps the rest.
            writes_only, owner = False, owner.run.owner
        if isinstance(owner, DeclarationOp) and owner.parent is not self.stream.parent:
            self._accesses.setdefault(owner, []).append(_Access(self._position, block, writes_only))

    def _span(self, accesses: list[_Access]) -> tuple[int, int]:
        first, last = accesses[0].position, accesses[-1].position
        for begin, end in sorted(self._loops, key=lambda loop: loop[1] - loop[0]):
            inside = [access for access in accesses if begin <= access.position <= end]
            if not inside:
                continue
            fresh = inside[0].writes_only and all(_within(access.block, inside[0].block) for access in inside)
            if len(inside) < len(accesses) or not fresh:
                first, last = min(first, begin), max(last, end)
        return first, last


def _lowest(declaration: DeclarationOp) -> int:
    return 1 if isinstance(declaration, MaskOp) else 0  # p0 is all ones


def _within(block: Block, outer: Block) -> bool:
    """Whether control reaches `block` only through `outer`."""
    return any(above is outer for above in _ancestors(block))


def _ancestors(block: Block) -> Iterator[Block]:
    current: Block | None = block
    while current is not None:
        yield current
        op: Operation | None = current.parent_op()
        current = op.parent if op is not None else None
