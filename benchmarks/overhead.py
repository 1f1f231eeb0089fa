"""
What cutting a model into segments costs: `lampc --policy host` against one plain onnxruntime session.

    python -m benchmarks.overhead MODEL.onnx... [--length N] [--batch N] [--turns N] [--threads N]

Both run the model's own nodes, so that what differs is lampc's splitting. Times are of one run of a session that is ready, turn
and turn about in one process; the best of each counts, as neighbours on the machine make noise. Memory is the peak of a child
process that starts, runs twice and ends; lampc's includes the compiler. Inputs are seeded; dimensions whose names say batch are
--batch, others --length.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from lampc.dialects.onnx_attributes import Array

Run = Callable[[], list[Array]]


def sizes(path: Path, batch: int, length: int) -> dict[str, int]:
    """A size for each symbol of a model's inputs."""
    from lampc.frontend.model import load_model

    return {name: batch if "batch" in name.lower() else length for name in load_model(path).symbols if name.isidentifier()}


def inputs_of(path: Path, dims: dict[str, int]) -> dict[str, Array]:
    """Seeded inputs by name as in the file."""
    from lampc.frontend.dims import bind_dims
    from lampc.frontend.inputs import synthetic_inputs
    from lampc.frontend.model import load_model

    model = load_model(path)
    arrays = synthetic_inputs(model, bind_dims(model, dims).shapes)
    return {model.original(name): array for name, array in arrays.items()}


def plain(path: Path, inputs: dict[str, Array], threads: int | None) -> Run:
    """onnxruntime on the file, with its default options."""
    options: Any = onnxruntime.SessionOptions()  # pyright: ignore
    if threads is not None:
        options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def split(path: Path, dims: dict[str, int], threads: int | None) -> Run:
    """lampc with the model's own attentions."""
    from lampc.driver import Request, compile_model
    from lampc.options import Options
    from lampc.runtime.host import HostRuntime
    from lampc.runtime.session import share_pool

    request = Request(path, "numpy", Options(policy="host"), dims=dims, threads=threads)
    compiled = compile_model(request, lambda _: None)
    share_pool(threads)
    runtime = HostRuntime(compiled.model, compiled.host, threads=threads)
    inputs = compiled.inputs

    def never(function: str, index: int, node: str, operands: list[Array]) -> Array:
        raise AssertionError("an attention that the host does not run")

    return lambda: list(runtime.run(inputs, never).values())


def seconds(run: Run) -> float:
    """Of a second run in a row, once the other's threads have gone to sleep: they spin for a while after a run."""
    time.sleep(0.02)
    run()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def times(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Best seconds of both, taken alternately, and how far their outputs are apart."""
    dims = sizes(path, options.batch, options.length)
    both = (plain(path, inputs_of(path, dims), options.threads), split(path, dims, options.threads))
    first, second = (run() for run in both)
    apart = max(float(np.abs(a.astype(np.float64) - b).max(initial=0)) for a, b in zip(first, second, strict=True))
    taken: tuple[list[float], list[float]] = [], []
    for turn in range(options.turns):
        for index in (0, 1) if turn % 2 else (1, 0):
            taken[index].append(seconds(both[index]))
    return {"seconds": [min(each) for each in taken], "apart": apart}


def peak(path: Path, options: argparse.Namespace) -> float:
    """Peak memory of this process after two runs of one of the two, in bytes."""
    dims = sizes(path, options.batch, options.length)
    if options.child == "plain":
        run = plain(path, inputs_of(path, dims), options.threads)
    else:
        run = split(path, dims, options.threads)
    for _ in range(2):
        run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def child(kind: str, path: Path, options: argparse.Namespace) -> Any:
    """
    What a child process measures. This one loads no model: a child's peak counts what its parent held when it was made.
    """
    words = [str(path), "--child", kind, "--length", str(options.length), "--batch", str(options.batch)]
    words += ["--turns", str(options.turns), *(["--threads", str(options.threads)] if options.threads else [])]
    done = subprocess.run([sys.executable, "-m", "benchmarks.overhead", *words], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def row(path: Path, options: argparse.Namespace) -> str:
    """One row of the table."""
    memory = [child(kind, path, options) for kind in ("plain", "lampc")]
    measured = child("times", path, options)
    before, after = measured["seconds"]
    apart = f"{measured['apart']:.0e}" if measured["apart"] else "0"
    return (
        f"{path.name[:40]:<40}{before * 1e3:>10.2f}{after * 1e3:>10.2f}{after / before:>8.3f}"
        f"{memory[0] / 2**20:>10.0f}{memory[1] / 2**20:>10.0f}{memory[1] / memory[0]:>8.2f}{apart:>12}"
    )


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--child", choices=("plain", "lampc", "times"), help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.child:
        (path,) = options.models
        print(json.dumps((times if options.child == "times" else peak)(path, options)))
        return
    columns = ("plain ms", "split ms", "ratio", "plain MB", "split MB", "ratio", "difference")
    widths = (10, 10, 8, 10, 10, 8, 12)
    title = f"onnxruntime {onnxruntime.__version__}, {options.length} tokens"
    print(f"{title:<40}" + "".join(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True)))
    for path in options.models:
        print(row(path, options), flush=True)


if __name__ == "__main__":
    main()
