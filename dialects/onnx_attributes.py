"""
Types and attributes of the `onnx` dialect, and how they map to ONNX data types and NumPy.

Values are exact: infinities, NaNs and negative zeros read back bit for bit.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from xdsl.dialects import builtin
from xdsl.dialects.builtin import (
    BoolAttr,
    BytesAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    Signedness,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    f64,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

Array: TypeAlias = npt.NDArray[Any]

READABLE_ELEMENTS = 64
"""Values of more elements than this print as hexadecimal bytes, unless all elements are equal."""


@irdl_attr_definition
class StringType(ParametrizedAttribute, TypeAttribute):
    """Element type of an ONNX string tensor."""

    name = "onnx.string"


@irdl_attr_definition
class AbsentType(ParametrizedAttribute, TypeAttribute):
    """Type of an optional input or output that is not there."""

    name = "onnx.absent"


@irdl_attr_definition
class UnknownType(ParametrizedAttribute, TypeAttribute):
    """Type of a value that no schema describes, for example the result of a custom operator."""

    name = "onnx.unknown"


class _OneType(ParametrizedAttribute, TypeAttribute):
    """Syntax of a type with one type as its parameter."""

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.parameters[0])


@irdl_attr_definition
class SequenceType(_OneType):
    """ONNX sequence: `!onnx.sequence<tensor<?xf32>>`."""

    name = "onnx.sequence"

    element: Attribute = param_def()


@irdl_attr_definition
class OptionalType(_OneType):
    """ONNX optional: `!onnx.optional<tensor<?xf32>>`."""

    name = "onnx.optional"

    element: Attribute = param_def()


def _unsigned(bits: int) -> IntegerType:
    return IntegerType(bits, Signedness.UNSIGNED)


# ONNX data type, name in schema type strings, builtin element type, NumPy dtype
_ELEMENTS: tuple[tuple[int, str, Attribute, npt.DTypeLike], ...] = (
    (TensorProto.FLOAT, "float", builtin.f32, np.float32),
    (TensorProto.DOUBLE, "double", f64, np.float64),
    (TensorProto.FLOAT16, "float16", builtin.f16, np.float16),
    (TensorProto.BFLOAT16, "bfloat16", builtin.bf16, ml_dtypes.bfloat16),
    (TensorProto.FLOAT8E4M3FN, "float8e4m3fn", builtin.Float8E4M3FNType(), ml_dtypes.float8_e4m3fn),
    (TensorProto.FLOAT8E4M3FNUZ, "float8e4m3fnuz", builtin.Float8E4M3FNUZType(), ml_dtypes.float8_e4m3fnuz),
    (TensorProto.FLOAT8E5M2, "float8e5m2", builtin.Float8E5M2Type(), ml_dtypes.float8_e5m2),
    (TensorProto.FLOAT8E5M2FNUZ, "float8e5m2fnuz", builtin.Float8E5M2FNUZType(), ml_dtypes.float8_e5m2fnuz),
    (TensorProto.FLOAT8E8M0, "float8e8m0", builtin.Float8E8M0FNUType(), ml_dtypes.float8_e8m0fnu),
    (TensorProto.FLOAT4E2M1, "float4e2m1", builtin.Float4E2M1FNType(), ml_dtypes.float4_e2m1fn),
    (TensorProto.BOOL, "bool", builtin.i1, np.bool_),
    (TensorProto.INT4, "int4", IntegerType(4), ml_dtypes.int4),
    (TensorProto.INT8, "int8", builtin.i8, np.int8),
    (TensorProto.INT16, "int16", builtin.i16, np.int16),
    (TensorProto.INT32, "int32", builtin.i32, np.int32),
    (TensorProto.INT64, "int64", i64, np.int64),
    (TensorProto.UINT4, "uint4", _unsigned(4), ml_dtypes.uint4),
    (TensorProto.UINT8, "uint8", _unsigned(8), np.uint8),
    (TensorProto.UINT16, "uint16", _unsigned(16), np.uint16),
    (TensorProto.UINT32, "uint32", _unsigned(32), np.uint32),
    (TensorProto.UINT64, "uint64", _unsigned(64), np.uint64),
    (TensorProto.COMPLEX64, "complex64", builtin.ComplexType(builtin.f32), np.complex64),
    (TensorProto.COMPLEX128, "complex128", builtin.ComplexType(f64), np.complex128),
    (TensorProto.STRING, "string", StringType(), np.object_),
)
_BY_ONNX: dict[int, Attribute] = {dtype: element for dtype, _, element, _ in _ELEMENTS}
_TO_ONNX: dict[Attribute, int] = {element: dtype for dtype, _, element, _ in _ELEMENTS}
_TO_NAME: dict[Attribute, str] = {element: name for _, name, element, _ in _ELEMENTS}
_TO_NUMPY: dict[Attribute, np.dtype[Any]] = {element: np.dtype(dtype) for _, _, element, dtype in _ELEMENTS}
_BY_NUMPY = {dtype: element for element, dtype in _TO_NUMPY.items()}


def element_type(onnx_dtype: int) -> Attribute:
    """Element type of an ONNX data type (`TensorProto.DataType`); KeyError if lampc has none for it."""
    return _BY_ONNX[onnx_dtype]


def onnx_dtype(element: Attribute) -> int:
    """ONNX data type of an element type; KeyError if there is none."""
    return _TO_ONNX[element]


def numpy_dtype(element: Attribute) -> np.dtype[Any]:
    """NumPy (or ml_dtypes) dtype of an element type; KeyError if there is none."""
    return _TO_NUMPY[element]


def element_of_dtype(dtype: np.dtype[Any]) -> Attribute:
    """Element type of a NumPy dtype; KeyError if there is none."""
    return _BY_NUMPY[dtype.newbyteorder("=")]


def is_tensor(attribute: Attribute) -> TypeGuard[TensorType[Attribute]]:
    """True for a ranked tensor type."""
    return isinstance(attribute, TensorType)


def onnx_type_name(type_: Attribute) -> str | None:
    """The name ONNX schemas use for a type, such as `tensor(float)`; None if the element type is not known."""
    match type_:
        case SequenceType():
            inner = onnx_type_name(type_.element)
            return None if inner is None else f"seq({inner})"
        case OptionalType():
            inner = onnx_type_name(type_.element)
            return None if inner is None else f"optional({inner})"
        case TensorType() | UnrankedTensorType():
            name = _TO_NAME.get(type_.element_type)
            return None if name is None else f"tensor({name})"
        case _:
            return None


def _float_text(text: str) -> str:
    """Python's text of a float as a float literal, which needs a point."""
    if text in ("inf", "-inf", "nan"):
        return text
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"


