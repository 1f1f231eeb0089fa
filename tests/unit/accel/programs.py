"""Attention cases compiled to programs of the accelerator and run on the functional engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from lampc.passes.accel_allocate import AccelAllocatePass
from lampc.passes.convert_to_accel import ConvertToAccelPass
from lampc.targets.accel.functional.engine import Engine, FunctionalResult
from lampc.targets.accel.functional.memory import Tensors
from lampc.targets.accel.program import Program
from lampc.targets.accel.run import AccelTarget, run_functional
from tests.unit.numpy_target.compiled import Case

Array = np.ndarray[Any, Any]


def accel_module(case: Case, **options: int) -> ModuleOp:
    """The case as an allocated level-5 module; `options` are those of the conversion."""
    module = case.module()
    ConvertToAccelPass(**options).apply(Context(), module)
    module.verify()
    AccelAllocatePass().apply(Context(), module)
    module.verify()
    return module


def run_case(case: Case) -> tuple[Array, FunctionalResult]:
    """Output of the function, and what its program gave."""
    return AccelTarget(accel_module(case)).run("attention", case.arguments())


def program_of(case: Case, **options: int) -> Program:
    """The object of a case's program."""
    return AccelTarget(accel_module(case, **options)).compiled("attention").program


def run_with(case: Case, make_engine: Callable[[Program], Engine]) -> FunctionalResult:
    """Run a case without mask and sinks on an engine of one's own."""
    program = program_of(case)
    return run_functional(program, case.q, case.k, case.v, engine=make_engine(program))


__all__ = ["Tensors", "accel_module", "program_of", "run_case", "run_with"]
