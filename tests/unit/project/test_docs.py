"""The documentation: generated pages are current, links lead somewhere, nothing names a developer's machine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lampc.docgen.pages import outdated, page_names, render

MAX_LINES = 600
TEXT_SUFFIXES = {".md", ".py", ".mlir", ".toml", ".s", ".yml", ".cfg", ""}
BINARY_FREE = ("docs", "lampc", "dialects", "passes", "targets", "tests", "examples", "benchmarks", ".ci")


def tracked(root: Path) -> list[Path]:
    """The files that belong to the project: git's, or without git (a wheel's sdist) those in its folders."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if listing.returncode == 0:
        return [root / name for name in listing.stdout.decode().split("\0") if name and (root / name).is_file()]
    return [path for folder in BINARY_FREE for path in (root / folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("page", page_names())
def test_generated_page_is_current(root: Path, page: str):
    assert (root / "docs" / page).read_text() == render(page), "run: make docs"


def test_check_names_the_pages_that_differ(tmp_path: Path):
    (tmp_path / "dialects").mkdir()
    (tmp_path / "dialects" / "gone.md").write_text("no dialect of this name")
    command = [sys.executable, "-m", "lampc.docgen", "--docs", str(tmp_path)]
    before = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert before.returncode == 1
    assert all(page in before.stdout for page in (*page_names(), "dialects/gone.md"))
    subprocess.run(command, check=True)
    assert outdated(tmp_path) == []


def test_links_lead_somewhere(root: Path):
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in tracked(root)
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_pages_that_code_cites_exist(root: Path):
    cited = {
        (name, path)
        for path in tracked(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] != "tests"
        for name in re.findall(r"\b([a-z_]+)\.md\b", path.read_text())
    }
    missing = [
        f"{path.relative_to(root)} cites {name}.md" for name, path in cited if not (root / "docs" / f"{name}.md").exists()
    ]
    assert sorted(missing) == []


def test_no_file_is_too_long(root: Path):
    long = [
        f"{path.relative_to(root)}: {lines} lines"
        for path in tracked(root)
        if path.suffix == ".py" and (lines := len(path.read_text().splitlines())) > MAX_LINES
    ]
    assert long == []


def test_nothing_names_a_developers_machine(root: Path):
    pattern = re.compile(r"(?<![\w./-])/(work|tmp|home|root|Users)/[\w.-]")
    named = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in tracked(root)
        if path.suffix in TEXT_SUFFIXES and path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert named == []
