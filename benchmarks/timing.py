"""
How fast the timing engine is: one attention layer of SmolLM2-135M's size, then a layer of 32 heads of 128 at 1024 tokens.

Decisions are made up at rates like LAMP's on real heads. A run is two passes, with contention and once more without for the
latency bound; its instructions count once. Seconds are of processor time. For comparison: the Ascend PTO performance
simulator does 307 thousand instructions per second (docs/accelerator.md section 6).
"""

import time

import numpy as np
from xdsl.context import Context

from benchmarks.layer import module
from lampc.numerics.engine import engine
from lampc.passes.accel_allocate import AccelAllocatePass
from lampc.passes.convert_to_accel import ConvertToAccelPass
from lampc.targets.accel.machine import load_machine
from lampc.targets.accel.run import compile_programs
from lampc.targets.accel.timing.engine import run_prepared
from lampc.targets.accel.timing.prepare import prepare
from lampc.targets.accel.timing.synthetic import Rates, synthetic_log

LAYERS = ((9, 512, 64), (32, 1024, 128))
RATES = Rates(stage1=0.15, stage2=0.05)
RUNS = 5


def main() -> None:
    """Print the table."""
    print(f"timing engine ({engine()}), machine packed")
    print(f"{'heads x length x d':>20} {'instructions':>13} {'cycles':>10} {'binding':>10} {'seconds':>8} {'thousand/s':>11}")
    machine = load_machine("packed")
    for heads, length, size in LAYERS:
        lowered = module(heads, length, size)
        for step in (ConvertToAccelPass(), AccelAllocatePass()):
            step.apply(Context(), lowered)
        core = machine.core
        (compiled,) = compile_programs(
            lowered, register_bytes=core.register_bytes, sram_bytes=machine.sram.capacity_bytes
        ).values()
        log = synthetic_log(compiled.program, machine, RATES, seed=0)
        prepared = prepare(compiled.program, machine)
        result = run_prepared(prepared, log)  # compiles the engine
        seconds: list[float] = []
        for _ in range(RUNS):
            begin = time.process_time()
            run_prepared(prepared, log)
            seconds.append(time.process_time() - begin)
        best = float(np.min(seconds))
        print(
            f"{f'{heads} x {length} x {size}':>20} {result.instructions:>13,} {result.cycles:>10,} {result.binding:>10} "
            f"{best:>8.3f} {result.instructions / best / 1e3:>11,.0f}"
        )


if __name__ == "__main__":
    main()
