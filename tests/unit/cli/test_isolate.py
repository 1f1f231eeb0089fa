"""`--isolate`: the same bits in a process of its own; what grows, never ends or dies is one line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.unit.cli.conftest import Lampc, Seen
from tests.unit.raising.graphs import Graph


def _isolated(folder: Path, *words: str | Path) -> Seen:
    """As a process, whose child writes to the same places."""
    command = [sys.executable, "-m", "lampc.cli", *map(str, words), "--isolate"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return Seen(done.returncode, done.stdout, done.stderr)


def _with_attention(graph: Graph, last: str) -> None:
    q, k, v = (graph.input(name, 1, 2, 4, 8) for name in "qkv")
    scores = graph.node("MatMul", q, graph.transpose(k, 0, 1, 3, 2))
    graph.output(graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v), 1, 2, 4, 8)
    graph.output(last)


@pytest.fixture
def hungry(tmp_path: Path) -> Path:
    """Repeats its input 2^28 times, 1 GiB."""
    graph = Graph()
    repeats = graph.given("repeats", np.array([2**28], np.int64))
    tiled = graph.node("Tile", graph.node("Relu", graph.input("x", 1)), repeats)
    _with_attention(graph, graph.node("ReduceMax", tiled, keepdims=0))
    np.savez(tmp_path / "hungry.npz", **graph.inputs)  # pyright: ignore[reportArgumentType]
    path = tmp_path / "hungry.onnx"
    path.write_bytes(graph.model().SerializeToString())
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A Loop that runs 2^40 times."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Cos", ["at"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("at", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1]),
        ],
    )
    graph = Graph()
    count = graph.given("count", np.array(2**40, np.int64))
    _with_attention(graph, graph.node("Loop", count, "", graph.input("x", 1), body=body))
    np.savez(tmp_path / "endless.npz", **graph.inputs)  # pyright: ignore[reportArgumentType]
    path = tmp_path / "endless.onnx"
    path.write_bytes(graph.model().SerializeToString())
    return path


def test_the_same_bits(lampc: Lampc, tiny: Path, tmp_path: Path):
    words = (tiny, "--target", "numpy", "--dim", "batch=1", "--dim", "seq=20", "--outputs")
    assert lampc(*words, "plain.npz").code == 0
    seen = _isolated(tmp_path, *words, "isolated.npz")
    assert (seen.code, seen.err) == (0, "") and "1 attention" in seen.out
    with np.load(tmp_path / "plain.npz") as plain, np.load(tmp_path / "isolated.npz") as isolated:
        assert plain["y"].tobytes() == isolated["y"].tobytes()


def test_errors_and_exit_codes_are_the_childs(tiny: Path, tmp_path: Path):
    seen = _isolated(tmp_path, tiny, "--target", "numpy")
    assert seen.code == 1 and seen.err.count("\n") == 1 and "E-DIM-UNBOUND" in seen.err


def test_too_much_memory(hungry: Path, tmp_path: Path):
    words = (hungry, "--inputs", hungry.with_suffix(".npz"), "--target", "numpy", "--no-compare")
    seen = _isolated(tmp_path, *words, "--memory-limit", "1")
    assert seen.code == 1 and seen.err.count("\n") == 1
    assert "hungry.onnx" in seen.err and "Traceback" not in seen.err
    assert _isolated(tmp_path, *words, "--memory-limit", "4").code == 0


def test_too_long(endless: Path, tmp_path: Path):
    words = (endless, "--inputs", endless.with_suffix(".npz"), "--target", "numpy", "--no-compare")
    seen = _isolated(tmp_path, *words, "--time-limit", "3")
    assert seen.code == 1
    assert seen.err == f"lampc: {endless}: stopped after 3 s; --time-limit allows more\n"


@pytest.mark.parametrize("words", [("--time-limit", "0"), ("--memory-limit", "-1")])
def test_limits_that_are_none(lampc: Lampc, tiny: Path, words: tuple[str, str]):
    seen = lampc(tiny, "--target", "numpy", *words)
    assert seen.code == 2 and "give a number above 0" in seen.err
