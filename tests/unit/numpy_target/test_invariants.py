"""The thirteen invariants of docs/lampattention.md section 8, each under its number."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Context as DecimalContext
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.parser import Parser

from lampc.numerics import kernels
from lampc.numerics.encoding import decode
from lampc.numerics.exponentials import exp_table
from lampc.numerics.formats import E4M3, E4M11, UE5M3_EXP, UE5M3_SHIFT, UE5M11_EXP, UE5M11_SHIFT, FloatFormat
from lampc.numerics.statistics import Statistics
from lampc.pipeline import new_context
from lampc.runtime.session import session_options
from lampc.targets.numpy.run import NumpyTarget
from tests.unit.accel.programs import run_case
from tests.unit.numpy_target.compiled import Array, Case, operands, same_bits

Runner: TypeAlias = Callable[[Case], tuple[Array, Statistics]]


def on_the_accelerator(case: Case) -> tuple[Array, Statistics]:
    """Output and statistics of the case's program."""
    output, result = run_case(case)
    return output, result.statistics


both_targets = pytest.mark.parametrize("run", [Case.run, on_the_accelerator], ids=["numpy", "accel"])
SEEDS = st.integers(0, 2**32 - 1)
SMALL: dict[str, Any] = {"bq": 4, "bk": 4, "nk": 4}


def small(seed: int, *, size: float = 2.0, **more: Any) -> Case:
    """Two heads of 12 queries and 40 keys in tiles of four sub-blocks of four keys, the last one ragged."""
    q, k, v = operands(seed, queries=12, keys=40)
    causal = {"causal": True, "causal_offset": 28}
    return replace(Case(np.float32(size) * q, k, v, attention=causal, tiling=SMALL), **more)


@both_targets
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, taus=st.lists(st.floats(0, 2, width=32), min_size=2, max_size=3))
def test_01_what_stage_1_recomputes_does_not_depend_on_tau(run: Runner, seed: int, taus: list[float]):
    counts = [run(small(seed, precision={"tau": tau}))[1].stage1 for tau in taus]
    assert all((count == counts[0]).all() for count in counts)


@both_targets
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, tau=st.floats(1, 2.0**100, width=32))
def test_02_tau_of_one_or_more_never_triggers_stage_2(run: Runner, seed: int, tau: float):
    output, counted = run(small(seed, precision={"tau": tau}))
    assert (counted.final == counted.stage1).all()
    assert same_bits(output, run(small(seed, precision={"stage2": False}))[0])


@both_targets
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_03_tau_zero_recomputes_all_that_could_disturb(run: Runner, seed: int):
    """Logits are small and every row sees several keys, so each live exponential is some 0 < p < 1."""
    case = small(seed, size=0.5, precision={"tau": 0.0})
    every = run(small(seed, size=0.5, precision={"policy": "high"}))[1]
    assert (run(case)[1].final == every.final).all()


@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_04_equal_formats_make_delta_and_tau_irrelevant(seed: int):
    outputs: list[Array] = []
    for delta, tau in ((0.0, 0.0), (2.0**-8, 0.5), (0.75, 1.0)):
        case = small(seed, precision={"delta": delta, "tau": tau})
        text = str(case.module())
        for low, high in (("<e4m3>", "<e4m11>"), ("<ue5m3,", "<ue5m11,")):
            assert low in text
            text = text.replace(low, high)
        module = Parser(new_context(), text).parse_module()
        module.verify()
        outputs.append(NumpyTarget(module).run("attention", case.arguments()).output)
    assert same_bits(outputs[0], outputs[1]) and same_bits(outputs[0], outputs[2])


@both_targets
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, delta=st.floats(0, 1, width=32))
def test_05_the_first_live_tile_recomputes(run: Runner, seed: int, delta: float):
    """With keys for one tile only, every live tile of a warp is its first."""
    q, k, v = operands(seed, queries=12, keys=16)
    for order in ("forward", "reverse"):
        _, counted = run(Case(q, k, v, tiling={**SMALL, "kv_order": order}, precision={"delta": delta, "tau": 1.0}))
        assert counted.stage1[:, 0].sum() == 0 and counted.stage1.sum() == 6


