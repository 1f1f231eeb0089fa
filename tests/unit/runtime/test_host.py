"""The host runtime: whole models, inputs that do not fit, bodies, shared weights, and the comparison."""

import weakref
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from xdsl.context import Context

from lampc.dialects.onnx_attributes import Array
from lampc.errors import CompileError, InputError, ModelError
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.model import Model, load_bytes
from lampc.passes.outline_host import OutlineHostPass
from lampc.passes.raise_attention import RaiseAttentionPass
from lampc.runtime.check import Difference, compare, reference_outputs
from lampc.runtime.host import HostRuntime
from tests.models.whole import raised
from tests.unit.raising.graphs import Form, Graph, attention
from tests.unit.runtime.oracle import run_function


def runtime_of(model: Model, inputs: dict[str, Array], **options: Any) -> HostRuntime:
    module = import_model(model, bind_dims(model, inputs=inputs))
    RaiseAttentionPass().apply(Context(), module)
    OutlineHostPass().apply(Context(), module)
    return HostRuntime(model, module, threads=1, **options)


def nothing(function: str, call: int, node: str, operands: list[Array]) -> Array:
    """An attention that is wrong in shape and type."""
    return np.zeros(3)


def layers(count: int) -> Graph:
    """`count` attentions in a row with a tied weight matrix around them."""
    graph = Graph()
    value = graph.input("x", 1, 6, 40)
    weight = graph.constant(graph.rng.standard_normal((40, 40)) / 8)
    for _ in range(count):
        value = graph.node("MatMul", value, weight)
        heads = graph.transpose(graph.reshape(value, 1, 6, 4, 10), 0, 2, 1, 3)
        scores = graph.node("MatMul", heads, graph.transpose(heads, 0, 1, 3, 2))
        result = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), heads)
        value = graph.reshape(graph.transpose(result, 0, 2, 1, 3), 1, 6, 40)
    graph.output(graph.node("MatMul", value, weight), 1, 6, 40)
    return graph


def load(graph: Graph) -> Model:
    return load_bytes(graph.model().SerializeToString(), "graph")


def test_constants_that_onnxruntime_transposes():
    """Its optimizer moves transposes over element-wise nodes and rewrites their constants under the old names."""
    graph = Graph()
    values = graph.rng.standard_normal((1, 1, 64, 32)).astype(np.float32)
    x = graph.input("x", 1, 64, 128)
    heads = graph.transpose(graph.reshape(x, 1, 64, 4, 32), 0, 2, 1, 3)
    graph.output(graph.transpose(graph.node("Mul", heads, graph.constant(values)), 0, 2, 1, 3), 1, 64, 4, 32)
    model = load(graph)
    expected = graph.inputs["x"].reshape(1, 64, 4, 32) * values.transpose(0, 2, 1, 3)
    (found,) = reference_outputs(model, graph.inputs).values()
    np.testing.assert_array_equal(found, expected)
    (found,) = runtime_of(model, graph.inputs).run(graph.inputs, nothing).values()
    np.testing.assert_array_equal(found, expected)


def test_layers_share_functions_and_weights():
    graph = layers(3)
    model = load(graph)
    runtime = runtime_of(model, graph.inputs)
    assert [call.function for call in runtime.calls] == ["attention_0"] * 3
    assert [call.index for call in runtime.calls] == [0, 1, 2]
    assert len(runtime.sessions) == 4
    assert list(runtime.weights.values) == ["c0"]  # one OrtValue for the four segments
    seen: list[tuple[str, int, str]] = []

    def run(function: str, call: int, node: str, operands: list[Array]) -> Array:
        seen.append((function, call, node))
        return run_function(runtime.functions[function], operands)

    (difference,) = compare(runtime.run(graph.inputs, run), reference_outputs(model, graph.inputs))
    assert difference.within(1e-5)
    assert seen == [(call.function, call.index, call.node) for call in runtime.calls]


def test_values_are_freed_after_their_last_use():
    graph = layers(2)
    runtime = runtime_of(load(graph), graph.inputs)
    earlier: list[weakref.ref[Array]] = []

    def run(function: str, call: int, node: str, operands: list[Array]) -> Array:
        assert all(reference() is None for reference in earlier)
        earlier.extend(weakref.ref(operand) for operand in operands)
        return run_function(runtime.functions[function], operands)

    runtime.run(graph.inputs, run)
    assert len(earlier) == 6


def test_without_attention():
    graph = Graph()
    graph.output(graph.node("Relu", graph.input("x", 2, 3)), 2, 3)
    runtime = runtime_of(load(graph), graph.inputs)
    assert runtime.calls == [] and len(runtime.sessions) == 1
    outputs = runtime.run(graph.inputs, nothing)
    assert np.array_equal(outputs["relu0"], np.maximum(graph.inputs["x"], 0))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (None, "input 'q': no array is given for it"),
        (np.zeros((1, 2, 5, 4), np.float64), "input 'q': it is float64, the model takes float32"),
        (np.zeros((1, 2, 7, 4), np.float32), r"shape \(1, 2, 7, 4\), the model was compiled for \(1, 2, 5, 4\)"),
    ],
)
def test_inputs_that_do_not_fit(array: Array | None, message: str):
    graph = attention(Form())
    runtime = runtime_of(load(graph), graph.inputs)
    inputs = {**graph.inputs, "q": array} if array is not None else {n: a for n, a in graph.inputs.items() if n != "q"}
    with pytest.raises(InputError, match=message):
        runtime.run(inputs, nothing)


