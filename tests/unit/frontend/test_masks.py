"""Masks among constants are recognised, and nothing else is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lampc.dialects.onnx import MaskAttr
from lampc.dialects.onnx_attributes import Array
from lampc.frontend.masks import classify

LOWEST = float(np.finfo(np.float32).min)


def number(allowed: npt.NDArray[np.bool_], masked: float) -> Array:
    return np.where(allowed, np.float32(0), np.float32(masked))


@given(
    queries=st.integers(1, 12),
    keys=st.integers(1, 12),
    offset=st.integers(-12, 12),
    window=st.integers(-1, 12),
    masked=st.sampled_from([None, float("-inf"), LOWEST, -1e4]),
    batch=st.integers(1, 3),
)
def test_what_is_recognised_says_what_the_array_holds(
    queries: int, keys: int, offset: int, window: int, masked: float | None, batch: int
) -> None:
    allowed = MaskAttr.causal(offset, window).allowed(queries, keys)
    plane = allowed if masked is None else number(allowed, masked)
    found = classify(np.broadcast_to(plane, (batch, 1, queries, keys)))
    if allowed.any():
        assert found is not None, "every shifted, banded triangle with a live entry is recognised"
    if found is not None and found.filled is not None:
        assert not allowed.any() and found.filled == masked
    elif found is not None:
        np.testing.assert_array_equal(found.allowed(queries, keys), ~allowed if found.is_inverted else allowed)
        assert not (masked is not None and found.is_inverted)
        if found.is_causal and not found.is_inverted:
            assert found.masked.value.data == (float("-inf") if masked is None else float(np.float32(masked)))


def test_common_masks_read_as_expected() -> None:
    lower = np.tri(5, 5, dtype=np.bool_)
    assert classify(lower) == MaskAttr.causal()
    assert classify(number(lower, LOWEST)) == MaskAttr.causal(masked=LOWEST)
    assert classify(~lower) == MaskAttr.causal(inverted=True)
    assert classify(np.tri(3, 5, 2, dtype=np.bool_)) == MaskAttr.causal(2)
    assert classify(np.tri(5, 5, dtype=np.bool_) & ~np.tri(5, 5, -2, dtype=np.bool_)) == MaskAttr.causal(0, 2)
    assert classify(np.ones((2, 3), np.bool_)) == MaskAttr.none()
    assert classify(np.zeros((2, 3), np.bool_)) == MaskAttr.none(inverted=True)
    assert classify(np.zeros((1, 1, 2, 3), np.float16)) == MaskAttr.none()
    assert classify(number(lower, 1e4)) == MaskAttr.causal(masked=1e4), "to be subtracted"
    assert classify(number(~lower, 1.0)) == MaskAttr.factor(), "to be multiplied by"
    assert classify(np.full((4, 4), LOWEST, np.float32)) == MaskAttr.fill(LOWEST)


LOWER = np.tri(6, 6, dtype=np.bool_)
HOLE = LOWER & (np.arange(6) != 2)
DIFFERENT = np.stack((LOWER, np.ones((6, 6), np.bool_)))


@pytest.mark.parametrize(
    "array",
    [
        LOWER[0],
        HOLE,
        DIFFERENT,
        np.where(LOWER, LOWEST, np.float32(1e4)),
        np.where(LOWER, 1.0, LOWEST),
        np.full((4, 4), np.nan, np.float32),
        LOWER.astype(np.int64),
        np.random.default_rng(0).standard_normal((6, 6)),
        np.empty((0, 4), np.bool_),
        np.array([["a"]], object),
    ],
    ids=["rank1", "hole", "planes differ", "no zeros", "ones", "nan", "integers", "weights", "empty", "strings"],
)
def test_what_is_no_mask(array: Array) -> None:
    assert classify(array) is None
