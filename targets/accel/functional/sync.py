"""
Phase barriers of many thread blocks at once, and the happens-before order that they make.

A phase completes when the expected number of arrivals has come; waiting for a parity passes when the last completed phase has
it, so a fresh barrier lets parity 1 pass. Every context keeps a vector clock; a barrier carries the clocks of those that
arrived to those that waited. Source: docs/accelerator.md section 3.
"""

from collections.abc import Sequence

import numpy as np

from lampc.numerics.arrays import Bools, Ints


class Barriers:
    """
    Barriers of `places` thread blocks of `contexts` contexts each; `expected` arrivals complete a phase.

    Arguments of the methods are int64 [n]: the thread block, the barrier, and the context's number in its block.
    """

    def __init__(self, places: int, contexts: int, expected: Sequence[int]):
        self.expected = np.array(expected, np.int64)
        self.arrived = np.zeros((places, len(expected)), np.int64)
        self.phase = np.zeros((places, len(expected)), np.int64)
        self.clock = np.zeros((places, contexts, contexts), np.int64)
        self.clock[:, np.arange(contexts), np.arange(contexts)] = 1
        self._gathered = np.zeros((places, len(expected), contexts), np.int64)
        self._released = np.zeros((places, len(expected), 2, contexts), np.int64)

    def passes(self, place: Ints, barrier: Ints, parity: Ints) -> Bools:
        """Whether a wait for `parity` passes now."""
        return (self.phase[place, barrier] & 1) != parity

    def join(self, place: Ints, barrier: Ints, parity: Ints, context: Ints) -> None:
        """A wait has passed: what happened before the phase's arrivals happened before what the context does next."""
        self.clock[place, context] = np.maximum(self.clock[place, context], self._released[place, barrier, parity])

    def arrive(self, place: Ints, barrier: Ints, context: Ints) -> None:
        """Arrivals, of different contexts."""
        np.maximum.at(self._gathered, (place, barrier), self.clock[place, context])
        self.clock[place, context, context] += 1
        np.add.at(self.arrived, (place, barrier), 1)
        done = self.arrived[place, barrier] >= self.expected[barrier]
        if not done.any():
            return
        at = np.unique(np.stack([place[done], barrier[done]]), axis=1)
        completed = (at[0], at[1])
        self._released[at[0], at[1], self.phase[completed] & 1] = self._gathered[completed]
        self._gathered[completed] = 0
        self.phase[completed] += 1
        self.arrived[completed] -= self.expected[at[1]]


class AccessOrder:
    """
    Checks that accesses to the slots of one SRAM buffer are ordered by barriers.

    Every write must come after all earlier reads and the last write, every read after the last write.
    """

    def __init__(self, places: int, slots: int, contexts: int):
        self._read = np.zeros((places, slots, contexts), np.int64)
        self._read_word = np.zeros((places, slots, contexts), np.int64)
        self._writer = np.zeros((places, slots), np.int64)
        self._write = np.zeros((places, slots), np.int64)
        self._write_word = np.zeros((places, slots), np.int64)

    def empty(self, place: Ints, slot: Ints) -> Bools:
        """Which slots nothing has been written to."""
        return self._write[place, slot] == 0

    def read(self, clock: Ints, place: Ints, slot: Ints, context: Ints, word: int) -> tuple[int, int, int] | None:
        """Note reads; (position, other context, its word) of the first one that no barrier orders after the last write."""
        writer = self._writer[place, slot]
        unordered = self._write[place, slot] > clock[place, context, writer]
        self._read[place, slot, context] = clock[place, context, context]
        self._read_word[place, slot, context] = word
        if not unordered.any():
            return None
        first = int(np.argmax(unordered))
        return first, int(writer[first]), int(self._write_word[place[first], slot[first]])

    def write(self, clock: Ints, place: Ints, slot: Ints, context: Ints, word: int) -> tuple[int, int, int] | None:
        """Note writes; (position, other context, its word) of the first that is not ordered after an earlier access."""
        seen = clock[place, context]
        late = self._read[place, slot] > seen
        writer = self._writer[place, slot]
        rewrite = self._write[place, slot] > np.take_along_axis(seen, writer[:, None], axis=1)[:, 0]
        word_before = self._write_word[place, slot]
        self._writer[place, slot] = context
        self._write[place, slot] = clock[place, context, context]
        self._write_word[place, slot] = word
        unordered = late.any(axis=1) | rewrite
        if not unordered.any():
            return None
        first = int(np.argmax(unordered))
        if rewrite[first]:
            return first, int(writer[first]), int(word_before[first])
        other = int(np.argmax(late[first]))
        return first, other, int(self._read_word[place[first], slot[first], other])
