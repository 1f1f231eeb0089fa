"""The commands with a stdout that is full, closed, or read by nobody: one line or none, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "lampc": ["lampc.cli", "tiny.onnx", "--dim", "batch=1", "--dim", "seq=16", "--explain"],
    "lampc --report -": ["lampc.cli", "tiny.onnx", "--dim", "batch=1", "--dim", "seq=16", "--explain", "--report", "-", "-q"],
    "lampc-opt": ["lampc.opt", "empty.mlir"],
    "lampc-asm": ["lampc.targets.accel.asm_cli", "list"],
}


def run(command: str, redirected: str, tiny: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "tiny.onnx").write_bytes(tiny.read_bytes())
    (folder / "empty.mlir").write_text("builtin.module {}")
    module, *words = COMMANDS[command]
    shell = ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-m", module, *words]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(shell, cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_output_is_one_line(command: str, tiny: Path, tmp_path: Path):
    seen = run(command, "> /dev/full", tiny, tmp_path)
    assert seen.returncode == 1
    name = command.split()[0]
    assert seen.stderr == f"{name}: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_output_shows_nothing(command: str, tiny: Path, tmp_path: Path):
    seen = run(command, ">&-", tiny, tmp_path)
    assert (seen.returncode, seen.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_leaves_is_no_error_to_speak_of(command: str, tiny: Path, tmp_path: Path):
    seen = run(command, "| true", tiny, tmp_path)
    assert seen.stderr == ""
