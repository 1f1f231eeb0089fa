"""The numpy target: interpret an attention function at level 3 (FP32) or 4 (mixed precision)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, i1
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import Interpreter
from xdsl.interpreters.func import FuncFunctions
from xdsl.ir import SSAValue

from lampc.errors import InputError, UsageError
from lampc.numerics.statistics import Statistics
from lampc.targets.numpy.attn_functions import AttnFunctions
from lampc.targets.numpy.lamp_functions import LampFunctions
from lampc.targets.numpy.lanes import F32, Array, Run


@dataclass(frozen=True)
class NumpyResult:
    """Output of one attention, float32 [batch, query heads, queries, value size], and what was counted."""

    output: F32
    statistics: Statistics


class NumpyTarget:
    """Runs the attention functions of one module with the kernels of `lampc.numerics`."""

    def __init__(self, module: ModuleOp):
        self._run = Run()
        self._inputs = {
            op.sym_name.data: [SSAValue.get(value, type=TensorType).type for value in op.args]
            for op in module.body.ops
            if isinstance(op, FuncOp)
            if all(isinstance(value.type, TensorType) for value in op.args)
        }
        self._interpreter = Interpreter(module)
        self._interpreter.register_implementations(FuncFunctions())
        self._interpreter.register_implementations(AttnFunctions(self._run))
        self._interpreter.register_implementations(LampFunctions(self._run))

    def run(self, function: str, arguments: Sequence[Array]) -> NumpyResult:
        """
        Run one attention function.

        arguments  arrays of the function's argument types, floats of any width (computed from FP32 values)
        returns    output and statistics

        Raises InputError for arrays that do not fit the function, and UsageError for a function that is not there.
        """
        self._check(function, arguments)
        prepared = [
            argument if argument.dtype == np.bool_ else np.ascontiguousarray(argument, np.float32) for argument in arguments
        ]
        self._run.statistics = None
        (output,) = self._interpreter.call_op(function, tuple(prepared))
        statistics = self._run.statistics
        if statistics is None:
            raise ValueError(f"function {function} holds no attn.lanes")
        return NumpyResult(output, statistics)

    def _check(self, function: str, arguments: Sequence[Array]) -> None:
        if function not in self._inputs:
            raise UsageError(f"the module has no function '{function}'; it has {', '.join(self._inputs)}")
        expected = self._inputs[function]
        if len(arguments) != len(expected):
            raise InputError(f"function {function} takes {len(expected)} arrays, got {len(arguments)}")
        for number, (array, type) in enumerate(zip(arguments, expected, strict=True)):
            if array.shape != type.get_shape():
                wanted, got = ("x".join(map(str, shape)) or "scalar" for shape in (type.get_shape(), array.shape))
                raise InputError(f"argument {number} of function {function} has shape {got}; it takes {wanted}")
            if (array.dtype == np.bool_) != (type.element_type == i1):
                raise InputError(f"argument {number} of function {function} is {array.dtype}; it takes {type.element_type}")
