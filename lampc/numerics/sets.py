"""Sets of a tile's sub-blocks as numbers: bit theta stands for sub-block theta (lampattention.md §4.8)."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lampc.numerics.arrays import Bools, Ints

Sets: TypeAlias = npt.NDArray[np.uint16]

MAX_SUB_BLOCKS = 16
"""Stage 2 may have to look at every one of the 2^N_k sets of a tile: 65,536 here, twice that for each sub-block more."""


def pack(members: Bools) -> Sets:
    """uint16 [n] of bool [n, at most MAX_SUB_BLOCKS]."""
    places: Ints = np.arange(members.shape[1], dtype=np.int64)
    return np.where(members, np.left_shift(1, places), 0).sum(axis=1).astype(np.uint16)


def unpack(sets: Sets, sub_blocks: int) -> Bools:
    """bool [n, sub_blocks] of uint16 [n]."""
    return (sets[:, None] >> np.arange(sub_blocks) & 1).astype(np.bool_)
