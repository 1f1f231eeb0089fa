"""What a matched attention is raised to: operands with their axis maps, mask terms, attributes."""

from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Axis, Layout, leaves, resolved
from lampc.passes.raising.mask_structure import Structure
from lampc.passes.raising.mask_terms import MaskTerm


@dataclass(frozen=True)
class Operand:
    """A tensor and the atoms of its axes, as it is and as the attention wants it."""

    value: SSAValue
    source: Layout
    target: Layout

    def settled(self) -> "Operand":
        return Operand(self.value, resolved(self.source), resolved(self.target))


@dataclass(frozen=True)
class Plan:
    """
    One attention found in the graph.

    anchor     the node whose first result the attention replaces
    absorbed   nodes between the operands and the anchor; nobody else may use their results
    output     axis map of the anchor's result
    canonical  (batch, query heads, queries, keys) in atoms
    terms      masks that stay tensors
    other_results  further results of the anchor and what stands for them
    """

    anchor: NodeOp
    query: Operand
    key: Operand
    value: Operand
    output: Layout
    canonical: tuple[Axis, Axis, Axis, Axis]
    value_size: Axis
    scale: float
    absorbed: tuple[NodeOp, ...] = ()
    structure: Structure | None = None
    terms: tuple[MaskTerm, ...] = ()
    sinks: Operand | None = None
    softcap: float | None = None
    other_results: tuple[tuple[SSAValue, SSAValue], ...] = ()

    def settled(self) -> "Plan":
        """The same in unsplit atoms: reading a mask may have split some after the operands were placed."""
        batch, heads, rows, keys = resolved(self.canonical)
        return replace(
            self,
            query=self.query.settled(),
            key=self.key.settled(),
            value=self.value.settled(),
            output=resolved(self.output),
            canonical=(batch, heads, rows, keys),
            value_size=leaves(self.value_size),
            terms=tuple(replace(term, layout=resolved(term.layout)) for term in self.terms),
            sinks=self.sinks.settled() if self.sinks else None,
        )


@dataclass(frozen=True)
class Nothing:
    """
    An attention without keys or without results, which the host answers with zeros.

    results  results of the node and what stands for them
    reason   why there is nothing to compute
    """

    results: tuple[tuple[SSAValue, SSAValue], ...]
    reason: str
