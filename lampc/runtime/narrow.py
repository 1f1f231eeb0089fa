"""
bf16 on the host: nodes for which onnxruntime's CPU has no bf16 kernel run in FP32 between casts, as it does itself for FP16.

Each result is rounded to bf16 once, so that it is what a kernel with FP32 arithmetic inside would give. Bodies of If, Loop
and Scan are left as they are. Source: docs/onnx.md section 5 and section 1.3 (no bf16 on onnxruntime's CPU).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto, helper

ort: Any = onnxruntime  # untyped


@cache
def _kernels() -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Opset ranges in which onnxruntime's CPU has a kernel with bf16 for an operator, by domain and name."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for kernel in ort.capi.onnxruntime_pybind11_state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and any("tensor(bfloat16)" in t for t in kernel.type_constraints.values()):
            found.setdefault((kernel.domain, kernel.op_name), []).append(kernel.version_range)
    return found


def runs_narrow(domain: str, op_type: str, version: int) -> bool:
    """Whether onnxruntime's CPU has a kernel with bf16 for an operator."""
    ranges = _kernels().get((domain, op_type), [])
    return any(first <= max(version, 1) <= last for first, last in ranges)


def widened(node: onnx.NodeProto, inputs: Sequence[bool], outputs: Sequence[bool]) -> list[onnx.NodeProto]:
    """
    The node in FP32 between casts, in order; `inputs` and `outputs` say which of its values are bf16.

    New names begin with `lampc/`, which no importer writes for the model's own.
    """
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    stem = f"lampc/wide/{next(name for name in node.output if name)}"
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for index, (name, narrow) in enumerate(zip(node.input, inputs, strict=True)):
        if narrow:
            wide.input[index] = f"{stem}/in{index}"
            before.append(helper.make_node("Cast", [name], [wide.input[index]], to=TensorProto.FLOAT))
    for index, (name, narrow) in enumerate(zip(node.output, outputs, strict=True)):
        if narrow:
            wide.output[index] = f"{stem}/out{index}"
            after.append(helper.make_node("Cast", [wide.output[index]], [name], to=TensorProto.BFLOAT16))
    return [*before, wide, *after]
