"""`lampc-opt`: exit codes, and that nobody sees a traceback; `xdsl-opt` beside it."""

import subprocess
import sys
from pathlib import Path

import pytest
from xdsl.universe import XDSL_UNIVERSE, Universe

from lampc import registry
from lampc.opt import UPSTREAM_DIALECTS, UPSTREAM_PASSES, LampcOptMain, main
from lampc.universe import UNIVERSE

GOOD = """
func.func @f(%x: f32) -> f32 {
  %y = "test.op"(%x) : (f32) -> f32
  func.return %y : f32
}
"""
UNVERIFIED = """
func.func @f(%x: f32) {
  %y = "arith.addf"(%x, %x) : (f32, f32) -> f64
  func.return
}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.mlir"
    path.write_text(GOOD)
    return str(path)


def test_prints_the_module(good: str, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, good)
    assert (code, err) == (0, "")
    assert '"test.op"' in out


@pytest.mark.parametrize("pipeline", ["nonsense", "cse{", "cse{depth=1}", "cse,,dce", "@"])
def test_a_wrong_pipeline_is_a_usage_error(good: str, pipeline: str, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, good, "-p", pipeline)
    assert (code, out) == (2, "")
    assert err.startswith("lampc-opt: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("text", [UNVERIFIED, "func.func @f(", 'builtin.module { "nonsense.op"() : () -> () }'])
def test_a_wrong_module_is_the_inputs_fault(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "wrong.mlir"
    path.write_text(text)
    code, _, err = run(capsys, str(path))
    assert code == 1
    assert err.startswith("lampc-opt: ")
    assert "Traceback" not in err


def test_a_failed_verification_names_the_op_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "wrong.mlir"
    path.write_text(UNVERIFIED)
    _, _, err = run(capsys, str(path))
    assert err.count("\n") == 1
    assert '%y = "arith.addf"' in err


def test_a_missing_file_is_the_inputs_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    missing = tmp_path / "missing.mlir"
    assert run(capsys, str(missing)) == (1, "", f"lampc-opt: {missing}: No such file or directory\n")


def test_an_internal_error_says_how_to_report_it(
    good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*_: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(LampcOptMain, "apply_passes", fail)
    code, _, err = run(capsys, good)
    assert code == 70
    assert "internal error: KeyError: 'a fault'" in err
    assert "Traceback" not in err
    code, _, err = run(capsys, good, "--traceback")
    assert code == 70
    assert "Traceback" in err


def test_offers_exactly_its_registries():
    driver = LampcOptMain(args=[])
    assert set(driver.available_passes) == {*UPSTREAM_PASSES, *registry.PASSES}
    assert set(driver.ctx.registered_dialect_names) == {*UPSTREAM_DIALECTS, *registry.DIALECTS}
    assert set(driver.available_targets) == {"mlir", *registry.TARGETS}
    assert set(driver.available_frontends) == {"mlir", *registry.FRONTENDS}


def test_overrides_hooks_alone():
    own = {name for name in vars(LampcOptMain) if not name.startswith("__")}
    assert {name for name in own if not name.startswith("register_all_")} == {"version_format"}
    assert "__init__" not in vars(LampcOptMain)


def test_no_name_clashes_with_xdsls():
    for kind in ("all_dialects", "all_passes", "all_targets", "all_frontends"):
        assert set(getattr(UNIVERSE, kind)) & set(getattr(XDSL_UNIVERSE, kind)) == set(), kind


def test_every_entry_of_the_universe_loads():
    factories = (*UNIVERSE.all_dialects.values(), *UNIVERSE.all_passes.values())
    factories += (*UNIVERSE.all_targets.values(), *UNIVERSE.all_frontends.values())
    for factory in factories:
        assert factory().name


def test_xdsl_opt_finds_the_universe_and_imports_nothing_more():
    code = (
        "import sys; from xdsl.universe import Universe; names = Universe.get_multiverse().all_passes;"
        "assert 'lamp-tile-attention' in names; print([m for m in sys.modules if m.startswith('lampc.passes')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "lamp-tile-attention" in Universe.get_multiverse().all_passes


@pytest.mark.parametrize("name", registry.PASSES)
def test_xdsl_opt_runs_every_pass(name: str):
    """On a module that has nothing for it: the pass is found, built with its defaults, and leaves the module alone."""
    command = [sys.executable, "-m", "xdsl.tools.xdsl_opt", "-p", name]
    done = subprocess.run(command, input="func.func private @f()\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "func.func private @f()" in done.stdout


def test_reads_stdin():
    done = subprocess.run([sys.executable, "-m", "lampc.opt"], input=GOOD, capture_output=True, text=True, check=True)
    assert '"test.op"' in done.stdout