@both_targets
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS, layout=st.sampled_from(["safe", "compact"]))
def test_06_dead_tiles_and_padded_rows_change_nothing(run: Runner, seed: int, layout: Literal["safe", "compact"]):
    q, k, v = operands(seed, queries=12, keys=40)
    case = Case(q, k, v, tiling=SMALL, layout=layout)
    output, counted = run(case)
    padding = np.full((1, 2, 40, 8), np.nan, np.float32)
    mask = np.zeros((14, 80), np.bool_)
    mask[:12, :40] = True
    longer = replace(
        case,
        q=np.concatenate([q, padding[:, :, :2]], axis=2),
        k=np.concatenate([k, padding], axis=2),
        v=np.concatenate([v, np.full_like(padding, np.inf)], axis=2),
        mask=mask,
    )
    more, more_counted = run(longer)
    assert same_bits(more[:, :, :12], output) and (more[:, :, 12:] == 0).all()
    assert (more_counted.final == counted.final).all() and (more_counted.stage1 == counted.stage1).all()
    assert more_counted.dead_tiles.sum() > counted.dead_tiles.sum()


@settings(max_examples=30, deadline=None)
@given(
    seed=SEEDS, nk=st.integers(1, 6), tau=st.sampled_from([0.0, 0.05, 0.25, 0.5, 0.9]), tie=st.sampled_from(["slack", "first"])
)
def test_07_the_chosen_set_is_what_brute_force_finds(seed: int, nk: int, tau: float, tie: Any):
    rng = np.random.default_rng(seed)
    xi, omegah = rng.random((1, nk, 3), np.float32), (rng.random((1, 3)) * 2 + 0.1).astype(np.float32)
    free = int(rng.integers(1 << nk))
    chosen = int(kernels.keep_low(xi, omegah, np.array([free], np.uint16), tau, tie)[0])
    ranks: dict[int, tuple[int, float, int]] = {}
    for kept in range(1 << nk):
        total = np.zeros(3, np.float32)
        for theta in range(nk):
            if kept >> theta & 1:
                total = total + xi[0, theta]
        square = omegah[0] * omegah[0]
        if kept & ~free == 0 and (total <= np.float32(tau) * square).all():
            slack = float((total / square).max()) if tie == "slack" else 0.0
            ranks[kept] = (-kept.bit_count(), slack, free & ~kept)
    assert chosen == min(ranks, key=lambda kept: ranks[kept])


@pytest.mark.parametrize(("shift", "result"), [(UE5M3_SHIFT, UE5M3_EXP), (UE5M11_SHIFT, UE5M11_EXP)], ids=["8 bit", "16 bit"])
def test_08_the_tables_hold_the_correctly_rounded_exponential(shift: FloatFormat, result: FloatFormat):
    """Every code: twice the distance of the exact value from the table's is at most the gap around it."""
    context = DecimalContext(prec=40, Emin=-(10**6), Emax=10**6)
    values = decode(exp_table(shift, result), result).astype(np.float64)
    shifts = decode(np.arange(1 << shift.bits), shift).tolist()
    grid = decode(np.arange(result.nan_code), result).astype(np.float64)
    at = np.searchsorted(grid, values[: shift.nan_code])
    below, above = grid[np.maximum(at - 1, 0)], grid[np.minimum(at + 1, len(grid) - 1)]
    for s, low, value, high in zip(shifts, below.tolist(), values.tolist(), above.tolist(), strict=False):
        exact = context.exp(Decimal(-s))
        lower, upper = Decimal((low + value) / 2), Decimal((value + high) / 2)
        assert (lower <= exact or value == 0) and exact <= upper
    assert np.isnan(values[shift.nan_code])


@pytest.mark.parametrize("delta", [0.0, 2.0**-8, 0.5])
@pytest.mark.parametrize("shift", ["truncate", "exact"])
def test_09_shifted_logits_that_stage_1_keeps_are_never_negative(delta: float, shift: str):
    """Every low score against every maximum: where stage 1 finds it safe, m - y is not below zero (E not above 1)."""
    y = decode(np.arange(256), E4M3)
    y = np.unique(y[np.isfinite(y)])
    maxima = decode(np.arange(1 << 16), E4M11)
    maxima = maxima[np.isfinite(maxima)]
    for score in y:
        column = np.full((len(maxima), 1), score, np.float32)
        unsafe = kernels.is_unsafe(column, maxima[:, None], np.ones_like(column, np.bool_), delta)
        kept = maxima[~unsafe]
        m = kernels.truncate(kept) if shift == "truncate" else kept
        assert (m - score >= 0).all()


