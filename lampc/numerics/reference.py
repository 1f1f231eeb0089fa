"""
LampAttention of one head, one number at a time: lampattention.md §4 as it reads, to check everything else against.

Every quantity is a Python float that holds a float32 value: a sum, product or quotient of two such, taken in float64 and
rounded to float32, is the correctly rounded one. An entry is (i, j): key, query.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np

from lampc.numerics.arrays import F32, Bools
from lampc.numerics.formats import HW, FloatFormat, FormatSet
from lampc.numerics.philox import SITE_BIAS, SITE_CAP, SITE_HIGH, SITE_LOW, philox
from lampc.numerics.statistics import Statistics

INF, NAN = math.inf, math.nan
Entry = tuple[int, int]
Level = Literal["low", "high", "fp32"]


@dataclass(frozen=True)
class Options:
    """Options of lampattention.md §5, with its defaults."""

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


@dataclass
class Warp:
    """State of a warp's rows: running maximum, running sum, output."""

    mu: dict[int, float] = field(default_factory=dict[int, float])
    omega: dict[int, float] = field(default_factory=dict[int, float])
    out: dict[int, list[float]] = field(default_factory=dict[int, list[float]])


def f32(x: float) -> float:
    """`x` rounded to float32."""
    return float(np.float32(x))


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


def exp64(x: float) -> float:
    """exp in float64."""
    return float(np.exp(np.float64(x)))


def maximum(a: float, b: float) -> float:
    """The larger, or NaN if either is."""
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


def attention(head: Head, options: Options = Options()) -> tuple[F32, Statistics]:
    """
    Output float32 [Lq, dv] and statistics (of one head).

    Raises ValueError for `exp_above_one = keep` with an unsigned shift format of bounded range.
    """
    if options.exp_above_one == "keep" and options.formats.high_shift.min_exponent != -126:
        raise ValueError("exp_above_one = keep needs range = unbounded")
    with np.errstate(all="ignore"):
        return _Run(head, options).attention()


