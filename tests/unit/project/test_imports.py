"""Which part of lampc may import which: the layers of CONTRIBUTING.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

TOP_LEVEL = {"dialects", "passes", "targets"}

# Layer: the layers that it may import besides itself. The rest (command line, documentation) may import all.
MAY_IMPORT = {
    "errors": set[str](),
    "numerics": {"errors"},
    "dialects": {"errors", "numerics"},
    "ir": set[str](),
    "passes": {"errors", "numerics", "dialects", "ir"},
    "streams": set[str](),
    "targets": {"errors", "streams", "numerics", "dialects"},
    "frontend": {"errors", "numerics", "dialects"},
}
# The instruction table is the machine's; the accel dialect checks its instructions against it (decisions.md).
MACHINE_DESCRIPTION = tuple(f"lampc.targets.accel.{name}" for name in ("instruction", "isa", "layout", "config"))
COMMAND_LINES = {"lampc.cli", "lampc.opt", "lampc.targets.accel.asm_cli"}


def imports(path: Path, module: str) -> Iterator[str]:
    """Every absolute name that a file imports, also those inside functions; `from a import b` gives `a` and `a.b`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def layer(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "lampc" and len(parts) > 1 else None


def test_nothing_imports_a_top_level_folder(root: Path, modules: dict[str, Path]):
    files = dict(modules) | {f"tests.{path.stem}": path for path in (root / "tests").rglob("*.py")}
    wrong = [
        f"{path.relative_to(root)} imports {name}"
        for module, path in files.items()
        for name in imports(path, module)
        if name.split(".")[0] in TOP_LEVEL
    ]
    assert wrong == []


def test_layers_import_only_what_is_below_them(root: Path, modules: dict[str, Path]):
    wrong: list[str] = []
    for module, path in modules.items():
        here = layer(module)
        if here not in MAY_IMPORT:
            continue
        for name in imports(path, module):
            there = layer(name)
            if here == "dialects" and name.startswith(MACHINE_DESCRIPTION):
                continue
            if there is not None and f"lampc.{there}" in modules and there not in MAY_IMPORT[here] | {here}:
                wrong.append(f"{path.relative_to(root)} imports {name}")
    assert sorted(set(wrong)) == []


def test_nothing_imports_a_command_line(root: Path, modules: dict[str, Path]):
    wrong = [
        f"{path.relative_to(root)} imports {name}"
        for module, path in modules.items()
        for name in imports(path, module)
        if any(name == command or name.startswith(command + ".") for command in COMMAND_LINES - {module})
    ]
    assert wrong == []
