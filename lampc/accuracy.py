"""How far a run's outputs are from onnxruntime's on the unmodified model."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from lampc.dialects.onnx_attributes import Array
from lampc.frontend.model import Model
from lampc.perplexity import find_logits, perplexity
from lampc.runtime.check import Difference, compare
from lampc.runtime.session import ModelSession, Weights


@dataclass(frozen=True)
class Accuracy:
    """
    Differences by output, and the perplexities if they were asked for.

    seconds  what onnxruntime took for its own run, its session apart
    """

    differences: list[Difference]
    perplexity: float | None
    reference_perplexity: float | None
    seconds: float

    def within(self, rtol: float, atol: float) -> bool:
        """Whether every output is within `atol + rtol * (largest magnitude of its reference)`."""
        return all(difference.within(rtol, atol) for difference in self.differences)

    def to_json(self) -> dict[str, object]:
        """For report.json."""
        report: dict[str, object] = {
            "against": f"onnxruntime {onnxruntime.__version__}",
            "outputs": [difference.to_json() for difference in self.differences],
            "reference_seconds": self.seconds,
        }
        if self.perplexity is not None:
            report |= {"perplexity": self.perplexity, "reference_perplexity": self.reference_perplexity}
        return report


def measure(
    model: Model,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    threads: int | None,
    wants_perplexity: bool,
) -> Accuracy:
    """
    Run onnxruntime on the model itself and compare.

    Raises ModelError if onnxruntime cannot run it, InputError if there is no perplexity to compute.
    """
    names = find_logits(inputs, outputs) if wants_perplexity else None
    if outputs and not any(array.size for array in outputs.values()):  # onnxruntime refuses sizes of zero
        return Accuracy(compare(outputs, outputs), None, None, 0.0)
    session = ModelSession(model.source, Weights(model.constants), threads)
    start = time.perf_counter()
    reference = session.run(inputs)
    seconds = time.perf_counter() - start
    differences = compare(outputs, reference)
    if names is None:
        return Accuracy(differences, None, None, seconds)
    tokens = inputs[names[0]]
    ours, theirs = perplexity(tokens, outputs[names[1]]), perplexity(tokens, reference[names[1]])
    return Accuracy(differences, ours, theirs, seconds)
