"""Logs made up from rates: they run, they keep their rates, and every result says so."""

import numpy as np
import pytest

from lampc.errors import UsageError
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.timing.engine import run_timing
from lampc.targets.accel.timing.synthetic import Rates, synthetic_log
from tests.unit.accel.timing.conftest import Sample


def test_a_made_up_run_is_consumed_exactly_and_labelled(sample: Sample, packed: Machine):
    log = synthetic_log(sample.program, packed, Rates(0.3, 0.2), seed=1)
    result = run_timing(sample.program, log, packed)
    assert result.synthetic
    assert result.counters.live_tiles == run_timing(sample.program, sample.run.log, packed).counters.live_tiles


def test_liveness_is_that_of_the_run(sample: Sample, packed: Machine):
    """v.live comes first in every lane, so first values agree with the functional engine's."""
    log = synthetic_log(sample.program, packed, Rates(0.5, 0.5), seed=1)
    firsts = [(made.starts[:-1], made.values) for made in (log, sample.run.log)]
    (a, made), (b, real) = firsts
    some = np.diff(log.starts) > 0
    assert (some == (np.diff(sample.run.log.starts) > 0)).all()
    assert (made[a[some]] == real[b[some]]).all()


@pytest.mark.parametrize(("stage1", "stage2"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_certain_rates(sample: Sample, packed: Machine, stage1: float, stage2: float):
    log = synthetic_log(sample.program, packed, Rates(stage1, stage2), seed=2)
    counters = run_timing(sample.program, log, packed).counters
    none, some = counters.recomputed_stage1[0], sum(counters.recomputed_stage1[1:])
    assert (some == 0) if stage1 == 0 else (none == 0)
    total = counters.recomputed[0]
    assert total == (counters.live_tiles if stage1 == stage2 == 0 else 0)


def test_more_recomputation_costs_more(sample: Sample, packed: Machine):
    cycles = [
        run_timing(sample.program, synthetic_log(sample.program, packed, Rates(rate, 0.0), seed=3), packed).cycles
        for rate in (0.0, 0.5, 1.0)
    ]
    assert cycles == sorted(cycles)
    assert cycles[0] < cycles[-1]


def test_same_seed_same_log(sample: Sample, packed: Machine):
    a, b, c = (synthetic_log(sample.program, packed, Rates(0.5, 0.5), seed=seed) for seed in (4, 4, 5))
    assert np.array_equal(a.values, b.values)
    assert not np.array_equal(a.values, c.values)


def test_rates_are_chances():
    with pytest.raises(UsageError, match=r"stage1 must lie in 0\.\.1, got 1\.5"):
        Rates(1.5, 0)
