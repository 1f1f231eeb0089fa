"""
Tensors in memory and tiles in SRAM, for the thread blocks of one chunk of heads.

Values are held in FP32, which every operand type widens to exactly; the operand type decides bytes, not bits.
Source: docs/accelerator.md sections 1 to 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lampc.errors import InputError
from lampc.numerics.accumulate import gather_rows
from lampc.numerics.arrays import F32, Array, Bools, Ints
from lampc.targets.accel.config import Config
from lampc.targets.accel.functional.sync import AccessOrder, Barriers
from lampc.targets.accel.functional.words import Word


@dataclass(frozen=True)
class Tensors:
    """
    What the descriptors point at.

    q            float32 [batch * query heads, Lq, d]
    k, v         float32 [batch * KV heads, Lk, d or d_v]
    mask, bias   bool and float32 [B|1, H|1, Lq|1, Lk|1]
    sinks        float32 [query heads]
    output       float32 [batch * query heads, Lq, d_v], written
    """

    q: F32
    k: F32
    v: F32
    mask: Bools
    bias: F32
    sinks: F32
    output: F32

    def source(self, tensor: str) -> Array:
        """The tensor of a descriptor's name (q, k, v, o, mask, bias, sinks)."""
        return self.output if tensor == "o" else getattr(self, tensor)


def rows_of(source: F32, index: Ints, start: Ints, count: int) -> F32:
    """source[index, start : start + count] for each of n, float32 [n, count, columns]; rows outside are zero."""
    rows = source.shape[1]
    if not len(start) or start.min() < 0 or start.max() + count > rows:
        return gather_rows(source, index, start, count)
    return source.reshape(-1, source.shape[2])[(index * rows + start)[:, None] + np.arange(count)]


class Sram:
    """
    The rings of tiles of each thread block.

    Raises InputError where a slot does not exist, or where two accesses to a slot are not ordered by barriers.
    """

    def __init__(
        self,
        config: Config,
        places: int,
        slots: Sequence[int],
        widths: Mapping[int, int],
        barriers: Barriers,
        describe: "Describe",
    ):
        self._config = config
        self._barriers = barriers
        self._describe = describe
        contexts = barriers.clock.shape[1]
        rows = config.nk * config.bk
        self._tiles = {buf: np.zeros((places, slots[buf], rows, width), np.float32) for buf, width in widths.items()}
        self._order = {buf: AccessOrder(places, slots[buf], contexts) for buf in widths}

    def load(self, word: Word, source: F32, row: Ints, tile: Ints, place: Ints, slot: Ints, context: Ints) -> None:
        """Copy tile `tile` of source[row] into the slot of each thread block; rows beyond the tensor are zero."""
        buffer = self._checked(word, slot)
        fault = self._order[word["buf"]].write(self._barriers.clock, place, slot, context, word.index)
        self._report(fault, word, "writes", place, slot, context)
        buffer[place, slot] = rows_of(source, row, tile * buffer.shape[2], buffer.shape[2])

    def tiles(self, word: Word, place: Ints, slot: Ints, context: Ints) -> tuple[F32, Ints]:
        """Float32 [all slots, rows, width] and the index of each context's slot in it, about to be read."""
        buffer = self._checked(word, slot)
        empty = self._order[word["buf"]].empty(place, slot)
        if empty.any():
            first = int(np.argmax(empty))
            here = self._describe(int(place[first]), int(context[first]), word.index)
            raise InputError(f"{here} reads slot {int(slot[first])} of buffer {word['buf']} before anything is loaded into it")
        fault = self._order[word["buf"]].read(self._barriers.clock, place, slot, context, word.index)
        self._report(fault, word, "reads", place, slot, context)
        return buffer.reshape(-1, *buffer.shape[2:]), place * buffer.shape[1] + slot

    def _checked(self, word: Word, slot: Ints) -> F32:
        buffer = self._tiles.get(word["buf"])
        if buffer is None:
            raise InputError(f"word {word.index}: {word.mnemonic} uses buffer {word['buf']}, which nothing fills")
        if ((slot < 0) | (slot >= buffer.shape[1])).any():
            raise InputError(f"word {word.index}: {word.mnemonic} names a slot beyond the {buffer.shape[1]} of its buffer")
        return buffer

    def _report(
        self, fault: tuple[int, int, int] | None, word: Word, does: str, place: Ints, slot: Ints, context: Ints
    ) -> None:
        if fault is None:
            return
        at, other, other_word = fault
        here = self._describe(int(place[at]), int(context[at]), word.index)
        there = self._describe(int(place[at]), other, other_word)
        raise InputError(
            f"{here} {does} slot {int(slot[at])} of buffer {word['buf']}, unordered with {there}; "
            "a barrier must stand between them"
        )


class Describe:
    """Names contexts of a chunk in messages: `block 2 of head 0: warp 3 at word 17 (mx.qk.e4m3)`."""

    def __init__(self, head: Ints, block: Ints, warps: int, words: Sequence[Sequence[Word]]):
        self._head, self._block, self._warps, self._words = head, block, warps, words

    def __call__(self, place: int, context: int, word: int) -> str:
        """`context` counts the warps of a block, then its DMA context."""
        warp = context < self._warps
        mnemonic = self._words[0 if warp else 1][word].mnemonic
        who = f"warp {context}" if warp else "dma"
        return f"head {self._head[place]} block {self._block[place]}: {who} at word {word} ({mnemonic})"
