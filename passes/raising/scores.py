"""
The pointwise half of a decomposed attention: from the probabilities back to the query-key contraction.

Upwards from P of `P V`: layout ops, dropout, casts, the NaN guard, the Slice that drops a sink; then the softmax, as one
node or as Exp, ReduceSum and Div; then mask terms, scale, soft-cap, layout ops again; then the contraction. What is met is
collected in a `Scores`; anything else is a `Refusal` that names the node.
"""

import math
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import bf16, f16, f32, f64
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, is_tensor
from lampc.passes.raising.axis_maps import Axis, Layout, LayoutError, atoms_of, axis, broadcast, leaves, resolved
from lampc.passes.raising.contraction import contraction_of, is_contraction
from lampc.passes.raising.graph import (
    Refusal,
    int_attribute,
    integers,
    is_node,
    node_of,
    scalar,
    shape_of,
)
from lampc.passes.raising.guards import Guard, guard_of
from lampc.passes.raising.layout_ops import through_layout, unchanged
from lampc.passes.raising.mask_terms import MaskTerm, blend, scores_layout, selection
from lampc.passes.raising.softmaxes import reduced_axes, run_over_keys, softmax_of

ScoreOperand = tuple[SSAValue, Layout]
_WIDE = (f16, bf16, f32, f64)


@dataclass(frozen=True)
class Scores:
    """
    What lies between the query-key contraction and the probabilities, and the contraction itself once it is reached.

    absorbed   all nodes on the way, down to the product with the values
    weights    those of them that make probabilities: the softmax and what follows
    sink_open  where a column that a Slice drops was joined to the scores, 0 before or 1 after them, until the Concat is met
    """

    keys: Axis
    absorbed: tuple[NodeOp, ...] = ()
    weights: tuple[NodeOp, ...] = ()
    terms: tuple[MaskTerm, ...] = ()
    factor: float = 1.0
    softcap: float | None = None
    sink: tuple[SSAValue, Layout] | None = None
    sink_open: int | None = None
    guards: tuple[Guard, ...] = ()
    row_factor: ScoreOperand | None = None
    query: ScoreOperand | None = None
    key: ScoreOperand | None = None
    head: Axis = ()

    def absorb(self, *nodes: NodeOp) -> "Scores":
        return replace(self, absorbed=(*self.absorbed, *nodes))

    def softmax(self, *nodes: NodeOp) -> "Scores":
        """The same with the nodes of the softmax, which is where the scores end."""
        absorbed = (*self.absorbed, *nodes)
        return replace(self, absorbed=absorbed, weights=absorbed)


def _defining(value: SSAValue, last: NodeOp) -> NodeOp:
    node = node_of(value)
    if node is None:
        raise Refusal("the scores come from no query-key product", last)
    return node


def _passed(node: NodeOp) -> SSAValue | None:
    """The operand of a node that leaves it alone, or casts between types so wide that only rounding differs (FP8 quantises)."""
    ends = (node.operands[0].type, node.results[0].type)
    if is_node(node, "Cast", "CastLike") and all(is_tensor(t) and t.element_type in _WIDE for t in ends):
        return node.operands[0]
    return unchanged(node)


def probabilities(value: SSAValue, layout: Layout, keys: Axis, anchor: NodeOp) -> Scores:
    """
    Walk from P (`layout` maps its axes, `keys` is the summed one) over the softmax to the query-key contraction.

    Raises Refusal where the walk stops.
    """
    state = Scores(keys)
    last = anchor
    while True:
        node = _defining(value, last)
        last = node
        try:
            above = through_layout(node, layout)
        except LayoutError as error:
            raise Refusal(str(error), node) from error
        if above is not None:
            value, layout, state = node.operands[0], above, state.absorb(node)
        elif (same := _passed(node)) is not None:
            value, state = same, state.absorb(node)
        elif is_node(node, "Where"):
            value, state = _guard(node, layout, state)
        elif is_node(node, "Slice") and state.sink is None and state.sink_open is None:
            column = _drops_column(node, layout, keys)
            value, state = node.operands[0], replace(state.absorb(node), sink_open=column)
        elif (softmax := softmax_of(node)) is not None:
            run_over_keys(softmax.reduction, softmax.axes, layout, keys)
            return _scores(softmax.source, layout, state.softmax(*softmax.nodes), softmax.nodes[-1])
        elif is_node(node, "LogSoftmax"):
            raise Refusal("logarithms of probabilities weigh the values", node)
        else:
            raise Refusal("it lies between the softmax and the values", node)


def _guard(node: NodeOp, layout: Layout, state: Scores) -> tuple[SSAValue, Scores]:
    """`Where(dead row, 0, p)`; what the guard looks at is compared with the masks in the end."""
    condition, filler, value = node.operands
    guard = guard_of(condition, value) if scalar(filler) == 0.0 else None
    if guard is None:
        raise Refusal("a selection on the probabilities that is no guard", node)
    guards = state.guards
    if guard.source is not None:
        run_over_keys(node, (len(layout) - 1,), layout, state.keys)
        guards = (*guards, guard)
    return value, replace(state.absorb(node, *guard.nodes), guards=guards)


