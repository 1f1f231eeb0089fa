"""Rounding by others and by exact rationals, to compare `round_to` and the codes with."""

from fractions import Fraction
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np

from lampc.numerics.arrays import F32, Array
from lampc.numerics.encoding import decode
from lampc.numerics.formats import FloatFormat

gfloat: Any = import_module("gfloat")  # without types of its own


def ml_dtypes_e4m3(x: F32) -> F32:
    """e4m3 by ml_dtypes, saturating: where it makes a number NaN, the largest value with the number's sign."""
    with np.errstate(all="ignore"):
        theirs = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return np.where(np.isnan(theirs) & ~np.isnan(x), np.copysign(np.float32(448), x), theirs) + np.float32(0)


def by_gfloat(x: F32, fmt: FloatFormat) -> F32:
    """Nearest-even and saturating by gfloat, for formats whose all-ones code is NaN; values below 0 only if signed."""
    info = gfloat.FormatInfo(
        name=fmt.name,
        k=fmt.bits,
        precision=fmt.mantissa_bits + 1,
        bias=fmt.bias,
        is_signed=fmt.signed,
        domain=gfloat.Domain.Finite,
        has_nz=fmt.signed,
        num_high_nans=1,
        has_subnormals=True,
        is_twos_complement=False,
    )
    with np.errstate(all="ignore"):
        return gfloat.round_ndarray(info, x.astype(np.float64), sat=True).astype(np.float32) + np.float32(0)


def code_value(code: int, fmt: FloatFormat) -> Fraction | None:
    """The exact value of a code, from its fields; None for NaN and infinities."""
    mantissa_bits, width = fmt.mantissa_bits, fmt.exponent_bits + fmt.mantissa_bits
    magnitude = code & ((1 << width) - 1)
    field, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    if fmt.nan == "all-ones" and magnitude == (1 << width) - 1:
        return None
    if fmt.nan == "ieee" and field == (1 << fmt.exponent_bits) - 1:
        return None
    size = Fraction(mantissa, 1 << mantissa_bits) + (1 if field else 0)
    value = size * Fraction(2) ** (max(field, 1) - fmt.bias)
    return -value if fmt.signed and code >> width else value


def same(a: Array, b: Array) -> bool:
    """Equal bits; any NaN equals any other."""
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all() and (a.view(np.int32)[~nan] == b.view(np.int32)[~nan]).all())


def grid(fmt: FloatFormat) -> Array:
    """All finite values that are not negative, ascending, float64."""
    values = decode(np.arange(1 << (fmt.exponent_bits + fmt.mantissa_bits)), fmt)
    return values[np.isfinite(values)].astype(np.float64)
