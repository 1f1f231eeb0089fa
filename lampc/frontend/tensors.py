"""
TensorProto to NumPy with every size checked before memory is touched.

Source: onnx.md §6 (10 to 13, 26, 27, 54).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from lampc.dialects.onnx import element_type, numpy_dtype
from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError
from lampc.frontend.limits import Limits, raise_it

_PACKED_BITS = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}
_INT32_FIELD = frozenset(
    (
        TensorProto.INT32,
        TensorProto.INT16,
        TensorProto.INT8,
        TensorProto.INT4,
        TensorProto.UINT16,
        TensorProto.UINT8,
        TensorProto.UINT4,
        TensorProto.BOOL,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
        TensorProto.FLOAT8E8M0,
        TensorProto.FLOAT4E2M1,
    )
)
_FIELDS = {
    "float_data": frozenset((TensorProto.FLOAT, TensorProto.COMPLEX64)),
    "double_data": frozenset((TensorProto.DOUBLE, TensorProto.COMPLEX128)),
    "int64_data": frozenset((TensorProto.INT64,)),
    "uint64_data": frozenset((TensorProto.UINT64, TensorProto.UINT32)),
    "int32_data": _INT32_FIELD,
    "string_data": frozenset((TensorProto.STRING,)),
}


def tensor_error(what: str, message: str, code: str) -> ModelError:
    """An error about the tensor that `what` names."""
    return ModelError(message, where=what, code=code)


def check_dims(dims: Sequence[int], itemsize: int, what: str, limits: Limits) -> int:
    """Number of elements of a tensor, or ModelError for negative dimensions, too many, or a size no machine has."""
    if len(dims) > limits.rank:
        raise tensor_error(what, f"it has {len(dims)} dimensions; lampc takes {limits.rank}", "E-DIMS-RANK")
    if any(dim < 0 for dim in dims):
        raise tensor_error(what, f"dimensions {list(dims)} are negative; the file is broken", "E-DIMS-NEGATIVE")
    count = prod(dims)
    # A product with a zero hides the others.
    if prod(dim for dim in dims if dim) * max(itemsize, 1) >= 2**63:
        raise tensor_error(what, f"dimensions {list(dims)} are more bytes than 2^63; the file is broken", "E-DIMS-OVERFLOW")
    return count


def dtype_name(dtype: int) -> str:
    """ONNX's name of a data type, or its number if it has none."""
    return TensorProto.DataType.Name(dtype) if dtype in TensorProto.DataType.values() else str(dtype)


def tensor_dtype(dtype: int, what: str) -> np.dtype[Any]:
    """NumPy dtype of an ONNX data type, or ModelError E-DTYPE."""
    try:
        return numpy_dtype(element_type(dtype))
    except KeyError:
        known = dtype and dtype in TensorProto.DataType.values()
        text = f"data type {dtype_name(dtype)} is not supported" if known else f"data type {dtype} does not exist"
        raise tensor_error(what, f"{text}; convert the tensor to another type", "E-DTYPE") from None


def stored_bytes(dtype: int, count: int, itemsize: int) -> int:
    """Bytes that `count` elements take in raw or external data: 4-bit types are packed by two."""
    return (count + 1) // 2 if dtype in _PACKED_BITS else count * itemsize


