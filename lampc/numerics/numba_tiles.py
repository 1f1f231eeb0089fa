"""Tiles of masks and biases for many lanes: the Numba form (lampattention.md §4.3)."""

import numpy as np

from lampc.numerics.arrays import Array, Bools, Ints, frozen
from lampc.numerics.jit import kernel
from lampc.numerics.threads import spread

_ENTRIES_PER_NS = 1.0


def between(first: Ints, end: Ints, key_start: Ints, count: int) -> Bools:
    """See `lampc.numerics.tiles.between`."""
    out = np.empty((len(first), count, first.shape[1]), np.bool_)
    n, entries = len(out), count * first.shape[1]
    keys, first, end = (frozen(x.astype(np.int64, copy=False)) for x in (key_start, first, end))
    spread(lambda low, high: _between(low, high, first, end, keys, out), n, entries / _ENTRIES_PER_NS)
    return out


def gather(table: Array, start: Ints, rows: int, count: int) -> Array:
    """See `lampc.numerics.tiles.gather`."""
    source, start = frozen(table), frozen(start)
    out = np.empty((len(start), count, rows), table.dtype)
    spread(lambda low, high: _gather(low, high, source, start, out), len(start), rows * count / _ENTRIES_PER_NS)
    return out


@kernel
def _between(low: int, high: int, first: Ints, end: Ints, key_start: Ints, out: Bools) -> None:
    for a in range(low, high):
        for i in range(out.shape[1]):
            key = key_start[a] + i
            for r in range(out.shape[2]):
                out[a, i, r] = (key >= first[a, r]) & (key < end[a, r])


@kernel
def _gather(low: int, high: int, table: Array, start: Ints, out: Array) -> None:
    batches, heads, queries, keys = table.shape
    _, count, rows = out.shape
    for a in range(low, high):
        batch = start[a, 0] if batches > 1 else 0
        head = start[a, 1] if heads > 1 else 0
        plane = table[batch, head]
        for r in range(rows):
            query = start[a, 2] + r if queries > 1 else 0
            for i in range(count):
                key = start[a, 3] + i if keys > 1 else 0
                inside = 0 <= query < queries and 0 <= key < keys
                out[a, i, r] = plane[query, key] if inside else table.dtype.type(0)
