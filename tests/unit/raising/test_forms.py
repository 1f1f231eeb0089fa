"""Decomposed attention in every form of docs/onnx.md section 4: raised, and equal to onnxruntime."""

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

from lampc.dialects.attn import AttentionOp
from lampc.dialects.onnx_attributes import Array
from lampc.errors import LampcError
from lampc.frontend.model import load_bytes
from lampc.ir import tensor_shape
from lampc.runtime.check import reference_outputs
from tests.models.whole import Raised, raised
from tests.unit.raising.graphs import Form, Graph, Mask, attention, mutate, random_form

LIMIT = 2e-5
INF = float("inf")


def run(graph: Graph) -> Raised:
    """Raise a graph and compare with onnxruntime."""
    result = raised(load_bytes(graph.model().SerializeToString(), "graph"), graph.inputs)
    agree(result, graph.inputs)
    return result


def agree(result: Raised, inputs: dict[str, Array], limit: float = LIMIT) -> None:
    for difference in result.differences(inputs):
        assert difference.within(limit), (difference, result.rejected)


def the_attention(graph: Graph) -> AttentionOp:
    result = run(graph)
    assert result.rejected == {}
    (found,) = result.attentions
    return found


FORMS: dict[str, Form] = {
    "no scale": Form(),
    "scale on the scores": Form(score_scale=0.5),
    "division of the scores": Form(score_scale=0.5, divide=True),
    "scale on both operands": Form(query_scale=sqrt(0.5), key_scale=sqrt(0.5)),
    "scale on Q": Form(query_scale=0.3),
    "scale on K": Form(key_scale=0.3, divide=True),
    "K turned by reshapes": Form(turn="reshape"),
    "Einsum": Form(turn="einsum"),
    "scores of keys by queries": Form(turn="swapped"),
    "batch and heads merged": Form(batch=2, merged=True),
    "one projection axis": Form(layout="blx", output="blx"),
    "rows before heads": Form(layout="blhd"),
    "repeated heads": Form(group=3),
    "tiled heads": Form(group=3, repeat="tile"),
    "one key-value head": Form(kv_heads=1, group=4),
    "one query": Form(queries=1),
    "one key": Form(keys=1),
    "soft-cap": Form(score_scale=0.5, softcap=2.0),
    "NaN guard": Form(guard=True),
    "shifted softmax": Form(softmax="shifted"),
    "softmax written out": Form(softmax="written"),
    "mask of rank 4": Form(batch=2, masks=(Mask(axes=(True, False, True, True)),)),
    "selection": Form(masks=(Mask("select"),)),
    "selection of the lowest number": Form(masks=(Mask("select", masked=float(np.finfo(np.float32).min)),)),
    "inverted selection": Form(masks=(Mask("inverted", masked=-1e9),)),
    "subtracted bias": Form(masks=(Mask("subtract"),)),
    "bias and padding": Form(batch=2, masks=(Mask(axes=(False, True, True, True)), Mask(axes=(True, False, False, True)))),
    "two selections": Form(masks=(Mask("select"), Mask("inverted"))),
    "masks of merged scores": Form(batch=2, merged=True, masks=(Mask(axes=(True, True, True, True)),)),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str):
    form = FORMS[name]
    op = the_attention(attention(form))
    assert tensor_shape(op.query) == (form.batch, form.heads, form.queries, form.size)
    assert tensor_shape(op.key) == (form.batch, form.kv_heads, form.keys, form.size)
    assert op.scale.value.data == pytest.approx(form.query_scale * form.key_scale * form.score_scale, rel=1e-6)
    assert (op.softcap is not None) == (form.softcap is not None)
    assert (op.mask is not None) == bool(form.masks)


@pytest.mark.parametrize("masked", [-INF, -1e9, -1e4])
@pytest.mark.parametrize("turn", ["transpose", "einsum"])
def test_causal_constant_becomes_an_attribute(masked: float, turn: str):
    op = the_attention(attention(Form(queries=4, keys=6, turn=turn, masks=(Mask("causal", masked=masked),))))
    assert op.causal is not None and op.mask is None
    assert op.causal_offset is not None and op.causal_offset.value.data == 2


def test_small_constants_are_no_masks():
    """-10 still leaves something of a key: it is a bias."""
    op = the_attention(attention(Form(queries=4, keys=6, masks=(Mask("causal", masked=-10.0),))))
    assert op.causal is None and op.mask is not None


@pytest.mark.parametrize("seed", range(40))
def test_random_form(seed: int):
    the_attention(attention(random_form(seed), seed))


