"""Scores tiles on the vector unit, the LUT and the SFU, in many warps at once (docs/accelerator.md section 2)."""

from collections.abc import Callable

import numpy as np

from lampc.numerics import kernels
from lampc.numerics.arrays import F32, Bools, Ints
from lampc.numerics.rounding import Overflow
from lampc.targets.accel.config import Config
from lampc.targets.accel.functional.chunk import Chunk, Handler
from lampc.targets.accel.functional.codes import SCORE_FORMATS, Codes, ScoreFormat
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.vectors import look_at
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import Format


class Blocks:
    """The sub-blocks that one execution of a masked instruction works on: sub-block theta[i] of warp lane[i]."""

    def __init__(self, c: Contexts, word: Word, at: Ints):
        position, self.theta = c.pairs(c.mask(word, at))
        self.lane = at[position]
        self.c, self.word = c, word

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def format(self) -> ScoreFormat:
        """The codes of the instruction's format."""
        return SCORE_FORMATS[self.word.format]

    def read(self, name: str = "t") -> Codes:
        """Codes in the tile operand `name`: [n, b_k, b_q]."""
        return self.c.t.read(self.word[name], self.word.format, self.lane, self.theta)

    def values(self, name: str) -> F32:
        """Values in the tile operand `name`."""
        return self.format.decode(self.read(name))

    def write(self, codes: Codes, name: str = "t") -> None:
        """The inverse of `read`."""
        self.c.t.write(self.word[name], self.word.format, self.lane, self.theta, codes)

    def vector(self, name: str) -> F32:
        """The row vector of each sub-block's warp: [n, b_q]."""
        return self.c.v[self.word[name], self.lane]


Blockwise = Callable[[Chunk, Blocks], None]
"""Executes a masked instruction for some sub-blocks, at least one."""


