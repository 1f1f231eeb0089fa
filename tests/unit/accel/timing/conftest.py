"""One compiled attention and its decisions, for all tests here."""

from dataclasses import dataclass
from typing import Any

import pytest

from lampc.targets.accel.functional.engine import FunctionalResult
from lampc.targets.accel.machine import Machine, load_machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.run import run_functional
from tests.unit.accel.programs import program_of
from tests.unit.numpy_target.compiled import Case, operands


@dataclass(frozen=True)
class Sample:
    """A program and what its functional run gave."""

    program: Program
    run: FunctionalResult


NO_OPTIONS: dict[str, Any] = {}
SMALL = {"heads": 4, "kv_heads": 2, "queries": 150, "keys": 150, "d": 16, "dv": 16}


def sample_of(shape: dict[str, int] = SMALL, precision: dict[str, Any] | None = NO_OPTIONS) -> Sample:
    """Causal attention, ragged if SMALL, in warps of 16 rows and blocks of 4; precision None is FP32."""
    q, k, v = operands(3, **shape)
    tiling = {"nq": 4} if shape is SMALL else {}
    case = Case(q, k, v, attention={"causal": True, "scale": shape["d"] ** -0.5}, tiling=tiling, precision=precision)
    program = program_of(case)
    return Sample(program, run_functional(program, q, k, v))


@pytest.fixture(scope="session")
def sample() -> Sample:
    return sample_of()


@pytest.fixture(scope="session")
def packed() -> Machine:
    return load_machine("packed")
