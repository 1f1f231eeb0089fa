"""
Counts of a tile that are kept back until it is known whether the tile is disruptive (layout compact).

What a disruptive tile accumulated in 16 bit, or exponentiated, before the sequential update is not counted: v.stat, which
comes at the end of a tile or before the update, drops it. Source: docs/lampattention.md sections 6 and 7.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lampc.numerics.arrays import F32, Ints
from lampc.numerics.statistics import Statistics


@dataclass
class Held:
    """
    Per context: entries of e4m11 accumulators that saturated, the largest of those accumulators, exponentials above one.

    saturated, above  int64 [n]; largest float32 [n]
    """

    saturated: Ints
    largest: F32
    above: Ints

    @classmethod
    def of(cls, contexts: int) -> Self:
        """Nothing counted yet."""
        return cls(np.zeros(contexts, np.int64), np.zeros(contexts, np.float32), np.zeros(contexts, np.int64))

    def add_saturation(self, lane: Ints, count: Ints, largest: F32) -> None:
        """Accumulations of contexts `lane`, as `kernels.count_saturated` describes them: [n] each."""
        np.add.at(self.saturated, lane, count)
        np.maximum.at(self.largest, lane, largest)

    def add_above_one(self, lane: Ints, count: Ints) -> None:
        """Exponentials above one of contexts `lane`: [n]."""
        np.add.at(self.above, lane, count)

    def settle(self, statistics: Statistics, name: str, at: Ints, keep: Ints, head: Ints) -> None:
        """
        The tile of the contexts `at` is over: count what `keep` of them held, in format `name`, and forget the rest.

        head  query head of each of `keep`
        """
        statistics.add_saturation(name, head, self.saturated[keep], self.largest[keep])
        statistics.add_above_one(head, self.above[keep])
        self.saturated[at], self.largest[at], self.above[at] = 0, 0, 0
