"""Register codes, the Numba form of what `codes` does with NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lampc.numerics.arrays import F32, Array, Ints
from lampc.numerics.encoding import code_dtype
from lampc.numerics.formats import FloatFormat
from lampc.numerics.jit import kernel
from lampc.numerics.threads import spread

_ENTRIES_PER_NS = 1.0

Codes = NDArray[Any]


def look_up(table: Array, codes: Codes) -> Array:
    """See `codes.look_up`."""
    out = np.empty(codes.shape, table.dtype)
    source, into = np.ascontiguousarray(codes).reshape(-1), out.reshape(-1)
    spread(lambda first, last: _look_up(first, last, table, source, into), len(source), 1 / _ENTRIES_PER_NS)
    return out


def _grid(fmt: FloatFormat) -> tuple[Any, ...]:
    smallest = np.float32(fmt.min_normal).view(np.int32)
    dropped = np.int32(23 - fmt.mantissa_bits)
    return (
        smallest,
        dropped,
        np.int32((smallest >> dropped) - (1 << fmt.mantissa_bits)),
        np.float32(1 / fmt.min_subnormal),
        np.int32(fmt.nan_code),
    )


def encode(y: F32, fmt: FloatFormat) -> Codes:
    """See `codes.ScoreFormat.encode`; `fmt` is bounded and signed."""
    out = np.empty(y.shape, code_dtype(fmt))
    source, into = y.reshape(-1), out.reshape(-1)
    sign = np.int32(1 << (fmt.exponent_bits + fmt.mantissa_bits))
    args = (source, _grid(fmt), sign, into)
    spread(lambda first, last: _encode(first, last, *args), len(source), 1 / _ENTRIES_PER_NS)
    return out


def shifted(codes: Codes, maximum: F32, values: F32, dead: int, fmt: FloatFormat) -> tuple[Codes, Ints]:
    """See `codes.ScoreFormat.shifted`; `values` are those of logit codes, `fmt` is the bounded shift format."""
    out, above = np.empty_like(codes), np.zeros(len(codes), np.int64)
    rounding = (np.float32(fmt.max_finite), np.float32(1.5 * 2.0 ** (23 - fmt.mantissa_bits)))
    args = (codes, np.ascontiguousarray(maximum), values, dead, _grid(fmt), rounding, out, above)
    spread(lambda first, last: _shifted(first, last, *args), len(codes), codes[:1].size / _ENTRIES_PER_NS)
    return out, above


@kernel
def _look_up(first: int, last: int, table: Array, codes: Codes, out: Array) -> None:
    for i in range(first, last):
        out[i] = table[codes[i]]


@kernel
def _encode(first: int, last: int, y: F32, grid: tuple[Any, ...], sign: np.int32, out: Codes) -> None:
    smallest, dropped, offset, per_step, nan_code = grid
    for i in range(first, last):
        bits = np.float32(y[i]).view(np.int32)
        size = np.int32(bits & np.int32(0x7FFFFFFF))
        code = (size >> dropped) - offset if size >= smallest else np.int32(np.int32(size).view(np.float32) * per_step)
        code = np.int32(code | sign) if bits < 0 else np.int32(code)
        out[i] = nan_code if size > np.int32(0x7F800000) else code


@kernel
def _shifted(
    first: int,
    last: int,
    codes: Codes,
    maximum: F32,
    values: F32,
    dead: int,
    grid: tuple[Any, ...],
    rounding: tuple[Any, ...],
    out: Codes,
    above: Ints,
) -> None:
    smallest, dropped, offset, per_step, nan_code = grid
    largest, factor = rounding
    for a in range(first, last):
        count = 0
        for i in range(codes.shape[1]):
            for r in range(codes.shape[2]):
                code = codes[a, i, r]
                exact = maximum[a, r] - values[code]
                count += 1 if exact < 0 else 0  # a dead logit reads as NaN and is none of them
                s = np.float32(max(min(exact, largest), np.float32(0)) if exact == exact else np.float32(0))
                # Nearest-even as rounding.round_in_place does it.
                power = np.int32(max(np.int32(s.view(np.int32) & np.int32(0x7F800000)), smallest))
                magic = power.view(np.float32) * factor
                s = np.float32((s + magic) - magic)
                bits = s.view(np.int32)
                new = (bits >> dropped) - offset if bits >= smallest else np.int32(s * per_step)
                new = new if exact == exact else nan_code
                out[a, i, r] = nan_code - 1 if code == dead else new
        above[a] = count
