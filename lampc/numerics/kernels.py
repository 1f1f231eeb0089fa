"""
The arithmetic of lampattention.md §4 on many lanes at once: one function per step, two engines with identical bits.

A lane is one warp of `rows` query rows at one tile of `keys` keys; arrays over lanes are [n, keys, rows], contiguous in
rows. The engine is Numba where it can be imported, else NumPy; `set_engine` or the environment variable LAMPC_KERNELS
(`auto`, `numba`, `numpy`) choose. Results are float32; NaN equals NaN whatever its payload; zeros are +0.
"""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lampc.numerics import stages
from lampc.numerics.arrays import F32, Array, Bools, Ints, frozen
from lampc.numerics.engine import Engine, engine, form, set_engine
from lampc.numerics.exponentials import exp_to
from lampc.numerics.formats import FloatFormat
from lampc.numerics.philox import RandomSite
from lampc.numerics.rounding import Overflow, Rounding, check_overflow, is_plain, round_in_place, round_to, truncate
from lampc.numerics.sets import MAX_SUB_BLOCKS, Sets

Tie: TypeAlias = Literal["slack", "first"]

__all__ = [
    "Engine",
    "Tie",
    "accumulate",
    "add_bias",
    "count_above_one",
    "count_saturated",
    "engine",
    "is_unsafe",
    "keep_low",
    "live_rows",
    "merge_blocks",
    "normalise",
    "rescale",
    "row_sum",
    "set_engine",
    "shift_exp",
    "sink_state",
    "soft_cap",
    "stage2_weights",
    "subblock_max",
    "threat_order",
    "truncate",
    "update_output",
]


def _f32(x: npt.ArrayLike) -> F32:
    return frozen(np.asarray(x, np.float32))


def _bools(x: npt.ArrayLike, shape: tuple[int, ...]) -> Bools:
    flags = np.asarray(x, np.bool_)
    return frozen(flags if flags.shape == shape else np.broadcast_to(flags, shape))


def _mask(x: Bools | None, lanes: int) -> Bools:
    return frozen(np.ones((lanes, 1), np.bool_) if x is None else np.asarray(x, np.bool_))


def _ints(x: npt.ArrayLike) -> Ints:
    return frozen(np.asarray(x, np.int64))


def accumulate(
    keys: F32,
    key_index: Ints,
    key_start: Ints,
    queries: F32,
    query_index: Ints,
    count: int,
    fmt: FloatFormat | None,
    *,
    block: int = 1,
    rounding: Rounding = "rne",
    random: RandomSite | None = None,
    overflow: Overflow = "saturate",
) -> F32:
    """
    Key-query products, the running sum rounded to `fmt` after every `block` terms.

    keys         float32 [K, Lk, d]; lane a reads rows key_start[a] .. +count of keys[key_index[a]], rows outside read 0
    queries      float32 [Q, rows, d], already scaled; lane a reads queries[query_index[a]]. Where rows are contiguous
                 (`queries.swapaxes(1, 2)` is) nothing is copied; numpy target and benchmarks keep them so
    fmt          accumulator format; None is plain FP32
    block        terms summed in FP32, from 0 and in order, before each rounded addition (the last may be fewer)
    rounding     `rne`, `rtz`, or `stochastic`, which needs `random`: the step is the number of the rounded addition
    overflow     `saturate`, or `nan`: what rounds beyond the largest finite value is NaN, and so stays
    returns      float32 [n, count, rows]: c = 0; for t ascending c = round(f32(c + f32(k*q))), never fused

    Raises ValueError if d differs, `fmt` is unsigned, `block` < 1, `random` is missing, or sums
    overflow to a NaN that `fmt` has not. lampattention.md §4.2.
    """
    if keys.shape[2] != queries.shape[2]:
        raise ValueError(f"keys have {keys.shape[2]} elements, queries {queries.shape[2]}")
    if fmt is not None and not fmt.signed:
        raise ValueError(f"format {fmt.name} is unsigned and cannot accumulate")
    check_overflow(fmt, overflow)
    if block < 1:
        raise ValueError("accumulate_block is at least 1")
    if rounding == "stochastic" and random is None:
        raise ValueError("stochastic rounding needs a random site")
    columns, column_index = np.swapaxes(queries, 1, 2), _ints(query_index)
    if not columns.flags.c_contiguous and len(column_index) < len(columns):
        columns, column_index = columns[column_index], _ints(np.arange(len(column_index)))
    args = (_f32(keys), _ints(key_index), _ints(key_start), _f32(columns), column_index)
    with np.errstate(all="ignore"):
        return form("accumulate").accumulate(*args, count, fmt, block, rounding, random, overflow)


