"""
What a loader checks before a program runs: that it names only what there is, and fits the machine.

Source: docs/accelerator.md section 1.
"""

import re
from itertools import pairwise

from lampc.errors import CompileError, InputError, printable
from lampc.targets.accel.encoding import DecodedStream, WordError
from lampc.targets.accel.instruction import COUNT, Format, Kind, Unit
from lampc.targets.accel.isa import BY_NAME
from lampc.targets.accel.layout import Geometry
from lampc.targets.accel.program import ELEMENT_BYTES, STREAMS, TABLES, TENSORS, Program

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
"""What descriptors, buffers, barriers and labels may be called."""
_ENDS = {BY_NAME["halt"].opcode, BY_NAME["br"].opcode}


def check_program(program: Program) -> None:
    """
    Raise InputError for a program that is not well-formed.

    Well-formed: every word decodes, streams end, every register run, descriptor, buffer and barrier exists, buffers hold the
    tiles loaded into them, the SRAM map does not overlap, tables have their sizes.
    """
    _check_declarations(program)
    for name in STREAMS:
        _check_stream(program, name)


def check_fit(program: Program, *, register_bytes: int, sram_bytes: int) -> None:
    """Raise CompileError if a thread block does not fit a register file of `register_bytes` or an SRAM of `sram_bytes`."""
    warps, warp_bytes = program.cfg.nq, program.warp_bytes
    if warps * warp_bytes > register_bytes:
        raise CompileError(
            f"{warps} warps of {warp_bytes} register bytes ({program.granules} granules, {program.vectors} vectors) exceed the "
            f"register file of {register_bytes} bytes; take fewer warps (nq), smaller tiles or the compact layout"
        )
    if program.sram_bytes > sram_bytes:
        raise CompileError(
            f"buffers end at byte {program.sram_bytes}, the SRAM at {sram_bytes}; take fewer buffers or smaller tiles"
        )


def _check_declarations(program: Program) -> None:
    for kind, count in ((Kind.D, len(program.descriptors)), (Kind.B, len(program.buffers))):
        if count > COUNT[kind]:
            raise InputError(f"{count} of kind {kind!r} declared, there are {COUNT[kind]}")
    if not 0 <= program.granules <= COUNT[Kind.T] or not 0 <= program.vectors <= COUNT[Kind.V]:
        raise InputError(
            f"{program.granules} granules and {program.vectors} vectors: a warp has {COUNT[Kind.T]} and {COUNT[Kind.V]}"
        )
    for descriptor in program.descriptors:
        if descriptor.tensor not in TENSORS or descriptor.element not in ELEMENT_BYTES or min(descriptor.shape) < 1:
            raise InputError(f"descriptor {printable(descriptor.tensor, 40)!r}: bad tensor, element type or shape")
        expected = _shape(program, descriptor.tensor)
        broadcast = descriptor.tensor in ("mask", "bias")
        if any(a != b and not (broadcast and a == 1) for a, b in zip(descriptor.shape, expected, strict=True)):
            raise InputError(
                f"descriptor {descriptor.tensor!r}: shape {list(descriptor.shape)}, the configuration has {expected}"
            )
    for what, names in (
        ("descriptors", [d.tensor for d in program.descriptors]),
        ("buffers", [b.name for b in program.buffers]),
        ("barriers", [b.name for b in program.barriers]),
    ):
        if bad := next((name for name in names if not NAME.fullmatch(name)), None):
            raise InputError(
                f"{what}: {printable(bad, 40)!r} is no name; letters, digits and _ make one, not starting with a digit"
            )
        if len(set(names)) != len(names):
            raise InputError(f"{what}: two have one name")
    spans = sorted((b.base, b.end, b.name) for b in program.buffers)
    for b in program.buffers:
        if b.base < 0 or b.bytes < 1 or b.slots < 1:
            raise InputError(f"buffer {printable(b.name, 40)!r}: bad base, bytes or slots")
    for (_, end, name), (base, _, other) in pairwise(spans):
        if base < end:
            raise InputError(f"buffers {printable(name, 40)!r} and {printable(other, 40)!r} overlap in SRAM")
    taken = set[int]()
    for barrier in program.barriers:
        own = range(barrier.first, barrier.first + barrier.slots)
        if barrier.first < 0 or barrier.slots < 1 or own.stop > COUNT[Kind.BARRIER] or barrier.expected < 1 or taken & {*own}:
            raise InputError(f"barrier {printable(barrier.name, 40)!r}: bad or overlapping numbers, or no arrival expected")
        taken.update(own)
    for name, table in program.tables.items():
        if name not in TABLES or table.dtype != TABLES[name][2] or table.shape != (1 << 8 * table.dtype.itemsize,):
            raise InputError(f"table {printable(name, 40)!r}: unknown, or not of its size")


