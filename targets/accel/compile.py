"""From allocated `accel` IR to a program: control flow flattened to branches, instructions encoded, symbols kept."""

from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float16Type,
    Float32Type,
    IntegerType,
    NameLoc,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lampc.dialects.accel import IfAtLeastOp, IfMaskOp, LoopOp, ProgramOp, StreamOp, WhileOp
from lampc.dialects.accel_inst import InstOp
from lampc.dialects.accel_registers import (
    BarrierOp,
    BufferOp,
    DeclarationOp,
    DescriptorOp,
    TileOp,
    VectorOp,
    register_index,
)
from lampc.errors import CompileError
from lampc.targets.accel.config import Config
from lampc.targets.accel.encoding import DecodedStream, Words, encode
from lampc.targets.accel.instruction import Format
from lampc.targets.accel.isa import BY_NAME
from lampc.targets.accel.loader import check_program
from lampc.targets.accel.program import STREAMS, Barrier, Buffer, Descriptor, Program, exponential_tables

_ELEMENTS: dict[type[Attribute], str] = {
    Float32Type: "f32",
    BFloat16Type: "bf16",
    Float16Type: "f16",
    Float8E4M3FNType: "e4m3",
    IntegerType: "i1",
}


def compile_stream(stream: StreamOp) -> tuple[Words, tuple[str, ...]]:
    """The words of a stream and the IR location of each. Raises CompileError before allocation."""
    assembly = _Assembly()
    assembly.block(stream.body.block)
    assembly.emit(stream, "halt")
    return assembly.words(), tuple(assembly.symbols)


def compile_program(program: ProgramOp) -> Program:
    """
    The object of an allocated `accel.program`.

    Raises CompileError if it is not allocated, InputError if the words do not make a program.
    """
    streams: dict[str, Words] = {}
    symbols: dict[str, tuple[str, ...]] = {}
    for name in STREAMS:
        streams[name], symbols[name] = compile_stream(program.stream(name))
    config = program.config
    shared = list(program.body.block.ops)
    declared = [op for op in program.stream("warp").body.block.ops if isinstance(op, TileOp | VectorOp)]
    used = {_mnemonic(op) for op in program.walk() if isinstance(op, InstOp)}
    needed = {"lut": "exp.lut" in used, "sfu": "exp.sfu.e4m11" in used or "exp.sfu.e4m11.seq" in used}
    made = Program(
        cfg=config,
        descriptors=tuple(_descriptor(op, config) for op in shared if isinstance(op, DescriptorOp)),
        buffers=tuple(
            Buffer(op.buffer.data, _integer(op, "base"), op.bytes.value.data, op.slots.value.data)
            for op in shared
            if isinstance(op, BufferOp)
        ),
        barriers=tuple(
            Barrier(op.barrier.data, _first(op), op.size, op.expected.value.data) for op in shared if isinstance(op, BarrierOp)
        ),
        granules=max((_first(op) + op.size for op in declared if isinstance(op, TileOp)), default=0),
        vectors=max((_first(op) + op.size for op in declared if isinstance(op, VectorOp)), default=0),
        streams=streams,
        tables={name: table for name, table in exponential_tables().items() if needed[name]},
        symbols=symbols,
    )
    check_program(made)
    return made


def _mnemonic(op: InstOp) -> str:
    return op.mnemonic.data


def _first(op: DeclarationOp) -> int:
    if op.first is None:
        raise CompileError("a program is compiled after its registers are allocated; run lamp-accel-allocate")
    return op.first


def _integer(op: BufferOp, name: str) -> int:
    if op.base is None:
        raise CompileError(f"buffer {op.buffer.data!r} has no {name}; run lamp-accel-allocate")
    return op.base.value.data


