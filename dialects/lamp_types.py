"""Types of the `lamp` dialect: number formats, sub-block masks and orders."""

from collections.abc import Sequence
from typing import Any, Self, cast

from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from lampc.numerics.formats import FORMATS, FloatFormat
from lampc.numerics.sets import MAX_SUB_BLOCKS


def _parse_layout(name: str) -> tuple[bool, int, int] | None:
    """(signed, exponent bits, mantissa bits) of a name such as `ue5m3`."""
    signed = not name.startswith("u")
    exponent, separator, mantissa = name.removeprefix("u").removeprefix("e").partition("m")
    if not (separator and exponent.isdecimal() and mantissa.isdecimal()):
        return None
    return signed, int(exponent), int(mantissa)


@irdl_attr_definition
class FloatType(ParametrizedAttribute, TypeAttribute):
    """
    A number format: `!lamp.float<e4m3>`, `!lamp.float<ue5m3, bias = 31>`, `!lamp.float<e5m2, nan = ieee>`,
    `!lamp.float<e8m3, unbounded>`.

    `u` marks an unsigned format; the bias is 2^(e-1)-1 unless given. All have subnormals and no infinities. `nan` says which
    codes are NaN: `all_ones` (the default), `none`, or the whole top exponent (`ieee`). `unbounded` is short for e8 with the
    bias of FP32 and `nan = ieee`: FP32's exponent range. Source: docs/lampattention.md section 2.
    """

    name = "lamp.float"

    is_signed: IntAttr = param_def()
    exponent_bits: IntAttr = param_def()
    mantissa_bits: IntAttr = param_def()
    bias: IntAttr = param_def()
    nan: StringAttr = param_def()

    @classmethod
    def of(cls, format: FloatFormat) -> Self:
        """The type of a number format."""
        return cls(
            IntAttr(int(format.signed)),
            IntAttr(format.exponent_bits),
            IntAttr(format.mantissa_bits),
            IntAttr(format.bias),
            StringAttr(format.nan),
        )

    @property
    def format(self) -> FloatFormat:
        """The number format; one of `lampc.numerics.formats.FORMATS` where it is listed there."""
        made = FloatFormat(
            self._layout(),
            bool(self.is_signed.data),
            self.exponent_bits.data,
            self.mantissa_bits.data,
            self.bias.data,
            cast(Any, self.nan.data),
        )
        for known in FORMATS.values():
            if _same(known, made):
                return known
        return made

    def _layout(self) -> str:
        return f"{'' if self.is_signed.data else 'u'}e{self.exponent_bits.data}m{self.mantissa_bits.data}"

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            layout = _parse_layout(parser.parse_identifier())
            if layout is None:
                parser.raise_error("expected a format such as e4m3 or ue5m11")
            signed, exponent, mantissa = layout
            bias, nan = 2 ** (exponent - 1) - 1, "all-ones"
            while parser.parse_optional_punctuation(",") is not None:
                if parser.parse_optional_keyword("unbounded") is not None:
                    nan = "ieee"
                elif parser.parse_optional_keyword("nan") is not None:
                    parser.parse_punctuation("=")
                    nan = parser.parse_identifier().replace("_", "-")
                else:
                    parser.parse_keyword("bias")
                    parser.parse_punctuation("=")
                    bias = parser.parse_integer(allow_boolean=False)
        return [*(IntAttr(value) for value in (int(signed), exponent, mantissa, bias)), StringAttr(nan)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self._layout())
            if self.bias.data != 2 ** (self.exponent_bits.data - 1) - 1:
                printer.print_string(f", bias = {self.bias.data}")
            if self.nan.data == "ieee" and (self.exponent_bits.data, self.bias.data) == (8, 127):
                printer.print_string(", unbounded")
            elif self.nan.data != "all-ones":
                printer.print_string(f", nan = {self.nan.data}")

    def verify(self) -> None:
        if not (1 <= self.exponent_bits.data <= 8 and 0 <= self.mantissa_bits.data <= 23):
            raise VerifyException("a format has 1 to 8 exponent bits and at most 23 mantissa bits")
        try:
            _ = self.format
        except ValueError as error:
            raise VerifyException(str(error)) from error


def _same(a: FloatFormat, b: FloatFormat) -> bool:
    fields = ("signed", "exponent_bits", "mantissa_bits", "bias", "nan")
    return all(getattr(a, field) == getattr(b, field) for field in fields)


@irdl_attr_definition
class MaskType(ParametrizedAttribute, TypeAttribute):
    """A set of a tile's sub-blocks: `!lamp.mask<4>`."""

    name = "lamp.mask"
    sub_blocks: IntAttr = param_def()

    @classmethod
    def of(cls, sub_blocks: int) -> Self:
        """The type for tiles of so many sub-blocks."""
        return cls(IntAttr(sub_blocks))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_sub_blocks(parser)

    def print_parameters(self, printer: Printer) -> None:
        _print_sub_blocks(printer, self.sub_blocks)

    def verify(self) -> None:
        _verify_sub_blocks(self.sub_blocks)


@irdl_attr_definition
class OrderType(ParametrizedAttribute, TypeAttribute):
    """A permutation of a tile's sub-blocks: `!lamp.order<4>`."""

    name = "lamp.order"
    sub_blocks: IntAttr = param_def()

    @classmethod
    def of(cls, sub_blocks: int) -> Self:
        """The type for tiles of so many sub-blocks."""
        return cls(IntAttr(sub_blocks))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_sub_blocks(parser)

    def print_parameters(self, printer: Printer) -> None:
        _print_sub_blocks(printer, self.sub_blocks)

    def verify(self) -> None:
        _verify_sub_blocks(self.sub_blocks)


def _parse_sub_blocks(parser: AttrParser) -> Sequence[Attribute]:
    with parser.in_angle_brackets():
        return [IntAttr(parser.parse_integer(allow_boolean=False))]


def _print_sub_blocks(printer: Printer, count: IntAttr) -> None:
    with printer.in_angle_brackets():
        printer.print_string(str(count.data))


def _verify_sub_blocks(count: IntAttr) -> None:
    if not 1 <= count.data <= MAX_SUB_BLOCKS:
        raise VerifyException(f"a key tile has 1 to {MAX_SUB_BLOCKS} sub-blocks (stage 2 enumerates every mask of them)")
