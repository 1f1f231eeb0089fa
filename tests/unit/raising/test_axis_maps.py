"""Axis maps against NumPy: every walk up a chain finds the elements where the chain took them from."""

import numpy as np
import pytest

from lampc.passes.raising.axis_maps import (
    Atom,
    LayoutError,
    atoms_of,
    axis,
    broadcast,
    regroup,
    resolved,
    tiled,
    transposed,
)


def sizes(layout: tuple[tuple[Atom, ...], ...]) -> list[list[int]]:
    return [[atom.size for atom in group] for group in resolved(layout)]


def test_reshape_splits_atoms_for_every_map():
    b, l, x = axis("b", 2), axis("l", 3), axis("x", 12)
    before = (b, l, x)
    after = regroup(before, (2, 3, 4, 3))
    assert sizes(after) == [[2], [3], [4], [3]]
    assert sizes(before) == [[2], [3], [4, 3]]


def test_axes_of_one_come_and_go():
    b, l = axis("b", 2), axis("l", 3)
    assert sizes(regroup((b, (), l), (1, 2, 3, 1))) == [[], [2], [3], []]


@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (2, 3), (6, 8)])
def test_shapes_that_do_not_factor(shape: tuple[int, ...]):
    with pytest.raises(LayoutError):
        regroup((axis("a", 6), axis("b", 4)), shape)


def test_transposition_is_inverted():
    layout = tuple(axis(n, s) for n, s in zip("abcd", (2, 3, 4, 5), strict=True))
    operand = np.empty((2, 3, 4, 5)).transpose(np.argsort((2, 0, 3, 1)))
    assert sizes(transposed(layout, (2, 0, 3, 1))) == [[n] for n in operand.shape]


def test_broadcast_drops_atoms_and_leading_axes():
    layout = (axis("a", 2), axis("b", 3), axis("c", 4))
    assert sizes(broadcast(layout, (1, 4))) == [[], [4]]
    with pytest.raises(LayoutError):
        broadcast(layout, (2, 4))
    with pytest.raises(LayoutError):
        broadcast(layout, (1, 2, 3, 4))


def test_tiles_are_outermost():
    heads = axis("h", 6)
    (inner,) = tiled((heads,), (3,))
    copies, original = atoms_of((heads,))
    assert (copies.size, original.size) == (2, 3)
    assert inner == (original,)
    assert np.array_equal(np.tile(np.arange(3), 2), np.broadcast_to(np.arange(3), (2, 3)).reshape(-1))
