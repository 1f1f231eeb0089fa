"""Phase barriers, and the happens-before order that they make."""

import numpy as np

from lampc.numerics.arrays import Ints
from lampc.targets.accel.functional.sync import AccessOrder, Barriers

WARP, OTHER, DMA = 0, 1, 2


def at(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def test_a_fresh_barrier_lets_parity_1_pass_and_phases_alternate():
    barriers = Barriers(1, 3, [2])
    assert barriers.passes(at(0), at(0), at(1))[0]
    assert not barriers.passes(at(0), at(0), at(0))[0]
    barriers.arrive(at(0), at(0), at(WARP))
    assert not barriers.passes(at(0), at(0), at(0))[0]
    barriers.arrive(at(0), at(0), at(OTHER))
    assert barriers.passes(at(0), at(0), at(0))[0]
    assert not barriers.passes(at(0), at(0), at(1))[0]
    barriers.arrive(at(0, 0), at(0, 0), at(WARP, OTHER))
    assert barriers.passes(at(0), at(0), at(1))[0]
    assert barriers.arrived.tolist() == [[0]]


def test_thread_blocks_have_barriers_of_their_own():
    barriers = Barriers(3, 2, [1, 1])
    barriers.arrive(at(1), at(1), at(0))
    assert barriers.phase.tolist() == [[0, 0], [0, 1], [0, 0]]


def filled() -> tuple[Barriers, AccessOrder]:
    """The DMA context has filled slot 0 and said so through barrier 0."""
    barriers, order = Barriers(1, 3, [1, 2]), AccessOrder(1, 2, 3)
    assert order.write(barriers.clock, at(0), at(0), at(DMA), 7) is None
    barriers.arrive(at(0), at(0), at(DMA))
    return barriers, order


def test_a_read_must_wait_for_the_write():
    barriers, order = filled()
    assert order.read(barriers.clock, at(0), at(0), at(WARP), 9) == (0, DMA, 7)
    barriers.join(at(0), at(0), at(0), at(OTHER))
    assert order.read(barriers.clock, at(0), at(0), at(OTHER), 9) is None


def test_a_write_must_wait_for_every_read():
    barriers, order = filled()
    barriers.join(at(0, 0), at(0, 0), at(0, 0), at(WARP, OTHER))
    assert order.read(barriers.clock, at(0, 0), at(0, 0), at(WARP, OTHER), 9) is None
    barriers.arrive(at(0), at(1), at(WARP))
    barriers.arrive(at(0), at(1), at(OTHER))
    early = barriers.clock.copy()
    barriers.join(at(0), at(1), at(0), at(DMA))
    assert order.write(barriers.clock, at(0), at(0), at(DMA), 11) is None
    assert order.write(early, at(0), at(0), at(DMA), 11) == (0, WARP, 9)


def test_an_access_after_the_arrival_is_not_ordered_by_it():
    barriers, order = filled()
    barriers.join(at(0), at(0), at(0), at(WARP))
    barriers.arrive(at(0), at(1), at(WARP))
    barriers.arrive(at(0), at(1), at(OTHER))
    assert order.read(barriers.clock, at(0), at(0), at(WARP), 9) is None
    barriers.join(at(0), at(1), at(0), at(DMA))
    assert order.write(barriers.clock, at(0), at(0), at(DMA), 11) == (0, WARP, 9)


def test_slots_are_apart():
    barriers, order = filled()
    assert order.empty(at(0, 0), at(0, 1)).tolist() == [False, True]
    assert order.write(barriers.clock, at(0), at(1), at(WARP), 1) is None
    assert order.write(barriers.clock, at(0), at(1), at(OTHER), 2) == (0, WARP, 1)
