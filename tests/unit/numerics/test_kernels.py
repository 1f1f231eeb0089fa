"""Every kernel: Numba and NumPy give the same bits, and both give what plain Python loops give."""

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lampc.errors import UsageError
from lampc.numerics import kernels, sets, threads
from lampc.numerics.arrays import F32, Array, Bools
from lampc.numerics.encoding import decode
from lampc.numerics.formats import E4M3, E4M11, E8M3, E8M11, HW, UE5M3_EXP, UE5M3_SHIFT, UNBOUNDED, FloatFormat
from lampc.numerics.philox import SITE_LOW, RandomSite, philox
from lampc.numerics.rounding import Overflow, Rounding, round_to
from tests.unit.numerics.strategies import EDGES, any_format

ACCUMULATORS = [E4M3, E4M11, E8M3, E8M11, None]


def assert_same(a: Array, b: Array) -> None:
    """Equal types, shapes and bits; any NaN equals any other."""
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype == np.float32:
        nan = np.isnan(a) & np.isnan(b)
        wrong = ~nan & (a.view(np.int32) != b.view(np.int32))
        assert not wrong.any(), (a[wrong][:3], b[wrong][:3])
    else:
        assert (a == b).all()


def both(function: Any, *args: Any, **options: Any) -> Any:
    """The result of a kernel, after checking that the engines agree, on several threads too."""
    kernels.set_engine("numba")
    with np.errstate(all="raise"):
        result = function(*args, **options)
        kernels.set_engine("numpy")
        plain = function(*args, **options)
    several = not hasattr(result, "dtype")
    for a, b in zip(result, plain, strict=True) if several else [(result, plain)]:
        assert_same(a, b)
    return result


def sequence_sum(start: float, terms: list[float]) -> float:
    total = np.float32(start)
    with np.errstate(all="ignore"):
        for term in terms:
            total = np.float32(total + np.float32(term))
    return float(total)


def poisoned(rng: np.random.Generator, array: F32, often: float) -> F32:
    if array.size and rng.random() < often:
        array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0])
    return array


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 2, 15, 16, 17, 33]),
    count=st.sampled_from([1, 5, 8, 16, 19]),
    d=st.sampled_from([1, 2, 7, 16]),
    keys=st.sampled_from([0, 1, 9, 40]),
    fmt=st.sampled_from(ACCUMULATORS) | st.sampled_from(EDGES) | any_format(signed=True),
    block=st.sampled_from([1, 1, 2, 5]),
    rounding=st.sampled_from(["rne", "rne", "rtz", "stochastic"]),
    size=st.sampled_from([1e-40, 1e-3, 1.0, 20.0, 1e19, 1e31, 1e36]),
    overflow=st.sampled_from(["saturate", "saturate", "nan"]),
)
def test_accumulate(
    seed: int,
    rows: int,
    count: int,
    d: int,
    keys: int,
    fmt: FloatFormat | None,
    block: int,
    rounding: Rounding,
    size: float,
    overflow: Overflow,
):
    overflow = overflow if fmt is None or fmt.nan != "none" else "saturate"
    rng = np.random.default_rng(seed)
    # Strided on purpose: a view into something larger.
    k = poisoned(rng, (rng.standard_normal((2, keys, 2 * d)) * size).astype(np.float32), 0.3)[:, :, ::2]
    q = poisoned(rng, rng.standard_normal((d, rows, 3)).astype(np.float32), 0.2).transpose(2, 1, 0)
    n = 3
    key_index, query_index = rng.integers(0, 2, n), rng.integers(0, 3, n)
    key_start = rng.integers(-2, keys + 2, n)
    random = RandomSite(seed, SITE_LOW, rng.integers(0, 9, n), rng.integers(0, 99, n), key_start)
    got = both(
        kernels.accumulate,
        k,
        key_index,
        key_start,
        q,
        query_index,
        count,
        fmt,
        block=block,
        rounding=rounding,
        random=random,
        overflow=overflow,
    )
    assert got.shape == (n, count, rows)
    for _ in range(3):  # a few entries, one number at a time
        a, i, j = int(rng.integers(n)), int(rng.integers(count)), int(rng.integers(rows))
        row = key_start[a] + i
        kept = k[key_index[a], row] if 0 <= row < keys else np.zeros(d, np.float32)
        c: Any = np.float32(0)
        with np.errstate(all="ignore"):
            for step, first in enumerate(range(0, d, block)):
                terms = kept[first : first + block] * q[query_index[a], j, first : first + block]
                c = np.float32(c + np.float32(sequence_sum(0, terms.tolist())))
                if fmt is not None:
                    c = round_to(c, fmt, rounding, random.words(count, rows, step)[a, i, j], overflow=overflow)[()]
        assert_same(got[a, i, j : j + 1], np.full(1, c))


