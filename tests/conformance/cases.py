"""
The cases of each set, and what becomes of one.

A case is right if every output agrees with what is expected: the case's own outputs, else onnxruntime's on the unmodified
model. Attentions run in the tests' FP64 oracle, which is what `--policy fp32` means up to its roundings.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lampc.dialects.onnx_attributes import Array
from lampc.errors import LampcError, ModelError
from lampc.frontend.dims import bind_dims
from lampc.frontend.inputs import load_inputs, synthetic_inputs
from lampc.frontend.model import Model, load_bytes, load_model
from lampc.runtime.check import reference_outputs
from tests.models.whole import CORPUS, raised
from tests.unit.frontend.builders import onnx_node_cases

Verdict = Literal["raised", "left alone", "no reference", "wrong"]
"""
raised and right; not raised, with a reason, and right (of hostile models: refused with the error they deserve); onnxruntime
cannot run the model or what surrounds its attention; anything else.
"""

TOLERANCE, HALF_TOLERANCE = 1e-4, 5e-3
NARROW_TOLERANCE = 2e-2
"""bf16 has eight bits of mantissa."""
SECONDS, MEGABYTES = 2.0, 500
"""What a hostile model may cost, in processor time and memory (docs/onnx.md section 6)."""


@dataclass(frozen=True)
class Outcome:
    """What became of one case; `reasons` by node, of what was not raised or went wrong."""

    case: str
    verdict: Verdict
    attentions: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """
    A model, inputs and expected outputs, made when asked for; `expected` None asks onnxruntime.

    attention  whether there is attention in it, so that finding nothing is wrong
    """

    name: str
    make: Callable[[], tuple[Model, dict[str, Array], dict[str, Array] | None]]
    attention: bool = True


def judge(case: Case) -> Outcome:
    """Raise, run and compare one case."""
    try:
        model, inputs, expected = case.make()
        result = raised(model, inputs)
    except LampcError as error:
        return Outcome(case.name, "wrong", 0, (str(error),))
    reasons = tuple(f"{node}: {reason}" for node, reason in result.rejected.items())
    found = len(result.attentions)
    if case.attention and not found and not reasons:
        return Outcome(case.name, "wrong", 0, ("nothing raised and no reason given",))
    try:
        expected = expected or reference_outputs(model, inputs, threads=1)
        differences = result.against(inputs, expected)
    except ModelError as error:
        return Outcome(case.name, "no reference", found, (*reasons, str(error)))
    limit = _limit([*inputs.values(), *expected.values()], case.name)
    bad = tuple(f"output {d.output} differs by {d.max_rel:.1e}" for d in differences if not d.within(limit, 1e-6))
    return Outcome(case.name, "wrong" if bad else "raised" if found else "left alone", found, bad or reasons)


def _limit(arrays: list[Array], name: str) -> float:
    if any(array.dtype.name == "bfloat16" for array in arrays) or "bf16" in name:
        return NARROW_TOLERANCE
    half = any(array.dtype.itemsize == 2 for array in arrays) or "fp16" in name or "half" in name
    return HALF_TOLERANCE if half else TOLERANCE


def onnx_suite(expanded: bool) -> Iterator[Case]:
    """ONNX's own cases of Attention, as the operator or decomposed."""
    for case in onnx_node_cases():
        if case.name.startswith("test_attention") and case.name.endswith("_expanded") == expanded:
            yield Case(case.name, lambda case=case: _suite_case(case))


def _suite_case(case: Any) -> tuple[Model, dict[str, Array], dict[str, Array] | None]:
    (data,) = case.data_sets
    inputs = {info.name: np.asarray(array) for info, array in zip(case.model.graph.input, data[0], strict=True)}
    expected = {info.name: np.asarray(array) for info, array in zip(case.model.graph.output, data[1], strict=True)}
    return load_bytes(case.model.SerializeToString(), case.name), inputs, expected


def corpus_models(folder: str) -> Iterator[Case]:
    """The models of `models` or `real`, with the inputs beside them."""
    index = CORPUS / "INDEX.json"
    for entry in json.loads(index.read_text()):
        if entry["folder"] == folder:
            yield Case(entry["file"], lambda entry=entry: _corpus_case(folder, entry), bool(entry["attention_blocks"]))


def _corpus_case(folder: str, entry: Any) -> tuple[Model, dict[str, Array], None]:
    model = load_model(CORPUS / folder / entry["file"])
    if entry["npz"]:
        return model, load_inputs(CORPUS / folder / entry["npz"], model), None
    return model, synthetic_inputs(model, bind_dims(model).shapes), None


def zoo() -> Iterator[Case]:
    """The exports without inputs: batch two, eight tokens, the second sentence padded where a mask is asked for."""
    for path in sorted((CORPUS / "zoo").glob("*.onnx")):
        yield Case(path.name, lambda path=path: _zoo_case(path))


def _zoo_case(path: Path) -> tuple[Model, dict[str, Array], None]:
    model = load_model(path)
    batches = ("b", "batch", "unk__627", "unk__629", "unk__631", "unk__633")
    inputs = synthetic_inputs(model, bind_dims(model, {s: 2 if s in batches else 8 for s in model.symbols}).shapes)
    for name, array in inputs.items():
        if name in ("a_1", "in1") and array.dtype == np.int64:  # a padding mask
            inputs[name] = np.where(np.indices(array.shape)[-1] < array.shape[-1] - 3 * np.indices(array.shape)[0], 1, 0)
    return model, inputs, None


def hostile(codes: Mapping[str, str | None]) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """
    The corpus's bad models, each opened by `lampc --explain` in a process of its own.

    codes  by the number in a file's name: the error that it deserves, None where it must import
    """
    for path in sorted((CORPUS / "bad").glob("*.onnx")):
        yield path.name, lambda path=path: _hostile(path, codes[path.name[:2]])


def _hostile(path: Path, code: str | None) -> Outcome:
    spent = _measured([str(path)])
    seconds = spent.seconds - _idle()
    said = spent.lines[-1].rpartition("[")[2].rstrip("]") if spent.lines and spent.exit else ""
    faults = [
        fault
        for fault, found in (
            (f"{said or 'no error'} instead of {code or 'none'}", said != (code or "")),
            (f"exit code {spent.exit}", spent.exit != (1 if code else 0)),
            (f"{len(spent.lines)} lines on stderr", len(spent.lines) > (1 if code else 0)),
            (f"{seconds:.1f} s", seconds > SECONDS),
            (f"{spent.bytes / 10**6:.0f} MB", spent.bytes > MEGABYTES * 10**6),
        )
        if found
    ]
    return Outcome(path.name, "wrong" if faults else "left alone" if code else "raised", 0, tuple(faults))


@dataclass(frozen=True)
class _Spent:
    exit: int
    lines: list[str]
    seconds: float
    bytes: int


@cache
def _idle() -> float:
    """Processor seconds that a run without a model takes, to start Python and import modules."""
    return min(_measured([]).seconds for _ in range(3))


def _measured(words: list[str]) -> _Spent:
    command = [sys.executable, "-m", "tests.conformance.measure", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return _Spent(-1, ["still running"], 60.0, 0)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last = json.loads((done.stdout.strip().splitlines() or ["{}"])[-1])
    return _Spent(done.returncode, lines, last.get("seconds", 60.0), last.get("bytes", 0))


def peak_bytes() -> int:
    """Largest memory that this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
