"""
Every value there is, marked `exhaustive` (`make test-exhaustive`), and a sample of the same in every test run.

Float32 numbers are cut into 256 blocks by their top eight bits, so that a sample can take some of every block.
"""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lampc.numerics import FORMATS, FloatFormat, decode, encode, kernels, overflows, round_to
from lampc.numerics.arrays import F32
from lampc.numerics.formats import E4M3
from lampc.numerics.rounding import Overflow, round_in_place
from tests.unit.numerics.oracles import by_gfloat, code_value, grid, ml_dtypes_e4m3, same
from tests.unit.numerics.strategies import any_format

CODED = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]
GFLOAT = [fmt for fmt in CODED if fmt.nan == "all-ones"]
BLOCK = 1 << 24
OVERFLOWS: tuple[Overflow, ...] = ("saturate", "nan")


def all_agree_on_e4m3(x: F32) -> None:
    ours = round_to(x, E4M3)
    assert same(ours, ml_dtypes_e4m3(x))
    assert same(ours, by_gfloat(x, E4M3))
    fast = x.copy()
    with np.errstate(all="ignore"):
        round_in_place(fast, E4M3)
    assert same(ours, fast)


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(256))
def test_e4m3_every_float32(block: int):
    for part in range(16):
        bits = np.arange(block * BLOCK + part * (BLOCK >> 4), block * BLOCK + (part + 1) * (BLOCK >> 4), dtype=np.uint64)
        x = bits.astype(np.uint32).view(np.float32)
        all_agree_on_e4m3(x[np.isfinite(x)])


def test_e4m3_some_of_every_block():
    rng = np.random.default_rng(0)
    bits = (np.arange(256, dtype=np.uint32)[:, None] << np.uint32(24)) | rng.integers(0, BLOCK, (256, 400), dtype=np.uint32)
    x = bits.view(np.float32).ravel()
    all_agree_on_e4m3(x[np.isfinite(x)])


def check_codes(fmt: FloatFormat, step: int) -> None:
    """Codes decode to their exact values and encode back."""
    codes = np.arange(0, 1 << fmt.bits, step)
    for code, value in zip(codes.tolist(), decode(codes, fmt).tolist(), strict=True):
        exact = code_value(code, fmt)
        if exact is None:
            assert not np.isfinite(value)
        else:
            assert exact == value and int(encode(np.float32(value), fmt)) == code


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_every_code(fmt: FloatFormat):
    check_codes(fmt, 1)


@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_some_codes(fmt: FloatFormat):
    check_codes(fmt, 1 if fmt.bits <= 8 else 61)


def check_midpoints(fmt: FloatFormat, values: np.ndarray[tuple[int], np.dtype[np.float64]], even: int) -> None:
    """Between neighbours of the grid: the midpoint goes to the even one, its float64 neighbours to the nearer one."""
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2  # exact: one bit more than the format has
    for a, m, b in zip(low.tolist(), middle.tolist(), high.tolist(), strict=True):
        assert Fraction(a) < Fraction(m) < Fraction(b) and Fraction(m) * 2 == Fraction(a) + Fraction(b)
    to_even = np.where((np.arange(len(low)) + even) % 2 == 0, low, high)
    signs = (1.0, -1.0) if fmt.signed else (1.0,)
    for sign in signs:
        assert (round_to(sign * middle, fmt) == sign * to_even).all()
        assert (round_to(sign * np.nextafter(middle, np.inf), fmt) == sign * high).all()
        assert (round_to(sign * np.nextafter(middle, -np.inf), fmt) == sign * low).all()
        assert (round_to(sign * np.nextafter(high, 0), fmt, "rtz") == sign * low).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_every_midpoint_and_its_neighbours(fmt: FloatFormat):
    check_midpoints(fmt, grid(fmt), 0)
    if fmt in GFLOAT:
        values = grid(fmt)
        middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
        for x in (middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0))):
            assert same(round_to(x, fmt), by_gfloat(x, fmt))


