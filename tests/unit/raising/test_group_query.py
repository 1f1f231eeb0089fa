"""GroupQueryAttention of com.microsoft, option by option: raised, and as onnxruntime computes it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lampc.frontend.model import load_bytes
from tests.models.whole import raised
from tests.unit.raising.graphs import Graph

HEADS, KV_HEADS, SIZE = 4, 2, 32


@dataclass(frozen=True)
class Step:
    """
    One call: `past` is the length of the cache's tensors, `cached` what is in them, per item of the batch.

    half  rotary angles, 0 for none
    """

    batch: int = 1
    queries: int = 7
    past: int = 0
    cached: tuple[int, ...] = (0,)
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
    "bias, softcap, decode": (Step(queries=1, past=11, cached=(11,), bias=True), {"softcap": 3.0}),
}


def graph_of(step: Step, options: dict[str, Any], more: tuple[str, ...] = ()) -> Graph:
    graph = Graph(opset=20)
    graph.domains["com.microsoft"] = 1
    shape = (step.batch, step.queries)
    widths = [(HEADS + 2 * KV_HEADS) * SIZE] if step.packed else [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE]
    names = [graph.input(name, *shape, width) for name, width in zip("qkv", widths, strict=False)]
    names += [""] * (3 - len(names))
    has_cache = step.past or step.present
    names += [graph.input(name, step.batch, KV_HEADS, step.past, SIZE) if has_cache else "" for name in ("pk", "pv")]
    lengths = np.array([cached + step.queries - 1 for cached in step.cached], np.int32)
    names.append(graph.given("seqlens", lengths))
    names.append(graph.given("total", np.array(lengths.max() + 1, np.int32)))
    if step.half:
        angles = np.outer(np.arange(40), 0.3 ** np.arange(step.half)).astype(np.float32)
        names += [graph.constant(np.cos(angles)), graph.constant(np.sin(angles))]
    else:
        names += ["", ""]
    names.append(graph.given("positions", np.arange(step.queries)[None].repeat(step.batch, 0)) if step.positions else "")
    keys = int(lengths.max()) + 1
    names.append(graph.input("bias", step.batch, 1, step.queries, keys) if step.bias else "")
    names.append(graph.input("sinks", HEADS) if step.sinks else "")
    names += more
    while not names[-1]:
        names.pop()
    outputs = ["y", "present_key", "present_value"] if step.present else ["y"]
    graph.node("GroupQueryAttention", *names, domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS, **options)
    node = graph.nodes[-1]
    del node.output[:]
    node.output.extend(outputs)
    graph.output("y", *shape, HEADS * SIZE)
    for name in outputs[1:]:
        graph.output(name, step.batch, KV_HEADS, max(step.past, keys), SIZE)
    return graph


@pytest.mark.parametrize("name", STEPS)
def test_as_onnxruntime(name: str):
    step, options = STEPS[name]
    graph = graph_of(step, options)
    result = raised(load_bytes(graph.model().SerializeToString(), name), graph.inputs)
    assert result.rejected == {} and len(result.attentions) == 1
    for difference in result.differences(graph.inputs):
        assert difference.within(1e-4), difference


@pytest.mark.parametrize(
    ("options", "more", "told"),
    [
        ({"causal": 0}, (), "causal is 0"),
        ({"k_quant_type": "PER_TENSOR"}, (), "k_quant_type is PER_TENSOR"),
        ({"softcap": -1.0}, (), "a soft cap of -1"),
        ({"do_rotary": 1}, (), "do_rotary without cos_cache"),
        ({}, ("q",), "its input number 13"),
    ],
)
def test_what_is_not_raised_says_why(options: dict[str, Any], more: tuple[str, ...], told: str):
    graph = graph_of(Step(sinks=bool(more)), options, more)
    result = raised(load_bytes(graph.model().SerializeToString(), "refused"), graph.inputs)
    assert result.attentions == []
    assert any(told in reason for reason in result.rejected.values())