def test_products_are_not_fused():
    """c + k*q rounds twice: in data where a fused step would differ, no kernel is fused."""
    rng = np.random.default_rng(3)
    k, q = (rng.standard_normal((1, 64, 2)).astype(np.float32) for _ in range(2))
    zero = np.zeros(1, np.int64)
    got = both(kernels.accumulate, k, zero, zero, q, zero, 64, None)[0]
    products = k[0, :, None, :] * q[0, None, :, :]
    separate = products[..., 0] + products[..., 1]
    wide = k[0, :, None, 1].astype(np.float64) * q[0, None, :, 1].astype(np.float64)
    fused = (products[..., 0].astype(np.float64) + wide).astype(np.float32)
    assert (fused != separate).any() and (got == separate).all()
    # The same numbers as E and V of an output update that starts from 0.
    acc, one = np.zeros((1, 64, 64), np.float32), np.ones((1, 64), np.float32)
    e, v = np.ascontiguousarray(q.transpose(0, 2, 1)), np.ascontiguousarray(k.transpose(0, 2, 1))
    out = both(kernels.update_output, acc, one, e, np.ones(e.shape, bool), v, zero, zero)[0]
    assert (separate == out.T).all()


def tiles(seed: int, nk: int, bk: int, rows: int, fmt: FloatFormat | None) -> tuple[F32, Bools, F32, int]:
    """Logits [n, keys, rows] on the grid of `fmt`, liveness, and running maxima [n, rows]."""
    rng = np.random.default_rng(seed)
    n = 3
    y = (rng.standard_normal((n, nk * bk, rows)) * rng.choice([0.1, 3, 100])).astype(np.float32)
    y = y if fmt is None else round_to(y, fmt)
    if rng.random() < 0.3:
        y.flat[rng.integers(y.size)] = np.nan
    live = rng.random(y.shape) < rng.choice([0.1, 0.8, 1.0])
    mu = rng.choice(np.append(y.ravel()[:5], np.float32(-np.inf)), (n, rows)).astype(np.float32)
    return y, live, mu, n


TILES = {
    "seed": st.integers(0, 2**32),
    "nk": st.integers(1, 8),
    "bk": st.sampled_from([1, 3, 16]),
    "rows": st.sampled_from([1, 7, 16, 18]),
}


@settings(max_examples=40, deadline=None)
@given(**TILES, fmt=st.sampled_from(ACCUMULATORS), delta=st.sampled_from([0.0, 2.0**-8, 0.5]))
def test_stage_one(seed: int, nk: int, bk: int, rows: int, fmt: FloatFormat | None, delta: float):
    y, live, mu, n = tiles(seed, nk, bk, rows, fmt)
    top = both(kernels.subblock_max, y, live, nk)
    order = both(kernels.threat_order, top, mu)
    unsafe = both(kernels.is_unsafe, top[:, 0], mu, live[:, :bk].any(axis=1), delta)
    counts, largest = both(kernels.count_saturated, y, live, fmt)
    above = both(kernels.count_above_one, y, live, mu)
    for a in range(n):
        threats: list[float] = []
        for theta in range(nk):
            part, alive = y[a, theta * bk : theta * bk + bk], live[a, theta * bk : theta * bk + bk]
            threat = -math.inf
            for r in range(rows):
                entries = [float(x) for x, ok in zip(part[:, r], alive[:, r], strict=True) if ok]
                expected = math.nan if any(map(math.isnan, entries)) else max(entries, default=-math.inf)
                assert_same(np.array([top[a, theta, r]]), np.array([expected], np.float32))
                if entries:
                    with np.errstate(all="ignore"):
                        gap = float(np.float32(np.float32(expected) - mu[a, r]))
                    threat = max(threat, math.inf if math.isnan(gap) else gap)
            threats.append(threat)
        assert order[a].tolist() == sorted(range(nk), key=lambda theta: (-threats[theta], theta))
        with np.errstate(all="ignore"):
            rhs = top[a, 0] + np.abs(mu[a]) * np.float32(delta)
            safe = [not live[a, :bk, r].any() or bool(mu[a, r] > rhs[r]) for r in range(rows)]
        assert unsafe[a] == (not all(safe))
        sizes = [abs(float(x)) for x in y[a][live[a]] if not math.isnan(x)]
        assert largest[a] == max(sizes, default=0.0)
        assert counts[a] == (0 if fmt is None else sizes.count(fmt.max_finite))
        with np.errstate(all="ignore"):
            assert above[a] == ((mu[a] - y[a] < 0) & live[a]).sum()


