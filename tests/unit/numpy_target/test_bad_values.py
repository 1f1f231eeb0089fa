"""Values that make no sense are refused with the name of the option or array; odd ones that do make sense have their result."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from xdsl.utils.exceptions import VerifyException

from lampc.errors import InputError, UsageError
from lampc.targets.numpy.run import NumpyTarget
from tests.unit.numpy_target.compiled import Array, Case, operands, same_bits

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": -1.0}, "option tau=-1.0"),
        ({"tau": NAN}, "option tau=nan"),
        ({"tau": INF}, "option tau=inf"),
        ({"tau": 1e39}, r"option tau=1e\+39"),
        ({"delta": NAN}, "option delta=nan"),
        ({"delta": INF}, "option delta=inf"),
        ({"delta": -0.5}, "option delta=-0.5"),
        ({"accumulate_block": 0}, "option accumulate-block=0"),
        ({"seed": -1}, "option seed=-1"),
        ({"seed": 1 << 64}, "option seed=18446744073709551616"),
        ({"exp_above_one": "keep"}, "option exp-above-one=keep needs range=unbounded"),
    ],
)
def test_options_of_mixed_precision(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        Case(*operands(1), precision=options).module()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nk": 17}, "option nk=17: must be from 1 to 16 .*2\\^nk"),
        ({"nk": 0}, "option nk=0"),
        ({"bq": 0}, "option bq=0"),
        ({"bq": 65}, "option bq=65"),
        ({"bk": 0}, "option bk=0"),
        ({"bk": 257}, "option bk=257"),
        ({"mask_threshold": NAN}, "option mask-threshold=nan"),
        ({"mask_threshold": -INF}, "option mask-threshold=-inf"),
        ({"nq": 65}, "option nq=65"),
    ],
)
def test_options_of_tiling(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        Case(*operands(1), tiling=options).module()


@pytest.mark.parametrize(
    "attention",
    [{"scale": NAN}, {"scale": INF}, {"scale": 0.0}, {"softcap": NAN}, {"softcap": -1.0}, {"window": 0}],
    ids=str,
)
def test_attributes_of_the_attention(attention: dict[str, Any]):
    with pytest.raises(VerifyException, match=next(iter(attention))):
        Case(*operands(1), attention=attention).module()


@pytest.mark.parametrize("layout", ["safe", "compact"])
@pytest.mark.parametrize("precision", [{}, {"policy": "high"}, None], ids=["lamp", "high", "fp32"])
@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}, {"keys": 0}, {"dv": 0}], ids=str)
def test_empty_dimensions(empty: dict[str, int], precision: Any, layout: Any):
    """Nothing to attend to gives zeros; nothing to compute gives an empty array."""
    case = Case(*operands(1, **empty), precision=precision, layout=layout)
    output, counted = case.run()
    assert output.shape == (*case.q.shape[:3], case.v.shape[3]) and (output == 0).all()
    assert counted.final.sum() == 0 or "dv" in empty


def test_heads_of_size_zero_attend_evenly():
    output, _ = Case(*operands(1, d=0, keys=4), precision=None).run()
    _, _, v = operands(1, d=0, keys=4)
    np.testing.assert_allclose(output, np.broadcast_to(v.mean(axis=2, keepdims=True), output.shape), rtol=1e-6)


def test_blocks_longer_than_a_head_are_one_block():
    long, whole = (Case(*operands(1), precision={"accumulate_block": size}).run()[0] for size in (1000, 8))
    assert same_bits(long, whole)


@pytest.mark.parametrize(
    "sizes", [{"bq": 3, "bk": 5, "nk": 3}, {"bq": 64, "bk": 256, "nk": 1}, {"bq": 1, "nq": 1, "bk": 1}], ids=str
)
@pytest.mark.parametrize("layout", ["safe", "compact"])
def test_tiles_that_do_not_divide_the_sequence(sizes: dict[str, int], layout: Any):
    case = Case(*operands(1, heads=1, kv_heads=1), tiling=sizes, layout=layout)
    (output, counted), (expected, expected_counted) = case.run(), case.expected()
    assert same_bits(output, expected) and counted == expected_counted


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", ["safe", "compact"])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_what_is_not_finite_follows_the_reference(which: str, layout: Any, poison: float):
    case = Case(*operands(2, heads=1, kv_heads=1), layout=layout)
    array = getattr(case, which).copy()
    array[0, 0, 7, 3] = poison
    case = replace(case, **{which: array})
    for precision in ({}, {"policy": "high"}, {"policy": "low"}):
        case.precision = precision
        (output, counted), (expected, expected_counted) = case.run(), case.expected()
        assert same_bits(output, expected) and counted == expected_counted


ARGUMENTS: dict[str, tuple[Callable[[Array, Array, Array], list[Array]], str]] = {
    "too few": (lambda q, k, v: [q, k], "takes 3 arrays, got 2"),
    "shape": (lambda q, k, v: [q, k[:, :, :9], v], "argument 1 .* has shape 1x2x9x8; it takes 1x2x40x8"),
    "rank": (lambda q, k, v: [q[0], k, v], "argument 0 .* has shape 2x20x8; it takes 1x2x20x8"),
    "type": (lambda q, k, v: [q, k, v > 0], "argument 2 .* is bool; it takes f32"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arrays_that_do_not_fit(name: str):
    make, message = ARGUMENTS[name]
    case = Case(*operands(1))
    with pytest.raises(InputError, match=message):
        NumpyTarget(case.module()).run("attention", make(case.q, case.k, case.v))


def test_a_function_that_is_not_there():
    case = Case(*operands(1))
    with pytest.raises(UsageError, match="no function 'attn'; it has attention"):
        NumpyTarget(case.module()).run("attn", case.arguments())