def soft_cap(
    y: F32,
    cap: float,
    fmt: FloatFormat | None,
    *,
    rounding: Rounding = "rne",
    random: RandomSite | None = None,
    overflow: Overflow = "saturate",
) -> F32:
    """
    round(f32(cap * tanh(y / cap))) of float32 [n, keys, rows], in float64 up to the rounding to FP32.

    `cap` is rounded to FP32 first; `fmt` None stops at FP32; `overflow` as in `accumulate`. lampattention.md §4.3.
    """
    size = np.float64(np.float32(cap))
    with np.errstate(all="ignore"):
        return _to_format((size * np.tanh(y / size)).astype(np.float32), fmt, rounding, random, overflow)


def add_bias(
    y: F32,
    bias: F32,
    fmt: FloatFormat | None,
    *,
    rounding: Rounding = "rne",
    random: RandomSite | None = None,
    overflow: Overflow = "saturate",
) -> F32:
    """
    round(f32(y + bias)) of float32 [n, keys, rows] and a bias that broadcasts to it; `fmt` None: FP32. lampattention.md §4.3.

    `overflow` as in `accumulate`.
    """
    with np.errstate(all="ignore"):
        return _to_format(_f32(y) + _f32(bias), fmt, rounding, random, overflow)


def _to_format(x: F32, fmt: FloatFormat | None, rounding: Rounding, random: RandomSite | None, overflow: Overflow) -> F32:
    check_overflow(fmt, overflow)
    if fmt is None:
        return x + np.float32(0)
    if rounding == "rne" and overflow == "saturate" and is_plain(fmt):
        round_in_place(x, fmt)
        return x
    words = random.words(x.shape[1], x.shape[2]) if random is not None else None
    return round_to(x, fmt, rounding, words, overflow=overflow)


def subblock_max(y: F32, live: Bools, nk: int) -> F32:
    """
    Largest live entry of each of `nk` equal sub-blocks, per row.

    y, live  [n, keys, rows]; keys is a multiple of nk
    returns  float32 [n, nk, rows]: -inf where nothing is live, NaN where a live entry is NaN. lampattention.md §4.4.
    """
    if nk < 1 or y.shape[1] % nk:
        raise ValueError(f"{y.shape[1]} keys are not {nk} equal sub-blocks")
    return form("stages").subblock_max(_f32(y), _bools(live, y.shape), nk)


def threat_order(top: F32, mu: F32) -> npt.NDArray[np.int8]:
    """
    Sub-blocks by threat, most threatening first.

    top      float32 [n, nk, rows] of `subblock_max`
    mu       float32 [n, rows], running maximum at tile entry
    returns  int8 [n, nk]: sorted by max over rows of f32(top - mu), descending, stable; rows whose top is -inf do
             not contribute, mu = -inf gives +inf, NaN sorts as +inf. lampattention.md §4.4.
    """
    with np.errstate(all="ignore"):
        return stages.threat_order(_f32(top), _f32(mu))


def is_unsafe(ymax: F32, muh: F32, any_live: Bools, delta: float) -> Bools:
    """
    Stage 1's test of one sub-block per lane.

    ymax, muh  float32 [n, rows]: the sub-block's maxima and the maximum so far; any_live bool [n, rows]
    delta      safety margin, rounded to FP32
    returns    bool [n]: true unless muh > f32(ymax + f32(|muh| * delta)) in every row with a live entry (so NaN and
               muh = -inf are not safe). lampattention.md §4.5.
    """
    with np.errstate(all="ignore"):
        return stages.is_unsafe(_f32(ymax), _f32(muh), _bools(any_live, ymax.shape), np.float32(delta))


