"""Every instruction has a price, on its own unit, and none is free."""

import pytest

from lampc.targets.accel.instruction import Instruction
from lampc.targets.accel.isa import TABLE
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.timing.prices import PRICES, RATES, Rate, rates
from tests.unit.accel.timing.conftest import Sample


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_nothing_is_priced_at_zero(row: Instruction, sample: Sample, packed: Machine):
    for fmt in row.formats:
        price = PRICES[row.name](fmt, sample.program.cfg, packed)
        assert RATES[price.rate].unit is RATES[price.high].unit is row.unit
        assert price.fixed + price.per_block >= 1
        assert price.latency >= 1
        assert price.latency_per_block >= 0
        assert row.masked or not price.per_block
        assert ("hi" in row) or price.high is price.rate


def test_every_rate_has_a_unit_and_a_number(packed: Machine):
    assert set(RATES) == set(rates(packed)) == set(Rate)
    assert min(rates(packed).values()) >= 1
