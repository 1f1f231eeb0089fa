"""
Number formats as data (lampattention.md §2).

A format is a sign bit or none, an exponent field with its bias, and a mantissa field. All have subnormals, none yields
infinities: beyond the largest finite value rounding saturates.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FloatFormat:
    """
    One binary floating-point format.

    name           as written in IR and reports
    signed         whether there is a sign bit; an unsigned format holds no negative value
    exponent_bits  width of the exponent field
    mantissa_bits  explicit mantissa bits m
    bias           value = 2^(field - bias) * 1.mantissa for a field that is not 0
    nan            which codes are kept for NaN: only `all-ones`, `none`, or the whole top exponent (`ieee`)

    Raises ValueError for fields that make no format, and for one with values that FP32 has not: results are float32.
    """

    name: str
    signed: bool
    exponent_bits: int
    mantissa_bits: int
    bias: int
    nan: Literal["all-ones", "none", "ieee"] = "all-ones"

    def __post_init__(self) -> None:
        if self.nan not in ("all-ones", "none", "ieee"):
            raise ValueError(f"format {self.name}: NaN rule {self.nan!r} is none of all-ones, none, ieee")
        if self.exponent_bits < 1 or self.mantissa_bits < 0:
            raise ValueError(f"format {self.name} needs an exponent bit, and no less than 0 mantissa bits")
        if self.nan == "ieee" and self.mantissa_bits == 0:
            raise ValueError(f"format {self.name} has no code for NaN: without mantissa bits it is the infinity's")
        if self.exponent_bits == 1 and (self.nan == "ieee" or (self.nan == "all-ones" and self.mantissa_bits == 0)):
            raise ValueError(f"format {self.name} has no normal value left beside its NaN")
        if self.max_exponent > 127 or self.min_exponent - self.mantissa_bits < -149:
            raise ValueError(f"format {self.name} has values that FP32 has not")

    @property
    def bits(self) -> int:
        """Width of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value, and of the grid below it."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        top = (1 << self.exponent_bits) - 1 - self.bias
        # Without mantissa bits the all-ones code is the whole top exponent.
        return top - 1 if self.nan == "ieee" or (self.nan == "all-ones" and self.mantissa_bits == 0) else top

    @property
    def max_finite(self) -> float:
        """Largest finite value; rounding saturates here."""
        missing = 2 if self.nan == "all-ones" and self.mantissa_bits > 0 else 1
        return (2.0 - missing * 2.0**-self.mantissa_bits) * 2.0**self.max_exponent

    @property
    def min_normal(self) -> float:
        """Smallest normal value."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value, the spacing of the grid up to twice the smallest normal value."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def nan_code(self) -> int:
        """The code `encode` writes for NaN; raises ValueError if the format has none."""
        if self.nan == "none":
            raise ValueError(f"format {self.name} has no NaN")
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    def __str__(self) -> str:
        return self.name


def unbounded(fmt: FloatFormat) -> FloatFormat:
    """
    `fmt` with the exponent range of FP32 and the same mantissa (option `range = unbounded`).

    Below 2^-126 the grid is 2^(-126-m); it saturates at (2-2^-m) * 2^127. lampattention.md "Fine print".
    """
    name = f"{'e' if fmt.signed else 'ue'}8m{fmt.mantissa_bits}"
    return FloatFormat(name, fmt.signed, 8, fmt.mantissa_bits, 127, "ieee")


E4M3 = FloatFormat("e4m3", True, 4, 3, 7)
"""Low accumulator, identical to ONNX and MLIR FLOAT8E4M3FN but for saturation."""
E4M11 = FloatFormat("e4m11", True, 4, 11, 7)
"""High accumulator and running maximum."""
UE5M3_SHIFT = FloatFormat("ue5m3.shift", False, 5, 3, 22)
"""Magnitude of a low shifted logit."""
UE5M11_SHIFT = FloatFormat("ue5m11.shift", False, 5, 11, 22)
"""Magnitude of a high shifted logit."""
UE5M3_EXP = FloatFormat("ue5m3.exp", False, 5, 3, 31)
"""Low exponential; code 11111 000 is 1.0."""
UE5M11_EXP = FloatFormat("ue5m11.exp", False, 5, 11, 31)
"""High exponential."""
E8M3 = unbounded(E4M3)
E8M11 = unbounded(E4M11)
UE8M3 = unbounded(UE5M3_EXP)
UE8M11 = unbounded(UE5M11_EXP)
F16 = FloatFormat("f16", True, 5, 10, 15, "ieee")
BF16 = FloatFormat("bf16", True, 8, 7, 127, "ieee")

FP32_LARGEST = (2.0 - 2.0**-23) * 2.0**127
"""No number of FP32, such as delta, tau and the mask threshold, is larger."""

FORMATS: dict[str, FloatFormat] = {
    f.name: f
    for f in (
        *(E4M3, E4M11, UE5M3_SHIFT, UE5M11_SHIFT, UE5M3_EXP, UE5M11_EXP),
        *(E8M3, E8M11, UE8M3, UE8M11),
        *(F16, BF16),
    )
}
"""Every named format. The last two are storage types of Q, K and V (option `operands`)."""


@dataclass(frozen=True)
class FormatSet:
    """The formats of one attention: accumulators, shifted logits and exponentials, low and high."""

    low: FloatFormat
    high: FloatFormat
    low_shift: FloatFormat
    high_shift: FloatFormat
    low_exp: FloatFormat
    high_exp: FloatFormat


HW = FormatSet(E4M3, E4M11, UE5M3_SHIFT, UE5M11_SHIFT, UE5M3_EXP, UE5M11_EXP)
"""Option `range = hw`."""
UNBOUNDED = FormatSet(E8M3, E8M11, UE8M3, UE8M11, UE8M3, UE8M11)
"""Option `range = unbounded`, what the paper simulates."""
