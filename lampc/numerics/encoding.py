"""Codes of a format and the values they stand for (lampattention.md §2)."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import F32
from lampc.numerics.formats import FloatFormat

Codes: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


def code_dtype(fmt: FloatFormat) -> type[np.uint8] | type[np.uint16]:
    """The unsigned integer type that holds a code; raises ValueError for a format wider than 16 bits."""
    if fmt.bits > 16:
        raise ValueError(f"format {fmt.name} has {fmt.bits} bits; codes have at most 16")
    return np.uint8 if fmt.bits <= 8 else np.uint16


def encode(values: npt.ArrayLike, fmt: FloatFormat) -> Codes:
    """
    Codes of values that lie on the grid of `fmt`.

    values   float32 of any shape; NaN becomes the all-ones code, -0 keeps its sign
    returns  uint8 for at most 8 bits, else uint16

    Raises ValueError for a value off the grid, beyond the largest finite one, or negative in an unsigned format:
    rounding is the business of `round_to`.
    """
    dtype = code_dtype(fmt)
    value = np.asarray(values, np.float64)
    nan = np.isnan(value)
    negative = np.signbit(value) & ~nan
    size = np.where(nan, 0.0, np.abs(value))
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, fmt.min_exponent), fmt.min_exponent)
    steps = np.ldexp(size, fmt.mantissa_bits - exponent)
    wrong = (size > fmt.max_finite) | (steps != np.floor(steps)) | (negative & (not fmt.signed))
    if wrong.any():
        raise ValueError(f"{value[wrong].flat[0]} is not a value of format {fmt.name}; round it first")
    # A normal value has 2^m steps more than its mantissa field: they carry into the exponent field.
    code = ((exponent - fmt.min_exponent) << fmt.mantissa_bits) + steps.astype(np.int64)
    code += negative.astype(np.int64) << (fmt.exponent_bits + fmt.mantissa_bits)
    if nan.any():
        code = np.where(nan, fmt.nan_code, code)
    return code.astype(dtype)


def decode(codes: npt.ArrayLike, fmt: FloatFormat) -> F32:
    """
    Values of codes.

    codes    unsigned integers of any shape; bits beyond the format's width raise ValueError
    returns  float32; NaN codes (with either sign) give NaN
    """
    code = np.asarray(codes).astype(np.int64)
    if ((code < 0) | (code >> fmt.bits != 0)).any():
        raise ValueError(f"a code of format {fmt.name} has {fmt.bits} bits")
    mantissa_bits = fmt.mantissa_bits
    field = (code >> mantissa_bits) & ((1 << fmt.exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    steps = np.where(field > 0, mantissa + (1 << mantissa_bits), mantissa).astype(np.float64)
    size = np.ldexp(steps, np.maximum(field, 1) - fmt.bias - mantissa_bits)
    magnitude = code & ((1 << (fmt.exponent_bits + mantissa_bits)) - 1)
    if fmt.nan == "all-ones":
        size = np.where(magnitude == fmt.nan_code, np.nan, size)
    elif fmt.nan == "ieee":
        infinite = ((1 << fmt.exponent_bits) - 1) << mantissa_bits
        size = np.where(magnitude > infinite, np.nan, np.where(magnitude == infinite, np.inf, size))
    negative = fmt.signed & (code >> (fmt.exponent_bits + mantissa_bits)).astype(np.bool_)
    return np.where(negative, -size, size).astype(np.float32)
