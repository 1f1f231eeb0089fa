"""One head around lampattention.md §4: which entries are live, the order of tiles, sinks, the compact layout, statistics."""

import math
from collections.abc import Iterable

import numpy as np

from lampc.numerics.arrays import F32
from lampc.numerics.reference.scalars import INF, Entry, Head, Level, Operands, Options, State, exp64, f32, narrow
from lampc.numerics.reference.section4 import Section4
from lampc.numerics.statistics import Statistics

_DEFAULTS = Options()


def attention(head: Head, options: Options = _DEFAULTS) -> tuple[F32, Statistics]:
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
        self.head, self.o, self.x = head, options, Operands.of(head)
        self.page = Section4(self.x, options)
        self.stats = Statistics(1, options.nk)

    def attention(self) -> tuple[F32, Statistics]:
        o, width = self.o, self.o.bk * self.o.nk
        live = {j: self.live_keys(j) for j in range(len(self.x.q))}
        tiles = list(range(0, len(self.x.k), width))
        if o.kv_order == "reverse":
            tiles.reverse()
        elif o.kv_order == "sink-first":
            tiles = tiles[:1] + tiles[:0:-1]
        out = np.zeros((len(self.x.q), self.head.v.shape[1]), np.float32)
        for first in range(0, len(self.x.q), o.bq):
            rows = range(first, min(first + o.bq, len(self.x.q)))
            state = self.start(rows)
            for tile in tiles:
                subs = [
                    [(i, j) for i in range(low, low + o.bk) for j in rows if i in live[j]]
                    for low in range(tile, tile + width, o.bk)
                ]
                state = self.tile(state, subs)
            for j in rows:
                if state.omega[j] != 0:
                    out[j] = [f32(x / state.omega[j]) for x in state.out[j]]
        return out, self.stats

    def live_keys(self, j: int) -> set[int]:
        """Keys live for query j: §4.3 and fine print."""
        h = self.head
        keys = set(range(len(self.x.k)))
        if h.causal:
            keys = {i for i in keys if i <= j + h.causal_offset}
        if h.window is not None:
            keys = {i for i in keys if i > j + h.causal_offset - h.window}
        if h.mask is not None:
            keys = {i for i in keys if h.mask[j, i]}
        if self.x.bias is not None:
            row = self.x.bias[j]
            keys = {i for i in keys if row[i] != -INF}
            if any(row[i] > self.o.mask_threshold for i in keys):
                keys = {i for i in keys if not row[i] <= self.o.mask_threshold}
        return keys

    def start(self, rows: Iterable[int]) -> State:
        """§3: nothing seen yet, or the sink."""
        state = State()
        for j in rows:
            state.mu[j], state.omega[j], state.out[j] = -INF, 0.0, [0.0] * self.head.v.shape[1]
            if self.head.sink is not None:
                sink = f32(self.head.sink)
                state.mu[j] = sink if self.o.policy == "fp32" else narrow(sink, self.o.formats.high)
                state.omega[j] = f32(exp64(sink - state.mu[j])) if sink != -INF else 0.0
        return state

    def tile(self, state: State, subs: list[list[Entry]]) -> State:
        """A step of §4 or, in layout compact, what §7 makes of a disruptive one."""
        policy, live = self.o.policy, [sub for sub in subs if sub]
        if not live:
            self.stats.add_dead_tiles(0)
            return state
        step = self.page.step(state, subs, policy)
        if policy in ("lamp", "low"):
            self.count_accumulators(live, "low")
        stage1 = len(live) if policy == "high" else len(step.stage1)
        final = stage1 + len(step.stage2)
        if self.o.layout == "compact" and final >= 2:
            self.stats.add_tiles(0, min(stage1, 2), 2)
            return self.disruptive(state, subs)
        self.stats.add_tiles(0, stage1, final)
        if policy in ("high", "fp32"):
            self.count_accumulators(live, policy)
        else:
            self.count_accumulators([subs[theta] for theta in step.stage1 | step.stage2], "high")
            self.stats.add_above_one(0, sum(f32(step.state.mu[j] - y) < 0 for (_, j), y in step.y.items()))
        return step.state

    def disruptive(self, state: State, subs: list[list[Entry]]) -> State:
        """§7: the tile in two chunks, each a step under policy high."""
        c = self.o.nk // 2 + 1
        for chunk in (subs[:c], subs[c:]):
            if any(chunk):
                state = self.page.step(state, chunk, "high").state
                self.count_accumulators(chunk, "high")
        return state

    def count_accumulators(self, subs: list[list[Entry]], level: Level) -> None:
        """§6: saturated entries and the largest, before cap and bias; of overflows to NaN, the NaN."""
        fmt = self.o.formats_of(level)[0]
        sizes = [abs(self.page.accumulator(entry, level)) for sub in subs for entry in sub]
        numbers = [size for size in sizes if not math.isnan(size)]
        saturated = 0
        if fmt is not None:
            saturated = numbers.count(fmt.max_finite) if self.o.overflow == "saturate" else len(sizes) - len(numbers)
        self.stats.add_saturation("" if fmt is None else fmt.name, 0, saturated, max(numbers, default=0.0))
