"""
Every option against every other: scalar reference, both forms of the kernels, numpy target and accelerator give one result.

The cases in every run cover all pairs of values; `make test-exhaustive` takes many more at random.
"""

from typing import Any

import numpy as np
import pytest

from lampc.errors import CompileError
from lampc.numerics import kernels
from tests.unit.accel.programs import run_case
from tests.unit.numpy_target.compiled import Array, Case, operands, same_bits
from tests.unit.numpy_target.pairs import Choice, all_pairs, some

SHAPES = {"prefill": (9, 21), "self": (14, 14), "decode": (1, 30), "cross": (11, 5)}
TILINGS = [(4, 2, 4, 4), (8, 1, 3, 16), (16, 8, 16, 4), (3, 2, 5, 2), (5, 1, 8, 1)]

FACTORS: dict[str, list[Any]] = {
    "shape": list(SHAPES),
    "d": [8, 40, 64, 80, 96, 128, 256],
    "dv": ["d", 5],
    "heads": [(1, 1), (4, 2), (3, 1)],
    "mask": ["none", "causal", "causal window", "window", "boolean", "float", "masked", "finite", "padding", "causal boolean"],
    "softcap": [None, 6.0],
    "sinks": [False, True],
    "scale": [1.0, 2.0**-7, 20.0],
    "policy": ["lamp", "lamp", "lamp", "low", "high", "fp32"],
    "stage1": [True, False],
    "stage2": [True, False],
    "tie": ["slack", "first"],
    "delta": [2.0**-8, 0.0, 0.5],
    "tau": [0.5, 0.0625, 0.0, 1.0],
    "accumulate_block": [1, 3, 1000],
    "overflow": ["saturate", "nan"],
    "kv_order": ["forward", "reverse", "sink-first"],
    "layout": ["safe", "compact"],
    "tiling": TILINGS,
    "operands": ["model", "bf16", "f16", "e4m3"],
    "mask_threshold": [-1e4, -0.5],
}
# What the machine is not: its program is refused, the numpy target runs it.
ELSEWHERE: dict[str, list[Any]] = {
    "rounding": ["rne", "rtz", "stochastic"],
    "arithmetic": [("hw", "exact", "clamp"), ("unbounded", "exact", "keep"), ("unbounded", "truncate", "clamp")],
}


def _mask(kind: str, rng: np.random.Generator, heads: int, queries: int, keys: int) -> Array | None:
    shape = (1, heads, queries, keys)
    match kind:
        case "boolean" | "causal boolean" | "finite":
            return rng.random(shape) < 0.7
        case "padding":
            return np.arange(keys) < keys - 3
        case "float":
            return rng.standard_normal((queries, keys)).astype(np.float32)
        case "masked":
            table = rng.choice(np.array([0, 0, 1, -np.inf, -1e9, np.finfo(np.float32).min], np.float32), shape)
            table[0, 0, -1] = -1e9  # a row with nothing above the threshold keeps its values
            return table
        case _:
            return None


def case_of(choice: Choice, seed: int) -> Case:
    """Seeded operands and the options of a choice."""
    rng: np.random.Generator = np.random.default_rng(seed)
    heads: int = choice["heads"][0]
    kv_heads: int = choice["heads"][1]
    queries, keys = SHAPES[choice["shape"]]
    dv = choice["d"] if choice["dv"] == "d" else choice["dv"]
    q, k, v = operands(seed, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, d=choice["d"], dv=dv)
    kind: str = choice["mask"]
    attention: dict[str, Any] = {"scale": choice["scale"] * 2 * choice["d"] ** -0.5}
    if choice["softcap"] is not None:
        attention["softcap"] = choice["softcap"]
    if "causal" in kind:
        attention |= {"causal": True, "causal_offset": keys - queries}  # with a past, or fewer keys than queries
    if "window" in kind:
        attention["window"] = 6
    if kind == "finite":
        attention["masked_value"] = -1e9
    bq, nq, bk, nk = choice["tiling"]
    names = ("policy", "stage1", "stage2", "tie", "delta", "tau", "accumulate_block", "overflow")
    precision: dict[str, Any] = {name: choice[name] for name in names}
    if "rounding" in choice:
        precision |= {"rounding": choice["rounding"], "seed": seed}
        precision |= dict(zip(("range", "shift", "exp_above_one"), choice["arithmetic"], strict=True))
    return Case(
        q,
        k,
        v,
        mask=_mask(kind, rng, heads, queries, keys),
        sinks=rng.standard_normal(heads, np.float32) if choice["sinks"] else None,
        attention=attention,
        tiling={
            **{"bq": bq, "nq": nq, "bk": bk, "nk": nk, "kv_order": choice["kv_order"]},
            **{"operands": choice["operands"], "mask_threshold": choice["mask_threshold"]},
        },
        precision=None if choice["policy"] == "fp32" else precision,
        layout=choice["layout"],
    )


def check_numpy_target(case: Case) -> None:
    """Both forms of the kernels give what the scalar reference gives."""
    expected, counted = case.expected()
    chosen = kernels.engine()
    try:
        for engine in ("numba", "numpy"):
            kernels.set_engine(engine)
            output, statistics = case.run()
            assert same_bits(output, expected)
            assert statistics == counted
    finally:
        kernels.set_engine(chosen)


def check_everywhere(case: Case) -> None:
    """And so does the accelerator."""
    check_numpy_target(case)
    expected, counted = case.run()
    output, result = run_case(case)
    assert same_bits(output, expected)
    assert result.statistics == counted


def check_elsewhere(choice: Choice, seed: int) -> None:
    """The accelerator refuses in one line what is no program of the machine."""
    case = case_of(choice, seed)
    if choice["policy"] == "high" and choice["rounding"] == "rne" and choice["arithmetic"][0] == "hw":
        check_everywhere(case)  # nothing is shifted in 8 bits, however
        return
    check_numpy_target(case)
    with pytest.raises(CompileError, match="is not a program of the machine") as error:
        run_case(case)
    assert "\n" not in str(error.value)


PAIRS = all_pairs(FACTORS)
FEW = {name: FACTORS[name][:3] for name in FACTORS} | {"d": [8, 24], "policy": ["lamp", "low", "high"], **ELSEWHERE}
OTHER_PAIRS = all_pairs(FEW, seed=1)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_all_pairs_of_options(number: int):
    check_everywhere(case_of(PAIRS[number], number))


@pytest.mark.parametrize("number", range(len(OTHER_PAIRS)))
def test_all_pairs_with_what_the_machine_has_not(number: int):
    check_elsewhere(OTHER_PAIRS[number], number)


def test_pairs_are_all_there():
    factors = {"a": [1, 2, 3], "b": "xy", "c": [True, False]}
    cases = all_pairs(factors)
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        assert {(case[first], case[second]) for case in cases} == {(x, y) for x in factors[first] for y in factors[second]}
    assert len(cases) < 12


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(400))
def test_options_at_random(number: int):
    check_everywhere(case_of(some(FACTORS, 1, number)[0], number))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(200))
def test_options_at_random_with_what_the_machine_has_not(number: int):
    check_elsewhere(some({**FACTORS, "policy": ["lamp", "low", "high"], **ELSEWHERE}, 1, number)[0], number)
