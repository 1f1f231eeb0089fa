"""
Register codes: what the granules of a scores tile hold.

A scores tile passes through three uses of the same storage: logits (a signed format), shifts and exponentials (unsigned
formats of the same width). A dead logit is the negative NaN; arithmetic makes only the positive one. FP32 scores are their own
codes. Source: docs/accelerator.md section 2, docs/lampattention.md sections 2 and 4.6.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lampc.numerics import encoding
from lampc.numerics.arrays import F32, Array, Bools, Ints
from lampc.numerics.engine import engine
from lampc.numerics.exponentials import exp_to
from lampc.numerics.formats import E4M3, E4M11, UE5M3_EXP, UE5M3_SHIFT, UE5M11_EXP, UE5M11_SHIFT, FloatFormat
from lampc.numerics.rounding import round_to
from lampc.targets.accel.instruction import Format

Codes: TypeAlias = NDArray[np.unsignedinteger[Any]]

_DEAD_F32 = 0xFFC00000
_NAN_F32 = 0x7FC00000


def _compiled() -> Any:
    return import_module("lampc.targets.accel.functional.numba_codes")


def look_up(table: Array, codes: Codes) -> Array:
    """`table`[codes], contiguous, of the shape of `codes`."""
    if engine() == "numpy":
        return table[codes]
    return cast(Array, _compiled().look_up(table, codes))


@dataclass(frozen=True)
class ScoreFormat:
    """
    Codes of one header format other than MIX; arrays are [n, keys of a sub-block, rows].

    value, shift, exp  formats of logits, shifts and exponentials; None is FP32
    dtype              of a code
    dead               the code of a dead logit
    """

    value: FloatFormat | None
    shift: FloatFormat | None
    exp: FloatFormat | None
    dtype: type[np.uint8] | type[np.uint16] | type[np.uint32]
    dead: int

    @property
    def name(self) -> str:
        """Name of the accumulator's format in statistics."""
        return "f32" if self.value is None else self.value.name

    def encode(self, y: F32) -> Codes:
        """Codes of logits that lie on the format's grid; NaN becomes the positive one."""
        if self.value is None:
            codes = y.view(np.uint32).copy()
            codes[np.isnan(y)] = _NAN_F32
            return codes
        if engine() == "numpy":
            return encoding.encode(y, self.value)
        return cast(Codes, _compiled().encode(np.ascontiguousarray(y), self.value))

    def decode(self, codes: Codes) -> F32:
        """Values of logits; a dead one reads as NaN."""
        return codes.view(np.float32) if self.value is None else look_up(_values(self.value), codes)

    def decode_exponentials(self, codes: Codes) -> F32:
        """Values of exponentials."""
        return codes.view(np.float32) if self.exp is None else look_up(_values(self.exp), codes)

    def shifted(self, codes: Codes, maximum: F32) -> tuple[Codes, Ints]:
        """
        Codes of s = round(f32(maximum - y)), at least 0, the largest shift for dead logits; and how many live entries of
        each of the n had f32(maximum - y) < 0.

        maximum  float32 [n, rows]
        """
        if self.value is not None and self.shift is not None and engine() == "numba":
            return _compiled().shifted(codes, maximum, _values(self.value), self.dead, self.shift)
        dead = codes == self.dead
        with np.errstate(over="ignore", invalid="ignore"):
            s: F32 = maximum[:, None, :] - self.decode(codes)
            above = np.count_nonzero((s < 0) & ~dead, axis=(1, 2)).astype(np.int64)
            if self.shift is None:
                s = np.maximum(s, np.float32(0))
                s[np.isnan(s)] = np.nan
                s[dead] = np.inf
                return s.view(np.uint32), above
        out = encoding.encode(round_to(s, self.shift), self.shift)
        out[dead] = self.shift.nan_code - 1
        return out, above

    def exponential(self, codes: Codes, table: Codes | None) -> Codes:
        """Codes of E from codes of shifts: through `table`, or of FP32 shifts by exp in float64."""
        if table is not None:
            return look_up(table, codes)
        e = exp_to(codes.view(np.float32), None)
        e[np.isnan(e)] = np.nan
        return e.view(np.uint32)

    def is_dead(self, codes: Codes) -> Bools:
        """Which logits are dead."""
        return codes == self.dead


@lru_cache(maxsize=8)
def _values(fmt: FloatFormat) -> F32:
    return encoding.decode(np.arange(1 << fmt.bits), fmt)


_LOW = ScoreFormat(E4M3, UE5M3_SHIFT, UE5M3_EXP, np.uint8, 0xFF)
_HIGH = ScoreFormat(E4M11, UE5M11_SHIFT, UE5M11_EXP, np.uint16, 0xFFFF)
_WIDE = ScoreFormat(None, None, None, np.uint32, _DEAD_F32)

SCORE_FORMATS: dict[Format, ScoreFormat] = {
    Format.E4M3: _LOW,
    Format.E4M11: _HIGH,
    Format.E4M11_SEQ: _HIGH,
    Format.F32: _WIDE,
}
"""The codes of each header format that names one."""
