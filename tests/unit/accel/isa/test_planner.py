"""The planner takes the first plan that fits, and says what had to give."""

from dataclasses import replace
from itertools import pairwise

import pytest

from lampc.errors import CompileError
from lampc.targets.accel.config import Config
from lampc.targets.accel.planner import SLOTS, Plan, plan, ring_bytes, tile_bytes

KIB = 1024
BASE = Config(bq=16, bk=16, nk=4, nq=8, d=64, dv=64, lq=512, lk=512, batch=1, hq=1, hkv=1, scale=0.125)


VECTORS = 15


def granules(config: Config) -> int:
    geometry = config.geometry
    return geometry.tile_granules(wide=False) + geometry.query_granules + geometry.output_granules


def registers(config: Config) -> int:
    geometry = config.geometry
    return config.nq * (granules(config) * geometry.granule_bytes + VECTORS * geometry.vector_bytes)


def planned(config: Config, register_bytes: int, sram_bytes: int) -> Plan:
    return plan(config, granules=granules(config), vectors=VECTORS, register_bytes=register_bytes, sram_bytes=sram_bytes)


def test_what_fits_stays() -> None:
    result = planned(BASE, register_bytes=256 * KIB, sram_bytes=256 * KIB)
    assert (result.config, (result.k_slots, result.v_slots), result.changes) == (BASE, SLOTS[0], ())


def test_slots_are_used_up_to_the_last_byte() -> None:
    for wanted, fewer in pairwise(SLOTS):
        enough = ring_bytes(BASE, *wanted)
        result = planned(BASE, register_bytes=256 * KIB, sram_bytes=enough)
        assert (result.k_slots, result.v_slots) == wanted
        result = planned(BASE, register_bytes=256 * KIB, sram_bytes=enough - 1)
        assert (result.k_slots, result.v_slots) == fewer
        assert f"K and V get {fewer[0]} and {fewer[1]} buffers instead of 3 and 2" in result.changes[0]


def test_warps_are_halved_until_they_fit() -> None:
    for nq in (8, 4, 2, 1):
        enough = registers(replace(BASE, nq=nq))
        result = planned(BASE, register_bytes=enough, sram_bytes=256 * KIB)
        assert result.config == replace(BASE, nq=nq)
        assert bool(result.changes) == (nq != BASE.nq)
    with pytest.raises(CompileError, match="one warp takes"):
        planned(BASE, register_bytes=registers(replace(BASE, nq=1)) - 1, sram_bytes=256 * KIB)


def test_head_size_256_in_fp32_on_the_default_machine() -> None:
    config = replace(BASE, d=256, dv=256)
    result = planned(config, register_bytes=256 * KIB, sram_bytes=256 * KIB)
    assert (result.k_slots, result.v_slots) == (2, 2)
    assert result.config.nq == 4
    assert len(result.changes) == 2


def test_narrow_operands_take_less_sram() -> None:
    config = replace(BASE, d=256, dv=256, operand="e4m3")
    result = planned(config, register_bytes=1 << 20, sram_bytes=256 * KIB)
    assert (result.k_slots, result.v_slots) == SLOTS[0]


def test_rings_of_small_tiles_start_on_a_line() -> None:
    config = replace(BASE, bk=1, nk=1, d=3, dv=3)
    k_bytes, v_bytes = tile_bytes(config)
    assert (k_bytes, v_bytes) == (3 * 4, 3 * 4)
    assert ring_bytes(config, 3, 2) == 64 + 2 * v_bytes
    assert ring_bytes(config, 6, 2) == 128 + 2 * v_bytes
    assert ring_bytes(BASE, 3, 2) == sum(count * size for count, size in zip((3, 2), tile_bytes(BASE), strict=True))


def test_what_cannot_be_named_or_held() -> None:
    with pytest.raises(CompileError, match="a word can name 1024"):
        planned(replace(BASE, d=4096), register_bytes=1 << 30, sram_bytes=1 << 30)
    with pytest.raises(CompileError, match="bytes of SRAM, the machine has 1024"):
        planned(BASE, register_bytes=256 * KIB, sram_bytes=KIB)
