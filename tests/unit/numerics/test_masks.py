"""Masks against brute force over every entry (lampattention.md §4.3 and fine print)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lampc.errors import InputError
from lampc.numerics import kernels
from lampc.numerics.arrays import Array
from lampc.numerics.masks import Liveness, live_entries, rows_tile, split_mask, tile_is_live

Shape = tuple[int, int, int, int]
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 5), st.integers(1, 6))


def random_rules(rng: np.random.Generator, shape: Shape) -> Liveness:
    return Liveness(
        shape[2],
        shape[3],
        causal=bool(rng.random() < 0.5),
        causal_offset=int(rng.integers(-2, 4)) if rng.random() < 0.5 else rng.integers(-2, 4, shape[0]),
        window=rng.choice(np.array([None, -1, 0, 1, 3])),
        key_lengths=rng.integers(0, shape[3] + 1, shape[0]) if rng.random() < 0.4 else None,
    )


def structured(rules: Liveness, b: int, j: int, i: int) -> bool:
    """One entry by the rules, as the specification words them."""
    if not (0 <= j < rules.queries and 0 <= i < rules.keys):
        return False
    offsets = np.atleast_1d(rules.causal_offset)
    offset = int(offsets[b if len(offsets) > 1 else 0])
    if rules.causal and i > j + offset:
        return False
    if rules.window is not None and rules.window >= 0 and i <= j + offset - rules.window:
        return False
    return rules.key_lengths is None or i < rules.key_lengths[b]


def random_mask(rng: np.random.Generator, shape: Shape) -> Array:
    size = tuple(n if rng.random() < 0.6 else 1 for n in shape)[rng.integers(0, 4) :]
    if rng.random() < 0.4:
        return rng.random(size) < 0.6
    values = [0, 0, 0, -1e9, -np.inf, -1e4, 1.5, np.finfo(np.float32).min, np.nan]
    return rng.choice(np.array(values, np.float32), size)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.sampled_from([-np.inf, -1e9, -5.0]))
def test_split_mask(shape: Shape, seed: int, masked_value: float):
    rng = np.random.default_rng(seed)
    rules, mask = random_rules(rng, shape), random_mask(rng, shape)
    live, bias = split_mask(
        mask,
        masked_value=masked_value,
        threshold=-1e4,
        shape=shape,
        causal=rules.causal,
        causal_offset=rules.causal_offset,
        window=rules.window,
        key_lengths=rules.key_lengths,
    )
    added = np.where(mask, np.float32(0), np.float32(masked_value)) if mask.dtype == np.bool_ else mask
    added = np.broadcast_to(added, shape)
    expected = ~np.isneginf(added)
    for b, h, j in np.ndindex(shape[:3]):
        row = added[b, h, j]
        if any(row[i] > -1e4 and structured(rules, b, j, i) for i in range(shape[3])):
            expected[b, h, j] &= ~(row <= -1e4)
    assert (live is None) == bool(expected.all())
    assert live is None or (np.broadcast_to(live, shape) == expected).all()
    kept = np.where(expected, added, np.float32(0))
    assert (bias is None) == (not kept.any())
    assert bias is None or (bias.dtype == np.float32 and np.array_equal(np.broadcast_to(bias, shape), kept, True))


def test_split_mask_stays_small():
    """A padding mask that leaves every row something keeps its shape, also under a causal rule."""
    padding = np.zeros((2, 1, 1, 8), np.float32)
    padding[1, 0, 0, 5:] = np.finfo(np.float32).min
    live, bias = split_mask(padding, shape=(2, 3, 8, 8), causal=True)
    assert live is not None and live.shape == padding.shape and bias is None
    padding[1, 0, 0] = padding[1, 0, 0, ::-1].copy()  # on the left: the first three queries see nothing else
    live, bias = split_mask(padding, shape=(2, 3, 8, 8), causal=True)
    assert live is not None and live.shape == (2, 1, 8, 8) and bias is not None
    assert live[1, 0, :3].all() and not live[1, 0, 3:, :3].any() and (bias[1, 0, 0, :3] < -1e4).all()


@pytest.mark.parametrize("size", [(1, 1, 1, 1, 1), (3, 4), (2, 1, 1, 4)])
def test_split_mask_refuses(size: tuple[int, ...]):
    with pytest.raises(InputError, match="1x1x2x4"):
        split_mask(np.zeros(size, np.float32), shape=(1, 1, 2, 4))


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.sampled_from(["numba", "numpy"]))
def test_tiles(shape: Shape, seed: int, engine: Any):
    rng = np.random.default_rng(seed)
    rules = random_rules(rng, shape)
    n, rows, count = 5, int(rng.integers(1, 5)), int(rng.integers(1, 5))
    batch, head = rng.integers(0, shape[0], n), rng.integers(0, shape[1], n)
    query_start, key_start = rng.integers(-1, shape[2] + 1, n), rng.integers(-1, shape[3] + 2, n)
    size = tuple(m if rng.random() < 0.6 else 1 for m in shape)
    mask, bias = rng.random(size) < 0.7, rng.standard_normal(size).astype(np.float32)
    kernels.set_engine(engine)
    masked = live_entries(replace(rules, mask=mask), batch, head, query_start, key_start, rows, count)
    live = live_entries(rules, batch, head, query_start, key_start, rows, count)
    tile = rows_tile(bias, batch, head, query_start, key_start, rows, count)
    some = tile_is_live(rules, batch, np.maximum(query_start, 0), key_start, rows, count)
    kernels.set_engine("auto")
    assert masked.dtype == np.bool_ and tile.dtype == np.float32
    full_mask, full_bias = np.broadcast_to(mask, shape), np.broadcast_to(bias, shape)
    for a, i, r in np.ndindex(n, count, rows):
        b, h, j, k = (int(x) for x in (batch[a], head[a], query_start[a] + r, key_start[a] + i))
        expected = structured(rules, b, j, k)
        assert live[a, i, r] == expected
        assert masked[a, i, r] == (expected and full_mask[b, h, j, k])
        if 0 <= j < shape[2] and 0 <= k < shape[3]:
            assert tile[a, i, r] == full_bias[b, h, j, k]
    for a in range(n):
        reach = range(max(0, int(query_start[a])), max(0, int(query_start[a])) + rows)
        keys = range(int(key_start[a]), int(key_start[a]) + count)
        assert some[a] == any(structured(rules, int(batch[a]), j, i) for j in reach for i in keys)
