"""
Programs as text. `assembler.py` says what the text looks like and reads it back.

Source: docs/accelerator.md section 2.
"""

from collections.abc import Iterator

import numpy as np

from lampc.targets.accel.encoding import DecodedStream
from lampc.targets.accel.instruction import ISA_VERSION, Field, Kind
from lampc.targets.accel.program import STREAMS, Program, table_hash

_CONFIG_PER_LINE = 6


def disassemble(program: Program) -> str:
    """The whole program as text: `assemble` gives the same program again. Raises InputError for a word that does not decode."""
    lines = [f".isa {ISA_VERSION}", *_config(program), f".registers granules={program.granules} vectors={program.vectors}"]
    lines += [f".descriptor {d.tensor} {d.element} {'x'.join(map(str, d.shape))}" for d in program.descriptors]
    lines += [f".buffer {b.name} base={b.base} bytes={b.bytes} slots={b.slots}" for b in program.buffers]
    lines += [f".barrier {b.name} first={b.first} slots={b.slots} expected={b.expected}" for b in program.barriers]
    lines += [f".table {name} {table_hash(program.tables[name])}" for name in sorted(program.tables)]
    for name in STREAMS:
        lines += [f".stream {name}", *_stream(program, name)]
    return "\n".join(lines) + "\n"


def instruction_text(program: Program, stream: str, index: int) -> str:
    """One instruction: `mx.qk.e4m3 t8, t0, k[s4] @p1 wait=k_full`, as in traces and reports."""
    decoded = program.decoded[stream]
    row, fmt = decoded.row(index), decoded.fmt(index)
    value = {f.name: int(decoded.fields[f.name][index]) for f in row.fields}
    operands: list[str] = []
    for f in row.fields:
        if f.name == "ring" and ("buf" in row or "bar" in row):
            continue
        if f.optional and value[f.name] < 0:
            continue
        text = _operand(program, f, value[f.name])
        operands.append(f"{text}[s{value['ring']}]" if f.name in ("buf", "bar") else text)
    parts = [row.mnemonic(fmt), ", ".join(operands), *_header(program, decoded, index)]
    return " ".join(part for part in parts if part)


def _config(program: Program) -> Iterator[str]:
    entries = [f"{name}={config_text(value)}" for name, value in program.cfg.to_dict().items()]
    for start in range(0, len(entries), _CONFIG_PER_LINE):
        yield ".cfg " + " ".join(entries[start : start + _CONFIG_PER_LINE])


def config_text(value: int | float | str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stream(program: Program, name: str) -> Iterator[str]:
    decoded = program.decoded[name]
    targets = set(decoded.fields["target"].tolist())
    for index in range(len(decoded)):
        if index in targets:
            yield f"L{index}:"
        text, symbol = instruction_text(program, name, index), program.symbol(name, index)
        yield f"  {text} ; {escape(symbol)}" if symbol else f"  {text}"


def _operand(program: Program, f: Field, value: int) -> str:
    match f.kind:
        case Kind.D:
            return program.descriptors[value].tensor
        case Kind.B:
            return program.buffers[value].name
        case Kind.BARRIER:
            return _barrier(program, value)
        case Kind.IMM:
            return str(value)
        case Kind.F32:
            return float_text(value)
        case Kind.TARGET:
            return f"L{value}"
        case Kind.T | Kind.V | Kind.P | Kind.O | Kind.S:
            return f"{f.kind}{value}"


def _barrier(program: Program, number: int) -> str:
    return next(b.name for b in program.barriers if b.first == number)


def _header(program: Program, decoded: DecodedStream, index: int) -> Iterator[str]:
    if predicate := int(decoded.predicate[index]):
        yield f"@p{predicate}"
    if (barrier := int(decoded.wait[index])) >= 0:
        yield f"wait={_barrier(program, barrier)}"
    if decoded.xor[index]:
        yield "xor"
    if (barrier := int(decoded.signal[index])) >= 0:
        yield f"signal={_barrier(program, barrier)}"
    if decoded.skip0[index]:
        yield "skip0"


def float_text(bits: int) -> str:
    """The shortest decimal that gives the FP32 number back; a NaN as its bits."""
    number = np.array([bits], np.uint32).view(np.float32)[0]
    return f"0x{bits:08x}" if np.isnan(number) else str(number)


def escape(symbol: str) -> str:
    """A symbol on one line of ASCII; `unescape` in the assembler undoes it."""
    text = symbol.encode("unicode_escape", "surrogatepass").decode("ascii")
    inner = text.strip(" ")
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return "\\x20" * left + inner + "\\x20" * right if inner else "\\x20" * len(text)
