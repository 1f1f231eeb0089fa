"""
Philox4x32-10, the counter-based generator behind stochastic rounding (lampattention.md §2).

A random word is a pure function of a seed and a position, so every engine rounds alike in whatever order it works.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import Ints, Words

SITE_LOW, SITE_HIGH, SITE_CAP, SITE_BIAS = 0, 1, 2, 3
"""What is being rounded: a low or high accumulation (step = number of the rounded addition), a cap or a bias (step 0
after a low accumulation, 1 after a high one)."""

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class RandomSite:
    """
    Where a tile of lanes draws its random words: counter (stream, query, key, step*4 + site).

    seed         64 bits
    site         SITE_LOW, SITE_HIGH, SITE_CAP or SITE_BIAS
    stream       int64 [n], batch*heads + head of each lane
    query_start  int64 [n], query of each lane's first row
    key_start    int64 [n], key of each lane's first key row
    step         of SITE_CAP and SITE_BIAS: 0 after a low, 1 after a high accumulation
    """

    seed: int
    site: int
    stream: Ints
    query_start: Ints
    key_start: Ints
    step: int = 0

    def part(self, items: slice) -> "RandomSite":
        """The site of some of the lanes."""
        return replace(self, stream=self.stream[items], query_start=self.query_start[items], key_start=self.key_start[items])

    def words(self, keys: int, rows: int, step: int | None = None) -> Words:
        """uint32 [n, keys, rows]: one word per entry of the tile at `step` (default: the site's own)."""
        step = self.step if step is None else step
        query = self.query_start[:, None, None] + np.arange(rows)
        key = self.key_start[:, None, None] + np.arange(keys)[:, None]
        return philox(self.seed, self.stream[:, None, None], query, key, step * 4 + self.site)


def philox(seed: int, c0: npt.ArrayLike, c1: npt.ArrayLike, c2: npt.ArrayLike, c3: npt.ArrayLike) -> Words:
    """
    First output word of Philox4x32-10 for key (low, high 32 bits of `seed`) and counter (c0, c1, c2, c3), broadcast.
    """
    x0, x1, x2, x3 = (np.asarray(c).astype(np.uint64) & _LOW for c in np.broadcast_arrays(c0, c1, c2, c3))
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0 = x0 * np.uint64(0xD2511F53)
        p1 = x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = (p1 >> _SHIFT) ^ x1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _SHIFT) ^ x3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return x0.astype(np.uint32)
