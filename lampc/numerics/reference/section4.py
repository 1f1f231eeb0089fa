"""
lampattention.md §4 as it reads: one step of one warp at one key tile; the numbers are those of its paragraphs.

Every quantity is a Python float that holds a float32 value: a sum, product or quotient of two such, taken in float64 and
rounded to float32, is the correctly rounded one. An entry is (i, j): key, query; all entries here are live ones.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lampc.numerics.philox import SITE_BIAS, SITE_CAP, SITE_HIGH, SITE_LOW
from lampc.numerics.reference.scalars import INF, Entry, Level, Operands, Options, State, added, exp64, f32, maximum, narrow


@dataclass(frozen=True)
class Step:
    """What a step gave: the state after it, the logits it used, and the sub-blocks that each stage recomputed."""

    state: State
    y: dict[Entry, float]
    stage1: set[int]
    stage2: set[int]


class Section4:
    """Steps over the operands of one head."""

    def __init__(self, operands: Operands, options: Options):
        self.x, self.o = operands, options
        self.accumulators: dict[tuple[Entry, Level], float] = {}

    def step(self, old: State, subs: list[list[Entry]], policy: str) -> Step:
        """From the state `old`; `subs` holds the live entries of each sub-block, by key."""
        o, live = self.o, {theta for theta, sub in enumerate(subs) if sub}
        level: Level = "fp32" if policy == "fp32" else "high" if policy == "high" else "low"
        y = {entry: self.logit(entry, level) for sub in subs for entry in sub}
        levels: dict[int, Level] = dict.fromkeys(live, level)
        muh, stage1, stage2 = old.mu, set[int](), set[int]()
        if policy == "lamp" and o.stage1:
            for theta in self.by_threat(old.mu, subs, y):
                if not self.is_safe(muh, subs[theta], y):
                    y |= {entry: self.logit(entry, "high") for entry in subs[theta]}
                    muh = self.raised(muh, subs[theta], y)
                    levels[theta] = "high"
                    stage1.add(theta)
        else:
            muh = self.raised(muh, list(y), y)
        e = self.exponentials(subs, y, levels, muh)
        factor, omega = self.sums(old, e, muh)
        if policy == "lamp" and o.stage2 and o.tau < 1:
            stage2 = self.disturbing(subs, e, omega, live - stage1)
            for theta in stage2:
                y |= {entry: self.logit(entry, "high") for entry in subs[theta]}
                levels[theta] = "high"
            e = self.exponentials(subs, y, levels, muh)
            factor, omega = self.sums(old, e, muh)
        # 9. Commit.
        out = {j: [f32(x * factor[j]) for x in row] for j, row in old.out.items()}
        for i, j in sorted(e):
            out[j] = [f32(x + f32(e[i, j] * v)) for x, v in zip(out[j], self.x.v[i], strict=True)]
        return Step(State(muh, omega, out), y, stage1, stage2)

    def accumulator(self, entry: Entry, level: Level) -> float:
        """2. Products in order, the sum rounded after every block of them."""
        if (entry, level) not in self.accumulators:
            (i, j), c, d, block = entry, 0.0, len(self.x.k[entry[0]]), self.o.accumulate_block
            for step, first in enumerate(range(0, d, block)):
                products = (f32(self.x.k[i][t] * self.x.q[j][t]) for t in range(first, min(first + block, d)))
                c = self.rounded(f32(c + added(products)), level, entry, step, SITE_LOW if level == "low" else SITE_HIGH)
            self.accumulators[entry, level] = c
        return self.accumulators[entry, level]

    def logit(self, entry: Entry, level: Level) -> float:
        """3. Soft cap, then bias."""
        y, step = self.accumulator(entry, level), 0 if level == "low" else 1
        if self.x.softcap is not None:
            cap = f32(self.x.softcap)
            y = self.rounded(f32(cap * float(np.tanh(y / cap))), level, entry, step, SITE_CAP)
        if self.x.bias is not None:
            y = self.rounded(f32(y + self.x.bias[entry[1]][entry[0]]), level, entry, step, SITE_BIAS)
        return y

    def rounded(self, x: float, level: Level, entry: Entry, step: int, site: int) -> float:
        """§2, of accumulation, cap and bias."""
        fmt = self.o.formats_of(level)[0]
        return x if fmt is None else narrow(x, fmt, self.o.rounding, self.o.word(entry, step * 4 + site), self.o.overflow)

    def raised(self, muh: dict[int, float], entries: Iterable[Entry], y: dict[Entry, float]) -> dict[int, float]:
        """The maximum so far with these entries."""
        out = dict(muh)
        for i, j in entries:
            out[j] = maximum(out[j], y[i, j])
        return out

    def tops(self, sub: list[Entry], y: dict[Entry, float]) -> dict[int, float]:
        """ymax of the rows with an entry in the sub-block."""
        return self.raised({j: -INF for _, j in sub}, sub, y)

    def by_threat(self, mu: dict[int, float], subs: list[list[Entry]], y: dict[Entry, float]) -> list[int]:
        """4. Live sub-blocks by T, descending; NaN counts as +inf."""
        threat: dict[int, float] = {}
        for theta, sub in enumerate(subs):
            gaps = [f32(top - mu[j]) for j, top in self.tops(sub, y).items()]
            if sub:
                threat[theta] = max(INF if math.isnan(gap) else gap for gap in gaps)
        return sorted(threat, key=lambda theta: (-threat[theta], theta))

    def is_safe(self, muh: dict[int, float], sub: list[Entry], y: dict[Entry, float]) -> bool:
        """5. Stage 1's test."""
        delta = f32(self.o.delta)
        return all(muh[j] > f32(top + f32(abs(muh[j]) * delta)) for j, top in self.tops(sub, y).items())

    def exponentials(
        self, subs: list[list[Entry]], y: dict[Entry, float], levels: dict[int, Level], muh: dict[int, float]
    ) -> dict[Entry, float]:
        """6. Each sub-block's in its formats."""
        return {entry: self.exponential(y[entry], muh[entry[1]], levels[theta]) for theta in levels for entry in subs[theta]}

    def exponential(self, y: float, m: float, level: Level) -> float:
        """6. E of one logit."""
        _, shift, result = self.o.formats_of(level)
        if shift is None or result is None:
            return f32(exp64(f32(y - m)))
        if level == "low" and self.o.shift == "truncate":
            m = narrow(m, self.o.formats.low, "rtz")
        s = f32(m - y)
        if s < 0 and self.o.exp_above_one == "clamp":
            s = 0.0
        return narrow(exp64(-math.copysign(narrow(abs(s), shift), s)), result)

    def sums(self, old: State, e: dict[Entry, float], muh: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
        """7. lambda, and alpha with every E of the row, in key order."""
        factor = {j: 0.0 if mu == -INF else f32(exp64(mu - muh[j])) for j, mu in old.mu.items()}
        omega = {j: f32(factor[j] * total) for j, total in old.omega.items()}
        for i, j in sorted(e):
            omega[j] = f32(omega[j] + e[i, j])
        return factor, omega

    def disturbing(self, subs: list[list[Entry]], e: dict[Entry, float], omegah: dict[int, float], free: set[int]) -> set[int]:
        """8. The sub-blocks that do not stay low: all but a largest set, of equally large ones that of `tie`."""
        rows, tau = [j for j in omegah if not math.isnan(omegah[j])], f32(self.o.tau)
        square = {j: f32(omegah[j] * omegah[j]) for j in rows}
        xi = {
            (theta, j): added(f32(f32(omegah[j] - e[i, j]) * e[i, j]) for i, row in sorted(subs[theta]) if row == j)
            for theta in free
            for j in rows
        }
        for size in range(len(free), -1, -1):
            ranks: list[tuple[float, int]] = []
            for kept in combinations(sorted(free), size):
                x = {j: added(xi[theta, j] for theta in kept) for j in rows}
                if all(x[j] <= f32(tau * square[j]) for j in rows):
                    slack = max([f32(x[j] / square[j]) for j in rows if 0 < square[j] < INF], default=0.0)
                    recomputed = sum(1 << theta for theta in free.difference(kept))
                    ranks.append((max(slack, 0.0) if self.o.tie == "slack" else 0.0, recomputed))
            if ranks:
                return {theta for theta in free if min(ranks)[1] >> theta & 1}
        return free
