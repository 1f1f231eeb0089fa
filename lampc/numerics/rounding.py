"""Rounding onto the grid of a format, the readable reference of every faster form (lampattention.md §2)."""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import F32, Bools, Words
from lampc.numerics.formats import E4M3, FloatFormat

Rounding: TypeAlias = Literal["rne", "rtz", "stochastic"]


Overflow: TypeAlias = Literal["saturate", "nan"]


def round_to(
    x: npt.ArrayLike,
    fmt: FloatFormat,
    rounding: Rounding = "rne",
    words: Words | None = None,
    *,
    overflow: Overflow = "saturate",
) -> F32:
    """
    `x` on the grid of `fmt`, rounded once.

    x         float32 or float64 of any shape (a float64 value goes straight to the grid, not through float32)
    rounding  `rne` to nearest, ties to even; `rtz` towards zero; `stochastic` away from zero iff words/2^32 is less
              than the share of the step already covered
    words     uint32, broadcastable to `x`: the random words of `stochastic`
    overflow  what becomes of a value that rounds beyond the largest finite one: that one, or NaN
    returns   float32: saturated at the largest finite value, NaN stays NaN, a zero is +0; an unsigned format turns
              what is below zero into 0

    Raises ValueError if `stochastic` comes without words.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN
        value = np.asarray(x, np.float64)
    size = np.minimum(np.abs(value), fmt.max_finite if overflow == "saturate" else np.inf)
    exponent = np.maximum(np.frexp(size)[1] - 1, fmt.min_exponent)
    steps = np.ldexp(size, fmt.mantissa_bits - exponent)
    if rounding == "rne":
        # Without mantissa bits even is a matter of the code: 1.5 steps lie between two powers of two, one of even code.
        stays = (steps == 1.5) & ((exponent - fmt.min_exponent) % 2 == 1) & (fmt.mantissa_bits == 0)
        steps = np.where(stays, 1, np.rint(steps))
    elif rounding == "rtz":
        steps = np.floor(steps)
    elif words is None:
        raise ValueError("stochastic rounding needs random words")
    else:
        below = np.floor(steps)
        steps = below + (words < (steps - below) * 2.0**32)
    size = np.ldexp(steps, exponent - fmt.mantissa_bits)
    if overflow == "nan":
        size = np.where(size > fmt.max_finite, np.nan, size)
    negative = -size if fmt.signed else np.zeros_like(size)
    with np.errstate(under="ignore"):
        return np.add(np.where(value < 0, negative, size), 0.0).astype(np.float32)


def is_plain(fmt: FloatFormat) -> bool:
    """
    Whether the forms of rounding that vectorise, here and in Numba's kernels, are right for a format.

    They are for every format that lampattention.md §2 names. Not for one without mantissa bits, whose ties are a matter of
    the code, nor at the ends of FP32's range, where the numbers that they add would overflow or have lost bits.
    """
    if fmt.mantissa_bits == 0 or fmt.min_exponent < -126:
        return False
    if fmt.min_exponent == -126:
        return fmt.mantissa_bits < 23
    return fmt.max_exponent + 24 - fmt.mantissa_bits <= 127


def check_overflow(fmt: FloatFormat | None, overflow: Overflow) -> None:
    """Raise ValueError if an overflow would become a NaN that `fmt` has not."""
    if fmt is not None and overflow == "nan" and fmt.nan == "none":
        raise ValueError(f"format {fmt.name} has no NaN that an overflow could become; let it saturate")


def overflows(x: npt.ArrayLike, fmt: FloatFormat, rounding: Rounding = "rne", words: Words | None = None) -> Bools:
    """
    bool of the shape of `x`: which values round beyond the largest finite one; `.sum()` counts them.

    A value that still rounds to the largest finite one, 464 in e4m3, does not. NaN does not; below zero, an unsigned format
    has no overflow.
    """
    return np.isnan(round_to(x, fmt, rounding, words, overflow="nan")) & ~np.isnan(x)


def truncate(x: npt.ArrayLike, fmt_cut: FloatFormat = E4M3) -> F32:
    """The maximum for low shifts: mantissa bits dropped, saturating (lampattention.md §4.6, `shift = truncate`)."""
    return round_to(x, fmt_cut, "rtz")


def round_in_place(x: F32, fmt: FloatFormat) -> None:
    """
    `round_to(x, fmt)` written back into the contiguous float32 array `x`: the form that vectorises, for signed formats
    that are `is_plain`.

    In a narrow exponent range, adding and subtracting 1.5 * 2^(23-m) times the power of two below |x| leaves m bits.
    With FP32's range that sum would overflow, but there a format is FP32 with 23-m bits less, subnormals included.
    """
    bits = x.view(np.int32)
    if fmt.min_exponent == -126:
        dropped = 23 - fmt.mantissa_bits
        size = bits & 0x7FFFFFFF
        largest = np.float32(fmt.max_finite).view(np.int32)
        rounded = np.minimum((size + ((1 << (dropped - 1)) - 1) + ((size >> dropped) & 1)) & -(1 << dropped), largest)
        np.copyto(bits, np.where(size > 0x7F800000, 0x7FC00000, rounded | (bits & ~0x7FFFFFFF)))
        x += np.float32(0)  # -0 becomes +0
        return
    np.clip(x, np.float32(-fmt.max_finite), np.float32(fmt.max_finite), out=x)
    power = np.maximum(bits & 0x7F800000, np.float32(fmt.min_normal).view(np.int32)).view(np.float32)
    power *= np.float32(1.5 * 2.0 ** (23 - fmt.mantissa_bits))
    x += power
    x -= power
