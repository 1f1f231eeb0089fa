"""
Compile mutated models, one after the other, and say a line for each on stdout: `python -m tests.fuzz.worker FIRST COUNT`.

A line is JSON: seed, model, seconds, bytes (how far the process's peak memory rose), and `fault`, empty where all is well.
"""

import json
import sys
import time
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from lampc.errors import LampcError
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.model import load_bytes
from lampc.options import Options
from lampc.pipeline import attention_module, run_pipeline
from tests.conformance.cases import peak_bytes
from tests.fuzz.mutate import mutated
from tests.models.whole import CORPUS
from tests.unit.raising.graphs import attention, random_form

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 200_000
"""Bytes of the corpus's files that are mutated; larger ones are mostly weights."""


@cache
def models() -> tuple[tuple[str, bytes], ...]:
    """Name and bytes of what is mutated: the example, random compositions of attention, the corpus where it is."""
    made = [(f"form {seed}", attention(random_form(seed), seed).model().SerializeToString()) for seed in range(40)]
    files = [ROOT / "examples" / "smollm2_layer15_attention.onnx", *sorted(CORPUS.glob("models/*.onnx"))]
    files += sorted(CORPUS.glob("bad/*.onnx"))
    return (*made, *((path.name, path.read_bytes()) for path in files if 0 < path.stat().st_size <= LARGEST))


def case(seed: int) -> tuple[str, bytes]:
    """Which model a seed mutates, and what becomes of it."""
    rng = np.random.default_rng(seed)
    name, data = models()[int(rng.integers(len(models())))]
    try:
        return name, mutated(data, rng)
    except Exception:  # a corpus file that is no model itself
        return name, data[: int(rng.integers(len(data) + 1))]


def compile_bytes(data: bytes) -> None:
    """What `lampc --compile-only` does with a file of these bytes. Raises LampcError, or what must not be."""
    model = load_bytes(data, "fuzzed.onnx")
    module = import_model(model, bind_dims(model, {symbol: 4 for symbol in model.symbols if symbol.isidentifier()}))
    raising, _, rest = Options().pipeline("accel").partition("lamp-outline-host,")
    run_pipeline(module, f"{raising}lamp-outline-host")
    run_pipeline(attention_module(module), rest)


def outcomes(first: int, count: int) -> Iterator[dict[str, object]]:
    """One record for each seed."""
    for seed in range(first, first + count):
        name, data = case(seed)
        before, begin, fault = peak_bytes(), time.process_time(), ""
        try:
            compile_bytes(data)
        except LampcError as error:
            text = str(error)
            if not text.isprintable() or len(text) > 2000 or error.exit_code not in (1, 2):
                fault = f"error of {len(text)} characters, exit code {error.exit_code}: {text[:200]!r}"
        except Exception:
            fault = traceback.format_exc(limit=-4)
        yield {
            "seed": seed,
            "model": name,
            "seconds": time.process_time() - begin,
            "bytes": peak_bytes() - before,
            "fault": fault,
        }


if __name__ == "__main__":
    for record in outcomes(int(sys.argv[1]), int(sys.argv[2])):
        print(json.dumps(record), flush=True)
