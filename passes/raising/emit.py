"""Write a matched attention into the module: rearrangements, the mask as one operand, `attn.attention`."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.dialects.onnx import ConstantOp, NodeOp, numpy_dtype, onnx_dtype, schema_of
from lampc.passes.raising.axis_maps import Atom, Axis, Layout, atoms_of
from lampc.passes.raising.graph import Refusal, element_of, is_node, node_of, shape_of
from lampc.passes.raising.plan import Operand, Plan
from lampc.passes.raising.scores import MaskTerm

LOWEST = float(np.finfo(np.float32).min)
"""
What a finite masking constant of a selection becomes. A selection replaces the score where `masked_value` is added to it:
with the lowest number, rows of masked keys alone come out equal (mean of V) in both.
"""


class Emission:
    """Collects the ops of one attention; `commit` puts them before the anchor and replaces its result."""

    def __init__(self, plan: Plan, opset: int):
        self.plan = plan
        self.opset = opset
        self.ops: list[Operation] = []
        self.element = element_of(plan.anchor.results[0])
        self.stem = next((n.data for n in plan.anchor.names if n.data), "attention")

    def build(self) -> SSAValue:
        """
        Make the ops; nothing of the module changes.

        Raises Refusal if the attention does not verify.
        """
        plan = self.plan
        query, key, value = (self._operand(o) for o in (plan.query, plan.key, plan.value))
        mask, masked_value = self._mask()
        structure = plan.structure
        attention = AttentionOp(
            query,
            key,
            value,
            scale=float(np.float32(plan.scale)),
            mask=mask,
            sinks=self._operand(plan.sinks) if plan.sinks else None,
            causal=structure is not None,
            causal_offset=structure.offset if structure else 0,
            window=structure.window if structure else None,
            softcap=plan.softcap,
            masked_value=masked_value,
        )
        self.ops.append(attention)
        batch, heads, rows, _ = plan.canonical
        result = self._rearranged(attention.output, (batch, heads, rows, plan.value_size), plan.output)
        for op in self.ops:
            op.location = plan.anchor.location
            try:
                op.verify_()
            except VerifyException as error:
                raise Refusal(str(error), plan.anchor) from error
        if result.type != plan.anchor.results[0].type:
            raise Refusal(f"the result would be {result.type}, not {plan.anchor.results[0].type}", plan.anchor)
        return result

    def commit(self, result: SSAValue) -> None:
        """Put the built ops before the anchor and let everybody use their result."""
        anchor = self.plan.anchor
        result.name_hint = anchor.results[0].name_hint
        self.ops[-1].attributes["onnx.name"] = StringAttr(self.stem)
        Rewriter.insert_op(self.ops, InsertPoint.before(anchor))
        anchor.results[0].replace_all_uses_with(result)

    def _add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def _operand(self, operand: Operand) -> SSAValue:
        value = operand.value
        if element_of(value) != self.element:
            value = self._node("Cast", [value], self.element, to=IntegerAttr(onnx_dtype(self.element), i64))
        return self._rearranged(value, operand.source, operand.target)

    def _rearranged(self, value: SSAValue, source: Layout, target: Layout) -> SSAValue:
        if source == target:
            return value
        pattern, sizes = pattern_of(source, target, self.plan)
        return self._add(RearrangeOp(value, pattern, sizes))

    # Masks -------------------------------------------------------------------------------------------------------

    def _mask(self) -> tuple[SSAValue | None, float | None]:
        """The mask operand and `masked_value`."""
        terms = self.plan.terms
        if not terms:
            return None, None
        if len(terms) == 1 and terms[0].selects:
            term = terms[0]
            live = self._negated(term.value) if term.inverted else term.value
            return self._placed(live, term.layout), None if term.masked == -np.inf else LOWEST
        values = [self._additive(term) for term in terms]
        value, layout = values[0], terms[0].layout
        for other, term in zip(values[1:], terms[1:], strict=True):
            layout = _joined(layout, term)
            value = self._node("Add", [value, other], element_of(value))
        return self._placed(value, layout), None

    def _placed(self, mask: SSAValue, layout: Layout) -> SSAValue:
        """The mask on axes that broadcast from the right to the scores."""
        used = set(atoms_of(layout))
        target = tuple(group if used & set(group) else () for group in self.plan.canonical)
        if len(layout) <= 4 and layout == target[4 - len(layout) :]:
            return mask
        return self._rearranged(mask, layout, target)

    def _negated(self, value: SSAValue) -> SSAValue:
        node = node_of(value)
        return node.operands[0] if node is not None and is_node(node, "Not") else self._node("Not", [value], i1)

    def _additive(self, term: MaskTerm) -> SSAValue:
        """The term as a float tensor that is added to the scores."""
        if term.selects:
            dtype = numpy_dtype(self.element)
            lowest: Any = ml_dtypes.finfo(dtype).min  # pyright: ignore[reportUnknownMemberType]
            low = self._constant(np.array(-np.inf if term.masked == -np.inf else lowest, dtype))
            zero = self._constant(np.zeros((), dtype))
            chosen = [term.value, low, zero] if term.inverted else [term.value, zero, low]
            return self._node("Where", chosen, self.element)
        if term.factor == 1.0:
            return term.value
        element = element_of(term.value)
        factor = self._constant(np.array(term.factor, numpy_dtype(element)))
        return self._node("Mul", [term.value, factor], element)

    # Nodes that the host runs beside the model's own ---------------------------------------------------------------

    def _constant(self, values: np.ndarray) -> SSAValue:
        return self._add(ConstantOp(self._fresh(), values))

    def _node(self, op_type: str, operands: Sequence[SSAValue], element: Attribute, **attributes: Attribute) -> SSAValue:
        schema = schema_of(op_type, "", self.opset)
        if schema is None:
            raise Refusal(f"opset {self.opset} has no {op_type}, which the mask needs", self.plan.anchor)
        shape = np.broadcast_shapes(*(shape_of(v) for v in operands))
        return self._add(
            NodeOp(
                op_type,
                operands,
                [TensorType(element, shape)],
                names=[self._fresh()],
                version=schema.since_version,
                attributes=attributes,
            )
        )

    def _fresh(self) -> str:
        return f"lampc/{self.stem}/{len(self.ops)}"


def _joined(layout: Layout, term: MaskTerm) -> Layout:
    """The axis map of the sum of two masks."""
    rank = max(len(layout), len(term.layout))
    first, second = (((),) * (rank - len(x)) + x for x in (layout, term.layout))
    result: list[Axis] = []
    for a, b in zip(first, second, strict=True):
        if a and b and a != b:
            raise Refusal("two masks whose axes differ", term.node)
        result.append(a or b)
    return tuple(result)


def pattern_of(source: Layout, target: Layout, plan: Plan) -> tuple[str, dict[str, int]]:
    """
    The rearrangement from axes `source` to axes `target` in einops' notation, and the sizes it leaves open.

    Names follow the roles: b, h, l (rows; k for keys beside them), d; numbered where a role has several atoms.
    """
    present = atoms_of(source)
    batch, heads, rows, keys = plan.canonical
    heads = (*heads, *plan.key.target[1])
    roles = {"b": batch, "h": heads, "l": rows, ("k" if set(present) & set(rows) else "l"): keys}
    letters = {atom: letter for letter, group in roles.items() for atom in group}
    if set(rows) & set(present):
        letters.update(dict.fromkeys(rows, "l"))
    counts: dict[str, list[Atom]] = {}
    for atom in present:
        counts.setdefault(letters.get(atom, "d"), []).append(atom)
    names = {
        atom: letter if len(group) == 1 else f"{letter}{index}"
        for letter, group in counts.items()
        for index, atom in enumerate(group)
    }
    ones = _ones(source, target)
    left = " ".join(_group(group, names, ones.get(("source", i))) for i, group in enumerate(source))
    right = " ".join(_group(group, names, ones.get(("target", i))) for i, group in enumerate(target))
    return f"{left} -> {right}", {names[atom]: atom.size for group in source for atom in group[:-1]}


def _ones(source: Layout, target: Layout) -> dict[tuple[str, int], str]:
    """Names for axes of size one, if both sides have equally many: `b h l d` reads better than `1 h l d`."""
    left = [i for i, group in enumerate(source) if not group]
    right = [i for i, group in enumerate(target) if not group]
    if len(left) != len(right):
        return {}
    result: dict[tuple[str, int], str] = {}
    for s, t in zip(left, right, strict=True):
        letter = "bhld"[t if len(target) == 4 else s] if 4 in (len(source), len(target)) else f"u{s}"
        result["source", s] = result["target", t] = letter
    return result


def _group(group: Axis, names: dict[Atom, str], one: str | None) -> str:
    if not group:
        return one or "1"
    return names[group[0]] if len(group) == 1 else f"({' '.join(names[atom] for atom in group)})"
