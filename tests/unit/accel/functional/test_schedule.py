"""Results do not depend on the order in which contexts run, nor on how many run at once; faulty programs are explained."""

import re

import numpy as np
import pytest

from lampc.errors import InputError
from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.functional import schedule
from lampc.targets.accel.functional.engine import Engine, FunctionalResult
from lampc.targets.accel.functional.reference import random_schedule
from lampc.targets.accel.program import Program
from lampc.targets.accel.run import run_functional
from tests.unit.accel.programs import program_of, run_case, run_with
from tests.unit.numpy_target.compiled import Case, operands, same_bits


def case(**options: object) -> Case:
    tiling = {"bq": 4, "nq": 3, "bk": 4, "nk": 4}
    attention = {"causal": True, "causal_offset": 60, "window": 50}
    made = Case(*operands(5, heads=2, kv_heads=1, queries=29, keys=90), attention=attention, tiling=tiling)
    made.precision = None if options == {"policy": "fp32"} else dict(options)
    return made


def same(a: FunctionalResult, b: FunctionalResult) -> bool:
    logs = np.array_equal(a.log.values, b.log.values) and np.array_equal(a.log.starts, b.log.starts)
    return (
        same_bits(a.output, b.output)
        and a.statistics == b.statistics
        and logs
        and a.counters["skipped"] == b.counters["skipped"]
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"policy": "fp32"}, {"stage1": False}, {"tau": 0.0}], ids=str)
def test_any_order_gives_the_same(options: dict[str, object], seed: int):
    made = case(**options)
    expected = run_with(made, Engine)
    shuffled = run_with(made, lambda program: Engine(program, scheduler=random_schedule(seed)))
    assert same(shuffled, expected)
    assert shuffled.counters["issued"] == expected.counters["issued"]


@pytest.mark.parametrize("warps", [1, 18, 1000])
def test_any_number_of_warps_at_once_gives_the_same(warps: int):
    made = case()
    assert same(run_with(made, lambda program: Engine(program, warps_at_once=warps)), run_with(made, Engine))


def test_log_has_the_program_and_its_lanes():
    program = program_of(case())
    result = run_with(case(), Engine)
    assert result.log.program_hash == program.program_hash()
    assert result.log.shape == (2, program.cfg.blocks, 3)
    assert not result.log.synthetic


HEAD = """\
.isa 1
.cfg bq=4 bk=4 nk=2 nq=2 d=8 dv=8 lq=8 lk=32 batch=1 hq=1 hkv=1 scale=1.0
.registers granules=40 vectors=8
.descriptor q f32 1x1x8x8
.descriptor k f32 1x1x32x8
.descriptor o f32 1x1x8x8
.buffer k base=0 bytes=256 slots=2
.barrier full first=0 slots=2 expected=1
.barrier empty first=2 slots=2 expected=2
"""

GOOD = (
    HEAD
    + """\
.stream warp
  dma.ldr t0, q
  s.mov s0, 4
again:
  mx.qk.f32 t10, t0, k[s2] wait=full signal=empty
  s.ring s2, 2
  loop s0, again
  v.zero t20
  dma.st o, t20
  halt
.stream dma
  s.mov s0, 4
again:
  dma.ld k[s2], k, s4 wait=empty xor signal=full
  s.add s4, s4, 1
  s.ring s2, 2
  loop s0, again
  halt
"""
)


def run_text(text: str, *, seed: int | None = None) -> FunctionalResult:
    program: Program = assemble(text)
    q, k, v = operands(0, heads=1, kv_heads=1, queries=8, keys=32)
    made = Engine(program) if seed is None else Engine(program, scheduler=random_schedule(seed))
    return run_functional(program, q, k, v, engine=made)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_ring_that_is_waited_for_runs(seed: int | None):
    assert run_text(GOOD, seed=seed).counters["issued"]["mx.qk.f32"] == 8