def _parse_scalar(parser: AttrParser) -> float | int | bool:
    """A number, `true`, `false`, `inf`, `-inf` or `nan`."""
    sign = -1 if parser.parse_optional_punctuation("-") else 1
    for word, value in (("inf", float("inf")), ("nan", float("nan"))):
        if parser.parse_optional_keyword(word):
            return sign * value
    number = parser.parse_optional_number(allow_boolean=True)
    if number is None:
        parser.raise_error("expected a number, true, false, inf or nan")
    # -0 of an integer literal stays 0; a float literal keeps its sign
    return number if isinstance(number, bool) else sign * number


@irdl_attr_definition
class ValuesAttr(ParametrizedAttribute):
    """
    The exact values of a tensor: `#onnx.values<[0.5, -inf] : tensor<2xf32>>`.

    Unlike builtin `dense`, infinities, NaNs and negative zeros survive printing. A single scalar stands for every element;
    what does not read back bit for bit, or is long, prints as its little-endian bytes:
    `#onnx.values<"0x0000803F" : tensor<1xf32>>`.
    """

    name = "onnx.values"

    type: TensorType[Attribute] = param_def()
    data: BytesAttr = param_def()

    @staticmethod
    def from_numpy(array: Array) -> ValuesAttr:
        """The values of `array`; KeyError if its dtype has no element type."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return ValuesAttr(TensorType(element_of_dtype(array.dtype), array.shape), BytesAttr(little.tobytes()))

    def to_numpy(self) -> Array:
        """The values, a read-only array of the type's shape and `numpy_dtype`."""
        dtype = numpy_dtype(self.type.element_type)
        return np.frombuffer(self.data.data, dtype=dtype).reshape(self.type.get_shape())

    def verify(self) -> None:
        if not self.type.has_static_shape():
            raise VerifyException("values need a static shape")
        dtype = _TO_NUMPY.get(self.type.element_type)
        if dtype is None or dtype == np.object_:
            raise VerifyException(f"values of element type {self.type.element_type} cannot be inline")
        count = int(np.prod(self.type.get_shape(), dtype=np.int64))
        if len(self.data.data) != count * dtype.itemsize:
            raise VerifyException(f"{count} elements of {dtype.itemsize} bytes expected, {len(self.data.data)} bytes given")

    def _text(self) -> str:
        array = self.to_numpy()
        first = array.reshape(-1)[:1]
        uniform = array.size > 1 and first.tobytes() * array.size == array.tobytes()
        shown = first.reshape(()) if uniform else array
        if array.dtype.kind != "c" and shown.size <= READABLE_ELEMENTS:
            text = _array_text(shown)
            read = [_read_scalar(word) for word in text.translate(str.maketrans("[],", "   ")).split()]
            if _to_array(read, array.dtype).tobytes() == shown.tobytes():
                return text
        return f'"0x{self.data.data.hex().upper()}"'

    def print_values(self, printer: Printer) -> None:
        """Only the values, without the type."""
        printer.print_string(self._text())

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.print_values(printer)
            printer.print_string(" : ")
            printer.print_attribute(self.type)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            values = parse_values(parser)
            parser.parse_punctuation(":")
            type_ = parser.parse_type()
        data = values_bytes(parser, values, type_)
        return [type_, data]


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _array_text(array: Array) -> str:
    if array.ndim:
        return "[" + ", ".join(_array_text(row) for row in array) + "]"
    if array.dtype == np.bool_:
        return "true" if array else "false"
    # str of a NumPy scalar is the shortest text that reads back as the same value
    return _float_text(str(array[()])) if _is_float(array.dtype) else str(int(array))


