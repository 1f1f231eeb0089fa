"""GroupQueryAttention of com.microsoft, option by option: raised, and as onnxruntime computes it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import helper

from lampc.errors import ModelError
from lampc.frontend.model import load_bytes
from tests.models.whole import raised
from tests.unit.raising.graphs import Graph

HEADS, KV_HEADS, SIZE = 4, 2, 32


@dataclass(frozen=True)
class Step:
    """
    One call: `past` is the length of the cache's tensors, `cached` what is in them, per item of the batch.

    cut     by how much each prompt is shorter than the queries
    half    rotary angles, 0 for none
    """

    batch: int = 1
    queries: int = 7
    past: int = 0
    cached: tuple[int, ...] = (0,)
    cut: tuple[int, ...] = ()
    kind: Any = np.float32
    packed: bool = False
    half: int = 0
    positions: bool = False
    bias: bool = False
    sinks: bool = False
    present: bool = True


STEPS: dict[str, tuple[Step, dict[str, Any]]] = {
    "prefill": (Step(), {}),
    "batch": (Step(batch=3, cached=(0, 0, 0)), {}),
    "packed": (Step(packed=True), {}),
    "decode": (Step(queries=1, past=11, cached=(11,)), {}),
    "decode, ragged": (Step(batch=2, queries=1, past=11, cached=(11, 5)), {}),
    "decode, longer buffer": (Step(queries=1, past=20, cached=(9,)), {}),
    "prefill, longer buffer": (Step(past=20, cached=(0,)), {}),
    "continued": (Step(queries=3, past=8, cached=(8,)), {}),
    "rotary": (Step(half=16), {"do_rotary": 1}),
    "rotary, decode": (Step(queries=1, past=11, cached=(11,), half=16), {"do_rotary": 1}),
    "rotary, interleaved": (Step(half=16), {"do_rotary": 1, "rotary_interleaved": 1}),
    "rotary, partial": (Step(half=8), {"do_rotary": 1}),
    "rotary, positions": (Step(half=16, positions=True), {"do_rotary": 1}),
    "rotary, packed, window, decode": (
        Step(queries=1, past=11, cached=(11,), half=8, packed=True),
        {"do_rotary": 1, "local_window_size": 4},
    ),
    "window": (Step(), {"local_window_size": 3}),
    "window, decode": (Step(queries=1, past=11, cached=(11,)), {"local_window_size": 3}),
    "scale": (Step(), {"scale": 0.5}),
    "softcap": (Step(), {"softcap": 2.0}),
    "smooth softmax": (Step(), {"smooth_softmax": 1}),
    "sinks": (Step(sinks=True), {}),
    "bias": (Step(bias=True), {}),
    "bias, longer buffer": (Step(queries=1, past=20, cached=(9,), bias=True), {}),
    "bias, longer buffer, prefill": (Step(past=20, cached=(0,), bias=True), {}),
    "bias, ragged": (Step(batch=2, queries=1, past=11, cached=(11, 5), bias=True), {}),
    "ragged prefill": (Step(batch=2, cached=(0, 0), cut=(0, 3)), {}),
    "ragged prefill, window": (Step(batch=2, cached=(0, 0), cut=(2, 0)), {"local_window_size": 2}),
    "not causal": (Step(), {"causal": 0}),
    "not causal, ragged": (Step(batch=2, cached=(0, 0), cut=(0, 3)), {"causal": 0}),
    "not causal, continued": (Step(queries=3, past=8, cached=(8,)), {"causal": 0}),
    "not causal, longer buffer": (Step(queries=3, past=20, cached=(8,)), {"causal": 0}),
    "sinks, decode, ragged": (Step(batch=2, queries=1, past=11, cached=(11, 5), sinks=True), {"local_window_size": 4}),
    "float16": (Step(kind=np.float16), {"softcap": 2.0}),
    "float16, rotary, decode": (Step(kind=np.float16, queries=1, past=11, cached=(11,), half=16), {"do_rotary": 1}),
    "float16, bias, sinks, packed": (Step(kind=np.float16, bias=True, sinks=True, packed=True), {}),
    "no present outputs": (Step(present=False), {}),
    "positions, ragged, decode": (
        Step(batch=2, queries=1, past=11, cached=(11, 5), half=16, positions=True),
        {"do_rotary": 1},
    ),
    "bias, softcap, decode": (Step(queries=1, past=11, cached=(11,), bias=True), {"softcap": 3.0}),
}


def graph_of(step: Step, options: dict[str, Any], more: tuple[str, ...] = ()) -> Graph:
    graph = Graph(opset=20)
    graph.domains["com.microsoft"] = 1
    shape = (step.batch, step.queries)
    widths = [(HEADS + 2 * KV_HEADS) * SIZE] if step.packed else [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE]

    def given(name: str, *shape: int) -> str:
        graph.input(name, *shape)
        return graph.given(name, graph.inputs[name].astype(step.kind))

    names = [given(name, *shape, width) for name, width in zip("qkv", widths, strict=False)]
    names += [""] * (3 - len(names))
    has_cache = step.past or step.present
    names += [given(name, step.batch, KV_HEADS, step.past, SIZE) if has_cache else "" for name in ("pk", "pv")]
    lengths = np.array([cached + step.queries - 1 for cached in step.cached], np.int32)
    keys = int(lengths.max()) + 1
    if step.cut:
        lengths -= np.array(step.cut, np.int32)
    names.append(graph.given("seqlens", lengths))
    names.append(graph.given("total", np.array(keys, np.int32)))
    if step.half:
        angles = np.outer(np.arange(40), 0.3 ** np.arange(step.half)).astype(np.float32)
        names += [graph.constant(np.cos(angles), step.kind), graph.constant(np.sin(angles), step.kind)]
    else:
        names += ["", ""]
    names.append(graph.given("positions", np.arange(step.queries)[None].repeat(step.batch, 0)) if step.positions else "")
    names.append(given("bias", step.batch, 1, step.queries, keys) if step.bias else "")
    names.append(given("sinks", HEADS) if step.sinks else "")
    names += more
    while not names[-1]:
        names.pop()
    outputs = ["y", "present_key", "present_value"] if step.present else ["y"]
    graph.node("GroupQueryAttention", *names, domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS, **options)
    node = graph.nodes[-1]
    del node.output[:]
    node.output.extend(outputs)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(step.kind))
    graph.output("y", *shape, HEADS * SIZE, dtype=kind)
    for name in outputs[1:]:
        graph.output(name, step.batch, KV_HEADS, max(step.past, keys), SIZE, dtype=kind)
    return graph


@pytest.mark.parametrize("name", STEPS)
def test_as_onnxruntime(name: str):
    step, options = STEPS[name]
    graph = graph_of(step, options)
    result = raised(load_bytes(graph.model().SerializeToString(), name), graph.inputs)
    assert result.rejected == {} and len(result.attentions) == 1
    for difference in result.differences(graph.inputs):
        assert difference.within(1e-4 if step.kind == np.float32 else 5e-3), difference


@pytest.mark.parametrize(
    ("options", "more", "told"),
    [
        ({"causal": 0, "local_window_size": 3}, (), "local_window_size without causality"),
        ({"k_quant_type": "PER_TENSOR"}, (), "k_quant_type is PER_TENSOR"),
        ({"softcap": -1.0}, (), "a soft cap of -1"),
        ({"do_rotary": 1}, (), "do_rotary without cos_cache"),
        ({}, ("q",), "com.microsoft.GroupQueryAttention 'groupqueryattention0': its input k_scale is given"),
        ({}, ("", "q"), "its input v_scale is given"),
        ({}, ("", "", "q"), "its input q_norm_weight is given"),
        ({}, ("", "", "", "", "seqlens"), "its input query_seqlens is given"),
        ({"kv_cache_bit_width": 8}, (), "kv_cache_bit_width is set"),
        ({"sliding_window_cache": 1}, (), "sliding_window_cache is set"),
    ],
)
def test_what_is_not_raised_says_why(options: dict[str, Any], more: tuple[str, ...], told: str):
    graph = graph_of(Step(sinks=bool(more)), options, more)
    result = raised(load_bytes(graph.model().SerializeToString(), "refused"), graph.inputs)
    assert result.attentions == []
    assert any(told in reason for reason in result.rejected.values())


def test_more_keys_than_the_cache_has_places_stop_the_run():
    graph = graph_of(Step(queries=1, past=20, cached=(9,), present=False), {})
    result = raised(load_bytes(graph.model().SerializeToString(), "too long"), graph.inputs)
    assert len(result.attentions) == 1
    with pytest.raises(ModelError, match="keys in the cache by seqlens_k is not 0 to 20"):
        result.run({**graph.inputs, "seqlens": np.array([21], np.int32)})
