"""Values of the onnx dialect survive printing and parsing bit for bit, in every type."""

from __future__ import annotations

import math
from io import StringIO
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.printer import Printer

from lampc.dialects.onnx import (
    ConstantOp,
    MaskAttr,
    Onnx,
    ValuesAttr,
    element_of_dtype,
    element_type,
    numpy_dtype,
    onnx_dtype,
)
from lampc.dialects.onnx_attributes import READABLE_ELEMENTS, Array

FLOATS: list[type[Any]] = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e8m0fnu,
]
INTEGERS: list[type[Any]] = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
PACKED: list[type[Any]] = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn]
COMPLEX: list[type[Any]] = [np.complex64, np.complex128]


def context() -> Context:
    made = Context()
    made.load_dialect(Builtin)
    made.load_dialect(Onnx)
    return made


def text_of(attribute: Attribute) -> str:
    stream = StringIO()
    Printer(stream).print_attribute(attribute)
    return stream.getvalue()


def reread(array: Array) -> Array:
    """`array` printed and parsed as an attribute, and as an op in custom and generic syntax; all three must agree."""
    attribute = ValuesAttr.from_numpy(array)
    parsed = Parser(context(), text_of(attribute)).parse_attribute()
    assert parsed == attribute
    for generic in (False, True):
        stream = StringIO()
        Printer(stream, print_generic_format=generic).print_op(ConstantOp("c", array))
        op = Parser(context(), stream.getvalue()).parse_op()
        assert isinstance(op, ConstantOp)
        op.verify()
        assert op.values == attribute
    assert isinstance(parsed, ValuesAttr)
    return parsed.to_numpy()


def random_bits(dtype: type[Any], count: int) -> Array:
    """Every bit pattern is as likely as any other: NaNs with payloads, subnormals, infinities."""
    generator = np.random.default_rng(0)
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return generator.integers(0, 2, count).astype(np.bool_)
    if dtype in PACKED:
        return (generator.integers(0, 8, count)).astype(dtype)
    return np.frombuffer(generator.bytes(count * kind.itemsize), kind)


@pytest.mark.parametrize("count", [1, READABLE_ELEMENTS, READABLE_ELEMENTS + 1])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *PACKED, *COMPLEX], ids=lambda dtype: str(np.dtype(dtype).name))
def test_random_values(dtype: type[Any], count: int) -> None:
    values = random_bits(dtype, count)
    read = reread(values)
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(np.dtype(dtype).name))
def test_special_floats(dtype: type[Any]) -> None:
    with np.errstate(over="ignore"):
        numbers: Array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-5, 0.1, 1e10, -123456789.0]).astype(dtype)
    for values in (numbers, *(numbers[index : index + 1].reshape(()) for index in range(numbers.size))):
        assert reread(values).tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (2, 0), (2, 3, 1)])
def test_shapes(shape: tuple[int, ...]) -> None:
    values: Array = np.array(range(math.prod(shape)), np.float32).reshape(shape)
    read = reread(values)
    assert read.shape == shape
    np.testing.assert_array_equal(read, values)


def test_extremes_of_integers() -> None:
    for dtype in (np.int64, np.uint64, np.int8):
        bounds = np.iinfo(dtype)
        np.testing.assert_array_equal(reread(np.array([bounds.min, bounds.max], dtype)), [bounds.min, bounds.max])


def test_plus_and_minus_zero_are_no_splat() -> None:
    assert text_of(ValuesAttr.from_numpy(np.array([0.0, -0.0], np.float32))) == "#onnx.values<[0.0, -0.0] : tensor<2xf32>>"
    assert text_of(ValuesAttr.from_numpy(np.zeros(3, np.float32))) == "#onnx.values<0.0 : tensor<3xf32>>"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *PACKED, *COMPLEX], ids=lambda dtype: str(np.dtype(dtype).name))
def test_types_map_both_ways(dtype: type[Any]) -> None:
    element = element_of_dtype(np.dtype(dtype))
    assert numpy_dtype(element) == np.dtype(dtype)
    assert element_type(onnx_dtype(element)) == element


@pytest.mark.parametrize(
    "mask",
    [
        MaskAttr.none(),
        MaskAttr.none(inverted=True),
        MaskAttr.causal(),
        MaskAttr.causal(-3, 7, float(np.finfo(np.float32).min)),
        MaskAttr.causal(masked=-1e4),
        MaskAttr.factor(2, 3),
        MaskAttr.fill(0.125),
        MaskAttr.causal(masked=-1e16, inverted=True),
    ],
    ids=str,
)
def test_masks_are_reread(mask: MaskAttr) -> None:
    assert Parser(context(), text_of(mask)).parse_attribute() == mask