def shift_exp(
    y: F32,
    live: Bools,
    m: F32,
    shift_fmt: FloatFormat | None,
    exp_fmt: FloatFormat | None,
    *,
    clamp: bool,
    mask: Bools | None = None,
    out: F32 | None = None,
) -> F32:
    """
    Exponentials of shifted logits: s = round(f32(m - y)) to `shift_fmt`, E = round(exp(-s)) to `exp_fmt`; dead: 0.

    y, live  [n, keys, rows]; m float32 [n, rows]
    formats  both None: FP32, E = f32(exp64(f32(y - m)))
    mask     bool [n, nk]: entries of the other sub-blocks count as dead; None: all take part
    clamp    a negative s becomes 0 (E = 1); without it s keeps its sign, which needs FP32's exponent range
    out      exponentials [n, keys, rows], contiguous, whose sub-blocks in `mask` are replaced and the others kept; None: an
             array of its own

    Raises ValueError for `clamp=False` with a bounded shift format. lampattention.md §4.6.
    """
    if not clamp and shift_fmt is not None and shift_fmt.min_exponent != -126:
        raise ValueError(f"shift format {shift_fmt.name} has no negative values; clamp them")
    with np.errstate(all="ignore"):
        args = (_f32(y), _bools(live, y.shape), _mask(mask, len(y)), _f32(m))
        return form("stages").shift_exp(*args, shift_fmt, exp_fmt, clamp, out)


def row_sum(start: F32, e: F32, live: Bools) -> F32:
    """`start` [n, rows] plus the live entries of e [n, keys, rows], in FP32, in key order. lampattention.md §4.7."""
    with np.errstate(all="ignore"):
        return form("output").row_sum(_f32(start), _f32(e), _bools(live, e.shape))


def stage2_weights(omegah: F32, e: F32, live: Bools, nk: int) -> F32:
    """
    xi [n, nk, rows]: per sub-block and row the sum, in key order from 0, of f32(f32(omegah - E) * E) over live entries.

    omegah float32 [n, rows]; e, live [n, keys, rows]. lampattention.md §4.8.
    """
    if nk < 1 or e.shape[1] % nk:
        raise ValueError(f"{e.shape[1]} keys are not {nk} equal sub-blocks")
    with np.errstate(all="ignore"):
        return form("stages").stage2_weights(_f32(omegah), _f32(e), _bools(live, e.shape), nk)


def keep_low(xi: F32, omegah: F32, free: Sets, tau: float, tie: Tie = "slack") -> Sets:
    """
    Stage 2's choice: which sub-blocks stay low.

    xi       float32 [n, nk, rows] of `stage2_weights`, nk at most `sets.MAX_SUB_BLOCKS`
    omegah   float32 [n, rows]
    free     uint16 [n]: bit theta is set for a live sub-block not recomputed yet
    tau      threshold, rounded to FP32; 1 or more keeps everything
    returns  uint16 [n], a largest subset of `free` with, in every row that is not NaN, sum of xi <= f32(tau * omegah^2);
             among the largest, by `tie`. 0 where no set is feasible. lampattention.md §4.8.

    Raises ValueError for more sub-blocks.
    """
    if xi.shape[1] > MAX_SUB_BLOCKS:
        raise ValueError(f"stage 2 takes at most {MAX_SUB_BLOCKS} sub-blocks, not {xi.shape[1]}")
    bits = frozen(np.asarray(free, np.uint16))
    with np.errstate(all="ignore"):
        return form("stages").keep_low(_f32(xi), _f32(omegah), bits, np.float32(tau), tie)


def rescale(mu: F32, muh: F32) -> F32:
    """lambda = f32(exp(mu - muh)), difference and exp in float64; 0 where mu = -inf. lampattention.md §4.7."""
    with np.errstate(all="ignore"):
        factor = np.exp(np.asarray(mu, np.float64) - np.asarray(muh, np.float64)).astype(np.float32)
    return np.where(np.isneginf(mu), np.float32(0), factor)


