"""
Where tile registers keep things: granules of scores tiles, fragments and mask tiles, for a configuration.

A granule is b_k*b_q bytes: one 8-bit sub-block. Source: docs/accelerator.md section 1, docs/lampattention.md section 7.
"""

from dataclasses import dataclass

from lampc.targets.accel.isa import Field, Format, Instruction, Kind, Span


@dataclass(frozen=True)
class Geometry:
    """Tile sizes and register layout (`safe` or `compact`) that decide how many registers a field covers."""

    bq: int
    bk: int
    nk: int
    d: int
    dv: int
    layout: str = "safe"

    @property
    def granule_bytes(self) -> int:
        return self.bk * self.bq

    @property
    def vector_bytes(self) -> int:
        return 4 * self.bq

    @property
    def chunk(self) -> int:
        """Sub-blocks that the sequential update of the compact layout takes at a time."""
        return self.nk // 2 + 1

    @property
    def query_granules(self) -> int:
        return -(-4 * self.d // self.bk)

    @property
    def output_granules(self) -> int:
        return -(-4 * self.dv // self.bk)

    def tile_granules(self, wide: bool) -> int:
        """Size of a scores tile: FP32 (`wide`), all sub-blocks in 16 bit (safe), or in 8 bit plus one in 16 (compact)."""
        if wide:
            return 4 * self.nk
        return 2 * self.nk if self.layout == "safe" else self.nk + 2

    def slot(self, fmt: Format, sub_block: int) -> tuple[int, int]:
        """
        First granule (from the tile's) and number of granules of a sub-block in a format other than MIX.

        Under the compact layout there is one e4m11 slot, behind the 8-bit ones: a program keeps one sub-block at a time in it.
        """
        if fmt is Format.F32:
            return 4 * sub_block, 4
        if fmt is Format.E4M11_SEQ:
            return 2 * (sub_block % self.chunk), 2
        if self.layout == "safe":
            return 2 * sub_block, 1 if fmt is Format.E4M3 else 2
        return (sub_block, 1) if fmt is Format.E4M3 else (self.nk, 2)

    def granules(self, fmt: Format, mask: int, high: int = 0) -> set[int]:
        """Granules (from the tile's first) of the sub-blocks in `mask`; with MIX those in `high` are 16 bit."""
        touched = set[int]()
        for sub_block in (i for i in range(self.nk) if mask >> i & 1):
            one = fmt if fmt is not Format.MIX else (Format.E4M11 if high >> sub_block & 1 else Format.E4M3)
            first, count = self.slot(one, sub_block)
            touched.update(range(first, first + count))
        return touched

    def span(self, field: Field, fmt: Format) -> int:
        """How many consecutive registers `field` can cover, whatever the masks."""
        match field.span:
            case Span.TILE:
                wide = fmt is Format.F32
                return self.tile_granules(wide) if wide or self.layout == "compact" else 2 * self.nk
            case Span.Q:
                return self.query_granules
            case Span.O:
                return self.output_granules
            case Span.MASK:
                return self.nk
            case Span.BIAS:
                return 4 * self.nk
            case Span.NK:
                return self.nk
            case Span.ONE | Span.TWO | Span.FOUR:
                return int(field.span)

    def touched(self, row: Instruction, fmt: Format, field: Field, first: int, mask: int, high: int = 0) -> set[int]:
        """
        Registers of `field`'s kind that one execution touches, given the values of the predicate mask and of field `hi`.

        The engines' scoreboard and the hazard checks use it; `row` tells whether the mask limits it.
        """
        if field.kind is Kind.T and field.span is Span.TILE:
            all_blocks = (1 << self.nk) - 1
            return {first + g for g in self.granules(fmt, mask if row.masked else all_blocks, high)}
        if field.span is Span.NK and row.masked:
            return {first + i for i in range(self.nk) if mask >> i & 1}
        return set(range(first, first + self.span(field, fmt)))
