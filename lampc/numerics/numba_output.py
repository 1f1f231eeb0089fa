"""Sums of exponentials and the update of the output: the Numba form (lampattention.md §4.7, §4.9)."""

import numpy as np

from lampc.numerics.arrays import F32, Bools, Ints
from lampc.numerics.jit import LANES, kernel, load_lanes, plus_live, plus_product, scaled, store_lanes
from lampc.numerics.numba_accumulate import copy_rows
from lampc.numerics.threads import spread

_TERMS_PER_NS = 8.0
_ENTRIES_PER_NS = 1.0


def row_sum(start: F32, e: F32, live: Bools) -> F32:
    """See `lampc.numerics.kernels.row_sum`."""
    out = start.copy()
    spread(lambda first, last: _row_sum(first, last, e, live, out), len(e), e.shape[1] * e.shape[2] / _ENTRIES_PER_NS)
    return out


def update_output(acc: F32, scale: F32, e: F32, live: Bools, values: F32, value_index: Ints, key_start: Ints, out: F32) -> F32:
    """See `lampc.numerics.kernels.update_output`."""
    args = (acc, scale, e, live, values, value_index, key_start, out)
    spread(lambda first, last: _update(first, last, *args), len(e), e.shape[1] * e.shape[2] * acc.shape[2] / _TERMS_PER_NS)
    return out


@kernel
def _row_sum(first: int, last: int, e: F32, live: Bools, out: F32) -> None:
    keys, rows = e.shape[1], e.shape[2]
    whole = rows // LANES * LANES
    for a in range(first, last):
        terms, alive, sums = e[a].reshape(-1), live[a].reshape(-1), out[a]
        for r in range(0, whole, LANES):
            total = load_lanes(sums, r)
            for i in range(keys):
                total = plus_live(total, terms, i * rows + r, alive)
            store_lanes(sums, r, total)
        for i in range(keys):
            for r in range(whole, rows):
                added = out[a, r] + e[a, i, r]
                out[a, r] = added if live[a, i, r] else out[a, r]


@kernel
def _update(
    first: int,
    last: int,
    acc: F32,
    scale: F32,
    e: F32,
    live: Bools,
    values: F32,
    value_index: Ints,
    key_start: Ints,
    out: F32,
) -> None:
    _, keys, rows = e.shape
    dv = values.shape[2]
    padded = np.zeros(keys * dv, np.float32)
    fours = dv // (4 * LANES) * (4 * LANES)
    for a in range(first, last):
        start = key_start[a]
        inside = start >= 0 and start + keys <= values.shape[1]
        if not inside:
            copy_rows(values[value_index[a]], start, keys, padded)
        tile = values[value_index[a]].reshape(-1) if inside else padded
        base = start * dv if inside else 0
        old, new = acc[a].reshape(-1), out[a].reshape(-1)
        weight, factor, alive = e[a].reshape(-1), scale[a], live[a].reshape(-1)
        dead = np.uint8(0)
        for at in range(keys * rows):
            dead |= np.uint8(0 if alive[at] else 1)
        # Two rows share the loads of V; an odd last row is its own partner.
        for r in range(0, rows, 2):
            s = min(r + 1, rows - 1)
            for c in range(0, fours, 4 * LANES):
                r_at, s_at = r * dv + c, s * dv + c
                r0 = scaled(load_lanes(old, r_at), factor, r)
                r1 = scaled(load_lanes(old, r_at + LANES), factor, r)
                r2 = scaled(load_lanes(old, r_at + 2 * LANES), factor, r)
                r3 = scaled(load_lanes(old, r_at + 3 * LANES), factor, r)
                s0 = scaled(load_lanes(old, s_at), factor, s)
                s1 = scaled(load_lanes(old, s_at + LANES), factor, s)
                s2 = scaled(load_lanes(old, s_at + 2 * LANES), factor, s)
                s3 = scaled(load_lanes(old, s_at + 3 * LANES), factor, s)
                for i in range(keys):
                    v = base + i * dv + c
                    v0, v1 = load_lanes(tile, v), load_lanes(tile, v + LANES)
                    v2, v3 = load_lanes(tile, v + 2 * LANES), load_lanes(tile, v + 3 * LANES)
                    if dead == 0 or alive[i * rows + r]:
                        r0 = plus_product(r0, weight, i * rows + r, v0)
                        r1 = plus_product(r1, weight, i * rows + r, v1)
                        r2 = plus_product(r2, weight, i * rows + r, v2)
                        r3 = plus_product(r3, weight, i * rows + r, v3)
                    if dead == 0 or alive[i * rows + s]:
                        s0 = plus_product(s0, weight, i * rows + s, v0)
                        s1 = plus_product(s1, weight, i * rows + s, v1)
                        s2 = plus_product(s2, weight, i * rows + s, v2)
                        s3 = plus_product(s3, weight, i * rows + s, v3)
                store_lanes(new, r_at, r0)
                store_lanes(new, r_at + LANES, r1)
                store_lanes(new, r_at + 2 * LANES, r2)
                store_lanes(new, r_at + 3 * LANES, r3)
                store_lanes(new, s_at, s0)
                store_lanes(new, s_at + LANES, s1)
                store_lanes(new, s_at + 2 * LANES, s2)
                store_lanes(new, s_at + 3 * LANES, s3)
        for r in range(rows):
            for c in range(fours, dv):
                total = old[r * dv + c] * factor[r]
                for i in range(keys):
                    if alive[i * rows + r]:
                        total += weight[i * rows + r] * tile[base + i * dv + c]
                new[r * dv + c] = total
