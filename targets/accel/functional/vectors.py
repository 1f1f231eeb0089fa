"""Row vectors, fragments and decisions, in many warps at once (docs/accelerator.md section 2)."""

import numpy as np

from lampc.numerics import kernels
from lampc.numerics.arrays import F32, Bools, Ints
from lampc.numerics.formats import E4M11
from lampc.numerics.masks import live_entries
from lampc.numerics.rounding import round_to
from lampc.targets.accel.decision_log import pack_live, pack_order
from lampc.targets.accel.functional.chunk import Chunk, Handler, bits_of
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import Format


def look_at(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    """Make c.live those of the key tile that `word` names, where they are not already."""
    tile = c.s[word["tile"], at].astype(np.int64)
    stale = c.tile[at] != tile
    if not stale.any():
        return
    at, tile = at[stale], tile[stale]
    c.tile[at] = tile
    config = chunk.config
    keys = config.nk * config.bk
    start = c.query_start(at)
    batch, head = c.batch_and_head(at)
    whole = _all_live(chunk, start, tile * keys)
    c.live[at[whole]] = True
    rest = ~whole
    if rest.any():
        live = live_entries(chunk.rules, batch[rest], head[rest], start[rest], tile[rest] * keys, config.bq, keys)
        c.live[at[rest]] = live.reshape(-1, config.nk, config.bk, config.bq)
    if word["m"] >= 0:
        c.live[at] &= c.t.entries(word["m"], 1)[at] != 0


def _all_live(chunk: Chunk, query_start: Ints, key_start: Ints) -> Bools:
    # The first row's keys end earliest, the last one's begin latest.
    zero = np.zeros_like(query_start)
    _, end = chunk.rules.bounds(zero, query_start)
    first, last_end = chunk.rules.bounds(zero, query_start + chunk.config.bq - 1)
    keys = chunk.config.nk * chunk.config.bk
    return (key_start + keys <= np.minimum(end, last_end)) & (first <= key_start)


def _v_live(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.tile[at] = -1  # the mask tile may be new
    look_at(chunk, c, word, at)
    entries = c.live[at].reshape(len(at), chunk.config.nk, -1)
    some = bits_of(np.logical_or.reduce(entries, axis=2))
    partial = some & ~bits_of(np.logical_and.reduce(entries, axis=2))
    c.p[word["pd"], at], c.p[word["pd2"], at] = some, partial
    chunk.record(pack_live(some, partial), at)


def _v_zero(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.t.fragment(word["o"], c.config.dv)[at] = 0


def _v_scale(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    rows = c.t.fragment(word["o"], c.config.dv)
    rows[at] = rows[at] * c.v[word["va"], at][:, :, None]


def _v_scaleq(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    rows = c.t.fragment(word["q"], c.config.d)
    rows[at] = rows[at] * word.value


def _v_norm(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    rows = c.t.fragment(word["o"], c.config.dv)
    rows[at] = kernels.normalise(rows[at], c.v[word["va"], at])


def _v_mov(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.v[word["vd"], at] = c.v[word["va"], at]


def _v_const(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.v[word["vd"], at] = word.value


def _v_mul(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.v[word["vd"], at] = c.v[word["va"], at] * c.v[word["vb"], at]


def _chosen(c: Contexts, mask: Ints) -> Bools:
    """bool [n, N_k, 1] of masks."""
    return (mask[:, None] >> np.arange(c.config.nk) & 1).astype(np.bool_)[:, :, None]


def _v_vmax(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    tops = np.where(_chosen(c, c.mask(word, at)), c.vectors(word["vb"], at), np.float32(-np.inf))
    c.v[word["vd"], at] = np.maximum(c.v[word["va"], at], tops.max(axis=1))


def _v_trunc(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.v[word["vd"], at] = kernels.truncate(c.v[word["va"], at])


def _v_round(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    values: F32 = c.v[word["va"], at]
    c.v[word["vd"], at] = values if word.format is Format.F32 else round_to(values, E4M11)


def _v_threat(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    tops = np.where(_chosen(c, c.mask(word, at)), c.vectors(word["vb"], at), np.float32(-np.inf))
    order = kernels.threat_order(tops, c.v[word["va"], at])
    c.o[word["order"], at] = order
    chunk.record(pack_order(order), at)


def _v_test(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    position, theta = c.pairs(c.mask(word, at))
    lane = at[position]
    top = c.v[word["vb"] + theta, lane]
    # A live score is never -inf, so a maximum of -inf says that the row has no live entry.
    unsafe = kernels.is_unsafe(top, c.v[word["va"], lane], top != -np.inf, chunk.config.delta)
    found = np.zeros((len(at), chunk.config.nk), np.bool_)
    found[position, theta] = unsafe
    result = bits_of(found)
    c.p[word["pd"], at] = result
    chunk.record(result, at)


def _exp_lambda(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.v[word["vd"], at] = kernels.rescale(c.v[word["va"], at], c.v[word["vb"], at])


def _knap(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    config = chunk.config
    free = c.p[word["pa"], at].astype(np.uint16)
    tie = "first" if config.tie == "first" else "slack"
    keep = kernels.keep_low(c.vectors(word["vb"], at), c.v[word["va"], at], free, config.tau, tie)
    c.p[word["pd"], at] = keep
    chunk.record(keep.astype(np.int64), at)


HANDLERS: dict[str, Handler] = {
    "v.live": _v_live,
    "v.zero": _v_zero,
    "v.scale": _v_scale,
    "v.scaleq": _v_scaleq,
    "v.norm": _v_norm,
    "v.mov": _v_mov,
    "v.const": _v_const,
    "v.mul": _v_mul,
    "v.vmax": _v_vmax,
    "v.trunc": _v_trunc,
    "v.round": _v_round,
    "v.threat": _v_threat,
    "v.test": _v_test,
    "exp.lambda": _exp_lambda,
    "knap": _knap,
}
