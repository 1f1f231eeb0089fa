"""Tiles of masks and biases for many lanes: the NumPy form (lampattention.md §4.3)."""

import numpy as np

from lampc.numerics.arrays import Array, Bools, Ints


def between(first: Ints, end: Ints, key_start: Ints, count: int) -> Bools:
    """bool [n, count, rows]: whether first <= key < end, both [n, rows], for keys from key_start [n] on."""
    key = (key_start[:, None] + np.arange(count))[:, :, None]
    return (key >= first[:, None, :]) & (key < end[:, None, :])


def gather(table: Array, start: Ints, rows: int, count: int) -> Array:
    """See `lampc.numerics.masks.rows_tile`; start int64 [n, 4]: batch, head, first query, first key."""
    batch, head, query, key = (start[:, axis, None, None] for axis in range(4))
    at: list[Ints] = []
    inside = np.ones((1, 1, 1), np.bool_)
    places = (batch, head, query + np.arange(rows), key + np.arange(count)[:, None])
    for index, size in zip(places, table.shape, strict=True):
        if size == 1:
            at.append(np.zeros_like(index))
            continue
        fits = (index >= 0) & (index < size)
        inside = inside & fits
        at.append(np.where(fits, index, 0))
    tile = np.where(inside, table[tuple(at)], np.zeros((), table.dtype))
    return np.ascontiguousarray(np.broadcast_to(tile, (len(start), count, rows)))
