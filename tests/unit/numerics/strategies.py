"""Number formats of any layout, drawn by Hypothesis."""

from typing import Literal, TypeAlias

from hypothesis import strategies as st

from lampc.numerics.formats import FloatFormat, FormatSet

Nan: TypeAlias = Literal["all-ones", "none", "ieee"]
NANS: tuple[Nan, ...] = ("all-ones", "none", "ieee")


EDGES = (
    FloatFormat("FP32's bottom, a low top", True, 7, 3, 127),
    FloatFormat("a binade below FP32", True, 8, 7, 128),
    FloatFormat("below FP32's normal numbers", True, 8, 3, 140),
    FloatFormat("up to FP32's top", True, 7, 4, 0),
    FloatFormat("FP32 without a bit", True, 8, 22, 127, "ieee"),
    FloatFormat("FP32", True, 8, 23, 127, "ieee"),
    FloatFormat("powers of two", True, 5, 0, 15),
    FloatFormat("no NaN", True, 4, 3, 7, "none"),
    FloatFormat("few", True, 2, 1, 1),
)
"""Accumulators where the kernels change how they round."""


def _bias(least: int, most: int) -> st.SearchStrategy[int]:
    """FP32's own and its neighbours as often as all others: there the kernels change how they round."""
    edges = [bias for bias in (126, 127, 128) if least <= bias <= most]
    return st.sampled_from([least, most, *edges, *edges]) | st.integers(least, most)


@st.composite
def any_format(draw: st.DrawFn, signed: bool | None = None) -> FloatFormat:
    """Any format of at most 16 bits whose values FP32 has."""
    nan: Nan = draw(st.sampled_from(NANS))
    signed = draw(st.booleans()) if signed is None else signed
    exponent_bits = draw(st.integers(2, 8))
    mantissa_bits = draw(st.integers(1 if nan == "ieee" else 0, 15 - exponent_bits))
    top = (1 << exponent_bits) - 1
    least, most = max(top - 127, -20), min(149 + 1 - mantissa_bits, top + 20)
    return FloatFormat("any", signed, exponent_bits, mantissa_bits, draw(_bias(least, max(least, most))), nan)


@st.composite
def any_formats(draw: st.DrawFn) -> FormatSet:
    """Six formats of any layout, each with a NaN; accumulators are signed."""

    def one(name: str, signed: bool) -> FloatFormat:
        exponent_bits, mantissa_bits = draw(st.integers(2, 8)), draw(st.integers(1, 11))
        bias = draw(_bias((1 << exponent_bits) - 128, min(149 - mantissa_bits, (1 << exponent_bits) + 9)))
        return FloatFormat(name, signed, exponent_bits, mantissa_bits, bias, draw(st.sampled_from(["all-ones", "ieee"])))

    return FormatSet(
        low=one("low", True),
        high=one("high", True),
        low_shift=one("low shift", draw(st.booleans())),
        high_shift=one("high shift", draw(st.booleans())),
        low_exp=one("low exp", draw(st.booleans())),
        high_exp=one("high exp", draw(st.booleans())),
    )
