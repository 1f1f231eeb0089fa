"""`lit tests/filecheck` in lampc's environment: which files are tests, and what the names in their RUN lines stand for."""

import os
import sys
from pathlib import Path
from typing import Any

import lit.formats  # pyright: ignore[reportMissingTypeStubs]

config: Any = globals()["config"]  # lit runs this file with `config` defined

root = Path(__file__).resolve().parents[2]
examples = root / "examples"
python = sys.executable

config.name = "lampc"
config.suffixes = [".mlir", ".py", ".test"]
config.excludes = ["lit.cfg.py", "Inputs", "Output"]
config.test_source_root = str(root / "tests" / "filecheck")
config.test_format = lit.formats.ShTest(execute_external=False)

# filecheck stands beside the Python that runs lit, whether or not the environment is activated.
config.environment["PATH"] = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
config.environment["PYTHONPATH"] = str(root)
for variable in ("HOME", "CORPUS", "NUMBA_CACHE_DIR", "LAMPC_KERNELS"):
    if variable in os.environ:
        config.environment[variable] = os.environ[variable]


def command(name: str, module: str) -> tuple[str, str]:
    """`name`, where it stands as a word of its own and not in a path, runs `module`."""
    return rf"(?<![\w./%-]){name}(?![\w./-])", f"{python} -m {module}"


# In this order: the round trips are written with lampc-opt.
config.substitutions += [
    ("XDSL_ROUNDTRIP", "lampc-opt %s --split-input-file | lampc-opt --split-input-file | filecheck %s"),
    (
        "XDSL_GENERIC_ROUNDTRIP",
        "lampc-opt %s --split-input-file --print-op-generic | lampc-opt --split-input-file | filecheck %s",
    ),
    command("lampc-opt", "lampc.opt"),
    command("lampc-asm", "lampc.targets.accel.asm_cli"),
    command("lampc", "lampc.cli"),
    ("%python", python),
    ("%examples", str(examples)),
]
