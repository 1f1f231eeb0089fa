"""
The same program, one context at a time in a random order: slow, to check that results do not depend on the schedule.

Source: docs/accelerator.md sections 3 and 4.
"""

from collections.abc import Callable

import numpy as np

from lampc.errors import InputError
from lampc.targets.accel.functional.chunk import Chunk
from lampc.targets.accel.functional.engine import Scheduler
from lampc.targets.accel.functional.schedule import Stream, deadlock, issue


def random_schedule(seed: int) -> Scheduler:
    """A scheduler that lets one context execute one word, then chooses again."""
    rng = np.random.default_rng(seed)

    def run(chunk: Chunk, streams: tuple[Stream, Stream], barrier_name: Callable[[int], str]) -> None:
        standing = [(stream, context, 0) for stream in streams for context in range(len(stream.contexts))]
        held: list[tuple[Stream, int, int]] = []
        while standing:
            stream, context, index = standing.pop(int(rng.integers(len(standing))))
            if issue(chunk, stream, index, np.array([context], np.int64)):
                standing += [(stream, context, index) for index in stream.ready]
                stream.ready.clear()
                if stream.contexts.words[index].signal >= 0:
                    standing, held = standing + held, []
                    _forget(streams)
            else:
                held.append((stream, context, index))
        if held:
            raise InputError(deadlock(chunk, streams, barrier_name))

    return run


def _forget(streams: tuple[Stream, Stream]) -> None:
    for stream in streams:
        stream.waiting.clear()
