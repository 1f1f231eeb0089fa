"""One head through the kernels, all lanes of a key tile at once, against the scalar reference: same bits, same statistics."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lampc.numerics import kernels, reference
from lampc.numerics.arrays import F32, Array
from lampc.numerics.formats import HW, UNBOUNDED, FormatSet
from lampc.numerics.masks import Liveness, live_entries, rows_tile, split_mask
from lampc.numerics.philox import SITE_BIAS, SITE_CAP, SITE_HIGH, SITE_LOW, RandomSite
from lampc.numerics.reference import Head, Options
from lampc.numerics.statistics import Statistics
from tests.unit.numerics.strategies import any_formats


def lanes_attention(head: Head, o: Options) -> tuple[F32, Statistics]:
    """What `reference.attention` computes for layout safe, with the kernels."""
    lq, lk, dv = len(head.q), len(head.k), head.v.shape[1]
    n, width = -(-lq // o.bq), o.bk * o.nk
    fp32 = o.policy == "fp32"
    f = o.formats
    added = head.bias
    if head.mask is not None:
        added = np.where(head.mask, np.float32(0) if head.bias is None else head.bias, np.float32(-np.inf))
    live_mask, bias = split_mask(
        added,
        threshold=o.mask_threshold,
        shape=(1, 1, lq, lk),
        causal=head.causal,
        causal_offset=head.causal_offset,
        window=head.window,
    )
    rules = Liveness(lq, lk, head.causal, head.causal_offset, head.window, mask=live_mask)
    queries = np.zeros((n * o.bq, head.q.shape[1]), np.float32)
    queries[:lq] = head.q * np.float32(head.scale)
    queries = queries.reshape(n, o.bq, -1)
    keys, values = head.k[None].astype(np.float32), head.v[None].astype(np.float32)
    zero, lane, start = np.zeros(n, np.int64), np.arange(n), np.arange(n) * o.bq
    stats = Statistics(1, o.nk)
    mu, omega = np.full((n, o.bq), -np.inf, np.float32), np.zeros((n, o.bq), np.float32)
    if head.sink is not None:
        sinks = np.full((n, o.bq), head.sink, np.float32)
        mu, omega = kernels.sink_state(sinks, None if fp32 else f.high)
    acc = np.zeros((n, o.bq, dv), np.float32)

    def logits(first: int, count: int, level: str, live: Array, which: Array) -> F32:
        fmt = None if fp32 else f.high if level == "high" else f.low
        step = int(level == "high")
        at = np.full(n, first)

        def site(kind: int, step: int) -> RandomSite:
            return RandomSite(o.seed, kind, np.full(n, o.stream), start, at, step)

        y = kernels.accumulate(
            keys,
            zero,
            at,
            queries,
            lane,
            count,
            fmt,
            block=o.accumulate_block,
            rounding=o.rounding,
            random=site(SITE_HIGH if step else SITE_LOW, 0),
            overflow=o.overflow,
        )
        counts, largest = kernels.count_saturated(y, live, fmt, o.overflow)
        stats.add_saturation("" if fmt is None else fmt.name, zero[which], counts[which], largest[which])
        if head.softcap is not None:
            y = kernels.soft_cap(y, head.softcap, fmt, rounding=o.rounding, random=site(SITE_CAP, step), overflow=o.overflow)
        if bias is not None:
            tile = rows_tile(bias, zero, zero, start, at, o.bq, count)
            y = kernels.add_bias(y, tile, fmt, rounding=o.rounding, random=site(SITE_BIAS, step), overflow=o.overflow)
        return y

    def tile(first: int, mu: F32, omega: F32, acc: F32) -> tuple[F32, F32, F32]:
        at = np.full(n, first)
        live = live_entries(rules, zero, zero, start, at, o.bq, width)
        some = np.logical_or.reduce(live, axis=(1, 2))
        stats.add_dead_tiles(zero[~some])
        sub_live = live.reshape(n, o.nk, o.bk, o.bq)
        any_live = np.logical_or.reduce(sub_live, axis=2)
        alive = np.logical_or.reduce(any_live, axis=2)
        high = np.zeros((n, o.nk), bool)
        y = np.zeros(live.shape, np.float32)

        def recompute(theta: int, which: Array) -> F32:
            part = slice(theta * o.bk, theta * o.bk + o.bk)
            again = logits(first + theta * o.bk, o.bk, "high", live[:, part], which)
            y[which, part] = again[which]
            high[which, theta] = True
            return kernels.subblock_max(again, live[:, part], 1)[:, 0]

        muh = mu.copy()
        if o.policy == "high":
            for theta in range(o.nk):
                top = recompute(theta, alive[:, theta])
                muh = np.where(alive[:, theta, None], np.maximum(muh, top), muh)
        else:
            y = logits(first, width, "low", live, some)
            top = kernels.subblock_max(y, live, o.nk)
            if o.policy in ("low", "fp32") or not o.stage1:
                muh = np.maximum(muh, top.max(axis=1))
            else:
                order = kernels.threat_order(top, mu)
                for turn in range(o.nk):
                    for theta in range(o.nk):
                        unsafe = kernels.is_unsafe(top[:, theta], muh, any_live[:, theta], o.delta)
                        unsafe &= order[:, turn] == theta
                        if unsafe.any():
                            again = recompute(theta, unsafe)
                            muh = np.where(unsafe[:, None], np.maximum(muh, again), muh)
        after_stage1 = high.sum(axis=1)

        def exponentials() -> F32:
            clamp = o.exp_above_one == "clamp"
            if fp32:
                return kernels.shift_exp(y, live, muh, None, None, clamp=False)
            m = kernels.truncate(muh, f.low) if o.shift == "truncate" else muh
            low = kernels.shift_exp(y, live, m, f.low_shift, f.low_exp, clamp=clamp)
            full = kernels.shift_exp(y, live, muh, f.high_shift, f.high_exp, clamp=clamp)
            return np.where(np.repeat(high, o.bk, axis=1)[:, :, None], full, low)

        e = exponentials()
        factor = kernels.rescale(mu, muh)
        alpha = factor * omega
        if o.policy == "lamp" and o.stage2:
            omegah = kernels.row_sum(alpha, e, live)
            xi = kernels.stage2_weights(omegah, e, live, o.nk)
            free = ((alive & ~high) << np.arange(o.nk)).sum(axis=1).astype(np.uint16)
            kept = kernels.keep_low(xi, omegah, free, o.tau, o.tie)
            for theta in range(o.nk):
                again = ((free & ~kept) >> theta & 1).astype(bool)
                if again.any():
                    recompute(theta, again)
            e = exponentials()
        final = np.zeros(n, np.int64) if fp32 else high.sum(axis=1)
        stats.add_tiles(zero[some], after_stage1[some], final[some])
        stats.add_above_one(zero, kernels.count_above_one(y, live, muh))
        acc = kernels.update_output(acc, factor, e, live, values, zero, at)
        return muh, kernels.row_sum(alpha, e, live), acc

    tiles = list(range(0, lk, width))
    tiles = {"forward": tiles, "reverse": tiles[::-1], "sink-first": tiles[:1] + tiles[:0:-1]}[o.kv_order]
    for first in tiles:
        mu, omega, acc = tile(first, mu, omega, acc)
    return kernels.normalise(acc, omega).reshape(n * o.bq, dv)[:lq], stats


def same(a: Array, b: Array) -> bool:
    """Equal bits, any NaN equal to any other."""
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((nan | (a.view(np.int32) == b.view(np.int32))).all())


def random_head(rng: np.random.Generator, draw: dict[str, Any]) -> Head:
    """A small head; magnitudes from subnormal to saturating, now and then a NaN or an infinity."""
    lq, lk, d, dv = draw["lq"], draw["lk"], draw["d"], draw["dv"]
    q, k, v = (rng.standard_normal(size).astype(np.float32) for size in ((lq, d), (lk, d), (lk, dv)))
    q *= np.float32(draw["size"])
    for array in (q, k, v):
        if rng.random() < draw["poison"]:
            array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-40])
    bias = None
    if draw["bias"]:
        bias = rng.choice(np.array([0, 0, 0, -1e9, -np.inf, 0.3, -2, 1.0], np.float32), (lq, lk))
    return Head(
        q,
        k,
        v,
        scale=draw["scale"],
        causal=draw["causal"],
        causal_offset=draw["offset"],
        window=draw["window"],
        mask=rng.random((lq, lk)) < 0.8 if draw["mask"] else None,
        bias=bias,
        softcap=draw["softcap"],
        sink=draw["sink"],
    )


HEADS = st.fixed_dictionaries(
    {
        "lq": st.integers(1, 9),
        "lk": st.integers(1, 18),
        "d": st.integers(1, 6),
        "dv": st.sampled_from([1, 3]),
        "size": st.sampled_from([0.01, 1.0, 4.0, 30.0, 1e4]),
        "scale": st.sampled_from([1.0, 0.3]),
        "poison": st.sampled_from([0.0, 0.0, 0.5]),
        "causal": st.booleans(),
        "offset": st.integers(-2, 6),
        "window": st.sampled_from([None, None, 0, 1, 3]),
        "mask": st.booleans(),
        "bias": st.booleans(),
        "softcap": st.sampled_from([None, None, 5.0]),
        "sink": st.sampled_from([None, None, 0.7, -3.0, 1000.0, float("nan"), -float("inf")]),
    }
)
OPTIONS = st.builds(
    Options,
    policy=st.sampled_from(["lamp", "lamp", "lamp", "lamp", "low", "high", "fp32"]),
    formats=st.just(HW),
    delta=st.sampled_from([0.0, 2.0**-8, 0.1]),
    tau=st.sampled_from([0.0, 0.05, 0.125, 0.5, 1.0]),
    stage1=st.sampled_from([True, True, True, False]),
    stage2=st.sampled_from([True, True, True, False]),
    tie=st.sampled_from(["slack", "first"]),
    shift=st.sampled_from(["truncate", "exact"]),
    rounding=st.sampled_from(["rne", "rne", "rne", "rtz", "stochastic"]),
    overflow=st.sampled_from(["saturate", "saturate", "nan"]),
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 99),
    accumulate_block=st.sampled_from([1, 1, 2, 4]),
    kv_order=st.sampled_from(["forward", "reverse", "sink-first"]),
    bq=st.sampled_from([1, 2, 4, 17]),
    bk=st.sampled_from([1, 2, 4]),
    nk=st.integers(1, 4),
)


def check(head: Head, options: Options) -> None:
    expected, expected_stats = reference.attention(head, options)
    with np.errstate(all="ignore"):
        out, stats = lanes_attention(head, options)
    assert same(out, expected)
    assert stats == expected_stats


@settings(max_examples=120, deadline=None)
@given(HEADS, OPTIONS, st.integers(0, 2**32))
def test_hw(draw: dict[str, Any], options: Options, seed: int):
    check(random_head(np.random.default_rng(seed), draw), options)


@settings(max_examples=60, deadline=None)
@given(HEADS, OPTIONS, st.sampled_from(["clamp", "keep"]), st.integers(0, 2**32))
def test_unbounded(draw: dict[str, Any], options: Options, above: Any, seed: int):
    options = replace(options, formats=UNBOUNDED, exp_above_one=above)
    check(random_head(np.random.default_rng(seed), draw), options)


@settings(max_examples=60, deadline=None)
@given(HEADS, OPTIONS, any_formats(), st.integers(0, 2**32))
def test_formats_of_any_layout(draw: dict[str, Any], options: Options, formats: FormatSet, seed: int):
    options = replace(options, formats=formats)
    check(random_head(np.random.default_rng(seed), draw), options)


def small_head(seed: int = 0, lq: int = 12, lk: int = 24, d: int = 8) -> Head:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(size).astype(np.float32) for size in ((lq, d), (lk, d), (lk, 4)))
    return Head(3 * q, k, v, causal=True, causal_offset=lk - lq)


SMALL = Options(bq=4, bk=2, nk=4)


@pytest.mark.parametrize("seed", range(4))
def test_stage1_does_not_depend_on_tau(seed: int):
    runs = [reference.attention(small_head(seed), replace(SMALL, tau=tau))[1] for tau in (0.0, 0.125, 0.5, 1.0)]
    assert all((run.stage1 == runs[0].stage1).all() for run in runs)
    assert (runs[-1].final == runs[-1].stage1).all()
    recomputed = [int((run.final * np.arange(5)).sum()) for run in runs]
    assert recomputed == sorted(recomputed, reverse=True) and recomputed[0] > recomputed[-1]


def test_low_equal_to_high_makes_delta_and_tau_irrelevant():
    same_formats = replace(HW, low=HW.high, low_shift=HW.high_shift, low_exp=HW.high_exp)
    runs = [
        reference.attention(small_head(), replace(SMALL, formats=same_formats, delta=delta, tau=tau))[0]
        for delta, tau in ((0.0, 0.0), (2.0**-8, 0.5), (0.5, 1.0))
    ]
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


def test_first_live_tile_recomputes():
    _, stats = reference.attention(replace(small_head(lk=8), causal=False), replace(SMALL, tau=1.0))
    assert stats.stage1[0, 0] == 0 and stats.stage1.sum() == 3


def test_dead_tiles_and_padded_rows_change_nothing():
    head = small_head()
    longer = replace(
        head,
        k=np.concatenate([head.k, np.full((9, 8), np.nan, np.float32)]),
        v=np.concatenate([head.v, np.full((9, 4), np.inf, np.float32)]),
        q=np.concatenate([head.q, np.zeros((1, 8), np.float32)]),
        mask=np.arange(33) < np.where(np.arange(13) < 12, 24, 0)[:, None],
    )
    out, stats = reference.attention(head, SMALL)
    more, more_stats = reference.attention(longer, SMALL)
    assert same(out, more[:12]) and (more[12] == 0).all()
    assert (stats.final == more_stats.final).all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poisoned_rows_and_keys(seed: int, poison: float):
    """What is not finite leads both to the same decisions, in every row and every later tile."""
    rng = np.random.default_rng(seed)
    head = replace(small_head(seed), sink=0.5 if seed % 2 else None)
    array = (head.q, head.k, head.v)[seed % 3]
    array.flat[rng.integers(array.size // 2)] = poison
    for policy in ("lamp", "low", "high", "fp32"):
        check(head, replace(SMALL, policy=policy, bk=1))
    check(head, replace(SMALL, stage1=False))


def test_nan_stays_in_its_row():
    head = small_head()
    poisoned = replace(head, q=head.q.copy())
    poisoned.q[5, 3] = np.nan
    out, _ = lanes_attention(poisoned, replace(SMALL, policy="fp32"))
    clean, _ = lanes_attention(head, replace(SMALL, policy="fp32"))
    others = np.arange(12) != 5
    assert np.isnan(out[5]).all() and same(out[others], clean[others])
    out, _ = reference.attention(poisoned, SMALL)
    error = np.linalg.norm(out[others] - clean[others]) / np.linalg.norm(clean[others])
    assert np.isnan(out[5]).all() and error < 0.1


def test_fp32_is_attention():
    head = small_head()
    scores = head.q.astype(np.float64) @ head.k.astype(np.float64).T
    scores[~np.tri(12, 24, 12, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    exact = weights / weights.sum(axis=1, keepdims=True) @ head.v.astype(np.float64)
    out, _ = reference.attention(head, replace(SMALL, policy="fp32"))
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-6)
    high, low = (
        np.linalg.norm(reference.attention(head, replace(SMALL, policy=policy))[0] - exact) for policy in ("high", "low")
    )
    assert 0 < high < low / 20


def test_compact_is_safe_until_a_tile_is_disruptive():
    head = small_head()
    for policy in ("low", "fp32"):
        assert same(*(reference.attention(head, replace(SMALL, policy=policy, layout=x))[0] for x in LAYOUTS))
    one = replace(SMALL, nk=1)  # never two sub-blocks
    assert same(*(reference.attention(head, replace(one, layout=x))[0] for x in LAYOUTS))


def test_compact_high_of_two_sub_blocks_is_one_chunk():
    two = replace(SMALL, nk=2, policy="high")
    assert same(*(reference.attention(small_head(), replace(two, layout=x))[0] for x in LAYOUTS))


def test_compact_disruptive_tile_is_two_chunks_under_high():
    """One tile of three sub-blocks: chunks of two and one, as policy high would take them were they tiles."""
    head = replace(small_head(lk=6), causal=False)
    out, stats = reference.attention(head, replace(SMALL, nk=3, layout="compact", delta=100.0))
    assert stats.columns() == (0, 0, 3) and stats.above_one.sum() == 0
    as_tiles = replace(SMALL, nk=2, policy="high")  # tiles of two sub-blocks: keys 0..3, then 4..5
    assert same(out, reference.attention(head, as_tiles)[0])
    assert stats.saturated.keys() <= {"e4m3", "e4m11"}


LAYOUTS: tuple[Any, Any] = ("safe", "compact")
