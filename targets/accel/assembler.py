r"""
Text to programs.

    .isa 1
    .cfg bq=16 bk=16 ...                                 ; entries left out take their defaults
    .registers granules=40 vectors=14
    .descriptor k f32 1x3x512x64                         ; tensor, element type, shape
    .buffer k base=0 bytes=16384 slots=3
    .barrier k_full first=0 slots=3 expected=1
    .table lut [sha256]                                  ; lut or sfu: the table of docs/lampattention.md section 4.6
    .stream warp
    again:
      mx.qk.e4m3 t8, t0, k[s4] @p1 wait=k_full signal=k_empty skip0 ; layers.0/attention
      br.nz p1, again
      halt
    .stream dma
      halt

Operands stand in the order of docs/isa.md; `buffer[s4]` and `barrier[s4]` give the ring. What follows `;` on an instruction's
line is its symbol, with Python's backslash escapes; on a line of its own it is a comment.
Source: docs/accelerator.md section 2.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import NoReturn

import numpy as np

from lampc.errors import InputError, printable
from lampc.targets.accel.config import Config
from lampc.targets.accel.encoding import DecodedStream, WordError, encode
from lampc.targets.accel.instruction import COUNT, ISA_VERSION, Field, Format, Instruction, Kind
from lampc.targets.accel.isa import BY_MNEMONIC, BY_NAME
from lampc.targets.accel.loader import NAME, check_program
from lampc.targets.accel.program import STREAMS, Barrier, Buffer, Descriptor, Program, exponential_tables, table_hash

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_BITS = re.compile(r"0x[0-9a-f]{8}", re.ASCII)
_LABEL = re.compile(rf"({NAME.pattern}):", re.ASCII)
_RING = re.compile(rf"({NAME.pattern})\[s([0-9]{{1,3}})\]", re.ASCII)


class _LineError(Exception):
    """What is wrong with the line at hand."""


def _refuse(what: str) -> NoReturn:
    raise _LineError(what)


@dataclass
class _Line:
    """An instruction as read: its place in the source, its words to be, its branch target's name."""

    number: int
    row: Instruction
    format: Format
    header: dict[str, int]
    fields: dict[str, int]
    label: str | None
    symbol: str


@dataclass
class _Source:
    """What has been read so far."""

    config: dict[str, str] = field(default_factory=dict[str, str])
    registers: dict[str, int] = field(default_factory=dict[str, int])
    descriptors: list[Descriptor] = field(default_factory=list[Descriptor])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    barriers: list[Barrier] = field(default_factory=list[Barrier])
    tables: dict[str, str | None] = field(default_factory=dict[str, str | None])
    streams: dict[str, list[_Line]] = field(default_factory=dict[str, list[_Line]])
    labels: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    stream: str | None = None


def assemble(text: str, file: str | None = None) -> Program:
    """The program that `text` describes. Raises InputError with `file` and line for the first mistake."""
    source = _Source()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            _read_line(source, number, line)
        except _LineError as error:
            raise InputError(str(error), file=file, where=f"line {number}") from error
    try:
        program = _program(source)
        check_program(program)
    except _LineError as error:
        raise InputError(str(error), file=file) from error
    except WordError as error:
        lines = source.streams.get(error.stream or "", [])
        where = f"line {lines[error.index].number}" if error.index < len(lines) else error.where
        raise InputError(error.what, file=file, where=where) from error
    except InputError as error:
        raise InputError(error.message, file=file, where=error.where) from error
    return program


def _read_line(source: _Source, number: int, line: str) -> None:
    code, semicolon, comment = line.partition(";")
    code = code.strip()
    if not code:
        return
    if code.startswith("."):
        _read_directive(source, code.split())
    elif source.stream is None:
        _refuse("instructions stand below .stream warp or .stream dma")
    elif match := _LABEL.fullmatch(code):
        labels = source.labels[source.stream]
        if match[1] in labels:
            _refuse(f"label {match[1]} stands here a second time")
        labels[match[1]] = len(source.streams[source.stream])
    else:
        symbol = unescape(comment.removeprefix(" ")) if semicolon else ""
        source.streams[source.stream].append(_read_instruction(source, number, code, symbol))


def unescape(text: str) -> str:
    """The symbol that the disassembler's `escape` wrote."""
    try:
        return text.strip().encode("ascii").decode("unicode_escape")
    except ValueError:
        _refuse("a symbol is ASCII, with backslash escapes")


