"""Cut a model into host segments and calls of attention functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.dialects.onnx import NodeOp, SegmentOp
from lampc.errors import CompileError
from lampc.passes.segments import FREE, cut, end, reads_of, tensor_name


@dataclass(frozen=True)
class OutlineHostPass(ModulePass):
    """
    Partition every public function, which is `main`, into `onnx.segment`s, which the host runs, and calls of functions that hold one attention each.

    A node runs as soon as it can: after as many attentions as the longest chain before it has. So there is one segment more
    than the longest chain of attentions, the least possible. What depends on constants alone goes to the first segment that
    uses it. Equal attentions share one function; the calls keep the attentions' locations. What `lamp-keep-attention` has cut
    out counts as an attention.

    Before:
    ```mlir
    func.func @main(%q: tensor<1x9x40x64xf32>, %k: tensor<1x40x576xf32>, %v: tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %heads = onnx.constant "heads" dense<[1, 40, 9, 64]> : tensor<4xi64>
      %k4 = onnx.node "Reshape"(%k, %heads) version 14 names ["k4"] : (tensor<1x40x576xf32>, tensor<4xi64>) -> tensor<1x40x9x64xf32>
      %kt = onnx.node "Transpose"(%k4) {perm = array<i64: 0, 2, 3, 1>} version 13 names ["kt"] : (tensor<1x40x9x64xf32>) -> tensor<1x9x64x40xf32>
      %0 = attn.rearrange %kt {pattern = "b h d l -> b h l d"} : tensor<1x9x64x40xf32> -> tensor<1x9x40x64xf32>
      %o = attn.attention %q, %0, %v {onnx.name = "o", scale = 1.250000e-01 : f32, causal} : tensor<1x9x40x64xf32>, tensor<1x9x40x64xf32>, tensor<1x9x40x64xf32> -> tensor<1x9x40x64xf32>
      func.return %o : tensor<1x9x40x64xf32>
    }
    ```
    After `lamp-outline-host`:
    ```mlir
    func.func @main(%q: tensor<1x9x40x64xf32>, %k: tensor<1x40x576xf32>, %v: tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %kt = onnx.segment @segment_0(%k) inputs ["k"] outputs ["kt"] : (tensor<1x40x576xf32>) -> tensor<1x9x64x40xf32>
      %o = func.call @attention_0(%q, %kt, %v) {onnx.name = "o"} : (tensor<1x9x40x64xf32>, tensor<1x9x64x40xf32>, tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32>
      func.return %o : tensor<1x9x40x64xf32>
    }
    func.func private @segment_0(%k: tensor<1x40x576xf32>) -> tensor<1x9x64x40xf32> {
      %heads = onnx.constant "heads" dense<[1, 40, 9, 64]> : tensor<4xi64>
      %k4 = onnx.node "Reshape"(%k, %heads) version 14 names ["k4"] : (tensor<1x40x576xf32>, tensor<4xi64>) -> tensor<1x40x9x64xf32>
      %kt = onnx.node "Transpose"(%k4) {perm = array<i64: 0, 2, 3, 1>} version 13 names ["kt"] : (tensor<1x40x9x64xf32>) -> tensor<1x9x64x40xf32>
      func.return %kt : tensor<1x9x64x40xf32>
    }
    func.func private @attention_0(%query: tensor<1x9x40x64xf32>, %key: tensor<1x9x64x40xf32>, %value: tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %0 = attn.rearrange %key {pattern = "b h d l -> b h l d"} : tensor<1x9x64x40xf32> -> tensor<1x9x40x64xf32>
      %1 = attn.attention %query, %0, %value {scale = 1.250000e-01 : f32, causal} : tensor<1x9x40x64xf32>, tensor<1x9x40x64xf32>, tensor<1x9x40x64xf32> -> tensor<1x9x40x64xf32>
      func.return %1 : tensor<1x9x40x64xf32>
    }
    ```
    Source: docs/onnx.md §5.
    """  # noqa: E501

    name = "lamp-outline-host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.body.ops):
            if isinstance(function, FuncOp) and function.body.blocks and function.sym_visibility != StringAttr("private"):
                op.body.block.add_ops(_Outline(function).run())


@dataclass(eq=False)
class _Attention:
    """An attention with the rearrangements around it, which share its function."""

    op: AttentionOp
    before: tuple[RearrangeOp, ...]
    after: RearrangeOp | None
    stage: int = 0

    @classmethod
    def around(cls, op: AttentionOp) -> Self:
        before = tuple(value.owner for value in op.operands if isinstance(value.owner, RearrangeOp))
        users = [use.operation for use in op.output.uses]
        after = users[0] if len(users) == 1 and isinstance(users[0], RearrangeOp) else None
        return cls(op, before, after)

    @property
    def ops(self) -> tuple[Operation, ...]:
        return (*self.before, self.op, *([self.after] if self.after else []))

    @property
    def inputs(self) -> list[SSAValue]:
        """What the function takes: the operands, before their rearrangements, in operand order."""
        return [v.owner.input if isinstance(v.owner, RearrangeOp) else v for v in self.op.operands]

    @property
    def roles(self) -> list[str]:
        roles = ["query", "key", "value"]
        return [*roles, *(["mask"] if self.op.mask else []), *(["sinks"] if self.op.sinks else [])]

    @property
    def result(self) -> SSAValue:
        return (self.after or self.op).results[0]


class _Outline:
    """The partition of one function."""

    def __init__(self, function: FuncOp):
        self.function = function
        self.block = function.body.block
        self.attentions = [_Attention.around(op) for op in self.block.ops if isinstance(op, AttentionOp)]
        self.grouped = {op: attention for attention in self.attentions for op in attention.ops}
        self.kept = [op for op in self.block.ops if isinstance(op, SegmentOp)]
        self.nodes = [op for op in self.block.ops if isinstance(op, NodeOp)]
        self.reads = {node: reads_of(node) for node in self.nodes}
        self.level: dict[Operation, int] = {}
        self.shared: list[FuncOp] = []
        self.main = Block(arg_types=[arg.type for arg in self.block.args])
        self.values: dict[SSAValue, SSAValue] = dict(zip(self.block.args, self.main.args, strict=True))
        for old, new in zip(self.block.args, self.main.args, strict=True):
            new.name_hint = old.name_hint or None

    def run(self) -> list[FuncOp]:
        """Rewrite the function; returns the private functions it now needs."""
        for op in self.block.ops:
            if not isinstance(op, (NodeOp, SegmentOp, ReturnOp, *FREE)) and op not in self.grouped:
                raise CompileError(f"lamp-outline-host: '{op.name}' is no node and no attention; run it on level 1")
        self._find_levels()
        segments: list[FuncOp] = []
        for stage in sorted({*self.level.values(), *(a.stage for a in self.attentions)}):
            members = [node for node in self.nodes if self.level[node] == stage]
            if members:
                segments.append(self._segment(f"segment_{len(segments)}", members))
            for attention in self.attentions:
                if attention.stage == stage:
                    self._call(attention)
            for kept in self.kept:
                if self.level[kept] == stage:
                    self._again(kept)
        last = self.block.last_op
        assert isinstance(last, ReturnOp)
        self.main.add_op(last.clone({value: self._value(value) for value in last.operands}))
        self.function.detach_region(self.function.body)
        self.function.add_region(Region(self.main))
        return [*segments, *self.shared]

    def _find_levels(self) -> None:
        """How many attentions lie before each node on the longest path; constant nodes go to their first user."""
        level: dict[SSAValue, int] = dict.fromkeys(self.block.args, 0)
        for op in self.block.ops:
            if isinstance(op, NodeOp):
                self.level[op] = max((level.get(value, -1) for value in self.reads[op]), default=-1)
                level.update((result, self.level[op]) for result in op.results)
            elif isinstance(op, SegmentOp):
                self.level[op] = max([0, *(level.get(value, -1) for value in op.operands)])
                level.update((result, self.level[op] + 1) for result in op.results)
            elif isinstance(op, AttentionOp):
                attention = self.grouped[op]
                attention.stage = max(0, *(level.get(value, -1) for value in attention.inputs))
                level[attention.result] = attention.stage + 1
        first_use: dict[SSAValue, int] = {}

        def used(values: Sequence[SSAValue], stage: int) -> None:
            for value in values:
                first_use[value] = min(stage, first_use.get(value, stage))

        for attention in self.attentions:
            used(attention.inputs, attention.stage)
        for kept in self.kept:
            used(kept.operands, self.level[kept])
        for node in reversed(self.nodes):
            if self.level[node] < 0:
                self.level[node] = min((first_use[r] for r in node.results if r in first_use), default=0)
            used(self.reads[node], self.level[node])

    def _value(self, old: SSAValue) -> SSAValue:
        """The value in the new main; a constant is brought there when it is first asked for."""
        if old not in self.values and isinstance(old.owner, FREE):
            self.main.add_op(old.owner.clone(self.values))
        return self.values[old]

    def _segment(self, name: str, members: list[NodeOp]) -> FuncOp:
        segment = cut(name, members, self._onnx_name, self._value)
        self.main.add_op(segment.call)
        self._define(segment.outputs, segment.call.results)
        return segment.function

    def _again(self, segment: SegmentOp) -> None:
        """Call what another pass has cut out already."""
        call = segment.clone({value: self._value(value) for value in segment.operands})
        self.main.add_op(call)
        self._define(segment.results, call.results)

    def _call(self, attention: _Attention) -> None:
        arguments = [self._value(value) for value in attention.inputs]
        call = CallOp(self._function_of(attention), arguments, [attention.result.type])
        call.location = attention.op.location
        call.attributes["onnx.name"] = StringAttr(self._onnx_name(attention.result))
        self.main.add_op(call)
        self._define([attention.result], call.results)

    def _function_of(self, attention: _Attention) -> str:
        """The name of a function that does the same, an older one if there is one."""
        body = Block(arg_types=[value.type for value in attention.inputs])
        inside: dict[SSAValue, SSAValue] = {}
        operands: list[SSAValue] = []
        for role, operand, arg in zip(attention.roles, attention.op.operands, body.args, strict=True):
            arg.name_hint = role
            if isinstance(operand.owner, RearrangeOp):
                before = operand.owner.clone({operand.owner.input: arg}, clone_name_hints=False)
                body.add_op(before)
                operands.append(before.output)
            else:
                operands.append(arg)
        kernel = attention.op.clone(clone_name_hints=False)
        kernel.operands = operands
        inside[attention.op.output] = kernel.output
        tail = [kernel, *([attention.after.clone(inside, clone_name_hints=False)] if attention.after else [])]
        for op in tail:
            op.attributes.pop("onnx.name", None)
            body.add_op(op)
        end(body, tail[-1].results, attention.op)
        signature = ([arg.type for arg in body.args], [attention.result.type])
        function = FuncOp(f"attention_{len(self.shared)}", signature, Region(body), "private")
        function.location = attention.op.location
        for older in self.shared:
            if older.function_type == function.function_type and older.body.is_structurally_equivalent(function.body):
                function.erase()
                return older.sym_name.data
        self.shared.append(function)
        return function.sym_name.data

    def _define(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        for before, after in zip(old, new, strict=True):
            after.name_hint = before.name_hint or None
            self.values[before] = after

    def _onnx_name(self, value: SSAValue) -> str:
        """The name of a value's tensor in the ONNX graph."""
        name = tensor_name(self.function, value)
        return name or f"attention_result_{self.attentions.index(self.grouped[value.owner])}"  # pyright: ignore[reportArgumentType]