@both_targets
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, poison=st.sampled_from([np.nan, np.inf, -np.inf]), layout=st.sampled_from(["safe", "compact"]))
def test_10_a_nan_stays_in_its_row(run: Runner, seed: int, poison: float, layout: Literal["safe", "compact"]):
    clean = small(seed, layout=layout)
    q = clean.q.copy()
    q[0, 1, 5, 2] = poison * 0  # NaN from either sign
    output, _ = run(replace(clean, q=q))
    exact, _ = run(replace(clean, precision=None, layout="safe"))
    others = [row for row in range(12) if row != 5]
    assert np.isnan(output[0, 1, 5]).all()
    assert np.isfinite(output[0, 0]).all() and np.isfinite(output[0, 1, others]).all()
    low, _ = run(replace(clean, precision={"policy": "low"}, layout="safe"))
    error, bound = (np.linalg.norm((x - exact)[0, 1, others]) for x in (output, low))
    assert error <= max(bound, 0.2 * np.linalg.norm(exact[0, 1, others]))
    first_warps = (slice(None), slice(None), slice(0, 4))  # another warp: not even a bit changes
    assert same_bits(np.ascontiguousarray(output[first_warps]), np.ascontiguousarray(run(clean)[0][first_warps]))


@both_targets
@pytest.mark.parametrize("layout", ["safe", "compact"])
@pytest.mark.parametrize("precision", [{}, {"policy": "low"}, {"policy": "high"}, None], ids=["lamp", "low", "high", "fp32"])
def test_11_grouped_heads_are_repeated_ones(run: Runner, precision: dict[str, Any] | None, layout: Literal["safe", "compact"]):
    q, k, v = operands(11, batch=2, heads=6, kv_heads=2, queries=20, keys=70)
    grouped = Case(q, k, v, precision=precision, layout=layout)
    repeated = replace(grouped, k=k.repeat(3, axis=1), v=v.repeat(3, axis=1))
    (output, counted), (expected, expected_counted) = run(grouped), run(repeated)
    assert same_bits(output, expected) and counted == expected_counted


@both_targets
def test_12_fp32_is_onnxruntime_to_fp32_tolerance(run: Runner):
    q, k, v = operands(12, batch=2, heads=3, kv_heads=3, queries=40, keys=70, d=32, dv=16)
    case = Case(q, k, v, attention={"scale": 32**-0.5}, precision=None)
    make: Any = onnx.helper
    value: Any = make.make_tensor_value_info
    nodes = [
        make.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        make.make_node("MatMul", ["q", "kt"], ["s"]),
        make.make_node("Mul", ["s", "scale"], ["y"]),
        make.make_node("Softmax", ["y"], ["p"], axis=-1),
        make.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    graph = make.make_graph(
        nodes,
        "attention",
        [value(name, onnx.TensorProto.FLOAT, array.shape) for name, array in (("q", q), ("k", k), ("v", v))],
        [value("o", onnx.TensorProto.FLOAT, (2, 3, 40, 16))],
        [make.make_tensor("scale", onnx.TensorProto.FLOAT, [], [32**-0.5])],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 21)], ir_version=10)
    session: Any = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"q": q, "k": k, "v": v})
    output, _ = run(case)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=2e-6)
    assert np.abs(run(replace(case, precision={"policy": "low"}))[0] - expected).max() > 1e-3


MACHINE: dict[str, dict[str, Any] | None] = {
    "lamp": {},
    "low": {"policy": "low"},
    "high": {"policy": "high"},
    "fp32": None,
    "no stage 1": {"stage1": False},
    "no stage 2": {"stage2": False},
    "tau": {"tau": 0.125, "delta": 0.0},
    "first": {"tie": "first", "tau": 0.0625},
    "blocks": {"accumulate_block": 4},
    "overflow": {"overflow": "nan"},
}


@pytest.mark.parametrize("order", ["forward", "reverse", "sink-first"])
@pytest.mark.parametrize("name", MACHINE)
def test_13_both_targets_agree(name: str, order: str):
    q, k, v = operands(13, heads=4, queries=20, keys=70, dv=5)
    sinks = np.array([0.5, -1, 3, 0], np.float32)
    mask = (np.random.default_rng(13).standard_normal((20, 70)) * 2).astype(np.float32)
    mask[:, 5:9] = -np.inf
    attention = {"causal": True, "causal_offset": 50, "softcap": 20.0}
    tiling = {"bq": 8, "bk": 8, "nk": 3, "kv_order": order}
    case = Case(q, k, v, mask=mask, sinks=sinks, attention=attention, tiling=tiling, precision=MACHINE[name])
    output, statistics = on_the_accelerator(case)
    expected, counted = case.run()
    assert same_bits(output, expected)
    assert statistics == counted
