"""
docs/machine.md and docs/counters.md, written from the code and the TOML files: `python -m lampc.targets.accel.timing.pages`,
with `--check` only compared.

Source: docs/accelerator.md sections 4 to 6.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from lampc.targets.accel.instruction import Unit
from lampc.targets.accel.machine import MACHINES, SECTIONS, load_machine, machine_names
from lampc.targets.accel.timing.bounds import LOWER_BOUNDS, UPPER_BOUND
from lampc.targets.accel.timing.counters import STALLS, texts
from lampc.targets.accel.timing.prices import RATES, rates

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMMAND = "python -m lampc.targets.accel.timing.pages"

_MACHINE = f"""\
# Machine descriptions

Written by `{COMMAND}` from targets/accel/machine.py and targets/accel/machines/*.toml; do
not edit. What the units do is in accelerator.md, what an instruction costs in isa.md.

`--machine NAME` takes one of the descriptions below, `--machine F.toml` a file of your own; `--set section.key=value` changes a
number, and the report records it. Every number is a whole one, at least 1, with its unit in its name; a file must give all of
them, and nothing else but a `summary`. Two descriptions with the same numbers have the same hash, whatever their names.

`packed` and `flat` differ in the rates of 8-bit and 16-bit scores only. The paper does not say whether packing accumulators
makes products faster, and every comparison hangs on it, so both are always shown. O is accumulated in FP32, where nothing can
be packed: the rates of E*V are the FP32 rate in both, and settings of their own."""

_SCHEDULE = """\
## How instructions meet the machine

A context issues in order: start = max(context ready, barrier phase, operands, unit free, issue slot). The unit is occupied for
ceil(work / rate) cycles, at least one, or for a matrix instruction as long as its operands take from SRAM if that is longer;
the result is there latency - 1 cycles after the last of them. Registers are free to be overwritten when the unit is, and
readable when the result is there. A skipped instruction (skip0) takes its issue slot only.

Where several contexts wait for a unit, the one that came first is served; the matrix engine takes first one whose operands its
buffer holds. The buffer holds whole key tiles, sub-block by sub-block, and the least recently used one leaves. A load or store
takes the memory channel, which all cores share, in the order in which they come, once its core has room for one more.

Thread blocks start in order (head after head), one core after the other until every place is taken, then wherever one has
ended. A core has as many places as registers, SRAM and `resident_blocks_count` allow."""

_COUNTERS = f"""\
# Counters and bounds

Written by `{COMMAND}` from the code; do not edit. The counters of a run, as they stand in
report.json under `counters`, all cores and contexts together unless said otherwise."""


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _sources(name: str) -> dict[tuple[str, str], str]:
    """Comment behind each number of a description."""
    section, found = "", dict[tuple[str, str], str]()
    for line in (MACHINES / f"{name}.toml").read_text().splitlines():
        if head := re.fullmatch(r"\[(\w+)\]", line):
            section = head[1]
        elif number := re.fullmatch(r"(\w+) = [\d_]+ *# (.+)", line):
            found[section, number[1]] = number[2]
    return found


def machine_page() -> str:
    """The text of docs/machine.md."""
    names = machine_names()
    machines = {name: load_machine(name) for name in names}
    parts = [_MACHINE, _table(("machine", "what it is"), ((f"`{n}`", machines[n].summary) for n in names)), _SCHEDULE]
    parts.append("## Numbers and their meaning")
    for section, kind in SECTIONS.items():
        rows = (
            (f"`{section}.{f.name}`", f.metadata["meaning"], *(f"{machines[n].values()[section][f.name]:,}" for n in names))
            for f in fields(kind)
        )
        text = " ".join((kind.__doc__ or "").split())
        parts += [f"### {section}", text, _table(("number", "meaning", *names), rows)]
    parts.append("## Where the numbers come from")
    for name in names:
        rows = ((f"`{section}.{key}`", text) for (section, key), text in _sources(name).items())
        parts += [f"### {name}", _table(("number", "source"), rows)]
    return "\n\n".join(parts) + "\n"


def counters_page() -> str:
    """The text of docs/counters.md."""
    parts = [_COUNTERS]
    for title, rows in texts():
        parts += [f"## {title}", _table(("counter", "unit", "meaning"), ((f"`{n}`", u, m) for n, u, m in rows))]
    parts += [
        "## Work",
        "Kinds of work, by unit. A rate is work per cycle and core; the memory channel's is that of all cores together.",
        _table(
            ("kind", "unit", "counts", "rate of `packed`"),
            (
                (f"`{rate.name.lower()}`", RATES[rate].unit, RATES[rate].work, f"{per_cycle:,}")
                for rate, per_cycle in rates(load_machine("packed")).items()
            ),
        ),
        "## Stall classes",
        "Every cycle of every context is in one class, so a stream's classes add up to cycles times its contexts.",
        _table(("class", "meaning"), ((f"`{n}`", m) for n, m in STALLS.items() if n != f"unit_{Unit.CTL.lower()}")),
        "## Bounds",
        "Cycles. Every lower bound ignores all but one resource; the largest one binds, and the ratio of a run is its cycles "
        "over that bound. A result outside its bounds is an internal error.",
        _table(
            ("bound", "meaning"),
            iter(
                [
                    *((f"`{n}`", m) for n, m in LOWER_BOUNDS.items()),
                    (
                        f"`{UPPER_BOUND}`",
                        "upper bound: every instruction with its latency, and every launch, one after the other",
                    ),
                ]
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {"machine.md": machine_page, "counters.md": counters_page}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` say which are out of date. Returns the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    stale = 0
    for name, page in PAGES.items():
        path = DOCS / name
        if not arguments:
            path.write_text(page())
        elif not path.exists() or path.read_text() != page():
            print(f"{name} is out of date; run {COMMAND}", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
