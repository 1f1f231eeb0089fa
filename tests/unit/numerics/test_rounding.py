"""Rounding against exact rationals, a public library, and its own faster form."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lampc.numerics.arrays import F32, Array
from lampc.numerics.encoding import decode
from lampc.numerics.formats import E4M3, E4M11, E8M3, E8M11, FORMATS, UE5M11_EXP, FloatFormat
from lampc.numerics.rounding import Rounding, round_in_place, round_to, truncate

FORMATS_HERE = [fmt for name, fmt in FORMATS.items() if name not in ("f16", "bf16")]


def exact(x: float, fmt: FloatFormat, rounding: Rounding, word: int = 0) -> float:
    """Rounding in rational arithmetic: the two neighbours on the grid, and the rule."""
    if math.isnan(x):
        return x
    top = Fraction(fmt.max_finite)
    if math.isinf(x) or abs(Fraction(x)) >= top:
        return math.copysign(fmt.max_finite, x) if x > 0 or fmt.signed else 0.0
    size = abs(Fraction(x))
    exponent = fmt.min_exponent
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (exponent - fmt.mantissa_bits)
    count, rest = divmod(size, unit)
    away = {
        "rne": rest * 2 > unit or (rest * 2 == unit and count % 2 == 1),
        "rtz": False,
        "stochastic": Fraction(word, 2**32) < rest / unit,
    }[rounding]
    result = float((count + away) * unit)
    return result if x >= 0 or result == 0 else -result if fmt.signed else 0.0


def interesting(fmt: FloatFormat) -> Array:
    """Values of the format, midpoints, and float32 neighbours of both; beyond both ends too."""
    rng = np.random.default_rng(fmt.mantissa_bits)
    exponents = [fmt.min_exponent, fmt.min_exponent + 1, -1, 0, fmt.max_exponent]
    steps = rng.integers(0, 1 << (fmt.mantissa_bits + 1), 12)
    unit = 2.0**-fmt.mantissa_bits
    values = [math.ldexp((s + half) * unit, e) for e in exponents for s in steps for half in (0.0, 0.5, 0.25)]
    values += [fmt.max_finite, fmt.max_finite * 1.01, fmt.min_subnormal / 2, fmt.min_subnormal / 4, 1e-45, 0.0]
    with np.errstate(over="ignore"):
        base = np.array(values).astype(np.float32)
        near = np.concatenate([base, np.nextafter(base, np.float32(np.inf)), np.nextafter(base, np.float32(-np.inf))])
    return np.concatenate([near, -near, np.array([np.nan, np.inf, -np.inf, 3.4e38, -0.0], np.float32)])


def check(got: F32, wanted: list[float]) -> None:
    expected = np.array(wanted, np.float32)
    nan = np.isnan(expected)
    assert (np.isnan(got) == nan).all()
    assert (got[~nan].view(np.int32) == expected[~nan].view(np.int32)).all()


@pytest.mark.parametrize("fmt", FORMATS_HERE, ids=str)
@pytest.mark.parametrize("rounding", ["rne", "rtz", "stochastic"])
def test_against_rationals(fmt: FloatFormat, rounding: Rounding):
    x = interesting(fmt)
    words = np.random.default_rng(1).integers(0, 2**32, x.size, dtype=np.uint32)
    check(
        round_to(x, fmt, rounding, words),
        [exact(float(v), fmt, rounding, int(w)) for v, w in zip(x, words, strict=True)],
    )


def test_float64_is_rounded_once():
    """Just above a midpoint by less than float32 can say: through float32 it would become a tie."""
    x = 0.5 * (1 + 2.0**-12) + 2.0**-40
    assert round_to(x, UE5M11_EXP) == 0.5 * (1 + 2.0**-11)
    assert round_to(np.float32(x), UE5M11_EXP) == 0.5


@pytest.mark.parametrize("fmt", [E4M3, E4M11], ids=str)
def test_every_value_and_midpoint(fmt: FloatFormat):
    grid = np.unique(decode(np.arange(fmt.nan_code), fmt)).astype(np.float64)
    assert (round_to(grid, fmt) == grid).all()
    middle = (grid[1:] + grid[:-1]) / 2
    lower_is_even = np.arange(len(middle)) % 2 == 0
    assert (round_to(middle, fmt) == np.where(lower_is_even, grid[:-1], grid[1:])).all()
    assert (round_to(np.nextafter(middle, np.inf), fmt) == grid[1:]).all()
    assert (round_to(np.nextafter(middle, 0), fmt) == grid[:-1]).all()


def some_float32() -> F32:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    return np.concatenate([bits, (rng.standard_normal(100_000) * 200).astype(np.float32), interesting(E4M3)])


def test_e4m3_against_ml_dtypes():
    """Equal but for what the other turns into NaN: beyond the largest finite value we saturate."""
    x = some_float32()
    with np.errstate(invalid="ignore", over="ignore"):
        theirs = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    saturated = np.isnan(theirs) & ~np.isnan(x)
    assert saturated.any() and (np.abs(x[saturated]) > 448).all()
    check(round_to(x, E4M3), list(np.where(saturated, np.copysign(np.float32(448), x), theirs) + np.float32(0)))


@pytest.mark.parametrize("fmt", [E4M3, E4M11, E8M3, E8M11], ids=str)
def test_fast_form(fmt: FloatFormat):
    x = np.concatenate([some_float32(), interesting(fmt)])
    expected = round_to(x, fmt)
    with np.errstate(over="ignore", invalid="ignore"):
        round_in_place(x, fmt)
    check(x, list(expected))


def test_truncate_of_the_running_maximum():
    """Never above a positive maximum, at most one step below, and saturated (lampattention.md §4.6)."""
    high = decode(np.arange(E4M11.nan_code), E4M11)
    cut = truncate(high)
    assert (cut <= high).all() and (cut[high >= 448] == 448).all()
    assert (round_to(cut, E4M3) == cut).all() and (truncate(-high) == -cut).all()


def test_stochastic_rounds_up_as_often_as_it_should():
    words = np.arange(0, 2**32, 2**20, dtype=np.uint32)
    x = 1 + 0.3 * 2.0**-3
    share = (round_to(np.full(words.shape, x), E4M3, "stochastic", words) > 1).mean()
    assert abs(share - 0.3) < 2 / words.size
    quarter = 1 + 0.25 * 2.0**-3
    words = np.array([2**30 - 1, 2**30], np.uint32)  # below a quarter of 2^32, and not below
    assert (round_to(np.full(2, quarter), E4M3, "stochastic", words) > 1).tolist() == [True, False]
    with pytest.raises(ValueError, match="words"):
        round_to(x, E4M3, "stochastic")