def _read_directive(source: _Source, words: list[str]) -> None:
    directive, arguments = words[0], words[1:]
    match directive, arguments:
        case ".isa", [version]:
            if version != str(ISA_VERSION):
                _refuse(f"this is version {ISA_VERSION} of the instruction set, not {printable(version, 20)}")
        case ".cfg", _:
            source.config.update(_assignments(arguments, None, source.config))
        case ".registers", _:
            source.registers = _counts(arguments, "granules", "vectors")
        case ".descriptor", [tensor, element, shape]:
            sizes = [_integer(size) for size in shape.split("x")]
            if len(sizes) != 4:
                _refuse("a shape is BATCHxHEADSxROWSxCOLUMNS")
            source.descriptors.append(Descriptor(tensor, (sizes[0], sizes[1], sizes[2], sizes[3]), element))
        case ".buffer", [name, *rest]:
            source.buffers.append(Buffer(name, **_counts(rest, "base", "bytes", "slots")))
        case ".barrier", [name, *rest]:
            source.barriers.append(Barrier(name, **_counts(rest, "first", "slots", "expected")))
        case ".table", [name] | [name, _]:
            source.tables[name] = arguments[1] if len(arguments) > 1 else None
        case ".stream", [name] if name in STREAMS and name not in source.streams:
            source.stream, source.streams[name], source.labels[name] = name, [], {}
        case _:
            _refuse(f"cannot read directive {printable(' '.join(words), 60)}")


