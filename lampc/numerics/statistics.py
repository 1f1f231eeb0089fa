"""What every run reports about one attention (lampattention.md §6)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import F32, Ints
from lampc.numerics.formats import E4M3

LIMIT = E4M3.max_finite
"""The bound on |accumulator| that QK-norm can guarantee (lampattention.md §6)."""


@dataclass
class Statistics:
    """
    Counts of one attention, per query head (batches added up).

    heads        number of query heads
    sub_blocks   N_k; layout compact only tells 0, 1 and 2 apart and counts two or more as 2
    stage1       int64 [heads, N_k+1]: live (warp, tile) pairs by sub-blocks recomputed after stage 1
    final        int64 [heads, N_k+1]: the same after both stages
    dead_tiles   int64 [heads]: (warp, tile) pairs with no live entry, skipped
    saturated    format name -> int64 [heads]: live entries whose accumulator ended at the largest finite value; with
                 `overflow = nan` those where it ended as NaN
    above_one    int64 [heads]: exponentials clamped at, or kept above, one
    largest      float32 [heads]: largest |accumulator| over live entries, to compare with `LIMIT`
    """

    heads: int
    sub_blocks: int
    stage1: Ints = field(init=False)
    final: Ints = field(init=False)
    dead_tiles: Ints = field(init=False)
    saturated: dict[str, Ints] = field(init=False, default_factory=dict[str, Ints])
    above_one: Ints = field(init=False)
    largest: F32 = field(init=False)

    def __post_init__(self) -> None:
        self.stage1 = np.zeros((self.heads, self.sub_blocks + 1), np.int64)
        self.final = np.zeros((self.heads, self.sub_blocks + 1), np.int64)
        self.dead_tiles = np.zeros(self.heads, np.int64)
        self.above_one = np.zeros(self.heads, np.int64)
        self.largest = np.zeros(self.heads, np.float32)

    def add_tiles(self, head: npt.ArrayLike, stage1: npt.ArrayLike, final: npt.ArrayLike) -> None:
        """Live (warp, tile) pairs: their heads and how many sub-blocks each had recomputed, int [n] each."""
        np.add.at(self.stage1, (np.asarray(head), np.asarray(stage1)), 1)
        np.add.at(self.final, (np.asarray(head), np.asarray(final)), 1)

    def add_dead_tiles(self, head: npt.ArrayLike, count: npt.ArrayLike = 1) -> None:
        """Skipped (warp, tile) pairs: their heads, and how many each stands for."""
        np.add.at(self.dead_tiles, np.asarray(head), count)

    def add_saturation(self, fmt_name: str, head: npt.ArrayLike, count: npt.ArrayLike, largest: npt.ArrayLike) -> None:
        """
        One accumulation of lanes: heads [n], saturated entries [n] and largest |accumulator| [n] as `count_saturated` gives.

        Only formats that saturated are kept, so that equal runs are equal however often they asked.
        """
        np.maximum.at(self.largest, np.asarray(head), np.asarray(largest, np.float32))
        if np.any(count):
            np.add.at(self.saturated.setdefault(fmt_name, np.zeros(self.heads, np.int64)), np.asarray(head), count)

    def add_above_one(self, head: npt.ArrayLike, count: npt.ArrayLike) -> None:
        """Exponentials above one before any clamp: heads [n] and counts [n] as `count_above_one` gives."""
        np.add.at(self.above_one, np.asarray(head), count)

    def merge(self, other: "Statistics") -> None:
        """Add what `other` counted; raises ValueError if heads or sub-blocks differ."""
        if (self.heads, self.sub_blocks) != (other.heads, other.sub_blocks):
            raise ValueError("statistics of different attentions do not add up")
        self.stage1 += other.stage1
        self.final += other.final
        self.dead_tiles += other.dead_tiles
        self.above_one += other.above_one
        np.maximum(self.largest, other.largest, out=self.largest)
        for name, counts in other.saturated.items():
            self.saturated[name] = self.saturated.get(name, np.zeros(self.heads, np.int64)) + counts

    def columns(self, *, after_stage1: bool = False, head: int | None = None) -> tuple[int, int, int]:
        """The paper's three columns: live tiles with 0, 1, and 2 or more ("disruptive") sub-blocks recomputed."""
        table = self.stage1 if after_stage1 else self.final
        counts = table.sum(axis=0) if head is None else table[head]
        return int(counts[0]), int(counts[1]), int(counts[2:].sum())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and lists: `total` for reading, `per_head` complete."""
        return {
            "heads": self.heads,
            "sub_blocks": self.sub_blocks,
            "total": {
                "recomputed_after_stage1": self.stage1.sum(axis=0).tolist(),
                "recomputed": self.final.sum(axis=0).tolist(),
                "columns_after_stage1": list(self.columns(after_stage1=True)),
                "columns": list(self.columns()),
                "live_tiles": int(self.final.sum()),
                "dead_tiles": int(self.dead_tiles.sum()),
                "saturated": {name: int(counts.sum()) for name, counts in sorted(self.saturated.items())},
                "above_one": int(self.above_one.sum()),
                "largest_accumulator": float(self.largest.max(initial=0)),
                "limit": LIMIT,
            },
            "per_head": {
                "recomputed_after_stage1": self.stage1.tolist(),
                "recomputed": self.final.tolist(),
                "dead_tiles": self.dead_tiles.tolist(),
                "saturated": {name: counts.tolist() for name, counts in sorted(self.saturated.items())},
                "above_one": self.above_one.tolist(),
                "largest_accumulator": [float(x) for x in self.largest],
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Statistics":
        """The inverse of `to_json`."""
        per_head = data["per_head"]
        out = cls(data["heads"], data["sub_blocks"])
        out.stage1 = np.array(per_head["recomputed_after_stage1"], np.int64).reshape(out.stage1.shape)
        out.final = np.array(per_head["recomputed"], np.int64).reshape(out.final.shape)
        out.dead_tiles = np.array(per_head["dead_tiles"], np.int64)
        out.saturated = {name: np.array(counts, np.int64) for name, counts in per_head["saturated"].items()}
        out.above_one = np.array(per_head["above_one"], np.int64)
        out.largest = np.array(per_head["largest_accumulator"], np.float32)
        return out
