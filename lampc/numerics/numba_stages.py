"""The two look-ahead stages and the exponentials between them: the Numba form (lampattention.md §4.4-§4.8)."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lampc.numerics import stages
from lampc.numerics.arrays import F32, F64, Array, Bools, Ints, frozen
from lampc.numerics.encoding import decode
from lampc.numerics.exponentials import exp_to
from lampc.numerics.formats import FloatFormat
from lampc.numerics.jit import (
    LANES,
    count_above,
    count_size,
    kernel,
    larger_live,
    larger_size,
    load_lanes,
    store_lanes,
    zero_lanes,
)
from lampc.numerics.rounding import is_plain
from lampc.numerics.sets import Sets
from lampc.numerics.threads import spread

_ENTRIES_PER_NS = 1.0
_COPIED_PER_NS = 4.0
_LOOKED_UP_PER_NS = 0.8
_WEIGHED_PER_NS = 0.5
_CHUNK = 16


def subblock_max(y: F32, live: Bools, nk: int) -> F32:
    """See `lampc.numerics.kernels.subblock_max`."""
    out = np.full((len(y), nk, y.shape[2]), -np.inf, np.float32)
    spread(lambda first, last: _subblock_max(first, last, y, live, out), len(y), y.shape[1] * y.shape[2] / _ENTRIES_PER_NS)
    return out


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
    bounded = [fmt is not None and fmt.min_exponent != -126 for fmt in (shift_fmt, exp_fmt)]
    plain = all(fmt is None or is_plain(fmt) for fmt in (shift_fmt, exp_fmt)) and (shift_fmt is None or _has_table(shift_fmt))
    if not plain or (any(bounded) and not (clamp and all(bounded))):
        return stages.shift_exp(y, live, mask, m, shift_fmt, exp_fmt, clamp, out)
    if shift_fmt is not None and exp_fmt is not None and all(bounded):
        smallest = np.float32(shift_fmt.min_normal).view(np.int32)
        grid = (
            np.float32(shift_fmt.max_finite),
            smallest,
            np.float32(1.5 * 2.0 ** (23 - shift_fmt.mantissa_bits)),
            np.float32(1 / shift_fmt.min_subnormal),
            np.int32(23 - shift_fmt.mantissa_bits),
        )
        result = np.empty_like(y) if out is None else out
        parts = (y, live, mask, m, grid, _exp_values(shift_fmt, exp_fmt), out is not None, result)
        spread(lambda first, last: _look_up(first, last, *parts), len(y), y.shape[1] * y.shape[2] / _LOOKED_UP_PER_NS)
        return result
    return _exponentials(y, live, mask, m, shift_fmt, exp_fmt, clamp, out)


def _exponentials(
    y: F32,
    live: Bools,
    mask: Bools,
    m: F32,
    shift_fmt: FloatFormat | None,
    exp_fmt: FloatFormat | None,
    clamp: bool,
    out: F32 | None,
) -> F32:
    result = np.empty_like(y)
    live = live if mask.all() else merge_blocks(frozen(np.zeros_like(live)), live, mask)

    def run(first: int, last: int) -> None:
        # NumPy's exp is the one every engine uses; a few lanes at a time stay in cache.
        power = np.empty((_CHUNK, *y.shape[1:]), np.float64)
        dropped = np.int32(0 if shift_fmt is None else 23 - shift_fmt.mantissa_bits)
        largest = np.float32(np.inf if shift_fmt is None else shift_fmt.max_finite)
        for low in range(first, last, _CHUNK):
            high = min(low + _CHUNK, last)
            part = power[: high - low]
            _minus_shift(low, high, y, m, dropped, largest, clamp, part)
            with np.errstate(all="ignore"):
                np.exp(part, out=part)
                if exp_fmt is None:
                    result[low:high] = np.where(live[low:high], part, 0)
                else:
                    _round_exp(low, high, part, live, exp_fmt.mantissa_bits, exp_fmt.max_finite, result)

    spread(run, len(y), y.shape[1] * y.shape[2] / 0.2)
    if out is None:
        return result
    np.copyto(out, merge_blocks(out, result, mask))
    return out


def stage2_weights(omegah: F32, e: F32, live: Bools, nk: int) -> F32:
    """See `lampc.numerics.kernels.stage2_weights`."""
    xi = np.zeros((len(e), nk, e.shape[2]), np.float32)
    spread(lambda first, last: _weights(first, last, omegah, e, live, xi), len(e), e.shape[1] * e.shape[2] / _ENTRIES_PER_NS)
    return xi


def keep_low(xi: F32, omegah: F32, free: Sets, tau: np.float32, tie: str) -> Sets:
    """See `lampc.numerics.kernels.keep_low`."""
    if tau >= 1:
        return free.copy()
    out = np.zeros(len(xi), np.uint16)
    args = (xi, omegah, free, tau, tie == "slack", out)
    spread(lambda first, last: _keep_low(first, last, *args), len(xi), xi.shape[1] * xi.shape[2] / _WEIGHED_PER_NS)
    return out


def count_above_one(y: F32, live: Bools, mask: Bools, muh: F32) -> Ints:
    """See `lampc.numerics.kernels.count_above_one`."""
    out = np.zeros(len(y), np.int64)
    parts = (y, live, mask, muh, out)
    spread(lambda first, last: _above_one(first, last, *parts), len(y), y.shape[1] * y.shape[2] / _ENTRIES_PER_NS)
    return out


def count_saturated(y: F32, live: Bools, top: np.float32) -> tuple[Ints, F32]:
    """See `lampc.numerics.kernels.count_saturated`; `top` NaN: nothing saturates."""
    counts, largest = np.zeros(len(y), np.int64), np.zeros(len(y), np.float32)
    spread(
        lambda first, last: _saturated(first, last, y, live, top, counts, largest),
        len(y),
        y.shape[1] * y.shape[2] / _ENTRIES_PER_NS,
    )
    return counts, largest


def live_rows(live: Bools, nk: int) -> Bools:
    """See `lampc.numerics.kernels.live_rows`."""
    n, keys, rows = live.shape
    out = np.zeros((n, nk, rows), np.bool_)
    _live_rows(live.view(np.uint8).reshape(n, nk, keys // nk, rows), out.view(np.uint8))
    return out


def merge_blocks(low: Array, high: Array, mask: Bools) -> Array:
    """See `lampc.numerics.kernels.merge_blocks`."""
    out = np.empty_like(low)
    size = low.shape[1] * low.shape[2]
    blocks = (*mask.shape, size // mask.shape[1])
    parts = (low.reshape(blocks), high.reshape(blocks), mask, out.reshape(blocks))
    spread(lambda first, last: _merge(first, last, *parts), len(low), size / _COPIED_PER_NS)
    return out


def _has_table(shift_fmt: FloatFormat) -> bool:
    # Or needs none, having FP32's range; with smaller subnormals their number would not be a float32.
    return shift_fmt.min_exponent == -126 or (shift_fmt.bits <= 16 and shift_fmt.min_subnormal >= 2.0**-126)


@lru_cache(maxsize=16)
def _exp_values(shift_fmt: FloatFormat, exp_fmt: FloatFormat) -> F32:
    # Two entries more than there are codes, for NaN and for dead entries: a format need not have a code for either.
    values = exp_to(decode(np.arange(1 << shift_fmt.bits), shift_fmt), exp_fmt)
    return np.append(values, np.array([np.nan, 0], np.float32))


@kernel
def _subblock_max(first: int, last: int, y: F32, live: Bools, top: F32) -> None:
    bk, rows = y.shape[1] // top.shape[1], y.shape[2]
    whole = rows // LANES * LANES
    for a in range(first, last):
        scores, alive, largest = y[a].reshape(-1), live[a].reshape(-1), top[a].reshape(-1)
        for theta in range(top.shape[1]):
            for r in range(0, whole, LANES):
                best = load_lanes(largest, theta * rows + r)
                for i in range(theta * bk, theta * bk + bk):
                    best = larger_live(best, scores, i * rows + r, alive)
                store_lanes(largest, theta * rows + r, best)
            for i in range(theta * bk, theta * bk + bk):
                for r in range(whole, rows):
                    most, value = top[a, theta, r], y[a, i, r]
                    # The last comparison takes a NaN, the one before keeps it.
                    better = live[a, i, r] & (most == most) & (not value <= most)
                    top[a, theta, r] = value if better else most


@kernel
def _repeat_rows(row: F32, count: int, into: F32) -> None:
    # One row after the other: loops over them all then run over one axis, which vectorises where 16 rows alone would not.
    for i in range(count):
        for r in range(len(row)):
            into[i * len(row) + r] = row[r]


@kernel
def _look_up(
    first: int,
    last: int,
    y: F32,
    live: Bools,
    mask: Bools,
    m: F32,
    grid: tuple[Any, ...],
    table: F32,
    keep: bool,
    out: F32,
) -> None:
    largest, smallest, factor, per_step, dropped = grid
    offset = np.int32((smallest >> dropped) - (1 << (23 - dropped)))
    nan, dead = np.int32(len(table) - 2), np.int32(len(table) - 1)
    rows = y.shape[2]
    count = y.shape[1] // mask.shape[1]
    codes = np.empty(count * rows, np.uint32)
    maximum = np.empty(count * rows, np.float32)
    for a in range(first, last):
        _repeat_rows(m[a], count, maximum)
        for theta in range(mask.shape[1]):
            begin, end = theta * count, theta * count + count
            scores, alive, result = y[a, begin:end].reshape(-1), live[a, begin:end].reshape(-1), out[a, begin:end].reshape(-1)
            size = len(scores)
            if not mask[a, theta]:
                if not keep:
                    for r in range(size):
                        result[r] = 0
                continue
            # Two loops: the first is arithmetic that vectorises, the second only reads the table.
            for r in range(size):
                exact = maximum[r] - scores[r]
                above = exact if exact > 0 else np.float32(0)
                s = np.float32(largest if above > largest else above)
                power = np.int32(max(np.int32(s.view(np.int32) & np.int32(0x7F800000)), smallest))
                magic = power.view(np.float32) * factor
                on_grid = np.float32((s + magic) - magic)
                bits = on_grid.view(np.int32)
                normal, subnormal = np.int32((bits >> dropped) - offset), np.int32(on_grid * per_step)
                code = normal if bits >= smallest else subnormal
                code = code if exact == exact else nan
                codes[r] = np.uint32(code if alive[r] else dead)
            for r in range(size):
                result[r] = table[codes[r]]


@kernel
def _minus_shift(first: int, last: int, y: F32, m: F32, dropped: np.int32, largest: np.float32, clamp: bool, out: F64) -> None:
    # -s for FP32's exponent range: see rounding.round_in_place. Nothing is dropped under FP32 itself.
    half = np.int32((1 << (dropped - 1)) - 1) if dropped > 0 else np.int32(0)
    for a in range(first, last):
        for i in range(y.shape[1]):
            for r in range(y.shape[2]):
                s = np.float32(m[a, r] - y[a, i, r])
                bits = s.view(np.int32)
                size = np.int32(bits & np.int32(0x7FFFFFFF))
                odd = np.int32((size >> dropped) & 1) if dropped > 0 else np.int32(0)
                moved = np.int32(((size + half + odd) >> dropped) << dropped)
                kept = np.float32(min(moved.view(np.float32), largest))
                kept = -kept if s < 0 else kept
                kept = np.float32(0) if clamp and kept < 0 else kept
                out[a - first, i, r] = -(kept if s == s else s)


@kernel
def _round_exp(first: int, last: int, exact: F64, live: Bools, mantissa_bits: int, largest: float, out: F32) -> None:
    # Values of exp in float64 (positive, infinite or NaN) straight to FP32's exponent range and m bits.
    dropped = 52 - mantissa_bits
    smallest = 2.0**-126
    magic = 1.5 * 2.0 ** (dropped - 126)
    for a in range(first, last):
        for i in range(out.shape[1]):
            for r in range(out.shape[2]):
                value = np.float64(exact[a - first, i, r])
                bits = value.view(np.int64)
                even = (bits >> dropped) & 1
                moved = np.int64(((bits + (1 << (dropped - 1)) - 1 + even) >> dropped) << dropped)
                normal = min(moved.view(np.float64), largest)
                result = (value + magic) - magic if value < smallest else normal
                result = result if value == value else value
                out[a, i, r] = np.float32(result) if live[a, i, r] else np.float32(0)


@kernel
def _weights(first: int, last: int, omegah: F32, e: F32, live: Bools, xi: F32) -> None:
    bk = e.shape[1] // xi.shape[1]
    for a in range(first, last):
        for theta in range(xi.shape[1]):
            for i in range(theta * bk, theta * bk + bk):
                for r in range(e.shape[2]):
                    added = xi[a, theta, r] + (omegah[a, r] - e[a, i, r]) * e[a, i, r]
                    xi[a, theta, r] = added if live[a, i, r] else xi[a, theta, r]


@kernel
def _keep_low(first: int, last: int, xi: F32, omegah: F32, free: Sets, tau: np.float32, by_slack: bool, out: Sets) -> None:
    nk, rows = xi.shape[1], xi.shape[2]
    members = np.zeros(nk, np.int64)
    for a in range(first, last):
        size = 0
        for theta in range(nk):
            if (free[a] >> theta) & 1:
                members[size] = theta
                size += 1
        # Sets to recompute, of the members' places: the smallest first, among equals ascending; the first of equals wins.
        best, found, best_slack = np.int64(0), False, np.float32(np.inf)
        for count in range(size + 1):
            taken = np.int64((1 << count) - 1)
            while taken < 1 << size:
                feasible, slack = True, np.float32(0)
                for r in range(rows):
                    square = omegah[a, r] * omegah[a, r]
                    x = np.float32(0)
                    for place in range(size):
                        if not (taken >> place) & 1:
                            x += xi[a, members[place], r]
                    if omegah[a, r] == omegah[a, r] and not x <= tau * square:
                        feasible = False
                        break
                    if by_slack and square > 0 and square < np.inf:
                        slack = max(slack, np.float32(x / square))
                        if found and slack >= best_slack:
                            feasible = False
                            break
                if feasible:
                    best, found, best_slack = taken, True, slack
                    if not by_slack:
                        break
                if taken == 0:
                    break
                # The next number with as many bits.
                lowest = taken & -taken
                carried = taken + lowest
                taken = (((carried ^ taken) >> 2) // lowest) | carried
            if found:
                break
        kept = np.int64(0)
        for place in range(size):
            if found and not (best >> place) & 1:
                kept |= np.int64(1) << members[place]
        out[a] = kept


@kernel
def _above_one(first: int, last: int, y: F32, live: Bools, mask: Bools, muh: F32, out: Ints) -> None:
    # f32(muh - y) < 0 exactly where muh < y: subtraction underflows gradually.
    count, rows = y.shape[1] // mask.shape[1], y.shape[2]
    whole = rows // LANES * LANES
    found = np.zeros(LANES, np.float32)
    for a in range(first, last):
        scores, alive, limits = y[a].reshape(-1), live[a].reshape(-1), muh[a]
        total = zero_lanes()
        rest = 0
        for theta in range(mask.shape[1]):
            if mask[a, theta]:
                for r in range(0, whole, LANES):
                    limit = load_lanes(limits, r)
                    for i in range(theta * count, theta * count + count):
                        total = count_above(total, scores, i * rows + r, alive, limit)
                for i in range(theta * count, theta * count + count):
                    for r in range(whole, rows):
                        rest += 1 if live[a, i, r] and muh[a, r] < y[a, i, r] else 0
        store_lanes(found, 0, total)
        for r in range(LANES):
            rest += int(found[r])
        out[a] = rest


@kernel
def _saturated(first: int, last: int, y: F32, live: Bools, top: np.float32, counts: Ints, largest: F32) -> None:
    found, sizes = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for r in range(LANES):
        sizes[r] = top
    limit = load_lanes(sizes, 0)
    for a in range(first, last):
        scores, alive = y[a].reshape(-1), live[a].reshape(-1)
        whole = len(scores) // LANES * LANES
        total, best = zero_lanes(), zero_lanes()
        for at in range(0, whole, LANES):
            total = count_size(total, scores, at, alive, limit)
            best = larger_size(best, scores, at, alive)
        store_lanes(found, 0, total)
        store_lanes(sizes, 0, best)
        count, most = 0, np.float32(0)
        for r in range(LANES):
            count += int(found[r])
            most = max(most, sizes[r])
        for at in range(whole, len(scores)):
            size = abs(scores[at])
            if alive[at]:
                count += 1 if size == top else 0
                most = size if size > most else most
        counts[a], largest[a] = count, most


@kernel
def _live_rows(live: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    n, nk, keys, rows = live.shape
    for a in range(n):
        for theta in range(nk):
            for i in range(keys):
                for r in range(rows):
                    out[a, theta, r] |= live[a, theta, i, r]


@kernel
def _merge(first: int, last: int, low: Array, high: Array, mask: Bools, out: Array) -> None:
    for a in range(first, last):
        for theta in range(mask.shape[1]):
            source, into = high[a, theta] if mask[a, theta] else low[a, theta], out[a, theta]
            for r in range(len(into)):
                into[r] = source[r]
