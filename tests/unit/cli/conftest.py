"""A tiny model with one attention, made here, and `lampc` as a function that returns what a user sees."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lampc.cli import main


@dataclass(frozen=True)
class Seen:
    """Exit code, stdout and stderr of one call."""

    code: int
    out: str
    err: str


Lampc = Callable[..., Seen]


@pytest.fixture
def lampc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lampc:
    """`lampc("model.onnx", "--target", ...)` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> Seen:
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        seen = capsys.readouterr()
        return Seen(code, seen.out, seen.err)

    return run


def attention_graph(*, masked: bool = True) -> onnx.GraphProto:
    """Projection, causal attention of 2 heads on `seq` tokens, projection; input x [batch, seq, 16]."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), name) for name in ("wq", "wk", "wv", "wo")
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name], name=f"project_{name}") for name in "qkv"]
    attributes: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": int(masked)}
    nodes.append(helper.make_node("Attention", ["q", "k", "v"], ["a"], name="attention", **attributes))
    nodes.append(helper.make_node("MatMul", ["a", "wo"], ["y"], name="project_o"))
    shape = ["batch", "seq", 16]
    return helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph above in a file."""
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    model = helper.make_model(attention_graph(), opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="session")
def without_attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts' gate: a softmax that feeds a product, but comes from no product of Q and K."""
    path = tmp_path_factory.mktemp("model") / "gate.onnx"
    graph = helper.make_graph(
        [
            helper.make_node("Softmax", ["x"], ["p"], name="gate", axis=-1),
            helper.make_node("MatMul", ["p", "experts"], ["y"], name="mix"),
        ],
        "gate",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [numpy_helper.from_array(np.ones((16, 8), np.float32), "experts")],
    )
    path.write_bytes((helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)).SerializeToString())
    return path


@pytest.fixture(scope="session")
def addition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing that looks like attention."""
    path = tmp_path_factory.mktemp("model") / "addition.onnx"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "addition", values[:1], values[1:])
    path.write_bytes((helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)).SerializeToString())
    return path
