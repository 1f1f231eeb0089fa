"""Run a whole model: host segments in onnxruntime, attentions through a callable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, NameLoc, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue

from lampc.dialects.onnx import ConstantOp, InitializerOp, SegmentOp, ValuesAttr, is_tensor, numpy_dtype
from lampc.dialects.onnx_attributes import Array
from lampc.errors import CompileError, InputError, printable
from lampc.runtime.session import HostModel, SegmentSession, Weights

Attention = Callable[[str, int, str, list[Array]], Array]
"""
`attention(function, call, node, operands) -> result`: the private function's name, the number of the call in execution
order, the ONNX node's name, and the function's arguments (before any `attn.rearrange` in it).
"""


@dataclass(frozen=True)
class Call:
    """One attention call: its number in execution order, the function it calls and the ONNX node it came from."""

    index: int
    function: str
    node: str


class HostRuntime:
    """
    A compiled model (level 2) ready to run.

    model    the loaded ONNX model the module was imported from
    module   after `lamp-outline-host`
    threads  worker threads of each onnxruntime session, None for all cores

    Raises ModelError if onnxruntime cannot load a segment, CompileError if the module is not at level 2.
    """

    def __init__(self, model: HostModel, module: ModuleOp, *, threads: int | None = None):
        self.functions = {f.sym_name.data: f for f in module.body.ops if isinstance(f, FuncOp)}
        if "main" not in self.functions:
            raise CompileError("the module has no function 'main'")
        self.main = self.functions["main"]
        self.weights = Weights(model.constants)
        originals = {name: node for node in model.proto.graph.node for name in node.output if name}
        self.sessions: dict[SegmentOp, SegmentSession] = {}
        self.calls: list[Call] = []
        self._call_of: dict[CallOp, Call] = {}
        segments = [op for op in self.main.body.block.ops if isinstance(op, SegmentOp)]
        # onnxruntime holds a segment's weights several times while it loads: the largest first, when little else is held.
        for op in sorted(segments, key=lambda op: -_weight(self.functions[op.callee.string_value()])):
            function = self.functions[op.callee.string_value()]
            self.sessions[op] = SegmentSession(model.proto, originals, self.weights, op, function, threads)
        for op in self.main.body.block.ops:
            if isinstance(op, CallOp):
                call = Call(len(self.calls), op.callee.string_value(), node_name(op))
                self.calls.append(call)
                self._call_of[op] = call
            elif not isinstance(op, ConstantOp | InitializerOp | ReturnOp | SegmentOp):
                raise CompileError(f"'{op.name}' in main; run lamp-outline-host first")
        self.input_names = _names(self.main.arg_attrs, [a.name_hint for a in self.main.body.block.args])
        self.fixed = _fixed_values(self.main.arg_attrs, len(self.input_names))
        last = self.main.body.block.last_op
        assert isinstance(last, ReturnOp)
        self.returned = list(last.operands)
        self.output_names = _names(self.main.res_attrs, [v.name_hint for v in self.returned])
        self._frees = self._last_uses()

    def run(self, inputs: Mapping[str, Array], attention: Attention) -> dict[str, Any]:
        """
        The graph outputs by name for the graph inputs by name.

        Raises InputError for missing inputs or wrong types and shapes, ModelError if onnxruntime fails.
        """
        values: dict[SSAValue, Any] = {}
        for name, arg, fixed in zip(self.input_names, self.main.body.block.args, self.fixed, strict=True):
            values[arg] = checked_input(name, arg, inputs, fixed)
        for op in self.main.body.block.ops:
            if isinstance(op, ConstantOp):
                values[op.result] = op.to_numpy()
            elif isinstance(op, InitializerOp):
                values[op.result] = self.weights.arrays[op.tensor_name.data]
            elif isinstance(op, SegmentOp):
                results = self.sessions[op].run([values[v] for v in op.operands])
                values.update(zip(op.results, results, strict=True))
            elif isinstance(op, CallOp):
                call = self._call_of[op]
                operands = [np.asarray(values[v]) for v in op.operands]
                values[op.results[0]] = _checked_result(call, op, attention(call.function, call.index, call.node, operands))
            for value in self._frees.get(op, ()):
                del values[value]
        return {name: values[value] for name, value in zip(self.output_names, self.returned, strict=True)}

    def _last_uses(self) -> dict[object, list[SSAValue]]:
        """After which op a value is no longer needed."""
        last: dict[SSAValue, object] = {}
        for op in self.main.body.block.ops:
            last.update(dict.fromkeys((*op.operands, *op.results), op))
        frees: dict[object, list[SSAValue]] = {}
        for value, op in last.items():
            if value not in self.returned:
                frees.setdefault(op, []).append(value)
        return frees


def _weight(function: FuncOp) -> int:
    """Elements of the constants of a segment."""
    return sum(prod(op.result.type.get_shape()) for op in function.body.block.ops if isinstance(op, InitializerOp))


def node_name(op: CallOp | SegmentOp) -> str:
    """The ONNX node a call came from."""
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""


def _names(attributes: ArrayAttr[DictionaryAttr] | None, hints: Sequence[str | None]) -> list[str]:
    """ONNX names from argument or result attributes, name hints where there are none."""
    names: list[str] = []
    for index, hint in enumerate(hints):
        name = attributes.data[index].data.get("onnx.name") if attributes is not None else None
        names.append(name.data if isinstance(name, StringAttr) else hint or f"{index}")
    return names


def _fixed_values(attributes: ArrayAttr[DictionaryAttr] | None, count: int) -> list[Array | None]:
    """The values that inputs must have because the branch they choose was compiled (argument attribute `onnx.value`)."""
    values = [each.data.get("onnx.value") for each in attributes.data] if attributes is not None else [None] * count
    return [value.to_numpy() if isinstance(value, ValuesAttr) else None for value in values]


def checked_input(name: str, arg: SSAValue, inputs: Mapping[str, Array], fixed: Array | None = None) -> Any:
    """
    The array given for a graph input.

    Raises InputError if it is missing, or if type, shape or value differ from what the model was compiled for.
    """
    where = f"input '{printable(name)}'"
    if name not in inputs:
        raise InputError("no array is given for it", where=where)
    array = inputs[name]
    type_ = arg.type
    if not is_tensor(type_):
        return array
    dtype = numpy_dtype(type_.element_type)
    if array.dtype != dtype:
        raise InputError(f"it is {array.dtype}, the model takes {dtype}", where=where)
    shape = type_.get_shape()
    if len(shape) != array.ndim or any(n not in (-1, m) for n, m in zip(shape, array.shape, strict=True)):
        raise InputError(f"it has shape {array.shape}, the model was compiled for {shape}", where=where)
    if fixed is not None and not np.array_equal(array, fixed):
        raise InputError(f"it is {array.item()}, the model was compiled for {fixed.item()}; compile it again", where=where)
    return array


def _checked_result(call: Call, op: CallOp, result: Array) -> Array:
    type_ = op.results[0].type
    assert is_tensor(type_)
    if result.shape != type_.get_shape() or result.dtype != numpy_dtype(type_.element_type):
        raise CompileError(
            f"attention '{printable(call.node)}' gave {result.dtype} {result.shape}, expected {type_}", code="E-RESULT"
        )
    return result
