"""
Evaluate nodes whose inputs are constants: the shape and mask arithmetic that exporters leave in graphs.

Only operators whose result NumPy gives exactly as ONNX defines it are here; `CannotFold` leaves a node to the host. Sizes are
the caller's business: `fold` allocates its result. Source: onnx.md §4, §6 (43, 44).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, TypeAlias

import numpy as np

from lampc.dialects.onnx import element_type, numpy_dtype
from lampc.dialects.onnx_attributes import Array

Attributes: TypeAlias = Mapping[str, Any]
Inputs: TypeAlias = Sequence[Array | None]


class CannotFold(Exception):
    """The node is left to the host: its version, values or types are outside what is evaluated exactly."""


def _need(inputs: Inputs, index: int) -> Array:
    array = inputs[index] if index < len(inputs) else None
    if array is None:
        raise CannotFold
    return array


def _optional(inputs: Inputs, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _ints(inputs: Inputs, index: int, attributes: Attributes, name: str) -> list[int] | None:
    """Integers that older versions have as an attribute and newer ones as an input."""
    if name in attributes:
        return [int(value) for value in attributes[name]]
    array = _optional(inputs, index)
    return None if array is None else [int(value) for value in array.reshape(-1)]


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _elementwise(function: Callable[..., Any], count: int) -> Callable[[Inputs, Attributes, int], Array]:
    def run(inputs: Inputs, attributes: Attributes, version: int) -> Array:
        if count > 1 and version < 7:
            raise CannotFold  # broadcasting by attributes
        return np.asarray(function(*(_need(inputs, index) for index in range(count))))

    return run


def _variadic(function: Callable[[Array, Array], Any]) -> Callable[[Inputs, Attributes, int], Array]:
    def run(inputs: Inputs, attributes: Attributes, version: int) -> Array:
        if version < 8:
            raise CannotFold
        result = _need(inputs, 0)
        for index in range(1, len(inputs)):
            result = np.asarray(function(result, _need(inputs, index)))
        return result

    return run


def _divide(a: Array, b: Array) -> Array:
    if _is_float(a.dtype):
        return np.asarray(np.divide(a, b))
    if not np.all(b):
        raise CannotFold
    # integers divide toward zero
    quotient = np.floor_divide(np.abs(a), np.abs(b))
    return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient)).astype(a.dtype)


def _mod(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    a, b = _need(inputs, 0), _need(inputs, 1)
    if not _is_float(b.dtype) and not np.all(b):
        raise CannotFold
    if attributes.get("fmod", 0):
        return np.asarray(np.fmod(a, b))
    if _is_float(a.dtype):
        raise CannotFold  # only integers without fmod
    return np.asarray(np.mod(a, b))


def _power(a: Array, b: Array) -> Array:
    if not _is_float(a.dtype) and (_is_float(b.dtype) or np.any(b < 0)):
        raise CannotFold
    return np.asarray(np.power(a, b.astype(a.dtype))).astype(a.dtype)


def _cast_to(array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == array.dtype:
        return array
    if dtype == np.object_ or array.dtype == np.object_ or dtype.itemsize * 8 < 8:
        raise CannotFold
    name = dtype.name
    if name.startswith(("float8", "float4", "int4", "uint4")):
        raise CannotFold  # saturation has rules of its own
    if dtype == np.bool_:
        return np.asarray(array != 0)
    if _is_float(array.dtype) and not _is_float(dtype):
        wide = array.astype(np.float64)
        bounds = np.iinfo(dtype)
        if not np.all(np.isfinite(wide)) or np.any(wide <= float(bounds.min) - 1) or np.any(wide >= float(bounds.max) + 1):
            raise CannotFold  # undefined in ONNX
        return np.trunc(wide).astype(dtype)
    return array.astype(dtype)


def _cast(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    if version < 6:
        raise CannotFold
    return _cast_to(_need(inputs, 0), numpy_dtype(element_type(int(attributes["to"]))))


def _cast_like(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    return _cast_to(_need(inputs, 0), _need(inputs, 1).dtype)


def _clip(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    array = _need(inputs, 0)
    if version < 11:
        raise CannotFold
    low, high = _optional(inputs, 1), _optional(inputs, 2)
    if low is not None:
        array = np.asarray(np.maximum(array, low))
    return array if high is None else np.asarray(np.minimum(array, high))


def _where(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    return np.where(_need(inputs, 0), _need(inputs, 1), _need(inputs, 2))


def _gather(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, indices = _need(inputs, 0), _need(inputs, 1)
    axis = int(attributes.get("axis", 0))
    _check_indices(indices, data.shape[axis])
    return np.take(data, indices, axis=axis)


def _check_indices(indices: Array, size: int) -> None:
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise CannotFold


def _gather_elements(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, indices = _need(inputs, 0), _need(inputs, 1)
    axis = int(attributes.get("axis", 0))
    _check_indices(indices, data.shape[axis])
    grid: list[Any] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices
    return np.asarray(data[tuple(grid)])


def _gather_nd(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, indices = _need(inputs, 0), _need(inputs, 1)
    batch = int(attributes.get("batch_dims", 0))
    depth = indices.shape[-1]
    for position in range(depth):
        _check_indices(indices[..., position], data.shape[batch + position])
    grid: list[Array] = []
    for axis, size in enumerate(data.shape[:batch]):
        shape = [1] * (indices.ndim - 1)
        shape[axis] = size
        grid.append(np.asarray(range(size)).reshape(shape))
    return np.asarray(data[(*grid, *(indices[..., position] for position in range(depth)))])


def _scatter_nd(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, indices, updates = (_need(inputs, index) for index in range(3))
    reduction = attributes.get("reduction", b"none")
    for position in range(indices.shape[-1]):
        _check_indices(indices[..., position], data.shape[position])
    result = data.copy()
    where = tuple(indices[..., position] for position in range(indices.shape[-1]))
    if reduction == b"none":
        result[where] = updates
    elif reduction == b"add":
        np.add.at(result, where, updates)
    else:
        raise CannotFold
    return result


def _scatter_elements(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, indices, updates = (_need(inputs, index) for index in range(3))
    axis = int(attributes.get("axis", 0))
    if attributes.get("reduction", b"none") != b"none":
        raise CannotFold
    _check_indices(indices, data.shape[axis])
    grid: list[Any] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices
    result = data.copy()
    result[tuple(grid)] = updates
    return result


def _concat(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    arrays = [_need(inputs, index) for index in range(len(inputs))]
    return np.concatenate(arrays, axis=int(attributes.get("axis", 1)))


def _split(inputs: Inputs, attributes: Attributes, version: int, outputs: int) -> list[Array]:
    data = _need(inputs, 0)
    axis = int(attributes.get("axis", 0))
    sizes = _ints(inputs, 1, attributes, "split")
    if sizes is None:
        size = -(-data.shape[axis] // outputs)
        sizes = [min(size, data.shape[axis] - size * index) for index in range(outputs)]
    if sum(sizes) != data.shape[axis] or len(sizes) != outputs or min(sizes, default=0) < 0:
        raise CannotFold
    return np.split(data, np.cumsum(sizes)[:-1].tolist(), axis=axis)


def _slice(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data = _need(inputs, 0)
    starts, ends = _ints(inputs, 1, attributes, "starts"), _ints(inputs, 2, attributes, "ends")
    if starts is None or ends is None:
        raise CannotFold
    axes = _ints(inputs, 3, attributes, "axes") or list(range(len(starts)))
    steps = _ints(inputs, 4, {}, "") or [1] * len(starts)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start = min(max(start + size if start < 0 else start, 0), high)
        end = min(max(end + size if end < 0 else end, low), size)
        index[axis] = slice(start, None if end < 0 else end, step)
    return data[tuple(index)]


def _unsqueeze(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, axes = _need(inputs, 0), _ints(inputs, 1, attributes, "axes")
    if axes is None:
        raise CannotFold
    return np.expand_dims(data, tuple(axes))


def _squeeze(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    axes = _ints(inputs, 1, attributes, "axes")
    return np.squeeze(_need(inputs, 0), None if axes is None else tuple(axes))


def _reshape(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, shape = _need(inputs, 0), _ints(inputs, 1, attributes, "shape")
    if shape is None:
        raise CannotFold
    if not attributes.get("allowzero", 0):
        shape = [data.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return data.reshape(shape)


def _flatten(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data = _need(inputs, 0)
    axis = int(attributes.get("axis", 1))
    rows = int(np.prod(data.shape[: axis if axis >= 0 else data.ndim + axis], dtype=np.int64))
    return data.reshape(rows, -1) if data.size else data.reshape(rows, 0)


def _transpose(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    return np.transpose(_need(inputs, 0), attributes.get("perm"))


def _expand(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data = _need(inputs, 0)
    shape = np.broadcast_shapes(data.shape, tuple(int(size) for size in _need(inputs, 1)))
    return np.broadcast_to(data, shape)


def _tile(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    if version < 6:
        raise CannotFold
    return np.tile(_need(inputs, 0), _need(inputs, 1).tolist())


def _constant_of_shape(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    value = attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return np.full(tuple(int(size) for size in _need(inputs, 0)), fill.reshape(-1)[0], fill.dtype)


def _range(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    start, limit, delta = (_need(inputs, index).reshape(()) for index in range(3))
    count = range_length(start, limit, delta)
    if count is None:
        raise CannotFold
    return (start + np.arange(count, dtype=start.dtype) * delta).astype(start.dtype)


def range_length(start: Array, limit: Array, delta: Array) -> int | None:
    """Elements of Range between scalars; None if a step of 0 or an infinite end gives no number."""
    if not delta or not all(np.isfinite(end.astype(np.float64)) for end in (start, limit, delta)):
        return None
    if start.dtype.kind in "iu":
        return max(ceil(Fraction(int(limit) - int(start), int(delta))), 0)
    # as onnxruntime: the difference in the type of the ends, the quotient in double
    with np.errstate(over="ignore"):
        quotient = np.float64(limit - start) / np.float64(delta)
    return max(ceil(quotient), 0) if np.isfinite(quotient) else None


def _trilu(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, k = _need(inputs, 0), _optional(inputs, 1)
    diagonal = 0 if k is None else int(k.reshape(()))
    return np.triu(data, diagonal) if attributes.get("upper", 1) else np.tril(data, diagonal)


def _cum_sum(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data, axis = _need(inputs, 0), int(_need(inputs, 1).reshape(()))
    if attributes.get("reverse", 0):
        data = np.flip(data, axis)
    total = np.cumsum(data, axis, dtype=data.dtype)
    if attributes.get("exclusive", 0):
        total = total - data
    return np.flip(total, axis) if attributes.get("reverse", 0) else total


def _eye_like(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data = _need(inputs, 0)
    dtype = numpy_dtype(element_type(int(attributes["dtype"]))) if "dtype" in attributes else data.dtype
    return np.eye(*data.shape, k=int(attributes.get("k", 0)), dtype=dtype)


def _reduce(function: Callable[..., Any], *, empty: bool = False) -> Callable[[Inputs, Attributes, int], Array]:
    """A reduction; `empty` if it has a value over no elements."""

    def run(inputs: Inputs, attributes: Attributes, version: int) -> Array:
        data, axes = _need(inputs, 0), _ints(inputs, 1, attributes, "axes")
        keep = bool(attributes.get("keepdims", 1))
        if not axes:
            if attributes.get("noop_with_empty_axes", 0):
                return data
            axes = list(range(data.ndim))
        if not empty and not data.size:
            raise CannotFold
        return np.asarray(function(data, axis=tuple(axes), keepdims=keep)).astype(data.dtype)

    return run


def _is_inf(inputs: Inputs, attributes: Attributes, version: int) -> Array:
    data = _need(inputs, 0)
    positive = attributes.get("detect_positive", 1) and data == np.inf
    negative = attributes.get("detect_negative", 1) and data == -np.inf
    return np.asarray(np.logical_or(positive, negative)).reshape(data.shape)


_OPERATORS: dict[str, Callable[[Inputs, Attributes, int], Array]] = {
    "Abs": _elementwise(np.abs, 1),
    "Add": _elementwise(np.add, 2),
    "And": _elementwise(np.logical_and, 2),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _elementwise(np.ceil, 1),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cum_sum,
    "Div": _elementwise(_divide, 2),
    "Equal": _elementwise(np.equal, 2),
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Floor": _elementwise(np.floor, 1),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Greater": _elementwise(np.greater, 2),
    "GreaterOrEqual": _elementwise(np.greater_equal, 2),
    "Identity": _elementwise(np.asarray, 1),
    "IsInf": _is_inf,
    "IsNaN": _elementwise(np.isnan, 1),
    "Less": _elementwise(np.less, 2),
    "LessOrEqual": _elementwise(np.less_equal, 2),
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Mod": _mod,
    "Mul": _elementwise(np.multiply, 2),
    "Neg": _elementwise(np.negative, 1),
    "Not": _elementwise(np.logical_not, 1),
    "Or": _elementwise(np.logical_or, 2),
    "Pow": _elementwise(_power, 2),
    "Range": _range,
    "Reciprocal": _elementwise(np.reciprocal, 1),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod, empty=True),
    "ReduceSum": _reduce(np.sum, empty=True),
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Sqrt": _elementwise(np.sqrt, 1),
    "Squeeze": _squeeze,
    "Sub": _elementwise(np.subtract, 2),
    "Sum": _variadic(np.add),
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
    "Xor": _elementwise(np.logical_xor, 2),
}

FOLDABLE = frozenset((*_OPERATORS, "Split"))
"""Operators of the standard domain that `fold` evaluates. (Constant, Shape and Size need no values and are the caller's.)"""


def fold(op_type: str, version: int, inputs: Inputs, attributes: Attributes, outputs: int) -> list[Array]:
    """
    The results of one node of a `FOLDABLE` operator, read-only where they share memory with an input.

    version     since_version of its schema
    inputs      arrays, None for an absent one
    attributes  Python values: int, float, bytes, lists of those, arrays
    outputs     number of outputs

    Raises CannotFold if it is not evaluated exactly.
    """
    try:
        with np.errstate(all="ignore"):
            if op_type == "Split":
                return _split(inputs, attributes, version, outputs)
            if outputs != 1:
                raise CannotFold
            # NumPy gives a scalar where a result has no axes
            return [np.asarray(_OPERATORS[op_type](inputs, attributes, version))]
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, np.exceptions.AxisError) as error:
        raise CannotFold from error
