"""Cut every attention out of the model as it stands, for the host to run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.dialects.onnx import NodeOp
from lampc.errors import CompileError
from lampc.ir import tensor_shape
from lampc.passes.raise_attention import RaiseAttentionPass
from lampc.passes.segments import FREE, cut, reads_of, tensor_name


@dataclass(frozen=True)
class KeepAttentionPass(ModulePass):
    """
    Make an `onnx.segment` of every attention that `lamp-raise-attention` would raise, its nodes as they are in the model.

    The host then runs the whole model, cut where it is cut for `attn.attention`: what differs from onnxruntime on the model in one
    piece is the cost of cutting. The nodes of an attention are those between its operands and its result; nodes that two attentions
    share stay outside. The attribute `attn.shape` of a segment's function says what the attention would be raised to; what is not
    raised is listed in `attn.rejected`.

    Before:
    ```mlir
    func.func @main(%q: tensor<1x2x5x4xf32>, %k: tensor<1x2x4x5xf32>, %v: tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32> {
      %qk = onnx.node "MatMul"(%q, %k) version 13 names ["qk"] : (tensor<1x2x5x4xf32>, tensor<1x2x4x5xf32>) -> tensor<1x2x5x5xf32>
      %p = onnx.node "Softmax"(%qk) {axis = -1 : i64} version 13 names ["p"] : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x5xf32>
      %o = onnx.node "MatMul"(%p, %v) version 13 names ["o"] : (tensor<1x2x5x5xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
      func.return %o : tensor<1x2x5x4xf32>
    }
    ```
    After `lamp-keep-attention`:
    ```mlir
    func.func @main(%q: tensor<1x2x5x4xf32>, %k: tensor<1x2x4x5xf32>, %v: tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32> {
      %o = onnx.segment @kept_0(%q, %k, %v) inputs ["q", "k", "v"] outputs ["o"] : (tensor<1x2x5x4xf32>, tensor<1x2x4x5xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
      func.return %o : tensor<1x2x5x4xf32>
    }
    func.func private @kept_0(%q: tensor<1x2x5x4xf32>, %k: tensor<1x2x4x5xf32>, %v: tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32> attributes {attn.shape = {batch = 1 : i64, query_heads = 2 : i64, kv_heads = 2 : i64, queries = 5 : i64, keys = 5 : i64, head_size = 4 : i64, value_size = 4 : i64}} {
      %qk = onnx.node "MatMul"(%q, %k) version 13 names ["qk"] : (tensor<1x2x5x4xf32>, tensor<1x2x4x5xf32>) -> tensor<1x2x5x5xf32>
      %p = onnx.node "Softmax"(%qk) {axis = -1 : i64} version 13 names ["p"] : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x5xf32>
      %o = onnx.node "MatMul"(%p, %v) version 13 names ["o"] : (tensor<1x2x5x5xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
      func.return %o : tensor<1x2x5x4xf32>
    }
    ```
    Source: docs/onnx.md §5.
    """  # noqa: E501

    name = "lamp-keep-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        copied: dict[SSAValue, SSAValue] = {}
        raised = op.clone(copied)
        RaiseAttentionPass().apply(ctx, raised)
        op.attributes.update(raised.attributes)
        originals = {copy: original for original, copy in copied.items()}
        for function, other in zip(list(op.body.ops), list(raised.body.ops), strict=True):
            if isinstance(function, FuncOp) and isinstance(other, FuncOp) and function.body.blocks:
                op.body.block.add_ops(_Keep(function, originals).run(other))


@dataclass(eq=False)
class _Attention:
    """What an attention was raised from."""

    nodes: list[NodeOp]
    location: Operation
    shape: DictionaryAttr


class _Keep:
    """One function, and the values of its own that those of the raised copy stand for."""

    def __init__(self, function: FuncOp, originals: dict[SSAValue, SSAValue]):
        self.function = function
        self.originals = originals
        self.nodes = [op for op in function.body.block.ops if isinstance(op, NodeOp)]
        self.reads = {node: reads_of(node) for node in self.nodes}
        self.order = {node: index for index, node in enumerate(self.nodes)}
        self.made = {name.data: node for node in self.nodes for name in node.names if name.data}

    def run(self, raised: FuncOp) -> list[FuncOp]:
        """Cut the attentions of the raised copy out of the function; returns the functions they are now in."""
        found = [self._attention(op) for op in raised.body.block.ops if isinstance(op, AttentionOp)]
        owners: dict[NodeOp, int] = {}
        for attention in found:
            for node in attention.nodes:
                owners[node] = owners.get(node, 0) + 1
        functions: list[FuncOp] = []
        for attention in found:
            nodes = [node for node in attention.nodes if owners[node] == 1]
            if nodes and self._is_convex(nodes):
                functions.append(self._cut(f"kept_{len(functions)}", nodes, attention))
        self._sort()
        return functions

    def _attention(self, op: AttentionOp) -> _Attention:
        """The nodes of the function between the attention's operands and its result, in order."""
        users = [use.operation for use in op.output.uses]
        last = users[0] if len(users) == 1 and isinstance(users[0], RearrangeOp) else op
        name = last.attributes["onnx.name"]
        assert isinstance(name, StringAttr)
        result = self.made[name.data]
        sources = set(self._sources(op.operands))
        before: set[NodeOp] = set()
        pending = [result]
        while pending:
            node = pending.pop()
            if node not in before:
                before.add(node)
                made = (value.owner for value in self.reads[node] if value not in sources)
                pending += [owner for owner in made if isinstance(owner, NodeOp)]
        between: list[NodeOp] = []
        for node in sorted(before, key=self.order.__getitem__):
            if any(value in sources for value in self.reads[node]):
                between.append(node)
                sources.update(node.results)
        batch, heads, queries, size = tensor_shape(op.query)
        _, kv_heads, keys, value_size = tensor_shape(op.value)
        names = ("batch", "query_heads", "kv_heads", "queries", "keys", "head_size", "value_size")
        sizes = (batch, heads, kv_heads, queries, keys, size, value_size)
        shape = DictionaryAttr({name: IntegerAttr(n, i64) for name, n in zip(names, sizes, strict=True)})
        return _Attention(between, op, shape)

    def _sources(self, values: Iterable[SSAValue]) -> Iterator[SSAValue]:
        """The function's own values, constants aside, that operands are, or are made from by ops that raising added."""
        for value in values:
            original = self.originals.get(value)
            if original is None:
                assert isinstance(value.owner, Operation)
                yield from self._sources(value.owner.operands)
            elif not isinstance(original.owner, FREE):
                yield original

    def _is_convex(self, nodes: list[NodeOp]) -> bool:
        """Whether nothing outside lies between two of the nodes."""
        members = set[Operation](nodes)
        after = {result for node in nodes for result in node.results}
        for node in self.nodes[self.order[nodes[0]] : self.order[nodes[-1]] + 1]:
            late = any(value in after and value.owner not in members for value in self.reads[node])
            if node in members:
                if late:
                    return False
            elif any(value in after for value in self.reads[node]):
                after.update(node.results)
        return True

    def _cut(self, name: str, nodes: list[NodeOp], attention: _Attention) -> FuncOp:
        def onnx_name(value: SSAValue) -> str:
            return tensor_name(self.function, value) or ""

        segment = cut(name, nodes, onnx_name)
        segment.call.location = segment.function.location = attention.location.location
        segment.function.attributes["attn.shape"] = attention.shape
        Rewriter.insert_op(segment.call, InsertPoint.before(nodes[-1]))
        for old, new in zip(segment.outputs, segment.call.results, strict=True):
            new.name_hint = old.name_hint or None
            old.replace_all_uses_with(new)
        for node in reversed(nodes):
            node.detach()
            node.erase()
        return segment.function

    def _sort(self) -> None:
        """Put the ops in an order in which each follows what it reads, close to the present one."""
        block = self.function.body.block
        ops = list(block.ops)
        place = {op: index for index, op in enumerate(ops)}
        needs = [{place[v.owner] for v in reads_of(op) if isinstance(v.owner, Operation)} for op in ops]
        users: list[list[int]] = [[] for _ in ops]
        for index, need in enumerate(needs):
            for producer in need:
                users[producer].append(index)
        missing = [len(need) for need in needs]
        ready = [index for index, count in enumerate(missing) if not count]
        heapify(ready)
        ordered: list[Operation] = []
        while ready:
            index = heappop(ready)
            ordered.append(ops[index])
            for user in users[index]:
                missing[user] -= 1
                if not missing[user]:
                    heappush(ready, user)
        if len(ordered) < len(ops):
            raise CompileError("two attentions need each other's inner values, so that the host cannot run them one by one")
        for op in ops:
            op.detach()
        block.add_ops(ordered)
