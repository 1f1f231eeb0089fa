"""The planner takes the first plan that fits, and says what had to give."""

from dataclasses import replace
from itertools import pairwise

import pytest

from lampc.errors import CompileError
from lampc.targets.accel.config import Config
from lampc.targets.accel.planner import SLOTS, plan, tile_bytes, warp_granules, warp_vectors

KIB = 1024
BASE = Config(bq=16, bk=16, nk=4, nq=8, d=64, dv=64, lq=512, lk=512, batch=1, hq=1, hkv=1, scale=0.125)


def registers(config: Config) -> int:
    geometry = config.geometry
    return config.nq * (warp_granules(config) * geometry.granule_bytes + warp_vectors(config) * geometry.vector_bytes)


def sram(config: Config, slots: tuple[int, int]) -> int:
    return sum(count * size for count, size in zip(slots, tile_bytes(config), strict=True))


def test_what_fits_stays() -> None:
    result = plan(BASE, register_bytes=256 * KIB, sram_bytes=256 * KIB)
    assert (result.config, (result.k_slots, result.v_slots), result.changes) == (BASE, SLOTS[0], ())


def test_slots_are_used_up_to_the_last_byte() -> None:
    for wanted, fewer in pairwise(SLOTS):
        enough = sram(BASE, wanted)
        result = plan(BASE, register_bytes=256 * KIB, sram_bytes=enough)
        assert (result.k_slots, result.v_slots) == wanted
        result = plan(BASE, register_bytes=256 * KIB, sram_bytes=enough - 1)
        assert (result.k_slots, result.v_slots) == fewer
        assert f"K and V get {fewer[0]} and {fewer[1]} buffers instead of 3 and 2" in result.changes[0]


def test_warps_are_halved_until_they_fit() -> None:
    for nq in (8, 4, 2, 1):
        enough = registers(replace(BASE, nq=nq))
        result = plan(BASE, register_bytes=enough, sram_bytes=256 * KIB)
        assert result.config == replace(BASE, nq=nq)
        assert bool(result.changes) == (nq != BASE.nq)
    with pytest.raises(CompileError, match="one warp takes"):
        plan(BASE, register_bytes=registers(replace(BASE, nq=1)) - 1, sram_bytes=256 * KIB)


def test_head_size_256_in_fp32_on_the_default_machine() -> None:
    config = replace(BASE, d=256, dv=256)
    result = plan(config, register_bytes=256 * KIB, sram_bytes=256 * KIB)
    assert (result.k_slots, result.v_slots) == (2, 2)
    assert result.config.nq == 4
    assert len(result.changes) == 2


def test_narrow_operands_take_less_sram() -> None:
    config = replace(BASE, d=256, dv=256, operand="e4m3")
    result = plan(config, register_bytes=1 << 20, sram_bytes=256 * KIB)
    assert (result.k_slots, result.v_slots) == SLOTS[0]


def test_fp32_compact_mask_and_bias_count() -> None:
    nk = BASE.nk
    base = warp_granules(BASE)
    assert warp_granules(replace(BASE, policy="fp32")) == base + 2 * nk
    assert warp_granules(replace(BASE, layout="compact")) == base - nk + 2
    assert warp_granules(replace(BASE, has_mask=True)) == base + nk
    assert warp_granules(replace(BASE, has_bias=True)) == base + 4 * nk


def test_what_cannot_be_named_or_held() -> None:
    with pytest.raises(CompileError, match="a word can name 1024"):
        plan(replace(BASE, d=4096), register_bytes=1 << 30, sram_bytes=1 << 30)
    with pytest.raises(CompileError, match="bytes of SRAM, the machine has 1024"):
        plan(BASE, register_bytes=256 * KIB, sram_bytes=KIB)
