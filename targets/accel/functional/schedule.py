"""
Running the contexts of a chunk: SIMT, many contexts at one word.

Of the contexts of a stream that can run, those with the lowest program counter go first and together: contexts that a branch
has parted meet again behind it. Those that a barrier holds back wait until its phase completes. The two streams take turns.
Results do not depend on this order; `reference.py` takes others. Source: docs/accelerator.md sections 3 and 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lampc.errors import InputError, printable
from lampc.numerics.arrays import Ints
from lampc.targets.accel.functional import control, scores, transfers, vectors
from lampc.targets.accel.functional.chunk import Chunk, Handler
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.words import Word

HANDLERS: dict[str, Handler] = {**control.HANDLERS, **vectors.HANDLERS, **scores.HANDLERS, **transfers.HANDLERS}
MAX_WORDS = 1 << 24
"""More words than this at one go are taken for an endless loop."""


@dataclass
class Stream:
    """
    The contexts of one stream and where they stand.

    ready    word index: contexts that stand there and may run, as arrays of ascending context numbers
    waiting  word index and contexts that its barrier holds back
    """

    contexts: Contexts
    ready: dict[int, list[Ints]] = field(default_factory=dict[int, list[Ints]])
    waiting: list[tuple[int, Ints]] = field(default_factory=list[tuple[int, Ints]])

    def put(self, index: int, at: Ints) -> None:
        """Contexts `at` go on at word `index`."""
        if len(at):
            self.ready.setdefault(index, []).append(at)

    def take(self) -> tuple[int, Ints]:
        """The contexts at the lowest word that any stands at."""
        index = min(self.ready)
        parts = self.ready.pop(index)
        return index, parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    def wake(self) -> None:
        """Let those that wait look at their barriers again."""
        waiting, self.waiting = self.waiting, []
        for index, at in waiting:
            self.put(index, at)


def issue(chunk: Chunk, stream: Stream, index: int, at: Ints) -> bool:
    """Execute word `index` for contexts `at`, but for those whose barrier is not ready; False if that is all of them."""
    c = stream.contexts
    word = c.words[index]
    if word.wait >= 0:
        place, barrier, parity = c.place[at], _barrier(c, word, word.wait, at), _parity(c, word, at)
        passes = chunk.barriers.passes(place, barrier, parity)
        if not passes.all():
            stream.waiting.append((index, at[~passes]))
            at, place, barrier, parity = at[passes], place[passes], barrier[passes], parity[passes]
            if not len(at):
                return False
        chunk.barriers.join(place, barrier, parity, c.number[at])
    name = word.row.name
    chunk.issued[word.mnemonic] = chunk.issued.get(word.mnemonic, 0) + len(at)
    if name in control.BRANCHES:
        taken = control.BRANCHES[name](c, word, at)
        stream.put(word["target"], at[taken])
        stream.put(index + 1, at[~taken])
        return True
    if name == "halt":
        return True
    if word.skip0:
        empty = int(np.count_nonzero(c.mask(word, at) == 0))
        chunk.skipped[word.mnemonic] = chunk.skipped.get(word.mnemonic, 0) + empty
    HANDLERS[name](chunk, c, word, at)
    if word.signal >= 0:
        chunk.barriers.arrive(c.place[at], _barrier(c, word, word.signal, at), c.number[at])
    stream.put(index + 1, at)
    return True


def _barrier(c: Contexts, word: Word, first: int, at: Ints) -> Ints:
    barrier = first + c.s[word["ring"], at].astype(np.int64)
    if ((barrier < 0) | (barrier >= 32)).any():
        raise InputError(f"word {word.index}: {word.mnemonic} names a barrier that does not exist")
    return barrier


def _parity(c: Contexts, word: Word, at: Ints) -> Ints:
    return ((c.s[word["ring"] + 1, at] ^ word.xor) & 1).astype(np.int64)


def start(streams: tuple[Stream, Stream]) -> None:
    """Put every context at its first word."""
    for stream in streams:
        stream.put(0, np.arange(len(stream.contexts), dtype=np.int64))


def run_chunk(chunk: Chunk, streams: tuple[Stream, Stream], barrier_name: Callable[[int], str]) -> None:
    """Run all contexts to their halt. Raises InputError for a deadlock, which it explains, or what does not end."""
    start(streams)
    words = 0
    while any(stream.ready or stream.waiting for stream in streams):
        progress = False
        for stream in streams:
            stream.wake()
            while stream.ready:
                progress |= issue(chunk, stream, *stream.take())
                words += 1
                if words > MAX_WORDS:
                    raise InputError(f"the program has not ended after {MAX_WORDS} instructions; does a loop never leave?")
        if not progress:
            raise InputError(deadlock(chunk, streams, barrier_name))


def deadlock(chunk: Chunk, streams: tuple[Stream, Stream], barrier_name: Callable[[int], str], limit: int = 8) -> str:
    """Who waits on what, the first `limit` contexts of it."""
    waits: list[str] = []
    for number, stream in enumerate(streams):
        c = stream.contexts
        for index, contexts in stream.waiting:
            word = c.words[index]
            for i in contexts[:limit]:
                at = np.array([i])
                place, barrier = int(c.place[i]), int(_barrier(c, word, word.wait, at)[0])
                who = "dma" if number else f"warp {c.warp[i]}"
                phase, arrived = chunk.barriers.phase[place, barrier], chunk.barriers.arrived[place, barrier]
                waits.append(
                    f"head {c.head[i]} block {c.block[i]} {who} waits at word {index} ({word.mnemonic}) for barrier "
                    f"{printable(barrier_name(barrier), 40)} parity {int(_parity(c, word, at)[0])}, which is in phase {phase} "
                    f"with {arrived} of {chunk.barriers.expected[barrier]} arrived"
                )
    waiting = sum(len(contexts) for stream in streams for _, contexts in stream.waiting)
    more = f"; and {waiting - limit} more" if waiting > limit else ""
    return "the program is in deadlock: " + "; ".join(waits[:limit]) + more