@settings(max_examples=60, deadline=None)
@given(
    **TILES,
    kind=st.sampled_from(["hw low", "hw high", "unbounded low", "unbounded high", "fp32"]),
    clamp=st.booleans(),
    tau=st.sampled_from([0.0, 0.05, 0.125, 0.5, 1.0, 3.0]),
    tie=st.sampled_from(["slack", "first"]),
)
def test_exponentials_and_stage_two(
    seed: int, nk: int, bk: int, rows: int, kind: str, clamp: bool, tau: float, tie: kernels.Tie
):
    formats = UNBOUNDED if kind.startswith("unbounded") else HW
    low = kind.endswith("low")
    shift, result = (formats.low_shift, formats.low_exp) if low else (formats.high_shift, formats.high_exp)
    fmt: FloatFormat | None = formats.low if low else formats.high
    if kind == "fp32":
        shift, result, fmt = None, None, None
    clamp = clamp or (formats is HW and kind != "fp32")
    y, live, muh, n = tiles(seed, nk, bk, rows, fmt)
    e = both(kernels.shift_exp, y, live, muh, shift, result, clamp=clamp)
    assert (e[~live] == 0).all()
    rng = np.random.default_rng(seed)
    start = rng.random((n, rows), np.float32)
    start.flat[0] = rng.choice([0.5, 0, np.inf, np.nan])
    omegah = both(kernels.row_sum, start, e, live)
    xi = both(kernels.stage2_weights, omegah, e, live, nk)
    a, r = int(rng.integers(n)), int(rng.integers(rows))
    assert_same(omegah[a, r : r + 1], np.array([sequence_sum(start[a, r], e[a, live[a, :, r], r].tolist())], "f"))
    with np.errstate(all="ignore"):
        terms = (omegah[:, None] - e) * e
    for theta in range(nk):
        part = slice(theta * bk, theta * bk + bk)
        expected = sequence_sum(0, terms[a, part, r][live[a, part, r]].tolist())
        assert_same(xi[a, theta, r : r + 1], np.array([expected], "f"))
    free = rng.integers(0, 1 << nk, n).astype(np.uint16)
    kept = both(kernels.keep_low, xi, omegah, free, tau, tie)
    for a in range(n):
        assert kept[a] == best_set(xi[a], omegah[a], int(free[a]), tau, tie)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nk=st.integers(9, 16),
    tau=st.sampled_from([0.0, 0.05, 0.125, 0.5]),
    tie=st.sampled_from(["slack", "first"]),
)
def test_many_sub_blocks(seed: int, nk: int, tau: float, tie: kernels.Tie):
    """Up to sixteen, of which eight are free: brute force then still ends."""
    rng = np.random.default_rng(seed)
    xi = rng.random((2, nk, 3), np.float32) ** 4
    omegah = (rng.random((2, 3)) * 2).astype(np.float32)
    chosen = rng.permuted(np.tile(np.arange(nk) < rng.integers(9), (2, 1)), axis=1)
    free = sets.pack(chosen)
    assert (sets.unpack(free, nk) == chosen).all()
    kept = both(kernels.keep_low, xi, omegah, free, tau, tie)
    assert kept.tolist() == [best_set(xi[a], omegah[a], int(free[a]), tau, tie) for a in range(2)]


