"""Loads, stores and the matrix engine, in many contexts at once (docs/accelerator.md section 2)."""

import numpy as np

from lampc.numerics import kernels
from lampc.numerics.arrays import F32, Ints
from lampc.numerics.masks import rows_tile
from lampc.targets.accel.functional.chunk import Chunk, Handler
from lampc.targets.accel.functional.codes import SCORE_FORMATS
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.memory import rows_of
from lampc.targets.accel.functional.scores import exponentials, overflow_of
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import Format


def _slot(c: Contexts, word: Word, at: Ints) -> Ints:
    return c.s[word["ring"], at].astype(np.int64)


def _dma_ld(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    source = chunk.tensors.source(chunk.tensor(word, ("k", "v")))
    tile = c.s[word["tile"], at].astype(np.int64)
    chunk.sram.load(word, source, c.kv_index(at), tile, c.place[at], _slot(c, word, at), c.number[at])


def _dma_ldr(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    chunk.tensor(word, ("q",))
    rows = c.t.fragment(word["q"], c.config.d)
    rows[at] = rows_of(chunk.tensors.q, c.head[at], c.query_start(at), c.config.bq)


def _entries(chunk: Chunk, c: Contexts, word: Word, at: Ints, tensor: str, register: str, width: int) -> None:
    chunk.tensor(word, (tensor,))
    config = chunk.config
    keys = config.nk * config.bk
    batch, head = c.batch_and_head(at)
    start = c.s[word["tile"], at].astype(np.int64) * keys
    tile = rows_tile(chunk.tensors.source(tensor), batch, head, c.query_start(at), start, config.bq, keys)
    c.t.entries(word[register], width)[at] = tile.reshape(-1, config.nk, config.bk, config.bq)


def _dma_ldm(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    _entries(chunk, c, word, at, "mask", "m", 1)


def _dma_ldb(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    _entries(chunk, c, word, at, "bias", "bias", 4)


def _v_ld(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    chunk.tensor(word, ("sinks",))
    _, head = c.batch_and_head(at)
    c.v[word["vd"], at] = chunk.tensors.sinks[head][:, None]


def _dma_st(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    chunk.tensor(word, ("o",))
    config = chunk.config
    query = c.query_start(at)[:, None] + np.arange(config.bq)
    inside = query < config.lq
    head = np.broadcast_to(c.head[at][:, None], query.shape)
    chunk.tensors.output[head[inside], query[inside]] = c.t.fragment(word["o"], config.dv)[at][inside]


def _mx_qk(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    mask = c.mask(word, at)
    keys, index = chunk.sram.tiles(word, c.place[at], _slot(c, word, at), c.number[at])
    queries = c.t.fragment(word["q"], c.config.d)
    whole = mask == c.all_blocks
    config = c.config
    # A whole tile is one item for the kernel, which then brings each query into registers once.
    if whole.any():
        lane = at[whole]
        y = _accumulate(chunk, word, keys, index[whole], np.zeros(len(lane), np.int64), queries, lane, config.nk * config.bk)
        theta = np.tile(np.arange(config.nk), len(lane))
        _keep(chunk, c, word, np.repeat(lane, config.nk), theta, y.reshape(-1, config.bk, config.bq))
    if not whole.all():
        position, theta = c.pairs(np.where(whole, 0, mask))
        lane = at[position]
        y = _accumulate(chunk, word, keys, index[position], theta * config.bk, queries, lane, config.bk)
        _keep(chunk, c, word, lane, theta, y)


def _accumulate(
    chunk: Chunk, word: Word, keys: F32, key_index: Ints, key_start: Ints, queries: F32, lane: Ints, count: int
) -> F32:
    fmt, config = SCORE_FORMATS[word.format].value, chunk.config
    return kernels.accumulate(
        *(keys, key_index, key_start, queries, lane, count, fmt), block=config.accumulate_block, overflow=overflow_of(config)
    )


def _keep(chunk: Chunk, c: Contexts, word: Word, lane: Ints, theta: Ints, y: F32) -> None:
    if not len(lane):
        return
    codes = SCORE_FORMATS[word.format]
    counted = kernels.count_saturated(y, c.live[lane, theta], codes.value, overflow_of(c.config))
    if c.held is not None and word.format is Format.E4M11:
        c.held.add_saturation(lane, *counted)
    else:
        chunk.statistics.add_saturation(codes.name, chunk.query_head(c, lane), *counted)
    c.t.write(word["t"], word.format, lane, theta, codes.encode(y))


def _mx_pv(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    values, index = chunk.sram.tiles(word, c.place[at], _slot(c, word, at), c.number[at])
    e, live = exponentials(c, word, at)
    rows = c.t.fragment(word["o"], c.config.dv)
    ones = np.ones((len(at), c.config.bq), np.float32)
    first = np.zeros(len(at), np.int64)
    whole = rows[at[0] : at[-1] + 1]
    if len(whole) == len(at) and whole.flags.c_contiguous:
        kernels.update_output(whole, ones, e, live, values, index, first, out=whole)
    else:
        rows[at] = kernels.update_output(rows[at], ones, e, live, values, index, first)


HANDLERS: dict[str, Handler] = {
    "dma.ld": _dma_ld,
    "dma.ldr": _dma_ldr,
    "dma.ldm": _dma_ldm,
    "dma.ldb": _dma_ldb,
    "dma.st": _dma_st,
    "v.ld": _v_ld,
    "mx.qk": _mx_qk,
    "mx.pv": _mx_pv,
}
