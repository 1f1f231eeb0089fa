"""
Which key tiles a thread block walks, and in which order: what `s.range` and `s.tile` compute.

Both engines use it. Source: docs/accelerator.md section 2, docs/lampattention.md section 3.
"""

import numpy as np
from numpy.typing import NDArray

from lampc.numerics.masks import Liveness
from lampc.targets.accel.config import Config

Ints = NDArray[np.int64]


def structure(config: Config) -> Liveness:
    """The structured rules of an attention; a boolean mask is data and not among them."""
    return Liveness(
        config.lq,
        config.lk,
        causal=config.causal,
        causal_offset=config.causal_offset,
        window=config.window or None,
    )


def key_range(config: Config, block: Ints) -> tuple[Ints, Ints]:
    """
    First key tile and number of key tiles with a key that the structured rules leave live, for thread blocks int64 [n].

    (0, 0) for a block that sees none.
    """
    rows = config.bq * config.nq
    keys = config.bk * config.nk
    rules = structure(config)
    zero = np.zeros_like(block)
    first, _ = rules.bounds(zero, block * rows)
    _, end = rules.bounds(zero, np.minimum(block * rows + rows, config.lq) - 1)
    # The rows' intervals overlap or touch, so their union runs from the first row's first key to the last row's last.
    some = first < end
    first_tile = np.where(some, first // keys, 0)
    return first_tile, np.where(some, -(-end // keys) - first_tile, 0)


def tile_at(config: Config, first: Ints, count: Ints, position: Ints) -> Ints:
    """The key tile at a position of the range, in the configuration's key order; all int64 [n]."""
    last = first + count - 1
    if config.kv_order == "forward":
        return first + position
    if config.kv_order == "reverse":
        return last - position
    # sink-first: tile 0, if it is in the range, then the others backwards.
    return np.where(first == 0, np.where(position == 0, 0, last - position + 1), last - position)