@pytest.mark.parametrize("tie", ["slack", "first"])
def test_all_of_sixteen_sub_blocks_are_free(tie: kernels.Tie):
    """Weights of 1, 2, 4, ...: what fits is known without a search."""
    xi = (2.0 ** np.arange(16))[None, :, None].astype(np.float32)
    free, omegah = np.array([0xFFFF], np.uint16), np.full((1, 1), 256, np.float32)
    for tau, kept in ((0.5, 0x7FFF), (2.0**-4, 0x0FFF), (0.0, 0), (1.0, 0xFFFF)):  # of 2^16; the lightest come first
        found = int(both(kernels.keep_low, xi, omegah, free, tau, tie)[0])
        assert found.bit_count() == kept.bit_count() and (tie == "first" or found == kept)


def test_more_sub_blocks_than_sets_have_bits():
    with pytest.raises(ValueError, match="at most 16 sub-blocks, not 17"):
        kernels.keep_low(np.zeros((1, 17, 1), np.float32), np.zeros((1, 1), np.float32), np.zeros(1, np.uint16), 0.5)


def test_equal_sets_go_to_the_smallest_recompute_mask():
    xi = np.ones((1, 4, 2), np.float32)
    for tie in ("slack", "first"):
        kept = both(kernels.keep_low, xi, np.full((1, 2), 2, np.float32), np.array([0b1110], np.uint16), 0.5, tie)
        assert kept == 0b1100  # two of three fit under 0.5 * 2^2; recomputing sub-block 1 is the smallest mask


def test_slack_prefers_the_smaller_share_and_first_does_not():
    xi = np.array([[[1.0], [0.25], [1.0]]], np.float32)
    omegah, free = np.full((1, 1), 2, np.float32), np.array([0b111], np.uint16)
    assert both(kernels.keep_low, xi, omegah, free, 0.5, "first") == 0b110
    assert both(kernels.keep_low, xi, omegah, free, 0.5, "slack") == 0b110
    xi = np.array([[[0.5], [0.25], [1.5]]], np.float32)
    assert both(kernels.keep_low, xi, omegah, free, 0.5, "first") == 0b110
    assert both(kernels.keep_low, xi, omegah, free, 0.5, "slack") == 0b011


def best_set(xi: F32, omegah: F32, free: int, tau: float, tie: str) -> int:
    """lampattention.md §4.8 by brute force."""
    if tau >= 1:
        return free
    sets: list[tuple[int, float, int]] = []
    with np.errstate(all="ignore"):
        square = omegah * omegah
        for kept in range(1 << len(xi)):
            if kept & ~free:
                continue
            x = [sequence_sum(0, [float(w) for t, w in enumerate(row) if kept >> t & 1]) for row in xi.T]
            voters = [r for r in range(len(square)) if not math.isnan(omegah[r])]
            if all(x[r] <= float(np.float32(tau) * square[r]) for r in voters):
                ratios = [float(np.float32(x[r]) / square[r]) for r in voters if 0 < square[r] < math.inf]
                slack = max(ratios, default=0.0) if tie == "slack" else 0.0
                sets.append((-kept.bit_count(), slack, free & ~kept))
    return free & ~min(sets)[2] if sets else 0


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 3, 16]),
    keys=st.sampled_from([1, 5, 16]),
    dv=st.sampled_from([1, 17, 64, 130]),
)
def test_update_output(seed: int, rows: int, keys: int, dv: int):
    rng = np.random.default_rng(seed)
    n, lk = 3, 20
    acc = poisoned(rng, rng.standard_normal((n, rows, dv)).astype(np.float32), 0.3)
    scale, e = rng.random((n, rows), np.float32), rng.random((n, keys, rows), np.float32)
    values = poisoned(rng, rng.standard_normal((2, lk, dv)).astype(np.float32), 0.5)
    live = rng.random(e.shape) < 0.7
    index, start = rng.integers(0, 2, n), rng.integers(-2, lk, n)
    out = both(kernels.update_output, acc, scale, e, live, values, index, start)
    a, r, c = int(rng.integers(n)), int(rng.integers(rows)), int(rng.integers(dv))
    total = acc[a, r, c] * scale[a, r]
    with np.errstate(all="ignore"):
        for i in range(keys):
            if live[a, i, r]:
                row = start[a] + i
                total = total + e[a, i, r] * (values[index[a], row, c] if 0 <= row < lk else np.float32(0))
    assert_same(out[a, r, c : c + 1], np.array([total], np.float32))


