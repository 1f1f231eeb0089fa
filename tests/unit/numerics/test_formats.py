"""The table of lampattention.md §2, and codes."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lampc.numerics.encoding import decode, encode
from lampc.numerics.formats import E4M3, FORMATS, FloatFormat, unbounded

CODED = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]


@pytest.mark.parametrize(
    ("name", "layout", "largest", "normal", "subnormal"),
    [  # as lampattention.md §2 prints them
        ("e4m3", (1, 4, 3), 448, 2**-6, 2**-9),
        ("e4m11", (1, 4, 11), 511.75, 2**-6, 2**-17),
        ("ue5m3.shift", (0, 5, 3), 896, 2**-21, 2**-24),
        ("ue5m11.shift", (0, 5, 11), 1023.5, 2**-21, 2**-32),
        ("ue5m3.exp", (0, 5, 3), 1.75, 2**-30, 2**-33),
        ("ue5m11.exp", (0, 5, 11), 1.9990234375, 2**-30, 2**-41),
        ("e8m3", (1, 8, 3), (2 - 2**-3) * 2.0**127, 2.0**-126, 2.0**-129),
        ("e8m11", (1, 8, 11), (2 - 2**-11) * 2.0**127, 2.0**-126, 2.0**-137),
        ("f16", (1, 5, 10), float(np.finfo(np.float16).max), 2**-14, 2**-24),
    ],
)
def test_table(name: str, layout: tuple[int, int, int], largest: float, normal: float, subnormal: float):
    fmt = FORMATS[name]
    assert (int(fmt.signed), fmt.exponent_bits, fmt.mantissa_bits) == layout
    assert (fmt.max_finite, fmt.min_normal, fmt.min_subnormal) == (largest, normal, subnormal)
    assert fmt.bits == sum(layout)


def test_one_is_where_the_paper_puts_it():
    assert encode(1.0, FORMATS["ue5m3.exp"]) == 0b11111_000
    assert encode(1.0, FORMATS["ue5m11.exp"]) == 0b11111_00000000000


def test_unbounded_keeps_sign_and_mantissa():
    names = {name: unbounded(fmt).name for name, fmt in FORMATS.items() if fmt.exponent_bits < 8}
    assert names["e4m3"] == "e8m3" and names["e4m11"] == "e8m11"
    assert names["ue5m3.shift"] == names["ue5m3.exp"] == "ue8m3"
    assert names["ue5m11.shift"] == names["ue5m11.exp"] == "ue8m11"
    assert unbounded(E4M3) == FORMATS["e8m3"] and FORMATS["ue8m3"].max_finite == FORMATS["e8m3"].max_finite


@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_every_code_round_trips(fmt: FloatFormat):
    codes = np.arange(1 << fmt.bits)
    values = decode(codes, fmt)
    finite = np.isfinite(values)
    assert (encode(values[finite], fmt) == codes[finite]).all()
    magnitude = codes & ((1 << (fmt.bits - fmt.signed)) - 1)
    assert (np.abs(values[finite]).max(), magnitude[finite].max()) == (
        fmt.max_finite,
        fmt.nan_code - 1 if fmt.nan == "all-ones" else (fmt.nan_code >> fmt.mantissa_bits << fmt.mantissa_bits) - 1,
    )
    positive = values[: fmt.nan_code][np.isfinite(values[: fmt.nan_code])]
    assert (np.diff(positive) > 0).all() and positive[1] == fmt.min_subnormal
    assert positive[1 << fmt.mantissa_bits] == fmt.min_normal
    assert encode(np.nan, fmt) == fmt.nan_code and math.isnan(decode(fmt.nan_code, fmt))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("e4m3", ml_dtypes.float8_e4m3fn), ("bf16", ml_dtypes.bfloat16), ("f16", np.float16)],
)
def test_codes_agree_with_others(name: str, dtype: Any):
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits).astype(np.uint8 if fmt.bits == 8 else np.uint16)
    theirs = codes.view(dtype).astype(np.float32)
    ours = decode(codes, fmt)
    assert (np.isnan(ours) == np.isnan(theirs)).all()
    known = ~np.isnan(ours)
    assert (ours[known].view(np.int32) == theirs[known].view(np.int32)).all()


@pytest.mark.parametrize(
    ("value", "name"), [(0.3, "e4m3"), (449.0, "e4m3"), (math.inf, "e4m3"), (-1.0, "ue5m3.exp"), (1.0, "e8m11")]
)
def test_encode_refuses(value: float, name: str):
    with pytest.raises(ValueError, match=name):
        encode(value, FORMATS[name])


def test_decode_refuses_wide_codes():
    with pytest.raises(ValueError, match="8 bits"):
        decode(256, E4M3)
