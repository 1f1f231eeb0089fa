"""What the contexts of one chunk of heads share while they run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lampc.errors import InputError
from lampc.numerics.arrays import Bools, Ints
from lampc.numerics.masks import Liveness
from lampc.numerics.statistics import Statistics
from lampc.targets.accel.config import Config
from lampc.targets.accel.decision_log import LogRecorder
from lampc.targets.accel.functional.codes import Codes
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.memory import Sram, Tensors
from lampc.targets.accel.functional.sync import Barriers
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import Format


@dataclass
class Chunk:
    """
    config       of the program
    rules        the structured part of liveness
    descriptors  name of the tensor behind each descriptor
    tables       exponentials of 8-bit and 16-bit shifts by header format; FP32 has none
    issued       per mnemonic: how many contexts issued it; `skipped`: those that skip0 retired
    """

    config: Config
    rules: Liveness
    descriptors: Mapping[int, str]
    tensors: Tensors
    tables: Mapping[Format, Codes]
    barriers: Barriers
    sram: Sram
    statistics: Statistics
    log: LogRecorder
    issued: dict[str, int] = field(default_factory=dict[str, int])
    skipped: dict[str, int] = field(default_factory=dict[str, int])

    def tensor(self, word: Word, allowed: tuple[str, ...]) -> str:
        """The tensor an instruction's descriptor names; InputError if the instruction cannot take it."""
        name = self.descriptors.get(word["desc"], "nothing")
        if name not in allowed:
            raise InputError(f"word {word.index}: {word.mnemonic} takes {' or '.join(allowed)}, descriptor names {name}")
        return name

    def record(self, values: Ints, at: Ints) -> None:
        """Log one value of each warp in `at`."""
        self.log.add(at, values)

    def query_head(self, contexts: Contexts, at: Ints) -> Ints:
        """Query head of each context: where statistics count it."""
        return contexts.head[at] % self.config.hq


Handler = Callable[[Chunk, Contexts, Word, Ints], None]
"""Executes a word for the contexts at int64 [n], ascending."""
Branch = Callable[[Contexts, Word, Ints], Bools]
"""Whether each context takes the branch."""


def bits_of(chosen: Bools) -> Ints:
    """Masks of bool [n, N_k]."""
    bits: Ints = np.left_shift(1, np.arange(chosen.shape[1], dtype=np.int64))
    return np.where(chosen, bits, 0).sum(axis=1)
