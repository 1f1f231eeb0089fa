"""
docs/isa.md, written from the instruction table: `python -m lampc.targets.accel.isa_doc [--check]`.

Source: docs/accelerator.md section 2; the steps are those of docs/lampattention.md section 4.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lampc.targets.accel.isa import BY_NAME, COUNT, HEADER, ISA_VERSION, TABLE, Field, Instruction, Kind, Unit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "isa.md"
COMMAND = "python -m lampc.targets.accel.isa_doc"

STEPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("-", "who am I, which tiles, which slot", ("s.id", "s.range", "s.tile", "s.mov", "s.add", "s.ring")),
    ("-", "load query, mask, bias, sink; key and value tiles by DMA", ("dma.ldr", "dma.ldm", "dma.ldb", "v.ld", "dma.ld")),
    ("3", "state: maximum, sum, output; sinks", ("v.const", "v.mov", "v.zero", "v.round")),
    ("1", "scale the queries, once", ("v.scaleq",)),
    ("2", "low, high and FP32 accumulation", ("mx.qk",)),
    ("3", "live sub-blocks, then cap, bias, mask", ("v.live", "v.cap", "v.bias", "v.mask")),
    ("4", "sub-block maxima and their order", ("v.rmax", "v.threat")),
    ("5", "stage 1: test, next unsafe one, raise the maximum", ("v.test", "p.next", "p.after", "v.vmax")),
    ("6", "shift and exponentials", ("v.trunc", "v.sub", "exp.lut", "exp.sfu")),
    ("6", "polynomial exponentials (fa2-poly)", ("v.scalet", "v.floor", "v.fill", "v.fma", "v.ldexp")),
    ("7", "lambda, alpha, new sum", ("exp.lambda", "v.mul", "v.rsum")),
    ("8", "stage 2: weights and the set that stays low", ("v.xi", "knap")),
    ("9", "commit: scale the output, add E*V", ("v.scale", "mx.pv")),
    ("9", "after the last tile: divide and store", ("v.norm", "dma.st")),
    ("-", "layout compact: count, branch to the sequential update", ("p.cnt", "br.ge")),
    ("-", "sub-block masks", ("p.mov", "p.and", "p.or", "p.andn", "p.const")),
    ("-", "branches", ("br", "br.z", "br.nz", "br.sz", "loop", "halt")),
    ("-", "synchronise, count, mark", ("bar.arrive", "bar.wait", "v.stat", "mark")),
)

_INTRODUCTION = f"""\
# Instruction set of the modelled accelerator

Version {ISA_VERSION}. Written by `{COMMAND}` from the table in targets/accel/isa.py; do not edit. The machine and its
units are in accelerator.md, the steps in lampattention.md section 4.

An instruction is a 128-bit word: a 32-bit header and 96 bits of payload, least significant bit first. Bits that no field covers
are zero; anything else does not decode. `pop` is the number of sub-blocks in the instruction's mask.

Text: mnemonic, with the format where there is a choice; operands in the order below, where `k[s4]` is buffer (or barrier)
`k` at the ring slot in s4, with the phase in s5; then what the header says: `@p1` the mask of sub-blocks, `wait=` and `signal=`
a barrier, `xor` (wait for the other parity), `skip0`. A barrier is arrived at on completion and waited for at issue. With
`skip0` an instruction whose mask is empty retires at issue, in one cycle, and writes nothing; it still waits and signals.
Logged instructions put one value an execution into the decision log, from which the timing engine takes every branch."""


def _price(name: str) -> str:
    row = BY_NAME[name]
    return f"{row.unit}: {row.price}"


def _steps() -> Iterator[str]:
    yield "## Steps of lampattention.md section 4, instructions, price"
    yield ""
    yield "| step | what | instructions | price |"
    yield "|---|---|---|---|"
    for step, what, names in STEPS:
        by_price: dict[str, list[str]] = {}
        for name in names:
            by_price.setdefault(_price(name), []).append(f"`{name}`")
        several = len(by_price) > 1
        prices = "<br>".join(f"{', '.join(group)}: {price}" if several else price for price, group in by_price.items())
        yield f"| {step} | {what} | {' '.join(f'`{name}`' for name in names)} | {prices} |"


def _header() -> Iterator[str]:
    yield "## Header"
    yield ""
    yield "| field | bits |"
    yield "|---|---|"
    for field in HEADER.values():
        yield f"| {field.name} | {_bits(field.offset, field.width)} |"
    end = max(field.offset + field.width for field in HEADER.values())
    yield f"| zero | {_bits(end, 32 - end)} |"


def _registers() -> Iterator[str]:
    meanings = {
        Kind.T: "tile register, by its first granule of b_k*b_q bytes",
        Kind.V: "row vector of b_q FP32 elements",
        Kind.P: "sub-block mask of N_k bits; p0 is all ones and read-only",
        Kind.O: "order of sub-blocks",
        Kind.S: "32-bit integer",
        Kind.D: "tensor descriptor, by the tensor's name in text",
        Kind.B: "SRAM buffer, by its name in text",
        Kind.BARRIER: "barrier, by its ring's name in text",
    }
    yield "## Registers of a context, and what a thread block shares"
    yield ""
    yield "| kind | how many | meaning |"
    yield "|---|---|---|"
    for kind, meaning in meanings.items():
        yield f"| {kind} | {COUNT[kind]} | {meaning} |"


def _bits(offset: int, width: int) -> str:
    return str(offset) if width == 1 else f"{offset}-{offset + width - 1}"


def _field(f: Field) -> str:
    access = {"r": "read", "w": "written", "rw": "read and written"}.get(f.access)
    span = f.span if f.access and f.span != "1" else None
    optional = f"optional (bit {f.offset + f.width} says present)" if f.optional else None
    about = ", ".join(text for text in (_bits(f.offset, f.width), access, span, optional) if text)
    return f"`{f.name}` {about}" if f.name == f.kind else f"`{f.name}` {f.kind} {about}"


def _entry(row: Instruction) -> Iterator[str]:
    mnemonics = ", ".join(f"`{row.mnemonic(fmt)}`" for fmt in row.formats)
    traits = [
        text
        for text, has in (
            ("mask", row.masked),
            ("skip0" + (f" (if {' = '.join(row.in_place)})" if row.in_place else ""), row.skip0),
            ("wait, signal", row.synchronises),
            (f"logged: {row.log}", row.logged),
        )
        if has
    ]
    yield f"### {row.name} (0x{row.opcode:02x}, {row.unit})"
    yield ""
    yield f"{mnemonics}: {row.meaning}."
    yield ""
    yield f"- price: {row.price}"
    if row.fields:
        yield f"- payload: {'; '.join(_field(f) for f in row.fields)}"
    if traits:
        yield f"- {'; '.join(traits)}"


def page() -> str:
    """The text of docs/isa.md."""
    sections = [_INTRODUCTION, *("\n".join(lines()) for lines in (_steps, _header, _registers)), "## Instructions"]
    for unit in Unit:
        sections += ["\n".join(_entry(row)) for row in TABLE if row.unit is unit]
    return "\n\n".join(sections) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write docs/isa.md, or with `--check` say whether it is up to date. Returns the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE.name} is out of date; run {COMMAND}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
