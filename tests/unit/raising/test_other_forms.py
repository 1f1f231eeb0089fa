"""Spellings of docs/onnx.md section 4 that the composed graphs do not draw: ranks, guards, sinks, and what is left alone."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

from lampc.ir import tensor_shape
from tests.unit.raising.graphs import Graph
from tests.unit.raising.test_forms import head, refused, run, tail, the_attention

INF = float("inf")
LIVE = np.tri(5, 6, dtype=np.bool_)
LIVE[2] = False


def weights(graph: Graph, scores: str) -> str:
    return graph.node("Softmax", scores, axis=-1)


def last_axis(graph: Graph, op: str, value: str) -> str:
    return graph.node(op, value, graph.shape(-1), keepdims=1)


def all_scores_dead(graph: Graph, scores: str, live: str) -> str:
    """torch's _safe_softmax: all(scores == -inf)."""
    dead = graph.node("Cast", graph.node("Equal", scores, graph.constant(-INF)), to=TensorProto.INT32)
    return graph.node("Cast", last_axis(graph, "ReduceMin", dead), to=TensorProto.BOOL)


def none_alive(graph: Graph, scores: str, live: str) -> str:
    """~any(~(scores == -inf))."""
    alive = graph.node("Not", graph.node("Equal", scores, graph.constant(-INF)))
    some = last_axis(graph, "ReduceMax", graph.node("Cast", alive, to=TensorProto.INT32))
    return graph.node("Not", graph.node("Cast", some, to=TensorProto.BOOL))


def mask_has_none(graph: Graph, scores: str, live: str) -> str:
    some = last_axis(graph, "ReduceMax", graph.node("Cast", live, to=TensorProto.FLOAT))
    return graph.node("Not", graph.node("Cast", some, to=TensorProto.BOOL))


def largest_is_infinite(graph: Graph, scores: str, live: str) -> str:
    return graph.node("IsInf", last_axis(graph, "ReduceMax", scores), detect_positive=0)


@pytest.mark.parametrize("guard", [all_scores_dead, none_alive, mask_has_none, largest_is_infinite])
def test_guards(guard: Callable[[Graph, str, str], str]):
    graph = Graph()
    scores, value = head(graph)
    live = graph.given("live", LIVE)
    masked = graph.node("Where", live, scores, graph.constant(-INF))
    dead = guard(graph, masked, live)
    tail(graph, graph.node("Where", dead, graph.constant(0.0), weights(graph, masked)), value)
    the_attention(graph)


def test_a_guard_of_another_mask():
    graph = Graph()
    scores, value = head(graph)
    dead = mask_has_none(graph, scores, graph.given("live", LIVE))
    tail(graph, graph.node("Where", dead, graph.constant(0.0), weights(graph, scores)), value)
    assert "a guard of the probabilities looks at another mask" in refused(graph)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ends", ["negative", "far"])
def test_sinks_on_either_side(first: bool, ends: str):
    graph = Graph()
    scores, value = head(graph)
    sink = graph.node("Expand", graph.reshape(graph.input("s", 2), 1, 2, 1, 1), graph.shape(1, 2, 5, 1))
    both = [sink, scores] if first else [scores, sink]
    wide = weights(graph, graph.node("Concat", *both, axis=-1))
    end = 2**31 if first else {"negative": -1, "far": 6}[ends]
    tail(graph, graph.node("Slice", wide, graph.shape(1 if first else 0), graph.shape(end), graph.shape(-1)), value)
    op = the_attention(graph)
    assert op.sinks is not None and tensor_shape(op.sinks) == (2,)


def test_mask_of_more_axes_than_the_scores():
    """Scores of batch and heads merged [2, 5, 6], a mask [1, 1, 5, 6]."""
    graph = Graph()
    query, key, value = graph.input("q", 2, 5, 4), graph.input("k", 2, 6, 4), graph.input("v", 2, 6, 3)
    scores = graph.node("MatMul", query, graph.transpose(key, 0, 2, 1))
    masked = graph.node("Add", scores, graph.input("m", 1, 1, 5, 6))
    graph.output(graph.node("MatMul", weights(graph, masked), value), 1, 2, 5, 3)
    the_attention(graph)


def test_sum_of_several():
    graph = Graph()
    scores, value = head(graph)
    total = graph.node("Sum", graph.input("m", 5, 6), scores, graph.input("p", 1, 2, 1, 6))
    tail(graph, weights(graph, total), value)
    the_attention(graph)


def test_two_axes_and_gemm():
    """One head without batch: Gemm with a transposed key."""
    graph = Graph()
    query, key, value = graph.input("q", 5, 4), graph.input("k", 6, 4), graph.input("v", 6, 3)
    scores = graph.node("Gemm", query, key, transB=1, alpha=0.5)
    graph.output(graph.node("Gemm", weights(graph, scores), value), 5, 3)
    op = the_attention(graph)
    assert tensor_shape(op.query) == (1, 1, 5, 4) and op.scale.value.data == 0.5


def test_one_head_in_three_axes():
    graph = Graph()
    query, key, value = graph.input("q", 2, 5, 4), graph.input("k", 2, 6, 4), graph.input("v", 2, 6, 3)
    scores = graph.node("MatMul", query, graph.transpose(key, 0, 2, 1))
    graph.output(graph.node("MatMul", weights(graph, scores), value), 2, 5, 3)
    the_attention(graph)


