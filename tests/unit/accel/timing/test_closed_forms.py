"""Micro-programs that use one unit take exactly what its row of the price table says (docs/accelerator.md section 4)."""

from math import ceil

import pytest

from lampc.targets.accel.machine import Machine, load_machine
from lampc.targets.accel.timing.engine import run_timing
from tests.unit.accel.timing.micro import log_of, micro, time

BLOCK = 16 * 16
D = 64
COUNT = 6


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Uneven numbers, so that no two terms of a formula look alike; one miss costs less than a product."""
    return load_machine(
        "packed",
        [
            "core.block_launch_cycles=13",
            "core.branch_penalty_cycles=7",
            "mxe.qk_e4m3_macs_per_cycle=3000",
            "mxe.qk_e4m11_macs_per_cycle=1700",
            "mxe.qk_f32_macs_per_cycle=900",
            "mxe.pv_e4m3_macs_per_cycle=1100",
            "mxe.pv_e4m11_macs_per_cycle=700",
            "mxe.pv_f32_macs_per_cycle=500",
            "mxe.latency_cycles=31",
            "mxe.add_latency_cycles=3",
            "vec.lanes_count=100",
            "vec.latency_cycles=11",
            "vec.add_latency_cycles=5",
            "lut.exponentials_per_cycle=90",
            "sfu.e4m11_exponentials_per_cycle=14",
            "sfu.f32_exponentials_per_cycle=9",
            "knap.lanes_count=70",
            "hbm.bytes_per_cycle=60",
            "sram.read_bytes_per_cycle=1000",
        ],
    )


def repeated(machine: Machine, lines: list[str], values: list[int] | None = None) -> int:
    """Cycles of independent instructions, less the launch."""
    result = time(micro("\n".join(lines)), machine, values or [])
    return result.cycles - machine.core.block_launch_cycles


def chain(occupancy: int, latency: int) -> int:
    """COUNT independent instructions on one unit, one after the other; the last one's result ends the run."""
    return COUNT * occupancy + latency - 1


VEC_ROWS = [
    # text (with {i} for the instruction's number), work per cycle in lanes, work
    ("v.zero t{i}0", 1, D * 16),
    ("v.const v{i}, 0x3f800000", 1, 16),
    ("v.mask.e4m3 t{i}0, s0", 4, 4 * BLOCK),
    ("v.mask.e4m11 t{i}0, s0", 2, 4 * BLOCK),
    ("v.mask.f32 t{i}0, s0", 1, 4 * BLOCK),
    ("v.rmax.e4m3 v{i}, t{i}0", 4, 4 * BLOCK),
    ("v.sub.e4m11 t{i}0, v{i}", 2, 4 * BLOCK),
    ("v.bias.e4m3 t{i}0, t120", 1, 4 * BLOCK),
]


def spaced(text: str, i: int) -> str:
    """Instruction number i on registers of its own: tiles 20 granules apart, vectors 4."""
    return text.replace("t{i}0", f"t{20 * i}").replace("v{i}", f"v{4 * i}")


@pytest.mark.parametrize(("text", "pack", "work"), VEC_ROWS)
def test_vector_unit(machine: Machine, text: str, pack: int, work: int):
    occupancy = ceil(work / (machine.vec.lanes_count * pack))
    cycles = repeated(machine, [spaced(text, i) for i in range(COUNT)])
    assert cycles == chain(occupancy, machine.vec.latency_cycles)


def test_soft_cap_pays_for_its_tanh(machine: Machine):
    occupancy = ceil(4 * BLOCK * machine.vec.tanh_lane_cycles / machine.vec.lanes_count)
    assert repeated(machine, [f"v.cap.e4m3 t{20 * i}" for i in range(COUNT)]) == chain(occupancy, machine.vec.latency_cycles)


def test_normalising_pays_for_its_divisions(machine: Machine):
    occupancy = ceil(D * 16 * machine.vec.division_lane_cycles / machine.vec.lanes_count)
    assert repeated(machine, [f"v.norm t{20 * i}, v0" for i in range(COUNT)]) == chain(occupancy, machine.vec.latency_cycles)


