"""Cut nodes out of a function as an `onnx.segment` that the host runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from lampc.dialects.onnx import AbsentOp, ConstantOp, InitializerOp, NodeOp, SegmentOp
from lampc.ir import argument_name

FREE = (ConstantOp, InitializerOp, AbsentOp)
"""Ops that every segment has its own copy of: weights and constants are no traffic between segments."""


@dataclass(frozen=True)
class Segment:
    """A call that is in no block yet, the private function it calls, and the values that its operands and results stand for."""

    call: SegmentOp
    function: FuncOp
    inputs: list[SSAValue]
    outputs: list[SSAValue]


def reads_of(node: Operation) -> list[SSAValue]:
    """Values from outside that a node reads, those its bodies capture included, each once."""
    defined: set[SSAValue] = set()
    read: dict[SSAValue, None] = {}
    for op in node.walk():
        for region in op.regions:
            for block in region.blocks:
                defined.update(block.args)
        if op is not node:
            defined.update(op.results)
        read.update(dict.fromkeys(op.operands))
    return [value for value in read if value not in defined]


def cut(
    name: str,
    members: Sequence[NodeOp],
    onnx_name: Callable[[SSAValue], str],
    operands: Callable[[SSAValue], SSAValue] = lambda value: value,
) -> Segment:
    """
    Copies of `members`, nodes of one block in its order, as a segment.

    onnx_name  the ONNX name of a value
    operands   what the call is given for a value that the members read

    The members stay where they are.
    """
    own = {result for node in members for result in node.results}
    read = dict.fromkeys(value for node in members for value in reads_of(node) if value not in own)
    inputs = [value for value in read if not isinstance(value.owner, FREE)]
    inside = set[Operation](members)
    outputs = [result for node in members for result in node.results if _leaves(result, inside)]
    call = SegmentOp(
        name,
        [operands(value) for value in inputs],
        [value.type for value in outputs],
        input_names=[onnx_name(value) for value in inputs],
        output_names=[onnx_name(value) for value in outputs],
    )
    call.location = members[0].location
    body = Block(arg_types=[value.type for value in inputs])
    copies: dict[SSAValue, SSAValue] = {}
    for old, new in zip(inputs, body.args, strict=True):
        copies[old] = new
        new.name_hint = old.name_hint or None
    for value in read:
        if isinstance(value.owner, FREE):
            body.add_op(value.owner.clone(copies))
    for node in members:
        body.add_op(node.clone(copies))
    end(body, [copies[value] for value in outputs], members[-1])
    function = FuncOp(name, ([v.type for v in inputs], [v.type for v in outputs]), Region(body), "private")
    function.location = call.location
    return Segment(call, function, inputs, list(outputs))


def end(body: Block, values: Sequence[SSAValue], source: Operation) -> None:
    """Return `values` from a function, at the location of `source`."""
    last = ReturnOp(*values)
    last.location = source.location
    body.add_op(last)


def tensor_name(function: FuncOp, value: SSAValue) -> str | None:
    """The name in the ONNX graph of a value of `function`, None for one that has none there."""
    owner = value.owner
    if isinstance(owner, NodeOp):
        return owner.names.data[owner.results.index(value)].data  # pyright: ignore[reportArgumentType]
    if isinstance(owner, SegmentOp):
        return owner.output_names.data[owner.results.index(value)].data  # pyright: ignore[reportArgumentType]
    if isinstance(owner, ConstantOp | InitializerOp):
        return owner.tensor_name.data
    if isinstance(owner, Block):
        index = owner.args.index(value)  # pyright: ignore[reportArgumentType]
        return argument_name(function, index) or value.name_hint or f"argument_{index}"
    name = owner.attributes.get("onnx.name")
    return name.data if isinstance(name, StringAttr) else value.name_hint


def _leaves(result: SSAValue, inside: set[Operation]) -> bool:
    """Whether somebody outside reads the value."""
    for use in result.uses:
        op: Operation | None = use.operation
        while op is not None and op not in inside:
            op = op.parent_op()
        if op is None:
            return True
    return False
