"""Machine descriptions: every number says its unit and its source, and mistakes are named."""

import re
from pathlib import Path

import pytest

from lampc.errors import InputError, UsageError
from lampc.targets.accel.machine import LARGEST, MACHINES, SECTIONS, load_machine, machine_names, parse_machine

UNITS = ("_hz", "_bytes", "_cycles", "_count", "_per_cycle", "_per_lane")
NUMBER = re.compile(r"^(\w+) = [\d_]+ *(# .+)?$")


def lines(name: str) -> list[str]:
    return (MACHINES / f"{name}.toml").read_text().splitlines()


@pytest.mark.parametrize("name", machine_names())
def test_every_number_has_a_unit_and_a_source(name: str):
    numbers = [match for line in lines(name) if (match := NUMBER.match(line))]
    assert len(numbers) == sum(len(section) for section in load_machine(name).values().values())
    for match in numbers:
        assert match[1].endswith(UNITS), match[0]
        assert match[2] and re.match(r"# (source|assumed): \S", match[2]), match[0]


@pytest.mark.parametrize("name", machine_names())
def test_nothing_but_numbers_sections_and_the_summary(name: str):
    for line in lines(name):
        assert not line or NUMBER.match(line) or re.fullmatch(r"\[\w+\]|summary = \".+\"", line), line


def test_packed_and_flat_differ_in_score_rates_only():
    packed, flat = load_machine("packed").values(), load_machine("flat").values()
    differing = {(s, key) for s in packed for key in packed[s] if packed[s][key] != flat[s][key]}
    assert differing == {("mxe", "qk_e4m3_macs_per_cycle"), ("mxe", "qk_e4m11_macs_per_cycle")}
    assert packed["mxe"]["qk_e4m3_macs_per_cycle"] == 4 * packed["mxe"]["qk_f32_macs_per_cycle"]
    assert packed["mxe"]["qk_e4m11_macs_per_cycle"] == 2 * packed["mxe"]["qk_f32_macs_per_cycle"]
    assert {flat["mxe"][f"qk_{fmt}_macs_per_cycle"] for fmt in ("e4m3", "e4m11")} == {flat["mxe"]["qk_f32_macs_per_cycle"]}


def test_overrides_are_recorded_and_hashed():
    packed = load_machine("packed")
    changed = load_machine("packed", ["hbm.bytes_per_cycle=64", "core.cores_count = 2"])
    assert (changed.hbm.bytes_per_cycle, changed.core.cores_count) == (64, 2)
    assert changed.manifest()["overrides"] == ["hbm.bytes_per_cycle=64", "core.cores_count = 2"]
    assert changed.file_sha256 == packed.file_sha256
    assert changed.hash != packed.hash
    back = changed.override(
        [f"hbm.bytes_per_cycle={packed.hbm.bytes_per_cycle}", f"core.cores_count={packed.core.cores_count}"]
    )
    assert back.hash == packed.hash


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("hbm.bytes_per_cycle", "must read section.key=value"),
        ("bytes_per_cycle=4", "must read section.key=value"),
        ("dram.bytes_per_cycle=4", "no section 'dram'; there are core"),
        ("hbm.bytes=4", "section 'hbm' has no 'bytes'; it has bytes_per_cycle"),
        ("hbm.bytes_per_cycle=0", "whole number from 1"),
        ("hbm.bytes_per_cycle=1.5", "whole number from 1"),
        (f"core.cores_count={LARGEST['count'] + 1}", f"to {LARGEST['count']}"),
        (f"hbm.latency_cycles={LARGEST['cycles'] + 1}", f"to {LARGEST['cycles']}"),
    ],
)
def test_bad_settings_are_named(setting: str, told: str):
    with pytest.raises(UsageError, match=re.escape(told)):
        load_machine("packed", [setting])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lanes_count = 128 ", "lanes = 128 ", "f.toml: vec.lanes: unknown key"),
        ("[sram]\n", "[sram]\nports_count = 2\n", "f.toml: sram.ports_count: unknown key"),
        ("[lut]\n", "[lookup]\n", "f.toml: lookup: unknown key"),
        ("\n[lut]\n", "\n[core2]\n", "f.toml: core2: unknown key"),
        ("operand_slots_count = 2 ", "", "f.toml: mxe.operand_slots_count: missing key"),
        ("= 1_000_000_000 ", "= 1e9 ", "f.toml: core.clock_hz: must be a whole number from 1"),
        ("cores_count = 1 ", "cores_count = true ", "f.toml: core.cores_count: must be a whole number"),
        ("cores_count = 1 ", "cores_count = 0 ", "f.toml: core.cores_count: must be a whole number"),
        ("cores_count = 1 ", 'cores_count = "1" ', "f.toml: core.cores_count: must be a whole number"),
        ("summary = ", "summary = 3 # ", "f.toml: summary: must be text"),
        ("[core]", "core = 1\n[core3]", "f.toml: core3: unknown key"),
        ("[core]", "[core", "f.toml: no TOML"),
    ],
)
def test_files_that_do_not_fit_are_named(old: str, new: str, told: str):
    text = (MACHINES / "packed.toml").read_text()
    assert old in text
    # A key that is dropped leaves its comment behind.
    with pytest.raises(InputError, match=re.escape(told)):
        parse_machine(text.replace(old, new, 1).encode(), Path("f.toml"))


def test_a_missing_section_and_a_section_that_is_none():
    text = (MACHINES / "packed.toml").read_text()
    without = text[: text.index("[knap]")]
    with pytest.raises(InputError, match=r"f\.toml: knap: missing key"):
        parse_machine(without.encode(), Path("f.toml"))
    with pytest.raises(InputError, match=r"f\.toml: knap: must be a table"):
        parse_machine(f"knap = 1\n{without}".encode(), Path("f.toml"))


def test_unknown_names_list_the_known_ones(tmp_path: Path):
    with pytest.raises(UsageError, match=f"'nvidia' is unknown; there are {', '.join(machine_names())}"):
        load_machine("nvidia")
    with pytest.raises(InputError, match="cannot be read"):
        load_machine(str(tmp_path / "none.toml"))


def test_a_copy_of_a_file_is_the_same_machine(tmp_path: Path):
    copy = tmp_path / "mine.toml"
    copy.write_bytes((MACHINES / "packed.toml").read_bytes())
    mine = load_machine(str(copy))
    assert mine.name == "mine"
    assert mine.hash == load_machine("packed").hash
    assert set(mine.values()) == set(SECTIONS)