@pytest.mark.parametrize("seed", range(80))
def test_what_is_raised_is_right(seed: int):
    """Graphs with one thing changed: raised or not, every output agrees with onnxruntime."""
    graph = attention(random_form(seed), seed)
    proto = graph.model()
    what = mutate(proto, np.random.default_rng(seed + 1000))
    try:
        model = load_bytes(proto.SerializeToString(), what)
        reference_outputs(model, graph.inputs, threads=1)
        result = raised(model, graph.inputs)
    except LampcError:
        return  # no model any more
    agree(result, graph.inputs, 1e-4)


def tail(graph: Graph, probabilities: str, value: str) -> None:
    graph.output(graph.node("MatMul", probabilities, value), 1, 2, 5, 3)


def head(graph: Graph) -> tuple[str, str]:
    """Q K^T of [1, 2, 5, 6] and V."""
    query, key = graph.input("q", 1, 2, 5, 4), graph.input("k", 1, 2, 6, 4)
    return graph.node("MatMul", query, graph.transpose(key, 0, 1, 3, 2)), graph.input("v", 1, 2, 6, 3)


def refused(graph: Graph) -> str:
    result = run(graph)
    assert result.attentions == []
    (reason,) = result.rejected.values()
    return reason


NO_SCORES: list[tuple[Callable[[Graph, str], str], str]] = [
    (lambda g, s: g.node("Relu", s), "stopped at Relu 'relu2': it lies between the query-key product and the softmax"),
    (lambda g, s: g.node("Mul", s, g.input("m", 5, 6)), "stopped at Mul 'mul2': it lies between"),
    (lambda g, s: g.node("Mul", g.node("Add", s, g.input("m", 5, 6)), g.input("f", 2, 1, 1)), "a mask below a factor per head"),
    (lambda g, s: g.node("Tanh", g.node("Add", s, g.input("m", 5, 6))), "stopped at Add 'add2': a mask below the soft-cap"),
    (lambda g, s: g.node("Where", g.given("c", np.ones((5, 6), bool)), s, g.constant(-3.0)), "no masking constant"),
    (lambda g, s: g.node("Mul", s, g.constant(-1.0)), "a scale of -1"),
    (lambda g, s: g.node("Add", s, s), "the scores mask themselves"),
]


@pytest.mark.parametrize(("op", "reason"), NO_SCORES)
def test_scores_that_are_no_attention(op: Callable[[Graph, str], str], reason: str):
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("Softmax", op(graph, scores), axis=-1), value)
    assert reason in refused(graph)


def test_softmax_over_queries():
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("Softmax", scores, axis=2), value)
    assert refused(graph) == "stopped at Softmax 'softmax2': it does not run over the keys alone"


def test_probabilities_that_others_read():
    graph = Graph()
    scores, value = head(graph)
    weights = graph.node("Softmax", scores, axis=-1)
    graph.output(weights, 1, 2, 5, 6)
    tail(graph, weights, value)
    assert "its result is also used by the graph's outputs" in refused(graph)


def test_scores_that_others_read():
    """qk_matmul_output before the softmax: the host computes the scores as well."""
    for stage in ("product", "scaled", "masked"):
        graph = Graph()
        product, value = head(graph)
        scaled = graph.node("Mul", product, graph.constant(0.5))
        masked = graph.node("Add", scaled, graph.input("m", 5, 6))
        graph.output({"product": product, "scaled": scaled, "masked": masked}[stage], 1, 2, 5, 6)
        tail(graph, graph.node("Softmax", masked, axis=-1), value)
        the_attention(graph)


def test_masks_computed_from_the_scores():
    """The largest scores of a row alone: the host would compute all of them to know which."""
    graph = Graph()
    scores, value = head(graph)
    least = graph.node("ReduceMin", scores, graph.shape(-1), keepdims=1)
    kept = graph.node("Where", graph.node("Greater", scores, least), scores, graph.constant(-INF))
    tail(graph, graph.node("Softmax", kept, axis=-1), value)
    assert "the scores mask themselves" in refused(graph)


def test_scaled_probabilities():
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("Mul", graph.node("Softmax", scores, axis=-1), graph.constant(0.5)), value)
    assert refused(graph) == "stopped at Mul 'mul3': it lies between the softmax and the values"


def test_logarithms_of_probabilities():
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("LogSoftmax", scores, axis=-1), value)
    assert "logarithms of probabilities" in refused(graph)


def test_flattening_softmax_of_old_opsets():
    graph = Graph(opset=11)
    scores, value = head(graph)
    tail(graph, graph.node("Softmax", scores, axis=1), value)
    assert "it does not run over the keys alone" in refused(graph)


