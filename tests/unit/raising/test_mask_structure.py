"""Masks known at compile time: what becomes attributes, what becomes boolean, what stays a bias."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import i1

from lampc.dialects.attn import AttentionOp
from lampc.dialects.onnx import is_tensor
from lampc.dialects.onnx_attributes import Array
from lampc.frontend.model import load_bytes
from lampc.ir import tensor_shape
from tests.models.whole import raised
from tests.unit.raising.graphs import Graph

LENGTHS = (5, 40)
"""Keys: masks that are inline constants, and such that are not."""
LOWEST = float(np.finfo(np.float32).min)
ROWS, KEYS = 0, 1


def the_attention(length: int, mask: Callable[[Graph, str], str], opset: int = 18) -> AttentionOp:
    """The attention of [1, 2, length, 4] operands whose scores pass through `mask`, equal to onnxruntime."""
    graph = Graph(opset=opset)
    query, key, value = (graph.input(name, 1, 2, length, 4) for name in "qkv")
    scores = mask(graph, graph.node("MatMul", query, graph.transpose(key, 0, 1, 3, 2)))
    weights = graph.node("Softmax", scores, axis=-1)
    graph.output(graph.node("MatMul", weights, value), 1, 2, length, 4)
    result = raised(load_bytes(graph.model().SerializeToString(), "graph"), graph.inputs)
    assert result.rejected == {}
    (found,) = result.attentions
    for difference in result.differences(graph.inputs):
        assert difference.within(2e-5), difference
    return found


def positions(graph: Graph, length: int) -> tuple[str, str]:
    """Rows [length, 1] and keys [length] from ranges."""
    ends = [graph.constant(n, np.int64) for n in (0, length, 1)]
    return graph.node("Unsqueeze", graph.node("Range", *ends), graph.shape(1)), graph.node("Range", *ends)


def selected(graph: Graph, scores: str, live: str, masked: float = -np.inf) -> str:
    return graph.node("Where", live, scores, graph.constant(masked))


def ranges(graph: Graph, scores: str, length: int) -> str:
    rows, keys = positions(graph, length)
    return selected(graph, scores, graph.node("LessOrEqual", keys, rows), LOWEST)


def upper_triangle(graph: Graph, scores: str, length: int) -> str:
    """torch: triu(full(-inf), 1)."""
    full = graph.node("Expand", graph.constant(-np.inf), graph.shape(length, length))
    return graph.node("Add", scores, graph.node("Trilu", full, graph.constant(1, np.int64), upper=1))


def lower_ones(graph: Graph, scores: str, length: int) -> str:
    """masked_fill(tril(ones) == 0, -inf)."""
    shape = graph.shape(1, 1, length, length)
    ones = graph.node("Expand", graph.constant(1.0), shape)
    dead = graph.node("Equal", graph.node("Trilu", ones, upper=0), graph.constant(0.0))
    return graph.node("Where", dead, graph.node("Expand", graph.constant(-np.inf), shape), scores)


def running_sum(graph: Graph, scores: str, length: int) -> str:
    """Positions as the running sum of a mask of ones."""
    steps = graph.node("CumSum", graph.constant(np.ones((1, length)), np.int64), graph.constant(1, np.int64))
    rows = graph.reshape(steps, length, 1)
    return selected(graph, scores, graph.node("Not", graph.node("Greater", steps, rows)))


def subtracted(graph: Graph, scores: str, length: int) -> str:
    return graph.node("Sub", scores, graph.constant(1e9 * (1 - np.tri(length))))


def blended(graph: Graph, scores: str, length: int) -> str:
    """GPT-2: w * b - 1e4 * (1 - b)."""
    live = graph.constant(np.tri(length)[None, None])
    dead = graph.node("Mul", graph.constant(1e4), graph.node("Sub", graph.constant(1.0), live))
    return graph.node("Sub", graph.node("Mul", scores, live), dead)


def with_bias(graph: Graph, scores: str, length: int) -> str:
    """T5: the position bias and the causal mask are added to each other first."""
    bias = graph.node("Add", graph.input("bias", 1, 2, length, length), graph.constant(np.where(np.tri(length), 0, LOWEST)))
    return graph.node("Add", scores, bias)


CAUSAL: list[Any] = [ranges, upper_triangle, lower_ones, running_sum, subtracted, blended, with_bias]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("spelling", CAUSAL)
def test_causal(spelling: Callable[[Graph, str, int], str], length: int):
    op = the_attention(length, lambda graph, scores: spelling(graph, scores, length))
    assert op.causal is not None and op.window is None
    assert (op.mask is not None) == (spelling is with_bias)


@pytest.mark.parametrize("length", LENGTHS)
def test_sliding_window(length: int):
    def window(graph: Graph, scores: str) -> str:
        rows, keys = positions(graph, length)
        recent = graph.node("Greater", keys, graph.node("Sub", rows, graph.constant(3, np.int64)))
        return selected(graph, scores, graph.node("And", graph.node("LessOrEqual", keys, rows), recent), LOWEST)

    op = the_attention(length, window)
    assert op.causal is not None and op.mask is None
    assert op.window is not None and op.window.value.data == 3


def prefix(length: int) -> Array:
    rows, keys = np.indices((length, length))
    return (keys <= rows) | (keys < length // 2)


def padding(length: int) -> Array:
    return np.broadcast_to(np.arange(length) < length - 2, (1, 1, 1, length))


def blocks(length: int) -> Array:
    rows, keys = np.indices((length, length))
    return rows // 4 == keys // 4


@pytest.mark.parametrize("masked", [-np.inf, LOWEST, -1e4])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("live", [prefix, padding, blocks])
def test_constants_of_any_order_are_boolean(live: Callable[[int], Array], length: int, masked: float):
    """The tiles need no bias for them, and skip what is dead."""
    for factor in (1.0, -1.0):
        values = np.where(live(length), 0, masked * factor)
        op = the_attention(length, lambda g, s, v=values, f=factor: g.node("Add" if f > 0 else "Sub", s, g.constant(v)))
        assert op.mask is not None and is_tensor(op.mask.type) and op.mask.type.element_type == i1
        assert op.masked_value is None and op.causal is None


def test_a_finite_constant_with_a_dead_row_stays_a_bias():
    """Its row is the mean of V (docs/onnx.md 1.4), which no boolean says."""
    live = np.ones((5, 5), np.bool_)
    live[2] = False
    op = the_attention(5, lambda g, s: g.node("Add", s, g.constant(np.where(live, 0, LOWEST))))
    assert op.mask is not None and is_tensor(op.mask.type) and op.mask.type.element_type != i1


def test_a_finite_constant_beside_another_mask_stays_a_bias():
    """Together they may mask a whole row, of which the finite one decides the weights."""
    live = np.ones((1, 1, 1, 5), np.bool_)
    live[..., 1:] = False

    def both(graph: Graph, scores: str) -> str:
        padded = graph.node("Where", graph.given("live", live), scores, graph.constant(-np.inf))
        values = np.where(np.arange(5) > 0, 0, LOWEST)[None]
        return graph.node("Add", padded, graph.constant(values))

    op = the_attention(5, both)
    assert op.mask is not None and is_tensor(op.mask.type) and op.mask.type.element_type != i1


@pytest.mark.parametrize("length", LENGTHS)
def test_masks_of_nothing_vanish(length: int):
    def nothing(graph: Graph, scores: str) -> str:
        scores = graph.node("Add", scores, graph.constant(np.zeros((length, length))))
        rows, keys = positions(graph, length)
        return selected(graph, scores, graph.node("Less", keys, graph.node("Add", rows, graph.constant(length, np.int64))))

    op = the_attention(length, nothing)
    assert op.mask is None and op.causal is None


def test_what_adds_minus_infinity_is_read_as_its_condition():
    """Before it is repeated for every query."""

    def expanded(graph: Graph, scores: str) -> str:
        live = graph.given("live", np.arange(5)[None, None, None] < 3)
        bias = graph.node("Where", live, graph.constant(0.0), graph.constant(-np.inf))
        return graph.node("Add", scores, graph.node("Expand", bias, graph.shape(1, 1, 5, 5)))

    op = the_attention(5, expanded)
    assert op.mask is not None and is_tensor(op.mask.type) and op.mask.type.element_type == i1
    assert tensor_shape(op.mask) == (1, 1, 1, 5)
