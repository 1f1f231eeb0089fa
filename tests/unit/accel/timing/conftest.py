"""One compiled attention and its decisions, for all tests here."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from lampc.targets.accel.functional.engine import FunctionalResult
from lampc.targets.accel.machine import Machine, load_machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.run import run_functional
from tests.unit.accel.programs import program_of
from tests.unit.numpy_target.compiled import Array, Case, operands


@dataclass(frozen=True)
class Sample:
    """A program and what its functional run gave."""

    program: Program
    run: FunctionalResult


NO_OPTIONS: dict[str, Any] = {}
SMALL = {"heads": 4, "kv_heads": 2, "queries": 150, "keys": 150, "d": 16, "dv": 16}


def sample_of(
    shape: dict[str, int] = SMALL,
    precision: dict[str, Any] | None = NO_OPTIONS,
    mask: Array | None = None,
    sinks: Array | None = None,
    attention: dict[str, Any] | None = None,
    tiling: dict[str, Any] | None = None,
    layout: Literal["safe", "compact"] = "safe",
) -> Sample:
    """
    An attention, causal unless `attention` or a mask is given; ragged, in blocks of 4 warps, unless `shape` or `tiling` is.

    precision None is FP32.
    """
    q, k, v = operands(3, **shape)
    if attention is None:
        attention = {} if mask is not None else {"causal": True}
    if tiling is None:
        tiling = {"nq": 4} if shape is SMALL else {}
    attention = {"scale": shape["d"] ** -0.5, **attention}
    case = Case(q, k, v, mask=mask, sinks=sinks, attention=attention, tiling=tiling, precision=precision, layout=layout)
    program = program_of(case)
    extra: dict[str, Any] = {} if sinks is None else {"sinks": sinks}
    if mask is not None:
        table = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        extra["mask_live" if mask.dtype == np.bool_ else "bias"] = table
    return Sample(program, run_functional(program, q, k, v, **extra))


@pytest.fixture(scope="session")
def sample() -> Sample:
    return sample_of()


@pytest.fixture(scope="session")
def packed() -> Machine:
    return load_machine("packed")
