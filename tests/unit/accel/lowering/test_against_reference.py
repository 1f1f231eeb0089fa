"""Programs of the accelerator against the scalar reference and the numpy target: every bit of the output, every count."""

from typing import Any, Literal

import numpy as np
import pytest

from lampc.numerics import engine as kernel_engine
from tests.unit.accel.programs import run_case
from tests.unit.numpy_target.compiled import Case, operands, same_bits
from tests.unit.numpy_target.test_against_reference import CASES, LAYOUTS, PRECISIONS

# The others are no programs of the machine; numpy_target/test_option_grid.py sees to them.
OF_THE_MACHINE = [name for name in PRECISIONS if name not in ("paper-sim", "rtz", "stochastic")]


def agrees(case: Case, *, scalar: bool = False) -> None:
    output, result = run_case(case)
    expected, counted = case.expected() if scalar else case.run()
    assert same_bits(output, expected)
    assert result.statistics == counted


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", OF_THE_MACHINE)
@pytest.mark.parametrize("name", CASES)
def test_numpy_target(name: str, precision: str, layout: Literal["safe", "compact"]):
    case = CASES[name]()
    case.precision = PRECISIONS[precision]
    case.layout = layout
    agrees(case)


@pytest.mark.parametrize("name", ["causal", "grouped heads", "float mask, causal", "soft cap", "saturating", "tiles"])
def test_scalar_reference(name: str):
    agrees(CASES[name](), scalar=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", OF_THE_MACHINE)
def test_scalar_reference_under_every_policy(precision: str, layout: Literal["safe", "compact"]):
    case = Case(*operands(21, heads=1, kv_heads=1, queries=36, keys=90), attention={"causal": True, "causal_offset": 54})
    case.precision = PRECISIONS[precision]
    case.layout = layout
    agrees(case, scalar=True)


def special_values(seed: int, **shape: int) -> tuple[Any, Any, Any]:
    """Operands with NaN, infinities, zeros of both signs and values that overflow."""
    rng = np.random.default_rng(seed)
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-40], np.float32)
    q, k, v = operands(seed, **shape)
    for array in (q, k, v):
        flat = array.reshape(-1)
        where = rng.choice(flat.size, 5, replace=False)
        flat[where] = rng.choice(values, 5)
    return q, k, v


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["lamp", "low", "high", "fp32", "no stage 1", "tau 0"])
@pytest.mark.parametrize("seed", range(8))
def test_values_that_are_not_finite(seed: int, precision: str, layout: Literal["safe", "compact"]):
    case = Case(*special_values(seed, queries=24, keys=130), attention={"causal": seed % 2 == 0, "causal_offset": 100})
    case.precision = PRECISIONS[precision]
    case.layout = layout
    agrees(case)


@pytest.mark.parametrize("delta", [0.0, 0.5, 1.5, 40.0])
def test_margins_beyond_one_are_not_monotone_and_still_exact(delta: float):
    """With delta > 1 a higher maximum can make a safe sub-block unsafe; it was safe when its turn came."""
    case = Case(*operands(31, heads=3, kv_heads=1, queries=40, keys=150))
    case.precision = {"delta": delta}
    agrees(case)


def test_a_nan_that_stage_1_meets_late_does_not_reopen_what_was_safe():
    q, k, v = operands(32, heads=1, kv_heads=1, queries=16, keys=64)
    k[0, 0, :16] *= 4  # sub-block 0 sets a maximum that sub-block 1 is safe from
    k[0, 0, 40, 0] = np.nan  # sub-block 2 is recomputed, and makes every row's maximum NaN
    case = Case(np.abs(q), np.abs(k), v)
    _, result = run_case(case)
    agrees(case)
    assert result.statistics.stage1[0].tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("bq", "bk", "nk", "nq"),
    [(1, 1, 1, 1), (3, 5, 2, 2), (16, 8, 8, 1), (32, 16, 4, 2), (64, 2, 7, 1), (5, 24, 3, 4), (8, 2, 16, 1)],
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["lamp", "fp32"])
def test_tile_sizes(bq: int, bk: int, nk: int, nq: int, precision: str, layout: Literal["safe", "compact"]):
    case = Case(
        *operands(41, heads=2, kv_heads=1, queries=33, keys=47, d=12, dv=20),
        attention={"causal": True, "causal_offset": 14, "window": 30},
        tiling={"bq": bq, "bk": bk, "nk": nk, "nq": nq},
        layout=layout,
    )
    case.precision = PRECISIONS[precision]
    agrees(case)


def test_the_numpy_kernels_give_the_same_bits():
    case = Case(*special_values(51, queries=20, keys=70), attention={"softcap": 5.0, "scale": 3.0})
    chosen = kernel_engine.engine()
    try:
        kernel_engine.set_engine("numpy")
        plain, counted = run_case(case)
    finally:
        kernel_engine.set_engine(chosen)
    output, result = run_case(case)
    assert same_bits(output, plain)
    assert result.statistics == counted.statistics
    assert np.array_equal(result.log.values, counted.log.values)


def test_operand_types_are_rounded_on_the_host():
    q, k, v = operands(52)
    narrow, _ = run_case(Case(q, k, v, tiling={"operands": "bf16"}))
    rounded = [(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (q, k, v)]
    case = Case(rounded[0], rounded[1], rounded[2])
    same, _ = run_case(Case(case.q, case.k, case.v, tiling={"operands": "bf16"}))
    plain, _ = run_case(case)
    assert same_bits(same, plain)
    assert same_bits(narrow, Case(q, k, v, tiling={"operands": "bf16"}).run()[0])
