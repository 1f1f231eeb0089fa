"""What the tests of the project as a whole share: its root and its Python files."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE_FOLDERS = ("lampc", "dialects", "passes", "targets")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, Path]:
    """Every module of lampc by its import name, files under their real folder."""
    found: dict[str, Path] = {}
    for folder in SOURCE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if folder == "lampc" and parts[1] in SOURCE_FOLDERS:
                continue  # through a link: counted where the file is
            dotted = ".".join(parts if folder == "lampc" else ("lampc", *parts))
            found[dotted.removesuffix(".__init__")] = path
    return found