@pytest.mark.parametrize("text", ["v.rsum.mix v{i}, v{i}, t{i}0, p1", "v.xi v{i}, v39, t{i}0, p1"])
def test_sums_wait_for_their_adds(machine: Machine, text: str):
    occupancy = ceil(4 * BLOCK / machine.vec.lanes_count)
    latency = machine.vec.latency_cycles + 4 * 16 * machine.vec.add_latency_cycles
    assert repeated(machine, [spaced(text, i) for i in range(COUNT)]) == chain(occupancy, latency)


@pytest.mark.parametrize(
    ("text", "unit", "rate"),
    [
        ("exp.lut t{i}0", "lut", "exponentials_per_cycle"),
        ("exp.sfu.e4m11 t{i}0", "sfu", "e4m11_exponentials_per_cycle"),
        ("exp.sfu.f32 t{i}0", "sfu", "f32_exponentials_per_cycle"),
    ],
)
def test_exponentials(machine: Machine, text: str, unit: str, rate: str):
    part = getattr(machine, unit)
    occupancy = ceil(4 * BLOCK / getattr(part, rate))
    assert repeated(machine, [spaced(text, i) for i in range(COUNT)]) == chain(occupancy, part.latency_cycles)


def test_rescaling_factor_runs_on_the_sfu(machine: Machine):
    occupancy = ceil(16 / machine.sfu.f32_exponentials_per_cycle)
    cycles = repeated(machine, [f"exp.lambda v{i}, v30, v31" for i in range(COUNT)])
    assert cycles == chain(occupancy, machine.sfu.latency_cycles)


@pytest.mark.parametrize("tie", ["first", "slack"])
def test_stage_2_enumerates_its_sets(machine: Machine, tie: str):
    each = 1 if tie == "first" else 2 + machine.knap.division_lane_cycles
    occupancy = ceil(2**4 * 16 * each / machine.knap.lanes_count)
    program = micro("\n".join(f"knap p{i + 1}, v0, v8, p0" for i in range(COUNT)), tie=tie)
    result = time(program, machine, [0] * COUNT)
    assert result.cycles - machine.core.block_launch_cycles == chain(occupancy, machine.knap.latency_cycles)


MASKS = [0b1111, 0b0101, 0b1000]


@pytest.mark.parametrize("fmt", ["e4m3", "e4m11", "f32"])
@pytest.mark.parametrize("mask", MASKS)
def test_scores(machine: Machine, fmt: str, mask: int):
    pop = mask.bit_count()
    occupancy = ceil(pop * BLOCK * D / getattr(machine.mxe, f"qk_{fmt}_macs_per_cycle"))
    latency = machine.mxe.latency_cycles + D * machine.mxe.add_latency_cycles
    lines = [f"p.const p1, {mask}", *(f"mx.qk.{fmt} t{20 * i}, t120, k[s0] @p1" for i in range(COUNT))]
    # The first one also waits a cycle for the mask's own instruction.
    assert repeated(machine, lines) == 1 + chain(occupancy, latency)


@pytest.mark.parametrize("high", [0, 0b0011, 0b1111])
def test_output_at_each_formats_rate(machine: Machine, high: int):
    low_work, high_work = (4 - high.bit_count()) * BLOCK * D, high.bit_count() * BLOCK * D
    occupancy = ceil(low_work / machine.mxe.pv_e4m3_macs_per_cycle) + ceil(high_work / machine.mxe.pv_e4m11_macs_per_cycle)
    latency = machine.mxe.latency_cycles + 4 * 16 * machine.mxe.add_latency_cycles
    lines = [f"p.const p1, {high}", *(f"mx.pv.mix t{20 * i}, t120, v[s0], p1" for i in range(COUNT))]
    assert repeated(machine, lines) == 1 + chain(occupancy, latency)


def test_operand_misses_fill_the_buffer(machine: Machine):
    """At a narrow port the first of a run pays for its fetch, in full, and the others hit."""
    narrow = machine.override(["sram.read_bytes_per_cycle=10"])
    tile = 4 * 16 * D * 4
    product = ceil(4 * BLOCK * D / machine.mxe.qk_e4m3_macs_per_cycle)
    latency = machine.mxe.latency_cycles + D * machine.mxe.add_latency_cycles
    result = time(micro("\n".join(f"mx.qk.e4m3 t{20 * i}, t120, k[s0]" for i in range(COUNT))), narrow)
    assert result.cycles - machine.core.block_launch_cycles == ceil(tile / 10) + (COUNT - 1) * product + latency - 1
    assert result.counters.operand_buffer == {"hits": COUNT - 1, "misses": 1}
    assert result.counters.sram_bytes == {"mx.qk": tile, "mx.pv": 0, "fill": 0}


