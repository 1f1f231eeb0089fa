"""
Which registers every word touches, as few of them as tell the accesses apart.

Registers that all words touch together, such as the granules of an output fragment, wait for each other anyway: the loop keeps
one entry for them. Source: docs/accelerator.md section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lampc.numerics.arrays import Ints
from lampc.targets.accel.instruction import COUNT, Field, Format, Instruction, Kind, Span
from lampc.targets.accel.layout import Geometry

Run = tuple[int, int]
"""First register and number of registers."""


@dataclass(frozen=True)
class _Access:
    """One operand of one word: a run, or one for each sub-block, where the 16-bit ones of a mixed tile lie elsewhere."""

    writes: bool
    low: tuple[Run, ...]
    high: tuple[Run, ...]
    by_sub_block: bool


@dataclass
class Scoreboard:
    """Collects the accesses of words; registers are numbered granules first, then vectors, masks, orders."""

    geometry: Geometry
    granules: int
    vectors: int
    _accesses: list[_Access] = field(default_factory=list[_Access])

    def __len__(self) -> int:
        return len(self._accesses)

    @property
    def _base(self) -> dict[Kind, int]:
        masks = self.granules + self.vectors
        return {Kind.T: 0, Kind.V: self.granules, Kind.P: masks, Kind.O: masks + COUNT[Kind.P]}

    def add_predicate(self, predicate: int) -> None:
        """A word reads its mask; p0 is a constant."""
        if predicate:
            self._accesses.append(_Access(False, ((self._base[Kind.P] + predicate, 1),), (), False))

    def add_fields(self, row: Instruction, fmt: Format, fields: Mapping[str, int]) -> None:
        """A word's register operands; scalars are left out, since only CTL writes them, in order."""
        for f in row.fields:
            if f.kind in self._base and fields[f.name] >= 0 and not (f.kind is Kind.P and fields[f.name] == 0):
                self._accesses.append(self._access(row, fmt, f, self._base[f.kind] + fields[f.name]))

    def _access(self, row: Instruction, fmt: Format, f: Field, first: int) -> _Access:
        if not row.masked or f.span not in (Span.TILE, Span.NK):
            return _Access(f.writes, ((first, self.geometry.span(f, fmt)),), (), False)

        def runs(high: int) -> tuple[Run, ...]:
            touched = (self.geometry.touched(row, fmt, f, first, 1 << theta, high) for theta in range(self.geometry.nk))
            return tuple((min(registers), len(registers)) for registers in touched)

        return _Access(f.writes, runs(0), runs(-1), True)

    def arrays(self) -> tuple[Ints, Ints, int]:
        """`access`, `slots` and the number of registers, as columns.py takes them; neither table is ever empty."""
        place = self._compressed()

        def packed(run: Run) -> Run:
            first, last = int(place[run[0]]), int(place[run[0] + run[1] - 1])
            return first, last - first + 1

        slots: list[list[Run]] = []
        access: list[tuple[int, int, int, int, int]] = []
        for one in self._accesses:
            low = high = -1
            first, count = packed(one.low[0])
            if one.by_sub_block:
                low, high = len(slots), len(slots) + 1
                slots += [[packed(run) for run in runs] for runs in (one.low, one.high)]
            access.append((first, count, low, high, int(one.writes)))
        return (
            np.array(access or [(0, 0, -1, -1, 0)], np.int64),
            np.array(slots or [[(0, 0)] * self.geometry.nk], np.int64),
            int(place[-1]) + 1,
        )

    def _compressed(self) -> Ints:
        """New number of every register: one more than its neighbour's where some run begins or ends between them."""
        total = self.granules + self.vectors + COUNT[Kind.P] + COUNT[Kind.O]
        begins = np.zeros(total + 1, np.int64)
        for one in self._accesses:
            for first, count in (*one.low, *one.high):
                begins[[first, first + count]] = 1
        begins[0] = 0
        return np.cumsum(begins[:total])
