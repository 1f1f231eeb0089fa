"""Attention graphs as exporters could write them: one builder, every choice a parameter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lampc.dialects.onnx_attributes import Array


class Graph:
    """Appends nodes to an ONNX graph; values are tensor names."""

    def __init__(self, opset: int = 18, seed: int = 0):
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: dict[str, Array] = {}
        self.domains: dict[str, int] = {}
        self.outputs: dict[str, tuple[int, tuple[int, ...]]] = {}

    def input(self, name: str, *shape: int) -> str:
        """A graph input of standard normal values."""
        self.inputs[name] = self.rng.standard_normal(shape).astype(np.float32)
        return name

    def given(self, name: str, array: Array) -> str:
        """A graph input of these values."""
        self.inputs[name] = array
        return name

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def shape(self, *sizes: int) -> str:
        return self.constant(sizes, np.int64)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def transpose(self, value: str, *permutation: int) -> str:
        return self.node("Transpose", value, perm=permutation)

    def reshape(self, value: str, *sizes: int) -> str:
        return self.node("Reshape", value, self.shape(*sizes))

    def output(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs[name] = dtype, shape

    def model(self) -> onnx.ModelProto:
        """The graph, checked."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.inputs.items()
        ]
        outputs = [helper.make_tensor_value_info(name, *type_) for name, type_ in self.outputs.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.initializers)
        imports = [helper.make_opsetid(domain, version) for domain, version in (("", self.opset), *self.domains.items())]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        onnx.checker.check_model(model)  # pyright: ignore[reportUnknownMemberType]
        return model


@dataclass(frozen=True)
class Mask:
    """
    One mask term.

    kind   "add", "select" (live, score, c), "inverted" (dead, c, score), "subtract", "causal" (a constant that is added)
    axes   which of batch, heads, queries, keys it runs over
    """

    kind: str = "add"
    axes: tuple[bool, bool, bool, bool] = (False, False, True, True)
    masked: float = float("-inf")


@dataclass(frozen=True)
class Form:
    """Every choice of `attention`; the defaults are plain `Softmax(Q K^T) V`."""

    batch: int = 1
    kv_heads: int = 2
    group: int = 1
    queries: int = 5
    keys: int = 6
    size: int = 4
    value_size: int = 3
    layout: str = "bhld"  # of the inputs: bhld, blhd, blx (heads and size in one axis), xld (batch and heads in one axis)
    repeat: str = "expand"  # of key-value heads: expand, tile, concat-free copies come as an input
    turn: str = "transpose"  # of K: transpose, reshape (through three axes), einsum, swapped (scores [keys, queries])
    merged: bool = False  # batch and heads in one axis for both products
    query_scale: float = 1.0
    key_scale: float = 1.0
    score_scale: float = 1.0
    divide: bool = False
    softcap: float | None = None
    masks: tuple[Mask, ...] = field(default=())
    softmax: str = "node"  # node, shifted, written (Exp, ReduceSum, Div)
    guard: bool = False
    output: str = "bhld"

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


def attention(form: Form, seed: int = 0) -> Graph:
    """The graph of one attention of this form; its output is the only graph output."""
    graph = Graph(seed=seed)
    query = _operand(graph, "q", form, form.heads, form.queries, form.size)
    key = _repeated(graph, _operand(graph, "k", form, form.kv_heads, form.keys, form.size), form, form.keys, form.size)
    value = _repeated(
        graph, _operand(graph, "v", form, form.kv_heads, form.keys, form.value_size), form, form.keys, form.value_size
    )
    query = _scaled(graph, query, form.query_scale, form.divide)
    key = _scaled(graph, key, form.key_scale, form.divide)
    if form.merged:
        query, key, value = (
            graph.reshape(x, form.batch * form.heads, rows, size)
            for x, rows, size in (
                (query, form.queries, form.size),
                (key, form.keys, form.size),
                (value, form.keys, form.value_size),
            )
        )
    scores = _scaled(graph, _scores(graph, query, key, form), form.score_scale, form.divide)
    if form.softcap is not None:
        scores = graph.node("Div", scores, graph.constant(form.softcap))
        scores = graph.node("Mul", graph.node("Tanh", scores), graph.constant(form.softcap))
    for index, mask in enumerate(form.masks):
        scores = _masked(graph, scores, mask, form, index)
    weights = _softmax(graph, scores, form)
    if form.turn == "swapped":
        weights = graph.transpose(weights, *((0, 2, 1) if form.merged else (0, 1, 3, 2)))
    if form.guard:
        weights = graph.node("Where", graph.node("IsNaN", weights), graph.constant(0.0), weights)
    if form.turn == "einsum" and not form.merged:
        result = graph.node("Einsum", weights, value, equation="bhqk,bhke->bhqe")
    else:
        result = graph.node("MatMul", weights, value)
    if form.merged:
        result = graph.reshape(result, form.batch, form.heads, form.queries, form.value_size)
    shape = (form.batch, form.heads, form.queries, form.value_size)
    if form.output != "bhld":
        shape = (form.batch, form.queries, form.heads * form.value_size)
        result = graph.reshape(graph.transpose(result, 0, 2, 1, 3), *shape)
    graph.output(graph.node("Identity", result), *shape)
    return graph


