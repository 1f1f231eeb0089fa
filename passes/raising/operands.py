"""
The layout half of a decomposed attention: how far up Q, K and V may be taken from, and which of those tensors is best.

A candidate is a tensor on the chain above an operand with its axis map and the scalar factors met on the way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from lampc.passes.raising.axis_maps import Atom, Layout, LayoutError, atoms_of, resolved
from lampc.passes.raising.graph import Refusal, node_of
from lampc.passes.raising.layout_ops import through_layout, through_repeat, unchanged
from lampc.passes.raising.scores import scaled_by_constant


@dataclass(frozen=True)
class Candidate:
    """`operand = factor * value`, up to layout."""

    value: SSAValue
    layout: Layout
    factor: float = 1.0


def candidates(value: SSAValue, layout: Layout, *, scales: bool = True) -> list[Candidate]:
    """All tensors that hold the operand's elements, nearest first. With `scales`, scalar factors may lie between."""
    found = [Candidate(value, layout)]
    while True:
        try:
            above = _above(found[-1], scales)
        except (LayoutError, Refusal):
            above = None
        if above is None:
            return found
        found.append(above)


def _above(last: Candidate, scales: bool) -> Candidate | None:
    """The tensor one node up, None where the chain ends."""
    node = node_of(last.value)
    if node is None:
        return None
    for step in (through_layout, through_repeat):
        layout = step(node, last.layout)
        if layout is not None:
            return Candidate(node.operands[0], layout, last.factor)
    same = unchanged(node)
    if same is not None:
        return Candidate(same, last.layout, last.factor)
    scaled = scaled_by_constant(node) if scales else None
    return Candidate(scaled[0], last.layout, last.factor * scaled[1]) if scaled is not None else None


def holding(found: Sequence[Candidate], atoms: Iterable[Atom]) -> list[Candidate]:
    """The candidates that run over exactly these atoms, each once."""
    wanted = set(atoms)
    return [c for c in found if set(atoms_of(c.layout)) == wanted and len(atoms_of(c.layout)) == len(wanted)]


def best(found: Sequence[Candidate], target: Layout) -> Candidate:
    """
    The candidate to take: all factors hoisted, then one that needs no rearrangement, then the nearest without extra axes.

    `found` is not empty and nearest first; later ones have at least as many factors hoisted.
    """
    hoisted = [c for c in found if c.factor == found[-1].factor]
    plain = [c for c in hoisted if resolved(c.layout) == resolved(target)]
    small = [c for c in hoisted if len(c.layout) <= len(target)]
    return (plain or small or hoisted)[0]
