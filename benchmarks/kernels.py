"""
How fast the kernels are: steps of a rounded accumulation per second, and of the FP32 update of the output.

A step is one product, one addition and one rounding. Compare columns of one run, not runs: neighbours on the machine make
noise, so every figure is the best of several turns taken alternately. `of C` is one thread against the same arithmetic in C,
written by hand for AVX-512, with eight sums in registers, all data in the first-level cache and nothing around it; it needs a
C compiler and AVX-512. ml_dtypes has one of the formats, float8_e4m3fn: c = (c + k*q) rounded through it, on whole tiles.
"""

import ctypes
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lampc.numerics import kernels, threads
from lampc.numerics.arrays import Array
from lampc.numerics.formats import E4M3, E4M11, E8M3, E8M11, FloatFormat

LANES, ROWS, KEYS, SIZE = 1024, 16, 64, 64
TURNS = 5
ENGINES: tuple[tuple[kernels.Engine, int], ...] = (("numba", 1), ("numba", 2), ("numpy", 1))

C_FORMS = {
    "finite": "x = _mm512_range_ps(x, high, 2);ROUND",
    "any": "x = _mm512_max_ps(low, _mm512_min_ps(high, x));ROUND",
    "near": "ROUND",
    "plain": "",
}
"""What happens to a sum: a bounded format and no NaN; the same with NaN kept; FP32's range far from its end; FP32."""

C_ROUND = """
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), mask);
    const __m512 power = _mm512_castsi512_ps(_mm512_max_epi32(bits, smallest));
    x = _mm512_fnmadd_ps(power, f, _mm512_fmadd_ps(power, f, x));
"""

C_SOURCE = r"""
#include <immintrin.h>
/* Eight keys, 16 queries, d terms, `times` times over. */
void steps(const float *k, const float *q, float *out, long d, long times, float top, int least, float factor) {
    const __m512 high = _mm512_set1_ps(top), low = _mm512_set1_ps(-top), f = _mm512_set1_ps(factor);
    const __m512i mask = _mm512_set1_epi32(0x7f800000), smallest = _mm512_set1_epi32(least);
    (void)high, (void)low, (void)f, (void)mask, (void)smallest;
    for (long n = 0; n < times; n++) {
        __m512 c[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) c[i] = _mm512_setzero_ps();
        for (long t = 0; t < d; t++) {
            const __m512 query = _mm512_loadu_ps(q + 16 * t);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                __m512 x = _mm512_add_ps(c[i], _mm512_mul_ps(_mm512_set1_ps(k[i * d + t]), query));
                FORM
                c[i] = x;
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) _mm512_storeu_ps(out + 16 * i, c[i]);
        __asm__ volatile("" ::: "memory");
    }
}
"""


@dataclass(frozen=True)
class Work:
    """One row of the table: steps of a call, the call, and the C form it is compared with."""

    steps: int
    call: Callable[[], Array]
    form: str


