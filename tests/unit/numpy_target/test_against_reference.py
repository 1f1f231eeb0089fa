"""The numpy target against the scalar reference: every bit of the output and every count."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from xdsl.parser import Parser

from lampc.dialects.lamp_types import FloatType
from lampc.errors import CompileError
from lampc.numerics import reference, threads
from lampc.numerics.formats import HW, FloatFormat, FormatSet
from lampc.passes.convert_to_accel import ConvertToAccelPass
from lampc.pipeline import new_context
from lampc.targets.numpy.run import NumpyTarget
from tests.unit.numpy_target.compiled import Case, operands, same_bits

PAPER_SIM: dict[str, Any] = {"range": "unbounded", "shift": "exact", "exp_above_one": "keep"}


def _masked(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    mask = rng.standard_normal((1, 2, 20, 40)).astype(np.float32)
    mask[rng.random(mask.shape) < 0.3] = np.finfo(np.float32).min
    mask[0, 1, 3] = np.finfo(np.float32).min  # a row with nothing above the threshold keeps its values
    mask[0, 0, 5] = -np.inf  # a row with nothing live gives zeros
    return mask


def _boolean(seed: int) -> Any:
    live = np.random.default_rng(seed).random((20, 40)) < 0.6
    live[7] = False
    live[:, 16:32] = False
    return live


CASES: dict[str, Callable[[], Case]] = {
    "plain": lambda: Case(*operands(1)),
    "causal": lambda: Case(*operands(2, queries=40), attention={"causal": True}),
    "causal, offset": lambda: Case(*operands(3), attention={"causal": True, "causal_offset": 17}),
    "negative offset": lambda: Case(*operands(4), attention={"causal": True, "causal_offset": -7}),
    "window": lambda: Case(*operands(5, queries=40), attention={"causal": True, "window": 9}),
    "grouped heads": lambda: Case(*operands(6, batch=2, heads=4, kv_heads=2, queries=5)),
    "value size": lambda: Case(*operands(7, d=16, dv=5)),
    "one query": lambda: Case(*operands(8, queries=1), attention={"causal": True, "causal_offset": 39}),
    "float mask": lambda: Case(*operands(9), mask=_masked(9)),
    "float mask, causal": lambda: Case(*operands(10), mask=_masked(10), attention={"causal": True, "causal_offset": 17}),
    "boolean mask": lambda: Case(*operands(11), mask=_boolean(11)),
    "finite masked value": lambda: Case(*operands(12), mask=_boolean(12), attention={"masked_value": -3.4e38}),
    "soft cap": lambda: Case(*operands(13), attention={"softcap": 3.0, "scale": 2.0}),
    "sinks": lambda: Case(*operands(14), sinks=np.array([1.3, -np.inf], np.float32)),
    "saturating": lambda: Case(*operands(15, queries=6, d=64), attention={"scale": 60.0}),
    "subnormal": lambda: Case(*operands(16), attention={"scale": 2.0**-8}),
    "tiles": lambda: Case(*operands(17), tiling={"bq": 8, "nq": 2, "bk": 4, "nk": 3}),
    "kv order": lambda: Case(*operands(18, keys=100, queries=8, heads=1, kv_heads=1), tiling={"kv_order": "sink-first"}),
    "eight sub-blocks": lambda: Case(*operands(30, keys=50), tiling={"bk": 4, "nk": 8, "bq": 8}),
    "sixteen sub-blocks": lambda: Case(*operands(32, keys=50, queries=8), tiling={"bk": 2, "nk": 16, "bq": 4}),
    "one sub-block": lambda: Case(*operands(31), tiling={"nk": 1}),
    "reverse": lambda: Case(*operands(19, keys=100, queries=8, heads=1, kv_heads=1), tiling={"kv_order": "reverse"}),
}

PRECISIONS: dict[str, dict[str, Any] | None] = {
    "lamp": {},
    "paper-sim": PAPER_SIM,
    "low": {"policy": "low"},
    "high": {"policy": "high"},
    "fp32": None,
    "no stage 1": {"stage1": False},
    "no stage 2": {"stage2": False},
    "tau 0": {"tau": 0.0},
    "tie first": {"tie": "first", "tau": 0.125},
    "blocked": {"accumulate_block": 3},
    "rtz": {"rounding": "rtz"},
    "stochastic": {"rounding": "stochastic", "seed": 7},
    "overflow to NaN": {"overflow": "nan"},
}


LAYOUTS: tuple[Literal["safe"], Literal["compact"]] = ("safe", "compact")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_same_bits_and_counts(name: str, precision: str, layout: Literal["safe", "compact"]):
    case = CASES[name]()
    case.precision = PRECISIONS[precision]
    case.layout = layout
    output, statistics = case.run()
    expected, counted = case.expected()
    assert same_bits(output, expected)
    assert statistics.to_json() == counted.to_json()


def test_a_nan_stays_in_its_row():
    q, k, v = operands(20)
    q[0, 1, 5, 2] = np.nan
    case = Case(q, k, v)
    output, statistics = case.run()
    expected, counted = case.expected()
    assert same_bits(output, expected)
    assert statistics == counted
    assert np.isnan(output[0, 1, 5]).all()
    assert np.isfinite(np.delete(output[0, 1], 5, axis=0)).all()


def test_the_kernels_engine_does_not_matter():
    from lampc.numerics import kernels

    case = Case(*operands(21), attention={"causal": True, "causal_offset": 17})
    chosen = kernels.engine()
    try:
        kernels.set_engine("numpy")
        plain, counted = case.run()
    finally:
        kernels.set_engine(chosen)
    output, statistics = case.run()
    assert same_bits(output, plain)
    assert statistics == counted


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["lamp", "paper-sim", "stochastic", "fp32"])
def test_the_number_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch, precision: str, layout: Any):
    """Not even where rounding is random: a random word belongs to a place, not to a turn. Every kernel is shared out."""
    case = Case(*operands(23, heads=6, kv_heads=2, keys=80), mask=_boolean(23).repeat(2, 1), attention={"softcap": 9.0})
    case.precision, case.layout = PRECISIONS[precision], layout
    monkeypatch.setattr(threads, "_MIN_SHARE_NS", 1.0)
    shares: list[int] = []

    def counted(count: int) -> Any:
        shares.append(count)
        return helpers(count)

    helpers: Any = threads._helpers  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(threads, "_helpers", counted)
    runs: list[tuple[Any, Any]] = []
    try:
        for count in (1, 2, 3):
            threads.set_threads(count)
            runs.append(case.run())
            assert bool(shares) == (count > 1)
    finally:
        threads.set_threads(None)
    for output, statistics in runs[1:]:
        assert same_bits(output, runs[0][0]) and statistics == runs[0][1]


OWN = FormatSet(
    low=FloatFormat("e3m4", True, 3, 4, 2, "ieee"),
    high=FloatFormat("e6m9", True, 6, 9, 31),
    low_shift=FloatFormat("ue4m4", False, 4, 4, 5),
    high_shift=FloatFormat("e5m10", True, 5, 10, 20, "none"),
    low_exp=FloatFormat("ue4m4", False, 4, 4, 15, "none"),
    high_exp=FloatFormat("e5m10", True, 5, 10, 30),
)


@pytest.mark.parametrize("overflow", ["saturate", "nan"])
def test_formats_of_ones_own(overflow: Any):
    """The IR states the formats; the numpy target runs any, the machine has its own."""
    q, k, v = operands(24, heads=1, kv_heads=1, keys=80)
    case = Case(8 * q, k, v, attention={"softcap": 50.0}, precision={"overflow": overflow})
    text = str(case.module())
    for old, new in zip(vars(HW).values(), vars(OWN).values(), strict=True):
        assert str(FloatType.of(old)) in text
        text = text.replace(str(FloatType.of(old)), str(FloatType.of(new)))
    module = Parser(new_context(), text).parse_module()
    module.verify()
    result = NumpyTarget(module).run("attention", case.arguments())
    head = reference.Head(case.q[0, 0], k[0, 0], v[0, 0], softcap=50.0)
    expected, counted = reference.attention(head, reference.Options(formats=OWN, overflow=overflow))
    assert same_bits(result.output[0, 0], expected)
    assert result.statistics == counted
    assert counted.saturated["e3m4"].sum() > 0
    with pytest.raises(CompileError, match="format e3m4 is not a program of the machine, which has e4m3 there"):
        ConvertToAccelPass().apply(new_context(), module)


def test_operand_types_round_first():
    q, k, v = operands(22)
    rounded = [(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (q, k, v)]
    output, _ = Case(rounded[0], rounded[1], rounded[2], tiling={"operands": "bf16"}).run()
    same, _ = Case(rounded[0], rounded[1], rounded[2]).run()
    assert same_bits(output, same)
    other, _ = Case(q, k, v, tiling={"operands": "e4m3"}).run()
    assert not same_bits(other, Case(q, k, v).run()[0])
