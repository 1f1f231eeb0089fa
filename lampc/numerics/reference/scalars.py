"""What the scalar reference computes with: options, operands, state, and the arithmetic of lampattention.md §2."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from lampc.numerics.arrays import F32, Bools, Words
from lampc.numerics.formats import HW, FloatFormat, FormatSet
from lampc.numerics.philox import philox

INF, NAN = math.inf, math.nan
Entry: TypeAlias = tuple[int, int]
Level: TypeAlias = Literal["low", "high", "fp32"]


@dataclass(frozen=True)
class Options:
    """Options of lampattention.md §5, with its defaults; `stream` is batch*heads + head, of stochastic rounding."""

    policy: Literal["lamp", "low", "high", "fp32"] = "lamp"
    layout: Literal["safe", "compact"] = "safe"
    formats: FormatSet = HW
    delta: float = 2.0**-8
    tau: float = 0.5
    stage1: bool = True
    stage2: bool = True
    tie: Literal["slack", "first"] = "slack"
    shift: Literal["truncate", "exact"] = "truncate"
    exp_above_one: Literal["clamp", "keep"] = "clamp"
    rounding: Literal["rne", "rtz", "stochastic"] = "rne"
    overflow: Literal["saturate", "nan"] = "saturate"
    seed: int = 0
    stream: int = 0
    accumulate_block: int = 1
    kv_order: Literal["forward", "reverse", "sink-first"] = "forward"
    mask_threshold: float = -1e4
    bq: int = 16
    bk: int = 16
    nk: int = 4

    def formats_of(self, level: Level) -> tuple[FloatFormat | None, FloatFormat | None, FloatFormat | None]:
        """Formats of accumulator, shifted logit and exponential; None is FP32."""
        f = self.formats
        return {
            "low": (f.low, f.low_shift, f.low_exp),
            "high": (f.high, f.high_shift, f.high_exp),
            "fp32": (None, None, None),
        }[level]

    def word(self, entry: Entry, place: int) -> int:
        """The random word of an entry at `place` = step*4 + site; 0 where nothing is random."""
        if self.rounding != "stochastic":
            return 0
        return int(_words(self.seed, self.stream, entry, place >> 10)[place & 1023])


@lru_cache(maxsize=64)
def _words(seed: int, stream: int, entry: Entry, thousand: int) -> Words:
    return philox(seed, stream, entry[1], entry[0], (thousand << 10) + np.arange(1024))


@dataclass(frozen=True)
class Head:
    """One head: q [Lq, d], k [Lk, d], v [Lk, dv]; mask bool and bias float32 [Lq, Lk]; the rest as `attn.attention`."""

    q: F32
    k: F32
    v: F32
    scale: float = 1.0
    causal: bool = False
    causal_offset: int = 0
    window: int | None = None
    mask: Bools | None = None
    bias: F32 | None = None
    softcap: float | None = None
    sink: float | None = None


@dataclass(frozen=True)
class Operands:
    """A head's operands as lists of numbers, Q scaled (§4.1)."""

    q: list[list[float]]
    k: list[list[float]]
    v: list[list[float]]
    bias: list[list[float]] | None
    softcap: float | None

    @classmethod
    def of(cls, head: Head) -> "Operands":
        """Those of a head."""
        q, k, v = (x.astype(np.float32).tolist() for x in (head.q, head.k, head.v))
        bias = None if head.bias is None else head.bias.astype(np.float32).tolist()
        return cls([[f32(x * f32(head.scale)) for x in row] for row in q], k, v, bias, head.softcap)


@dataclass(frozen=True)
class State:
    """State of a warp's rows: running maximum, running sum, output."""

    mu: dict[int, float] = field(default_factory=dict[int, float])
    omega: dict[int, float] = field(default_factory=dict[int, float])
    out: dict[int, list[float]] = field(default_factory=dict[int, list[float]])


def f32(x: float) -> float:
    """`x` rounded to float32."""
    return float(np.float32(x))


def added(terms: Iterable[float]) -> float:
    """The sum in FP32, in order, from 0."""
    total = 0.0
    for x in terms:
        total = f32(total + x)
    return total


def exp64(x: float) -> float:
    """exp in float64."""
    return float(np.exp(np.float64(x)))


def maximum(a: float, b: float) -> float:
    """The larger, or NaN if either is."""
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


def narrow(x: float, fmt: FloatFormat, rounding: str = "rne", word: int = 0, overflow: str = "saturate") -> float:
    """`x` on the grid of `fmt`; §2."""
    if math.isnan(x) or (math.isinf(x) and overflow == "nan"):
        return NAN
    size = abs(x) if overflow == "nan" else min(abs(x), fmt.max_finite)
    exponent = max(math.frexp(size)[1] - 1, fmt.min_exponent)
    steps = math.ldexp(size, fmt.mantissa_bits - exponent)
    whole = math.floor(steps)
    part = steps - whole
    if rounding == "rne":
        whole += part > 0.5 or (part == 0.5 and whole % 2 == 1)
    elif rounding == "stochastic":
        whole += word / 2**32 < part
    size = math.ldexp(whole, exponent - fmt.mantissa_bits)
    if size > fmt.max_finite:
        return NAN
    return size if x > 0 or size == 0 else (-size if fmt.signed else 0.0)
