"""Every model of the corpus: what is raised agrees with onnxruntime, what is not raised has a reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError
from lampc.frontend.dims import bind_dims
from lampc.frontend.inputs import load_inputs, synthetic_inputs
from lampc.frontend.model import load_model
from tests.models.whole import CORPUS, Raised, needs_corpus, raised

# name part to a part of the reason
LEFT_ALONE = {
    "lineariser_nosoftmax": "no softmax between the two products",
    "returns_probs": "its result is also used by the graph's outputs",
    "cross_kpm_weights": "its result is also used by",
}
# onnxruntime itself cannot run these
NO_REFERENCE = ("rotary23_broadcast_batch1", "dyns23.sdpa", "sdpa_bf16", "padmask_b11s_bool.d23")


def _indexed() -> list[Any]:
    index = CORPUS / "INDEX.json"
    return [e for e in json.loads(index.read_text()) if e["folder"] == "models"] if index.is_file() else []


def _zoo() -> list[Path]:
    return sorted((CORPUS / "zoo").glob("*.onnx"))


def check(result: Raised, inputs: dict[str, Array], name: str) -> None:
    """Either attentions and no rejection, or none and the reason that is expected; equal outputs in both cases."""
    reason = next((reason for part, reason in LEFT_ALONE.items() if part in name), None)
    if reason is None:
        assert result.rejected == {}
    else:
        assert result.attentions == []
        assert any(reason in text for text in result.rejected.values())
    half = any(array.dtype.itemsize == 2 for array in inputs.values()) or "fp16" in name or "half" in name
    try:
        differences = result.differences(inputs)
    except ModelError:
        if not any(part in name for part in NO_REFERENCE):
            raise
        return
    for difference in differences:
        assert difference.within(5e-3 if half else 1e-4), difference


@needs_corpus
@pytest.mark.parametrize("entry", _indexed(), ids=lambda entry: entry["file"].removesuffix(".onnx"))
def test_model(entry: dict[str, Any]):
    model = load_model(CORPUS / "models" / entry["file"])
    if entry["npz"]:
        inputs = load_inputs(CORPUS / "models" / entry["npz"], model)
    else:
        inputs = synthetic_inputs(model, bind_dims(model).shapes)
    result = raised(model, inputs)
    if result.attentions and "decomposed_softmax" not in entry["file"]:  # which the index's analyser does not know
        assert len(result.attentions) == entry["attention_blocks"]
    check(result, inputs, entry["file"])


@needs_corpus
@pytest.mark.parametrize("path", _zoo(), ids=lambda path: path.name.removesuffix(".onnx"))
def test_zoo(path: Path):
    model = load_model(path)
    # batch two, eight tokens; keys and values of one length
    dims = {
        symbol: 2 if symbol in ("b", "batch", "unk__627", "unk__629", "unk__631", "unk__633") else 8 for symbol in model.symbols
    }
    inputs = synthetic_inputs(model, bind_dims(model, dims).shapes)
    for name, array in inputs.items():
        if name in ("a_1", "in1") and array.dtype == np.int64:  # the second input is a padding mask: pad the second sentence
            inputs[name] = np.where(np.indices(array.shape)[-1] < array.shape[-1] - 3 * np.indices(array.shape)[0], 1, 0)
    result = raised(model, inputs)
    assert result.attentions
    check(result, inputs, path.name)