def _read_scalar(word: str) -> float | int | bool:
    if word in ("true", "false"):
        return word == "true"
    return float(word) if any(c in word for c in ".n") else int(word)


def _to_array(values: list[float | int | bool], dtype: np.dtype[Any]) -> Array:
    """`values` in `dtype`; ValueError, TypeError or OverflowError if they are of another kind or too large."""
    if _is_float(dtype):
        return np.array(values, dtype=np.float64).astype(dtype)
    if any(isinstance(value, float) for value in values):
        raise ValueError(f"{dtype.name} takes no fractions")
    return np.array(values, dtype=dtype if dtype.isbuiltin == 1 else np.int64).astype(dtype)


def parse_values(parser: AttrParser) -> str | list[float | int | bool] | float | int | bool:
    """The part of a values attribute before the type: a hexadecimal string, nested lists (returned flat), or one scalar."""
    text = parser.parse_optional_str_literal()
    if text is not None:
        return text
    flat: list[float | int | bool] = []

    def element() -> None:
        if parser.parse_optional_punctuation("["):
            if parser.parse_optional_punctuation("]"):
                return
            element()
            while parser.parse_optional_punctuation(","):
                element()
            parser.parse_punctuation("]")
        else:
            flat.append(_parse_scalar(parser))

    if parser.parse_optional_punctuation("["):
        if not parser.parse_optional_punctuation("]"):
            element()
            while parser.parse_optional_punctuation(","):
                element()
            parser.parse_punctuation("]")
        return flat
    return _parse_scalar(parser)


def values_bytes(
    parser: AttrParser, values: str | list[float | int | bool] | float | int | bool, type_: Attribute
) -> BytesAttr:
    """The bytes of what `parse_values` returned, for a tensor of type `type_`."""
    if not is_tensor(type_) or type_.element_type not in _TO_NUMPY or not type_.has_static_shape():
        parser.raise_error(f"values need a tensor type with a static shape, not {type_}")
    if isinstance(values, str):
        try:
            return BytesAttr(bytes.fromhex(values.removeprefix("0x")))
        except ValueError:
            parser.raise_error("values in a string are hexadecimal bytes after 0x")
    dtype = numpy_dtype(type_.element_type)
    count = int(np.prod(type_.get_shape(), dtype=np.int64))
    flat = values if isinstance(values, list) else [values] * count
    if len(flat) != count:
        parser.raise_error(f"{type_} has {count} elements, {len(flat)} given")
    try:
        return BytesAttr(_to_array(flat, dtype).tobytes())
    except (ValueError, TypeError, OverflowError) as error:
        parser.raise_error(f"values do not fit {type_}: {error}")


