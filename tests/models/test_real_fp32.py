"""Real weights on real activations: every attention is raised and the whole model agrees with onnxruntime."""

import json
from pathlib import Path
from typing import Any

import pytest

from lampc.frontend.inputs import load_inputs
from lampc.frontend.model import load_model
from lampc.ir import tensor_shape
from tests.models.whole import CORPUS, needs_corpus, raised

LIMIT = 1e-4


def _entries() -> list[Any]:
    index = CORPUS / "INDEX.json"
    return [e for e in json.loads(index.read_text()) if e["folder"] == "real"] if index.is_file() else []


@needs_corpus
@pytest.mark.parametrize("entry", _entries(), ids=lambda entry: Path(entry["file"]).stem)
def test_real_model(entry: dict[str, Any]):
    model = load_model(CORPUS / "real" / entry["file"])
    inputs = load_inputs(CORPUS / "real" / entry["npz"], model)
    result = raised(model, inputs)
    assert len(result.attentions) == entry["attention_blocks"]
    assert result.rejected == {}
    for attention in result.attentions:
        if "smol" in entry["file"]:  # causal, with three key-value heads, whatever the exporter wrote
            assert attention.causal is not None and attention.mask is None
            assert attention.causal_offset is None and attention.window is None
            assert (tensor_shape(attention.query)[1], tensor_shape(attention.key)[1]) == (9, 3)
            assert attention.scale.value.data == pytest.approx(0.125, rel=1e-7)  # sqrt(0.125) on Q and on K is not exact
        else:
            assert attention.causal is None and attention.mask is not None
    for difference in result.differences(inputs):
        assert difference.within(LIMIT), difference
