"""
Recognise constants that are masks: a lower triangle, perhaps shifted and banded, or everything allowed.

Source: onnx.md §4 ("mask algebra"), lampattention.md §4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lampc.dialects.onnx import MaskAttr
from lampc.dialects.onnx_attributes import Array

_SAMPLE = 4096
_LARGEST = 2**26


def is_two_valued(array: Array) -> bool:
    """True if the first elements have at most two values, as masks do and weights do not."""
    return len(np.unique(array.reshape(-1)[:_SAMPLE])) <= 2 if array.dtype != np.object_ else False


def _allowed(array: Array) -> tuple[npt.NDArray[np.bool_], float] | None:
    """(allowed entries, value of the others) if the array is true/false, or 0 and one negative number."""
    if array.dtype == np.bool_:
        return array, float("-inf")
    lowest: Any = array.min()
    masked = float(lowest)
    allowed = np.asarray(array == 0)
    if not (masked < 0 or bool(allowed.all())) or not bool(np.all(allowed | (array == lowest))):
        return None
    return allowed, masked if masked < 0 else float("-inf")


def _triangle(allowed: npt.NDArray[np.bool_], masked: float) -> MaskAttr | None:
    """The causal form of [queries, keys], or None."""
    queries, keys = allowed.shape
    # Rows that are cut at the right edge say nothing about the offset; any other row with an allowed key does.
    last = keys - 1 - np.argmax(allowed[:, ::-1], axis=1)
    some = allowed.any(axis=1)
    telling = np.flatnonzero(some & (last < keys - 1))
    edge = np.flatnonzero(some & (last == keys - 1))
    if len(telling):
        row = int(telling[0])
    elif len(edge):
        row = int(edge[0])  # the first row that reaches the edge ends exactly there, or the rows before it have no keys
    else:
        return None
    offset = int(last[row]) - row
    count = int(allowed.sum(axis=1).max())
    longest = min(queries - 1 + offset, keys - 1) + 1
    window = -1 if count >= longest else count
    found = MaskAttr.causal(offset, window, masked)
    if np.array_equal(found.allowed(queries, keys), allowed):
        return found
    return None


def classify(array: Array) -> MaskAttr | None:
    """
    What the last two axes of a constant say if it is a mask, equal for every index before them; else None.

    array  bool, or float with entries 0 and one negative number; rank 2 or more
    """
    is_number = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    if array.ndim < 2 or not array.size or array.size > _LARGEST or not (array.dtype == np.bool_ or is_number):
        return None
    if not is_two_valued(array):
        return None
    planes = array.reshape(-1, *array.shape[-2:])
    plane = planes[0]
    read = _allowed(plane)
    if read is None:
        return None
    if any(not np.array_equal(plane, other) for other in planes[1:]):
        return None
    allowed, masked = read
    found = MaskAttr.none() if allowed.all() else _triangle(allowed, masked)
    if array.dtype != np.bool_ or (found is not None and found.window.value.data < 0):
        return found
    # An upper triangle reads as a band that starts after the diagonal; plainer is that true means masked.
    if not allowed.any():
        return MaskAttr.none(inverted=True)
    opposite = _triangle(~allowed, masked)
    if opposite is None or (found is not None and opposite.window.value.data >= 0):
        return found
    return MaskAttr.causal(opposite.offset.value.data, opposite.window.value.data, inverted=True)
