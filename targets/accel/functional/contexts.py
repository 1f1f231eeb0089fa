"""
The contexts of one stream, many at once: who they are and what their registers hold.

A context is a column of every register array; instructions get the columns that execute them. Source: docs/accelerator.md
sections 1 and 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lampc.numerics.arrays import F32, Bools, Ints
from lampc.targets.accel.config import Config
from lampc.targets.accel.functional.counts import Held
from lampc.targets.accel.functional.tiles import TileFile, operand_spans
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import COUNT, Kind, Span


@dataclass
class Contexts:
    """
    n contexts that run `words`.

    head, block, warp  int64 [n]: head index (batch * query heads + query head), thread block, warp (0 in the dma stream)
    place              int64 [n]: the thread block's number in the chunk
    number             int64 [n]: the context's number in its thread block; the DMA context follows the warps
    s, p, v, o         registers: int32 [32, n], int64 [16, n], float32 [vectors, n, b_q], int8 [4, n, N_k]
    live               bool [n, N_k, b_k, b_q]: live entries of the key tile `tile` that v.live saw last; exponentials of other
                       entries take no part in v.xi and mx.pv
    held               counts of the current tile that v.stat may yet drop; None where nothing branches (layout safe)
    """

    config: Config
    words: Sequence[Word]
    head: Ints
    block: Ints
    warp: Ints
    place: Ints
    number: Ints
    s: NDArray[np.int32] = field(init=False)
    p: Ints = field(init=False)
    v: F32 = field(init=False)
    o: NDArray[np.int8] = field(init=False)
    t: TileFile = field(init=False)
    live: Bools = field(init=False)
    tile: Ints = field(init=False)
    held: Held | None = field(init=False)

    def __post_init__(self) -> None:
        c, n = self.config, len(self.head)
        self.s = np.zeros((COUNT[Kind.S], n), np.int32)
        self.p = np.zeros((COUNT[Kind.P], n), np.int64)
        self.p[0] = self.all_blocks
        self.v = np.zeros((_vectors(self.words, c.nk), n, c.bq), np.float32)
        self.o = np.zeros((COUNT[Kind.O], n, c.nk), np.int8)
        self.o[:] = np.arange(c.nk)
        self.t = TileFile(c.geometry, n, operand_spans(self.words, c.geometry))
        with_scores = any(f.kind is Kind.T for word in self.words for f in word.row.fields)
        self.live = np.zeros((n if with_scores else 0, c.nk, c.bk, c.bq), np.bool_)
        self.tile = np.full(n, -1, np.int64)
        self.held = Held.of(n) if c.layout == "compact" and with_scores else None

    def __len__(self) -> int:
        return len(self.head)

    @property
    def all_blocks(self) -> int:
        """The mask of all sub-blocks."""
        return (1 << self.config.nk) - 1

    def query_start(self, at: Ints) -> Ints:
        """First query row of each warp."""
        c = self.config
        return (self.block[at] * c.nq + self.warp[at]) * c.bq

    def batch_and_head(self, at: Ints) -> tuple[Ints, Ints]:
        """Batch item and query head of each context."""
        batch, head = np.divmod(self.head[at], self.config.hq)
        return batch, head

    def kv_index(self, at: Ints) -> Ints:
        """Row of K and V: batch * KV heads + KV head."""
        c = self.config
        batch, head = self.batch_and_head(at)
        return batch * c.hkv + head // (c.hq // c.hkv)

    def mask(self, word: Word, at: Ints) -> Ints:
        """The sub-blocks that a masked instruction works on."""
        return self.p[word.predicate, at]

    def pairs(self, mask: Ints) -> tuple[Ints, Ints]:
        """(position, sub-block) of every set bit of int64 [n] masks, in that order."""
        position, theta = np.nonzero(mask[:, None] >> np.arange(self.config.nk) & 1)
        return position.astype(np.int64, copy=False), theta.astype(np.int64, copy=False)

    def vectors(self, first: int, at: Ints) -> F32:
        """The N_k vectors from `first` on: float32 [n, N_k, b_q]."""
        return np.ascontiguousarray(self.v[first : first + self.config.nk, at].transpose(1, 0, 2))


def _vectors(words: Sequence[Word], sub_blocks: int) -> int:
    """How many vectors a stream names."""
    ends = [
        word[f.name] + (sub_blocks if f.span is Span.NK else 1) for word in words for f in word.row.fields if f.kind is Kind.V
    ]
    return max(ends, default=0)
