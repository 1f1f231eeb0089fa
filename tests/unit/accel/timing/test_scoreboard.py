"""The scoreboard's few entries tell apart what `Geometry.touched` tells apart."""

import itertools

import numpy as np

from lampc.targets.accel.instruction import COUNT, MAX_SUB_BLOCKS, Kind
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.control import pop
from lampc.targets.accel.timing.scoreboard import Scoreboard
from tests.unit.accel.timing.conftest import Sample


def entries(access: np.ndarray, slots: np.ndarray, index: int, mask: int, high: int, sub_blocks: int) -> set[int]:
    """Entries of an access, as the loop walks them."""
    first, count, low, high_row, _ = (int(x) for x in access[index])
    if low < 0:
        return set(range(first, first + count))
    found = set[int]()
    for theta in (t for t in range(sub_blocks) if mask >> t & 1):
        begin, number = (int(x) for x in slots[high_row if high >> theta & 1 else low, theta])
        found.update(range(begin, begin + number))
    return found


def test_overlaps_are_those_of_the_registers(sample: Sample):
    program = sample.program
    geometry, stream = program.cfg.geometry, program.decoded["warp"]
    board = Scoreboard(geometry, program.granules, program.vectors)
    operands: list[tuple[int, int]] = []  # word, field
    for index in range(len(stream)):
        row = stream.row(index)
        fields = {f.name: int(stream.fields[f.name][index]) for f in row.fields}
        before = len(board)
        board.add_fields(row, stream.fmt(index), fields)
        tiles = [f for f in row.fields if f.kind in (Kind.T, Kind.V, Kind.P, Kind.O) and fields[f.name] >= 0]
        tiles = [f for f in tiles if not (f.kind is Kind.P and fields[f.name] == 0)]
        assert len(board) - before == len(tiles)
        operands += [(index, row.fields.index(f)) for f in tiles]
    access, slots, count = board.arrays()
    assert count < program.granules + program.vectors + COUNT[Kind.P] + COUNT[Kind.O]

    random = np.random.default_rng(0)
    base = {Kind.T: 0, Kind.V: 1000, Kind.P: 2000, Kind.O: 3000}
    touched: list[tuple[set[int], set[int]]] = []
    for number, (index, place) in enumerate(operands):
        row, fmt = stream.row(index), stream.fmt(index)
        f = row.fields[place]
        mask, high = (int(x) for x in random.integers(0, 1 << geometry.nk, 2))
        high = high if "hi" in row else 0
        register = int(stream.fields[f.name][index])
        exact = {base[f.kind] + r for r in geometry.touched(row, fmt, f, register, mask, high)}
        touched.append((exact, entries(access, slots, number, mask, high, geometry.nk)))
    for (exact_a, few_a), (exact_b, few_b) in itertools.combinations(touched, 2):
        assert bool(exact_a & exact_b) == bool(few_a & few_b)


def test_tables_are_never_empty(sample: Sample):
    access, slots, count = Scoreboard(sample.program.cfg.geometry, 4, 4).arrays()
    assert access.shape[1] == 1 + max(col.FIRST, col.COUNT, col.LOW, col.HIGH_ROW, col.WRITES)
    assert slots.shape == (1, sample.program.cfg.nk, 2)
    assert count == 1


def test_members_of_a_mask_are_counted():
    assert all(pop(mask) == mask.bit_count() for mask in range(1 << MAX_SUB_BLOCKS))
