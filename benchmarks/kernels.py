"""
How fast the kernels are: steps of a rounded accumulation per second, and of the FP32 update of the output.

A step is one product, one addition and one rounding. Compare columns of one run, not runs: neighbours on the machine make
noise, so every figure is the best of several turns taken alternately. The ceiling is the same arithmetic in C with eight
vectors in registers and nothing around it, on one thread; it needs a C compiler and AVX-512.
"""

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lampc.numerics import kernels, threads
from lampc.numerics.arrays import Array
from lampc.numerics.formats import E4M3, E4M11, E8M3, E8M11, FloatFormat

LANES, ROWS, KEYS, SIZE = 256, 16, 64, 64
TURNS = 5
ENGINES: tuple[tuple[str, kernels.Engine, int], ...] = (
    ("numba, 1 thread", "numba", 1),
    ("numba, 2 threads", "numba", 2),
    ("numpy", "numpy", 1),
)

CEILING = r"""
#include <immintrin.h>
/* c = round(c + k*q) on the grid of a bounded format: eight keys, 16 queries, d terms, `times` times over. */
void steps(const float *k, const float *q, float *out, long d, long times, float top, int least, float factor) {
    const __m512 high = _mm512_set1_ps(top), low = _mm512_set1_ps(-top), f = _mm512_set1_ps(factor);
    const __m512i mask = _mm512_set1_epi32(0x7f800000), smallest = _mm512_set1_epi32(least);
    for (long n = 0; n < times; n++) {
        __m512 c[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) c[i] = _mm512_setzero_ps();
        for (long t = 0; t < d; t++) {
            const __m512 query = _mm512_loadu_ps(q + 16 * t);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                __m512 x = _mm512_add_ps(c[i], _mm512_mul_ps(_mm512_set1_ps(k[i * d + t]), query));
                x = _mm512_max_ps(low, _mm512_min_ps(high, x));
                const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), mask);
                const __m512 power = _mm512_castsi512_ps(_mm512_max_epi32(bits, smallest));
                c[i] = _mm512_fnmadd_ps(power, f, _mm512_fmadd_ps(power, f, x));
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) _mm512_storeu_ps(out + 16 * i, c[i]);
        __asm__ volatile("" ::: "memory");
    }
}
"""


def work() -> dict[str, tuple[int, Callable[[], Array]]]:
    """Name -> steps per call, call."""
    rng = np.random.default_rng(0)
    keys, values = (rng.standard_normal((3, 512, SIZE)).astype(np.float32) for _ in range(2))
    queries = rng.standard_normal((LANES, SIZE, ROWS)).astype(np.float32).swapaxes(1, 2)
    head, start = rng.integers(0, 3, LANES), rng.integers(0, 512 // KEYS, LANES) * KEYS
    acc, scale = np.zeros((LANES, ROWS, SIZE), np.float32), np.ones((LANES, ROWS), np.float32)
    e = rng.random((LANES, KEYS, ROWS), np.float32)
    live = np.ones(e.shape, np.bool_)

    def accumulate(fmt: FloatFormat | None, count: int) -> tuple[int, Callable[[], Array]]:
        return LANES * ROWS * count * SIZE, lambda: kernels.accumulate(keys, head, start, queries, np.arange(LANES), count, fmt)

    return {
        "accumulate e4m3, tile of 64 keys": accumulate(E4M3, KEYS),
        "accumulate e4m11, tile of 64 keys": accumulate(E4M11, KEYS),
        "accumulate e4m11, sub-block of 16 keys": accumulate(E4M11, 16),
        "accumulate e8m3 (unbounded)": accumulate(E8M3, KEYS),
        "accumulate e8m11 (unbounded)": accumulate(E8M11, KEYS),
        "accumulate FP32": accumulate(None, KEYS),
        "PV, ordered FP32": (
            LANES * ROWS * KEYS * SIZE,
            lambda: kernels.update_output(acc, scale, e, live, values, head, start),
        ),
    }


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ceiling() -> float | None:
    """Steps per second of the C form on one thread; None without a compiler or AVX-512."""
    compiler = shutil.which("cc")
    cpu = Path("/proc/cpuinfo")
    if compiler is None or not cpu.exists() or "avx512dq" not in cpu.read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "steps.c", Path(folder) / "steps.so"
        source.write_text(CEILING)
        command = [compiler, "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", source, "-o", library]
        if subprocess.run(command, capture_output=True).returncode:
            return None
        steps = ctypes.CDLL(str(library)).steps
    rng = np.random.default_rng(1)
    k, q = rng.standard_normal((8, SIZE)).astype(np.float32), rng.standard_normal((SIZE, 16)).astype(np.float32)
    out, times = np.zeros((8, 16), np.float32), 20_000
    number = ctypes.c_float(E4M3.max_finite), int(np.float32(E4M3.min_normal).view(np.int32)), ctypes.c_float(1.5 * 2**20)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (k, q, out)]

    def call() -> None:
        steps(*pointers, ctypes.c_long(SIZE), ctypes.c_long(times), *number)

    best = min(seconds(call) for _ in range(3 * TURNS))
    zero = np.zeros(1, np.int64)
    expected = kernels.accumulate(k[None], zero, zero, q.T[None], zero, 8, E4M3)[0]
    if not (out == expected).all():
        raise AssertionError("the C form and the kernel disagree")
    return 8 * 16 * SIZE * times / best


def main() -> None:
    """Print the table."""
    print(f"{'G steps/s (ratio to numpy)':40}" + "".join(f"{name:>22}" for name, _, _ in ENGINES))
    for name, (steps, call) in work().items():
        best = [float("inf")] * len(ENGINES)
        for turn in range(TURNS):
            for i, (_, engine, count) in enumerate(ENGINES):
                kernels.set_engine(engine)
                threads.set_threads(count)
                if turn == 0:
                    call()  # compiles, and wakes the threads
                best[i] = min(best[i], seconds(call))
        print(f"{name:40}" + "".join(f"{steps / b / 1e9:13.2f} ({best[-1] / b:6.1f})" for b in best))
    kernels.set_engine("auto")
    threads.set_threads(None)
    top = ceiling()
    print(f"{'accumulate e4m3 in C, 1 thread':40}" + ("no compiler or no AVX-512" if top is None else f"{top / 1e9:13.2f}"))


if __name__ == "__main__":
    main()
