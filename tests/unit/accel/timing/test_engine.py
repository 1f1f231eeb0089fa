"""The engine on compiled attention: it follows the functional run, and its numbers hang together."""

from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from lampc.errors import CompileError, InputError
from lampc.numerics.engine import engine, set_engine
from lampc.targets.accel.decision_log import DecisionLog
from lampc.targets.accel.machine import Machine, load_machine, machine_names
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.bounds import bounds
from lampc.targets.accel.timing.counters import STALLS, collect
from lampc.targets.accel.timing.engine import TimingResult, run_prepared, run_timing, simulate
from lampc.targets.accel.timing.errors import InternalError
from lampc.targets.accel.timing.prepare import prepare
from lampc.targets.accel.timing.synthetic import Rates, synthetic_log
from tests.unit.accel.timing.conftest import Sample, sample_of
from tests.unit.accel.timing.micro import log_of, micro, time

VARIANTS: dict[str, dict[str, Any]] = {
    "lamp": {},
    "low": {"precision": {"policy": "low"}},
    "high": {"precision": {"policy": "high"}},
    "stage 1": {"precision": {"tau": 1.0}},
    "fp32": {"precision": None},
    "compact": {"layout": "compact"},
    "compact, high": {"layout": "compact", "precision": {"policy": "high"}},
    "compact, stage 2": {"layout": "compact", "precision": {"stage1": False}},
}


def timed(sample: Sample, machine: Machine) -> TimingResult:
    return run_timing(sample.program, sample.run.log, machine)


