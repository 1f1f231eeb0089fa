"""Policy host: the model's own attentions, cut out where others would be, give what the model in one piece gives."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from xdsl.context import Context

from lampc.dialects.onnx import NodeOp, SegmentOp
from lampc.dialects.onnx_attributes import Array
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.model import Model, load_bytes, load_model
from lampc.passes.keep_attention import KeepAttentionPass
from lampc.passes.outline_host import OutlineHostPass
from lampc.runtime.check import Difference, compare, reference_outputs
from lampc.runtime.host import HostRuntime
from tests.models.merged_decoder import LAYERS, decoder_inputs, merged_decoder
from tests.models.whole import CORPUS, needs_corpus, raised


def never(function: str, call: int, node: str, operands: list[Array]) -> Array:
    """No attention is left to a target."""
    raise AssertionError


def kept(model: Model, inputs: Mapping[str, Array]) -> tuple[int, list[Difference]]:
    """How many attentions were cut out, and the run compared with onnxruntime."""
    module = import_model(model, bind_dims(model, inputs=inputs), inputs)
    KeepAttentionPass().apply(Context(), module)
    OutlineHostPass().apply(Context(), module)
    module.verify()
    calls = [op for op in module.walk() if isinstance(op, SegmentOp) and op.callee.string_value().startswith("kept_")]
    runtime = HostRuntime(model, module, threads=1)
    return len(calls), compare(runtime.run(inputs, never), reference_outputs(model, inputs, threads=1))


@pytest.mark.parametrize(("past", "length"), [(0, 7), (5, 1)])
def test_a_decoder(past: int, length: int):
    inputs = decoder_inputs(2, past, length, merged=bool(past))
    count, differences = kept(load_bytes(merged_decoder().SerializeToString(), "decoder"), inputs)
    assert count == LAYERS
    for difference in differences:
        assert difference.within(1e-6), difference


FILES = sorted((CORPUS / "real").glob("*.onnx")) + sorted((CORPUS / "models").glob("*_kvcache*.onnx"))


@needs_corpus
@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_the_corpus(path: Path):
    with np.load(path.parent / f"{path.name.split('.')[0]}.npz") as stored:
        inputs = {key[3:]: stored[key] for key in stored if key.startswith("in/")}
    found = len(raised(load_model(path), inputs).attentions)
    count, differences = kept(load_model(path), inputs)
    assert count == found > 0
    for difference in differences:
        assert difference.within(1e-5), difference


def test_nothing_of_an_attention_stays_outside():
    inputs = decoder_inputs(1, 0, 4, merged=False)
    model = load_bytes(merged_decoder().SerializeToString(), "decoder")
    module = import_model(model, bind_dims(model, inputs=inputs), inputs)
    KeepAttentionPass().apply(Context(), module)
    main = next(iter(module.body.ops))
    outside = [op.op_type.data for op in main.regions[0].block.ops if isinstance(op, NodeOp)]
    assert "Softmax" not in outside and "MatMul" in outside
