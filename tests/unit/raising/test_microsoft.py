"""com.microsoft Attention and MultiHeadAttention against onnxruntime's own kernels."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from lampc.dialects.onnx_attributes import Array
from lampc.frontend.model import load_bytes
from tests.models.whole import Raised, raised
from tests.unit.raising.graphs import Graph

BATCH, QUERIES, KEYS, HEADS, SIZE = 2, 5, 6, 4, 8
WIDTH = HEADS * SIZE


def node(graph: Graph, op: str, *inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> None:
    domain = "com.microsoft"
    graph.nodes.append(
        helper.make_node(op, list(inputs), list(outputs), name="n", domain=domain, num_heads=HEADS, **attributes)
    )


def run(graph: Graph) -> Raised:
    graph.domains["com.microsoft"] = 1
    result = raised(load_bytes(graph.model().SerializeToString(), "graph"), graph.inputs)
    for difference in result.differences(graph.inputs):
        assert difference.within(1e-5), difference
    return result


def one(graph: Graph) -> None:
    result = run(graph)
    assert result.rejected == {} and len(result.attentions) == 1


def padding() -> Array:
    mask = np.ones((BATCH, KEYS), np.int32)
    mask[1, :2] = 0  # left padding: with causality the first rows see masked keys alone
    return mask


MASKS: dict[str, Array | None] = {
    "no mask": None,
    "ones and zeros": padding(),
    "lengths": np.array([KEYS, 3], np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(mask: str, bias: bool):
    graph = Graph()
    q, k, v = (
        graph.input("q", BATCH, QUERIES, WIDTH),
        graph.input("k", BATCH, KEYS, WIDTH),
        graph.input("v", BATCH, KEYS, WIDTH),
    )
    array = MASKS[mask]
    inputs = [q, k, v, graph.input("b", 3 * WIDTH), graph.given("m", array) if array is not None else ""]
    if bias:
        inputs.append(graph.input("bias", 1, HEADS, QUERIES, KEYS))
    node(graph, "MultiHeadAttention", *inputs, scale=0.3)
    graph.output("y", BATCH, QUERIES, WIDTH)
    one(graph)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["no mask", "ones and zeros"])
def test_attention(mask: str, causal: int):
    graph = Graph()
    array = MASKS[mask]
    inputs = [graph.input("x", BATCH, KEYS, 20), graph.constant(graph.rng.standard_normal((20, 3 * WIDTH)) / 4)]
    inputs += [graph.input("b", 3 * WIDTH), graph.given("m", array) if array is not None else ""]
    node(graph, "Attention", *inputs, unidirectional=causal)
    graph.output("y", BATCH, KEYS, WIDTH)
    one(graph)


def test_values_of_another_size():
    graph = Graph()
    widths = [WIDTH, WIDTH, WIDTH // 2]
    weights = graph.constant(graph.rng.standard_normal((20, sum(widths))) / 4)
    node(graph, "Attention", graph.input("x", BATCH, KEYS, 20), weights, graph.input("b", sum(widths)), qkv_hidden_sizes=widths)
    graph.output("y", BATCH, KEYS, WIDTH // 2)
    one(graph)


def test_unidirectional_with_more_keys_than_queries_is_refused():
    """onnxruntime leaves the last row unmasked there."""
    graph = Graph()
    inputs = [
        graph.input("q", BATCH, QUERIES, WIDTH),
        graph.input("k", BATCH, KEYS, WIDTH),
        graph.input("v", BATCH, KEYS, WIDTH),
    ]
    node(graph, "MultiHeadAttention", *inputs, unidirectional=1)
    graph.output("y", BATCH, QUERIES, WIDTH)
    assert "unidirectional with another number of keys" in run(graph).rejected["n"]


def test_a_cache_is_refused():
    graph = Graph()
    inputs = [
        graph.input("q", BATCH, QUERIES, WIDTH),
        graph.input("k", BATCH, KEYS, WIDTH),
        graph.input("v", BATCH, KEYS, WIDTH),
    ]
    node(graph, "MultiHeadAttention", *inputs, outputs=("y", "pk", "pv"))
    graph.output("y", BATCH, QUERIES, WIDTH)
    graph.output("pk", BATCH, HEADS, KEYS, SIZE)
    assert "its output present_key is used" in run(graph).rejected["n"]