def _operand(graph: Graph, name: str, form: Form, heads: int, rows: int, size: int) -> str:
    """An input in the form's layout, brought to [batch, heads, rows, size]."""
    match form.layout:
        case "blhd":
            return graph.transpose(graph.input(name, form.batch, rows, heads, size), 0, 2, 1, 3)
        case "blx":
            return graph.transpose(
                graph.reshape(graph.input(name, form.batch, rows, heads * size), form.batch, rows, heads, size), 0, 2, 1, 3
            )
        case "xld":
            return graph.reshape(graph.input(name, form.batch * heads, rows, size), form.batch, heads, rows, size)
        case _:
            return graph.input(name, form.batch, heads, rows, size)


def _repeated(graph: Graph, value: str, form: Form, rows: int, size: int) -> str:
    if form.group == 1:
        return value
    if form.repeat == "tile":
        return graph.node("Tile", value, graph.shape(1, form.group, 1, 1))
    wide = graph.node("Unsqueeze", value, graph.shape(2))
    wide = graph.node("Expand", wide, graph.shape(form.batch, form.kv_heads, form.group, rows, size))
    return graph.reshape(wide, form.batch, form.heads, rows, size)


def _scaled(graph: Graph, value: str, factor: float, divide: bool) -> str:
    if factor == 1.0:
        return value
    if divide:
        return graph.node("Div", value, graph.constant(1.0 / factor))
    return graph.node("Mul", graph.constant(factor), value)


def _scores(graph: Graph, query: str, key: str, form: Form) -> str:
    last = (0, 2, 1) if form.merged else (0, 1, 3, 2)
    if form.turn == "einsum" and not form.merged:
        return graph.node("Einsum", query, key, equation="bhqd,bhkd->bhqk")
    if form.turn == "swapped":
        return graph.node("MatMul", key, graph.transpose(query, *last))
    if form.turn == "reshape" and not form.merged:
        flat = graph.reshape(key, form.batch * form.heads, form.keys, form.size)
        turned = graph.transpose(flat, 0, 2, 1)
        return graph.node("MatMul", query, graph.reshape(turned, form.batch, form.heads, form.size, form.keys))
    return graph.node("MatMul", query, graph.transpose(key, *last))


def _masked(graph: Graph, scores: str, mask: Mask, form: Form, index: int) -> str:
    full = (form.batch, form.heads, form.queries, form.keys)
    sizes = [n if used else 1 for n, used in zip(full, mask.axes, strict=True)]
    if form.merged:
        sizes = [form.batch * form.heads, *full[2:]] if any(mask.axes[:2]) else [1, *sizes[2:]]
    if form.turn == "swapped":
        sizes[-2:] = sizes[:-3:-1]
    if mask.kind == "causal":
        allowed = np.tril(np.ones((form.queries, form.keys), np.bool_), form.keys - form.queries)
        values = np.where(allowed.T if form.turn == "swapped" else allowed, 0.0, mask.masked)
        return graph.node("Add", graph.constant(values), scores)
    live = graph.rng.random(sizes) < 0.7
    keys = live.ndim - (2 if form.turn == "swapped" else 1)
    np.moveaxis(live, keys, -1)[..., 0] = True
    if mask.kind == "select":
        return graph.node("Where", graph.given(f"m{index}", live), scores, graph.constant(mask.masked))
    if mask.kind == "inverted":
        return graph.node("Where", graph.given(f"m{index}", ~live), graph.constant(mask.masked), scores)
    bias = graph.rng.standard_normal(sizes).astype(np.float32)
    if mask.kind == "subtract":
        return graph.node("Sub", scores, graph.given(f"m{index}", bias))
    return graph.node("Add", scores, graph.given(f"m{index}", np.where(live, bias, np.float32(mask.masked))))