def sink_state(sinks: F32, fmt: FloatFormat | None) -> tuple[F32, F32]:
    """
    Running maximum and sum that a sink logit starts: mu = round(sink), omega = f32(exp(sink - mu)) in float64.

    `fmt` is the high accumulator's; None (policy fp32) keeps the sink. A sink of -inf is no sink. lampattention.md §3.
    """
    sink = _f32(sinks)
    mu = sink.copy() if fmt is None else round_to(sink, fmt)
    with np.errstate(all="ignore"):
        omega = exp_to(mu.astype(np.float64) - sink, None)
    return mu, np.where(np.isneginf(sink), np.float32(0), omega)


def update_output(
    acc: F32,
    scale: F32,
    e: F32,
    live: Bools,
    values: F32,
    value_index: Ints,
    key_start: Ints,
    *,
    out: F32 | None = None,
) -> F32:
    """
    The output after one tile: f32(acc * scale), then for keys in order f32(acc + f32(E * V)) over live entries.

    acc      float32 [n, rows, dv]; scale float32 [n, rows]; e, live [n, keys, rows]
    values   float32 [V, Lk, dv]; lane a reads rows key_start[a] .. +keys of values[value_index[a]]
    out      where to put the result, contiguous; it may be `acc`. None: an array of its own
    returns  float32 [n, rows, dv]; dead entries take no part. lampattention.md §4.9.
    """
    if acc.shape[2] != values.shape[2]:
        raise ValueError(f"output rows have {acc.shape[2]} elements, values {values.shape[2]}")
    args = (_f32(acc), _f32(scale), _f32(e), _bools(live, e.shape), _f32(values), _ints(value_index), _ints(key_start))
    with np.errstate(all="ignore"):
        return form("output").update_output(*args, np.empty(acc.shape, np.float32) if out is None else out)


def normalise(acc: F32, omega: F32) -> F32:
    """f32(acc / omega) of [..., rows, dv] and [..., rows]; 0 where omega = 0 (nothing live). lampattention.md §4."""
    with np.errstate(all="ignore"):
        return np.where(omega[..., None] == 0, np.float32(0), _f32(acc) / _f32(omega)[..., None])


def count_above_one(y: F32, live: Bools, muh: F32, mask: Bools | None = None) -> Ints:
    """
    int64 [n]: live entries of y [n, keys, rows] with f32(muh - y) < 0, before rounding; `mask` [n, nk] as in `shift_exp`.

    lampattention.md §4.8.
    """
    with np.errstate(all="ignore"):
        return form("stages").count_above_one(_f32(y), _bools(live, y.shape), _mask(mask, len(y)), _f32(muh))


def count_saturated(y: F32, live: Bools, fmt: FloatFormat | None, overflow: Overflow = "saturate") -> tuple[Ints, F32]:
    """
    How often accumulators [n, keys, rows] ended at the largest finite value, and how large they grew.

    `y` as `accumulate` returned it, before cap and bias; `fmt` None (FP32) never saturates. With `overflow = nan` those that
    ended as NaN are counted instead, be it by an overflow or by a NaN among the operands.
    returns  int64 [n] counts and float32 [n] largest |y| over live entries, 0 if there is none; NaN counts for neither
             otherwise. lampattention.md §6.
    """
    top = np.float32(np.nan if fmt is None else fmt.max_finite)
    alive = _bools(live, y.shape)
    counts, largest = form("stages").count_saturated(_f32(y), alive, top)
    if fmt is not None and overflow == "nan":
        counts = np.count_nonzero(np.isnan(y) & alive, axis=(1, 2)).astype(np.int64)
    return counts, largest


def live_rows(live: Bools, nk: int) -> Bools:
    """bool [n, nk, rows]: whether a row has a live entry in each of `nk` equal sub-blocks; live bool [n, keys, rows]."""
    return form("stages").live_rows(_bools(live, live.shape), nk)


def merge_blocks(low: Array, high: Array, mask: Bools) -> Array:
    """The sub-blocks of `high` where mask [n, nk] is true, those of `low` elsewhere; both [n, keys, rows], of one type."""
    return form("stages").merge_blocks(frozen(low), frozen(high), _bools(mask, mask.shape))
