"""Contractions: MatMul, Gemm, FusedMatMul and two-operand Einsum as labelled axes."""

from dataclasses import dataclass

from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp
from lampc.passes.raising.graph import (
    Refusal,
    float_attribute,
    int_attribute,
    is_node,
    operand,
    scalar,
    shape_of,
    text_attribute,
)


@dataclass(frozen=True)
class Contraction:
    """`output[out_labels] = alpha * sum(left[left_labels] * right[right_labels])`, one label per axis."""

    node: NodeOp
    left: SSAValue
    right: SSAValue
    left_labels: tuple[str, ...]
    right_labels: tuple[str, ...]
    out_labels: tuple[str, ...]
    alpha: float = 1.0

    @property
    def output(self) -> SSAValue:
        return self.node.results[0]

    @property
    def summed(self) -> tuple[str, ...]:
        """Labels of both operands that the output lacks, in the left operand's order."""
        return tuple(n for n in self.left_labels if n in self.right_labels and n not in self.out_labels)

    def sizes(self) -> dict[str, int]:
        """The size of every label; an operand's axis of one is broadcast to the other's."""
        sizes: dict[str, int] = {}
        for value, labels in ((self.left, self.left_labels), (self.right, self.right_labels)):
            for label, size in zip(labels, shape_of(value), strict=True):
                sizes[label] = max(size, sizes.get(label, 1))
        return sizes


CONTRACTIONS = ("MatMul", "Gemm", "Einsum")


def is_contraction(node: NodeOp | None) -> bool:
    return is_node(node, *CONTRACTIONS) or is_node(node, "FusedMatMul", domain="com.microsoft")


def contraction_of(node: NodeOp) -> Contraction:
    """Read a contraction. Raises Refusal for a form without two-operand labels."""
    if is_node(node, "Einsum"):
        return _einsum(node)
    if is_node(node, "Gemm"):
        return _gemm(node)
    return _matmul(node)


def _matmul(node: NodeOp) -> Contraction:
    left, right = node.operands[0], node.operands[1]
    left_rank, right_rank = len(shape_of(left)), len(shape_of(right))
    if left_rank < 2 or right_rank < 2:
        raise Refusal("a vector operand", node)
    for name in ("transBatchA", "transBatchB"):
        if int_attribute(node, name, 0):
            raise Refusal(f"{name} is set", node)
    batch = tuple(f"b{i}" for i in range(max(left_rank, right_rank) - 2))
    left_tail = ("c", "m") if int_attribute(node, "transA", 0) else ("m", "c")
    right_tail = ("n", "c") if int_attribute(node, "transB", 0) else ("c", "n")
    return Contraction(
        node,
        left,
        right,
        (*batch[len(batch) - (left_rank - 2) :], *left_tail),
        (*batch[len(batch) - (right_rank - 2) :], *right_tail),
        (*batch, "m", "n"),
        float_attribute(node, "alpha", 1.0),
    )


def _gemm(node: NodeOp) -> Contraction:
    bias = operand(node, 2)
    if bias is not None and float_attribute(node, "beta", 1.0) and scalar(bias) != 0.0:
        raise Refusal("a Gemm with a bias", node)
    return _matmul(node)


def _einsum(node: NodeOp) -> Contraction:
    equation = text_attribute(node, "equation", "").replace(" ", "")
    terms, arrow, out = equation.partition("->")
    inputs = terms.split(",")
    if len(inputs) != 2 or len(node.operands) != 2:
        raise Refusal(f"an Einsum of the form {equation!r}", node)
    left, right = (_labels(node, term, value) for term, value in zip(inputs, node.operands, strict=True))
    result = _labels(node, out, node.results[0]) if arrow else _implicit(left, right)
    if any(len(set(term)) != len(term) for term in (left, right, result)):
        raise Refusal(f"a repeated index in {equation!r}", node)
    lonely = [n for n in left + right if n not in result and not (n in left and n in right)]
    if lonely or any(n not in left + right for n in result):
        raise Refusal(f"an index of one operand alone in {equation!r}", node)
    return Contraction(node, node.operands[0], node.operands[1], left, right, result)


def _labels(node: NodeOp, term: str, value: SSAValue) -> tuple[str, ...]:
    """One label per axis; the axes under an ellipsis are counted from the right, since they broadcast."""
    before, dots, after = term.partition("...")
    covered = len(shape_of(value)) - len(before) - len(after)
    if covered < 0 or (covered and not dots):
        raise Refusal(f"an Einsum term {term!r} for {len(shape_of(value))} axes", node)
    return (*before, *(f".{i}" for i in reversed(range(covered))), *after)


def _implicit(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    """The output of an equation without an arrow: what an ellipsis covers, then in alphabetical order what stands once."""
    hidden = max(([n for n in term if n[0] == "."] for term in (left, right)), key=len)
    return (*hidden, *sorted(n for n in left + right if n[0] != "." and (left + right).count(n) == 1))
