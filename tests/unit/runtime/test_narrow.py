"""bf16 on the host, where onnxruntime has hardly a kernel for it."""

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from lampc.dialects.onnx_attributes import Array
from lampc.frontend.model import load_bytes
from lampc.runtime.narrow import runs_narrow
from tests.models.whole import raised

NARROW = np.dtype(ml_dtypes.bfloat16)


def test_what_onnxruntime_has_kernels_for():
    assert runs_narrow("", "Cast", 13) and runs_narrow("", "Reshape", 14)
    assert not runs_narrow("", "Add", 14) and not runs_narrow("", "Attention", 23)
    assert not runs_narrow("", "NoSuchOperator", 1)


def rounded(values: Array) -> Array:
    return values.astype(np.float32).astype(NARROW)


def test_each_node_rounds_its_result_once():
    """Inputs, weights, arithmetic, layout nodes with kernels of their own, results: all bf16."""
    rng = np.random.default_rng(0)
    x, w = rounded(rng.standard_normal((4, 6))), rounded(rng.standard_normal((6, 8)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "product"], ["double"], name="double"),
        helper.make_node("Transpose", ["double"], ["turned"], name="turned"),
        helper.make_node("Mul", ["turned", "turned"], ["y"], name="y"),
        helper.make_node("Cast", ["y"], ["wide"], name="wide", to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, x.shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.BFLOAT16, (8, 4)),
            helper.make_tensor_value_info("wide", TensorProto.FLOAT, (8, 4)),
        ],
        [helper.make_tensor("w", TensorProto.BFLOAT16, w.shape, w.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    outputs = raised(load_bytes(model.SerializeToString(), "narrow"), {"x": x}).run({"x": x})
    product = rounded(x.astype(np.float32) @ w.astype(np.float32))
    double = rounded(product.astype(np.float32) * 2)
    expected = rounded(double.astype(np.float32) ** 2).T
    assert outputs["y"].dtype == NARROW and outputs["wide"].dtype == np.float32
    np.testing.assert_array_equal(outputs["wide"], outputs["y"].astype(np.float32))
    np.testing.assert_allclose(outputs["wide"], expected.astype(np.float32), rtol=2**-7)