def is_external(tensor: TensorProto) -> bool:
    """True if the values are in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def check_tensor(tensor: TensorProto, what: str, limits: Limits) -> int:
    """
    Check type, dimensions and payload of a tensor; returns its number of elements. External files are not looked at.

    Raises ModelError: E-DTYPE, E-DIMS-*, E-TENSOR-PAYLOAD (not exactly one payload of the right kind), E-TENSOR-SIZE.
    """
    dtype = tensor_dtype(tensor.data_type, what)
    count = check_dims(tensor.dims, dtype.itemsize, what, limits)
    fields = [name for name in _FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        fields.append("raw_data")
    if tensor.HasField("segment"):
        raise tensor_error(what, "it is stored in segments, which lampc does not read", "E-TENSOR-PAYLOAD")
    if is_external(tensor):
        if fields or tensor.data_type == TensorProto.STRING:
            raise tensor_error(what, "it has external data and data of its own; keep one", "E-TENSOR-PAYLOAD")
        return count
    if len(fields) > 1:
        raise tensor_error(what, f"it has several payloads ({', '.join(fields)}); keep one", "E-TENSOR-PAYLOAD")
    if not fields:
        if count:
            raise tensor_error(what, f"dimensions {list(tensor.dims)} but no data", "E-TENSOR-SIZE")
        return count
    field = fields[0]
    if field == "raw_data":
        if tensor.data_type == TensorProto.STRING:
            raise tensor_error(what, "strings cannot be raw data", "E-TENSOR-PAYLOAD")
        have, need, unit = len(tensor.raw_data), stored_bytes(tensor.data_type, count, dtype.itemsize), "bytes"
    else:
        if tensor.data_type not in _FIELDS[field]:
            raise tensor_error(what, f"{field} cannot hold {dtype.name}", "E-TENSOR-PAYLOAD")
        have, need, unit = len(getattr(tensor, field)), count, "values"
        if dtype.kind == "c":
            need *= 2
        elif tensor.data_type in _PACKED_BITS:
            need = (count + 1) // 2
    if have != need:
        message = f"dimensions {list(tensor.dims)} need {need} {unit}, {field} has {have}"
        raise tensor_error(what, message, "E-TENSOR-SIZE")
    return count


def view_bytes(data: memoryview | bytes, dtype: int, dims: Sequence[int], what: str) -> Array:
    """Little-endian stored bytes of the right length as an array; a view wherever the type is not packed. No copy otherwise."""
    element = tensor_dtype(dtype, what)
    count = prod(dims)
    if dtype in _PACKED_BITS:
        packed = np.frombuffer(data, np.uint8)
        codes = np.stack((packed & 15, packed >> 4), axis=-1).reshape(-1)[:count]
        signed = dtype == TensorProto.INT4
        values = np.where(codes >= 8, codes.astype(np.int8) - 16, codes.astype(np.int8)) if signed else codes
        unpacked = values.view(element) if dtype == TensorProto.FLOAT4E2M1 else values.astype(element)
        return unpacked.reshape(dims)
    if element == np.bool_:
        # any byte but 0 is true, and NumPy trusts booleans to be 0 or 1
        return (np.frombuffer(data, np.uint8) != 0).reshape(dims)
    return np.frombuffer(data, element.newbyteorder("<")).view(element).reshape(dims)


def tensor_array(tensor: TensorProto, what: str, limits: Limits) -> Array:
    """
    The values of a checked tensor whose data is in the file, read-only.

    Raises what `check_tensor` raises.
    """
    count = check_tensor(tensor, what, limits)
    if is_external(tensor):
        raise tensor_error(what, "its external data has not been read", "E-TENSOR-PAYLOAD")
    if tensor.HasField("raw_data"):
        array = view_bytes(tensor.raw_data, tensor.data_type, tensor.dims, what)
    elif not count:
        array = np.empty(tuple(tensor.dims), tensor_dtype(tensor.data_type, what))
    elif tensor.data_type == TensorProto.STRING:
        array = np.array(list(tensor.string_data), np.object_).reshape(tuple(tensor.dims))
    else:
        try:
            array = np.asarray(numpy_helper.to_array(tensor))
        except (ValueError, OverflowError, TypeError) as error:
            raise tensor_error(what, f"its values do not fit its type: {error}", "E-TENSOR-PAYLOAD") from error
    array.flags.writeable = False
    return array


def _check_indices(indices: Array, dims: Sequence[int], nonzeros: int, what: str) -> Array:
    """Linear positions of a sparse tensor's values."""
    if indices.dtype != np.int64 or indices.shape not in ((nonzeros,), (nonzeros, len(dims))):
        raise tensor_error(
            what, f"indices must be int64 [{nonzeros}] or [{nonzeros}, {len(dims)}], not {indices.shape}", "E-SPARSE-INDEX"
        )
    bounds = np.array([prod(dims)] if indices.ndim == 1 else dims, np.int64)
    rows = indices.reshape(nonzeros, -1)
    bad = (rows < 0) | (rows >= bounds)
    if bad.any():
        row = int(np.argmax(bad.any(axis=1)))
        raise tensor_error(what, f"index {rows[row].tolist()} is outside {bounds.tolist()}", "E-SPARSE-INDEX")
    linear = rows[:, 0] if indices.ndim == 1 else np.ravel_multi_index(tuple(rows.T), tuple(dims))
    if len(np.unique(linear)) != nonzeros:
        raise tensor_error(what, "an index occurs twice", "E-SPARSE-INDEX")
    return np.asarray(linear)


def densify(sparse: SparseTensorProto, what: str, limits: Limits) -> Array:
    """
    A sparse tensor written out, zeros between its values.

    Raises ModelError: E-SPARSE-INDEX for indices outside the tensor, E-UNSUPPORTED beyond `limits.dense_elements`.
    """
    values = tensor_array(sparse.values, f"{what} (values)", limits)
    indices = tensor_array(sparse.indices, f"{what} (indices)", limits)
    if values.ndim != 1:
        raise tensor_error(what, f"values must have one dimension, not {values.ndim}", "E-SPARSE-INDEX")
    count = check_dims(sparse.dims, values.dtype.itemsize, what, limits)
    if count > limits.dense_elements:
        message = f"a sparse initializer has at most {limits.dense_elements} elements; {raise_it('dense_elements')}"
        raise tensor_error(what, message, "E-UNSUPPORTED")
    linear = _check_indices(indices, sparse.dims, len(values), what)
    dense = np.zeros(count, values.dtype)
    dense[linear] = values
    return dense.reshape(tuple(sparse.dims))


def to_proto(array: Array, name: str) -> TensorProto:
    """`array` as a TensorProto with raw data (strings: string_data)."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def strip(tensors: Iterable[TensorProto]) -> None:
    """Drop the payloads: type and dimensions stay, marked as external data that lampc holds (`STRIPPED`)."""
    for tensor in tensors:
        for field in (*_FIELDS, "raw_data", "external_data"):
            tensor.ClearField(field)  # pyright: ignore[reportArgumentType]
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=STRIPPED)


STRIPPED = "lampc-holds-these-values"
"""Location of initializers whose values are in `Model.constants` and not in `Model.proto`."""
