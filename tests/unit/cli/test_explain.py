"""`lampc --explain`: every region, raised as what or stopped where."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cli.conftest import Lampc
from tests.unit.raising.graphs import Graph

ROOT = Path(__file__).resolve().parents[3]
SIZES = ("--dim", "batch=2", "--dim", "seq=40")


def _report(lampc: Lampc, *words: str | Path) -> Any:
    seen = lampc(*words, "--explain", "--report", "-", "--quiet")
    assert seen.code == 0 and seen.err == ""
    return json.loads(seen.out)


@pytest.fixture
def two_regions(tmp_path: Path) -> Path:
    """An attention, and one whose probabilities the graph returns."""
    graph = Graph()
    q, k, v = (graph.input(name, 1, 2, 6, 8) for name in "qkv")
    for returned in (False, True):
        kt = graph.node("Transpose", k, perm=[0, 1, 3, 2])
        p = graph.node("Softmax", graph.node("MatMul", q, kt), axis=-1)
        graph.output(graph.node("MatMul", p, v), 1, 2, 6, 8)
        if returned:
            graph.output(p, 1, 2, 6, 6)
    path = tmp_path / "two.onnx"
    path.write_bytes(graph.model().SerializeToString())
    return path


def test_a_raised_region(lampc: Lampc, tiny: Path):
    data = _report(lampc, tiny, *SIZES)
    assert data["schema"] == 1 and data["summary"] == {"regions": 1, "raised": 1}
    (region,) = data["regions"]
    assert region["node"] == "attention" and region["raised"] and region["form"].startswith("Attention-")
    assert region["causal"] and region["window"] is None and region["mask"] is None
    assert region["scale"] == pytest.approx(8**-0.5)
    sizes = {"batch": 2, "query_heads": 2, "kv_heads": 2, "queries": 40, "keys": 40, "head_size": 8, "value_size": 8}
    assert region["shape"] == sizes
    seen = lampc(tiny, *SIZES, "--explain")
    assert "1 of 1 raised" in seen.out and "causal" in seen.out and seen.err == ""


def test_raised_and_not_in_the_order_of_the_graph(lampc: Lampc, two_regions: Path):
    data = _report(lampc, two_regions)
    assert [region["raised"] for region in data["regions"]] == [True, False]
    assert "its result is also used by" in data["regions"][1]["reason"]
    seen = lampc(two_regions, "--explain")
    assert "1 of 2 raised" in seen.out and "because" in seen.out


def test_nothing_is_compiled_or_written(lampc: Lampc, tiny: Path, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    assert lampc(tiny, *SIZES, "--explain").code == 0
    assert sorted(tmp_path.iterdir()) == before


def test_no_attention_at_all_is_said_loudly(lampc: Lampc, tmp_path: Path):
    graph = Graph()
    graph.output(graph.node("Relu", graph.input("x", 2, 3)), 2, 3)
    path = tmp_path / "none.onnx"
    path.write_bytes(graph.model().SerializeToString())
    assert "regions     none: nothing in the model looks like attention" in lampc(path, "--explain").out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 1, "batch"),
        ((*SIZES, "--check"), 2, "--explain compiles and runs nothing"),
        ((*SIZES, "--report", "missing/x.json"), 1, "missing/x.json"),
    ],
)
def test_what_is_wrong_is_one_line(lampc: Lampc, tiny: Path, words: tuple[str, ...], code: int, told: str):
    seen = lampc(tiny, "--explain", *words)
    assert seen.code == code and seen.out == ""
    assert told in seen.err and seen.err.count("\n") == 1


def test_the_target_is_needed_for_all_else(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, *SIZES)
    assert seen.code == 2 and "--target" in seen.err


def test_the_example_in_the_documentation(lampc: Lampc, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    seen = lampc("examples/smollm2_layer15_attention.onnx", "--explain")
    shown = "".join(f"    {line}\n" for line in seen.out.splitlines())
    assert shown in (ROOT / "README.md").read_text()


def test_arrays_are_not_asked_for(lampc: Lampc, tiny: Path, tmp_path: Path):
    """Inputs bind dimensions as well as --dim does."""
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 7, 16), np.float32))
    data = _report(lampc, tiny, "--inputs", tmp_path / "in.npz")
    assert data["regions"][0]["shape"]["queries"] == 7