def _softmax(graph: Graph, scores: str, form: Form) -> str:
    axis = -2 if form.turn == "swapped" else -1
    if form.softmax == "node":
        return graph.node("Softmax", scores, axis=axis)
    axes = graph.shape(axis)
    shifted = graph.node("Sub", scores, graph.node("ReduceMax", scores, axes, keepdims=1))
    if form.softmax == "shifted":
        return graph.node("Softmax", shifted, axis=axis)
    powers = graph.node("Exp", shifted)
    return graph.node("Div", powers, graph.node("ReduceSum", powers, axes, keepdims=1))


def choose(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def random_form(seed: int) -> Form:
    """A form with every choice drawn."""
    rng = np.random.default_rng(seed)
    kinds = ("add", "select", "inverted", "subtract", "causal")
    masks: list[Mask] = []
    for _ in range(int(rng.integers(3))):
        batch, heads, rows, columns = (bool(rng.integers(2)) for _ in range(4))
        masks.append(Mask(choose(rng, kinds), (batch, heads, rows, columns), choose(rng, (float("-inf"), -1e9, -1e4))))
    queries = choose(rng, (1, 5, 6))
    return Form(
        batch=choose(rng, (1, 2)),
        kv_heads=choose(rng, (1, 2)),
        group=choose(rng, (1, 2, 3)),
        queries=queries,
        keys=choose(rng, (queries, 7)),
        size=choose(rng, (4, 5)),
        value_size=choose(rng, (3, 4)),
        layout=choose(rng, ("bhld", "blhd", "blx", "xld")),
        repeat=choose(rng, ("expand", "tile")),
        turn=choose(rng, ("transpose", "reshape", "einsum", "swapped")),
        merged=bool(rng.integers(2)),
        query_scale=choose(rng, (1.0, 0.5, 0.3)),
        key_scale=choose(rng, (1.0, 0.5, 0.3)),
        score_scale=choose(rng, (1.0, 0.5, 0.3)),
        divide=bool(rng.integers(2)),
        softcap=choose(rng, (None, None, 2.0)),
        masks=tuple(masks),
        softmax=choose(rng, ("node", "shifted", "written")),
        guard=bool(rng.integers(2)),
        output=choose(rng, ("bhld", "blx")),
    )


def mutate(model: onnx.ModelProto, rng: np.random.Generator) -> str:
    """Change one thing in a model, perhaps so that it is no attention any more or no model; says what."""
    graph = model.graph
    node = graph.node[int(rng.integers(len(graph.node)))]
    match int(rng.integers(6)):
        case 0:  # another axis order
            for attribute in node.attribute:
                if attribute.name == "perm":
                    attribute.ints[:] = rng.permutation(len(attribute.ints)).tolist()
                    return f"{node.name} permutes {list(attribute.ints)}"
        case 1:  # another axis
            for attribute in node.attribute:
                if attribute.name == "axis":
                    attribute.i = int(rng.integers(-4, 4))
                    return f"{node.name} runs over axis {attribute.i}"
        case 2:  # operands the other way round
            if len(node.input) > 1:
                node.input[0], node.input[1] = node.input[1], node.input[0]
                return f"{node.name} swaps its operands"
        case 3:  # something in between
            op = choose(rng, ("Relu", "Neg", "Abs", "Softmax", "Exp", "Tanh", "Identity"))
            position = int(rng.integers(len(node.input)))
            between = helper.make_node(op, [node.input[position]], ["between"], name="between")
            node.input[position] = "between"
            graph.node.insert(list(graph.node).index(node), between)
            return f"{op} before operand {position} of {node.name}"
        case 4:  # another operand
            names = [*(i.name for i in graph.input), *(output for other in graph.node for output in other.output)]
            position = int(rng.integers(len(node.input)))
            node.input[position] = choose(rng, names[: names.index(node.output[0])])
            return f"operand {position} of {node.name} is {node.input[position]}"
        case _:  # somebody else reads it
            extra = helper.make_node("Identity", [node.output[0]], ["extra"], name="extra")
            graph.node.append(extra)
            graph.output.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, None))
            graph.output[-1].type.tensor_type.ClearField("shape")
            return f"{node.name} is also an output"
    return "nothing"
