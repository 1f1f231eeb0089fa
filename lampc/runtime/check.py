"""Compare a run with onnxruntime on the unmodified model: what `--check` reports."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError, printable
from lampc.runtime.session import HostModel, ModelSession, Weights


@dataclass(frozen=True)
class Difference:
    """
    How far one output is from its reference, over the entries that are finite in both.

    max_abs      largest absolute difference
    max_rel      the same over the reference's largest magnitude
    cosine       cosine of the angle between the two as vectors (1 if both are zero)
    nan          entries that are NaN here; nan_reference: in the reference
    mismatched   entries where only one is NaN, or an infinity differs
    """

    output: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    cosine: float
    nan: int
    nan_reference: int
    mismatched: int

    def within(self, rtol: float, atol: float = 0.0) -> bool:
        """Whether nothing mismatches and every entry is within `atol + rtol * (the reference's largest magnitude)`."""
        limit = rtol * self.max_abs / self.max_rel if self.max_rel else np.inf
        return not self.mismatched and (self.max_abs <= atol + limit or self.max_rel <= rtol)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "shape": list(self.shape)}


def reference_outputs(model: HostModel, inputs: Mapping[str, Array], *, threads: int | None = None) -> dict[str, Any]:
    """
    All graph outputs of onnxruntime on the unmodified model, by name.

    Raises ModelError with onnxruntime's reason if it cannot load or run the model.
    """
    return ModelSession(model.source, Weights(model.constants), threads).run(inputs)


def compare(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> list[Difference]:
    """
    One record per output of `reference`, in its order.

    Raises InputError if an output is missing or its shape differs.
    """
    return [_difference(name, outputs, expected) for name, expected in reference.items()]


def _difference(name: str, outputs: Mapping[str, Array], expected: Array) -> Difference:
    where = f"output '{printable(name)}'"
    if name not in outputs:
        raise InputError("it is missing", where=where)
    actual = outputs[name]
    if actual.shape != expected.shape:
        raise InputError(f"shape {actual.shape}, the reference has {expected.shape}", where=where)
    a, r = _numbers(actual), _numbers(expected)
    finite = np.isfinite(a) & np.isfinite(r)
    same = finite | (np.isnan(a) & np.isnan(r)) | (a == r)
    x, y = a[finite], r[finite]
    max_abs = float(np.max(np.abs(x - y), initial=0.0))
    largest = float(np.max(np.abs(y), initial=0.0))
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return Difference(
        name,
        expected.shape,
        max_abs,
        max_abs / largest if largest else (0.0 if max_abs == 0 else float("inf")),
        float(x @ y) / norms if norms else (1.0 if max_abs == 0 else 0.0),
        int(np.isnan(a).sum()),
        int(np.isnan(r).sum()),
        int((~same).sum()),
    )


def _numbers(array: Array) -> npt.NDArray[np.float64]:
    if array.dtype.kind in "OSU":
        raise InputError("outputs that are strings cannot be compared")
    return np.asarray(array, np.float64).reshape(-1)
