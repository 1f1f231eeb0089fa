"""Key-query products accumulated in a narrow format: the NumPy form (lampattention.md §4.2)."""

import numpy as np

from lampc.numerics.arrays import F32, Ints
from lampc.numerics.formats import FloatFormat
from lampc.numerics.philox import RandomSite
from lampc.numerics.rounding import Overflow, Rounding, is_plain, round_in_place, round_to

ITEMS_AT_ONCE = 16
"""Tiles worked on together: enough to fill vectors, few enough to stay in cache."""


def gather_rows(table: F32, index: Ints, start: Ints, count: int) -> F32:
    """`table`[index, start : start + count] as float32 [n, count, d]; rows outside the table read as 0."""
    row = start[:, None] + np.arange(count)
    inside = (row >= 0) & (row < table.shape[1])
    tile = table[index[:, None], np.where(inside, row, 0)] if table.shape[1] else np.zeros((*row.shape, table.shape[2]))
    return np.where(inside[:, :, None], tile, 0).astype(np.float32)


def accumulate(
    keys: F32,
    key_index: Ints,
    key_start: Ints,
    columns: F32,
    column_index: Ints,
    count: int,
    fmt: FloatFormat | None,
    block: int,
    rounding: Rounding,
    random: RandomSite | None,
    overflow: Overflow,
) -> F32:
    """See `lampc.numerics.kernels.accumulate`; `columns` [Q, d, rows] are the queries, rows contiguous."""
    n, rows, d = len(key_index), columns.shape[2], columns.shape[1]
    out = np.zeros((n, count, rows), np.float32)
    for first in range(0, n, ITEMS_AT_ONCE):
        part = slice(first, first + ITEMS_AT_ONCE)
        # One term of all entries after the other: [d, n, count, 1] times [d, n, 1, rows].
        tile = gather_rows(keys, key_index[part], key_start[part], count)
        k = np.ascontiguousarray(tile.transpose(2, 0, 1))[..., None]
        q = np.ascontiguousarray(columns[column_index[part]].transpose(1, 0, 2))[:, :, None]
        c = np.zeros((len(tile), count, rows), np.float32)
        for step, start in enumerate(range(0, d, block)):
            total = k[start] * q[start]
            for t in range(start + 1, min(start + block, d)):
                total += k[t] * q[t]
            c += total
            if fmt is None:
                continue
            if rounding == "rne" and overflow == "saturate" and is_plain(fmt):
                round_in_place(c, fmt)
            else:
                words = random.part(part).words(count, rows, step) if random is not None else None
                c = round_to(c, fmt, rounding, words, overflow=overflow)
        out[part] = c
    return out