def work() -> dict[str, Work]:
    """The rows by name."""
    rng = np.random.default_rng(0)
    keys, values = (rng.standard_normal((3, 512, SIZE)).astype(np.float32) for _ in range(2))
    queries = rng.standard_normal((LANES, SIZE, ROWS)).astype(np.float32).swapaxes(1, 2)
    head, start = np.arange(LANES) % 3, np.full(LANES, 2 * KEYS)  # warps of three heads at their third tile
    acc, scale = np.zeros((LANES, ROWS, SIZE), np.float32), np.ones((LANES, ROWS), np.float32)
    e = rng.random((LANES, KEYS, ROWS), np.float32)
    live = np.ones(e.shape, np.bool_)
    lanes = np.arange(LANES)

    def accumulate(fmt: FloatFormat | None, count: int, form: str, data: Any = keys) -> Work:
        return Work(
            LANES * ROWS * count * SIZE, lambda: kernels.accumulate(data, head, start, queries, lanes, count, fmt), form
        )

    with_nan = keys.copy()
    with_nan[:, ::KEYS] = np.nan
    return {
        "accumulate e4m3, tile of 64 keys": accumulate(E4M3, KEYS, "finite"),
        "accumulate e4m3, a NaN in every tile": accumulate(E4M3, KEYS, "any", with_nan),
        "accumulate e4m11, tile of 64 keys": accumulate(E4M11, KEYS, "finite"),
        "accumulate e4m11, sub-block of 16 keys": accumulate(E4M11, 16, "finite"),
        "accumulate e8m3 (unbounded)": accumulate(E8M3, KEYS, "near"),
        "accumulate e8m11 (unbounded)": accumulate(E8M11, KEYS, "near"),
        "accumulate FP32": accumulate(None, KEYS, "plain"),
        "PV, ordered FP32": Work(
            LANES * ROWS * KEYS * SIZE,
            lambda: kernels.update_output(acc, scale, e, live, values, head, start),
            "plain",
        ),
    }


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class Ceiling:
    """The C forms; `missing` says why there are none."""

    def __init__(self, folder: Path):
        self._calls: dict[str, Callable[[], None]] = {}
        self.missing = self._build(folder)

    @property
    def steps(self) -> int:
        """Steps of one call."""
        return 8 * 16 * SIZE * 20_000

    def __getitem__(self, form: str) -> Callable[[], None] | None:
        return self._calls.get(form)

    def _build(self, folder: Path) -> str:
        compiler, cpu = shutil.which("cc"), Path("/proc/cpuinfo")
        if compiler is None:
            return "no C compiler"
        if not cpu.exists() or "avx512dq" not in cpu.read_text():
            return "no AVX-512"
        for name, form in C_FORMS.items():
            source, library = folder / f"{name}.c", folder / f"{name}.so"
            source.write_text(C_SOURCE.replace("FORM", form.replace("ROUND", C_ROUND)))
            command = [compiler, "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", source, "-o", library]
            if subprocess.run(command, capture_output=True).returncode:
                return f"{compiler} cannot compile for AVX-512"
            self._calls[name] = self._call(ctypes.CDLL(str(library)).steps, {"near": E8M3, "plain": None}.get(name, E4M3))
        return ""

    def _call(self, steps: Any, fmt: FloatFormat | None) -> Callable[[], None]:
        rng = np.random.default_rng(1)
        k, q = rng.standard_normal((8, SIZE)).astype(np.float32), rng.standard_normal((SIZE, 16)).astype(np.float32)
        out, grid = np.zeros((8, 16), np.float32), fmt or E4M3
        factor = 1.5 * 2.0 ** (23 - grid.mantissa_bits)
        number = ctypes.c_float(grid.max_finite), int(np.float32(grid.min_normal).view(np.int32)), ctypes.c_float(factor)

        def call(times: int = 20_000) -> None:
            arrays = [ctypes.c_void_p(x.ctypes.data) for x in (k, q, out)]
            steps(*arrays, ctypes.c_long(SIZE), ctypes.c_long(times), *number)

        call(1)
        zero = np.zeros(1, np.int64)
        if not (out == kernels.accumulate(k[None], zero, zero, q.T[None], zero, 8, fmt)[0]).all():
            raise AssertionError("a C form and the kernel disagree")
        return call


def through_ml_dtypes() -> tuple[int, Callable[[], Array]]:
    """Steps and call of the accumulation of one tile per lane, rounded by ml_dtypes."""
    rng = np.random.default_rng(2)
    lanes = 16
    k = rng.standard_normal((lanes, SIZE, KEYS, 1)).astype(np.float32)
    q = rng.standard_normal((lanes, SIZE, 1, ROWS)).astype(np.float32)

    def call() -> Array:
        c = np.zeros((lanes, KEYS, ROWS), np.float32)
        for t in range(SIZE):
            c = (c + k[:, t] * q[:, t]).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return c

    return lanes * KEYS * ROWS * SIZE, call


def main() -> None:
    """Print the table."""
    print(f"{processor()}; G steps/s, size {SIZE}, {ROWS} rows")
    print(f"{'':40}{'1 thread':>10}{'of C':>8}{'2 threads':>11}{'':>9}{'numpy':>8}{'':>9}")
    with tempfile.TemporaryDirectory() as folder:
        ceiling = Ceiling(Path(folder))
        e4m3 = 0.0
        for name, row in work().items():
            one, two, plain, top = measure(row, ceiling)
            e4m3 = e4m3 or one
            share = f"{one / top:8.0%}" if top else f"{'-':>8}"
            print(f"{name:40}{one:10.2f}{share}{two:11.2f} ({two / one:4.2f} x){plain:8.2f} ({one / plain:4.0f} x)")
        if ceiling.missing:
            print(f"of C: {ceiling.missing}")
    kernels.set_engine("auto")
    threads.set_threads(None)
    steps, call = through_ml_dtypes()
    speed = steps / min(seconds(call) for _ in range(TURNS)) / 1e9
    print(f"{'e4m3 through ml_dtypes, a tile at a time':40}{speed:10.3f}; the first row is {e4m3 / speed:.0f} x as fast")


def measure(row: Work, ceiling: Ceiling) -> tuple[float, float, float, float | None]:
    """G steps/s of a row: one thread, two, NumPy, C."""
    best = [float("inf")] * len(ENGINES)
    top, in_c = float("inf"), ceiling[row.form]
    for turn in range(TURNS):
        for i, (engine, count) in enumerate(ENGINES):
            kernels.set_engine(engine)
            threads.set_threads(count)
            if turn == 0:
                row.call()  # compiles, and wakes the threads
            if engine == "numpy" and turn > 1:
                continue
            best[i] = min(best[i], *(seconds(row.call) for _ in range(1 if engine == "numpy" else 3)))
        if in_c is not None:
            top = min(top, seconds(in_c))
    one, two, plain = (row.steps / b / 1e9 for b in best)
    return one, two, plain, None if in_c is None else ceiling.steps / top / 1e9


def processor() -> str:
    """What /proc/cpuinfo or Python calls this machine's processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