def check_accumulators(fmt: FloatFormat, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """0 + 1*x is x rounded: midpoints, both float32 neighbours and the values themselves, by every form of the kernels."""
    with np.errstate(over="ignore"):
        middle = np.append((values[:-1] + values[1:]) / 2, fmt.max_finite * 1.5).astype(np.float32)
        near = np.concatenate(
            [values.astype(np.float32), middle, *(np.nextafter(middle, np.float32(x)) for x in (-np.inf, np.inf))]
        )
    x = np.concatenate([near, -near, np.zeros(-2 * len(near) % 16, np.float32)])
    keys, zero, one = x.reshape(1, -1, 1), np.zeros(1, np.int64), np.ones((1, 16, 1), np.float32)
    expected = {overflow: round_to(x, fmt, overflow=overflow) for overflow in OVERFLOWS}
    for name in ("numba", "numpy"):
        kernels.set_engine(name)
        for overflow in OVERFLOWS:
            got = kernels.accumulate(keys, zero, zero, one, zero, len(x), fmt, overflow=overflow)[0]
            assert same(got[:, 0], expected[overflow]) and same(got[:, 15], expected[overflow])
    kernels.set_engine("auto")


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if fmt.signed], ids=str)
def test_every_midpoint_in_an_accumulator(fmt: FloatFormat):
    check_accumulators(fmt, grid(fmt))


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if fmt.signed], ids=str)
def test_some_midpoints_in_an_accumulator(fmt: FloatFormat):
    values = grid(fmt)
    check_accumulators(fmt, values if fmt.bits <= 8 else np.concatenate([values[:200], values[-200:]]))


@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_some_midpoints(fmt: FloatFormat):
    values = grid(fmt)
    for start in (0, (1 << fmt.mantissa_bits) - 8, len(values) // 2, len(values) - 40):
        start = max(start, 0)
        check_midpoints(fmt, values[start : start + 40], start)


@pytest.mark.parametrize("fmt", GFLOAT, ids=str)
def test_some_values_by_gfloat(fmt: FloatFormat):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(20_000) * 2.0 ** rng.integers(-45, 12, 20_000)).astype(np.float32)
    x = x if fmt.signed else np.abs(x)
    assert same(round_to(x, fmt), by_gfloat(x, fmt))


@settings(max_examples=150, deadline=None)
@given(fmt=any_format(), seed=st.integers(0, 2**32 - 1))
def test_any_format(fmt: FloatFormat, seed: int):
    """Codes round-trip, rounding finds the nearest of all values, and what lies beyond saturates or becomes NaN."""
    codes = np.arange(1 << fmt.bits)
    values = decode(codes, fmt)
    finite = np.isfinite(values)
    assert (encode(values[finite], fmt) == codes[finite]).all()
    for code in (0, 1, len(codes) // 2 - 1, len(codes) - 1):
        exact = code_value(code, fmt)
        assert exact is None or exact == float(values[code])
    kept = grid(fmt)
    assert (kept[-1], kept[1]) == (fmt.max_finite, fmt.min_subnormal if fmt.mantissa_bits else fmt.min_normal)
    rng = np.random.default_rng(seed)
    at = rng.integers(0, len(kept) - 1, 50)
    x = kept[at] + (kept[at + 1] - kept[at]) * rng.choice([0, 0.25, 0.5, 0.75, 1, 2.0**-20], 50)
    nearest = np.where(x - kept[at] < kept[at + 1] - x, kept[at], kept[at + 1])
    tie = x - kept[at] == kept[at + 1] - x
    nearest[tie] = np.where(at[tie] % 2 == 0, kept[at[tie]], kept[at[tie] + 1])
    assert (round_to(x, fmt) == nearest).all()
    beyond = np.array([fmt.max_finite * 2, np.inf, fmt.max_finite, np.nan])
    assert (round_to(beyond[:3], fmt) == fmt.max_finite).all()
    assert np.isnan(round_to(beyond, fmt, overflow="nan")).tolist() == [True, True, False, True]
    assert overflows(beyond, fmt).tolist() == [True, True, False, False]
    assert overflows(-beyond, fmt).tolist() == [fmt.signed, fmt.signed, False, False]


def test_overflow_is_what_ml_dtypes_makes_nan():
    rng = np.random.default_rng(2)
    x = np.append(rng.uniform(-600, 600, 50_000), [464, np.nextafter(464, 465), -464, np.inf]).astype(np.float32)
    with np.errstate(all="ignore"):
        theirs = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert same(round_to(x, E4M3, overflow="nan"), theirs + np.float32(0))
    assert overflows(x, E4M3).sum() == np.isnan(theirs).sum()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((True, 0, 3, 7, "all-ones"), "exponent bit"),
        ((True, 4, -1, 7, "all-ones"), "mantissa bits"),
        ((True, 4, 3, 7, "both"), "NaN rule"),
        ((True, 4, 0, 7, "ieee"), "no code for NaN"),
        ((True, 1, 0, 0, "all-ones"), "no normal value"),
        ((True, 9, 3, 255, "ieee"), "FP32 has not"),
        ((True, 4, 3, 200, "none"), "FP32 has not"),
    ],
)
def test_what_is_no_format(fields: tuple[bool, int, int, int, str], message: str):
    with pytest.raises(ValueError, match=message):
        FloatFormat("x", *fields)  # pyright: ignore[reportArgumentType]