def test_dead_values_do_not_reach_the_output():
    values = np.array([[[np.inf], [2.0]]], np.float32)
    live = np.array([[[False], [True]]])
    zero, ones = np.zeros(1, np.int64), np.ones((1, 1), np.float32)
    out = both(kernels.update_output, ones[..., None], ones, np.ones((1, 2, 1), "f"), live, values, zero, zero)
    assert out == 3.0


def test_elementwise():
    y = np.array([[[0.5, -3.0, 100.0, np.nan]]], np.float32)
    capped = kernels.soft_cap(y, 30.1, E4M3)
    cap = float(np.float32(30.1))
    for x, got in zip(y.ravel().tolist(), capped.ravel(), strict=True):
        assert_same(np.array([got]), round_to(np.array([np.float32(cap * math.tanh(x / cap))]), E4M3))
    exact = (cap * np.tanh(y.astype(np.float64) / cap)).astype(np.float32)
    assert_same(kernels.soft_cap(y, 30.1, None), exact)
    bias = np.full(1, 0.3, np.float32)
    assert_same(kernels.add_bias(y, bias, E4M3), round_to(y + bias, E4M3))
    assert kernels.add_bias(np.full(y.shape, 448, np.float32), np.full(1, np.inf, np.float32), E4M3)[0, 0, 0] == 448


def test_state():
    mu = np.array([-np.inf, 1.0, 2.0, np.nan], np.float32)
    muh = np.array([1.0, 1.5, 2.0, 1.0], np.float32)
    got = kernels.rescale(mu, muh)
    assert got[0] == 0 and got[1] == np.float32(math.exp(-0.5)) and got[2] == 1 and np.isnan(got[3])
    assert kernels.rescale(mu[:1], mu[:1]) == 0
    sinks = np.array([0.7, -np.inf, 600.0], np.float32)
    start, omega = kernels.sink_state(sinks, E4M11)
    assert_same(start, round_to(sinks, E4M11))
    assert omega[0] == np.float32(math.exp(float(sinks[0]) - float(start[0]))) and omega[1] == 0
    assert kernels.sink_state(sinks, None)[1].tolist() == [1.0, 0.0, 1.0]
    acc = np.array([[[2.0, 1.0]], [[0.0, 0.0]]], np.float32)
    omega = np.array([[4.0], [0.0]], np.float32)
    assert kernels.normalise(acc, omega).tolist() == [[[0.5, 0.25]], [[0.0, 0.0]]]


def test_margin_kept_by_stage_one_is_never_negative():
    """lampattention.md §8, invariant 9, for every low maximum that a high running maximum lets pass."""
    low, high = (decode(np.arange(f.nan_code), f) for f in (E4M3, E4M11))
    low, high = np.concatenate([-low, low]), np.concatenate([-high, high])
    for delta in (0.0, 2.0**-8):
        y, muh = np.broadcast_arrays(low[:, None], high[None, :])
        unsafe = kernels.is_unsafe(y.reshape(-1, 1), muh.reshape(-1, 1), np.ones((y.size, 1), bool), delta)
        cut = kernels.truncate(muh).reshape(-1)
        assert (cut - y.reshape(-1) >= 0)[~unsafe].all() and (muh - y >= 0).reshape(-1)[~unsafe].all()


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(5)
    n = 40
    k, q = rng.standard_normal((2, 64, 32)).astype(np.float32), rng.standard_normal((n, 16, 32)).astype(np.float32)
    args = (k, rng.integers(0, 2, n), np.zeros(n, np.int64), q, np.arange(n), 64, E4M3)
    kernels.set_engine("numba")
    monkeypatch.setattr(threads, "_MIN_SHARE_NS", 1.0)
    results: list[Array] = []
    for count in (1, 2, 3):
        threads.set_threads(count)
        results.append(kernels.accumulate(*args))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fmt": UE5M3_EXP}, "unsigned"),
        ({"block": 0}, "accumulate_block"),
        ({"rounding": "stochastic"}, "random"),
        ({"queries": np.zeros((1, 1, 3), np.float32)}, "elements"),
    ],
)
def test_accumulate_refuses(change: dict[str, Any], message: str):
    zero = np.zeros(1, np.int64)
    args: dict[str, Any] = {
        "keys": np.zeros((1, 1, 2), np.float32),
        "key_index": zero,
        "key_start": zero,
        "queries": np.zeros((1, 1, 2), np.float32),
        "query_index": zero,
        "count": 1,
        "fmt": E4M3,
    }
    with pytest.raises(ValueError, match=message):
        kernels.accumulate(**(args | change))