def test_results_that_do_not_fit():
    graph = attention(Form())
    runtime = runtime_of(load(graph), graph.inputs)
    with pytest.raises(CompileError, match=r"gave float64 \(3,\)"):
        runtime.run(graph.inputs, nothing)


def test_modules_of_another_level():
    graph = attention(Form())
    model = load(graph)
    module = import_model(model, bind_dims(model, inputs=graph.inputs))
    with pytest.raises(CompileError, match="run lamp-outline-host first"):
        HostRuntime(model, module)


def test_what_onnxruntime_cannot_run_is_told_in_one_line():
    graph = Graph()
    graph.output(graph.node("Gather", graph.input("x", 2, 3), graph.given("i", np.array([7])), axis=0), 1, 3)
    model = load(graph)
    runtime = runtime_of(model, graph.inputs)
    for attempt in (lambda: runtime.run(graph.inputs, nothing), lambda: reference_outputs(model, graph.inputs)):
        with pytest.raises(ModelError, match=r"onnxruntime failed: .*indices element out of data bounds") as error:
            attempt()
        assert "\n" not in str(error.value)


BODIES = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[1,2,5,4] q, float[1,2,6,4] k, float[1,2,6,3] v, bool[1] c) => (float[1,2,5,3] y)
<int64[4] perm = {0, 1, 3, 2}, int64[4] full = {1, 2, 5, 3}>
{
  kt = Transpose <perm: ints = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  p = Softmax <axis: int = -1> (s)
  o = MatMul (p, v)
  size = Shape (v)
  flat = Identity (full)
  y = If (c) <
    then_branch: graph = then () => (float[1,2,5,3] t) { r = Reshape (o, flat)  t = Neg (r) },
    else_branch: graph = other () => (float[1,2,5,3] e) { e = Identity (o) }
  >
}
"""


@pytest.mark.parametrize("condition", [True, False])
def test_bodies_read_attention_results_and_folded_constants(condition: bool):
    proto = onnx.parser.parse_model(BODIES)
    graph = attention(Form())
    inputs = {**graph.inputs, "c": np.array([condition])}
    result = raised(load_bytes(proto.SerializeToString(), "bodies"), inputs)
    assert len(result.attentions) == 1
    for difference in result.differences(inputs):
        assert difference.within(1e-5)


def test_differences():
    expected = {"y": np.array([1.0, -4.0, np.nan, np.inf, 0.0])}
    (same,) = compare(expected, expected)
    assert same == Difference("y", (5,), 0.0, 0.0, same.cosine, 1, 1, 0)
    assert same.cosine == pytest.approx(1.0)
    (off,) = compare({"y": np.array([1.5, -4.0, 1.0, np.inf, np.nan])}, expected)
    assert (off.max_abs, off.max_rel, off.nan, off.nan_reference, off.mismatched) == (0.5, 0.125, 1, 1, 2)
    assert not off.within(1.0)
    (close,) = compare({"y": np.array([1.0, -4.004, np.nan, np.inf, 0.0])}, expected)
    assert close.within(1e-2) and not close.within(1e-4) and close.within(1e-4, atol=1e-2)


def test_outputs_that_cannot_be_compared():
    with pytest.raises(InputError, match="output 'y': it is missing"):
        compare({}, {"y": np.zeros(3)})
    with pytest.raises(InputError, match=r"output 'y': shape \(2,\), the reference has \(3,\)"):
        compare({"y": np.zeros(2)}, {"y": np.zeros(3)})


def looked_up(graph: Graph, also: bool) -> Graph:
    """A table that Gather reads, and a product too if `also`."""
    table = graph.constant(graph.rng.standard_normal((500, 8)))
    rows = graph.node("Gather", table, graph.given("i", np.array([[3, 499]])))
    if also:
        rows = graph.node("Add", rows, graph.node("MatMul", graph.input("x", 1, 2, 500), table))
    graph.output(rows, 1, 2, 8)
    return graph


@pytest.mark.parametrize("also", [False, True])
def test_tables_are_given_at_each_run_unless_something_else_reads_them(also: bool):
    graph = looked_up(Graph(), also)
    model = load(graph)
    runtime = runtime_of(model, graph.inputs)
    (session,) = runtime.sessions.values()
    assert list(session.tables) == ([] if also else ["c0"])
    (difference,) = compare(runtime.run(graph.inputs, nothing), reference_outputs(model, graph.inputs))
    assert difference.within(0.0)


def test_a_segment_without_an_element_in_its_results_does_not_run():
    graph = Graph()
    graph.output(graph.node("Attention", *(graph.given(n, np.zeros((1, 2, 0, 4), np.float32)) for n in "qkv")), 1, 2, 0, 4)
    graph.opset = 23
    runtime = runtime_of(load(graph), graph.inputs)
    (output,) = runtime.run(graph.inputs, nothing).values()
    assert output.shape == (1, 2, 0, 4) and output.dtype == np.float32
