"""
128-bit instruction words: `uint32[n, 4]`, least significant word first.

Word 0 is the header, words 1 to 3 the payload; the table in `isa.py` says what lies where. Decoding is strict: an unknown
opcode, a format the instruction does not have, a non-zero reserved bit or a branch out of the stream is an error.
Source: docs/accelerator.md section 2.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lampc.errors import InputError
from lampc.targets.accel.isa import (
    BY_OPCODE,
    FIELD_NAMES,
    HEADER,
    Field,
    Format,
    HeaderField,
    Instruction,
    Kind,
    Span,
)

Words = NDArray[np.uint32]
Ints = NDArray[np.int64]

FIXED_SPAN = {Span.ONE: 1, Span.TWO: 2, Span.FOUR: 4}


@dataclass
class DecodedStream:
    """
    A stream as arrays of one entry per word.

    wait, signal   barrier, or -1 where there is none
    fields         per payload field name of the table; -1 in words that lack it or leave an optional one out, so check the
                   opcode first: imm may be -1 itself. imm is signed, value the bits of an FP32 number (`floats`).
    """

    opcode: Ints
    format: Ints
    predicate: Ints
    wait: Ints
    signal: Ints
    xor: Ints
    skip0: Ints
    fields: dict[str, Ints] = field(default_factory=dict[str, Ints])

    def __len__(self) -> int:
        return len(self.opcode)

    def row(self, index: int) -> Instruction:
        return BY_OPCODE[int(self.opcode[index])]

    def fmt(self, index: int) -> Format:
        return Format(int(self.format[index]))

    @property
    def floats(self) -> NDArray[np.float32]:
        """Field `value` as float32."""
        return self.fields["value"].astype(np.uint32).view(np.float32)

    @classmethod
    def empty(cls, count: int) -> "DecodedStream":
        """`count` words that are nothing yet; fill the arrays, then `encode`."""

        def full(value: int) -> Ints:
            return np.full(count, value, np.int64)

        return cls(full(0), full(0), full(0), full(-1), full(-1), full(0), full(0), {name: full(-1) for name in FIELD_NAMES})


class WordError(InputError):
    """A word that cannot be; `stream` (once known) and `index` say which, so that an assembler can name the line."""

    def __init__(self, index: int, what: str, *, bits: str = "", stream: str | None = None):
        super().__init__(f"word {index}{bits}: {what}", where=stream and f"stream {stream!r}")
        self.index = index
        self.what = what
        self.bits = bits
        self.stream = stream

    def within(self, stream: str) -> "WordError":
        """The same error, of a named stream."""
        return WordError(self.index, self.what, bits=self.bits, stream=stream)


def _fault(index: int, what: str, words: Words | None = None) -> WordError:
    bits = "" if words is None else " (0x" + "".join(f"{int(w):08x}" for w in words[index][::-1]) + ")"
    return WordError(index, what, bits=bits)


def _first(bad: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None


def _bits(words: Words, offset: int, width: int) -> Ints:
    word, shift = divmod(offset, 32)
    return (words[:, word].astype(np.int64) >> shift) & ((1 << width) - 1)


def _header(words: Words, name: str) -> Ints:
    return _bits(words, HEADER[name].offset, HEADER[name].width)


def _used_bits(row: Instruction) -> tuple[int, int, int]:
    used = [0, 0, 0]
    for f in row.fields:
        used[f.offset // 32] |= ((1 << f.bits) - 1) << f.offset % 32
    return used[0], used[1], used[2]


_HEADER_USED = sum(((1 << f.width) - 1) << f.offset for f in HEADER.values())


def decode(words: Words) -> DecodedStream:
    """Arrays of the stream `words`, uint32[n, 4]; InputError names the first bad word, its bits and what is wrong."""
    if words.ndim != 2 or words.shape[1] != 4 or words.dtype != np.uint32:
        raise InputError(f"a stream is uint32[n, 4], got {words.dtype}{list(words.shape)}")
    out = DecodedStream.empty(len(words))
    out.opcode = _header(words, "opcode")
    known = np.isin(out.opcode, list(BY_OPCODE))
    if (bad := _first(~known)) is not None:
        raise _fault(bad, f"unknown opcode 0x{int(out.opcode[bad]):02x}", words)
    if (bad := _first((words[:, 0] & np.uint32(0xFFFFFFFF ^ _HEADER_USED)) != 0)) is not None:
        raise _fault(bad, "reserved header bits are not zero", words)
    for name in ("format", "predicate", "xor", "skip0"):
        setattr(out, name, _header(words, name))
    for name in ("wait", "signal"):
        barrier, enabled = _header(words, name), _header(words, f"{name}_enable") == 1
        if (bad := _first(~enabled & (barrier != 0))) is not None:
            raise _fault(bad, f"{name} is off but names a barrier", words)
        setattr(out, name, np.where(enabled, barrier, -1))
    for opcode in np.unique(out.opcode):
        row, at = BY_OPCODE[int(opcode)], np.flatnonzero(out.opcode == opcode)
        part = words[at]
        for number, used in enumerate(_used_bits(row)):
            if (bad := _first((part[:, number + 1] & np.uint32(0xFFFFFFFF ^ used)) != 0)) is not None:
                raise _fault(int(at[bad]), f"{row.name}: reserved payload bits are not zero", words)
        for f in row.fields:
            out.fields[f.name][at] = _decode_field(part, f, row, at, words)
    check(out, words)
    return out


def _decode_field(part: Words, f: Field, row: Instruction, at: NDArray[np.int64], words: Words) -> Ints:
    value = _bits(part, 32 + f.offset, f.width)
    if f.kind is Kind.IMM:
        return part[:, 1 + f.offset // 32].view(np.int32).astype(np.int64)
    if not f.optional:
        return value
    present = _bits(part, 32 + f.offset + f.width, 1) == 1
    if (bad := _first(~present & (value != 0))) is not None:
        raise _fault(int(at[bad]), f"{row.name}: {f.name} is absent but not zero", words)
    return np.where(present, value, -1)


def check(stream: DecodedStream, words: Words | None = None) -> None:
    """The rules that hold for words and assembly alike; InputError names the first word that breaks one."""
    count = len(stream)
    for opcode in np.unique(stream.opcode):
        row, at = BY_OPCODE[int(opcode)], np.flatnonzero(stream.opcode == opcode)

        def refuse(bad: NDArray[np.bool_], what: str, row: Instruction = row, at: NDArray[np.int64] = at) -> None:
            if (first := _first(bad)) is not None:
                raise _fault(int(at[first]), f"{row.name}: {what}", words)

        formats = ", ".join(f.text or "none" for f in row.formats)
        refuse(~np.isin(stream.format[at], list(row.formats)), f"bad format; it has {formats}")
        predicate, skip0 = stream.predicate[at], stream.skip0[at] == 1
        if not row.masked:
            refuse(predicate != 0, "works on no sub-block mask, so its predicate is p0")
        if not row.skip0:
            refuse(skip0, "has no skip0")
        if row.in_place is not None:
            a, b = row.in_place
            refuse(skip0 & (stream.fields[a][at] != stream.fields[b][at]), f"skip0 needs {a} and {b} equal")
        waits = (stream.wait[at] >= 0) | (row.name == "bar.wait")
        if not row.synchronises:
            refuse(waits | (stream.signal[at] >= 0), "has no ring, so it neither waits nor signals")
        refuse(~waits & (stream.xor[at] != 0), "xor without wait")
        for f in row.fields:
            value = stream.fields[f.name][at]
            if f.kind is Kind.TARGET:
                refuse(value >= count, f"branches out of the stream of {count} words")
            if f.kind is Kind.P and f.writes:
                refuse(value == 0, "writes p0, which is read-only")
            if f.span in FIXED_SPAN and f.kind in (Kind.S, Kind.V, Kind.T):
                last = value + FIXED_SPAN[f.span] - 1
                refuse(last >= 1 << f.width, f"{f.name} runs past the last register {f.kind}{(1 << f.width) - 1}")


def _put(words: Words, offset: int, width: int, value: Ints) -> None:
    word, shift = divmod(offset, 32)
    words[:, word] |= ((value & ((1 << width) - 1)) << shift).astype(np.uint32)


def encode(stream: DecodedStream) -> Words:
    """
    Words of a stream, uint32[n, 4]: the inverse of `decode`, with the same errors.

    Fields that an instruction does not have are ignored, so `decode(encode(s))` gives -1 there.
    """
    unknown = ~np.isin(stream.opcode, list(BY_OPCODE))
    if (bad := _first(unknown)) is not None:
        raise _fault(bad, f"unknown opcode 0x{int(stream.opcode[bad]):02x}")
    _check_ranges(stream)
    check(stream)
    words = np.zeros((len(stream), 4), np.uint32)

    def put(header: HeaderField, value: Ints) -> None:
        _put(words, header.offset, header.width, value)

    for name in ("opcode", "format", "predicate", "xor", "skip0"):
        put(HEADER[name], getattr(stream, name))
    for name in ("wait", "signal"):
        value: Ints = getattr(stream, name)
        put(HEADER[name], np.maximum(value, 0))
        put(HEADER[f"{name}_enable"], (value >= 0).astype(np.int64))
    for opcode in np.unique(stream.opcode):
        row, at = BY_OPCODE[int(opcode)], np.flatnonzero(stream.opcode == opcode)
        part = words[at]
        for f in row.fields:
            value = stream.fields[f.name][at]
            if f.optional:
                _put(part, 32 + f.offset + f.width, 1, (value >= 0).astype(np.int64))
                value = np.maximum(value, 0)
            _put(part, 32 + f.offset, f.width, value)
        words[at] = part
    return words


def _check_ranges(stream: DecodedStream) -> None:
    def inside(value: Ints, low: int, high: int, what: str, at: NDArray[np.int64] | None = None) -> None:
        if (bad := _first((value < low) | (value > high))) is not None:
            index = bad if at is None else int(at[bad])
            raise _fault(index, f"{what} is {int(value[bad])}, not in {low}..{high}")

    for name in ("predicate", "xor", "skip0"):
        inside(getattr(stream, name), 0, (1 << HEADER[name].width) - 1, name)
    for name in ("wait", "signal"):
        inside(getattr(stream, name), -1, (1 << HEADER[name].width) - 1, name)
    for opcode in np.unique(stream.opcode):
        row, at = BY_OPCODE[int(opcode)], np.flatnonzero(stream.opcode == opcode)
        for f in row.fields:
            low = -(1 << 31) if f.kind is Kind.IMM else -1 if f.optional else 0
            high = (1 << 31) - 1 if f.kind is Kind.IMM else (1 << f.width) - 1
            inside(stream.fields[f.name][at], low, high, f"{row.name}: {f.name}", at)