def _looks_at_the_scores(guard: Guard, state: Scores) -> bool:
    """Whether a row that is dead for the guard is dead: it looks at the scores, at some mask of theirs, or at its condition."""
    if guard.source is not None and node_of(guard.source) in state.absorbed:
        return True
    masks = [(term.value, term.inverted) for term in state.terms if term.factor > 0]
    return (guard.source, guard.inverted) in masks


def _drops_column(node: NodeOp, layout: Layout, keys: Axis) -> int:
    """Where the column is that a Slice drops beside all keys: 0 before them, 1 after them."""
    if len(node.operands) < 3:
        raise Refusal("a Slice that does not drop one column beside the keys", node)
    starts, ends = integers(node.operands[1]), integers(node.operands[2])
    rank = len(layout)
    axes = integers(node.operands[3]) if len(node.operands) > 3 else list(range(rank))
    steps = integers(node.operands[4]) if len(node.operands) > 4 else [1] * rank
    wide, narrow = shape_of(node.operands[0]), shape_of(node.results[0])
    differing = [i for i in range(rank) if wide[i] != narrow[i]]
    if starts is None or ends is None or axes is None or steps is None or any(s != 1 for s in steps):
        raise Refusal("a Slice that is not constant", node)
    if len(differing) != 1 or wide[differing[0]] != narrow[differing[0]] + 1:
        raise Refusal("a Slice that does not drop one column beside the keys", node)
    run_over_keys(node, (differing[0],), layout, keys)
    first = {axis % rank: start for axis, start in zip(axes, starts, strict=True)}[differing[0]]
    return 0 if first % wide[differing[0]] == 1 else 1


def _scores(value: SSAValue, layout: Layout, state: Scores, last: NodeOp) -> Scores:
    """Walk from the softmax's operand to the contraction; at an Add both operands are tried."""
    while True:
        node = _defining(value, last)
        last = node
        if is_contraction(node):
            if state.sink_open is not None:
                raise Refusal("a Slice drops a column that no Concat added", node)
            return _reached(node, layout, state)
        try:
            above = through_layout(node, layout)
        except LayoutError as error:
            raise Refusal(str(error), node) from error
        if above is not None:
            if state.sink_open is not None:
                raise Refusal("a change of layout between the sink and the softmax", node)
            value, layout, state = node.operands[0], above, state.absorb(node)
        elif (same := _passed(node)) is not None:
            value, state = same, state.absorb(node)
        elif is_node(node, "Concat"):
            value, state = _sink(node, layout, state)
        elif (maximum := _shift(node, layout, state)) is not None:
            value, state = node.operands[0], state.absorb(node, maximum)
        elif state.sink_open is not None:
            raise Refusal("it lies between the sink and the softmax", node)
        elif (scaled := scaled_by_constant(node)) is not None:
            value, factor = scaled
            state = replace(state.absorb(node), factor=state.factor * factor)
        elif (by_row := _scaled_by_row(node, layout, state)) is not None:
            value, factors = by_row
            state = replace(state.absorb(node), row_factor=(factors, layout))
        elif is_node(node, "Tanh"):
            _nothing_above(node, state, "a soft-cap")
            value, state = node.operands[0], replace(state.absorb(node), softcap=state.factor, factor=1.0)
        elif is_node(node, "Where"):
            value, layout, state = _selection(node, layout, state)
        elif is_node(node, "Add", "Sub", "Sum"):
            return _sum(node, layout, state)
        else:
            raise Refusal("it lies between the query-key product and the softmax", node)


def _reached(node: NodeOp, layout: Layout, state: Scores) -> Scores:
    """The query-key contraction. Raises Refusal if its operands are not keys on one side and queries on the other."""
    contraction = contraction_of(node)
    if not contraction.summed:
        raise Refusal("it sums over no common axis", node)
    axes = dict(zip(contraction.out_labels, resolved(layout), strict=True))
    sizes = contraction.sizes()
    axes.update((label, axis("d", sizes[label])) for label in contraction.summed)
    sides: list[ScoreOperand] = []
    for value, labels in (
        (contraction.left, contraction.left_labels),
        (contraction.right, contraction.right_labels),
    ):
        shape = shape_of(value)
        sides.append((value, tuple(() if size == 1 else axes[n] for n, size in zip(labels, shape, strict=True))))
    keys = set(leaves(state.keys))
    present = [keys & set(atoms_of(side[1])) for side in sides]
    if keys and not (present[0] == keys and not present[1]) and not (present[1] == keys and not present[0]):
        raise Refusal("its operands are not queries on one side and keys on the other", node)
    rows_left = not keys or not present[0]
    query, key = sides if rows_left else reversed(sides)
    head = tuple(atom for label in contraction.summed for atom in axes[label])
    if not all(_looks_at_the_scores(guard, state) for guard in state.guards):
        raise Refusal("a guard of the probabilities looks at another mask than the scores'", node)
    if state.row_factor is not None:
        straight = contraction.left_labels[-2:] == ("m", "c") and len(contraction.left_labels) == len(layout)
        if not (rows_left and straight and resolved(state.row_factor[1]) == resolved(layout)):
            raise Refusal("a factor per head on scores of another layout", node)
    factor = state.factor * contraction.alpha
    return replace(state.absorb(node), query=query, key=key, head=head, factor=factor)


