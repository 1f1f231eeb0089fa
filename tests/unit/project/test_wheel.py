"""The wheel: built from a copy of the tree, unpacked and used away from it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

MODULES = """
import importlib, importlib.resources, pkgutil, lampc
names = [m.name for m in pkgutil.walk_packages(lampc.__path__, "lampc.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
machines = importlib.resources.files("lampc.targets.accel") / "machines"
print(lampc.__file__)
print(*sorted(names))
print(*sorted(each.name for each in machines.iterdir()))
"""


@pytest.fixture(scope="module")
def unpacked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel. The tree is copied first: setuptools leaves build folders where it builds."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in ("lampc", "dialects", "passes", "targets"):
        shutil.copytree(root / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source / name)
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(source / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(base / "site")
    return base / "site"


def run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """
    Run Python in `folder` with the unpacked wheel and the installed dependencies.

    Without `site` (-S), no .pth file is read: an editable install of this tree cannot stand in for what the wheel lacks.
    """
    paths = [str(site), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_everything_imports_from_the_wheel(root: Path, unpacked: Path, tmp_path: Path, modules: dict[str, Path]):
    done = run(unpacked, tmp_path, "-c", MODULES)
    assert done.returncode == 0, done.stderr
    location, names, machines = done.stdout.splitlines()
    assert Path(location).is_relative_to(unpacked)
    assert set(names.split()) == {name for name in modules if name != "lampc" and not name.endswith("__main__")}
    assert machines.split() == sorted(path.name for path in (root / "targets" / "accel" / "machines").glob("*.toml"))


def test_only_lampc_lands_in_site_packages(unpacked: Path):
    names = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"lampc"}


def test_the_accelerator_runs_from_the_wheel(root: Path, unpacked: Path, tmp_path: Path):
    (model,) = (root / "examples").glob("*attention*.onnx")
    inputs = model.with_suffix(".npz")
    command = ["-m", "lampc.cli", str(model), "--inputs", str(inputs), "--target", "accel", "-o", "out"]
    done = run(unpacked, tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.json").is_file()