@irdl_attr_definition
class MaskAttr(ParametrizedAttribute):
    """
    What the last two axes [queries, keys] of a constant mask say, equally for every index of the axes before.

    `#onnx.mask<causal, offset = O, window = W, masked = M>`: key i is allowed for query j if i <= j + O and, for W >= 0,
    i > j + O - W (so W keys, the newest included). `#onnx.mask<none, ...>`: everything is allowed. Allowed entries are true
    or 0; the others are false, or the number `masked` (-inf for a boolean mask). With `inverted` after the numbers a boolean
    mask says the opposite: true where a key is masked. `#onnx.mask<factor, ...>` is a causal mask that scores are multiplied
    by: 1 where allowed, 0 elsewhere. `#onnx.mask<fill, ...>`: every entry is the number `masked`, such as a score that a
    selection puts in. `#onnx.mask<keys, ...>`: entries are 0 or `masked` in any other order (padding, prefixes, blocks), and a
    finite number leaves a 0 in every row. Source: lampattention.md §4, onnx.md §4.
    """

    name = "onnx.mask"

    kind: StringAttr = param_def()
    offset: IntegerAttr = param_def()
    window: IntegerAttr = param_def()
    masked: FloatAttr = param_def()
    inverted: BoolAttr = param_def()

    @staticmethod
    def causal(offset: int = 0, window: int = -1, masked: float = float("-inf"), *, inverted: bool = False) -> MaskAttr:
        """A lower triangle, possibly shifted and banded."""
        return MaskAttr(
            StringAttr("causal"),
            IntegerAttr(offset, i64),
            IntegerAttr(window, i64),
            FloatAttr(float(masked), f64),
            BoolAttr.from_bool(inverted),
        )

    @staticmethod
    def none(*, inverted: bool = False) -> MaskAttr:
        """Everything allowed."""
        return MaskAttr(
            StringAttr("none"),
            IntegerAttr(0, i64),
            IntegerAttr(-1, i64),
            FloatAttr(float("-inf"), f64),
            BoolAttr.from_bool(inverted),
        )

    @staticmethod
    def factor(offset: int = 0, window: int = -1) -> MaskAttr:
        """A causal mask of ones and zeros."""
        numbers = (IntegerAttr(offset, i64), IntegerAttr(window, i64), FloatAttr(0.0, f64))
        return MaskAttr(StringAttr("factor"), *numbers, BoolAttr.from_bool(value=False))

    @staticmethod
    def fill(value: float) -> MaskAttr:
        """One number everywhere."""
        numbers = (IntegerAttr(0, i64), IntegerAttr(-1, i64), FloatAttr(float(value), f64))
        return MaskAttr(StringAttr("fill"), *numbers, BoolAttr.from_bool(value=False))

    @staticmethod
    def keys(masked: float) -> MaskAttr:
        """Keys allowed or masked in no simple order, with a number."""
        numbers = (IntegerAttr(0, i64), IntegerAttr(-1, i64), FloatAttr(float(masked), f64))
        return MaskAttr(StringAttr("keys"), *numbers, BoolAttr.from_bool(value=False))

    @property
    def is_inverted(self) -> bool:
        """True if true entries are the masked ones."""
        return bool(self.inverted.value.data)

    @property
    def is_causal(self) -> bool:
        """True for the causal kind alone."""
        return self.kind.data == "causal"

    @property
    def filled(self) -> float | None:
        """The number that every entry is, None for another kind."""
        return float(self.masked.value.data) if self.kind.data == "fill" else None

    @property
    def allows_all(self) -> bool:
        """True if nothing is masked (or everything, with `inverted`)."""
        return self.kind.data == "none"

    def allowed(self, queries: int, keys: int) -> npt.NDArray[np.bool_]:
        """What a causal or factor mask, or one that masks nothing, allows: bool [queries, keys] (whether `inverted` or not)."""
        if self.kind.data not in ("causal", "factor"):
            return np.ones((queries, keys), np.bool_)
        last = np.arange(queries)[:, None] + self.offset.value.data
        key = np.arange(keys)[None, :]
        allowed = key <= last
        window = self.window.value.data
        return allowed & (key > last - window) if window >= 0 else allowed

    def verify(self) -> None:
        if self.kind.data not in ("causal", "none", "factor", "fill", "keys"):
            raise VerifyException(f"a mask is causal, none, factor, fill or keys, not '{self.kind.data}'")
        if self.window.value.data < -1:
            raise VerifyException(f"window is -1 (no window) or a number of keys, not {self.window.value.data}")

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(
                f"{self.kind.data}, offset = {self.offset.value.data}, window = {self.window.value.data}, "
                f"masked = {_float_text(str(self.masked.value.data))}{', inverted' if self.is_inverted else ''}"
            )

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            kind = parser.parse_identifier()
            numbers: list[float | int | bool] = []
            for key in ("offset", "window", "masked"):
                parser.parse_punctuation(",")
                parser.parse_keyword(key)
                parser.parse_punctuation("=")
                numbers.append(_parse_scalar(parser))
            inverted = bool(parser.parse_optional_punctuation(","))
            if inverted:
                parser.parse_keyword("inverted")
        offset, window, masked = numbers
        return [
            StringAttr(kind),
            IntegerAttr(int(offset), i64),
            IntegerAttr(int(window), i64),
            FloatAttr(float(masked), f64),
            BoolAttr.from_bool(inverted),
        ]