def _shape(program: Program, tensor: str) -> list[int]:
    c = program.cfg
    return {
        "q": [c.batch, c.hq, c.lq, c.d],
        "k": [c.batch, c.hkv, c.lk, c.d],
        "v": [c.batch, c.hkv, c.lk, c.dv],
        "o": [c.batch, c.hq, c.lq, c.dv],
        "mask": [c.batch, c.hq, c.lq, c.lk],
        "bias": [c.batch, c.hq, c.lq, c.lk],
        "sinks": [1, c.hq, 1, 1],
    }[tensor]


def _check_stream(program: Program, name: str) -> None:
    stream, geometry = program.decoded[name], program.cfg.geometry
    if not len(stream) or int(stream.opcode[-1]) not in _ENDS:
        raise WordError(max(len(stream) - 1, 0), "a stream ends in halt or br; this one runs off its end", stream=name)
    firsts = {barrier.first for barrier in program.barriers}
    for index in range(len(stream)):
        if fault := _fault(program, stream, index, geometry, firsts, dma=name == "dma"):
            raise WordError(index, f"{stream.row(index).name}: {fault}", stream=name)


def _fault(
    program: Program, stream: DecodedStream, index: int, geometry: Geometry, firsts: set[int], *, dma: bool
) -> str | None:
    """What is wrong with a word in this program, or None."""
    row, fmt = stream.row(index), stream.fmt(index)
    if (row.name == "dma.ld") != dma and row.unit is not Unit.CTL:
        return "does not belong into this stream"
    if fmt is Format.E4M11_SEQ and program.cfg.layout != "compact":
        return "the sequential update belongs to the compact layout"
    if row.name == "exp.lut" and "lut" not in program.tables:
        return "the program has no table 'lut'"
    if row.name == "exp.sfu" and fmt is not Format.F32 and "sfu" not in program.tables:
        return "the program has no table 'sfu'"
    barriers = [int(stream.wait[index]), int(stream.signal[index])]
    for f in row.fields:
        value = int(stream.fields[f.name][index])
        if f.kind is Kind.BARRIER:
            barriers.append(value)
        elif f.kind is Kind.T and value >= 0 and value + geometry.span(f, fmt) > program.granules:
            return f"{f.name} runs past the program's {program.granules} granules"
        elif f.kind is Kind.V and value + geometry.span(f, fmt) > program.vectors:
            return f"{f.name} runs past the program's {program.vectors} vectors"
        elif (f.kind is Kind.D and value >= len(program.descriptors)) or (f.kind is Kind.B and value >= len(program.buffers)):
            return f"{f.kind}{value} is not declared"
    if any(barrier >= 0 and barrier not in firsts for barrier in barriers):
        return "names a barrier that is no ring's first"
    if row.name == "dma.ld":
        descriptor = program.descriptors[int(stream.fields["desc"][index])]
        buffer = program.buffers[int(stream.fields["buf"][index])]
        needed = geometry.nk * geometry.bk * descriptor.row_bytes
        if buffer.bytes < needed:
            return f"a tile of {descriptor.tensor} takes {needed} bytes, a slot of {buffer.name} has {buffer.bytes}"
    return None
