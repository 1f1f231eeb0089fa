"""
Axis maps: which loop indices of an attention each axis of a tensor runs over.

An attention is a loop nest over atoms (batch, head, query, key, ...). The axes of every tensor around it are lists of
atoms, major first: `[batch, length, heads * size]` is `((b,), (l,), (h, d))`, an axis of size one is `()`. Walking from a
tensor to the one it was reshaped, transposed or broadcast from only regroups, permutes or drops atoms, so all layout chains
of exporters fall out of one mechanism. An atom that turns out to be two (a reshape splits it) is split in place: every
map sees it.
"""

from collections.abc import Iterable, Sequence
from math import prod


class LayoutError(Exception):
    """Two shapes that do not factor into each other, or an axis that is not a whole number of atoms."""


class Atom:
    """One loop index of `size` steps; after a split it stands for `parts`, major first."""

    __slots__ = ("name", "parts", "size")

    def __init__(self, name: str, size: int):
        self.name = name
        self.size = size
        self.parts: tuple[Atom, Atom] | None = None

    def split(self, major: int) -> "tuple[Atom, Atom]":
        """Make this atom two, the major one with `major` steps. Raises LayoutError if that does not divide."""
        if self.size % major:
            raise LayoutError(f"an axis of {self.size} does not split by {major}")
        assert self.parts is None
        self.parts = (Atom(self.name, major), Atom(self.name, self.size // major))
        return self.parts

    def __repr__(self) -> str:
        return f"{self.name}{self.size}"


Axis = tuple[Atom, ...]
Layout = tuple[Axis, ...]


def axis(name: str, size: int) -> Axis:
    """A fresh axis: one atom, or none for size one."""
    return () if size == 1 else (Atom(name, size),)


def leaves(atoms: Iterable[Atom]) -> Axis:
    """The atoms with every split one replaced by its parts."""
    result: list[Atom] = []
    for atom in atoms:
        result.extend(leaves(atom.parts) if atom.parts else (atom,))
    return tuple(result)


def resolved(layout: Layout) -> Layout:
    """`layout` in unsplit atoms."""
    return tuple(leaves(group) for group in layout)


def atoms_of(layout: Layout) -> Axis:
    """All atoms of `layout`, axis by axis."""
    return leaves(atom for group in layout for atom in group)


def size_of(group: Axis) -> int:
    return prod(atom.size for atom in group)


def regroup(layout: Layout, shape: Sequence[int]) -> Layout:
    """
    The axis map of a tensor of `shape` that is reshaped to one with map `layout`: the same atoms in the same order.

    Raises LayoutError if the shapes do not factor into each other.
    """
    pending = list(reversed(atoms_of(layout)))
    result: list[Axis] = []
    for size in shape:
        group: list[Atom] = []
        open_size = size
        while open_size > 1:
            if not pending:
                raise LayoutError(f"shape {tuple(shape)} has more elements than the axes it is reshaped to")
            atom = pending.pop()
            if open_size % atom.size:
                if atom.size % open_size:
                    raise LayoutError(f"an axis of {size} and one of {atom.size} share no split")
                atom, minor = atom.split(open_size)
                pending.append(minor)
            group.append(atom)
            open_size //= atom.size
        result.append(tuple(group))
    if pending:
        raise LayoutError(f"shape {tuple(shape)} has fewer elements than the axes it is reshaped to")
    return tuple(result)


def transposed(layout: Layout, permutation: Sequence[int]) -> Layout:
    """The axis map of the operand of a transposition (`result axis i = operand axis permutation[i]`)."""
    result: list[Axis] = [()] * len(layout)
    for position, source in enumerate(permutation):
        result[source] = layout[position]
    return tuple(result)


def broadcast(layout: Layout, shape: Sequence[int]) -> Layout:
    """The axis map of an operand of `shape` that is broadcast from the right to a tensor with map `layout`."""
    if len(shape) > len(layout):
        raise LayoutError(f"{len(shape)} axes do not broadcast to {len(layout)}")
    trailing = resolved(layout)[len(layout) - len(shape) :]
    result: list[Axis] = []
    for group, size in zip(trailing, shape, strict=True):
        if size not in (1, size_of(group)):
            raise LayoutError(f"an axis of {size} does not broadcast to {size_of(group)}")
        result.append(() if size == 1 else group)
    return tuple(result)


def tiled(layout: Layout, shape: Sequence[int]) -> Layout:
    """The axis map of an operand of `shape` that is repeated (copies outermost) along its axes to one with map `layout`."""
    result: list[Axis] = []
    for group, size in zip(layout, shape, strict=True):
        copies = size_of(group) // max(size, 1)
        if copies == 1:
            result.append(group)
        else:
            result.append(regroup((group,), (copies, size))[1])
    return tuple(result)
