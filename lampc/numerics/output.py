"""Sums of exponentials and the update of the output: the NumPy form (lampattention.md §4.7, §4.9)."""

import numpy as np

from lampc.numerics.accumulate import gather_rows
from lampc.numerics.arrays import F32, Bools, Ints


def row_sum(start: F32, e: F32, live: Bools) -> F32:
    """See `lampc.numerics.kernels.row_sum`."""
    total = start.copy()
    for i in range(e.shape[1]):
        total = np.where(live[:, i], total + e[:, i], total)
    return total


def update_output(acc: F32, scale: F32, e: F32, live: Bools, values: F32, value_index: Ints, key_start: Ints, out: F32) -> F32:
    """See `lampc.numerics.kernels.update_output`."""
    v = gather_rows(values, value_index, key_start, e.shape[1])
    np.multiply(acc, scale[:, :, None], out=out)
    for i in range(e.shape[1]):
        added = out + e[:, i, :, None] * v[:, i, None, :]
        np.copyto(out, added, where=live[:, i, :, None])
    return out
