"""Kernels in formats of any layout, and overflow to NaN; the formats of the machine are those of test_kernels.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lampc.numerics import kernels
from lampc.numerics.exponentials import exp_to
from lampc.numerics.formats import E4M3, FloatFormat, FormatSet
from lampc.numerics.rounding import Overflow, is_plain, round_in_place, round_to
from tests.unit.numerics.strategies import EDGES, any_format, any_formats
from tests.unit.numerics.test_kernels import TILES, assert_same, both, tiles


@settings(max_examples=150, deadline=None)
@given(fmt=st.sampled_from(EDGES) | any_format(signed=True), seed=st.integers(0, 2**32 - 1))
def test_the_form_that_vectorises_is_right_where_it_says_so(fmt: FloatFormat, seed: int):
    if not is_plain(fmt):
        return
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, 200, dtype=np.uint32).view(np.float32)
    near = np.clip(rng.standard_normal(200) * fmt.max_finite, -3e38, 3e38).astype(np.float32)
    small = (rng.standard_normal(200) * 4 * fmt.min_normal).astype(np.float32)
    x = np.concatenate([bits, near, small, np.array([fmt.max_finite, -fmt.min_subnormal / 2], np.float32)])
    with np.errstate(all="ignore"):
        expected = round_to(x, fmt)
        round_in_place(x, fmt)
    assert_same(x, expected)


@settings(max_examples=60, deadline=None)
@given(**TILES, formats=any_formats(), high=st.booleans(), clamp=st.booleans(), size=st.sampled_from([1e-30, 1.0, 1e30]))
def test_exponentials(seed: int, nk: int, bk: int, rows: int, formats: FormatSet, high: bool, clamp: bool, size: float):
    shift, result = (formats.high_shift, formats.high_exp) if high else (formats.low_shift, formats.low_exp)
    clamp = clamp or shift.min_exponent != -126
    y, live, mu, n = tiles(seed, nk, bk, rows, None)
    y, mu = y * np.float32(size), mu * np.float32(size)
    rng = np.random.default_rng(seed)
    mask = rng.random((n, nk)) < 0.7
    e = both(kernels.shift_exp, y, live, mu, shift, result, clamp=clamp, mask=mask)
    with np.errstate(all="ignore"):
        for _ in range(5):
            a, i, r = int(rng.integers(n)), int(rng.integers(nk * bk)), int(rng.integers(rows))
            s = mu[a, r] - y[a, i, r]
            s = np.float32(0) if clamp and s < 0 else s
            s = np.copysign(round_to(abs(float(s)), shift), s)
            expected = exp_to(s, result) if live[a, i, r] and mask[a, i // bk] else np.zeros((), np.float32)
            assert_same(e[a, i, r : r + 1], np.reshape(expected, 1))


def test_no_nan_to_overflow_to():
    fmt, zero, one = FloatFormat("whole", True, 4, 3, 7, "none"), np.zeros(1, np.int64), np.ones((1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="format whole has no NaN"):
        kernels.accumulate(one, zero, zero, one, zero, 1, fmt, overflow="nan")
    with pytest.raises(ValueError, match="format whole has no NaN"):
        kernels.add_bias(one, one, fmt, overflow="nan")


@pytest.mark.parametrize(("overflow", "expected"), [("saturate", 3), ("nan", 2)])
def test_what_overflowed_is_counted(overflow: Overflow, expected: int):
    """448; 464, which still rounds to 448; 480, which does not; NaN; and a dead 1000."""
    y = np.array([448, 464, 480, np.nan, 1000], np.float32).reshape(1, 5, 1)
    live = np.arange(5).reshape(1, 5, 1) < 4
    rounded = kernels.add_bias(y, np.zeros(1, np.float32), E4M3, overflow=overflow)
    count, largest = both(kernels.count_saturated, rounded, live, E4M3, overflow)
    assert (count, largest) == (expected, 448)
