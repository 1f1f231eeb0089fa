"""The measured values of docs/lampattention.md section 9, on Q, K and V of two layers of SmolLM2."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.numpy_target.compiled import Case

DATA = Path(__file__).parent / "data" / "smollm2_qkv_512.npz"
LENGTH = 512
PAPER_SIM: dict[str, Any] = {"range": "unbounded", "shift": "exact", "exp_above_one": "keep"}

SECTION_9: dict[tuple[int, str], tuple[dict[str, Any], str, tuple[str, str, str] | None]] = {
    (7, "8-bit only"): ({"policy": "low"}, "0.353", None),
    (7, "16-bit only"): ({"policy": "high"}, "0.0019", None),
    (7, "tau=0.5 hw"): ({}, "0.1246", ("0.49", "0.25", "0.25")),
    (7, "tau=0.5 paper-sim"): (PAPER_SIM, "0.0917", ("0.51", "0.25", "0.25")),
    (7, "tau=1/8 paper-sim"): ({**PAPER_SIM, "tau": 0.125}, "0.0332", ("0.12", "0.36", "0.52")),
    (15, "8-bit only"): ({"policy": "low"}, "0.206", None),
    (15, "16-bit only"): ({"policy": "high"}, "0.0010", None),
    (15, "tau=0.5 hw"): ({}, "0.1019", ("0.50", "0.40", "0.10")),
    (15, "tau=0.5 paper-sim"): (PAPER_SIM, "0.0890", ("0.52", "0.40", "0.08")),
    (15, "tau=1/8 paper-sim"): ({**PAPER_SIM, "tau": 0.125}, "0.0150", ("0.17", "0.24", "0.59")),
}
"""(layer, column): precision, mean relative error over the heads, shares of live tiles with 0, 1, 2+ recomputed sub-blocks."""


def _exact(q: Any, k: Any, v: Any) -> Any:
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / 8
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v.astype(np.float64)


def _as_printed(value: float, like: str) -> str:
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize(("layer", "column"), SECTION_9)
def test_guide_value(layer: int, column: str):
    precision, error, shares = SECTION_9[layer, column]
    with np.load(DATA) as data:
        q, k, v = (data[f"{name}{layer}"] for name in "qkv")
    case = Case(q[None], k[None], v[None], attention={"scale": 0.125, "causal": True}, precision=precision)
    output, statistics = case.run()
    expected = _exact(q, k, v)
    errors = [np.linalg.norm(output[0, h] - expected[h]) / np.linalg.norm(expected[h]) for h in range(3)]
    assert _as_printed(float(np.mean(errors)), error) == error
    if shares is not None:
        by_head = np.array([statistics.columns(head=head) for head in range(3)], np.float64)
        found = (by_head / by_head.sum(axis=1, keepdims=True)).mean(axis=0)
        assert np.abs(found - np.array(shares, np.float64)).max() < 0.0055  # two digits, whichever way a half was rounded
