"""The two look-ahead stages and the exponentials between them: the NumPy form (lampattention.md §4.4-§4.8)."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import F32, Array, Bools, Ints
from lampc.numerics.exponentials import exp_to
from lampc.numerics.formats import FloatFormat
from lampc.numerics.rounding import round_to
from lampc.numerics.sets import MAX_SUB_BLOCKS, Sets


def subblock_max(y: F32, live: Bools, nk: int) -> F32:
    """See `lampc.numerics.kernels.subblock_max`."""
    n, keys, rows = y.shape
    masked = np.where(live, y, np.float32(-np.inf))
    return masked.reshape(n, nk, keys // nk, rows).max(axis=2, initial=-np.inf)


def threat_order(top: F32, mu: F32) -> npt.NDArray[np.int8]:
    """See `lampc.numerics.kernels.threat_order`."""
    threat = top - mu[:, None, :]
    threat[np.isnan(threat)] = np.inf
    threat[top == -np.inf] = -np.inf
    return np.argsort(-threat.max(axis=2, initial=-np.inf), axis=1, stable=True).astype(np.int8)


def is_unsafe(ymax: F32, muh: F32, any_live: Bools, delta: np.float32) -> Bools:
    """See `lampc.numerics.kernels.is_unsafe`."""
    unsafe = any_live & ~(muh > ymax + np.abs(muh) * delta)
    return np.logical_or.reduce(unsafe, axis=1)


def shift_exp(
    y: F32,
    live: Bools,
    mask: Bools,
    m: F32,
    shift_fmt: FloatFormat | None,
    exp_fmt: FloatFormat | None,
    clamp: bool,
    out: F32 | None,
) -> F32:
    """See `lampc.numerics.kernels.shift_exp`."""
    s = m[:, None, :] - y
    if clamp:
        s = np.maximum(s, np.float32(0))
    if shift_fmt is not None:
        s = round_to(s, shift_fmt if clamp else replace(shift_fmt, signed=True))
    e: F32 = np.where(_inside(live, mask), exp_to(s, exp_fmt), np.float32(0))
    if out is None:
        return e
    np.copyto(out, merge_blocks(out, e, mask))
    return out


def _inside(live: Bools, mask: Bools) -> Bools:
    return live & np.repeat(mask, live.shape[1] // mask.shape[1], axis=1)[:, :, None]


def stage2_weights(omegah: F32, e: F32, live: Bools, nk: int) -> F32:
    """See `lampc.numerics.kernels.stage2_weights`."""
    n, keys, rows = e.shape
    bk = keys // nk
    xi = np.zeros((n, nk, rows), np.float32)
    for i in range(keys):
        added = xi[:, i // bk] + (omegah - e[:, i]) * e[:, i]
        xi[:, i // bk] = np.where(live[:, i], added, xi[:, i // bk])
    return xi


def keep_low(xi: F32, omegah: F32, free: Sets, tau: np.float32, tie: str) -> Sets:
    """See `lampc.numerics.kernels.keep_low`."""
    if tau >= 1:
        return free.copy()
    best = np.zeros(len(xi), np.uint16)
    lanes: Ints = np.arange(len(xi), dtype=np.int64)  # those without a set yet
    for sets in _by_size(xi.shape[1]):
        weights, omega, allowed = xi[lanes], omegah[lanes, None], free[lanes, None].astype(np.int64)
        square = omega * omega
        votes = ~np.isnan(omega)
        counts = votes & (square > 0) & (square < np.inf)
        least = np.full(len(lanes), np.inf, np.float32)
        found = np.zeros(len(lanes), np.bool_)
        for start in range(0, len(sets), _SETS_AT_ONCE):
            kept = sets[start : start + _SETS_AT_ONCE]
            x = np.zeros((len(lanes), len(kept), xi.shape[2]), np.float32)
            for theta in range(xi.shape[1]):
                x += np.where((kept >> theta & 1)[:, None], weights[:, None, theta], np.float32(0))
            feasible = ((kept & ~allowed) == 0) & ((x <= tau * square) | ~votes).all(axis=2)
            slack = np.zeros(feasible.shape, np.float32)
            if tie == "slack":
                slack = np.where(counts, x / square, np.float32(0)).max(axis=2, initial=0)
            slack[~feasible] = np.inf
            first = slack.argmin(axis=1)
            found |= feasible.any(axis=1)
            better = slack.min(axis=1) < least
            best[lanes[better]], least[better] = kept[first[better]], slack[better, first[better]]
        lanes = lanes[~found]
        if not len(lanes):
            break
    return best


_SETS_AT_ONCE = 64


@lru_cache(maxsize=MAX_SUB_BLOCKS)
def _by_size(sub_blocks: int) -> list[Ints]:
    # Largest sets first; among equals descending, which is ascending in what is recomputed.
    sets: Ints = np.arange((1 << sub_blocks) - 1, -1, -1, dtype=np.int64)
    size = np.bitwise_count(sets)
    return [sets[size == count] for count in range(sub_blocks, -1, -1)]


def count_above_one(y: F32, live: Bools, mask: Bools, muh: F32) -> Ints:
    """See `lampc.numerics.kernels.count_above_one`."""
    above = (muh[:, None, :] - y < 0) & _inside(live, mask)
    return np.count_nonzero(above, axis=(1, 2)).astype(np.int64)


def count_saturated(y: F32, live: Bools, top: np.float32) -> tuple[Ints, F32]:
    """See `lampc.numerics.kernels.count_saturated`; `top` NaN: nothing saturates."""
    size = np.where(live & ~np.isnan(y), np.abs(y), np.float32(0))
    return np.count_nonzero(size == top, axis=(1, 2)).astype(np.int64), size.max(axis=(1, 2), initial=np.float32(0))


def live_rows(live: Bools, nk: int) -> Bools:
    """See `lampc.numerics.kernels.live_rows`."""
    n, keys, rows = live.shape
    return np.logical_or.reduce(live.reshape(n, nk, keys // nk, rows), axis=2)


def merge_blocks(low: Array, high: Array, mask: Bools) -> Array:
    """See `lampc.numerics.kernels.merge_blocks`."""
    return np.where(np.repeat(mask, low.shape[1] // mask.shape[1], axis=1)[:, :, None], high, low)
