"""
Which lanes run, and where they stand: the state that the interpreter's implementations share.

The body of an `attn.lanes` is written for one lane and runs for many at once. Inside a tile loop only the lanes with a live
entry in the tile run: per-lane values that the loop carries are compacted to them, values from outside are picked by
`Step.index`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lampc.numerics import kernels
from lampc.numerics.masks import Liveness, live_entries, tile_is_live
from lampc.numerics.statistics import Statistics

Array = npt.NDArray[np.generic]
F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lanes:
    """
    Some lanes of one attention, each a warp of `rows` query rows.

    batch, head, query_start  int64 [n]: where each lane's queries are
    key_value                 int64 [n]: index of its K and V in [batch * key-value heads]
    """

    batch: Ints
    head: Ints
    key_value: Ints
    query_start: Ints
    rows: int

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: Ints) -> "Lanes":
        return Lanes(self.batch[index], self.head[index], self.key_value[index], self.query_start[index], self.rows)


def cut_lanes(*, batch: int, heads: int, group: int, queries: int, rows: int, at_most: int) -> Iterator[Lanes]:
    """
    All lanes that hold a query, `at_most` at a time: whole heads where they fit, by query and then by head.

    Causal limits and windows then leave a run of neighbours live in a tile, which needs no copies.
    """
    warps = -(-queries // rows)
    at_most = max(at_most // max(warps, 1) * warps, at_most if warps > at_most else 1)
    kv_heads = heads // group
    total = batch * heads * warps
    for start in range(0, total, at_most):
        ids = np.arange(start, min(start + at_most, total), dtype=np.int64)
        head_of_batch, warp = np.divmod(ids, warps)
        order = np.argsort(warp, stable=True)
        head_of_batch, warp = head_of_batch[order], warp[order]
        item, head = np.divmod(head_of_batch, heads)
        yield Lanes(item, head, item * kv_heads + head // group, warp * rows, rows)


@dataclass(frozen=True)
class TileRef:
    """A key tile of K or V, not copied: rows `start` .. `start + count` of `data[key_value]` for each lane that runs."""

    data: F32
    start: int
    count: int


@dataclass(frozen=True)
class SubBlocks:
    """The argument of a recompute region: sub-block `theta[a]` of the running lane `lane[a]`, int64 [n] each."""

    lane: Ints
    theta: Ints


@dataclass
class Step:
    """
    One tile of a loop: the lanes that run it and what they see.

    `held` keeps counts back until it is known which lanes branch (layout compact): calls that take a mask of the lanes to
    count. None: counted at once.
    """

    index: Ints
    lanes: Lanes
    tile: int
    key_start: int
    live: Bools
    held: list[Callable[[Bools], None]] | None = field(default=None)
    _live_rows: Bools | None = field(default=None)

    def live_rows(self, sub_blocks: int) -> Bools:
        """bool [n, sub_blocks, rows]: which rows have a live entry in which sub-block; worked out once."""
        if self._live_rows is None or self._live_rows.shape[1] != sub_blocks:
            self._live_rows = kernels.live_rows(self.live, sub_blocks)
        return self._live_rows

    @classmethod
    def of(cls, rules: Liveness, lanes: Lanes, tile: int, keys: int) -> "Step":
        """The lanes with a live entry in a tile of `keys` keys."""
        start = np.full(len(lanes), tile * keys, np.int64)
        index = np.flatnonzero(tile_is_live(rules, lanes.batch, lanes.query_start, start, lanes.rows, keys))
        chosen = lanes[index]
        start = start[index]
        if rules.mask is None and _all_live(rules, chosen, start, keys):
            live = np.ones((len(index), keys, lanes.rows), np.bool_)
        else:
            live = live_entries(rules, chosen.batch, chosen.head, chosen.query_start, start, lanes.rows, keys)
            some = live.any(axis=(1, 2))
            if not some.all():
                index, chosen, live = index[some], chosen[np.flatnonzero(some)], live[some]
        return cls(index, chosen, tile, tile * keys, live)

    def run_of(self) -> slice | None:
        """The lanes that run as a slice of all, if they are neighbours."""
        first, last = int(self.index[0]), int(self.index[-1]) + 1
        return slice(first, last) if last - first == len(self.index) else None

    def part(self, which: Ints, live: Bools) -> "Step":
        """The same tile for some of its lanes; `live` is theirs."""
        return Step(self.index[which], self.lanes[which], self.tile, self.key_start, live)


def _all_live(rules: Liveness, lanes: Lanes, start: Ints, keys: int) -> bool:
    """Whether every entry is live: the first row ends earliest, the last begins latest."""
    last_query = lanes.query_start + (lanes.rows - 1)
    _, end = rules.bounds(lanes.batch, lanes.query_start)
    first, last_end = rules.bounds(lanes.batch, last_query)
    return bool(np.all((start + keys <= np.minimum(end, last_end)) & (first <= start)))


@dataclass
class Run:
    """What one run of an attention function shares: lanes, the current step, statistics."""

    statistics: Statistics | None = None
    lanes: Lanes | None = None
    step: Step | None = None

    def running(self) -> Lanes:
        """The lanes that run now. Raises ValueError outside `attn.lanes`."""
        if self.step is not None:
            return self.step.lanes
        if self.lanes is None:
            raise ValueError("this op stands in the body of an attn.lanes")
        return self.lanes

    def in_step(self) -> Step:
        """The tile that runs now. Raises ValueError outside `attn.tile_loop`."""
        if self.step is None:
            raise ValueError("this op stands in the body of an attn.tile_loop")
        return self.step

    def counts(self) -> Statistics:
        """Where to count. Raises ValueError outside `attn.lanes`."""
        if self.statistics is None:
            raise ValueError("this op stands in the body of an attn.lanes")
        return self.statistics
