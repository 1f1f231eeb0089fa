"""Masks as numbers: causal limits and windows that constants or parts of conjunctions say leave the tensors."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Axis, LayoutError, broadcast, leaves, resolved, size_of
from lampc.passes.raising.graph import Refusal, is_node, node_of, scalar, shape_of
from lampc.passes.raising.layout_ops import through_layout, through_repeat, unchanged
from lampc.passes.raising.mask_terms import MASKING, MaskTerm, content_of


@dataclass(frozen=True)
class Structure:
    """A mask given by numbers: key i is live for query j if i <= j + offset and, with a window w, i > j + offset - w."""

    offset: int = 0
    window: int | None = None


def split_masks(
    terms: Iterable[MaskTerm], queries: Axis, keys: Axis, structure: Structure | None = None
) -> tuple[Structure | None, tuple[MaskTerm, ...]]:
    """
    What of `structure` and the masks is numbers, and the masks that stay tensors, each as small as it is anywhere.

    A conjunction is taken apart if at most one of its parts stays a tensor, a sum if one of its summands does not. What adds
    0 or -inf becomes boolean, which the tiles need no bias for.
    """
    tensors: list[MaskTerm] = []
    for term in terms:
        parts = _conjuncts(term)
        together, rest = _reduced(parts, queries, keys, structure)
        if len(parts) > 1 and len(rest) > 1:
            together, rest = _reduced([_chosen(term)], queries, keys, structure)
        if rest == [term] and not term.selects:
            parts = _summands(term)
            found, others = _reduced(parts, queries, keys, structure)
            if len(others) < len(parts):
                together, rest = found, others
        structure = together
        tensors.extend(_smallest(part) for part in rest)
    return structure, tuple(tensors)


def _reduced(
    parts: list[MaskTerm], queries: Axis, keys: Axis, structure: Structure | None
) -> tuple[Structure | None, list[MaskTerm]]:
    rest: list[MaskTerm] = []
    for part in parts:
        if _allows_all(part):
            continue
        found = _structure(part, queries, keys)
        merged = _both(structure, found) if found is not None else None
        if merged is None:
            rest.append(part)
        else:
            structure = merged
    return structure, rest


def _conjuncts(term: MaskTerm) -> list[MaskTerm]:
    """
    The masks that together are `term`; only where masked means -inf, so that it does not matter how often a key is masked.

    Layout nodes on the way to an And are undone.
    """
    term = _chosen(term)
    node = node_of(term.value)
    if node is None or not (term.selects and term.masked == -math.inf):
        return [term]
    above = replace(term, value=node.operands[0], inverted=not term.inverted) if is_node(node, "Not") else _above(term)
    if above is not None:
        parts = _conjuncts(above)
        return parts if len(parts) > 1 else [term]
    if is_node(node, "Or" if term.inverted else "And"):
        sides = [_broadcast(term, node, index) for index in (0, 1)]
        return [part for side in sides if side is not None for part in _conjuncts(side)]
    return [term]


def _is_chosen(node: NodeOp, term: MaskTerm) -> bool:
    """Whether an added mask is `Where(live, 0, -inf)` or `Where(dead, -inf, 0)`."""
    if term.selects or term.factor <= 0 or not is_node(node, "Where"):
        return False
    return {scalar(node.operands[1]), scalar(node.operands[2])} == {0.0, -math.inf}


def _above(term: MaskTerm) -> MaskTerm | None:
    """The mask one node up a chain of layout nodes, repetitions and nodes that do nothing; None where it ends."""
    node = node_of(term.value)
    if node is None:
        return None
    try:
        for step in (through_layout, through_repeat):
            layout = step(node, term.layout)
            if layout is not None:
                return replace(term, value=node.operands[0], layout=resolved(layout))
    except (LayoutError, Refusal):
        return None
    same = unchanged(node)
    return replace(term, value=same) if same is not None else None


def _smallest(term: MaskTerm) -> MaskTerm:
    """The nearest tensor up the chain with the fewest elements: a mask is read where it is not repeated yet."""
    best = term
    above = _above(term)
    while above is not None:
        if math.prod(shape_of(above.value)) < math.prod(shape_of(best.value)):
            best = above
        above = _above(above)
    return best


def _chosen(term: MaskTerm) -> MaskTerm:
    """A mask that adds 0 or -inf as the selection it comes from."""
    above: MaskTerm | None = term
    while above is not None:
        node = node_of(above.value)
        if node is not None and _is_chosen(node, above):
            where = _broadcast(above, node, 0)
            dead_first = scalar(node.operands[1]) == -math.inf
            return replace(where, factor=1.0, selects=True, inverted=dead_first) if where is not None else term
        above = _above(above)
    return term


def _summands(term: MaskTerm) -> list[MaskTerm]:
    """The masks that an added mask is the sum of."""
    above: MaskTerm | None = term
    while above is not None:
        node = node_of(above.value)
        if node is not None and is_node(node, "Add", "Sub"):
            left, right = _broadcast(above, node, 0), _broadcast(above, node, 1)
            if left is None or right is None:
                return [term]
            if is_node(node, "Sub"):
                right = replace(right, factor=-right.factor)
            return [*_summands(left), *_summands(right)]
        above = _above(above)
    return [term]


def _broadcast(term: MaskTerm, node: NodeOp, index: int) -> MaskTerm | None:
    """Operand `index` of a pointwise node as the mask."""
    value = node.operands[index]
    try:
        return replace(term, value=value, layout=broadcast(term.layout, shape_of(value)))
    except LayoutError:
        return None


def _allows_all(term: MaskTerm) -> bool:
    """Whether a mask constant masks nothing."""
    content = content_of(term.value)
    return content is not None and content.allows_all and content.is_inverted == term.inverted


def _structure(term: MaskTerm, queries: Axis, keys: Axis) -> Structure | None:
    """The numbers of a causal mask constant if they say all of it, else None."""
    content = content_of(term.value)
    if content is None or not content.is_causal or content.is_inverted != term.inverted:
        return None
    if [leaves(group) for group in term.layout[-2:]] != [leaves(queries), leaves(keys)]:
        return None
    offset, window = content.offset.value.data, content.window.value.data
    masked = term.masked if term.selects else content.masked.value.data * term.factor
    if not masked <= MASKING or window == 0:
        return None
    last = size_of(queries) - 1 + offset
    every_row_lives = offset >= 0 and (window < 0 or last - window < size_of(keys) - 1)
    if masked != -math.inf and not every_row_lives:  # a row of equal finite constants has a softmax of its own
        return None
    return Structure(offset, window if window > 0 else None)


def _both(first: Structure | None, second: Structure) -> Structure | None:
    """One causal mask that says both, None if there is none."""
    if first is None:
        return second
    if first.offset != second.offset:
        return None
    windows = [w for w in (first.window, second.window) if w is not None]
    return Structure(first.offset, min(windows, default=None))
