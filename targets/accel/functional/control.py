"""Scalars, sub-block masks and branches, in many contexts at once (docs/accelerator.md section 2)."""

from collections.abc import Callable

import numpy as np

from lampc.numerics.arrays import Bools, Ints
from lampc.numerics.formats import E4M11
from lampc.targets.accel.functional.chunk import Branch, Chunk, Handler, bits_of
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.key_tiles import key_range, tile_at


def _nothing(_chunk: Chunk, _c: Contexts, _word: Word, _at: Ints) -> None:
    pass


def _s_id(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    for offset, values in enumerate((c.head[at], c.kv_index(at), c.block[at], c.warp[at])):
        c.s[word["sd"] + offset, at] = values


def _s_mov(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.s[word["sd"], at] = word["imm"]


def _s_add(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.s[word["sd"], at] = c.s[word["sa"], at] + np.int32(word["imm"])


def _s_ring(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    ring = word["ring"]
    slot = c.s[ring, at] + np.int32(1)
    wrapped = slot == word["imm"]
    c.s[ring, at] = np.where(wrapped, 0, slot)
    c.s[ring + 1, at] ^= wrapped.astype(np.int32)


def _s_range(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.s[word["sd"], at], c.s[word["sd"] + 1, at] = key_range(c.config, c.block[at])


def _s_tile(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    first, count, position = (c.s[register, at].astype(np.int64) for register in (word["range"], word["range"] + 1, word["sa"]))
    c.s[word["sd"], at] = tile_at(c.config, first, count, position)


def _p_mov(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.p[word["pd"], at] = c.p[word["pa"], at]


def _p_binary(combine: Callable[[Ints, Ints], Ints]) -> Handler:
    def run(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
        c.p[word["pd"], at] = combine(c.p[word["pa"], at], c.p[word["pb"], at])

    return run


def _p_const(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.p[word["pd"], at] = word["imm"] & c.all_blocks


def _p_cnt(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.s[word["sd"], at] = np.bitwise_count(c.p[word["pa"], at])


def _p_next(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    mask = c.p[word["pa"], at]
    order = c.o[word["order"], at].astype(np.int64)
    members = mask[:, None] >> order & 1
    first = order[np.arange(len(at)), members.argmax(axis=1)]
    c.p[word["pd"], at] = np.where(mask != 0, 1 << first, 0)


def _p_after(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    order = c.o[word["order"], at].astype(np.int64)
    passed = (c.p[word["pb"], at][:, None] >> order & 1).astype(np.bool_)
    # Positions from which on nothing of pb is left.
    later = ~np.logical_or.accumulate(passed[:, ::-1], axis=1)[:, ::-1]
    kept = np.zeros((len(at), c.config.nk), np.bool_)
    np.put_along_axis(kept, order, later, axis=1)
    c.p[word["pd"], at] = c.p[word["pa"], at] & bits_of(kept)


def _v_stat(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    first, second = c.p[word["pa"], at], c.p[word["pb"], at]
    stage1, final = np.bitwise_count(first), np.bitwise_count(first | second)
    if c.held is not None:
        stage1, final = np.minimum(stage1, 2), np.minimum(final, 2)
        whole = at[final < 2]
        c.held.settle(chunk.statistics, E4M11.name, at, whole, chunk.query_head(c, whole))
    chunk.statistics.add_tiles(chunk.query_head(c, at), stage1, final)


def _always(_c: Contexts, _word: Word, at: Ints) -> Bools:
    return np.ones(len(at), np.bool_)


def _empty(c: Contexts, word: Word, at: Ints) -> Bools:
    return c.p[word["pa"], at] == 0


def _some(c: Contexts, word: Word, at: Ints) -> Bools:
    return c.p[word["pa"], at] != 0


def _zero(c: Contexts, word: Word, at: Ints) -> Bools:
    return c.s[word["sa"], at] == 0


def _at_least(c: Contexts, word: Word, at: Ints) -> Bools:
    return c.s[word["sa"], at] >= word["imm"]


def _count_down(c: Contexts, word: Word, at: Ints) -> Bools:
    c.s[word["sd"], at] -= np.int32(1)
    return c.s[word["sd"], at] > 0


HANDLERS: dict[str, Handler] = {
    "mark": _nothing,
    "bar.wait": _nothing,
    "bar.arrive": _nothing,
    "s.id": _s_id,
    "s.mov": _s_mov,
    "s.add": _s_add,
    "s.ring": _s_ring,
    "s.range": _s_range,
    "s.tile": _s_tile,
    "p.mov": _p_mov,
    "p.and": _p_binary(np.bitwise_and),
    "p.or": _p_binary(np.bitwise_or),
    "p.andn": _p_binary(lambda a, b: a & ~b),
    "p.const": _p_const,
    "p.cnt": _p_cnt,
    "p.next": _p_next,
    "p.after": _p_after,
    "v.stat": _v_stat,
}

BRANCHES: dict[str, Branch] = {
    "br": _always,
    "br.z": _empty,
    "br.nz": _some,
    "br.sz": _zero,
    "br.ge": _at_least,
    "loop": _count_down,
}