def test_two_operand_slots_and_parts_of_tiles(machine: Machine):
    """K and V stay; a third tile sends the older one away; a tile fetched in part misses the rest."""
    lines = [
        "p.const p1, 3",
        "mx.qk.e4m3 t0, t120, k[s0] @p1",  # miss, two sub-blocks
        "mx.qk.e4m3 t20, t120, k[s0]",  # miss, the other two
        "mx.pv.f32 t40, t120, v[s0], p0",  # miss, four
        "mx.qk.e4m3 t60, t120, k[s0] @p1",  # hit
        "s.mov s2, 1",
        "mx.qk.e4m3 t80, t120, k[s2] @p1",  # miss, two: V leaves
        "mx.qk.e4m3 t100, t120, k[s0]",  # hit
        "mx.pv.f32 t180, t120, v[s0], p0",  # miss, four
    ]
    counters = time(micro("\n".join(lines)), machine).counters
    block = 16 * D * 4
    assert counters.operand_buffer == {"hits": 2, "misses": 5}
    assert counters.sram_bytes == {"mx.qk": 6 * block, "mx.pv": 8 * block, "fill": 0}


def test_loads_share_the_channel_and_have_their_latency(machine: Machine):
    row = ceil(16 * D * 4 / machine.hbm.bytes_per_cycle)
    cycles = repeated(machine, [f"dma.ldr t{20 * i}, q" for i in range(COUNT)])
    assert cycles == chain(row, machine.hbm.latency_cycles)


@pytest.mark.parametrize("limit", [1, 2])
def test_outstanding_loads_are_limited(machine: Machine, limit: int):
    """With one load at a time each waits for the one before to arrive; with two for the one before that."""
    row, latency = ceil(16 * D * 4 / machine.hbm.bytes_per_cycle), machine.hbm.latency_cycles
    narrow = machine.override([f"hbm.outstanding_loads_count={limit}"])
    ends: list[int] = []
    free = 0
    for i in range(COUNT):
        start = max(free, ends[i - limit] if i >= limit else 0)
        free = start + row
        ends.append(start + row - 1 + latency)
    result = time(micro("\n".join(f"dma.ldr t{20 * i}, q" for i in range(COUNT))), narrow)
    assert result.cycles - machine.core.block_launch_cycles == ends[-1]
    assert result.counters.stalls["warp"]["queue"] > 0


def test_stores_have_a_queue_of_their_own(machine: Machine):
    narrow = machine.override(["hbm.outstanding_loads_count=1", "hbm.outstanding_stores_count=1"])
    row = ceil(16 * D * 4 / machine.hbm.bytes_per_cycle)
    cycles = repeated(narrow, ["dma.ldr t0, q", "dma.st o, t20"])
    assert cycles == 2 * row - 1 + machine.hbm.latency_cycles


def test_tiles_beyond_the_tensor_cost_what_there_is(machine: Machine):
    program = micro("", "s.mov s0, 1\ndma.ld k, k, s0, k[s2]".replace("dma.ld k, k, s0, k[s2]", "dma.ld k[s2], k, s0"), lk=70)
    result = time(program, machine)
    assert result.counters.hbm_bytes["k"] == 6 * D * 4
    assert result.counters.sram_bytes["fill"] == 64 * D * 4


def test_control_takes_a_cycle_and_branches_their_penalty(machine: Machine):
    loops = 5
    cycles = repeated(machine, [f"s.mov s0, {loops}", "again:", "mark 1", "loop s0, again"])
    # s.mov, the loop's two words, taken all but once, halt.
    assert cycles == 1 + 2 * loops + (loops - 1) * machine.core.branch_penalty_cycles + 1


def test_issue_width_is_shared(machine: Machine):
    """Eight warps of control instructions at width w take an eighth of their number times 8/w."""
    words = 40
    body = "\n".join(["mark 1"] * words)
    for width in (1, 2, 4):
        wide = machine.override([f"core.issue_instructions_per_cycle={width}"])
        result = time(micro(body, nq=8, granules=16), wide)
        total = 8 * (words + 1) + 1  # with the DMA context's halt
        assert result.cycles - machine.core.block_launch_cycles == ceil(total / width)
        assert result.bounds.lower["issue"] == ceil(total / width)