def test_keep_needs_an_unbounded_range():
    y = np.zeros((1, 1, 1), np.float32)
    with pytest.raises(ValueError, match=r"ue5m3\.shift"):
        kernels.shift_exp(y, y == 0, y[0], UE5M3_SHIFT, UE5M3_EXP, clamp=False)


def test_engine_choice():
    with pytest.raises(UsageError, match="auto, numba or numpy"):
        kernels.set_engine("torch")  # pyright: ignore[reportArgumentType]
    code = "from lampc.numerics import kernels; print(kernels.engine())"
    for name in ("numpy", "numba"):
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"LAMPC_KERNELS": name}, capture_output=True, text=True
        )
        assert run.stdout.strip() == name, run.stderr


def test_numpy_engine_does_not_import_numba():
    code = (
        "import sys, numpy as np; from lampc.numerics import kernels; z = np.zeros(1, int); x = np.ones((1, 1, 1), 'f');"
        "kernels.accumulate(x, z, z, x, z, 1, None); print('numba' in sys.modules)"
    )
    env = os.environ | {"LAMPC_KERNELS": "numpy"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr


@pytest.mark.parametrize("engine", ["numba", "numpy"])
def test_no_lanes(engine: Any):
    kernels.set_engine(engine)
    none, keys = np.zeros(0, np.int64), np.zeros((1, 4, 2), np.float32)
    y = kernels.accumulate(keys, none, none, np.zeros((1, 3, 2), np.float32), none, 4, E4M3)
    live, rows = np.ones(y.shape, bool), np.zeros((0, 3), np.float32)
    assert kernels.subblock_max(y, live, 2).shape == (0, 2, 3)
    e = kernels.shift_exp(y, live, rows, UE5M3_SHIFT, UE5M3_EXP, clamp=True)
    assert kernels.row_sum(rows, e, live).shape == (0, 3)
    xi = kernels.stage2_weights(rows, e, live, 2)
    assert kernels.keep_low(xi, rows, np.zeros(0, np.uint16), 0.5).shape == (0,)
    assert kernels.update_output(np.zeros((0, 3, 2), "f"), rows, e, live, keys, none, none).shape == (0, 3, 2)
    assert kernels.count_saturated(y, live, E4M3)[0].shape == kernels.count_above_one(y, live, rows).shape == (0,)


@pytest.mark.parametrize("engine", ["numba", "numpy"])
def test_read_only_arguments_and_results_of_ones_own(engine: Any):
    kernels.set_engine(engine)
    sinks = np.zeros(2, np.float32)
    sinks.flags.writeable = False
    for array in kernels.sink_state(sinks, None):
        array += 1
    start = np.zeros((1, 2), np.float32)
    e = np.broadcast_to(np.float32(1), (1, 3, 2))
    total = kernels.row_sum(start, e, np.broadcast_to(np.True_, e.shape))
    total += 1
    assert (total == 4).all() and (start == 0).all() and (sinks == 0).all()


def test_a_word_equal_to_the_share_does_not_round_up():
    """Below the smallest subnormal value the share of the step can equal a random word exactly."""
    words = philox(1, np.arange(10_000), 0, 0, 0)
    stream = int(np.flatnonzero((words & 0xFF == 0) & (words > 0))[0])  # 24 bits, so float32 holds it
    share = np.float32(int(words[stream]) * 2.0**-32)
    zero, one = np.zeros(1, np.int64), np.ones((1, 1, 1), np.float32)
    random = RandomSite(1, SITE_LOW, np.full(1, stream), zero, zero)
    for share_here, result in ((share, 0.0), (np.nextafter(share, np.float32(1)), E4M3.min_subnormal)):
        k = one * share_here * np.float32(E4M3.min_subnormal)
        options = {"rounding": "stochastic", "random": random}
        assert both(kernels.accumulate, k, zero, zero, one, zero, 1, E4M3, **options)[0, 0, 0] == result
