"""
The tile registers of many warps at once.

A register file is bytes, so that a sub-block may hold 8-bit codes now and 16-bit ones later. Operands that never overlap get
arrays of their own: a query fragment then lies contiguous for each warp, as the kernels want it.
Source: docs/accelerator.md section 1; the places of sub-blocks are those of `layout.Geometry`.
"""

from collections.abc import Iterable

import numpy as np

from lampc.numerics.arrays import F32, Array, Ints
from lampc.targets.accel.functional.codes import SCORE_FORMATS, Codes
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import Format, Kind
from lampc.targets.accel.layout import Geometry


def operand_spans(words: Iterable[Word], geometry: Geometry) -> list[tuple[int, int]]:
    """(first granule, end) of every tile operand, overlapping ones joined, ascending."""
    spans = sorted(
        (word[f.name], word[f.name] + geometry.span(f, word.format))
        for word in words
        for f in word.row.fields
        if f.kind is Kind.T and word[f.name] >= 0
    )
    joined: list[tuple[int, int]] = []
    for first, end in spans:
        if joined and first < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


class TileFile:
    """Tile registers of `lanes` warps; those in `spans` exist."""

    def __init__(self, geometry: Geometry, lanes: int, spans: Iterable[tuple[int, int]]):
        self._geometry = geometry
        self._banks = [
            (first, end, np.zeros((lanes, (end - first) * geometry.granule_bytes), np.uint8)) for first, end in spans
        ]
        self._places = {
            fmt: np.array([geometry.slot(fmt, theta)[0] for theta in range(geometry.nk)], np.int64) for fmt in SCORE_FORMATS
        }

    def _bank(self, granule: int) -> tuple[Array, int]:
        for first, end, bank in self._banks:
            if first <= granule < end:
                return bank, granule - first
        raise IndexError(f"no operand has granule {granule}")

    def _rows(self, granule: int, fmt: Format, lane: Ints, theta: Ints) -> tuple[Array, Ints]:
        bank, offset = self._bank(granule)
        size = self._geometry.granule_bytes
        granules = bank.reshape(-1, size)
        count = self._geometry.slot(fmt, 0)[1]
        first = lane * (bank.shape[1] // size) + (offset + self._places[fmt][theta])
        return granules, first[:, None] + np.arange(count)

    def read(self, granule: int, fmt: Format, lane: Ints, theta: Ints) -> Codes:
        """Codes of sub-block theta[i] of warp lane[i] in the scores tile at `granule`: [n, b_k, b_q]."""
        granules, rows = self._rows(granule, fmt, lane, theta)
        taken = granules[rows].reshape(len(lane), -1).view(SCORE_FORMATS[fmt].dtype)
        return taken.reshape(len(lane), self._geometry.bk, self._geometry.bq)

    def write(self, granule: int, fmt: Format, lane: Ints, theta: Ints, codes: Codes) -> None:
        """The inverse of `read`."""
        granules, rows = self._rows(granule, fmt, lane, theta)
        granules[rows] = np.ascontiguousarray(codes).view(np.uint8).reshape(*rows.shape, -1)

    def fragment(self, granule: int, size: int) -> F32:
        """The FP32 fragment at `granule` of every warp, float32 [lanes, b_q, size]; writing to it writes the registers."""
        return self._view(granule, 4 * self._geometry.bq * size).view(np.float32).reshape(-1, self._geometry.bq, size)

    def entries(self, granule: int, width: int) -> Array:
        """Mask tile (`width` 1, uint8) or bias tile (4, float32) at `granule` of every warp: [lanes, N_k, b_k, b_q]."""
        g = self._geometry
        dtype = np.uint8 if width == 1 else np.float32
        return self._view(granule, width * g.nk * g.bk * g.bq).view(dtype).reshape(-1, g.nk, g.bk, g.bq)

    def _view(self, granule: int, length: int) -> Array:
        bank, offset = self._bank(granule)
        first = offset * self._geometry.granule_bytes
        return bank[:, first : first + length]
