"""Register codes against their definitions, exhaustively, in both forms."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lampc.numerics import encoding
from lampc.numerics import engine as kernel_engine
from lampc.numerics.exponentials import exp_table
from lampc.numerics.rounding import round_to
from lampc.targets.accel.functional.codes import SCORE_FORMATS, ScoreFormat
from lampc.targets.accel.instruction import Format

NARROW = [Format.E4M3, Format.E4M11]


@pytest.fixture(params=["numba", "numpy"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    chosen = kernel_engine.engine()
    kernel_engine.set_engine(request.param)
    yield request.param
    kernel_engine.set_engine(chosen)


def every_code(codes: ScoreFormat) -> np.ndarray[Any, Any]:
    """Every code, [n, 16, 16]."""
    return np.arange(1 << 8 * np.dtype(codes.dtype).itemsize).astype(codes.dtype).reshape(-1, 16, 16)


@pytest.mark.parametrize("fmt", NARROW)
def test_values_survive_encoding(form: str, fmt: Format):
    codes = SCORE_FORMATS[fmt]
    assert codes.value is not None
    every = every_code(codes)
    values = codes.decode(every)
    assert np.array_equal(values, encoding.decode(every, codes.value), equal_nan=True)
    again = codes.encode(values)
    nan = np.isnan(values)
    assert np.array_equal(again[~nan], every[~nan])
    assert (again[nan] == codes.value.nan_code).all()
    assert not codes.is_dead(again).any()


@pytest.mark.parametrize("fmt", NARROW)
def test_shifts_are_rounded_differences(form: str, fmt: Format):
    codes = SCORE_FORMATS[fmt]
    assert codes.value is not None and codes.shift is not None
    every = every_code(codes)
    rng = np.random.default_rng(0)
    maximum = round_to(rng.standard_normal((len(every), 16)) * 100, codes.value)
    maximum[0, :5] = [np.nan, -np.inf, 448, -448, 0]
    shifts, above = codes.shifted(every, maximum)
    with np.errstate(invalid="ignore"):
        exact = maximum[:, None, :] - codes.decode(every)
    dead = every == codes.dead
    expected = encoding.encode(round_to(exact, codes.shift), codes.shift)
    assert np.array_equal(shifts[~dead], expected[~dead])
    assert (encoding.decode(shifts[dead], codes.shift) == codes.shift.max_finite).all()
    assert np.array_equal(above, ((exact < 0) & ~dead).sum(axis=(1, 2)))


@pytest.mark.parametrize("fmt", NARROW)
def test_dead_entries_have_exponential_zero(form: str, fmt: Format):
    codes = SCORE_FORMATS[fmt]
    assert codes.shift is not None and codes.exp is not None
    dead = np.full((1, 16, 16), codes.dead, codes.dtype)
    shifts, _ = codes.shifted(dead, np.full((1, 16), -448, np.float32))
    e = codes.exponential(shifts, exp_table(codes.shift, codes.exp))
    assert not codes.decode_exponentials(e).any()


def test_fp32_scores_are_their_own_codes():
    codes = SCORE_FORMATS[Format.F32]
    y = np.array([1.5, -np.inf, np.inf, np.nan, -np.nan, 0.0, -2.0], np.float32).reshape(1, 7, 1)
    stored = codes.encode(y)
    assert np.array_equal(codes.decode(stored), y, equal_nan=True)
    assert not codes.is_dead(stored).any()
    stored[0, 6] = codes.dead
    shifts, above = codes.shifted(stored, np.full((1, 1), 1.0, np.float32))
    e = codes.decode_exponentials(codes.exponential(shifts, None)).ravel()
    assert np.array_equal(e[[0, 1, 2]], np.array([1, 0, 1], np.float32))
    assert np.isnan(e[[3, 4]]).all()
    assert e[5] == np.float32(np.exp(np.float64(-1)))
    assert e[6] == 0
    assert above.tolist() == [2]
