"""What a matched attention is raised to: operands with their axis maps, mask terms, attributes."""

from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.axis_maps import Axis, Layout
from lampc.passes.raising.scores import MaskTerm


@dataclass(frozen=True)
class Operand:
    """A tensor and the atoms of its axes, as it is and as the attention wants it."""

    value: SSAValue
    source: Layout
    target: Layout


@dataclass(frozen=True)
class Structure:
    """A mask given by numbers: key i is live for query j if i <= j + offset and, with a window w, i > j + offset - w."""

    offset: int = 0
    window: int | None = None


@dataclass(frozen=True)
class Plan:
    """
    One attention found in the graph.

    anchor     the node whose first result the attention replaces
    absorbed   nodes between the operands and the anchor; nobody else may use their results
    output     axis map of the anchor's result
    canonical  (batch, query heads, queries, keys) in atoms
    terms      masks that stay tensors
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
    notes: tuple[str, ...] = field(default=())