def _skip_empty(work: Blockwise) -> Handler:
    def run(chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
        blocks = Blocks(c, word, at)
        if len(blocks):
            work(chunk, blocks)

    return run


def _mask(chunk: Chunk, blocks: Blocks) -> None:
    c = blocks.c
    look_at(chunk, c, blocks.word, np.unique(blocks.lane))
    codes = blocks.read()
    np.copyto(codes, codes.dtype.type(blocks.format.dead), where=~c.live[blocks.lane, blocks.theta])
    blocks.write(codes)


def _on_logits(change: Callable[[Chunk, Blocks, F32], F32]) -> Blockwise:
    """An instruction that makes new logits of the format from old ones; dead ones stay dead."""

    def run(chunk: Chunk, blocks: Blocks) -> None:
        codes = blocks.read()
        changed = blocks.format.encode(change(chunk, blocks, blocks.format.decode(codes)))
        np.copyto(changed, codes, where=blocks.format.is_dead(codes))
        blocks.write(changed)

    return run


def overflow_of(config: Config) -> Overflow:
    """What the accumulator's formats make of a value beyond their largest finite one."""
    return "nan" if config.overflow == "nan" else "saturate"


def _capped(chunk: Chunk, blocks: Blocks, y: F32) -> F32:
    return kernels.soft_cap(y, chunk.config.cap, blocks.format.value, overflow=overflow_of(chunk.config))


def _biased(chunk: Chunk, blocks: Blocks, y: F32) -> F32:
    bias = blocks.c.t.entries(blocks.word["bias"], 4)[blocks.lane, blocks.theta]
    return kernels.add_bias(y, bias, blocks.format.value, overflow=overflow_of(chunk.config))


def _scaled(_chunk: Chunk, blocks: Blocks, y: F32) -> F32:
    return y * blocks.word.value


def _row_maximum(_chunk: Chunk, blocks: Blocks) -> None:
    codes = blocks.read()
    top = kernels.subblock_max(blocks.format.decode(codes), ~blocks.format.is_dead(codes), 1)
    blocks.c.v[blocks.word["vd"] + blocks.theta, blocks.lane] = top[:, 0]


def _shift(chunk: Chunk, blocks: Blocks) -> None:
    codes, above = blocks.format.shifted(blocks.read(), blocks.vector("va"))
    blocks.write(codes)
    if blocks.c.held is not None and blocks.word.format is not Format.E4M11_SEQ:
        blocks.c.held.add_above_one(blocks.lane, above)
    else:
        chunk.statistics.add_above_one(chunk.query_head(blocks.c, blocks.lane), above)


def _exponential(chunk: Chunk, blocks: Blocks) -> None:
    blocks.write(blocks.format.exponential(blocks.read(), chunk.tables.get(blocks.word.format)))


def _floor(_chunk: Chunk, blocks: Blocks) -> None:
    codes = blocks.read()
    t = blocks.format.decode(codes)
    whole = np.floor(t)
    rest = blocks.format.encode(t - whole)
    np.copyto(rest, codes, where=blocks.format.is_dead(codes))
    blocks.write(blocks.format.encode(whole), "n")
    blocks.write(rest)


def _multiply_add(_chunk: Chunk, blocks: Blocks) -> None:
    acc, t = blocks.values("acc").astype(np.float64), blocks.values("t").astype(np.float64)
    blocks.write(blocks.format.encode((acc * t + blocks.word.value).astype(np.float32)), "acc")


def _load_exponent(_chunk: Chunk, blocks: Blocks) -> None:
    dead = blocks.format.is_dead(blocks.read())
    acc, n = blocks.values("acc").astype(np.float64), blocks.values("n").astype(np.float64)
    scaled = (acc * np.exp2(np.clip(n, -1000, 1000))).astype(np.float32)
    blocks.write(blocks.format.encode(np.where(dead, np.float32(0), scaled)))


def _fill(_chunk: Chunk, blocks: Blocks) -> None:
    shape = (len(blocks), blocks.c.config.bk, blocks.c.config.bq)
    blocks.write(blocks.format.encode(np.full(shape, blocks.word.value, np.float32)))


def exponentials(c: Contexts, word: Word, at: Ints) -> tuple[F32, Bools]:
    """
    E of the tile operand `t` in key order, and which entries take part: those of the sub-blocks in the mask that are live.

    With format MIX the sub-blocks in `hi` are 16 bit. Both [n, N_k*b_k, b_q].
    """
    config = c.config
    mask, high = c.mask(word, at), c.p[word["hi"], at]
    e = np.zeros((len(at), config.nk, config.bk, config.bq), np.float32)
    parts = [(word.format, mask)]
    if word.format is Format.MIX:
        parts = [(Format.E4M3, mask & ~high), (Format.E4M11, mask & high)]
    for fmt, part in parts:
        position, theta = c.pairs(part)
        if len(position):
            values = SCORE_FORMATS[fmt].decode_exponentials(c.t.read(word["t"], fmt, at[position], theta))
            if len(position) == e.shape[0] * e.shape[1]:
                e = values
            else:
                e[position, theta] = values
    live = c.live[at]
    if (mask != c.all_blocks).any():
        live &= (mask[:, None] >> np.arange(config.nk) & 1).astype(np.bool_)[:, :, None, None]
    shape = (len(at), config.nk * config.bk, config.bq)
    return e.reshape(shape), live.reshape(shape)


def _row_sum(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    c.v[word["vd"], at] = kernels.row_sum(c.v[word["va"], at], *exponentials(c, word, at))


def _weights(_chunk: Chunk, c: Contexts, word: Word, at: Ints) -> None:
    xi = kernels.stage2_weights(c.v[word["va"], at], *exponentials(c, word, at), c.config.nk)
    position, theta = c.pairs(c.mask(word, at))
    c.v[word["vd"] + theta, at[position]] = xi[position, theta]


HANDLERS: dict[str, Handler] = {
    "v.mask": _skip_empty(_mask),
    "v.cap": _skip_empty(_on_logits(_capped)),
    "v.bias": _skip_empty(_on_logits(_biased)),
    "v.scalet": _skip_empty(_on_logits(_scaled)),
    "v.rmax": _skip_empty(_row_maximum),
    "v.sub": _skip_empty(_shift),
    "v.floor": _skip_empty(_floor),
    "v.fma": _skip_empty(_multiply_add),
    "v.ldexp": _skip_empty(_load_exponent),
    "v.fill": _skip_empty(_fill),
    "exp.lut": _skip_empty(_exponential),
    "exp.sfu": _skip_empty(_exponential),
    "v.rsum": _row_sum,
    "v.xi": _weights,
}
