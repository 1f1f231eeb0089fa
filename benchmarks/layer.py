"""
One attention layer on the numpy target: 32 heads of 128, 2048 causal queries, the defaults of LampAttention.

Prints the time of the whole layer, the share of each kernel in it, the whole against its round-accumulate steps alone
(query-key products in both precisions, and the ordered FP32 update of the output), and the memory beside the inputs. Shares are
of processor time, all threads together, which neighbours on the machine disturb less than the clock.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from lampc.dialects.attn import AttentionOp
from lampc.numerics import kernels, threads
from lampc.passes.mixed_precision import MixedPrecisionPass
from lampc.passes.register_layout import RegisterLayoutPass
from lampc.passes.tile_attention import TileAttentionPass
from lampc.targets.numpy.run import NumpyTarget

STEPS = ("accumulate", "update_output")
"""The kernels that do round-accumulate steps."""


def module(heads: int, length: int, size: int, layout: Any = "safe") -> ModuleOp:
    """One causal attention under LAMP's defaults."""
    shape = TensorType(f32, [1, heads, length, size])
    block = Block(arg_types=[shape] * 3)
    op = AttentionOp(*block.args, scale=size**-0.5, causal=True)
    block.add_ops([op, ReturnOp(op.output)])
    result = ModuleOp([FuncOp("attention", FunctionType.from_lists([shape] * 3, [op.output.type]), Region(block))])
    for step in (TileAttentionPass(), MixedPrecisionPass(), RegisterLayoutPass(layout)):
        step.apply(Context(), result)
    return result


def timed(seconds: dict[str, float]) -> None:
    """Make every kernel add up the time spent in it."""
    for name in kernels.__all__:
        function: Any = getattr(kernels, name)
        if not callable(function) or not hasattr(function, "__code__"):
            continue

        def measure(*args: Any, _function: Callable[..., Any] = function, _name: str = name, **options: Any) -> Any:
            begin = time.process_time()
            result = _function(*args, **options)
            seconds[_name] = seconds.get(_name, 0.0) + time.process_time() - begin
            return result

        setattr(kernels, name, measure)


def peak() -> float:
    """Largest memory this process held so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--layout", choices=("safe", "compact"), default="safe")
    options = parser.parse_args(words)
    threads.set_threads(options.threads)
    seconds: dict[str, float] = {}
    timed(seconds)
    rng = np.random.default_rng(0)
    shape = (1, options.heads, options.length, options.size)
    q, k, v = (rng.standard_normal(shape, np.float32) for _ in range(3))
    NumpyTarget(module(1, 128, options.size, options.layout)).run("attention", [x[:, :1, :128] for x in (q, k, v)])  # compiles
    target = NumpyTarget(module(*shape[1:], options.layout))
    before = peak()
    best, wall, parts, columns = float("inf"), float("inf"), seconds, (0, 0, 0)
    for _ in range(options.turns):
        seconds.clear()
        begin, clock = time.process_time(), time.perf_counter()
        result = target.run("attention", [q, k, v])
        taken = time.process_time() - begin
        wall = min(wall, time.perf_counter() - clock)
        if taken < best:
            best, parts, columns = taken, dict(seconds), result.statistics.columns()
    alone = sum(parts[name] for name in STEPS)
    live = sum(columns)
    print(
        f"{options.heads} heads, {options.length} queries, size {options.size}, threads {threads.thread_count()}: {wall:.2f} s"
    )
    print(f"processor time {best:.2f} s")
    print("tiles with 0 / 1 / 2+ sub-blocks recomputed: " + " / ".join(f"{count / live:.3f}" for count in columns))
    for name, spent in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {name:<18}{spent:>8.3f} s{spent / best:>8.1%}")
    print(f"  {'everything else':<18}{best - sum(parts.values()):>8.3f} s{1 - sum(parts.values()) / best:>8.1%}")
    print(f"round-accumulate steps alone {alone:.2f} s, {alone / best:.1%}; the layer takes {best / alone:.2f} times that")
    print(f"memory beside inputs and compiler {peak() - before:.2f} GiB")


if __name__ == "__main__":
    main()
