"""Bad input gets one line that says where, what and what to do; the right exit code; and leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.cli.conftest import Lampc

BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--limit", "patience=3"], "no budget is called 'patience'; there are nodes, nesting"),
    (["--limit", "nodes=0"], "give a whole number above 0"),
    (["--delta", "-1"], "--delta -1.0: the margin of stage 1 is finite in FP32 and not negative"),
    (["--delta", "nan"], "--delta nan"),
    (["--tau", "-0.5"], "--tau -0.5: the threshold of stage 2"),
    (["--tau", "nan"], "--tau nan: the threshold of stage 2"),
    (["--tau", "inf"], "--tau inf: the threshold of stage 2 is finite in FP32 and not negative; 1 turns stage 2 off"),
    (["--delta", "1e39"], "--delta 1e+39: the margin of stage 1 is finite in FP32"),
    (["--mask-threshold", "nan"], "--mask-threshold nan: give a number that is finite in FP32"),
    (["--mask-threshold=-inf"], "--mask-threshold -inf: give a number that is finite in FP32"),
    (["--bk", "257"], "argument --bk: '257' is no whole number from 1 to 256"),
    (["--nq", "65"], "argument --nq: '65' is no whole number from 1 to 64"),
    (["--accumulate-block", "0"], "argument --accumulate-block: '0' is no whole number from 1 to 4096"),
    (["--overflow", "wrap"], "argument --overflow: invalid choice: 'wrap'"),
    (["--tau", "much"], "'much' is no number; write 0.004, 1/256 or 2^-8"),
    (["--nk", "17"], "argument --nk: '17' is no whole number from 1 to 16"),
    (["--bq", "0"], "argument --bq: '0' is no whole number from 1 to 64"),
    (["--policy", "best"], "argument --policy: invalid choice: 'best'"),
    (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    (["--exp-above-one", "keep"], "--exp-above-one keep needs --range unbounded"),
    (["--machine", "packed"], "--machine and --set belong to --target accel"),
    (["--emit", "sass"], "argument --emit: 'sass' is none of onnx, attn, tiled, lamp, accel, asm"),
    (["--emit", "asm"], "--emit asm needs --target accel"),
    (["--check", "--no-compare"], "--check needs the comparison that --no-compare leaves out"),
    (["--report", "-", "--emit", "lamp"], "--report - and --emit both print on stdout; choose one"),
    (["--dim", "seq"], "--dim seq: expected NAME=N, such as batch=1"),
    (["--dim", "length=4"], "no input has a dimension 'length'; symbolic dimensions: batch, seq"),
    (["--value", "x"], "--value x: expected INPUT=X with true, false or a number, such as use_cache_branch=true"),
    (["--value", "flag=1"], "--value: no input is named 'flag'; inputs: x"),
    (["--pipeline", "lamp-fold"], "lamp-fold"),
    (["--pipeline", "lamp-tile-attention{"], "--pipeline"),
]


@pytest.mark.parametrize(("words", "message"), BAD_OPTIONS, ids=[" ".join(case[0]) for case in BAD_OPTIONS])
def test_wrong_usage_is_one_line_and_exit_code_2(lampc: Lampc, tiny: Path, words: list[str], message: str):
    sizes = [] if "--dim" in words else ["--dim", "batch=1", "--dim", "seq=20"]
    seen = lampc(tiny, "--target", "numpy", *sizes, *words)
    assert (seen.code, seen.out) == (2, "")
    assert seen.err.startswith("lampc: ") and seen.err.count("\n") == 1
    assert message in seen.err
    assert list(Path().iterdir()) == []


def test_no_target_is_wrong_usage(lampc: Lampc, tiny: Path):
    assert "the following arguments are required: --target" in lampc(tiny).err


def test_a_missing_model(lampc: Lampc):
    seen = lampc("nowhere.onnx", "--target", "numpy")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "nowhere.onnx: cannot open it: No such file or directory" in seen.err


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"hello, model"], ids=["empty", "png", "text"])
def test_a_file_that_is_not_onnx(lampc: Lampc, tmp_path: Path, content: bytes):
    (tmp_path / "thing.onnx").write_bytes(content)
    seen = lampc("thing.onnx", "--target", "numpy")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "thing.onnx" in seen.err and "E-PARSE" in seen.err
    assert [path.name for path in tmp_path.iterdir()] == ["thing.onnx"]


def test_half_a_model(lampc: Lampc, tiny: Path, tmp_path: Path):
    (tmp_path / "half.onnx").write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    seen = lampc("half.onnx", "--target", "numpy")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "half.onnx" in seen.err


def test_unbound_dimensions_come_with_a_command(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, "--target", "numpy")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "--dim batch=" in seen.err and "--dim seq=" in seen.err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 4, 16), np.float32)}, "takes x"),
        ({"x": np.zeros((1, 4, 15), np.float32)}, "15"),
        ({"x": np.zeros((1, 4, 16), np.float64)}, "float64"),
        ({"x": np.array([{"a": 1}], object)}, "x"),
    ],
    ids=["name", "shape", "dtype", "pickle"],
)
def test_inputs_that_do_not_fit(lampc: Lampc, tiny: Path, tmp_path: Path, arrays: dict[str, np.ndarray], message: str):
    np.savez(tmp_path / "inputs.npz", **arrays)  # pyright: ignore[reportArgumentType]
    seen = lampc(tiny, "--target", "numpy", "--inputs", "inputs.npz")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "inputs.npz" in seen.err and message in seen.err
    assert [path.name for path in tmp_path.iterdir()] == ["inputs.npz"]


def test_inputs_that_are_no_archive(lampc: Lampc, tiny: Path, tmp_path: Path):
    (tmp_path / "inputs.npz").write_text("x = 1")
    seen = lampc(tiny, "--target", "numpy", "--inputs", "inputs.npz")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "inputs.npz" in seen.err


SIZES = ("--dim", "batch=1", "--dim", "seq=20")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "no/such/folder"], "does not exist"),
        (["-o", "file"], "it is a file; name a folder"),
        (["-o", "full"], "this folder holds other things; name a new or empty one"),
        (["--outputs", "no/out.npz"], "its folder does not exist or cannot be written to"),
        (["--report", "full"], "it is a folder; name a file"),
    ],
    ids=["parent", "file", "full", "outputs", "report"],
)
def test_places_that_take_no_results(lampc: Lampc, tiny: Path, tmp_path: Path, words: list[str], message: str):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    seen = lampc(tiny, "--target", "numpy", *SIZES, *words)
    assert (seen.code, seen.out, seen.err.count("\n")) == (1, "", 1)
    assert message in seen.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_dimensions_that_no_machine_holds(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, "--target", "numpy", "--dim", "batch=1000000", "--dim", "seq=1000000")
    assert (seen.code, seen.err.count("\n")) == (1, 1)
    assert "choose smaller" in seen.err and list(Path().iterdir()) == []


def test_an_internal_error_says_how_to_report_it(lampc: Lampc, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr("lampc.driver.compile_model", fail)
    seen = lampc(tiny, "--target", "numpy", *SIZES)
    assert (seen.code, seen.err.count("\n")) == (70, 1)
    assert "internal error: RuntimeError: the moon is full; please report it" in seen.err
    assert f"lampc {tiny} --target numpy" in seen.err and "--traceback" in seen.err


def test_a_budget_is_an_option_and_its_error_says_so(lampc: Lampc, tiny: Path):
    refused = lampc(tiny, "--explain", "--dim", "batch=1", "--dim", "seq=8", "--limit", "nodes=3")
    assert refused.code == 1 and "--limit nodes=N" in refused.err and refused.err.count("\n") == 1
    assert lampc(tiny, "--explain", "--dim", "batch=1", "--dim", "seq=8", "--limit", "nodes=5").code == 0
