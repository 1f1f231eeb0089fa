"""What the golden vectors are made of: seeded cases by preset, policy and option, and the hash of a run."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.numpy_target.compiled import Array, Case, operands

FOLDER = Path(__file__).parent
PAPER_SIM: dict[str, Any] = {"range": "unbounded", "shift": "exact", "exp_above_one": "keep"}

PRECISIONS: dict[str, dict[str, Any] | None] = {
    "hw": {},
    "paper-sim": PAPER_SIM,
    "paper-sim-clamp": {**PAPER_SIM, "exp_above_one": "clamp"},
    "low": {"policy": "low"},
    "high": {"policy": "high"},
    "fp32": None,
    "stage1-off": {"stage1": False},
    "stage2-off": {"stage2": False},
    "tau-eighth": {"tau": 0.125},
    "tau-zero": {"tau": 0.0},
    "delta-half": {"delta": 0.5},
    "tie-first": {"tie": "first", "tau": 0.125},
    "shift-exact": {"shift": "exact"},
    "rtz": {"rounding": "rtz"},
    "stochastic": {"rounding": "stochastic", "seed": 2**63 + 5},
    "blocks-of-8": {"accumulate_block": 8},
    "overflow-nan": {"overflow": "nan"},
}


def _plain(seed: int) -> Case:
    q, k, v = operands(seed, heads=3, kv_heads=1, queries=50, keys=150, d=64, dv=32)
    return Case(q, k, v, attention={"scale": 0.125, "causal": True, "causal_offset": 100})


def _everything(seed: int) -> Case:
    q, k, v = operands(seed, batch=2, heads=2, kv_heads=1, queries=21, keys=90, d=24, dv=40)
    rng = np.random.default_rng(seed + 1)
    mask = (2 * rng.standard_normal((1, 2, 21, 90))).astype(np.float32)
    mask[rng.random(mask.shape) < 0.2] = np.finfo(np.float32).min
    sinks = rng.standard_normal(2).astype(np.float32)
    tiling = {"bq": 8, "bk": 8, "nk": 3, "kv_order": "sink-first", "operands": "bf16"}
    return Case(q, k, v, mask=mask, sinks=sinks, attention={"scale": 2.0, "softcap": 30.0, "window": 60}, tiling=tiling)


def _extremes(seed: int) -> Case:
    q, k, v = operands(seed, queries=16, keys=70, d=16)
    rng = np.random.default_rng(seed + 1)
    q[0, 0] *= np.float32(2.0**-9)  # subnormal logits
    q[0, 1] *= np.float32(60)  # mostly saturated ones
    q[0, 1, 3, 0], k[0, 0, 40, 1], v[0, 1, 9, 2] = np.nan, np.inf, -np.inf
    return Case(q, k, v, mask=rng.random((16, 70)) < 0.7, tiling={"kv_order": "reverse"})


def _many(seed: int) -> Case:
    q, k, v = operands(seed, heads=2, kv_heads=1, queries=24, keys=100, d=40, dv=8)
    tiling = {"bq": 8, "nq": 2, "bk": 4, "nk": 12, "operands": "e4m3"}
    return Case(q, k, v, attention={"scale": 0.5, "causal": True, "causal_offset": 76}, tiling=tiling)


SHAPES = {"plain": _plain, "everything": _everything, "extremes": _extremes, "many": _many}


def digest(array: Array) -> str:
    """sha256 of the bits, in little-endian order; every NaN hashes alike."""
    same_nan = np.where(np.isnan(array), np.float32(np.nan), array).astype("<f4")
    return hashlib.sha256(np.ascontiguousarray(same_nan).tobytes()).hexdigest()


def vectors(shape: str) -> dict[str, Any]:
    """Every vector of one shape: hashes of the inputs and, per precision and layout, of output and statistics."""
    case = SHAPES[shape](sum(shape.encode()))
    runs: dict[str, Any] = {}
    for name, precision in PRECISIONS.items():
        for layout in ("safe", "compact"):
            case.precision, case.layout = precision, layout
            output, counted = case.run()
            statistics = json.dumps(counted.to_json(), sort_keys=True).encode()
            runs[f"{name}, {layout}"] = {
                "output": digest(output),
                "statistics": hashlib.sha256(statistics).hexdigest(),
                "columns": list(counted.columns()),
            }
    return {"inputs": [digest(x) for x in (case.q, case.k, case.v)], "runs": runs}
