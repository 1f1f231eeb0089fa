"""
Object files: a program as bytes, read back like hostile input.

    magic 8 | version u32 | header bytes u32 | symbol bytes u32 | header JSON | tables | warp words | dma words | symbol JSON

All little-endian. The header gives table hashes and word counts, so every size is known, and checked, before anything is
allocated. A program has exactly one object: a file that `save` would not write is refused.
Source: docs/accelerator.md section 2.
"""

import json
import struct
from collections.abc import Mapping
from typing import NoReturn, cast

import numpy as np

from lampc.errors import InputError, printable
from lampc.numerics.encoding import Codes
from lampc.targets.accel.config import Config
from lampc.targets.accel.encoding import Words
from lampc.targets.accel.instruction import ISA_VERSION
from lampc.targets.accel.loader import check_program
from lampc.targets.accel.program import (
    STREAMS,
    TABLES,
    Barrier,
    Buffer,
    Descriptor,
    Program,
    canonical_json,
    exponential_tables,
    little_endian,
    table_hash,
)

MAGIC = b"LAMPOBJ\n"
MAX_WORDS = 1 << 16
MAX_JSON = 1 << 24
_FIXED = struct.Struct("<8sIII")


def save(program: Program) -> bytes:
    """The object of a program. Raises InputError for a program that `load` would refuse."""
    check_program(program)
    header = canonical_json(program.header())
    symbols = canonical_json(_pack_symbols(program))
    parts = [_FIXED.pack(MAGIC, ISA_VERSION, len(header), len(symbols)), header]
    parts += [little_endian(program.tables[name]) for name in sorted(program.tables)]
    parts += [little_endian(program.streams[name]) for name in STREAMS]
    return b"".join([*parts, symbols])


def load(data: bytes, file: str | None = None) -> Program:
    """The program in an object. Raises InputError, naming `file`, for anything but what `save` writes."""
    try:
        program = _load(data)
        check_program(program)
        if save(program) != data:
            _refuse("not in canonical form; it was not written by lampc, or was changed")
    except InputError as error:
        raise InputError(error.message, file=file, where="object file") from error
    return program


def _refuse(what: str) -> NoReturn:
    raise InputError(what)


def _load(data: bytes) -> Program:
    if len(data) < _FIXED.size or data[:8] != MAGIC:
        _refuse("the magic number of one is missing")
    _, version, header_bytes, symbol_bytes = cast(tuple[bytes, int, int, int], _FIXED.unpack_from(data))
    if version != ISA_VERSION:
        _refuse(f"made for version {version} of the instruction set; this is version {ISA_VERSION}")
    if max(header_bytes, symbol_bytes) > MAX_JSON or _FIXED.size + header_bytes + symbol_bytes > len(data):
        _refuse("truncated, or with sizes that cannot be")
    at = _FIXED.size + header_bytes
    header = _Record(_json(data[_FIXED.size : at]), "header")
    if header.integer("isa") != version:
        _refuse("header and file differ in version")
    tables, at = _tables(header.record("tables"), data, at)
    streams, at = _streams(header.record("words"), data, at)
    if at + symbol_bytes != len(data):
        _refuse(f"{len(data)} bytes, its header makes {at + symbol_bytes}")
    return Program(
        cfg=Config.from_dict(header.record("cfg").values),
        descriptors=tuple(_descriptor(entry) for entry in header.records("descriptors")),
        buffers=tuple(
            Buffer(e.text("name"), e.integer("base"), e.integer("bytes"), e.integer("slots")) for e in header.records("buffers")
        ),
        barriers=tuple(
            Barrier(e.text("name"), e.integer("first"), e.integer("slots"), e.integer("expected"))
            for e in header.records("barriers")
        ),
        granules=header.integer("granules"),
        vectors=header.integer("vectors"),
        streams=streams,
        tables=tables,
        symbols=_unpack_symbols(_Record(_json(data[at:]), "symbols"), streams),
    )


def _descriptor(entry: "_Record") -> Descriptor:
    shape = entry.integers("shape")
    if len(shape) != 4:
        _refuse("a descriptor has four axes")
    return Descriptor(entry.text("tensor"), (shape[0], shape[1], shape[2], shape[3]), entry.text("element"))


