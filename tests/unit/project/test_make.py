"""The Makefile's help and CI's entry."""

import os
import re
import subprocess
from pathlib import Path


def test_help_lists_every_target(root: Path):
    makefile = (root / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    done = subprocess.run(["make", "--no-print-directory"], cwd=root, capture_output=True, text=True, check=True)
    listed = re.findall(r"^  make (\S+) +\S", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())


def test_ci_runs_make_test(root: Path):
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^exec make test\b", script.read_text(), re.MULTILINE)


def test_an_old_python_is_refused_in_one_line(root: Path, tmp_path: Path):
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((root / name).read_text())
    done = subprocess.run(["make", "demo", "PYTHON=false"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("lampc needs Python 3.11 or newer, and 'false' is not; name one: make demo PYTHON=")