OTHERS: dict[str, dict[str, Any]] = {
    "mask": {"mask": np.tri(150, 150, 20, dtype=np.bool_) & ~np.tri(150, 150, -50, dtype=np.bool_)},
    "bias": {"mask": np.linspace(-1, 1, 150, dtype=np.float32)},
    "sinks": {"sinks": np.zeros(4, np.float32)},
    "cap": {"attention": {"softcap": 5.0}},
    "window": {"attention": {"causal": True, "window": 40}},
    "reverse": {"attention": {"causal": True}, "tiling": {"kv_order": "reverse"}},
    "sink-first": {"attention": {"causal": True}, "tiling": {"kv_order": "sink-first"}},
    "32 rows": {"tiling": {"bq": 32, "nq": 4}},
    "8 sub-blocks": {"tiling": {"nk": 8}},
    "16 sub-blocks": {"tiling": {"nk": 16, "bk": 8, "bq": 8}},
    "compact, 16 sub-blocks": {"layout": "compact", "tiling": {"nk": 16, "bk": 8, "bq": 8}},
    "compact, bias and cap": {
        "layout": "compact",
        "mask": np.linspace(-1, 1, 150, dtype=np.float32),
        "attention": {"softcap": 5.0},
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_attention_has_the_engine_follows(packed: Machine, name: str):
    other = sample_of(**OTHERS[name])
    counters = timed(other, packed).counters
    assert counters.issued == other.run.counters["issued"]
    assert counters.recomputed == tuple(other.run.statistics.final.sum(axis=0))


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Sample:
    return sample_of(**VARIANTS[request.param])


def test_same_instructions_as_the_functional_run(variant: Sample, packed: Machine):
    counters = timed(variant, packed).counters
    assert counters.issued == variant.run.counters["issued"]
    assert counters.skipped == {name: count for name, count in variant.run.counters["skipped"].items() if count}


def test_same_statistics_as_the_functional_run(variant: Sample, packed: Machine):
    counters, statistics = timed(variant, packed).counters, variant.run.statistics
    assert counters.recomputed_stage1 == tuple(statistics.stage1.sum(axis=0))
    assert counters.recomputed == tuple(statistics.final.sum(axis=0))
    assert counters.live_tiles == sum(counters.recomputed)


@pytest.mark.parametrize("cores", [1, 3])
def test_every_cycle_of_every_context_is_in_one_class(sample: Sample, packed: Machine, cores: int):
    result = timed(sample, packed.override([f"core.cores_count={cores}"]))
    counters = result.counters
    for stream, stalls in counters.stalls.items():
        assert list(stalls) == list(STALLS)
        assert sum(stalls.values()) == result.cycles * counters.contexts[stream]
    assert counters.stalls["warp"]["issue"] + counters.stalls["dma"]["issue"] == result.instructions
    assert counters.contexts["dma"] == cores * counters.resident_blocks
    for use in counters.units.values():
        assert 0 <= use.busy <= use.busy + use.idle
        assert 0 <= use.efficiency <= 1


def test_between_the_bounds(variant: Sample, packed: Machine):
    result = timed(variant, packed)
    assert max(result.bounds.lower.values()) == result.bounds.lower[result.binding] <= result.cycles <= result.bounds.serial
    assert result.ratio == result.cycles / result.bounds.lower[result.binding]


def test_bytes_are_those_of_the_tensors(sample: Sample, packed: Machine):
    """Causal: block i reads its own tiles and those before; every tile is read at least once, Q and O exactly once."""
    cfg, counters = sample.program.cfg, timed(sample, packed).counters
    rows, keys = cfg.bq * cfg.nq, cfg.bk * cfg.nk
    tiles = [min(cfg.lk, -(-min(cfg.lq, (block + 1) * rows) // keys) * keys) for block in range(cfg.blocks)]
    assert counters.hbm_bytes["k"] == counters.hbm_bytes["v"] == cfg.heads * sum(tiles) * cfg.d * 4
    assert counters.hbm_compulsory_bytes["k"] == cfg.batch * cfg.hkv * cfg.lk * cfg.d * 4
    for tensor in ("q", "o"):
        assert counters.hbm_bytes[tensor] == counters.hbm_compulsory_bytes[tensor] == cfg.heads * cfg.lq * cfg.d * 4
    assert counters.sram_bytes["fill"] >= counters.hbm_bytes["k"] + counters.hbm_bytes["v"]
    assert 0 < counters.padded_work_fraction < 0.5


def test_no_padding_no_padded_work(packed: Machine):
    lines = "mx.qk.e4m3 t0, t120, k[s0] wait=full"
    whole = micro(lines, "dma.ld k[s2], k, s0 signal=full")
    ragged = micro(lines, "dma.ld k[s2], k, s0 signal=full", lk=40, lq=12)
    assert time(whole, packed).counters.padded_work_fraction == 0
    assert time(ragged, packed).counters.padded_work_fraction == 1 - (40 * 12) / (64 * 16)


def test_python_gives_the_numbers_of_machine_code(sample: Sample, packed: Machine):
    if find_spec("numba") is None:
        pytest.skip("numba is not installed, so there is no machine code to compare with")
    before = engine()
    try:
        set_engine("numba")
        fast = timed(sample, packed)
        set_engine("numpy")
        slow = timed(sample, packed)
    finally:
        set_engine(before)
    assert asdict(slow.counters) == asdict(fast.counters)
    assert slow.bounds == fast.bounds


def test_results_repeat(sample: Sample, packed: Machine):
    prepared = prepare(sample.program, packed)
    first, second = (run_prepared(prepared, sample.run.log) for _ in range(2))
    assert replace(first, host_seconds=0) == replace(second, host_seconds=0)


def test_twice_the_clock_scales_seconds_only(sample: Sample, packed: Machine):
    slow = timed(sample, packed)
    fast = timed(sample, packed.override([f"core.clock_hz={2 * packed.core.clock_hz}"]))
    assert fast.cycles == slow.cycles
    assert fast.counters == slow.counters
    assert fast.seconds == slow.seconds / 2


def test_permuting_heads_changes_no_total(sample: Sample, packed: Machine):
    log = sample.run.log
    heads, blocks, warps = log.shape
    group = sample.program.cfg.hq // sample.program.cfg.hkv
    order = [*range(group, heads), *range(group)]
    lanes = [log.lane(head, block, warp) for head in order for block in range(blocks) for warp in range(warps)]
    starts = np.cumsum([0, *map(len, lanes)]).astype(np.int64)
    permuted = DecisionLog(np.concatenate(lanes), starts, log.program_hash, log.shape)
    a, b = timed(sample, packed).counters, run_timing(sample.program, permuted, packed).counters
    for name in ("issued", "skipped", "hbm_bytes", "hbm_compulsory_bytes", "recomputed_stage1", "recomputed"):
        assert getattr(a, name) == getattr(b, name), name
    assert {u: use.work for u, use in a.units.items()} == {u: use.work for u, use in b.units.items()}


FASTER = [
    "core.cores_count=2",
    "core.issue_instructions_per_cycle=8",
    "core.branch_penalty_cycles=1",
    "core.block_launch_cycles=1",
    "core.register_bytes=1048576",
    "sram.capacity_bytes=1048576",
    "sram.read_bytes_per_cycle=512",
    "hbm.bytes_per_cycle=512",
    "hbm.latency_cycles=100",
    "hbm.outstanding_loads_count=64",
    "mxe.qk_e4m3_macs_per_cycle=32768",
    "mxe.qk_e4m11_macs_per_cycle=16384",
    "mxe.pv_e4m3_macs_per_cycle=8192",
    "mxe.pv_e4m11_macs_per_cycle=8192",
    "mxe.latency_cycles=4",
    "mxe.add_latency_cycles=1",
    "mxe.operand_slots_count=8",
    "vec.lanes_count=256",
    "vec.latency_cycles=2",
    "vec.add_latency_cycles=1",
    "lut.exponentials_per_cycle=512",
    "sfu.e4m11_exponentials_per_cycle=64",
    "sfu.f32_exponentials_per_cycle=64",
    "sfu.latency_cycles=4",
    "knap.lanes_count=512",
    "knap.latency_cycles=2",
]


@pytest.fixture(scope="module")
def layer() -> list[Sample]:
    """The programs that are compared with each other, on a layer of the size of SmolLM2-135M's."""
    options = {"heads": 9, "kv_heads": 3, "queries": 512, "keys": 512, "d": 64, "dv": 64}
    return [sample_of(shape=options, precision=p) for p in ({}, {"policy": "low"}, {"policy": "high"}, None)]


@pytest.mark.parametrize("setting", FASTER)
def test_a_faster_resource_costs_at_most_a_hundredth(layer: list[Sample], packed: Machine, setting: str):
    """
    Warps that meet at other times can hinder each other more, by chance: it averages out over programs.
    """
    faster = packed.override([setting])
    before, after = ([timed(one, machine).cycles for one in layer] for machine in (packed, faster))
    assert sum(after) <= 1.01 * sum(before)
    assert all(b <= 1.03 * a for a, b in zip(before, after, strict=True))


def test_lamp_without_recomputation_is_the_8_bit_program_and_its_tests(packed: Machine):
    """The same units do the same work but for the vector unit, and stage 2, which find nothing to do."""
    lamp, low = sample_of(), sample_of(precision={"policy": "low"})
    log = synthetic_log(lamp.program, packed, Rates(0, 0), seed=0)
    empty, uniform = run_timing(lamp.program, log, packed).counters, timed(low, packed).counters
    for unit in ("DMA", "MXE", "LUT", "SFU"):
        assert empty.units[unit].work == uniform.units[unit].work, unit
    assert uniform.units["KNAP"].busy == 0 < empty.units["KNAP"].busy
    assert uniform.units["VEC"].busy < empty.units["VEC"].busy
    assert uniform.cycles < empty.cycles


def test_the_log_must_be_of_the_program(sample: Sample, packed: Machine):
    other = replace(sample.run.log, program_hash="0" * 64)
    with pytest.raises(InputError, match="the decision log is of program 000000000000"):
        run_timing(sample.program, other, packed)
    heads, blocks, warps = sample.run.log.shape
    swapped = replace(sample.run.log, shape=(heads, warps, blocks))
    if blocks != warps:
        with pytest.raises(InputError, match="heads, blocks, warps"):
            run_timing(sample.program, swapped, packed)


@pytest.mark.parametrize(("extra", "told"), [(-1, "has no value left for block"), (1, "has 1 values left at the end of block")])
def test_the_log_must_be_consumed_exactly(sample: Sample, packed: Machine, extra: int, told: str):
    log = sample.run.log
    last = log.values[:extra] if extra < 0 else np.append(log.values, np.int64(0))
    starts = log.starts.copy()
    starts[-1] += extra
    with pytest.raises(InternalError, match=told):
        run_timing(sample.program, replace(log, values=last, starts=starts), packed)


def test_a_deadlock_names_who_waits_on_what(packed: Machine):
    program = micro("mx.qk.e4m3 t0, t120, k[s0] wait=full")
    with pytest.raises(InputError, match=r"deadlock; waiting: .*warp 0 at word 0 \(mx\.qk\.e4m3\) for barrier full\[0\]"):
        time(program, packed)


def test_an_endless_loop_ends_in_an_error(packed: Machine):
    with pytest.raises(InputError, match=r"does not end; .* word 0 \(br\)"):
        time(micro("again:\nbr again"), packed)


def test_a_ring_slot_that_does_not_exist(packed: Machine):
    program = micro("s.mov s0, 2\nmx.qk.e4m3 t0, t120, k[s0]")
    with pytest.raises(InputError, match=r"word 1 \(mx\.qk\.e4m3\) names a ring slot that does not exist"):
        time(program, packed)


def test_a_program_that_does_not_fit(sample: Sample, packed: Machine):
    with pytest.raises(CompileError, match="register file of 1024 bytes"):
        timed(sample, packed.override(["core.register_bytes=1024"]))


def test_registers_and_sram_decide_how_many_blocks_are_resident(sample: Sample, packed: Machine):
    program = sample.program
    block = program.cfg.nq * program.warp_bytes
    for key, size in (("core.register_bytes", block), ("sram.capacity_bytes", program.sram_bytes)):
        for blocks in (1, 2, 3):
            counters = timed(sample, packed.override([f"{key}={size * blocks + size - 1}"])).counters
            assert counters.resident_blocks == blocks
            assert counters.register_bytes == blocks * block
            assert counters.sram_bytes_used == blocks * program.sram_bytes
    one = packed.override(["core.resident_blocks_count=1"])
    assert timed(sample, one).counters.resident_blocks == 1


def test_a_synthetic_log_says_so(sample: Sample, packed: Machine):
    assert not timed(sample, packed).synthetic
    made_up = replace(sample.run.log, synthetic=True)
    assert run_timing(sample.program, made_up, packed).synthetic


def test_a_result_outside_its_bounds_is_an_internal_error(sample: Sample, packed: Machine):
    prepared, log = prepare(sample.program, packed), sample.run.log
    values = log.values.astype(np.int64)
    alone = replace(prepared.limits, contended=False, cores=1, places=1)
    tally, chains = (simulate(prepared, limits, values, log.starts) for limits in (prepared.limits, alone))
    counters = collect(prepared, tally)
    assert bounds(prepared, counters, tally, chains) == timed(sample, packed).bounds
    serial = int(tally.total[col.T_SERIAL])
    tally.total[col.T_SERIAL] = counters.cycles - 1
    with pytest.raises(InternalError, match="more than its serial sum"):
        bounds(prepared, counters, tally, chains)
    tally.total[col.T_SERIAL] = serial
    chains.block_time[0] = counters.cycles
    with pytest.raises(InternalError, match="less than its lower bound 'latency'"):
        bounds(prepared, counters, tally, chains)
    tally.stalls[0, 0] += 1
    with pytest.raises(InternalError, match="do not add up"):
        collect(prepared, tally)


@pytest.mark.parametrize("machine", machine_names())
def test_machines_that_come_with_lampc_run_it(sample: Sample, machine: str):
    assert timed(sample, load_machine(machine)).cycles > 0


def test_many_cores_share_memory(sample: Sample, packed: Machine):
    """With enough cores the memory channel binds: half its bandwidth then costs more."""
    many = packed.override(["core.cores_count=64", "hbm.bytes_per_cycle=8"])
    few = packed.override(["core.cores_count=64", "hbm.bytes_per_cycle=4"])
    wide, narrow = timed(sample, many), timed(sample, few)
    assert wide.binding == narrow.binding == "hbm"
    assert narrow.cycles > 1.5 * wide.cycles


def test_log_of_a_micro_program_is_the_same_for_every_warp():
    program = micro("v.live p1, p2, s0", nq=2, hq=2, granules=16)
    log = log_of(program, [3])
    assert log.lanes == 4
    assert [list(log.lane(h, 0, w)) for h in range(2) for w in range(2)] == [[3]] * 4
