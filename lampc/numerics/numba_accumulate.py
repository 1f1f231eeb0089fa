"""Key-query products accumulated in a narrow format: the Numba form (lampattention.md §4.2)."""

from typing import Any

import numpy as np

from lampc.numerics import accumulate as by_numpy
from lampc.numerics.arrays import F32, Ints, frozen
from lampc.numerics.formats import FloatFormat
from lampc.numerics.jit import LANES, kernel, largest, load_lanes, plus_product, rounded, store_lanes, zero_lanes
from lampc.numerics.philox import RandomSite
from lampc.numerics.rounding import Overflow, Rounding, is_plain
from lampc.numerics.threads import spread

_STEPS_PER_NS = 8.0
_STEPS_PER_NS_GENERAL = 0.2


_NOWHERE = -(1 << 62)
"""No key's place."""
_NOT_FINITE = 1e100
"""Above the product of any two FP32 values."""


def grids_of(fmt: FloatFormat | None, d: int) -> tuple[tuple[Any, ...], tuple[Any, ...], float]:
    """
    The arguments of `jit.rounded` for a signed format: of any values, and quicker ones for lanes whose largest |key| times
    largest |query|, in float64, is at most the third result.
    """
    if fmt is None:
        return (), (), 0.0
    smallest, factor = np.float32(fmt.min_normal).view(np.int32), np.float32(1.5 * 2.0 ** (23 - fmt.mantissa_bits))
    if fmt.min_exponent == -126:
        # d products, and as many roundings that each add half a unit in the last place.
        growth = d * (1 + 0.5 * 2.0**-fmt.mantissa_bits) ** min(d, 1000)
        exact = np.int32(23 - fmt.mantissa_bits), np.float32(fmt.max_finite).view(np.int32)
        far = d <= 1000 and fmt.max_exponent == 127
        return exact, ((smallest, factor),), 2.0 ** (102 + fmt.mantissa_bits) / growth if far else 0.0
    bounded = np.float32(fmt.max_finite), smallest, factor
    return bounded, (*bounded, 0), _NOT_FINITE


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
    lanes = (keys, key_index, key_start, columns, column_index)
    if fmt is not None and not is_plain(fmt):
        return by_numpy.accumulate(*lanes, count, fmt, block, rounding, random, overflow)
    out = np.empty((n, count, rows), np.float32)
    steps = count * -(-rows // LANES) * LANES * d
    if block == 1 and (fmt is None or (rounding == "rne" and overflow == "saturate")):
        grids = grids_of(fmt, d)
        spread(lambda first, last: _nearest(first, last, *lanes, *grids, out), n, steps / _STEPS_PER_NS)
        return out
    mode = {"rne": 0, "rtz": 1, "stochastic": 2}[rounding] if fmt is not None else 3
    spacing = (np.float32(0), np.int32(0), np.float32(0), np.float32(0))
    if fmt is not None:
        smallest = np.float32(fmt.min_normal).view(np.int32)
        ceiling = np.float32(fmt.max_finite if overflow == "saturate" else np.inf)
        spacing = (np.float32(fmt.max_finite), smallest, np.float32(2.0**-fmt.mantissa_bits), ceiling)
    none = frozen(np.zeros(n, np.int64))
    counter = (np.uint64(0), none, none, none, 0)
    if random is not None:
        seed = np.uint64(random.seed & (1 << 64) - 1)
        places = (frozen(x.astype(np.int64, copy=False)) for x in (random.stream, random.query_start, random.key_start))
        counter = (seed, *places, random.site)
    spread(
        lambda first, last: _general(first, last, *lanes, block, mode, spacing, counter, out),
        n,
        steps / _STEPS_PER_NS_GENERAL,
    )
    return out


@kernel
def copy_rows(table: F32, start: int, count: int, into: F32) -> None:
    """Rows start .. +count of `table` [L, d] one after the other; rows outside it are 0."""
    length, d = table.shape
    for i in range(count):
        for t in range(d):
            into[i * d + t] = table[start + i, t] if 0 <= start + i < length else np.float32(0)


@kernel
def _largest_size(values: F32, first: int, last: int, best: Any) -> Any:
    """The larger of `best` and every |value| in first .. last of a flat array, spread over the lanes; NaN is largest."""
    for at in range(first, last - LANES + 1, LANES):
        best = largest(best, load_lanes(values, at))
    if (last - first) % LANES and last - first >= LANES:
        best = largest(best, load_lanes(values, last - LANES))
    elif last - first < LANES:
        few = np.zeros(LANES, np.float32)
        few[: last - first] = values[first:last]
        best = largest(best, load_lanes(few, 0))
    return best


@kernel
def _widest(best: Any, spare: F32) -> Any:
    """The largest of 16 sizes; NaN if one is."""
    store_lanes(spare, 0, best)
    size = np.float32(0)
    for r in range(LANES):
        if not spare[r] <= size:
            size = spare[r]
        if size != size:
            break
    return size


@kernel
def _term(sums: tuple[Any, ...], tile: F32, at: int, d: int, q: Any, grid: tuple[Any, ...]) -> tuple[Any, ...]:
    c0, c1, c2, c3, c4, c5, c6, c7 = sums
    return (
        rounded(plus_product(c0, tile, at, q), grid),
        rounded(plus_product(c1, tile, at + d, q), grid),
        rounded(plus_product(c2, tile, at + 2 * d, q), grid),
        rounded(plus_product(c3, tile, at + 3 * d, q), grid),
        rounded(plus_product(c4, tile, at + 4 * d, q), grid),
        rounded(plus_product(c5, tile, at + 5 * d, q), grid),
        rounded(plus_product(c6, tile, at + 6 * d, q), grid),
        rounded(plus_product(c7, tile, at + 7 * d, q), grid),
    )


@kernel
def _eight(
    tile: F32, at: int, d: int, query: F32, from_row: int, pitch: int, grid: tuple[Any, ...], into: F32, put: int, step: int
) -> None:
    """Sums of eight keys, in registers: that hides the latency of the eight dependent operations of a step."""
    zero = zero_lanes()
    sums = (zero, zero, zero, zero, zero, zero, zero, zero)
    fours = d // 4 * 4
    # The addresses of eight rows are worked out once for four terms.
    for t in range(0, fours, 4):
        sums = _term(sums, tile, at + t, d, load_lanes(query, t * pitch + from_row), grid)
        sums = _term(sums, tile, at + t + 1, d, load_lanes(query, (t + 1) * pitch + from_row), grid)
        sums = _term(sums, tile, at + t + 2, d, load_lanes(query, (t + 2) * pitch + from_row), grid)
        sums = _term(sums, tile, at + t + 3, d, load_lanes(query, (t + 3) * pitch + from_row), grid)
    for t in range(fours, d):
        sums = _term(sums, tile, at + t, d, load_lanes(query, t * pitch + from_row), grid)
    c0, c1, c2, c3, c4, c5, c6, c7 = sums
    store_lanes(into, put, c0)
    store_lanes(into, put + step, c1)
    store_lanes(into, put + 2 * step, c2)
    store_lanes(into, put + 3 * step, c3)
    store_lanes(into, put + 4 * step, c4)
    store_lanes(into, put + 5 * step, c5)
    store_lanes(into, put + 6 * step, c6)
    store_lanes(into, put + 7 * step, c7)


@kernel
def _nearest(
    first: int,
    last: int,
    keys: F32,
    key_index: Ints,
    key_start: Ints,
    columns: F32,
    column_index: Ints,
    grid: tuple[Any, ...],
    quick: tuple[Any, ...],
    limit: float,
    out: F32,
) -> None:
    _, count, rows = out.shape
    d = keys.shape[2]
    padded_count = (count + 7) // 8 * 8
    padded = np.zeros(padded_count * d, np.float32)
    narrow = np.zeros(d * LANES, np.float32)
    spare = np.zeros(8 * LANES, np.float32)
    # Warps of a head share a key tile, so its size is worked out once.
    sizes, known = np.zeros(len(keys), np.float32), np.full(len(keys), _NOWHERE, np.int64)
    key_size = query_size = np.float32(0)
    for a in range(first, last):
        head, start = key_index[a], key_start[a]
        inside = start >= 0 and start + padded_count <= keys.shape[1]
        if not inside:
            copy_rows(keys[head], start, padded_count, padded)
        tile = keys[head].reshape(-1) if inside else padded
        base = start * d if inside else 0
        if len(grid):
            if known[head] != start:
                sizes[head] = _widest(_largest_size(tile, base, base + padded_count * d, zero_lanes()), spare)
                known[head] = start
            key_size = sizes[head]
        for first_row in range(0, rows, LANES):
            width = min(LANES, rows - first_row)
            if width < LANES:
                for t in range(d):
                    for r in range(width):
                        narrow[t * LANES + r] = columns[column_index[a], t, first_row + r]
            query = columns[column_index[a]].reshape(-1) if width == LANES else narrow
            from_row = first_row if width == LANES else 0
            pitch = rows if width == LANES else LANES
            if len(grid):
                best = zero_lanes()
                for t in range(d):
                    best = largest(best, load_lanes(query, t * pitch + from_row))
                query_size = _widest(best, spare)
            near = np.float64(key_size) * np.float64(query_size) <= limit
            for i in range(0, padded_count, 8):
                whole = width == LANES and i + 8 <= count
                into = out[a].reshape(-1) if whole else spare
                put = i * rows + first_row if whole else 0
                step = rows if whole else LANES
                if near:
                    _eight(tile, base + i * d, d, query, from_row, pitch, quick, into, put, step)
                else:
                    _eight(tile, base + i * d, d, query, from_row, pitch, grid, into, put, step)
                if not whole:
                    for k in range(min(8, count - i)):
                        for r in range(width):
                            out[a, i + k, first_row + r] = spare[k * LANES + r]


@kernel
def _philox(seed: np.uint64, c0: int, c1: int, c2: int, c3: int) -> Any:
    # As lampc.numerics.philox.philox, for one position.
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, x2, x3 = np.uint64(c0) & low, np.uint64(c1) & low, np.uint64(c2) & low, np.uint64(c3) & low
    k0, k1 = seed & low, seed >> shift
    for _ in range(10):
        p0 = x0 * np.uint64(0xD2511F53)
        p1 = x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = (p1 >> shift) ^ x1 ^ k0, p1 & low, (p0 >> shift) ^ x3 ^ k1, p0 & low
        k0 = (k0 + np.uint64(0x9E3779B9)) & low
        k1 = (k1 + np.uint64(0xBB67AE85)) & low
    return x0


@kernel
def _round_scalar(x: Any, mode: int, spacing: tuple[Any, ...], word: Any) -> Any:
    largest, smallest, unit, ceiling = spacing
    size = np.float32(abs(x))
    size = np.float32(ceiling if size > ceiling else size)  # NaN stays
    power = np.int32(max(np.int32(size.view(np.int32) & np.int32(0x7F800000)), smallest))
    quantum = power.view(np.float32) * unit
    steps = size / quantum
    whole = np.float32(np.rint(steps) if mode == 0 else np.floor(steps))
    if mode == 2:
        whole += np.float32(1 if word < np.float64(steps - whole) * 4294967296.0 else 0)
    size = np.float32(whole * quantum)
    size = size if size <= largest else np.float32(np.nan)
    return (-size if x < 0 else size) + np.float32(0)


@kernel
def _general(
    first: int,
    last: int,
    keys: F32,
    key_index: Ints,
    key_start: Ints,
    columns: F32,
    column_index: Ints,
    block: int,
    mode: int,
    spacing: tuple[Any, ...],
    counter: tuple[Any, ...],
    out: F32,
) -> None:
    # Blocks of several terms, and the other roundings: plain loops over rows, which vectorise where rows are many.
    _, count, rows = out.shape
    length, d = keys.shape[1], keys.shape[2]
    seed, stream, query_start, first_key, site = counter
    total = np.empty(rows, np.float32)
    word = np.zeros(rows, np.uint64)
    for a in range(first, last):
        query = columns[column_index[a]]
        for i in range(count):
            key = key_start[a] + i
            inside = 0 <= key < length
            c = out[a, i]
            c[:] = 0
            for step in range((d + block - 1) // block):
                total[:] = 0
                for t in range(step * block, min(step * block + block, d)):
                    k = keys[key_index[a], key, t] if inside else np.float32(0)
                    for r in range(rows):
                        total[r] += k * query[t, r]
                if mode == 3:
                    for r in range(rows):
                        c[r] += total[r]
                    continue
                if mode == 2:
                    for r in range(rows):
                        word[r] = _philox(seed, stream[a], query_start[a] + r, first_key[a] + i, step * 4 + site)
                for r in range(rows):
                    c[r] = _round_scalar(c[r] + total[r], mode, spacing, word[r])