def _assignments(words: list[str], names: tuple[str, ...] | None, before: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or (names is not None and name not in names):
            _refuse(f"cannot read {printable(word, 40)}" + (f"; expected {'=... '.join(names)}=..." if names else ""))
        if name in values or name in before:
            _refuse(f"{printable(name, 40)} is set a second time")
        values[name] = value
    return values


def _counts(words: list[str], *names: str) -> dict[str, int]:
    values = _assignments(words, names, {})
    if missing := [name for name in names if name not in values]:
        _refuse(f"{missing[0]}=... is missing")
    return {name: _integer(value) for name, value in values.items()}


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        _refuse(f"expected a decimal integer, got {printable(text, 40)!r}")
    return int(text)


def _read_instruction(source: _Source, number: int, code: str, symbol: str) -> _Line:
    mnemonic, _, rest = code.partition(" ")
    if mnemonic not in BY_MNEMONIC:
        if mnemonic in BY_NAME:
            row = BY_NAME[mnemonic]
            _refuse(f"{mnemonic} needs a format: {', '.join(row.mnemonic(f) for f in row.formats)}")
        _refuse(f"there is no instruction {printable(mnemonic, 40)!r}")
    row, fmt = BY_MNEMONIC[mnemonic]
    header = {"predicate": 0, "wait": -1, "signal": -1, "xor": 0, "skip0": 0}
    operands, *tail = re.split(r" +(?=@|wait=|signal=|xor(?: |$)|skip0(?: |$))", f" {rest.strip()}")
    for word in " ".join(tail).split():
        _read_header(source, header, word)
    values = [text.strip() for text in operands.split(",")] if operands.strip() else []
    line = _Line(number, row, fmt, header, {}, None, symbol)
    shown = [f for f in row.fields if not (f.name == "ring" and ("buf" in row or "bar" in row))]
    if not sum(not f.optional for f in shown) <= len(values) <= len(shown):
        _refuse(f"{mnemonic} takes {', '.join(f.name for f in shown)}; got {len(values)} operands")
    for f, text in zip(shown, values, strict=False):
        _read_operand(source, line, f, text)
    return line


def _read_header(source: _Source, header: dict[str, int], word: str) -> None:
    key, _, name = word.partition("=")
    if word.startswith("@p"):
        key, value = "predicate", _number(word[1:], Kind.P)
    elif key in ("wait", "signal"):
        value = _barrier(source, name)
    elif word in ("xor", "skip0"):
        value = 1
    else:
        _refuse(f"cannot read {printable(word, 40)}; after the operands come @p1, wait=BARRIER, xor, signal=BARRIER, skip0")
    if header[key] > 0 or (header[key] == 0 and key in ("wait", "signal")):
        _refuse(f"{key} stands here a second time")
    header[key] = value


def _read_operand(source: _Source, line: _Line, f: Field, text: str) -> None:
    if f.name in ("buf", "bar"):
        match = _RING.fullmatch(text)
        if not match:
            what = "buffer" if f.name == "buf" else "barrier"
            _refuse(f"expected a {what} with its ring, such as k[s4], got {printable(text, 40)!r}")
        line.fields["ring"] = _number(f"s{match[2]}", Kind.S)
        text = match[1]
    match f.kind:
        case Kind.D:
            line.fields[f.name] = _place([d.tensor for d in source.descriptors], text, "descriptor")
        case Kind.B:
            line.fields[f.name] = _place([b.name for b in source.buffers], text, "buffer")
        case Kind.BARRIER:
            line.fields[f.name] = _barrier(source, text)
        case Kind.IMM:
            line.fields[f.name] = _integer(text)
        case Kind.F32:
            line.fields[f.name] = _float_bits(text)
        case Kind.TARGET:
            line.fields[f.name], line.label = 0, text
        case Kind.T | Kind.V | Kind.P | Kind.O | Kind.S:
            line.fields[f.name] = _number(text, f.kind)


def _number(text: str, kind: Kind) -> int:
    digits = text.removeprefix(kind)
    if digits == text or not digits.isascii() or not digits.isdigit() or len(digits) > 4 or int(digits) >= COUNT[kind]:
        _refuse(f"expected a register {kind}0 to {kind}{COUNT[kind] - 1}, got {printable(text, 40)!r}")
    return int(digits)


def _place(names: list[str], name: str, what: str) -> int:
    if name not in names:
        _refuse(f"there is no {what} {printable(name, 40)!r}; declared above: {', '.join(names) or 'none'}")
    return names.index(name)


def _barrier(source: _Source, name: str) -> int:
    return source.barriers[_place([b.name for b in source.barriers], name, "barrier")].first


def _float_bits(text: str) -> int:
    if _BITS.fullmatch(text):
        return int(text, 16)
    try:
        with np.errstate(over="ignore"):
            return int(np.array([float(text)]).astype(np.float32).view(np.uint32)[0])
    except ValueError:
        _refuse(f"expected a number or the bits of one (0x7fc00000), got {printable(text, 40)!r}")


def _program(source: _Source) -> Program:
    for name in STREAMS:
        if name not in source.streams:
            _refuse(f".stream {name} is missing")
    if not source.registers:
        _refuse(".registers granules=... vectors=... is missing")
    tables = exponential_tables()
    for name, expected in source.tables.items():
        if name not in tables:
            _refuse(f"there is no table {printable(name, 40)!r}; there are {', '.join(tables)}")
        if expected not in (None, table_hash(tables[name])):
            _refuse(
                f"table {name}: the hash is not that of the table of docs/lampattention.md section 4.6; text holds no other"
            )
    return Program(
        cfg=_config(source.config),
        descriptors=tuple(source.descriptors),
        buffers=tuple(source.buffers),
        barriers=tuple(source.barriers),
        granules=source.registers["granules"],
        vectors=source.registers["vectors"],
        streams={name: _words(source, name) for name in STREAMS},
        tables={name: tables[name] for name in source.tables},
        symbols={name: tuple(line.symbol for line in source.streams[name]) for name in STREAMS},
    )


def _config(texts: Mapping[str, str]) -> Config:
    values: dict[str, object] = {f.name: f.default for f in fields(Config) if f.default is not MISSING}
    kinds = {f.name: f.type for f in fields(Config)}
    for name, text in texts.items():
        kind = kinds.get(name, str)
        try:
            if kind is int:
                values[name] = _integer(text)
            elif kind is float:
                values[name] = float(text)
            else:
                values[name] = {"true": True, "false": False}.get(text, text) if kind is bool else text
        except ValueError:
            _refuse(f".cfg {name}: cannot read {printable(text, 40)!r}")
    return Config.from_dict(values)


def _words(source: _Source, name: str) -> "np.ndarray[tuple[int, int], np.dtype[np.uint32]]":
    lines, labels = source.streams[name], source.labels[name]
    stream = DecodedStream.empty(len(lines))
    for index, line in enumerate(lines):
        stream.opcode[index], stream.format[index] = line.row.opcode, line.format
        for key, value in line.header.items():
            getattr(stream, key)[index] = value
        for key, value in line.fields.items():
            stream.fields[key][index] = value
        if line.label is not None:
            if line.label not in labels:
                raise WordError(index, f"there is no label {printable(line.label, 40)!r}", stream=name)
            stream.fields["target"][index] = labels[line.label]
    try:
        return encode(stream)
    except WordError as error:
        raise error.within(name) from error
