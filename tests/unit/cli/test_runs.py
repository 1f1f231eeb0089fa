"""What a user gets from `lampc` on a model that works."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from lampc import __version__
from lampc.runtime.session import session_options
from tests.models.merged_decoder import decoder_inputs, merged_decoder
from tests.unit.cli.conftest import Lampc

SIZES = ("--dim", "batch=2", "--dim", "seq=40")


def test_help_teaches(lampc: Lampc):
    seen = lampc("--help")
    assert seen.code == 0
    for word in ("--target", "--inputs", "--dim", "--policy", "--machine", "--emit", "--check", "examples:", "exit codes:"):
        assert word in seen.out


def test_version(lampc: Lampc):
    assert lampc("--version").out == f"lampc {__version__}\n"


def test_the_table(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, "--target", "numpy", *SIZES)
    assert seen.code == 0 and seen.err == ""
    assert "SYNTHETIC" in seen.out
    assert "1 attention [batch 2, 2 heads, 40 queries x 40 keys, d 8]" in seen.out
    assert "LampAttention, delta 2^-8, tau 0.5; preset hw" in seen.out
    assert "sub-blocks recomputed: none" in seen.out
    assert "error" in seen.out and "artefacts  tiny.lampc" in seen.out


def test_artefacts(lampc: Lampc, tiny: Path):
    lampc(tiny, "--target", "numpy", *SIZES, "-o", "out")
    names = sorted(path.name for path in Path("out/ir").iterdir())
    assert [name[3:-5] for name in names] == [
        "import",
        "lamp-raise-attention",
        "lamp-outline-host",
        "lamp-tile-attention",
        "lamp-mixed-precision",
        "lamp-register-layout",
    ]
    assert "lamp.recompute_unsafe" in (Path("out/ir") / names[-1]).read_text()
    assert 'loc("attention"' in (Path("out/ir") / names[-1]).read_text()
    report = json.loads(Path("out/report.json").read_text())
    assert report["schema"] == 1 and report["lampc"] == __version__
    assert report["inputs"]["synthetic"] is True
    (attention,) = report["attention"]
    assert attention["name"] == "attention"
    assert attention["shape"]["queries"] == 40 and attention["formats"]["accumulators"] == ["e4m3", "e4m11"]
    assert attention["statistics"]["total"]["live_tiles"] == report["totals"]["live_tiles"] > 0
    again = lampc(tiny, "--target", "numpy", *SIZES, "-o", "out", "--compile-only")
    assert again.code == 0  # a folder that lampc wrote may be replaced
    assert json.loads(Path("out/report.json").read_text())["accuracy"] is None


def test_report_on_stdout_is_json_alone(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, "--target", "numpy", *SIZES, "--report", "-")
    assert json.loads(seen.out)["model"]["path"] == str(tiny)
    assert "attention" in seen.err


@pytest.mark.parametrize("stage", ["onnx", "attn", "tiled", "lamp", "accel"])
def test_emit_prints_ir_that_parses(lampc: Lampc, tiny: Path, stage: str, capsys: pytest.CaptureFixture[str]):
    from lampc import opt

    seen = lampc(tiny, "--target", "accel", *SIZES, "--emit", stage, "-q", "--compile-only")
    assert seen.code == 0 and seen.err == ""
    Path("stage.mlir").write_text(seen.out)
    opt.main(["stage.mlir", "--print-debuginfo"])
    assert capsys.readouterr().out.strip() == seen.out.strip()


def test_print_pipeline_can_be_run(lampc: Lampc, tiny: Path):
    pipeline = lampc(tiny, "--target", "numpy", "--policy", "low", "--bq", "32", "--print-pipeline").out.strip()
    assert "policy=low" in pipeline and "bq=32" in pipeline
    first = lampc(tiny, "--target", "numpy", *SIZES, "--policy", "low", "--bq", "32", "--report", "-", "-q").out
    second = lampc(tiny, "--target", "numpy", *SIZES, "--pipeline", pipeline, "--report", "-", "-q").out
    assert json.loads(first)["attention"] == json.loads(second)["attention"]


def test_fp32_agrees_with_onnxruntime_and_writes_the_outputs(lampc: Lampc, tiny: Path):
    x = np.random.default_rng(3).standard_normal((2, 40, 16)).astype(np.float32)
    np.savez("in.npz", x=x)
    seen = lampc(tiny, "--target", "numpy", "--inputs", "in.npz", "--policy", "fp32", "--check", "--outputs", "out.npz")
    assert seen.code == 0 and "check passed" in seen.out
    session: Any = onnxruntime.InferenceSession(str(tiny), session_options(1))
    (expected,) = session.run(["y"], {"x": x})
    with np.load("out.npz") as outputs:
        assert np.abs(outputs["y"] - expected).max() < 1e-4 * np.abs(expected).max()


def test_check_fails_beyond_the_limit(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, "--target", "numpy", *SIZES, "--policy", "low", "--check", "--max-error", "1e-6")
    assert seen.code == 1
    assert "check failed: output 'y' differs by" in seen.err and seen.err.count("\n") == 1
    assert lampc(tiny, "--target", "numpy", *SIZES, "--policy", "low", "--check").code == 0


def test_a_model_without_attention_runs_and_says_why(lampc: Lampc, without_attention: Path):
    seen = lampc(without_attention, "--target", "numpy", "--check", "--policy", "fp32")
    assert seen.code == 0
    assert "0 attentions; 1 candidate not raised:" in seen.out
    assert "- mix" in seen.out or "- gate" in seen.out


def test_a_model_with_nothing_like_attention_runs(lampc: Lampc, addition: Path):
    seen = lampc(addition, "--target", "numpy", "--check", "--policy", "fp32")
    assert seen.code == 0
    assert "0 attentions; nothing in the model looks like one" in seen.out


def test_traceback_on_request(lampc: Lampc, tiny: Path):
    assert "Traceback" in lampc(tiny, "--target", "numpy", "--traceback").err


def merged_words(folder: Path) -> list[str | Path]:
    path = folder / "merged.onnx"
    path.write_bytes(merged_decoder().SerializeToString())
    return [
        path,
        *(
            [
                "--dim",
                "batch_size=2",
                "--dim",
                "sequence_length=1",
                "--dim",
                "past_sequence_length=4",
                "--dim",
                "attention_length=5",
            ]
        ),
    ]


@pytest.mark.parametrize("target", ["numpy", "accel"])
def test_a_value_chooses_the_branch_that_is_compiled(lampc: Lampc, tmp_path: Path, target: str):
    words = merged_words(tmp_path)
    seen = lampc(*words, "--target", target, "--policy", "fp32", "--check", "--value", "use_cache_branch=true")
    assert (seen.code, seen.err) == (0, "")
    assert "2 attentions [batch 2, 2 heads, 1 queries x 5 keys, d 8]" in seen.out and "warning" not in seen.out


def test_a_value_completes_and_overrides_the_inputs(lampc: Lampc, tmp_path: Path):
    path = merged_words(tmp_path)[0]
    inputs = decoder_inputs(1, 0, 6)
    np.savez(tmp_path / "without.npz", **inputs)  # pyright: ignore[reportArgumentType]
    np.savez(tmp_path / "other.npz", **inputs, use_cache_branch=np.array([True]))  # pyright: ignore[reportArgumentType]
    for name in ("without.npz", "other.npz"):
        words = (path, "--target", "numpy", "--inputs", name, "--value", "use_cache_branch=false", "--emit", "onnx", "-q")
        seen = lampc(*words)
        assert seen.code == 0 and "onnx.value = #onnx.values<[false]" in seen.out
    assert "use_cache_branch" in lampc(path, "--target", "numpy", "--inputs", "without.npz").err


def test_attention_in_a_branch_nobody_chose_is_warned_about(lampc: Lampc, tmp_path: Path):
    seen = lampc(*merged_words(tmp_path), "--target", "numpy", "--check", "--max-error", "0")
    assert seen.code == 0 and "0 attentions; 4 candidates not raised" in seen.out
    warnings = [line for line in seen.out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2
    for branch, line in zip(("else_branch", "then_branch"), warnings, strict=True):
        assert f"E-UNSUPPORTED(If): attention found in branch {branch} of node 'optimum::if'" in line
        assert line.endswith("give its condition with --inputs or --value use_cache_branch=true")


def test_policy_host_runs_the_models_own_attention(lampc: Lampc, tiny: Path):
    seen = lampc(tiny, "--target", "numpy", *SIZES, "--policy", "host", "--check", "--rtol", "1e-6")
    assert (seen.code, seen.err) == (0, "")
    assert "1 attention [batch 2, 2 heads, 40 queries x 40 keys, d 8]" in seen.out
    assert "none: the host runs the model's own attentions" in seen.out and "tiles" not in seen.out
    refused = lampc(tiny, "--target", "accel", *SIZES, "--policy", "host")
    assert refused.code == 2 and "--policy host needs --target numpy" in refused.err


@pytest.mark.parametrize("target", ["numpy", "accel"])
@pytest.mark.parametrize("sizes", [("batch=0", "seq=4"), ("batch=2", "seq=0")])
def test_nothing_in_gives_nothing_out(lampc: Lampc, tiny: Path, target: str, sizes: tuple[str, str]):
    """Though onnxruntime's own Attention refuses such sizes."""
    words = ("--dim", sizes[0], "--dim", sizes[1], "--policy", "fp32", "--check", "--outputs", "out.npz")
    seen = lampc(tiny, "--target", target, *words)
    assert (seen.code, seen.err) == (0, "")
    with np.load("out.npz") as outputs:
        assert outputs["y"].shape == (int(sizes[0][-1]), int(sizes[1][-1]), 16) and outputs["y"].dtype == np.float32