@pytest.mark.parametrize("seed", [None, 3])
def test_deadlock_names_who_waits_on_what(seed: int | None):
    text = GOOD.replace("signal=empty", "")
    with pytest.raises(InputError, match="deadlock") as error:
        run_text(text, seed=seed)
    message = str(error.value)
    assert "head 0 block 0 warp 0 waits at word 2 (mx.qk.f32) for barrier full[0] parity 1" in message
    assert "head 0 block 0 dma waits at word 1 (dma.ld) for barrier empty[0] parity 0" in message
    assert "with 0 of 2 arrived" in message
    assert "\n" not in message


def test_a_long_deadlock_report_is_cut():
    text = re.sub(r"lq=8 ", "lq=80 ", GOOD).replace("1x1x8x8", "1x1x80x8").replace(" signal=full", "")
    program = assemble(text)
    q, k = np.zeros((1, 1, 80, 8), np.float32), np.zeros((1, 1, 32, 8), np.float32)
    with pytest.raises(InputError, match=r"and \d+ more"):
        run_functional(program, q, k, k)


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (" wait=full", r"warp \d at word 2 \(mx.qk.f32\) reads slot 0 of buffer 0 before anything is loaded into it"),
        (" wait=empty xor", r"dma at word 1 \(dma.ld\) writes slot \d of .* unordered with .*warp \d at word 2 \(mx.qk.f32\)"),
    ],
)
def test_accesses_that_no_barrier_orders_are_named(missing: str, told: str):
    """No schedule gets through, and where it comes to an access out of order, both instructions are named."""
    messages: list[str] = []
    for seed in (None, *range(30)):
        with pytest.raises(InputError) as error:
            run_text(GOOD.replace(missing, ""), seed=seed)
        messages.append(str(error.value))
    assert any(re.search(told, message) for message in messages)


def test_an_endless_loop_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "MAX_WORDS", 1000)
    with pytest.raises(InputError, match="has not ended after 1000 instructions"):
        run_text(HEAD + ".stream warp\nagain:\n  br again\n.stream dma\n  halt\n")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("s.ring s2, 2\n  loop s0, again\n  v.zero", "s.add s2, s2, 1\n  loop s0, again\n  v.zero", "slot"),
        ("dma.st o, t20", "dma.st q, t20", "takes o, descriptor names q"),
        ("dma.ldr t0, q", "dma.ldr t0, o", "takes q, descriptor names o"),
    ],
)
def test_words_that_make_no_sense_are_refused(old: str, new: str, told: str):
    with pytest.raises(InputError, match=told):
        run_text(GOOD.replace(old, new))


def test_a_buffer_must_hold_what_is_computed_from_it():
    text = (
        GOOD.replace("dv=8", "dv=16")
        .replace("v.zero t20", "mx.pv.f32 t20, t10, k[s2], p1")
        .replace(".descriptor o f32 1x1x8x8", ".descriptor o f32 1x1x8x16")
        .replace("granules=40", "granules=60")
    )
    with pytest.raises(InputError, match="needs tiles of 16 columns"):
        Engine(assemble(text))


def test_operands_must_fit_the_program():
    q, k, v = operands(1, heads=1, kv_heads=1)
    program = program_of(Case(q, k, v))
    with pytest.raises(InputError, match=r"takes q of shape \[1, 1, 20, 8\], got \[1, 1, 19, 8\]"):
        run_functional(program, q[:, :, :19], k, v)
    with pytest.raises(InputError, match="reads no bias"):
        run_functional(program, q, k, v, bias=np.zeros((1, 1, 1, 1), np.float32))
    masked = program_of(Case(q, k, v, mask=np.ones((20, 40), np.bool_)))
    with pytest.raises(InputError, match=r"mask of shape \[1, 1, 2, 40\] does not broadcast to \[1, 1, 20, 40\]"):
        run_functional(masked, q, k, v, mask_live=np.ones((1, 1, 2, 40), np.bool_))
    everything, _ = run_case(Case(q, k, v))
    assert same_bits(run_functional(masked, q, k, v).output, everything)
