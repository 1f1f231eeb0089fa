"""
A small decoder with a cache, made here, in the forms that exporters write: one step with a cache, or both steps merged.

The merged form is the one of Hugging Face's optimum: `use_cache_branch` chooses between two branches, one for the prompt, which
ignores the cache inputs, and one for a step on top of a cache. Weights lie in the main graph and both branches read them.
"""

from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lampc.dialects.onnx_attributes import Array

LAYERS, HEADS, SIZE, VOCABULARY = 2, 2, 8, 50
WIDTH = HEADS * SIZE
PAST = "past_sequence_length"


class _Decoder:
    """Writes the nodes of one decoder; names of its values begin with `prefix`."""

    def __init__(self, prefix: str, cached: bool):
        self.prefix = prefix
        self.cached = cached
        self.nodes: list[NodeProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"/{name}", **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self.add("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def heads(self, value: str) -> str:
        return self.add("Transpose", self.add("Reshape", value, self.constant([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])

    def mask(self) -> str:
        """Additive: key j is allowed for query i if `j <= i + past` and the attention mask says so."""
        length = self.add("Gather", self.add("Shape", "input_ids"), self.constant(1))
        zero, one = self.constant(0), self.constant(1)
        total = self.add("Gather", self.add("Shape", "attention_mask"), one) if self.cached else length
        past = self.add("Sub", total, length)
        rows = self.add("Unsqueeze", self.add("Add", self.add("Range", zero, length, one), past), self.constant([1]))
        columns = self.add("Range", zero, total, one)
        causal = self.add("LessOrEqual", columns, rows)
        padding = self.add("Unsqueeze", self.add("Cast", "attention_mask", to=TensorProto.BOOL), self.constant([1, 2]))
        allowed = self.add("And", causal, padding)
        return self.add("Where", allowed, self.constant(0.0, np.float32), self.constant(-np.inf, np.float32))

    def build(self) -> list[tuple[str, str]]:
        """(what, name) of logits and of the present keys and values."""
        hidden = self.add("Gather", "embedding", "input_ids")
        hidden = self.add("Add", hidden, self.add("Gather", "positions", "position_ids"))
        mask = self.mask()
        outputs: list[tuple[str, str]] = []
        for layer in range(LAYERS):
            q, k, v = (self.heads(self.add("MatMul", hidden, f"w{layer}{each}")) for each in "qkv")
            if self.cached:
                k = self.add("Concat", f"past_key_values.{layer}.key", k, axis=2)
                v = self.add("Concat", f"past_key_values.{layer}.value", v, axis=2)
            outputs += [(f"present.{layer}.key", k), (f"present.{layer}.value", v)]
            scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
            scores = self.add("Add", self.add("Mul", scores, self.constant(SIZE**-0.5, np.float32)), mask)
            result = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
            merged = self.add("Reshape", self.add("Transpose", result, perm=[0, 2, 1, 3]), self.constant([0, 0, WIDTH]))
            hidden = self.add("Add", hidden, self.add("MatMul", merged, f"w{layer}o"))
        return [("logits", self.add("MatMul", hidden, "head")), *outputs]


def _value(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _weights() -> list[TensorProto]:
    rng = np.random.default_rng(0)
    shapes = {"embedding": (VOCABULARY, WIDTH), "positions": (64, WIDTH), "head": (WIDTH, VOCABULARY)}
    shapes |= {f"w{layer}{each}": (WIDTH, WIDTH) for layer in range(LAYERS) for each in "qkvo"}
    return [numpy_helper.from_array((rng.standard_normal(s) / 3).astype(np.float32), n) for n, s in shapes.items()]


def _graph(nodes: list[NodeProto], outputs: list[onnx.ValueInfoProto], *, total: str, merged: bool) -> GraphProto:
    inputs = [
        _value("input_ids", ["batch_size", "sequence_length"], TensorProto.INT64),
        _value("attention_mask", ["batch_size", total], TensorProto.INT64),
        _value("position_ids", ["batch_size", "sequence_length"], TensorProto.INT64),
    ]
    for layer in range(LAYERS):
        shape = ["batch_size", HEADS, PAST, SIZE]
        inputs += [_value(f"past_key_values.{layer}.{kind}", shape) for kind in ("key", "value")]
    if merged:
        inputs.append(_value("use_cache_branch", [1], TensorProto.BOOL))
    return helper.make_graph(nodes, "decoder", inputs, outputs, _weights())


def _model(graph: GraphProto) -> ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def cached_decoder(total: str = f"{PAST} + sequence_length") -> ModelProto:
    """One step on top of a cache; `total` is how the graph declares the length of the attention mask."""
    decoder = _Decoder("", cached=True)
    results = decoder.build()
    nodes = decoder.nodes + [helper.make_node("Identity", [name], [what]) for what, name in results]
    return _model(_graph(nodes, [_value(what, None) for what, _ in results], total=total, merged=False))


def merged_decoder() -> ModelProto:
    """Prompt and step in the branches of one If."""
    branches: dict[str, Any] = {}
    names: list[str] = []
    for branch, cached in (("then_branch", True), ("else_branch", False)):
        decoder = _Decoder(f"{branch[:4]}/", cached)
        results = decoder.build()
        names = [what for what, _ in results]
        branches[branch] = helper.make_graph(decoder.nodes, branch, [], [_value(name, None) for _, name in results])
    choose = helper.make_node("If", ["use_cache_branch"], names, name="optimum::if", **branches)
    return _model(_graph([choose], [_value(name, None) for name in names], total="attention_length", merged=True))


def decoder_inputs(batch: int, past: int, length: int, *, merged: bool | None = None) -> dict[str, Array]:
    """Inputs of one step by name; `merged` is the value of `use_cache_branch`, None for a model without it."""
    rng = np.random.default_rng(1)
    inputs: dict[str, Array] = {
        "input_ids": rng.integers(0, VOCABULARY, (batch, length)),
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": np.broadcast_to(np.arange(past, past + length), (batch, length)).copy(),
    }
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            cache = rng.standard_normal((batch, HEADS, past, SIZE)).astype(np.float32)
            inputs[f"past_key_values.{layer}.{kind}"] = cache
    return inputs if merged is None else inputs | {"use_cache_branch": np.array([merged])}
