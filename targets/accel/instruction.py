"""
What an instruction of the modelled accelerator is made of: units, formats, register kinds, fields, the header.

An instruction's payload fields are packed in the order listed, none across a 32-bit boundary. Source: docs/accelerator.md
sections 1 and 2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum

ISA_VERSION = 1
WORD_BITS = 128
MAX_SUB_BLOCKS = 16
"""Bits of a mask register, and places of an order register."""


class Unit(StrEnum):
    """The part of the core that executes an instruction (accelerator.md section 1)."""

    CTL = "CTL"
    DMA = "DMA"
    MXE = "MXE"
    VEC = "VEC"
    LUT = "LUT"
    SFU = "SFU"
    KNAP = "KNAP"


class Format(IntEnum):
    """
    Header format: the accumulator's format and, through `layout.py`, where a scores tile keeps its sub-blocks.

    E4M11_SEQ is e4m11 in the sequential update of the compact layout: c = floor(N_k/2)+1 slots of two granules.
    MIX reads low and high sub-blocks side by side; a sub-block mask says which are high.
    """

    NONE = 0
    E4M3 = 1
    E4M11 = 2
    F32 = 3
    E4M11_SEQ = 4
    MIX = 5

    @property
    def text(self) -> str:
        """Suffix of the mnemonic: `e4m11.seq`; empty for NONE."""
        return "" if self is Format.NONE else self.name.lower().replace("_", ".")


class Kind(StrEnum):
    """What a payload field names."""

    T = "t"  # tile register: first granule
    V = "v"  # row vector of b_q FP32 elements
    P = "p"  # sub-block mask; p0 is all ones and read-only
    O = "o"  # order of sub-blocks
    S = "s"  # 32-bit scalar
    D = "d"  # tensor descriptor
    B = "b"  # SRAM buffer
    BARRIER = "barrier"
    IMM = "imm"  # signed 32-bit integer
    F32 = "f32"  # FP32 number, as its bits
    TARGET = "target"  # word index in the stream


WIDTH: dict[Kind, int] = {
    Kind.T: 10,
    Kind.V: 6,
    Kind.P: 4,
    Kind.O: 2,
    Kind.S: 5,
    Kind.D: 4,
    Kind.B: 4,
    Kind.BARRIER: 5,
    Kind.IMM: 32,
    Kind.F32: 32,
    Kind.TARGET: 20,
}
COUNT: dict[Kind, int] = {kind: 1 << width for kind, width in WIDTH.items() if width <= 10}
"""How many of each register there are."""


class Span(StrEnum):
    """How many consecutive registers a field covers; the symbolic ones follow from the configuration (`layout.Geometry`)."""

    ONE = "1"
    TWO = "2"
    FOUR = "4"
    NK = "N_k"  # one vector per sub-block
    TILE = "tile"  # scores tile: the granules of the sub-blocks in the predicate mask, placed as the header format says
    Q = "query"  # FP32 query fragment, ceil(4*d/b_k) granules
    O = "output"  # FP32 output fragment, ceil(4*d_v/b_k) granules
    MASK = "mask tile"  # one byte per entry, N_k granules
    BIAS = "bias tile"  # FP32, 4*N_k granules


@dataclass(frozen=True)
class Field:
    """One payload field. `offset` counts bits from the payload's first; an optional field has a presence bit above it."""

    name: str
    kind: Kind
    access: str = ""  # "r", "w", "rw"; "" for what is no register
    span: Span = Span.ONE
    optional: bool = False
    offset: int = 0

    @property
    def width(self) -> int:
        return WIDTH[self.kind]

    @property
    def bits(self) -> int:
        """Width with the presence bit."""
        return self.width + self.optional

    @property
    def reads(self) -> bool:
        return "r" in self.access

    @property
    def writes(self) -> bool:
        return "w" in self.access


def _pack(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    offset, packed = 0, list[Field]()
    for f in fields:
        if offset // 32 != (offset + f.bits - 1) // 32:
            offset = (offset // 32 + 1) * 32
        packed.append(replace(f, offset=offset))
        offset += f.bits
    return tuple(packed)


@dataclass(frozen=True)
class Instruction:
    """
    One row of the table.

    masked     works on the sub-blocks of the header's predicate mask; otherwise the predicate must be p0
    skip0      may carry skip0: with an empty mask it retires at issue, in one cycle, and writes nothing (waits and signals
               still happen)
    in_place   two fields that skip0 requires to be equal, since an empty mask copies one to the other
    logged     puts one value a execution into the decision log: bits of its masks, or the order (`log`)
    """

    opcode: int
    name: str
    unit: Unit
    fields: tuple[Field, ...]
    formats: tuple[Format, ...] = (Format.NONE,)
    masked: bool = False
    skip0: bool = False
    in_place: tuple[str, str] | None = None
    log: str = ""
    meaning: str = ""
    price: str = ""
    _by_name: dict[str, Field] = field(default_factory=dict[str, Field], repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", _pack(self.fields))
        self._by_name.update({f.name: f for f in self.fields})

    def __getitem__(self, name: str) -> Field:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def group(self) -> str:
        """Prefix of the mnemonic: `mx`, `v`, `dma`, `exp`, `p`, `s`, `br`, `bar`."""
        return self.name.split(".")[0]

    @property
    def logged(self) -> bool:
        return bool(self.log)

    @property
    def synchronises(self) -> bool:
        """May wait for and signal barriers: it has a ring, which gives slot and phase."""
        return "ring" in self._by_name

    def mnemonic(self, fmt: Format) -> str:
        """Name with the format's suffix, which is left out where there is no choice."""
        return self.name if len(self.formats) == 1 else f"{self.name}.{fmt.text}"


@dataclass(frozen=True)
class HeaderField:
    """A field of the first 32-bit word."""

    name: str
    offset: int
    width: int


def _header() -> Iterator[HeaderField]:
    offset = 0
    for name, width in (
        ("opcode", 8),
        ("format", 3),
        ("predicate", 4),
        ("wait_enable", 1),
        ("wait", 5),
        ("signal_enable", 1),
        ("signal", 5),
        ("xor", 1),
        ("skip0", 1),
    ):
        yield HeaderField(name, offset, width)
        offset += width


HEADER: dict[str, HeaderField] = {f.name: f for f in _header()}