def test_one_key_head_by_broadcasting():
    """Multi-query attention: the products broadcast the one key-value head."""
    graph = Graph()
    query, key, value = graph.input("q", 2, 4, 5, 4), graph.input("k", 2, 1, 6, 4), graph.input("v", 2, 1, 6, 3)
    scores = graph.node("MatMul", query, graph.transpose(key, 0, 1, 3, 2))
    graph.output(graph.node("MatMul", weights(graph, scores), value), 2, 4, 5, 3)
    op = the_attention(graph)
    assert tensor_shape(op.query) == (2, 4, 5, 4) and tensor_shape(op.key) == (2, 1, 6, 4)


def test_groups_by_broadcasting():
    """Query heads [kv heads, group] in five axes."""
    graph = Graph()
    query = graph.reshape(graph.input("q", 2, 6, 5, 4), 2, 2, 3, 5, 4)
    key, value = (graph.reshape(graph.input(n, 2, 2, 6, size), 2, 2, 1, 6, size) for n, size in (("k", 4), ("v", 3)))
    scores = graph.node("MatMul", query, graph.transpose(key, 0, 1, 2, 4, 3))
    result = graph.node("MatMul", weights(graph, scores), value)
    graph.output(graph.reshape(result, 2, 6, 5, 3), 2, 6, 5, 3)
    op = the_attention(graph)
    assert tensor_shape(op.query) == (2, 6, 5, 4) and tensor_shape(op.key) == (2, 2, 6, 4)


def test_groups_as_rows():
    """The queries of a group as more rows of its key-value head, which need no copies of it."""
    graph = Graph()
    query = graph.reshape(graph.input("q", 2, 6, 5, 4), 2, 2, 15, 4)
    key, value = graph.input("k", 2, 2, 6, 4), graph.input("v", 2, 2, 6, 3)
    scores = graph.node("MatMul", query, graph.transpose(key, 0, 1, 3, 2))
    result = graph.node("MatMul", weights(graph, scores), value)
    graph.output(graph.reshape(result, 2, 6, 5, 3), 2, 6, 5, 3)
    the_attention(graph)


def test_windows_in_five_axes():
    """Swin: [batch, windows, heads, rows, size] with a mask per window."""
    graph = Graph()
    query, key, value = (graph.input(n, 2, 3, 2, 4, 5) for n in "qkv")
    scores = graph.node("MatMul", query, graph.transpose(key, 0, 1, 2, 4, 3))
    masked = graph.node("Add", scores, graph.input("m", 1, 3, 1, 4, 4))
    graph.output(graph.node("MatMul", weights(graph, masked), value), 2, 3, 2, 4, 5)
    the_attention(graph)


@pytest.mark.parametrize("spelling", ["reciprocal", "power", "shape"])
def test_scale_from_the_head_size(spelling: str):
    graph = Graph()
    query, key, value = graph.input("q", 1, 2, 5, 16), graph.input("k", 1, 2, 6, 16), graph.input("v", 1, 2, 6, 3)
    size = graph.constant(16.0)
    if spelling == "reciprocal":
        scale = graph.node("Reciprocal", graph.node("Sqrt", size))
    elif spelling == "power":
        scale = graph.node("Pow", size, graph.constant(-0.5))
    else:
        last = graph.node("Gather", graph.node("Shape", query), graph.constant(-1, np.int64))
        scale = graph.node("Div", graph.constant(1.0), graph.node("Sqrt", graph.node("Cast", last, to=TensorProto.FLOAT)))
    scores = graph.node("Mul", graph.node("MatMul", query, graph.transpose(key, 0, 1, 3, 2)), scale)
    tail(graph, weights(graph, scores), value)
    assert the_attention(graph).scale.value.data == 0.25


def test_a_shifted_score_below_its_scale():
    graph = Graph()
    scores, value = head(graph)
    shifted = graph.node("Sub", scores, last_axis(graph, "ReduceMax", scores))
    tail(graph, weights(graph, graph.node("Mul", shifted, graph.constant(0.5))), value)
    assert the_attention(graph).scale.value.data == 0.5


def test_heads_one_by_one():
    """Each head's attention on its own: as many attentions."""
    graph = Graph()
    projected = [graph.reshape(graph.input(name, 1, 5, 8), 1, 5, 2, 4) for name in "qkv"]
    outputs: list[str] = []
    for index in range(2):
        chosen = graph.constant(index, np.int64)
        query, key, value = (graph.node("Gather", x, chosen, axis=2) for x in projected)
        scores = graph.node("MatMul", query, graph.transpose(key, 0, 2, 1))
        outputs.append(graph.node("MatMul", weights(graph, scores), value))
    graph.output(graph.node("Concat", *outputs, axis=2), 1, 5, 8)
    result = run(graph)
    assert result.rejected == {} and len(result.attentions) == 2


def test_dropout_in_training():
    graph = Graph()
    scores, value = head(graph)
    training = graph.constant(True, np.bool_)
    dropped = graph.node("Dropout", weights(graph, scores), graph.constant(0.0), training)
    tail(graph, dropped, value)
    the_attention(graph)  # of no ratio


def test_quantised_probabilities():
    graph = Graph()
    scores, value = head(graph)
    scale, zero = graph.constant(1 / 255), graph.constant(0, np.uint8)
    quantised = graph.node("QuantizeLinear", weights(graph, scores), scale, zero)
    tail(graph, graph.node("DequantizeLinear", quantised, scale, zero), value)
    assert refused(graph) == "stopped at DequantizeLinear 'dequantizelinear4': it lies between the softmax and the values"


def test_other_weights_than_a_softmax():
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("Sigmoid", scores), value)
    assert "no softmax between the two products" in refused(graph)
