"""Match attention written as contraction, softmax, contraction: any layout, any order of scale, mask and soft-cap."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from xdsl.ir import Operation, SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Atom, Axis, Layout, atoms_of, axis, leaves, resolved
from lampc.passes.raising.contraction import Contraction
from lampc.passes.raising.graph import Refusal, constant, is_node, node_of, shape_of, title
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_structure import split_masks
from lampc.passes.raising.mask_terms import MaskTerm
from lampc.passes.raising.operands import Candidate, best, candidates, holding
from lampc.passes.raising.plan import Operand, Plan
from lampc.passes.raising.scores import Scores, probabilities


def match(contraction: Contraction, side: int, host: HostNodes) -> Plan:
    """
    The attention whose probabilities are operand `side` (0 or 1) of `contraction`; `host` takes nodes to be added.

    Raises Refusal with the reason and the node where matching stopped.
    """
    if contraction.alpha != 1.0:
        raise Refusal("a factor on the output", contraction.node)
    both = ((contraction.left, contraction.left_labels), (contraction.right, contraction.right_labels))
    (p_value, p_labels), (v_value, v_labels) = both[side], both[1 - side]
    sizes = contraction.sizes()
    axes = {label: axis(label, size) for label, size in sizes.items()}
    row_label = [label for label in contraction.out_labels if label not in v_labels][-1:]
    if not contraction.summed or not row_label:
        raise Refusal("it is no product of probabilities and values", contraction.node)
    keys = tuple(atom for label in contraction.summed for atom in axes[label])

    def layout_of(value: SSAValue, labels: Sequence[str]) -> Layout:
        return tuple(() if n == 1 else axes[label] for label, n in zip(labels, shape_of(value), strict=True))

    scores = probabilities(p_value, layout_of(p_value, p_labels), keys, contraction.node)
    assert scores.query is not None and scores.key is not None
    _used_inside_only(scores.weights, scores.absorbed, contraction.node)
    _masks_of_their_own(scores)
    query = scores.query
    if scores.row_factor is not None:  # a factor per head, or per query: the host multiplies Q by it
        value = host.node("Mul", [query[0], scores.row_factor[0]])
        if value.type != query[0].type:
            raise Refusal("a factor per head that broadcasts the queries", contraction.node)
        query = (value, query[1])
    wide = [label for label in contraction.out_labels if label not in p_labels]
    outer = [label for label in contraction.out_labels if label not in (*wide, *row_label)]
    return _Assembly(
        scores,
        host,
        candidates(*query),
        candidates(*scores.key),
        candidates(v_value, layout_of(v_value, v_labels), scales=False),
        tuple(axes[label] for label in contraction.out_labels),
        tuple(axes[label] for label in outer),
        axes[row_label[0]],
        tuple(atom for label in wide for atom in axes[label]),
    ).plan()


def _used_inside_only(weights: Sequence[NodeOp], absorbed: Sequence[NodeOp], anchor: NodeOp) -> None:
    """
    Raise Refusal if somebody else needs the probabilities: they would not be those that weigh the values.

    Scores that others read (qk_matmul_output, a loss) are computed by the host as well.
    """
    inside = set[Operation]((*absorbed, anchor))
    for node in weights:
        for result in node.results:
            for use in result.uses:
                user = use.operation
                if user not in inside and not _reads_type_for(user, use.index, inside):
                    who = title(user) if isinstance(user, NodeOp) else "the graph's outputs"
                    raise Refusal(f"its result is also used by {who}", node)


def _masks_of_their_own(scores: Scores) -> None:
    """Raise Refusal if a mask is computed from the scores (such as the largest k of a row): the host would need all of them."""
    inside = set[Operation](scores.absorbed)
    for term in scores.terms:
        pending: list[SSAValue] = [term.value]
        seen = set[Operation]()
        for value in pending:
            node = node_of(value)
            if node in inside:
                raise Refusal("the scores mask themselves", term.node)
            if node is not None and node not in seen:
                seen.add(node)
                pending.extend(node.operands[:1] if is_node(node, "CastLike") else node.operands)


def _reads_type_for(user: Operation, index: int, inside: set[Operation]) -> bool:
    """Whether a user takes only the type, for the benefit of nodes inside: `CastLike(constant, scores)`."""
    if not isinstance(user, NodeOp) or not is_node(user, "CastLike") or index != 1:
        return False
    return all(use.operation in inside for use in user.results[0].uses)


class _Assembly:
    """Names the atoms that the walks found (batch, heads, queries, keys, sizes) and picks the operands."""

    def __init__(
        self,
        scores: Scores,
        host: HostNodes,
        query: list[Candidate],
        key: list[Candidate],
        value: list[Candidate],
        output: Layout,
        outer: tuple[Axis, ...],
        rows: Axis,
        value_size: Axis,
    ):
        self.scores = scores
        self.host = host
        self.anchor = host.anchor
        self.query, self.key, self.value = query, key, value
        self.output = resolved(output)
        self.outer = [leaves(group) for group in outer]
        self.rows = leaves(rows)
        self.keys = leaves(scores.keys)
        self.head = leaves(scores.head)
        self.value_size = leaves(value_size)

    def plan(self) -> Plan:
        terms = [replace(term, layout=resolved(term.layout)) for term in self.scores.terms]
        extra, rows = self._rows(terms)
        outer = tuple(atom for group in self.outer for atom in group)
        shared = self._shared((*outer, *extra))
        repeated = tuple(a for a in (*outer, *extra) if a not in shared)
        heads = self._heads(shared)
        batch = tuple(a for a in outer if a in shared and a not in heads)
        key_heads = tuple(a for a in outer if a in heads)
        query_heads = (*key_heads, *repeated)
        query, query_factor = self._take("query", self.query, (batch, query_heads, rows, self.head))
        key, key_factor = self._take("key", self.key, (batch, key_heads, self.keys, self.head))
        value, _ = self._take("value", self.value, (batch, key_heads, self.keys, self.value_size))
        canonical = (batch, query_heads, rows, self.keys)
        structure, tensors = split_masks(terms, rows, self.keys)
        tensors = tuple(self._widened(term, canonical) for term in tensors)
        scale = self.scores.factor * query_factor * key_factor
        softcap = self.scores.softcap
        if softcap is not None:
            scale *= softcap
            if not softcap > 0:
                raise Refusal(f"a soft-cap of {softcap:g}", self.anchor)
        if not (scale > 0 and math.isfinite(scale)):
            raise Refusal(f"a scale of {scale:g}", self.anchor)
        return Plan(
            self.anchor,
            query,
            key,
            value,
            self.output,
            canonical,
            self.value_size,
            scale,
            self.scores.absorbed,
            structure,
            tensors,
            self._sinks(query_heads),
            softcap,
        )

    def _rows(self, terms: Sequence[MaskTerm]) -> tuple[Axis, Axis]:
        """Atoms of the row axis that are heads (a mask tells them apart), and those that are queries."""
        rows = self.rows
        for term in terms:
            used = [atom for atom in rows if atom in atoms_of(term.layout)]
            if used and len(used) < len(rows):
                rows = rows[rows.index(used[0]) :]
        return self.rows[: len(self.rows) - len(rows)], rows

    def _shared(self, outer: Axis) -> frozenset[Atom]:
        """The batch and head atoms K and V run over; the others read the same keys and values."""
        allowed = frozenset(outer)

        def choices(found: list[Candidate], inner: Axis) -> set[frozenset[Atom]]:
            sets = {frozenset(atoms_of(c.layout)) & allowed for c in found}
            return {s for s in sets if holding(found, (*s, *inner))}

        common = choices(self.key, (*self.keys, *self.head)) & choices(self.value, (*self.keys, *self.value_size))
        if not common:
            raise Refusal("keys and values run over different axes", self.anchor)
        return min(common, key=len)

    def _heads(self, shared: frozenset[Atom]) -> set[Atom]:
        """
        Which shared atoms are heads: those that some projection keeps in one axis with the head size, else the last axis but
        the first beside rows and sizes, in the products or in a tensor they come from; and what is minor to a head on an axis
        of the products (copies of it). The rest is batch.
        """
        found = self._some_heads(shared)
        for group in self.outer:
            first = next((i for i, atom in enumerate(group) if atom in found), len(group))
            found |= set(group[first:]) & shared
        return found

    def _some_heads(self, shared: frozenset[Atom]) -> set[Atom]:
        sizes = {*self.head, *self.value_size}
        layouts = [resolved(c.layout) for found in (self.query, self.key, self.value) for c in found]
        heads = {atom for layout in layouts for group in layout if sizes & set(group) for atom in group} & shared
        if heads:
            return heads
        if len(self.outer) > 1:  # the first is the batch
            return next((found for group in reversed(self.outer[1:]) if (found := set(group) & shared)), set[Atom]())
        inner = {*sizes, *self.rows, *self.keys}
        for layout in layouts:
            beside = [group for group in layout if group and not inner & set(group)]
            if len(layout) == 4 and len(beside) == 2:
                return set(beside[1]) & shared
        return set()

    def _take(self, role: str, found: list[Candidate], target: Layout) -> tuple[Operand, float]:
        fitting = holding(found, atoms_of(target))
        if not fitting:
            raise Refusal(f"the {role} is broadcast or mixes axes", self.anchor)
        chosen = best(fitting, target)
        return Operand(chosen.value, resolved(chosen.layout), target), chosen.factor

    def _widened(self, term: MaskTerm, canonical: tuple[Axis, Axis, Axis, Axis]) -> MaskTerm:
        """The mask, repeated by the host where it runs over a part of an axis of the scores (some of the heads' atoms)."""
        used = atoms_of(term.layout)
        missing = [atom for group in canonical if set(group) & set(used) for atom in group if atom not in used]
        if not missing:
            return term
        sizes = [atom.size for atom in used]
        narrow = self.host.reshape(term.value, [*sizes, *[1] * len(missing)])
        shape = [*sizes, *(atom.size for atom in missing)]
        wide = self.host.node("Expand", [narrow, self.host.integers(*shape)], shape=shape)
        return replace(term, value=wide, layout=tuple((atom,) for atom in (*used, *missing)))

    def _sinks(self, heads: Axis) -> Operand | None:
        if self.scores.sink is None:
            return None
        value, layout = self.scores.sink
        folded = constant(value)
        if folded is not None:  # the importer may have computed a broadcast of the sinks
            where = [i for i, group in enumerate(resolved(layout)) if set(group) & set(heads)]
            first = tuple(slice(None) if i in where else slice(0, 1) for i in range(folded.ndim))
            if np.array_equal(folded, np.broadcast_to(folded[first], folded.shape)):
                narrow = tuple(group if i in where else () for i, group in enumerate(resolved(layout)))
                value, layout = self.host.constant(folded[first]), narrow
        found = holding(candidates(value, layout, scales=False), heads)
        if not found:
            raise Refusal("the sinks are not one logit per head", self.anchor)
        chosen = best(found, (heads,))
        return Operand(chosen.value, resolved(chosen.layout), (heads,))