def test_flattening_softmax_over_the_last_axis():
    graph = Graph(opset=11)
    scores, value = head(graph)
    tail(graph, graph.node("Softmax", scores, axis=3), value)
    the_attention(graph)


def test_dropout_at_inference():
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("Dropout", graph.node("Softmax", scores, axis=-1), graph.constant(0.5)), value)
    the_attention(graph)


def test_sinks():
    """One more logit per head that has no value: joined to the scores, cut off after the softmax."""
    graph = Graph()
    scores, value = head(graph)
    sink = graph.node("Expand", graph.reshape(graph.input("s", 2), 1, 2, 1, 1), graph.shape(1, 2, 5, 1))
    weights = graph.node("Softmax", graph.node("Concat", scores, sink, axis=-1), axis=-1)
    tail(graph, graph.node("Slice", weights, graph.shape(0), graph.shape(-1), graph.shape(3), graph.shape(1)), value)
    op = the_attention(graph)
    assert op.sinks is not None and tensor_shape(op.sinks) == (2,)


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 5, 1), (5, 1)])
def test_factor_per_head_or_query(shape: tuple[int, ...]):
    """Swin-v2: cosine attention with a learned temperature per head."""
    graph = Graph()
    scores, value = head(graph)
    scores = graph.node("Add", graph.node("Mul", graph.input("f", *shape), scores), graph.input("m", 5, 6))
    tail(graph, graph.node("Softmax", scores, axis=-1), value)
    the_attention(graph)


def test_selection_written_as_products():
    """tf2onnx: score * live + c * dead."""
    graph = Graph()
    scores, value = head(graph)
    live = graph.given("live", np.tril(np.ones((5, 6), np.bool_)))
    kept = graph.node("Mul", graph.node("Cast", live, to=1), scores)
    dead = graph.node("Mul", graph.constant(-1e9), graph.node("Cast", graph.node("Not", live), to=1))
    tail(graph, graph.node("Softmax", graph.node("Add", kept, dead), axis=-1), value)
    op = the_attention(graph)
    assert op.mask is not None and op.masked_value is not None


def test_rows_of_masked_keys_alone():
    """-inf gives zeros behind a guard; a finite constant gives the mean of V, whichever way it is written."""
    live = np.ones((5, 6), np.bool_)
    live[2] = False
    for kind, masked in (("select", -INF), ("select", -1e4), ("add", -INF), ("add", float(np.finfo(np.float32).min))):
        graph = Graph()
        scores, value = head(graph)
        if kind == "select":
            scores = graph.node("Where", graph.given("m", live), scores, graph.constant(masked))
        else:
            scores = graph.node("Add", scores, graph.given("m", np.where(live, 0, masked).astype(np.float32)))
        weights = graph.node("Softmax", scores, axis=-1)
        weights = graph.node("Where", graph.node("IsNaN", weights), graph.constant(0.0), weights)
        tail(graph, weights, value)
        the_attention(graph)


@pytest.mark.parametrize("written", ["select", "add"])
@pytest.mark.parametrize("masked", [-INF, -1e9])
def test_conjunction_of_causal_and_padding(written: str, masked: float):
    """A causal constant leaves a computed mask where masked means -inf; a finite constant counts rows of masked keys alone."""
    graph = Graph()
    scores, value = head(graph)
    padding = np.ones((1, 1, 1, 6), np.bool_)
    padding[..., 0] = False  # the first row sees no key
    both = graph.node("And", graph.constant(np.tril(np.ones((5, 6))), np.bool_), graph.given("pad", padding))
    if written == "select":
        scores = graph.node("Where", both, scores, graph.constant(masked))
    else:
        scores = graph.node("Add", scores, graph.node("Where", both, graph.constant(0.0), graph.constant(masked)))
    weights = graph.node("Softmax", scores, axis=-1)
    tail(graph, graph.node("Where", graph.node("IsNaN", weights), graph.constant(0.0), weights), value)
    op = the_attention(graph)
    assert op.mask is not None
    assert (op.causal is not None) == (masked == -INF)
    assert tensor_shape(op.mask) == ((1, 1, 1, 6) if masked == -INF else (1, 1, 5, 6))


def test_products_without_softmax():
    graph = Graph()
    scores, value = head(graph)
    tail(graph, graph.node("Mul", scores, graph.constant(0.5)), value)
    assert "no softmax between the two products" in refused(graph)


def test_softmax_that_weighs_nothing_is_no_candidate():
    graph = Graph()
    logits = graph.node("MatMul", graph.input("x", 4, 8), graph.constant(np.ones((8, 5))))
    graph.output(graph.node("Softmax", logits, axis=-1), 4, 5)
    result = run(graph)
    assert result.attentions == [] and result.rejected == {}
