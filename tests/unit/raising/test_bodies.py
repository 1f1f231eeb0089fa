"""Attention in the body of an If, Loop or Scan stays with the host, is reported with the bodies' names and computed as ever."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from lampc.dialects.onnx_attributes import Array
from lampc.frontend.model import load_bytes
from tests.models.whole import Raised, raised

SHAPE = (1, 2, 5, 4)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: tuple[int, ...] | None = SHAPE, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def attend(query: str, result: str, *, decomposed: bool = False) -> list[NodeProto]:
    """Attention of q, and k and v of the main graph."""
    if not decomposed:
        return [helper.make_node("Attention", [query, "k", "v"], [result], name=f"attend_{result}")]
    return [
        helper.make_node("Transpose", ["k"], [f"{result}_kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", [query, f"{result}_kt"], [f"{result}_s"]),
        helper.make_node("Softmax", [f"{result}_s"], [f"{result}_p"], name=f"attend_{result}", axis=-1),
        helper.make_node("MatMul", [f"{result}_p", "v"], [result]),
    ]


def choice(result: str, then: GraphProto, condition: str = "c") -> NodeProto:
    other = helper.make_graph([helper.make_node("Identity", ["q"], [f"{result}_e"])], "e", [], [value(f"{result}_e", None)])
    branches: dict[str, Any] = {"then_branch": then, "else_branch": other}
    return helper.make_node("If", [condition], [result], name=f"choose_{result}", **branches)


def branch(nodes: list[NodeProto], result: str) -> GraphProto:
    return helper.make_graph(nodes, "t", [], [value(result, None)])


def loop_body() -> GraphProto:
    nodes = [*attend("state", "next"), helper.make_node("Identity", ["go"], ["go_on"])]
    inputs = [value("i", (), INT64), value("go", (), BOOL), value("state")]
    return helper.make_graph(nodes, "body", inputs, [value("go_on", (), BOOL), value("next")])


def scan_body() -> GraphProto:
    nodes = [helper.make_node("Identity", ["state"], ["carried"]), *attend("each", "out")]
    return helper.make_graph(nodes, "body", [value("state"), value("each")], [value("carried"), value("out")])


def run(nodes: list[NodeProto], inputs: dict[str, Array]) -> tuple[Raised, dict[str, Array]]:
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in "qkv"} | inputs
    given = [value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in inputs.items()]
    graph = helper.make_graph(nodes, "bodies", given, [value("y", None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return raised(load_bytes(model.SerializeToString(), "bodies"), inputs), inputs


def check(result: Raised, inputs: dict[str, Array], reported: str, reason: str) -> None:
    """Reported once with this reason, not counted as raised, and computed by the host."""
    assert not result.attentions
    assert list(result.rejected) == [reported]
    assert result.rejected[reported].startswith(reason)
    (difference,) = result.differences(inputs)
    assert difference.within(0.0) and np.isfinite(difference.cosine)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_if(taken: bool, decomposed: bool):
    nodes = [choice("y", branch(attend("q", "t", decomposed=decomposed), "t"))]
    result, inputs = run(nodes, {"c": np.array(taken)})
    reason = "E-UNSUPPORTED(If): attention found in branch then_branch of node 'choose_y', which the host runs; to compile"
    check(result, inputs, "attend_t", reason)
    assert result.rejected["attend_t"].endswith("--value c=true")


def test_condition_that_no_single_input_chooses():
    nodes = [helper.make_node("ReduceMax", ["q"], ["top"], keepdims=0), helper.make_node("Greater", ["top", "top"], ["c"])]
    result, inputs = run([*nodes, choice("y", branch(attend("q", "t"), "t"))], {})
    check(result, inputs, "attend_t", "E-UNSUPPORTED(If)")
    assert result.rejected["attend_t"].endswith("of node 'choose_y', which the host runs")


def test_if_in_if_names_both():
    inner = choice("n", branch(attend("q", "t"), "t"), "d")
    result, inputs = run([choice("y", branch([inner], "n"))], {"c": np.array(True), "d": np.array(True)})
    where = "branch then_branch of node 'choose_n' in branch then_branch of node 'choose_y'"
    check(result, inputs, "attend_t", f"E-UNSUPPORTED(If): attention found in {where}")


def test_loop():
    node = helper.make_node("Loop", ["n", "", "q"], ["y"], name="repeat", body=loop_body())
    result, inputs = run([node], {"n": np.array(2)})
    check(result, inputs, "attend_next", "E-UNSUPPORTED(Loop): attention found in graph body of node 'repeat'")


def test_scan():
    node = helper.make_node("Scan", ["q", "many"], ["state_out", "y"], name="each", body=scan_body(), num_scan_inputs=1)
    many = np.random.default_rng(1).standard_normal((3, *SHAPE)).astype(np.float32)
    result, inputs = run([node], {"many": many})
    check(result, inputs, "attend_out", "E-UNSUPPORTED(Scan): attention found in graph body of node 'each'")


def test_attention_beside_a_body_is_raised():
    nodes = [*attend("q", "first"), choice("y", branch(attend("first", "t"), "t"))]
    result, inputs = run(nodes, {"c": np.array(True)})
    assert len(result.attentions) == 1 and list(result.rejected) == ["attend_t"]
    (difference,) = result.differences(inputs)
    assert difference.within(1e-5)
