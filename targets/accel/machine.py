"""
Machine descriptions: the numbers of a modelled accelerator, read from TOML.

Every number has its unit in its name and, in the file, a comment with its source or the word "assumed". What is unknown,
missing or of the wrong type is an error with file and key. Source: docs/accelerator.md section 5.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from lampc.errors import InputError, UsageError, printable

MACHINES = Path(__file__).parent / "machines"
LARGEST = {"count": 1 << 12, "cycles": 1 << 20, "": 1 << 32}
"""No number is larger, by the unit that ends its name: cycles must stay far inside 64 bits, what is counted in memory."""


def _number(meaning: str) -> Any:
    return field(metadata={"meaning": meaning})


@dataclass(frozen=True)
class Core:
    """Clock, front end and register file; all cores are alike."""

    clock_hz: int = _number("clock; it turns cycles into seconds and nothing else")
    cores_count: int = _number("cores that share HBM")
    issue_instructions_per_cycle: int = _number("instructions that a core issues in a cycle, at most one per context")
    branch_penalty_cycles: int = _number("cycles that a context loses on a taken branch, beside the branch's own")
    block_launch_cycles: int = _number("from a slot becoming free to the first instruction of the next thread block")
    resident_blocks_count: int = _number("thread blocks that a core can hold if registers and SRAM allow")
    register_bytes: int = _number("register file of a core: tile registers and row vectors of all resident warps")


@dataclass(frozen=True)
class Sram:
    """Scratchpad of a core: K and V buffers. One read port for the matrix engine, one write port for DMA."""

    capacity_bytes: int = _number("size")
    read_bytes_per_cycle: int = _number("read port, which fills the matrix engine's operand buffer")


@dataclass(frozen=True)
class Hbm:
    """Memory that all cores share."""

    bytes_per_cycle: int = _number("bandwidth, loads and stores together, all cores together")
    latency_cycles: int = _number("from the last byte's transfer slot to the arrival of that byte")
    outstanding_loads_count: int = _number("loads of a core under way at a time")
    outstanding_stores_count: int = _number("stores of a core under way at a time")


@dataclass(frozen=True)
class Mxe:
    """Matrix engine: multiply-accumulates per cycle by the format of the accumulator (QK) or of E (PV, accumulated in FP32)."""

    qk_e4m3_macs_per_cycle: int = _number("scores accumulated in e4m3")
    qk_e4m11_macs_per_cycle: int = _number("scores accumulated in e4m11")
    qk_f32_macs_per_cycle: int = _number("scores accumulated in FP32")
    pv_e4m3_macs_per_cycle: int = _number("low E (ue5m3.exp) times V, accumulated in FP32")
    pv_e4m11_macs_per_cycle: int = _number("high E (ue5m11.exp) times V, accumulated in FP32")
    pv_f32_macs_per_cycle: int = _number("FP32 E times V, accumulated in FP32")
    latency_cycles: int = _number("from the last operand to its product; the in-order adds come on top")
    add_latency_cycles: int = _number("one of the dependent adds into an accumulator")
    operand_slots_count: int = _number("key tiles that the stationary-operand buffer holds, least recently used leaves")


@dataclass(frozen=True)
class Vec:
    """Vector unit of 32-bit lanes."""

    lanes_count: int = _number("lanes")
    elements_8bit_per_lane: int = _number("8-bit elements that a lane works on in a cycle")
    elements_16bit_per_lane: int = _number("16-bit elements that a lane works on in a cycle")
    latency_cycles: int = _number("from the last operand to the result")
    add_latency_cycles: int = _number("one of the dependent FP32 adds of v.rsum and v.xi")
    division_lane_cycles: int = _number("lane-cycles of a correctly rounded FP32 division (v.norm)")
    tanh_lane_cycles: int = _number("lane-cycles of a tanh in float64 and its scaling (v.cap)")


@dataclass(frozen=True)
class Lut:
    """Look-up table of 256 entries."""

    exponentials_per_cycle: int = _number("8-bit exponentials")
    latency_cycles: int = _number("from the last operand to the result")


@dataclass(frozen=True)
class Sfu:
    """Special-function unit."""

    e4m11_exponentials_per_cycle: int = _number("16-bit exponentials")
    f32_exponentials_per_cycle: int = _number("FP32 exponentials, rescaling factors among them")
    latency_cycles: int = _number("from the last operand to the result")


@dataclass(frozen=True)
class Knap:
    """Stage-2 unit: tries every set of sub-blocks on every row."""

    lanes_count: int = _number("additions and comparisons per cycle")
    division_lane_cycles: int = _number("lane-cycles of a division, one per set and row for tie = slack")
    latency_cycles: int = _number("from the last set to the choice")


SECTIONS: dict[str, type[Any]] = {
    "core": Core,
    "sram": Sram,
    "hbm": Hbm,
    "mxe": Mxe,
    "vec": Vec,
    "lut": Lut,
    "sfu": Sfu,
    "knap": Knap,
}


@dataclass(frozen=True)
class Machine:
    """
    One machine description.

    name, summary  of the file
    file_sha256    of the file's bytes, before overrides
    overrides      `section.key=value`, in the order in which they were applied
    """

    name: str
    summary: str
    file_sha256: str
    overrides: tuple[str, ...]
    core: Core
    sram: Sram
    hbm: Hbm
    mxe: Mxe
    vec: Vec
    lut: Lut
    sfu: Sfu
    knap: Knap

    def values(self) -> dict[str, dict[str, int]]:
        """Every number, by section and key."""
        return {section: asdict(getattr(self, section)) for section in SECTIONS}

    @cached_property
    def hash(self) -> str:
        """sha256 of the numbers, so of all that decides cycles: a copy under another name has the same."""
        return hashlib.sha256(json.dumps(self.values(), sort_keys=True).encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """What a report says about the machine: JSON-able."""
        return {
            "name": self.name,
            "summary": self.summary,
            "file_sha256": self.file_sha256,
            "overrides": list(self.overrides),
            "hash": self.hash,
            "values": self.values(),
        }

    def override(self, settings: Iterable[str]) -> "Machine":
        """
        A copy with `section.key=value` settings applied in order and recorded.

        Raises UsageError for a setting that is not of this form, names no number, or has a value out of range.
        """
        machine = self
        for setting in settings:
            machine = machine._set(setting)
        return machine

    def _set(self, setting: str) -> "Machine":
        path, equals, text = setting.partition("=")
        section, dot, key = path.strip().partition(".")
        shown = printable(setting)
        if not equals or not dot:
            raise UsageError(f"machine setting '{shown}' must read section.key=value, for example hbm.bytes_per_cycle=64")
        if section not in SECTIONS:
            raise UsageError(f"machine setting '{shown}': no section '{printable(section)}'; there are {', '.join(SECTIONS)}")
        keys = [f.name for f in fields(SECTIONS[section])]
        if key not in keys:
            raise UsageError(
                f"machine setting '{shown}': section '{section}' has no '{printable(key)}'; it has {', '.join(keys)}"
            )
        try:
            value = int(text.strip().replace("_", ""))
        except ValueError:
            value = 0
        if not 1 <= value <= _largest(key):
            raise UsageError(f"machine setting '{shown}': the value must be a whole number from 1 to {_largest(key)}")
        part = replace(getattr(self, section), **{key: value})
        changes: dict[str, Any] = {section: part, "overrides": (*self.overrides, setting)}
        return replace(self, **changes)


def machine_names() -> list[str]:
    """The descriptions that come with lampc."""
    return sorted(path.stem for path in MACHINES.glob("*.toml"))


def load_machine(name: str, overrides: Iterable[str] = ()) -> Machine:
    """
    The description `name`: one that comes with lampc, or a path to a TOML file (it ends in .toml).

    Raises UsageError for an unknown name or a bad override, InputError for a file that cannot be read or does not fit.
    """
    path = Path(name) if name.endswith(".toml") else MACHINES / f"{name}.toml"
    if not name.endswith(".toml") and name not in machine_names():
        known = ", ".join(machine_names())
        raise UsageError(f"machine '{printable(name)}' is unknown; there are {known}, or name a file that ends in .toml")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=printable(str(path))) from error
    return parse_machine(data, path).override(overrides)


def parse_machine(data: bytes, path: Path) -> Machine:
    """The description in `data`, the bytes of file `path`; InputError names file and key."""
    file = printable(str(path))
    try:
        table = cast(dict[str, object], tomllib.loads(data.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"no TOML: {printable(str(error))}", file=file) from error
    _same_keys(table, ["summary", *SECTIONS], "", file)
    summary = table["summary"]
    if not isinstance(summary, str):
        raise InputError("must be text", file=file, where="summary")
    parts: dict[str, Any] = {section: _section(table[section], section, kind, file) for section, kind in SECTIONS.items()}
    return Machine(path.stem, summary, hashlib.sha256(data).hexdigest(), (), **parts)


def _section(value: object, section: str, kind: type[Any], file: str) -> Any:
    if not isinstance(value, dict):
        raise InputError("must be a table", file=file, where=section)
    table = cast(dict[str, object], value)
    _same_keys(table, [f.name for f in fields(kind)], f"{section}.", file)
    for key, number in table.items():
        if type(number) is not int or not 1 <= number <= _largest(key):
            message = f"must be a whole number from 1 to {_largest(key)}, got {printable(repr(number), 40)}"
            raise InputError(message, file=file, where=f"{section}.{key}")
    return kind(**table)


def _largest(key: str) -> int:
    return LARGEST.get(key.rpartition("_")[2], LARGEST[""])


def _same_keys(table: Mapping[str, object], wanted: list[str], prefix: str, file: str) -> None:
    for key in table:
        if key not in wanted:
            raise InputError("unknown key", file=file, where=f"{prefix}{printable(key)}")
    for key in wanted:
        if key not in table:
            raise InputError("missing key", file=file, where=f"{prefix}{key}")