class _Run:
    def __init__(self, head: Head, options: Options):
        self.head, self.o, self.f = head, options, options.formats
        self.stats = Statistics(1, options.nk)
        self.q = [[f32(x * f32(head.scale)) for x in row] for row in head.q.astype(np.float32).tolist()]
        self.k: list[list[float]] = head.k.astype(np.float32).tolist()
        self.v: list[list[float]] = head.v.astype(np.float32).tolist()
        self.bias: list[list[float]] | None = None if head.bias is None else head.bias.astype(np.float32).tolist()
        self.accumulators: dict[tuple[Entry, Level], float] = {}
        self.live = {j: self.live_keys(j) for j in range(len(self.q))}

    def live_keys(self, j: int) -> set[int]:
        """Keys live for query j: §4.3 and fine print."""
        h = self.head
        keys = set(range(len(self.k)))
        if h.causal:
            keys = {i for i in keys if i <= j + h.causal_offset}
        if h.window is not None:
            keys = {i for i in keys if i > j + h.causal_offset - h.window}
        if h.mask is not None:
            keys = {i for i in keys if h.mask[j, i]}
        if self.bias is not None:
            row = self.bias[j]
            keys = {i for i in keys if row[i] != -INF}
            if any(row[i] > self.o.mask_threshold for i in keys):
                keys = {i for i in keys if not row[i] <= self.o.mask_threshold}
        return keys

    def attention(self) -> tuple[F32, Statistics]:
        width = self.o.bk * self.o.nk
        tiles = list(range(0, len(self.k), width))
        if self.o.kv_order == "reverse":
            tiles.reverse()
        elif self.o.kv_order == "sink-first":
            tiles = tiles[:1] + tiles[:0:-1]
        out = np.zeros((len(self.q), self.head.v.shape[1]), np.float32)
        for first in range(0, len(self.q), self.o.bq):
            rows = range(first, min(first + self.o.bq, len(self.q)))
            state = self.start(rows)
            for tile in tiles:
                subs = [
                    [(i, j) for i in range(low, low + self.o.bk) for j in rows if i in self.live[j]]
                    for low in range(tile, tile + width, self.o.bk)
                ]
                self.tile(state, subs)
            for j in rows:
                if state.omega[j] != 0:
                    out[j] = [f32(x / state.omega[j]) for x in state.out[j]]
        return out, self.stats

    def start(self, rows: Iterable[int]) -> Warp:
        """§3: nothing seen yet, or the sink."""
        state, sink = Warp(), self.head.sink
        for j in rows:
            state.mu[j], state.omega[j], state.out[j] = -INF, 0.0, [0.0] * self.head.v.shape[1]
            if sink is not None:
                sink = f32(sink)
                state.mu[j] = sink if self.o.policy == "fp32" else narrow(sink, self.f.high)
                state.omega[j] = f32(exp64(sink - state.mu[j])) if sink != -INF else 0.0
        return state

    def tile(self, state: Warp, subs: list[list[Entry]]) -> None:
        """One step of one warp; `subs` holds the live entries of each sub-block. §4."""
        o = self.o
        live = [theta for theta in range(o.nk) if subs[theta]]
        if not live:
            self.stats.add_dead_tiles(0)
            return
        if o.policy == "fp32":
            self.step(state, subs, "fp32")
            self.stats.add_tiles(0, 0, 0)
            return
        if o.policy == "high":
            count = len(live)
            if o.layout == "compact" and count >= 2:
                self.disruptive(state, subs)
                count = 2
            else:
                self.step(state, subs, "high")
            self.stats.add_tiles(0, count, count)
            return

        y = self.logits(subs, "low")
        self.count_accumulators(subs, "low")
        muh = state.mu
        high: set[int] = set()
        if o.policy == "low" or not o.stage1:
            muh = self.raised(muh, y)
        else:
            for theta in self.threat_order(state.mu, subs, y):
                if self.safe(muh, subs[theta], y):
                    continue
                high.add(theta)
                if o.layout == "compact" and len(high) == 2:
                    self.stats.add_tiles(0, 2, 2)
                    self.disruptive(state, subs)
                    return
                y |= self.logits([subs[theta]], "high")
                muh = self.raised(muh, {e: y[e] for e in subs[theta]})
        after_stage1 = len(high)

        if o.policy == "lamp" and o.stage2 and o.tau < 1:
            again = self.second_stage(state, subs, y, high, muh)
            if o.layout == "compact" and len(high | again) >= 2:
                self.stats.add_tiles(0, after_stage1, 2)
                self.disruptive(state, subs)
                return
            for theta in again:
                y |= self.logits([subs[theta]], "high")
            high |= again
        self.count_accumulators([subs[theta] for theta in high], "high")
        self.stats.add_tiles(0, after_stage1, len(high))
        self.stats.add_above_one(0, sum(f32(muh[j] - x) < 0 for (_, j), x in y.items()))
        self.finish(state, subs, y, high, muh)

    def step(self, state: Warp, subs: list[list[Entry]], level: Level) -> None:
        """A step under policy high or fp32."""
        y = self.logits(subs, level)
        self.count_accumulators(subs, level)
        self.finish(state, subs, y, set(range(len(subs))), self.raised(state.mu, y))

    def disruptive(self, state: Warp, subs: list[list[Entry]]) -> None:
        """§7: the tile in two chunks, each a step under policy high."""
        c = self.o.nk // 2 + 1
        for chunk in (subs[:c], subs[c:]):
            if any(chunk):
                self.step(state, chunk, "high")

    def format(self, level: Level) -> FloatFormat | None:
        return {"low": self.f.low, "high": self.f.high, "fp32": None}[level]

    def accumulator(self, entry: Entry, level: Level) -> float:
        """§4.2."""
        if (entry, level) not in self.accumulators:
            (i, j), c = entry, 0.0
            k, q = self.k[i], self.q[j]
            for step, start in enumerate(range(0, len(k), self.o.accumulate_block)):
                total = 0.0
                for t in range(start, min(start + self.o.accumulate_block, len(k))):
                    total = f32(total + f32(k[t] * q[t]))
                c = self.rounded(f32(c + total), level, entry, step, SITE_LOW if level == "low" else SITE_HIGH)
            self.accumulators[entry, level] = c
        return self.accumulators[entry, level]

    def logits(self, subs: list[list[Entry]], level: Level) -> dict[Entry, float]:
        """Accumulators, then soft cap, then bias: §4.3."""
        out: dict[Entry, float] = {}
        step = 0 if level == "low" else 1
        for i, j in (e for sub in subs for e in sub):
            x = self.accumulator((i, j), level)
            if self.head.softcap is not None:
                cap = f32(self.head.softcap)
                x = self.rounded(f32(cap * float(np.tanh(x / cap))), level, (i, j), step, SITE_CAP)
            if self.bias is not None:
                x = self.rounded(f32(x + self.bias[j][i]), level, (i, j), step, SITE_BIAS)
            out[i, j] = x
        return out

    def rounded(self, x: float, level: Level, entry: Entry, step: int, site: int) -> float:
        fmt = self.format(level)
        if fmt is None:
            return x
        word = 0
        if self.o.rounding == "stochastic":
            word = int(philox(self.o.seed, self.o.stream, entry[1], entry[0], step * 4 + site))
        return narrow(x, fmt, self.o.rounding, word, self.o.overflow)

    def raised(self, muh: dict[int, float], y: dict[Entry, float]) -> dict[int, float]:
        """The maximum so far with the entries of y."""
        out = dict(muh)
        for (_, j), x in y.items():
            out[j] = maximum(out[j], x)
        return out

    def threat_order(self, mu: dict[int, float], subs: list[list[Entry]], y: dict[Entry, float]) -> list[int]:
        """§4.4: live sub-blocks, most threatening first."""
        threats: list[tuple[float, int]] = []
        for theta, sub in enumerate(subs):
            if sub:
                top = self.raised({j: -INF for _, j in sub}, {e: y[e] for e in sub})
                gaps = [f32(top[j] - mu[j]) for j in top]
                threats.append((max(INF if math.isnan(g) else g for g in gaps), theta))
        return [theta for _, theta in sorted(threats, key=lambda t: (-t[0], t[1]))]

    def safe(self, muh: dict[int, float], sub: list[Entry], y: dict[Entry, float]) -> bool:
        """§4.5."""
        top = self.raised({j: -INF for _, j in sub}, {e: y[e] for e in sub})
        delta = f32(self.o.delta)
        return all(muh[j] > f32(top[j] + f32(abs(muh[j]) * delta)) for j in top)

    def exponentials(
        self, subs: list[list[Entry]], y: dict[Entry, float], high: set[int], muh: dict[int, float]
    ) -> dict[Entry, float]:
        """§4.6."""
        out: dict[Entry, float] = {}
        for theta, sub in enumerate(subs):
            for e in sub:
                m = muh[e[1]]
                if self.o.policy == "fp32":
                    out[e] = f32(exp64(f32(y[e] - m)))
                    continue
                if theta not in high and self.o.shift == "truncate":
                    m = narrow(m, self.f.low, "rtz")
                shift_fmt = self.f.high_shift if theta in high else self.f.low_shift
                s = f32(m - y[e])
                if s < 0 and self.o.exp_above_one == "clamp":
                    s = 0.0
                s = math.copysign(narrow(abs(s), shift_fmt), s)
                out[e] = narrow(exp64(-s), self.f.high_exp if theta in high else self.f.low_exp)
        return out

    def sums(self, state: Warp, e: dict[Entry, float], muh: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
        """lambda, and alpha with the exponentials added in key order: §4.7."""
        factor: dict[int, float] = {}
        omega: dict[int, float] = {}
        for j, mu in state.mu.items():
            factor[j] = 0.0 if mu == -INF else f32(exp64(mu - muh[j]))
            omega[j] = f32(factor[j] * state.omega[j])
        for i, j in sorted(e):
            omega[j] = f32(omega[j] + e[i, j])
        return factor, omega

    def second_stage(
        self, state: Warp, subs: list[list[Entry]], y: dict[Entry, float], high: set[int], muh: dict[int, float]
    ) -> set[int]:
        """§4.8: which further sub-blocks are recomputed."""
        e = self.exponentials(subs, y, high, muh)
        _, omegah = self.sums(state, e, muh)
        rows = [j for j in omegah if not math.isnan(omegah[j])]
        free = [theta for theta in range(len(subs)) if subs[theta] and theta not in high]
        xi = {(theta, j): 0.0 for theta in free for j in omegah}
        for theta in free:
            for i, j in sorted(subs[theta]):
                x = f32(f32(omegah[j] - e[i, j]) * e[i, j])
                xi[theta, j] = f32(xi[theta, j] + x)
        tau = f32(self.o.tau)
        square = {j: f32(omegah[j] * omegah[j]) for j in rows}
        for size in range(len(free), -1, -1):
            ranks: list[tuple[float, int]] = []
            for kept in combinations(free, size):
                x = {j: self.added(xi[theta, j] for theta in kept) for j in rows}
                if all(x[j] <= f32(tau * square[j]) for j in rows):
                    slack = max((f32(x[j] / square[j]) for j in rows if 0 < square[j] < INF), default=0.0)
                    mask = sum(1 << theta for theta in free if theta not in kept)
                    ranks.append((max(slack, 0.0) if self.o.tie == "slack" else 0.0, mask))
            if ranks:
                return {theta for theta in free if min(ranks)[1] >> theta & 1}
        return set(free)

    def added(self, terms: Iterable[float]) -> float:
        total = 0.0
        for x in terms:
            total = f32(total + x)
        return total

    def finish(
        self, state: Warp, subs: list[list[Entry]], y: dict[Entry, float], high: set[int], muh: dict[int, float]
    ) -> None:
        """§4.9."""
        e = self.exponentials(subs, y, high, muh)
        factor, state.omega = self.sums(state, e, muh)
        for j in state.out:
            state.out[j] = [f32(x * factor[j]) for x in state.out[j]]
        for i, j in sorted(e):
            state.out[j] = [f32(x + f32(e[i, j] * v)) for x, v in zip(state.out[j], self.v[i], strict=True)]
        state.mu = muh

    def count_accumulators(self, subs: list[list[Entry]], level: Level) -> None:
        """§6: saturated entries and the largest, before cap and bias."""
        fmt = self.format(level)
        sizes = [abs(self.accumulator(e, level)) for sub in subs for e in sub]
        numbers = [size for size in sizes if not math.isnan(size)]
        over = len(sizes) - len(numbers) if self.o.overflow == "nan" else sum(x == fmt.max_finite for x in numbers if fmt)
        saturated = 0 if fmt is None else over
        self.stats.add_saturation("" if fmt is None else fmt.name, 0, saturated, max(numbers, default=0.0))
