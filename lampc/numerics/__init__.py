"""
Narrow floating-point arithmetic, of use without the rest of lampc: docs/numerics.md.

The round-accumulate kernels are in `lampc.numerics.kernels`; they need no import of Numba until one of them runs.
"""

from lampc.numerics.encoding import decode, encode
from lampc.numerics.exponentials import exp_table, exp_to
from lampc.numerics.formats import FORMATS, FloatFormat, unbounded
from lampc.numerics.rounding import overflows, round_to, truncate

__all__ = [
    "FORMATS",
    "FloatFormat",
    "decode",
    "encode",
    "exp_table",
    "exp_to",
    "overflows",
    "round_to",
    "truncate",
    "unbounded",
]
