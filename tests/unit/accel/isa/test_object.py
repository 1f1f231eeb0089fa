"""Object files: canonical, checked like hostile input, with a hash of what decides execution."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from lampc.errors import CompileError, InputError
from lampc.targets.accel.encoding import decode, encode
from lampc.targets.accel.isa import ISA_VERSION
from lampc.targets.accel.loader import check_fit
from lampc.targets.accel.object import MAGIC, Config, Program, exponential_tables, load, save
from lampc.targets.accel.program import canonical_json

HEADER_AT = struct.calcsize("<8sIII")


def replace_header(data: bytes, old: bytes, new: bytes) -> bytes:
    """`data` with `old` in its header JSON replaced, and the header's size with it."""
    size = struct.unpack_from("<I", data, 12)[0]
    header = data[HEADER_AT : HEADER_AT + size]
    assert header.count(old) >= 1
    header = header.replace(old, new, 1)
    return data[:12] + struct.pack("<I", len(header)) + data[16:HEADER_AT] + header + data[HEADER_AT + size :]


def test_load_gives_the_program_back(program: Program) -> None:
    again = load(save(program))
    assert again.header() == program.header()
    assert again.symbols == program.symbols
    assert again.program_hash() == program.program_hash()


def test_hash_covers_execution_and_not_symbols(program: Program) -> None:
    first = program.program_hash()
    assert replace(program, symbols={}).program_hash() == first
    changed = program.streams["warp"].copy()
    stream = decode(changed)
    stream.fields["imm"][0] += 1
    others = [
        replace(program, streams={**program.streams, "warp": encode(stream)}),
        replace(program, cfg=replace(program.cfg, tau=0.25)),
        replace(program, buffers=program.buffers[::-1]),
        replace(program, tables={}),
        replace(program, vectors=program.vectors + 1),
        replace(program, streams={"warp": program.streams["dma"], "dma": program.streams["warp"]}),
    ]
    assert len({first, *(other.program_hash() for other in others)}) == len(others) + 1


def test_every_truncation_is_refused(program: Program) -> None:
    data = save(program)
    for size in range(len(data)):
        with pytest.raises(InputError, match="object file: "):
            load(data[:size])
    with pytest.raises(InputError, match="object file: "):
        load(data + b"\0")


def test_a_changed_byte_is_refused_or_another_program(program: Program) -> None:
    data = save(program)
    rng = np.random.default_rng(0)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= int(rng.integers(1, 256))
        try:
            loaded = load(bytes(changed))
        except InputError:
            continue
        assert save(loaded) == changed


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"isa":1', b'"isa":2', "differ in version"),
        (b'"bq":16', b'"bq":"16"', "entry 'bq' must be int"),
        (b'"bq":16', b'"bq":true', "entry 'bq' must be int"),
        (b'"bq":16', b'"bq": 16', "not in canonical form"),
        (b'"granules":40', b'"granules":4000000000', "4000000000 granules"),
        (b'"granules":40', b'"granules":40.0', "'granules' must be an integer"),
        (b'"dma":2', b'"dma":4000000000', "stream 'dma' cannot have 4000000000 words"),
        (b'"dma":2', b'"dma":1', "its header makes"),
        (b'"dma":2', b'"dma":0', "cannot have 0 words"),
        (b'"lut":"', b'"lut":"0', "does not have the hash"),
        (b'"lut":', b'"zzz":', "unknown table 'zzz'"),
        (b'"scale":0.125', b'"scale":NaN', "scale must be finite"),
        (b'"scale":0.125', b'"scale":1e999', "scale must be finite"),
        (b'"bq":16', b'"bq":' + b"9" * 5000, "no JSON"),
        (b'{"barriers"', b"[" * 100_000 + b'{"barriers"', "no JSON"),
        (b'"shape":[1,9,512,64]', b'"shape":[1,9,512]', "four axes"),
        (b'"name":"k"', b'"name":"k;"', "is no name"),
        (b'"name":"v"', b'"name":"k"', "two have one name"),
    ],
)
def test_hostile_headers(program: Program, old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        load(replace_header(save(program), old, new), "layer.bin")
    assert str(error.value).startswith("layer.bin: object file: ")
    assert message in str(error.value)


def test_other_files_are_refused() -> None:
    with pytest.raises(InputError, match="the magic number of one is missing"):
        load(b"\x7fELF" + bytes(100))
    with pytest.raises(InputError, match=f"made for version {ISA_VERSION + 1}"):
        load(struct.pack("<8sIII", MAGIC, ISA_VERSION + 1, 0, 0))
    with pytest.raises(InputError, match="sizes that cannot be"):
        load(struct.pack("<8sIII", MAGIC, ISA_VERSION, 0xFFFFFFFF, 0))


def test_a_changed_table_is_refused(program: Program) -> None:
    data = bytearray(save(program))
    at = bytes(data).index(exponential_tables()["lut"].tobytes())
    data[at] ^= 1
    with pytest.raises(InputError, match="table 'lut' does not have the hash"):
        load(bytes(data))


def test_fit_counts_every_warp(program: Program) -> None:
    cfg = program.cfg
    registers = cfg.nq * (program.granules * cfg.bk * cfg.bq + program.vectors * 4 * cfg.bq)
    check_fit(program, register_bytes=registers, sram_bytes=program.sram_bytes)
    with pytest.raises(CompileError, match="exceed the register file"):
        check_fit(program, register_bytes=registers - 1, sram_bytes=program.sram_bytes)
    with pytest.raises(CompileError, match="buffers end at byte"):
        check_fit(program, register_bytes=registers, sram_bytes=program.sram_bytes - 1)


def test_canonical_json_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bq": 0}, "bq must be positive"),
        ({"hq": 4, "hkv": 3}, "no multiple"),
        ({"delta": -1.0}, "must not be negative"),
        ({"tau": float("inf")}, "tau must be finite"),
        ({"layout": "loose"}, "layout must be one of safe, compact, got 'loose'"),
        ({"seed": 1 << 64}, "out of range"),
    ],
)
def test_a_configuration_that_cannot_be(program: Program, changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Config.from_dict({**program.cfg.to_dict(), **changes})
