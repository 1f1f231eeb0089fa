"""
Recognise constants that are masks: a lower triangle, perhaps shifted and banded, everything allowed, or one number everywhere.

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
    """(allowed entries, value of the others) if the array is 0 and one other number."""
    allowed = np.asarray(array == 0)
    others = array[~allowed]
    if not len(others) or bool(np.any(others != others[0])):
        return None
    return allowed, float(others[0])


def _triangle(allowed: npt.NDArray[np.bool_], masked: float) -> MaskAttr | None:
    """The causal form of [queries, keys], or None."""
    queries, keys = allowed.shape
    some = allowed.any(axis=1)
    rows = np.flatnonzero(some)
    if not len(rows):
        return None
    # Where a row's last key is not cut by the right edge, it says the offset; else the first row to reach the edge does.
    last = keys - 1 - np.argmax(allowed[:, ::-1], axis=1)
    inside = np.flatnonzero(some & (last < keys - 1))
    row = int(inside[0] if len(inside) else rows[0])
    offset = int(last[row]) - row
    # The first row whose keys do not begin at 0 says the window; a row below live ones without any begins past the end.
    first = np.argmax(allowed, axis=1)
    first[~some] = keys
    late = [int(row) for row in np.flatnonzero(first > 0) if row >= rows[0]]
    window = late[0] + offset + 1 - int(first[late[0]]) if late else -1
    found = MaskAttr.causal(offset, max(window, -1), masked)
    return found if np.array_equal(found.allowed(queries, keys), allowed) else None


def _uniform(planes: npt.NDArray[Any]) -> float | None:
    """The number that every entry is, if it is one."""
    first = planes.reshape(-1)[0]
    return float(first) if bool(np.all(planes == first)) else None


def _numbers(array: Array) -> MaskAttr | None:
    """A mask that is added, subtracted or multiplied by."""
    planes = array.reshape(-1, *array.shape[-2:])
    value = _uniform(planes)
    if value is not None:
        return MaskAttr.fill(value) if value else MaskAttr.none()
    if array.max() == 1 and bool(np.all((array == 0) | (array == 1))):
        kept = _triangle(np.asarray(planes[0] == 1), 0.0) if _equal(planes) else None
        return MaskAttr.factor(kept.offset.value.data, kept.window.value.data) if kept is not None else None
    read = _allowed(array)
    if read is None:
        return None
    allowed, masked = read
    found = _triangle(allowed.reshape(planes.shape)[0], masked) if _equal(planes) else None
    every_row = np.isinf(masked) or bool(allowed.any(axis=-1).all())
    return found or (MaskAttr.keys(masked) if every_row else None)


def _equal(planes: npt.NDArray[Any]) -> bool:
    return all(np.array_equal(planes[0], other) for other in planes[1:])


def classify(array: Array) -> MaskAttr | None:
    """
    What a constant says if it is a mask, in most cases equally for every index before the last two axes; else None.

    array  bool, or float with entries 0 and one other number, or one number alone; rank 2 or more
    """
    is_number = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    if array.ndim < 2 or not array.size or array.size > _LARGEST or not (array.dtype == np.bool_ or is_number):
        return None
    if not is_two_valued(array):
        return None
    if is_number:
        return _numbers(array)
    planes = array.reshape(-1, *array.shape[-2:])
    allowed = planes[0]
    if not _equal(planes):
        return None
    masked = float("-inf")
    found = MaskAttr.none() if allowed.all() else _triangle(allowed, masked)
    if found is not None and found.window.value.data < 0:
        return found
    # An upper triangle reads as a band that starts after the diagonal; plainer is that true means masked.
    if not allowed.any():
        return MaskAttr.none(inverted=True)
    opposite = _triangle(~allowed, masked)
    if opposite is None or (found is not None and opposite.window.value.data >= 0):
        return found
    return MaskAttr.causal(opposite.offset.value.data, opposite.window.value.data, inverted=True)
