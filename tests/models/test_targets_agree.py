"""The two targets on real attention layers: the same bits and the same statistics under every scheme."""

import os
from pathlib import Path

import numpy as np
import pytest

from lampc.driver import Request, Result, compile_model, run_model
from lampc.options import POLICIES, Options
from lampc.targets.accel.machine import load_machine
from tests.unit.numpy_target.compiled import same_bits

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "smollm2_layer15_attention.onnx"
CORPUS = Path(os.environ.get("CORPUS", ROOT.parent / "shared" / "corpus"))
SCHEMES = {**{policy: Options(policy=policy) for policy in POLICIES if policy != "host"}, "compact": Options(layout="compact")}


def _inputs(model: Path) -> Path:
    """The arrays beside a model: its own, or those its exports share."""
    own = model.with_suffix(".npz")
    return own if own.exists() else model.parent / f"{model.name.split('.')[0]}.npz"


def _run(model: Path, scheme: str, target: str) -> Result:
    request = Request(
        model,
        "accel" if target == "accel" else "numpy",
        SCHEMES[scheme],
        inputs=_inputs(model),
        machines=(load_machine("packed"),) if target == "accel" else (),
        compare=scheme == "fp32",
    )
    return run_model(request, compile_model(request, lambda _: None), lambda _: None)


def _agree(model: Path, scheme: str) -> None:
    plain, modelled = _run(model, scheme, "numpy"), _run(model, scheme, "accel")
    assert plain.outputs is not None and modelled.outputs is not None
    assert plain.engine is not None and modelled.engine is not None
    assert all(same_bits(np.asarray(plain.outputs[name]), np.asarray(value)) for name, value in modelled.outputs.items())
    assert len(plain.engine.records) == len(modelled.engine.records) > 0
    for one, other in zip(plain.engine.records, modelled.engine.records, strict=True):
        assert one.statistics.to_json() == other.statistics.to_json()
    if scheme == "fp32":
        assert plain.accuracy is not None and plain.accuracy.within(1e-4, 0.0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_on_the_example(scheme: str):
    _agree(EXAMPLE, scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "model", sorted((CORPUS / "real").glob("*.onnx")) or [None], ids=lambda m: m.name if m else "no corpus"
)
def test_on_the_corpus(model: Path | None, scheme: str):
    if model is None:
        pytest.skip(f"no corpus at {CORPUS}; set CORPUS to run on more real models")
    _agree(model, scheme)