def _tables(record: "_Record", data: bytes, at: int) -> tuple[dict[str, Codes], int]:
    tables: dict[str, Codes] = {}
    for name in sorted(record.values):
        if name not in TABLES:
            _refuse(f"unknown table {printable(name, 40)!r}")
        dtype = np.dtype(TABLES[name][2]).newbyteorder("<")
        count = 1 << 8 * dtype.itemsize
        if at + count * dtype.itemsize > len(data):
            _refuse("truncated in its tables")
        table = np.frombuffer(data, dtype, count, at).astype(TABLES[name][2])
        if table_hash(table) != record.text(name):
            _refuse(f"table {name!r} does not have the hash that the header gives")
        tables[name], at = table, at + count * dtype.itemsize
    return tables, at


def _streams(record: "_Record", data: bytes, at: int) -> tuple[dict[str, Words], int]:
    streams: dict[str, Words] = {}
    for name in STREAMS:
        count = record.integer(name)
        if not 0 < count <= MAX_WORDS or at + 16 * count > len(data):
            _refuse(f"stream {name!r} cannot have {count} words")
        streams[name] = np.frombuffer(data, "<u4", 4 * count, at).astype(np.uint32).reshape(count, 4)
        at += 16 * count
    return streams, at


def _pack_symbols(program: Program) -> dict[str, object]:
    """Each string once, and for each word its place in that list; 0 is the empty one."""
    words = {name: [program.symbol(name, i) for i in range(len(program.streams[name]))] for name in STREAMS}
    strings = sorted({text for texts in words.values() for text in texts} | {""})
    place = {text: i for i, text in enumerate(strings)}
    return {"strings": strings, **{name: [place[text] for text in words[name]] for name in STREAMS}}


def _unpack_symbols(record: "_Record", streams: Mapping[str, Words]) -> dict[str, tuple[str, ...]]:
    strings = record.texts("strings")
    symbols: dict[str, tuple[str, ...]] = {}
    for name in STREAMS:
        places = record.integers(name)
        if len(places) != len(streams[name]) or any(not 0 <= place < len(strings) for place in places):
            _refuse(f"the symbols of stream {name!r} do not fit its words")
        symbols[name] = tuple(strings[place] for place in places)
    return symbols


def _json(data: bytes) -> object:
    try:
        return json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise InputError("its header or symbols are no JSON") from error


class _Record:
    """A JSON object with typed access; InputError for what is missing or of another type."""

    def __init__(self, value: object, name: str):
        if not isinstance(value, dict):
            _refuse(f"{name} is no JSON object")
        self.values = cast(dict[str, object], value)
        self.name = name

    def _get(self, key: str, kind: type, what: str) -> object:
        value = self.values.get(key)
        if type(value) is not kind:
            _refuse(f"{self.name}: {key!r} must be {what}")
        return value

    def integer(self, key: str) -> int:
        return cast(int, self._get(key, int, "an integer"))

    def text(self, key: str) -> str:
        return cast(str, self._get(key, str, "a string"))

    def integers(self, key: str) -> list[int]:
        values = cast(list[object], self._get(key, list, "a list of integers"))
        if any(type(value) is not int for value in values):
            _refuse(f"{self.name}: {key!r} must be a list of integers")
        return cast("list[int]", values)

    def texts(self, key: str) -> list[str]:
        values = cast(list[object], self._get(key, list, "a list of strings"))
        if any(type(value) is not str for value in values):
            _refuse(f"{self.name}: {key!r} must be a list of strings")
        return cast("list[str]", values)

    def record(self, key: str) -> "_Record":
        return _Record(self.values.get(key), key)

    def records(self, key: str) -> "list[_Record]":
        return [_Record(value, key) for value in cast(list[object], self._get(key, list, "a list"))]


__all__ = [
    "Barrier",
    "Buffer",
    "Config",
    "Descriptor",
    "Program",
    "check_program",
    "exponential_tables",
    "load",
    "save",
]