def _descriptor(op: DescriptorOp, config: Config) -> Descriptor:
    c = config
    shapes = {
        "q": (c.batch, c.hq, c.lq, c.d),
        "k": (c.batch, c.hkv, c.lk, c.d),
        "v": (c.batch, c.hkv, c.lk, c.dv),
        "o": (c.batch, c.hq, c.lq, c.dv),
        "sinks": (1, c.hq, 1, 1),
    }
    name = op.tensor.data
    if op.type is None:
        element = c.operand if name in ("q", "k", "v") else "i1" if name == "mask" else "f32"
        return Descriptor(name, shapes.get(name, (c.batch, c.hq, c.lq, c.lk)), element)
    type: TensorType[Attribute] = op.type
    shape = type.get_shape()
    element = _ELEMENTS.get(type.element_type.__class__)
    if len(shape) != 4 or element is None:
        raise CompileError(f"descriptor {name!r} cannot have type {type}")
    return Descriptor(name, (shape[0], shape[1], shape[2], shape[3]), element)


def _location(op: Operation) -> str:
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""


@dataclass
class _Word:
    opcode: int
    format: int = 0
    predicate: int = 0
    wait: int = -1
    signal: int = -1
    xor: int = 0
    skip0: int = 0
    fields: dict[str, int] = field(default_factory=dict[str, int])


class _Assembly:
    """Words in order; a branch to a place not reached yet gets its target when it is."""

    def __init__(self) -> None:
        self._words: list[_Word] = []
        self.symbols: list[str] = []

    def emit(self, source: Operation, name: str, **fields: int) -> int:
        """Append a word without header options; its index."""
        self._words.append(_Word(BY_NAME[name].opcode, fields=fields))
        self.symbols.append(_location(source))
        return len(self._words) - 1

    def words(self) -> Words:
        """The encoded stream."""
        stream = DecodedStream.empty(len(self._words))
        for index, word in enumerate(self._words):
            for name in ("opcode", "format", "predicate", "wait", "signal", "xor", "skip0"):
                getattr(stream, name)[index] = getattr(word, name)
            for name, value in word.fields.items():
                stream.fields[name][index] = value
        return encode(stream)

    def block(self, block: Block) -> None:
        """Append the ops of a block."""
        for op in block.ops:
            match op:
                case InstOp():
                    self._inst(op)
                case LoopOp():
                    counter = _register(op.counter)
                    skip = self.emit(op, "br.sz", sa=counter)
                    start = len(self._words)
                    self.block(op.body.block)
                    self.emit(op, "loop", sd=counter, target=start)
                    self._here(skip)
                case WhileOp():
                    start = len(self._words)
                    self.block(op.test.block)
                    leave = self.emit(op, "br.z", pa=_register(op.mask))
                    self.block(op.body.block)
                    self.emit(op, "br", target=start)
                    self._here(leave)
                case IfMaskOp():
                    # The likely side, "not empty", is the one that needs no branch.
                    self._branches(op, self.emit(op, "br.z", pa=_register(op.mask)), op.then.block, op.otherwise.block)
                case IfAtLeastOp():
                    taken = self.emit(op, "br.ge", sa=_register(op.scalar), imm=op.bound.value.data)
                    self._branches(op, taken, op.otherwise.block, op.then.block)
                case _:
                    pass

    def _branches(self, op: Operation, branch: int, straight: Block, taken: Block) -> None:
        self.block(straight)
        if taken.ops:
            over = self.emit(op, "br")
            self._here(branch)
            self.block(taken)
            self._here(over)
        else:
            self._here(branch)

    def _here(self, branch: int) -> None:
        self._words[branch].fields["target"] = len(self._words)

    def _inst(self, op: InstOp) -> None:
        fields = {name: _register(register) for name, register in op.named().items()}
        if op.imm is not None:
            fields["imm"] = op.imm.value.data
        if op.value is not None:
            fields["value"] = int(np.float32(op.value.value.data).view(np.uint32))
        fmt: Format = op.format
        self._words.append(
            _Word(
                op.row.opcode,
                int(fmt),
                0 if op.predicate is None else _register(op.predicate),
                -1 if op.wait is None else _register(op.wait),
                -1 if op.signal is None else _register(op.signal),
                int(op.xor is not None),
                int(op.skip0 is not None),
                fields,
            )
        )
        self.symbols.append(_location(op))


def _register(register: SSAValue) -> int:
    index = register_index(register)
    if index is None:
        raise CompileError("a program is compiled after its registers are allocated; run lamp-accel-allocate")
    return index