def _sink(node: NodeOp, layout: Layout, state: Scores) -> tuple[SSAValue, Scores]:
    """`Concat(scores, sink)` or `Concat(sink, scores)` on the key axis: one extra logit."""
    where = int_attribute(node, "axis", 0) % len(layout)
    if state.sink_open is None or len(node.operands) != 2:
        raise Refusal("a Concat that is no sink", node)
    run_over_keys(node, (where,), layout, state.keys)
    sink, scores = node.operands[state.sink_open], node.operands[1 - state.sink_open]
    if shape_of(sink)[where] != 1:
        raise Refusal("a sink of more than one column", node)
    narrow = tuple(() if i == where else group for i, group in enumerate(layout))
    return scores, replace(state.absorb(node), sink=(sink, broadcast(narrow, shape_of(sink))), sink_open=None)


def _shift(node: NodeOp, layout: Layout, state: Scores) -> NodeOp | None:
    """The ReduceMax of `Sub(x, ReduceMax(x))`, to which softmax is blind; None for other nodes."""
    if not is_node(node, "Sub"):
        return None
    maximum = node_of(node.operands[1])
    if maximum is None or not is_node(maximum, "ReduceMax") or maximum.operands[0] is not node.operands[0]:
        return None
    if not int_attribute(maximum, "keepdims", 1) or state.terms or state.softcap is not None:
        return None
    run_over_keys(maximum, reduced_axes(maximum), layout, state.keys)
    return maximum


def scaled_by_constant(node: NodeOp) -> tuple[SSAValue, float] | None:
    """`(x, c)` if the node is `x * c`, `c * x` or `x / c` with a finite non-zero scalar c that leaves x's shape; else None."""
    if not is_node(node, "Mul", "Div"):
        return None
    left, right = node.operands
    for value, other in ((left, right), (right, left)):
        factor = scalar(other)
        if factor is None or scalar(value) is not None or shape_of(value) != shape_of(node.results[0]):
            continue
        if is_node(node, "Div") and value is right:
            return None
        if not math.isfinite(factor) or factor == 0.0:
            return None
        return value, factor if is_node(node, "Mul") else 1.0 / factor
    return None


def _nothing_above(node: NodeOp, state: Scores, what: str) -> None:
    """Raise Refusal if a soft-cap, or a factor per row, follows `what`."""
    if state.softcap is not None:
        raise Refusal(f"{what} below the soft-cap", node)
    if state.row_factor is not None:
        raise Refusal(f"{what} below a factor per head", node)


def _scaled_by_row(node: NodeOp, layout: Layout, state: Scores) -> tuple[SSAValue, SSAValue] | None:
    """`(scores, factors)` if the node is their product and the factors do not depend on the key; None for other nodes."""
    if not is_node(node, "Mul") or state.row_factor is not None or leaves(layout[-1]) != leaves(state.keys):
        return None
    for value, other in (tuple(node.operands), tuple(reversed(node.operands))):
        shape = shape_of(other)
        if shape_of(value) == shape_of(node.results[0]) and shape and shape[-1] == 1 and scalar(other) is None:
            return value, other
    return None


def _selection(node: NodeOp, layout: Layout, state: Scores) -> tuple[SSAValue, Layout, Scores]:
    _nothing_above(node, state, "a mask")
    value, above, term = selection(node, layout, state.factor)
    return value, above, replace(state.absorb(node), terms=(*state.terms, term))


def _sum(node: NodeOp, layout: Layout, state: Scores) -> Scores:
    """`score + mask` (and more masks) in any order, `score - mask`; every operand is tried as the score."""
    _nothing_above(node, state, "a mask")
    subtracts = is_node(node, "Sub")
    failures: list[Refusal] = []
    for index, value in enumerate(node.operands[:1] if subtracts else node.operands):
        above = scores_layout(value, node, layout)
        if above is None:
            continue
        others = [other for i, other in enumerate(node.operands) if i != index]
        try:
            grown = state.absorb(node)
            blended = blend(node, value, others[0], layout, state.factor) if len(others) == 1 else None
            product = node_of(value)
            if blended is not None and product is not None:
                value, term = blended
                above = layout
                grown = replace(grown.absorb(product), terms=(*state.terms, term))
            else:
                factor = -state.factor if subtracts else state.factor
                added = [MaskTerm(node, other, broadcast(layout, shape_of(other)), factor) for other in others]
                grown = replace(grown, terms=(*state.terms, *added))
            return _scores(value, above, grown, node)
        except Refusal as refusal:
            failures.append(refusal)
    if not failures:
        raise Refusal("a sum that broadcasts the scores", node)
    raise failures[0]
