"""What pyproject.toml says about packages and commands against what is there."""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

LINKS = ("dialects", "passes", "targets")


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_every_package_is_listed(project: dict[str, Any], modules: dict[str, Path]):
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(packages)


def test_every_folder_with_python_files_is_a_package(modules: dict[str, Path]):
    folders = {path.parent for path in modules.values()}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("name", LINKS)
def test_links_lead_to_the_top_level_folders(root: Path, name: str):
    link = root / "lampc" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_every_command_and_entry_point_exists(project: dict[str, Any]):
    entries: dict[str, str] = dict(project["project"]["scripts"])
    for group in project["project"]["entry-points"].values():
        entries |= group
    assert entries
    for path in entries.values():
        module, name = path.split(":")
        assert hasattr(import_module(module), name), path


def test_package_data_is_there(project: dict[str, Any], modules: dict[str, Path]):
    for package, patterns in project["tool"]["setuptools"]["package-data"].items():
        folder = modules[package].parent
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package}: nothing matches {pattern}"
