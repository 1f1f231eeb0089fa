"""
What a loader checks before a program runs: that it names only what there is, and fits the machine.

Source: docs/accelerator.md section 1.
"""

from itertools import pairwise
from typing import Protocol

import numpy as np

from lampc.errors import CompileError, InputError, printable
from lampc.targets.accel.instruction import COUNT, Format, Kind, Unit
from lampc.targets.accel.isa import BY_NAME
from lampc.targets.accel.layout import Geometry
from lampc.targets.accel.program import ELEMENT_BYTES, STREAMS, TABLES, TENSORS, Program

_ENDS = {BY_NAME["halt"].opcode, BY_NAME["br"].opcode}


class Limits(Protocol):
    """The part of a machine description that bounds what a thread block may take."""

    @property
    def register_file_bytes(self) -> int: ...

    @property
    def sram_bytes(self) -> int: ...


def check_program(program: Program, machine: Limits | None = None) -> None:
    """
    Raise InputError for a program that is not well-formed, CompileError for one that does not fit `machine`.

    Well-formed: every word decodes, streams end, every register run, descriptor, buffer and barrier exists, buffers hold the
    tiles loaded into them, the SRAM map does not overlap, tables have their sizes.
    """
    _check_declarations(program)
    for name in STREAMS:
        _check_stream(program, name)
    if machine is not None:
        check_fit(program, machine)


def check_fit(program: Program, machine: Limits) -> None:
    """Raise CompileError if a thread block does not fit the register file or the SRAM of `machine`."""
    warps, warp_bytes = program.cfg.nq, program.warp_bytes
    if warps * warp_bytes > machine.register_file_bytes:
        raise CompileError(
            f"{warps} warps of {warp_bytes} register bytes ({program.granules} granules, {program.vectors} vectors) exceed the "
            f"register file of {machine.register_file_bytes} bytes; take fewer warps (nq), smaller tiles or the compact layout"
        )
    if program.sram_bytes > machine.sram_bytes:
        raise CompileError(
            f"buffers end at byte {program.sram_bytes}, the SRAM at {machine.sram_bytes}; take fewer buffers or smaller tiles"
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
        raise InputError(f"stream {name!r} runs off its end; it must end in halt or br")
    firsts = {barrier.first for barrier in program.barriers}
    for index in range(len(stream)):
        row, fmt = stream.row(index), stream.fmt(index)
        where = f"stream {name!r}, word {index}: {row.name}"
        if (row.name == "dma.ld") != (name == "dma") and row.unit is not Unit.CTL:
            raise InputError(f"{where} does not belong into this stream")
        if fmt is Format.E4M11_SEQ and program.cfg.layout != "compact":
            raise InputError(f"{where}: the sequential update belongs to the compact layout")
        barriers = [int(stream.wait[index]), int(stream.signal[index])]
        for f in row.fields:
            value = int(stream.fields[f.name][index])
            if f.kind is Kind.BARRIER:
                barriers.append(value)
            elif f.kind in (Kind.T, Kind.V) and value >= 0:
                limit = program.granules if f.kind is Kind.T else program.vectors
                if value + geometry.span(f, fmt) > limit:
                    raise InputError(
                        f"{where}: {f.name} runs past the program's {limit} {'granules' if f.kind is Kind.T else 'vectors'}"
                    )
            elif (f.kind is Kind.D and value >= len(program.descriptors)) or (
                f.kind is Kind.B and value >= len(program.buffers)
            ):
                raise InputError(f"{where}: {f.kind}{value} is not declared")
        if any(barrier >= 0 and barrier not in firsts for barrier in barriers):
            raise InputError(f"{where}: a barrier that is no ring's first")
        if row.name == "dma.ld":
            _check_load(program, geometry, index, where)
    lut = bool(np.isin(stream.opcode, [BY_NAME["exp.lut"].opcode]).any())
    sfu = bool(((stream.opcode == BY_NAME["exp.sfu"].opcode) & (stream.format != Format.F32)).any())
    for table, needed in (("lut", lut), ("sfu", sfu)):
        if needed and table not in program.tables:
            raise InputError(f"stream {name!r} evaluates exponentials, but the program has no table {table!r}")


def _check_load(program: Program, geometry: Geometry, index: int, where: str) -> None:
    stream = program.decoded["dma"]
    descriptor = program.descriptors[int(stream.fields["desc"][index])]
    buffer = program.buffers[int(stream.fields["buf"][index])]
    needed = geometry.nk * geometry.bk * descriptor.row_bytes
    if buffer.bytes < needed:
        raise InputError(
            f"{where}: a tile of {descriptor.tensor!r} takes {needed} bytes, a slot of {buffer.name!r} {buffer.bytes}"
        )
