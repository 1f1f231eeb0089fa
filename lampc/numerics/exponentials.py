"""Exponentials of shifted logits: exp(-s), rounded once (lampattention.md §4.6)."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import F32
from lampc.numerics.encoding import Codes, decode, encode
from lampc.numerics.formats import FloatFormat
from lampc.numerics.rounding import round_to


def exp_to(s: npt.ArrayLike, exp_fmt: FloatFormat | None) -> F32:
    """
    exp(-s) in float64, rounded once straight to `exp_fmt` (None: to float32).

    Through float32 the second rounding is wrong for some 11-bit results; from float64 both tables are right throughout.
    """
    with np.errstate(all="ignore"):
        exact = np.exp(-np.asarray(s, np.float64))
        return exact.astype(np.float32) if exp_fmt is None else round_to(exact, exp_fmt)


@lru_cache(maxsize=16)
def exp_table(shift_fmt: FloatFormat, exp_fmt: FloatFormat) -> Codes:
    """
    The look-up table of the machine: entry c is the code of exp(-s) in `exp_fmt`, s the value of code c in `shift_fmt`.

    returns  read-only uint8 or uint16 [2^bits of shift_fmt]; NaN gives NaN

    Raises ValueError for formats wider than 16 bits.
    """
    shifts = decode(np.arange(1 << shift_fmt.bits), shift_fmt)
    table = encode(exp_to(shifts, exp_fmt), exp_fmt)
    table.setflags(write=False)
    return table
