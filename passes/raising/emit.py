"""Write a matched attention into the module: rearrangements, the mask as one operand, `attn.attention`."""

from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import StringAttr, TensorType, f32, f64, i1
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.dialects.onnx import onnx_dtype
from lampc.passes.raising.axis_maps import Layout, atoms_of, size_of
from lampc.passes.raising.graph import Refusal, element_of, is_node, node_of, shape_of
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_terms import MASKING, MaskTerm, content_of
from lampc.passes.raising.patterns import pattern_of
from lampc.passes.raising.plan import Operand, Plan

LOWEST = float(np.finfo(np.float32).min)
"""
What a finite masking constant of a selection becomes. A selection replaces the score where `masked_value` is added to it:
with the lowest number, rows of masked keys alone come out equal (mean of V) in both.
"""


class Emission:
    """Makes the ops of one attention in `host`; `commit` puts them before the anchor and replaces its results."""

    def __init__(self, plan: Plan, host: HostNodes):
        self.plan = plan.settled()
        self.host = host
        self.element = element_of(plan.anchor.results[0])

    def build(self) -> SSAValue:
        """
        Make the ops; nothing of the module changes.

        Raises Refusal if one of them does not verify.
        """
        plan = self.plan
        query, key, value = (self._operand(operand) for operand in (plan.query, plan.key, plan.value))
        mask, masked_value = self._mask()
        sinks = self._operand(plan.sinks) if plan.sinks else None
        structure = plan.structure
        attention = AttentionOp(
            query,
            key,
            value,
            scale=float(np.float32(plan.scale)),
            mask=mask,
            sinks=sinks,
            causal=structure is not None,
            causal_offset=structure.offset if structure else 0,
            window=structure.window if structure else None,
            softcap=plan.softcap,
            masked_value=masked_value,
        )
        self.host.add(attention)
        if element_of(attention.output) != self.element:  # such as fp16 scores on fp32 values
            type_ = TensorType(self.element, shape_of(attention.output))
            Rewriter.replace_value_with_new_type(attention.output, type_)
        batch, heads, rows, _ = plan.canonical
        result = self._rearranged(attention.output, (batch, heads, rows, plan.value_size), plan.output)
        for op in self.host.ops:
            try:
                op.verify_()
            except VerifyException as error:
                raise Refusal(str(error), plan.anchor) from error
        if result.type != plan.anchor.results[0].type:
            raise Refusal(f"the result would be {result.type}, not {plan.anchor.results[0].type}", plan.anchor)
        return result

    def commit(self, result: SSAValue) -> None:
        """Put the ops before the anchor and let everybody use their results."""
        self.host.ops[-1].attributes["onnx.name"] = StringAttr(self.host.stem)
        self.host.commit(((self.plan.anchor.results[0], result), *self.plan.other_results))

    def _operand(self, operand: Operand) -> SSAValue:
        return self._rearranged(operand.value, operand.source, operand.target)

    def _rearranged(self, value: SSAValue, source: Layout, target: Layout) -> SSAValue:
        if source == target:
            return value
        pattern, sizes = pattern_of(source, target, self.plan)
        return self.host.add(RearrangeOp(value, pattern, sizes)).output

    def _mask(self) -> tuple[SSAValue | None, float | None]:
        """The mask operand and `masked_value`."""
        terms = list(self.plan.terms)
        if not terms:
            return None, None
        if all(self._is_predicate(term) for term in terms):
            terms = [self._selection(term) for term in terms]
        if all(term.selects and term.masked == terms[0].masked for term in terms):
            masked_value = None if terms[0].masked == -np.inf else LOWEST
            live = [self._live(term) for term in terms]
            if len(terms) == 1:
                return self._placed(live[0], terms[0].layout), masked_value
            return self._joined("And", live, terms), masked_value
        if len(terms) == 1:
            exact = terms[0].factor == 1.0 and element_of(terms[0].value) != f64
            value = terms[0].value if exact else self._additive(terms[0])
            return self._placed(value, terms[0].layout), None
        return self._joined("Add", [self._additive(term) for term in terms], terms), None

    def _is_predicate(self, term: MaskTerm) -> bool:
        """
        Whether a mask selects with -inf, or is a constant that adds 0 or a masking number and so means a selection.

        A finite number does if it is alone: with another mask it may be all that is left of a row.
        """
        if term.selects:
            return term.masked == -np.inf
        content = content_of(term.value)
        if content is None or content.kind.data not in ("keys", "causal"):
            return False
        masked = content.masked.value.data * term.factor
        if masked == -np.inf:
            return True
        queries, keys = shape_of(term.value)[-2:]
        alone = self.plan.structure is None and len(self.plan.terms) == 1
        every_row = not content.is_causal or bool(content.allowed(queries, keys).any(axis=1).all())
        return masked <= MASKING and alone and every_row

    def _selection(self, term: MaskTerm) -> MaskTerm:
        if term.selects:
            return term
        dead = self.host.node("Cast", [term.value], i1, to=onnx_dtype(i1))
        return replace(term, value=dead, factor=1.0, selects=True, masked=-np.inf, inverted=True)

    def _placed(self, mask: SSAValue, layout: Layout) -> SSAValue:
        """The mask on axes that broadcast from the right to the scores."""
        target = self._target(layout)
        if layout == target[4 - len(layout) :] and len(layout) <= 4:
            return mask
        return self._rearranged(mask, layout, target)

    def _joined(self, op_type: str, values: list[SSAValue], terms: list[MaskTerm]) -> SSAValue:
        """Several masks as one, each brought to axes that broadcast from the right."""
        total: SSAValue | None = None
        for value, term in zip(values, terms, strict=True):
            target = self._target(term.layout)
            if term.layout != target[4 - len(term.layout) :]:
                value = self._on_host(value, term.layout, target)
            total = value if total is None else self.host.node(op_type, [total, value])
        assert total is not None
        return total

    def _on_host(self, value: SSAValue, source: Layout, target: Layout) -> SSAValue:
        """What a rearrangement would do, by nodes of the host: split, transpose, merge."""
        atoms, wanted = atoms_of(source), atoms_of(target)
        if atoms != wanted:
            order = [atoms.index(atom) for atom in wanted]
            value = self.host.reshape(value, [atom.size for atom in atoms])
            value = self.host.node("Transpose", [value], shape=[atom.size for atom in wanted], perm=order)
        return self.host.reshape(value, [size_of(group) for group in target])

    def _target(self, layout: Layout) -> Layout:
        """The canonical axes that a mask with this map has, size one where it is broadcast."""
        used = set(atoms_of(layout))
        return tuple(group if used & set(group) else () for group in self.plan.canonical)

    def _live(self, term: MaskTerm) -> SSAValue:
        """A selection's boolean, true where live."""
        if not term.inverted:
            return term.value
        node = node_of(term.value)
        return node.operands[0] if node is not None and is_node(node, "Not") else self.host.node("Not", [term.value], i1)

    def _additive(self, term: MaskTerm) -> SSAValue:
        """The term as a tensor to add to others, in FP32 whatever the model's type: onnxruntime adds no bf16."""
        if term.selects:
            low = self.host.constant(np.array(-np.inf if term.masked == -np.inf else LOWEST, np.float32))
            zero = self.host.constant(np.zeros((), np.float32))
            chosen = [term.value, low, zero] if term.inverted else [term.value, zero, low]
            return self.host.node("Where", chosen, f32)
        value = term.value
        if element_of(value) == f64:
            value = self._within_f32(value)
        if element_of(value) != f32:
            value = self.host.node("Cast", [value], f32, to=onnx_dtype(f32))
        if term.factor == 1.0:
            return value
        return self.host.node("Mul", [value, self.host.constant(np.array(term.factor, np.float32))])

    def _within_f32(self, value: SSAValue) -> SSAValue:
        """FP64 numbers that are finite in FP32 too: -inf would make a row of FP64's lowest number zeros, not the mean of V."""
        low, high = (self.host.constant(np.array(number, np.float64)) for number in (LOWEST, -LOWEST))
        finite = self.host.node("Min", [self.host.node("Max", [value, low]), high])
        return self.host.node("Where", [self.host.node("IsInf", [value], i1), value, finite], f64)
