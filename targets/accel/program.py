"""
A program of the accelerator in memory: configuration, tensors, SRAM map, barriers, tables, two streams, symbols.

Source: docs/accelerator.md sections 1 and 2.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lampc.numerics.encoding import Codes
from lampc.numerics.exponentials import exp_table
from lampc.numerics.formats import FORMATS
from lampc.targets.accel.config import OPERAND_BYTES, Config
from lampc.targets.accel.encoding import DecodedStream, WordError, Words, decode
from lampc.targets.accel.instruction import ISA_VERSION

STREAMS = ("warp", "dma")
TENSORS = ("q", "k", "v", "o", "mask", "bias", "sinks")
ELEMENT_BYTES = {**OPERAND_BYTES, "i1": 1}
TABLES = {"lut": ("ue5m3.shift", "ue5m3.exp", np.uint8), "sfu": ("ue5m11.shift", "ue5m11.exp", np.uint16)}
"""Exponential tables: format of the shift, format of the exponential, type of a code."""


@dataclass(frozen=True)
class Descriptor:
    """
    A tensor in memory; its index is its place in `Program.descriptors`.

    tensor    q, k, v, o, mask, bias or sinks
    shape     [batch, heads, rows, columns]; size 1 broadcasts (mask and bias); sinks are [1, heads, 1, 1]
    element   f32, bf16, f16, e4m3, or i1 (one byte) for a boolean mask
    """

    tensor: str
    shape: tuple[int, int, int, int]
    element: str

    @property
    def row_bytes(self) -> int:
        return self.shape[3] * ELEMENT_BYTES[self.element]


@dataclass(frozen=True)
class Buffer:
    """A ring of `slots` tiles of `bytes` bytes in SRAM from byte `base`; its index is its place in `Program.buffers`."""

    name: str
    base: int
    bytes: int
    slots: int

    @property
    def end(self) -> int:
        return self.base + self.bytes * self.slots


@dataclass(frozen=True)
class Barrier:
    """Phase barriers `first`, ..., one for each ring slot; a phase completes after `expected` arrivals."""

    name: str
    first: int
    slots: int
    expected: int


@dataclass(frozen=True)
class Program:
    """
    granules, vectors   registers that a warp takes
    streams             "warp" and "dma": uint32[n, 4]
    tables              exponential tables by name, codes as in `numerics.exponentials.exp_table`
    symbols             for each stream one string a word: the IR location it comes from, "" if unknown
    """

    cfg: Config
    descriptors: tuple[Descriptor, ...]
    buffers: tuple[Buffer, ...]
    barriers: tuple[Barrier, ...]
    granules: int
    vectors: int
    streams: Mapping[str, Words]
    tables: Mapping[str, Codes] = field(default_factory=dict[str, Codes])
    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @cached_property
    def decoded(self) -> dict[str, DecodedStream]:
        """Both streams decoded. Raises InputError for a bad word."""
        decoded: dict[str, DecodedStream] = {}
        for name in STREAMS:
            try:
                decoded[name] = decode(self.streams[name])
            except WordError as error:
                raise error.within(name) from error
        return decoded

    @property
    def sram_bytes(self) -> int:
        """Bytes of SRAM from 0 to the end of the last buffer."""
        return max((buffer.end for buffer in self.buffers), default=0)

    @property
    def warp_bytes(self) -> int:
        """Bytes of the register file that one warp takes."""
        geometry = self.cfg.geometry
        return self.granules * geometry.granule_bytes + self.vectors * geometry.vector_bytes

    def symbol(self, stream: str, word: int) -> str:
        """The IR location of a word, "" if unknown."""
        names = self.symbols.get(stream, ())
        return names[word] if word < len(names) else ""

    def header(self) -> dict[str, object]:
        """What decides execution besides tables and words, as JSON takes it."""
        return {
            "isa": ISA_VERSION,
            "cfg": self.cfg.to_dict(),
            "descriptors": [{**asdict(d), "shape": list(d.shape)} for d in self.descriptors],
            "buffers": [asdict(b) for b in self.buffers],
            "barriers": [asdict(b) for b in self.barriers],
            "granules": self.granules,
            "vectors": self.vectors,
            "tables": {name: table_hash(self.tables[name]) for name in sorted(self.tables)},
            "words": {name: len(self.streams[name]) for name in STREAMS},
        }

    def program_hash(self) -> str:
        """sha256 of everything that decides execution: all but the symbols."""
        digest = hashlib.sha256(canonical_json(self.header()))
        for name in STREAMS:
            digest.update(little_endian(self.streams[name]))
        return digest.hexdigest()


def exponential_tables() -> dict[str, Codes]:
    """The tables that `exp.lut` and `exp.sfu` read (docs/lampattention.md section 4.6)."""
    return {name: exp_table(FORMATS[shift], FORMATS[exp]) for name, (shift, exp, _) in TABLES.items()}


def table_hash(table: Codes) -> str:
    """sha256 of a table's codes, little-endian."""
    return hashlib.sha256(little_endian(table)).hexdigest()


def little_endian(array: NDArray[np.unsignedinteger]) -> bytes:  # pyright: ignore[reportMissingTypeArgument]
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def canonical_json(value: object) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
