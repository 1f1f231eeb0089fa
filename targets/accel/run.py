"""
The accelerator target: compile attention functions, execute programs for their values, price them in cycles.

Source: docs/accelerator.md section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.interpreters.func import FuncFunctions

from lampc.dialects.accel import ProgramOp
from lampc.dialects.accel_launch import LaunchOp
from lampc.errors import CompileError, InputError
from lampc.numerics.arrays import F32, Array, Bools
from lampc.targets.accel.compile import compile_program
from lampc.targets.accel.fit import fit_program
from lampc.targets.accel.functional.engine import Engine, FunctionalResult
from lampc.targets.accel.functional.memory import Tensors
from lampc.targets.accel.program import Program
from lampc.targets.numpy.attn_functions import AttnFunctions
from lampc.targets.numpy.lanes import Run


@dataclass(frozen=True)
class CompiledProgram:
    """A program, and what the planner changed so that it fits the machine, one sentence each."""

    program: Program
    changes: tuple[str, ...] = ()


def compile_programs(
    module: ModuleOp, *, register_bytes: int | None = None, sram_bytes: int | None = None
) -> dict[str, CompiledProgram]:
    """
    The object of every `accel.program` of an allocated module (level 5), by the program's name.

    With the sizes of a core's register file and SRAM, programs are made to fit them; the module then says what is compiled.

    Raises CompileError for a program that is not allocated or fits no way, InputError if its words make no program.
    """
    compiled: dict[str, CompiledProgram] = {}
    for op in [op for op in module.walk() if isinstance(op, ProgramOp)]:
        program, changes = compile_program(op), ()
        if register_bytes is not None and sram_bytes is not None:
            changes = fit_program(op, program, register_bytes=register_bytes, sram_bytes=sram_bytes)
            if changes:
                program = compile_program(op)
        compiled[op.sym_name.data] = CompiledProgram(program, changes)
    return compiled


class AccelTarget:
    """
    Runs the attention functions of a level-5 module: what stands around `accel.launch` on the host, the program on the
    functional engine.
    """

    def __init__(self, module: ModuleOp, *, register_bytes: int | None = None, sram_bytes: int | None = None):
        self.programs = compile_programs(module, register_bytes=register_bytes, sram_bytes=sram_bytes)
        self._launches = {
            function.sym_name.data: [launch for launch in function.walk() if isinstance(launch, LaunchOp)]
            for function in module.body.ops
            if isinstance(function, FuncOp)
        }
        self._accel = _AccelFunctions(self.programs)
        self._interpreter = Interpreter(module)
        self._interpreter.register_implementations(FuncFunctions())
        self._interpreter.register_implementations(AttnFunctions(Run()))
        self._interpreter.register_implementations(self._accel)

    def compiled(self, function: str) -> CompiledProgram:
        """The program that a function launches. Raises CompileError if it does not launch one."""
        launches = self._launches.get(function, [])
        if len(launches) != 1:
            raise CompileError(f"function {function} launches {len(launches)} programs of the accelerator, not one")
        return self.programs[launches[0].program.root_reference.data]

    def run(self, function: str, arguments: Sequence[Array]) -> tuple[Array, FunctionalResult]:
        """
        Run one attention function.

        arguments  arrays of the function's argument types, floats of any width (computed from FP32 values)
        returns    what the function returns, and the result of its program

        Raises InputError as `run_functional` does.
        """
        self.compiled(function)
        prepared = [
            argument if argument.dtype == np.bool_ else np.ascontiguousarray(argument, np.float32) for argument in arguments
        ]
        (output,) = self._interpreter.call_op(function, tuple(prepared))
        assert self._accel.last is not None
        return output, self._accel.last


@register_impls
class _AccelFunctions(InterpreterFunctions):
    def __init__(self, programs: dict[str, CompiledProgram]):
        super().__init__()
        self._programs = programs
        self._engines: dict[str, Engine] = {}
        self.last: FunctionalResult | None = None

    @impl(LaunchOp)
    def run_launch(self, interpreter: Interpreter, op: LaunchOp, args: PythonValues) -> PythonValues:
        name = op.program.root_reference.data
        program = self._programs[name].program
        if name not in self._engines:
            self._engines[name] = Engine(program)
        tensors = dict(zip((name.data for name in op.names), args, strict=True))
        mask = tensors.pop("mask", None)
        self.last = run_functional(program, **tensors, mask_live=mask, engine=self._engines[name])
        return (self.last.output,)


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
    flat: dict[str, F32] = {}
    for name, array, shape in (
        ("q", q, (cfg.batch, cfg.hq, cfg.lq, cfg.d)),
        ("k", k, (cfg.batch, cfg.hkv, cfg.lk, cfg.d)),
        ("v", v, (cfg.batch, cfg.hkv, cfg.lk, cfg.dv)),
    ):
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
