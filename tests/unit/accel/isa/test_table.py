"""The instruction table and register layout against docs/accelerator.md."""

import pytest

from lampc.targets.accel.isa import (
    BY_MNEMONIC,
    BY_OPCODE,
    COUNT,
    FIELD_NAMES,
    HEADER,
    TABLE,
    Format,
    Instruction,
    Kind,
    Span,
    Unit,
)
from lampc.targets.accel.layout import Geometry

KIB = 1024


def test_opcodes_and_mnemonics_are_unique() -> None:
    assert len(BY_OPCODE) == len(TABLE)
    assert len(BY_MNEMONIC) == sum(len(row.formats) for row in TABLE)
    assert 0 not in BY_OPCODE, "a word of zeros must not decode"


def test_header_fits_one_word() -> None:
    covered = [bit for field in HEADER.values() for bit in range(field.offset, field.offset + field.width)]
    assert sorted(set(covered)) == sorted(covered)
    assert max(covered) < 32
    assert max(BY_OPCODE) < 1 << HEADER["opcode"].width
    assert max(Format) < 1 << HEADER["format"].width
    assert HEADER["predicate"].width == (COUNT[Kind.P] - 1).bit_length()
    assert HEADER["wait"].width == HEADER["signal"].width == (COUNT[Kind.BARRIER] - 1).bit_length()


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_fields_do_not_overlap_or_straddle(row: Instruction) -> None:
    covered = [bit for field in row.fields for bit in range(field.offset, field.offset + field.bits)]
    assert len(set(covered)) == len(covered)
    assert max(covered, default=0) < 96
    for field in row.fields:
        assert field.offset // 32 == (field.offset + field.bits - 1) // 32
        assert FIELD_NAMES[field.name] is field.kind, "a field name has one kind in the whole table"


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_nothing_is_free_or_unexplained(row: Instruction) -> None:
    assert row.price
    assert row.meaning
    assert row.skip0 <= row.masked
    if row.in_place is not None:
        assert all(name in row for name in row.in_place)
    # An optional field is the last register, so that operands can be told apart by their number.
    assert not any(field.optional for field in row.fields[:-1])
    # The engines take branches from the log, so what branches depend on is logged unless it follows from S and P alone.
    writes_mask_from_values = row.unit is not Unit.CTL and any(f.kind in (Kind.P, Kind.O) and f.writes for f in row.fields)
    assert row.logged == writes_mask_from_values


@pytest.mark.parametrize(("d", "kib"), [(64, 80), (128, 144), (256, 272)])
def test_registers_of_accelerator_md(d: int, kib: int) -> None:
    geometry = Geometry(bq=16, bk=16, nk=4, d=d, dv=d)
    granules = geometry.tile_granules(wide=False) + geometry.query_granules + geometry.output_granules
    assert 128 // geometry.bq * granules * geometry.granule_bytes == kib * KIB


def test_compact_saves_a_quarter_of_the_logits() -> None:
    safe, compact = (Geometry(16, 16, 4, 64, 64, layout).tile_granules(wide=False) for layout in ("safe", "compact"))
    assert 4 * compact == 3 * safe


@pytest.mark.parametrize("layout", ["safe", "compact"])
@pytest.mark.parametrize("nk", range(1, 9))
def test_slots_do_not_overlap(layout: str, nk: int) -> None:
    geometry = Geometry(16, 16, nk, 64, 64, layout)
    everything = (1 << nk) - 1
    sizes = {Format.E4M3: 1, Format.F32: 4}
    if layout == "safe":
        sizes[Format.E4M11] = 2
    for fmt, size in sizes.items():
        granules = geometry.granules(fmt, everything)
        assert len(granules) == size * nk
        assert max(granules) < geometry.tile_granules(wide=fmt is Format.F32)
    if layout == "compact":
        low = geometry.granules(Format.E4M3, everything)
        for sub_block in range(nk):
            high = geometry.granules(Format.E4M11, 1 << sub_block)
            assert len(high) == 2
            assert not low & high
            assert geometry.granules(Format.MIX, everything, 1 << sub_block) == (low - {sub_block}) | high
        for chunk in (range(geometry.chunk), range(geometry.chunk, nk)):
            used = geometry.granules(Format.E4M11_SEQ, sum(1 << i for i in chunk))
            assert len(used) == 2 * len(chunk)
            assert max(used, default=0) < geometry.tile_granules(wide=False)


@pytest.mark.parametrize("layout", ["safe", "compact"])
def test_a_span_covers_what_is_touched(layout: str) -> None:
    geometry = Geometry(16, 16, 4, 64, 128, layout)
    for row in TABLE:
        for fmt in row.formats:
            if fmt is Format.E4M11_SEQ and layout == "safe":
                continue
            for field in row.fields:
                for mask in range(16):
                    touched = geometry.touched(row, fmt, field, 5, mask, high=mask & 3)
                    assert touched <= set(range(5, 5 + geometry.span(field, fmt)))
                    if field.span is Span.TILE and row.masked and layout == "safe":
                        assert bool(touched) == bool(mask)