def test_skip0_takes_one_cycle_and_no_unit(machine: Machine):
    lines = ["p.const p1, 0", *["exp.sfu.f32 t0 @p1 skip0"] * COUNT]
    result = time(micro("\n".join(lines)), machine)
    assert result.cycles - machine.core.block_launch_cycles == 1 + COUNT + 1
    assert result.counters.skipped == {"exp.sfu.f32": COUNT}
    assert result.counters.units["SFU"].busy == 0


def test_an_empty_mask_without_skip0_still_occupies_its_unit(machine: Machine):
    lines = ["p.const p1, 0", *["exp.sfu.f32 t0 @p1"] * COUNT]
    assert time(micro("\n".join(lines)), machine).counters.units["SFU"].busy == COUNT


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("exp.sfu.f32 t0", "v.rmax.f32 v0, t0", "result"),  # read after write
        ("exp.sfu.f32 t0", "v.fill t0, 0x00000000", "result"),  # write after write
        ("v.norm t0, v0", "v.zero t0", "result"),
        ("dma.st o, t0", "v.zero t0", "read"),  # write after read: the store has read its registers
        ("dma.st o, t0", "v.zero t40", "nothing"),
    ],
)
def test_hazards_on_tile_registers(machine: Machine, first: str, second: str, waits: str):
    alone = repeated(machine, [first])
    row = ceil(16 * D * 4 / machine.hbm.bytes_per_cycle)
    start = {"result": alone, "read": row, "nothing": 1}[waits]
    both = time(micro(f"{first}\n{second}\nv.stat p0, p0"), machine)
    stalls = both.counters.stalls["warp"]
    waited = sum(cycles for name, cycles in stalls.items() if name.startswith("operand_"))
    assert waited == start - 1


def test_sub_blocks_are_scoreboarded_one_by_one(machine: Machine):
    """An instruction on other sub-blocks of a tile does not wait; one on the same does."""
    lines = ["p.const p1, 3", "p.const p2, 12", "exp.sfu.f32 t0 @p1"]
    latency = ceil(2 * BLOCK / machine.sfu.f32_exponentials_per_cycle) - 1 + machine.sfu.latency_cycles
    for mask, waits in (("p2", 0), ("p1", latency - 1)):
        result = time(micro("\n".join([*lines, f"v.rmax.f32 v0, t0 @{mask}"])), machine)
        assert result.counters.stalls["warp"]["operand_sfu"] == waits


def test_thread_blocks_follow_one_another(machine: Machine):
    """One place, three heads: each launch waits for the thread block before."""
    single = machine.override(["core.resident_blocks_count=1"])
    alone = time(micro("v.norm t0, v0"), single).cycles
    assert time(micro("v.norm t0, v0", hq=3), single).cycles == 3 * alone
    assert time(micro("v.norm t0, v0", hq=3), single.override(["core.cores_count=3"])).cycles == alone


def test_barriers_carry_completion(machine: Machine):
    """The warp starts on its tile when the load has arrived, and the DMA context reuses the slot when the warp is done."""
    dma = "dma.ld k[s2], k, s0 signal=full wait=empty xor\ns.mov s3, 1\ndma.ld k[s2], k, s0 signal=full wait=empty xor"
    warp = "mx.qk.e4m3 t0, t120, k[s0] wait=full signal=empty"
    result = time(micro(warp, dma), machine)
    load = ceil(64 * D * 4 / machine.hbm.bytes_per_cycle) - 1 + machine.hbm.latency_cycles
    product = ceil(4 * BLOCK * D / machine.mxe.qk_e4m3_macs_per_cycle) - 1
    product += machine.mxe.latency_cycles + D * machine.mxe.add_latency_cycles
    assert result.cycles - machine.core.block_launch_cycles == 2 * load + product
    assert result.counters.stalls["warp"]["barrier"] == load
    assert result.counters.stalls["dma"]["barrier"] == load + product - 2
    assert result.bounds.lower["latency"] < result.cycles


def test_a_result_carries_both_hashes(machine: Machine):
    program = micro("v.zero t0")
    result = run_timing(program, log_of(program), machine)
    assert (result.program_hash, result.machine_hash) == (program.program_hash(), machine.hash)
