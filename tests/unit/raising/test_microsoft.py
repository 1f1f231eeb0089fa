"""com.microsoft's Attention, MultiHeadAttention and DecoderMaskedMultiHeadAttention against onnxruntime's own kernels."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError
from lampc.frontend.model import load_bytes
from lampc.passes.raising import microsoft
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


PAST = 3


def with_past(graph: Graph) -> list[str]:
    return [graph.input(name, BATCH, HEADS, PAST, SIZE) for name in ("pk", "pv")]


def ones_and_zeros(graph: Graph, *shape: int) -> str:
    mask = (graph.rng.random(shape) < 0.7).astype(np.int32)
    return graph.given("m", mask)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [(), (BATCH, PAST + KEYS), (BATCH, KEYS, PAST + KEYS)])
@pytest.mark.parametrize("past", [True, False])
def test_multi_head_attention_with_a_cache(mask: tuple[int, ...], causal: int, past: bool):
    graph = Graph()
    inputs = [graph.input(name, BATCH, KEYS, WIDTH) for name in "qkv"]
    total = KEYS + PAST * past
    if mask:
        mask = (*mask[:-1], total)
    inputs += [graph.input("b", 3 * WIDTH), ones_and_zeros(graph, *mask) if mask else ""]
    inputs += [graph.input("bias", BATCH, 1, KEYS, total)]
    inputs += with_past(graph) if past else []
    node(graph, "MultiHeadAttention", *inputs, outputs=("y", "present_key", "present_value"), unidirectional=causal)
    graph.output("y", BATCH, KEYS, WIDTH)
    for name in ("present_key", "present_value"):
        graph.output(name, BATCH, HEADS, total, SIZE)
    one(graph)


@pytest.mark.parametrize("bias", [False, True])
def test_keys_with_heads_apart(bias: bool):
    graph = Graph()
    inputs = [graph.input("q", BATCH, QUERIES, WIDTH)]
    inputs += [graph.input(name, BATCH, HEADS, KEYS, SIZE) for name in "kv"]
    inputs += [graph.input("b", 3 * WIDTH) if bias else "", ones_and_zeros(graph, BATCH, KEYS)]
    outputs = ("y",) if bias else ("y", "present_key", "present_value")
    node(graph, "MultiHeadAttention", *inputs, outputs=outputs)
    graph.output("y", BATCH, QUERIES, WIDTH)
    for name in outputs[1:]:
        graph.output(name, BATCH, HEADS, KEYS, SIZE)
    one(graph)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("mask", ["none", "ones", "rows of ones", "ends and starts"])
def test_attention_with_a_cache(mask: str, past: bool, causal: int):
    graph = Graph()
    total = KEYS + PAST * past
    inputs = [graph.input("x", BATCH, KEYS, 20), graph.constant(graph.rng.standard_normal((20, 3 * WIDTH)) / 4)]
    masks = {
        "none": lambda: "",
        "ones": lambda: ones_and_zeros(graph, BATCH, total),
        "rows of ones": lambda: ones_and_zeros(graph, BATCH, KEYS, total),
        "ends and starts": lambda: graph.given("m", np.array([total, total - 2, 1, 0], np.int32)),
    }
    inputs += [graph.input("b", 3 * WIDTH), masks[mask]()]
    inputs += [graph.input("past", 2, BATCH, HEADS, PAST, SIZE)] if past else []
    node(graph, "Attention", *inputs, outputs=("y", "present"), unidirectional=causal)
    graph.output("y", BATCH, KEYS, WIDTH)
    graph.output("present", 2, BATCH, HEADS, total, SIZE)
    one(graph)


PLACES, HELD = 10, 6


def decoder_step(graph: Graph, mask: bool, bias: bool, more: tuple[str, ...] = (), held: int = HELD, **options: Any) -> None:
    """One step of DecoderMaskedMultiHeadAttention on a cache with HELD keys in PLACES places."""
    inputs = [graph.input(name, BATCH, 1, WIDTH) for name in "qkv"]
    inputs += [ones_and_zeros(graph, BATCH, HELD + 1) if mask else "", graph.input("ab", 1, HEADS, 1, HELD + 1) if bias else ""]
    inputs += [graph.input(name, BATCH, HEADS, PLACES, SIZE) for name in ("pk", "pv")]
    inputs += [graph.given("held", np.array([held], np.int32)), *more]
    outputs = ("y", "present_key", "present_value")
    options = {"past_present_share_buffer": 1, **options}
    node(graph, "DecoderMaskedMultiHeadAttention", *inputs, outputs=outputs, **options)
    graph.output("y", BATCH, 1, WIDTH)
    for name in outputs[1:]:
        graph.output(name, BATCH, HEADS, PLACES, SIZE)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_a_decoder_step(mask: bool, bias: bool, added: bool):
    graph = Graph()
    decoder_step(graph, mask, bias, ("", "", graph.input("b", 3 * WIDTH)) if added else (), scale=0.3)
    one(graph)


@pytest.mark.parametrize("added", [False, True])
def test_a_decoder_step_on_an_encoder(added: bool):
    graph = Graph()
    inputs = [graph.input("q", BATCH, 1, WIDTH), *(graph.input(name, BATCH, HEADS, KEYS, SIZE) for name in "kv")]
    inputs += [ones_and_zeros(graph, BATCH, KEYS), "", "", "", "", "", ""]
    inputs += [graph.input("b", 3 * WIDTH)] if added else []
    while not inputs[-1]:
        inputs.pop()
    node(graph, "DecoderMaskedMultiHeadAttention", *inputs)
    graph.output("y", BATCH, 1, WIDTH)
    one(graph)


def test_a_decoder_step_beyond_its_cache_stops_the_run():
    graph = Graph()
    decoder_step(graph, mask=False, bias=False, held=PLACES)
    graph.domains["com.microsoft"] = 1
    result = raised(load_bytes(graph.model().SerializeToString(), "graph"), graph.inputs)
    with pytest.raises(ModelError, match=f"past_sequence_length is not 0 to {PLACES - 1}"):
        result.run(graph.inputs)


def test_beams_are_refused():
    graph = Graph()
    beams = graph.given("beams", np.array([1], np.int32))
    decoder_step(graph, mask=False, bias=False, more=(beams,))
    assert "its input beam_width is given" in run(graph).rejected["n"]


@pytest.mark.parametrize("op", microsoft.UNSUPPORTED)
def test_other_operators_are_refused_by_name(op: str):
    """Imported and named; onnxruntime has no kernels to run most of them."""
    graph = Graph()
    graph.domains["com.microsoft"] = 1
    node(graph, op, graph.input("q", BATCH, QUERIES, WIDTH))
    graph.output("y", BATCH, QUERIES, WIDTH)
    result = raised(load_bytes(graph.model().SerializeToString(), "graph"), graph.inputs)
    assert result.attentions == []
    assert result.rejected == {
        "n": f"stopped at com.microsoft.{op} 'n': this operator is not supported: {microsoft.UNSUPPORTED[op]}"
    }
