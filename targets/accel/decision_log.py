"""
What a run decided: all that its timing depends on beside the program itself.

Every execution of a logged instruction (`isa.TABLE`: v.live, v.threat, v.test, knap) puts one 64-bit value into the log of
its warp. With these, and by executing the scalar and mask instructions, the timing engine follows every branch; it must
take each lane's values exactly. Source: docs/accelerator.md section 4.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lampc.errors import InputError, printable

Ints = NDArray[np.int64]

ORDER_BITS = 4
"""Width of one sub-block in a logged order."""
PARTIAL_SHIFT = 16
"""v.live logs its first mask, and above this bit its second."""
FORMAT = "lampc decision log 2"


def pack_live(live: Ints, partial: Ints) -> Ints:
    """The logged value of v.live."""
    return live | partial << PARTIAL_SHIFT


def unpack_live(value: int) -> tuple[int, int]:
    """(sub-blocks with a live entry, those with live and dead ones) of a logged v.live."""
    return value & ((1 << PARTIAL_SHIFT) - 1), value >> PARTIAL_SHIFT


def pack_order(order: NDArray[np.int8]) -> Ints:
    """The logged value of v.threat: int8 [n, N_k], most threatening first, to int64 [n]; of 16 sub-blocks all 64 bits."""
    shifts: Ints = np.arange(order.shape[1], dtype=np.int64) * ORDER_BITS
    return np.left_shift(order.astype(np.int64), shifts).sum(axis=1)


def unpack_order(value: int, sub_blocks: int) -> list[int]:
    """Sub-blocks of a logged v.threat, most threatening first."""
    return [value >> ORDER_BITS * position & ((1 << ORDER_BITS) - 1) for position in range(sub_blocks)]


@dataclass(frozen=True)
class DecisionLog:
    """
    Logged values of every warp, in the order of execution.

    values        int64 [total], lane after lane
    starts        int64 [lanes + 1]: lane i has values[starts[i] : starts[i + 1]]
    program_hash  of the program that made it, or that it was made for
    shape         heads (batch * query heads), blocks of a head, warps of a block
    synthetic     made up from rates rather than by a run; every report says so

    Lanes are ordered by head index, then block, then warp. Raises InputError if the parts do not fit.
    """

    values: Ints
    starts: Ints
    program_hash: str
    shape: tuple[int, int, int]
    synthetic: bool = False

    def __post_init__(self) -> None:
        lanes = int(np.prod(self.shape))
        if self.values.dtype != np.int64 or self.values.ndim != 1 or self.starts.dtype != np.int64:
            raise InputError("decision log: values and starts are int64")
        if self.starts.shape != (lanes + 1,):
            raise InputError(f"decision log: {lanes} lanes need {lanes + 1} starts, got {list(self.starts.shape)}")
        if self.starts[0] != 0 or self.starts[-1] != len(self.values) or (np.diff(self.starts) < 0).any():
            raise InputError("decision log: starts must ascend from 0 to the number of values")

    @property
    def lanes(self) -> int:
        return len(self.starts) - 1

    def lane(self, head: int, block: int, warp: int) -> Ints:
        """The values of one warp."""
        _, blocks, warps = self.shape
        index = (head * blocks + block) * warps + warp
        return self.values[self.starts[index] : self.starts[index + 1]]

    def save(self, path: Path) -> None:
        """Write a compressed archive of three arrays."""
        header = {"format": FORMAT, "program": self.program_hash, "shape": self.shape, "synthetic": self.synthetic}
        with path.open("wb") as file:
            text = np.frombuffer(json.dumps(header).encode(), np.uint8)
            np.savez_compressed(file, header=text, values=self.values, starts=self.starts)

    @classmethod
    def load(cls, path: Path) -> "DecisionLog":
        """Read what `save` wrote; InputError for anything else."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                header = cast(dict[str, Any], json.loads(bytes(archive["header"])))
                if header["format"] != FORMAT:
                    raise ValueError(f"format is {printable(str(header['format']))}")
                heads, blocks, warps = (int(size) for size in header["shape"])
                program, synthetic = str(header["program"]), bool(header["synthetic"])
                return cls(archive["values"], archive["starts"], program, (heads, blocks, warps), synthetic)
        except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"no decision log: {printable(str(error))}", file=str(path)) from error


@dataclass
class LogRecorder:
    """Collects logged values of many lanes at once; `lanes` warps in all."""

    lanes: int
    _at: list[Ints] = field(default_factory=list[Ints])
    _values: list[Ints] = field(default_factory=list[Ints])

    def add(self, lanes: Ints, values: Ints) -> None:
        """One execution of a logged instruction by each of `lanes`."""
        self._at.append(lanes)
        self._values.append(values)

    def parts(self) -> tuple[Ints, Ints]:
        """(values lane after lane, number of values of each lane)."""
        if not self._at:
            return np.zeros(0, np.int64), np.zeros(self.lanes, np.int64)
        lane = np.concatenate(self._at)
        values = np.concatenate(self._values)[np.argsort(lane, kind="stable")]
        return values, np.bincount(lane, minlength=self.lanes).astype(np.int64)


def join(parts: Sequence[tuple[Ints, Ints]], program_hash: str, shape: tuple[int, int, int]) -> DecisionLog:
    """The log of consecutive ranges of lanes, each as `LogRecorder.parts` gives it."""
    values = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
    counts = np.concatenate([np.zeros(1, np.int64), *(part[1] for part in parts)])
    return DecisionLog(values, np.cumsum(counts), program_hash, shape)
