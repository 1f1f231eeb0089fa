"""Both tables, exhaustively, against exponentials with digits to spare (lampattention.md §8, invariant 8)."""

import math
from bisect import bisect_left
from decimal import Context, Decimal
from typing import Literal

import numpy as np
import pytest

from lampc.numerics import kernels
from lampc.numerics.encoding import decode
from lampc.numerics.exponentials import exp_table, exp_to
from lampc.numerics.formats import UE5M3_EXP, UE5M3_SHIFT, UE5M11_EXP, UE5M11_SHIFT, UE8M11, FloatFormat
from lampc.numerics.rounding import round_to


@pytest.mark.parametrize(("shift", "result"), [(UE5M3_SHIFT, UE5M3_EXP), (UE5M11_SHIFT, UE5M11_EXP)], ids=["8 bit", "16 bit"])
def test_tables_are_correctly_rounded(shift: FloatFormat, result: FloatFormat):
    table = exp_table(shift, result)
    assert table.size == 1 << shift.bits and table[shift.nan_code] == result.nan_code
    context = Context(prec=40, Emin=-(10**6), Emax=10**6)
    grid = [Decimal(float(x)) for x in decode(np.arange(result.nan_code), result)]
    for code, s in enumerate(decode(np.arange(shift.nan_code), shift).tolist()):
        value = context.exp(Decimal(-s))
        upper = bisect_left(grid, value)
        if grid[upper] == value:
            assert s == 0 and table[code] == upper
            continue
        gap = (value - grid[upper - 1]) - (grid[upper] - value)
        assert gap != 0  # exp of a non-zero rational is no rational: there are no ties
        assert table[code] == (upper if gap > 0 else upper - 1)


@pytest.mark.parametrize("engine", ["numba", "numpy"])
@pytest.mark.parametrize(("shift", "result"), [(UE5M3_SHIFT, UE5M3_EXP), (UE5M11_SHIFT, UE5M11_EXP)], ids=["8 bit", "16 bit"])
def test_kernels_look_up_what_the_table_says(shift: FloatFormat, result: FloatFormat, engine: Literal["numba", "numpy"]):
    codes = np.arange(1 << shift.bits)
    maximum = decode(codes, shift)[None]  # every shift, and NaN, as the distance from a logit of 0
    logits = np.zeros((1, 1, len(codes)), np.float32)
    chosen = kernels.engine()
    kernels.set_engine(engine)
    e = kernels.shift_exp(logits, logits == 0, maximum, shift, result, clamp=True)
    kernels.set_engine(chosen)
    expected = decode(exp_table(shift, result), result)
    assert np.array_equal(e[0, 0], expected, equal_nan=True)


def test_float32_in_between_would_be_wrong():
    """Why `exp_to` rounds float64 straight to the format (design.md §7)."""
    s = decode(np.arange(UE5M11_SHIFT.nan_code), UE5M11_SHIFT)
    in_float32 = np.exp(-s)
    assert in_float32.dtype == np.float32
    assert (exp_to(s, UE5M11_EXP) != round_to(in_float32, UE5M11_EXP)).any()


def test_unbounded_and_fp32():
    s = np.array([0.0, 1.0, 87.0, 100.0, 2000.0, -1.0, -2000.0, np.nan], np.float32)
    got = exp_to(s, UE8M11)
    for x, y in zip(s.tolist()[:4], got.tolist(), strict=False):
        assert abs(y - math.exp(-x)) <= max(2.0**-12 * math.exp(-x), UE8M11.min_subnormal / 2)
    assert got[4] == 0 and got[5] > 2.7 and got[6] == np.float32(UE8M11.max_finite) and np.isnan(got[7])
    assert exp_to(s, None)[1] == np.float32(math.exp(-1)) and exp_to(s, None)[6] == np.inf
