"""Find what looks like attention: `Attention` operators, and softmaxes that reach a contraction."""

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import i1
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from lampc.dialects.onnx import NodeOp, is_tensor
from lampc.ir import argument_name
from lampc.passes.raising import microsoft
from lampc.passes.raising.contraction import Contraction, contraction_of, is_contraction
from lampc.passes.raising.graph import Refusal, is_node, name_of
from lampc.passes.raising.layout_ops import LAYOUT_OPS, unchanged
from lampc.passes.raising.softmaxes import softmax_of

_QUANTISED = ("QuantizeLinear", "DequantizeLinear")
_AFTER_SOFTMAX = (*LAYOUT_OPS, *_QUANTISED, "Expand", "Cast", "CastLike", "IsNaN", "Where", "Slice", "Split", "Mul")
_BETWEEN_PRODUCTS = (*LAYOUT_OPS, "Expand", "Cast", "CastLike", "Identity", "Dropout", "Mul", "Div", "Add", "Sub", "Where")
_WEIGHTS = ("Sigmoid", "Relu", "Elu", "Softplus", "Tanh", "Pow", "Clip", "HardSigmoid")


@dataclass(frozen=True)
class Site:
    """
    One candidate.

    node         what the report calls it: the Attention operator or the softmax
    contraction  where it ends (None for an operator), with the probabilities on operand `side`
    refusal      a reason known already
    """

    node: NodeOp
    form: str
    contraction: Contraction | None = None
    side: int = 0
    refusal: Refusal | None = None


def sites(function: FuncOp) -> list[Site]:
    """All candidates of a function's body, in order; bodies of If, Loop and Scan stay on the host."""
    found: list[Site] = []
    for op in function.body.block.ops:
        if isinstance(op, NodeOp):
            found.extend(_sites_of(op))
            for inner in (n for region in op.regions for n in region.walk() if isinstance(n, NodeOp)):
                reason = _in_body(function, inner, op)
                found.extend(Site(site.node, site.form, refusal=reason) for site in _sites_of(inner))
    return found


def _in_body(function: FuncOp, node: NodeOp, outermost: NodeOp) -> Refusal:
    """Why a node in the body of an If, Loop or Scan stays with the host: the bodies around it, and what would help."""
    bodies: list[str] = []
    current: Operation = node
    while current is not outermost:
        region = current.parent_region()
        parent = current.parent_op()
        assert region is not None and isinstance(parent, NodeOp) and parent.graphs is not None
        graph = parent.graphs.data[parent.regions.index(region)].data
        kind = "branch" if is_node(parent, "If") else "graph"
        bodies.append(f"{kind} {graph} of node '{name_of(parent)}'")
        current = parent
    reason = f"E-UNSUPPORTED({outermost.op_type.data}): attention found in {' in '.join(bodies)}, which the host runs"
    inputs = _chosen_by(function, outermost) if is_node(outermost, "If") else ""
    return Refusal(f"{reason}; {inputs}" if inputs else reason)


def _chosen_by(function: FuncOp, node: NodeOp) -> str:
    """How to bind the inputs of one element that the condition of an If depends on; empty if there are none."""
    pending: list[SSAValue] = [node.operands[0]]
    options: list[str] = []
    for value in pending:
        if isinstance(value.owner, NodeOp):
            pending += [operand for operand in value.owner.operands if operand not in pending]
        elif isinstance(value, BlockArgument) and is_tensor(value.type) and all(size == 1 for size in value.type.get_shape()):
            name = argument_name(function, value.index) or value.name_hint or f"{value.index}"
            options.append(f"--value {name}={'true' if value.type.element_type == i1 else '1'}")
    return f"to compile the branch that runs, give its condition with --inputs or {' '.join(options)}" if options else ""


def _sites_of(node: NodeOp) -> Iterator[Site]:
    version = node.version.value.data
    if is_node(node, "Attention"):
        yield Site(node, f"Attention-{version}")
    elif is_node(node, "FlexAttention", "LinearAttention", domain=node.domain.data):
        yield Site(node, node.op_type.data, refusal=Refusal("this operator is not supported", node))
    elif is_node(node, *microsoft.SUPPORTED, domain="com.microsoft"):
        yield Site(node, f"com.microsoft.{node.op_type.data}")
    elif node.domain.data == "com.microsoft" and node.op_type.data in microsoft.UNSUPPORTED:
        reason = Refusal(f"this operator is not supported: {microsoft.UNSUPPORTED[node.op_type.data]}", node)
        yield Site(node, f"com.microsoft.{node.op_type.data}", refusal=reason)
    elif (softmax := softmax_of(node)) is not None:
        yield from _weighing(node, softmax.form)
    elif is_node(node, "LogSoftmax"):
        yield from _weighing(node, "LogSoftmax")


def _weighing(softmax: NodeOp, form: str) -> Iterator[Site]:
    """The contractions that the softmax's result reaches through layout and pointwise nodes."""
    pending, seen = [softmax], {softmax}
    for node in pending:
        for use in [use for result in node.results for use in result.uses]:
            user = use.operation
            if not isinstance(user, NodeOp) or user in seen:
                continue
            seen.add(user)
            if is_contraction(user):
                if use.index < 2:
                    yield _ending(softmax, f"{form}, {user.op_type.data}", user, use.index)
            elif user.op_type.data in _AFTER_SOFTMAX or unchanged(user) is not None:
                pending.append(user)


def _ending(softmax: NodeOp, form: str, user: NodeOp, side: int) -> Site:
    try:
        return Site(softmax, form, contraction_of(user), side)
    except Refusal as refusal:
        return Site(softmax, form, refusal=refusal)


def unweighted(function: FuncOp) -> Iterator[Site]:
    """Products of products of activations with no softmax between: linear attention, which is left alone."""
    varying = set[object](function.body.block.args)
    contractions: list[NodeOp] = []
    for op in function.body.block.ops:
        # CastLike takes only a type from its second operand
        if isinstance(op, NodeOp) and any(v in varying for v in (op.operands[:1] if is_node(op, "CastLike") else op.operands)):
            varying.update(op.results)
            if is_contraction(op) and all(value in varying for value in op.operands[:2]):
                contractions.append(op)
    known = set(contractions)
    for first in contractions:
        pending, seen = [first], {first}
        for node in pending:
            for user in (use.operation for result in node.results for use in result.uses):
                if not isinstance(user, NodeOp) or user in seen:
                    continue
                seen.add(user)
                if user in known:
                    reason = Refusal("no softmax between the two products", user)
                    yield Site(first, f"{first.op_type.data}, {user.op_type.data}", refusal=reason)
                elif user.op_type.data in (*_BETWEEN_PRODUCTS, *_WEIGHTS):
                    pending.append(user)
