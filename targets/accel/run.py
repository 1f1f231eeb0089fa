"""
The accelerator target: compile attention functions, execute programs for their values, price them in cycles.

Source: docs/accelerator.md section 4.
"""

from collections.abc import Iterator

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from lampc.dialects.accel import ProgramOp
from lampc.errors import InputError
from lampc.numerics.arrays import F32, Array, Bools
from lampc.targets.accel.compile import compile_program
from lampc.targets.accel.functional.engine import Engine, FunctionalResult
from lampc.targets.accel.functional.memory import Tensors
from lampc.targets.accel.program import Program


def programs(module: ModuleOp) -> Iterator[tuple[str, Program]]:
    """Name and object of every allocated `accel.program` of a module. Raises CompileError or InputError as `compile` does."""
    for op in module.walk():
        if isinstance(op, ProgramOp):
            yield op.sym_name.data, compile_program(op)


def run_functional(
    program: Program,
    q: Array,
    k: Array,
    v: Array,
    mask_live: Bools | None = None,
    bias: F32 | None = None,
    sinks: F32 | None = None,
    *,
    engine: Engine | None = None,
) -> FunctionalResult:
    """
    Execute a program for its values.

    q, k, v     [batch, heads, rows, size], already rounded to the program's operand type, any float type
    mask_live   bool, bias float32 [B|1, H|1, Lq|1, Lk|1]; without one everything is live, nothing is added
    sinks       float32 [query heads]
    engine      an engine of the same program, made before

    Raises InputError for arrays that do not fit the program, and for a program that goes wrong.
    """
    cfg = program.cfg
    given = {"q": q, "k": k, "v": v}
    flat: dict[str, F32] = {}
    for name, array in given.items():
        shape = next(d.shape for d in program.descriptors if d.tensor == name)
        if array.shape != shape:
            raise InputError(f"program takes {name} of shape {list(shape)}, got {list(array.shape)}")
        flat[name] = np.ascontiguousarray(array, np.float32).reshape(-1, *shape[2:])
    for name, array, has in (("mask", mask_live, cfg.has_mask), ("bias", bias, cfg.has_bias), ("sinks", sinks, cfg.has_sinks)):
        if array is not None and not has:
            raise InputError(f"the program reads no {name}, but one is given")
    if cfg.has_sinks and (sinks is None or sinks.shape != (cfg.hq,)):
        raise InputError(f"the program takes {cfg.hq} sinks, one for each query head")
    tensors = Tensors(
        **flat,
        mask=np.ones((1, 1, 1, 1), np.bool_) if mask_live is None else _broadcastable(program, "mask", mask_live),
        bias=np.zeros((1, 1, 1, 1), np.float32) if bias is None else _broadcastable(program, "bias", bias),
        sinks=np.zeros(cfg.hq, np.float32) if sinks is None else np.ascontiguousarray(sinks, np.float32),
        output=np.zeros((cfg.heads, cfg.lq, cfg.dv), np.float32),
    )
    return (engine or Engine(program)).run(tensors)


def _broadcastable(program: Program, name: str, array: Array) -> Array:
    cfg = program.cfg
    full = (cfg.batch, cfg.hq, cfg.lq, cfg.lk)
    if array.ndim != 4 or any(size not in (1, whole) for size, whole in zip(array.shape, full, strict=True)):
        raise InputError(f"{name} of shape {list(array.shape)} does not broadcast to {list(full)}")
    return np.ascontiguousarray(array)
