"""Every hostile model gives its own error, on one line, quickly and in little memory; those that are merely odd import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lampc.errors import LampcError
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.model import load_model
from tests.unit.frontend.hostile_graphs import CASES

SECONDS = 2.0
"""What a hostile model may cost (onnx.md §6 runs them in subprocesses; these limits are the project's)."""

MEGABYTES = 500

CORPUS = Path(os.environ.get("CORPUS", Path(__file__).parents[4] / "shared" / "corpus"))

# Files of the corpus and the code that onnx.md §6 gives each; None where it must import.
CORPUS_CODES: dict[str, str | None] = {
    "01": "E-EXTDATA-PATH",
    "02": "E-EXTDATA-PATH",
    "03": "E-EXTDATA-PATH",
    "04": None,
    "05": "E-EXTDATA-SIZE",
    "06": "E-EXTDATA-RANGE",
    "07": "E-EXTDATA-RANGE",
    "08": "E-EXTDATA-MISSING",
    "09": "E-EXTDATA-KEY",
    "10": "E-DIMS-OVERFLOW",
    "11": "E-DIMS-NEGATIVE",
    "12": "E-TENSOR-SIZE",
    "13": "E-TENSOR-PAYLOAD",
    "14": "E-GRAPH-CYCLE",
    "15": None,
    "16": "E-GRAPH-SSA",
    "17": "E-GRAPH-UNDEFINED",
    "18": "E-GRAPH-OUTPUT",
    "19": "E-GRAPH-SSA",
    "20": "E-FUNC-RECURSION",
    "21": "E-FUNC-RECURSION",
    "22": "E-FUNC-BUDGET",
    "23": "E-FUNC-SHADOW",
    "24": None,
    "25": "E-NESTING",
    "26": "E-SPARSE-INDEX",
    "27": None,
    "28": "E-OPSET-MISSING",
    "29": "E-OPSET-OP",
    "30": "E-OPSET-FUTURE",
    "31": "E-IR-FUTURE",
    "32": "E-DOMAIN",
    "33": "E-OPSET-MISSING",
    "34": "E-TYPE",
    "35": "W-NOSHAPE",
    "36": "E-ATTN-HEADS",
    "37": "E-ATTR-TYPE",
    "38": "E-ATTR-UNKNOWN",
    "39": "E-ATTR-VALUE",
    "40": "E-ATTR-VALUE",
    "41": "E-ATTN-SHAPE",
    "42": "E-ATTN-MASK-RANK",
    "43": "E-FOLD-BUDGET",
    "44": "E-FOLD-BUDGET",
    "45": "E-UNSUPPORTED(Loop)",
    "46": "E-ATTR-REF",
    "47": "E-GRAPH-SSA",
    "48": "E-SHAPE-CONFLICT",
    "49": "E-TYPE-CONFLICT",
    "50": "E-GRAPH-SSA",
    "51": "E-OP-ARITY",
    "52": "E-ATTR-VALUE",
    "53": "E-ATTR-VALUE",
    "54": "E-DTYPE",
    "55": None,
    "56": "E-PARSE",
    "57": "E-PARSE",
    "58": "E-PARSE",
}


def outcome(path: Path) -> LampcError | None:
    """What loading, binding and importing ends with."""
    try:
        model = load_model(path)
        import_model(model, bind_dims(model)).verify()
    except LampcError as error:
        return error
    return None


def check(path: Path, code: str | None) -> None:
    start = time.perf_counter()
    error = outcome(path)
    assert (error.code if error else None) == code, str(error)
    assert time.perf_counter() - start < SECONDS
    if error:
        assert error.exit_code == 1
        text = str(error)
        assert text.isprintable()
        assert len(text) < 1000
        assert text.startswith(str(path))


@pytest.mark.parametrize(("name", "code", "write"), CASES, ids=[name for name, _, _ in CASES])
def test_hostile_model_gives_its_error(name: str, code: str | None, write: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    check(write(folder), code)


def test_case_names_are_unique() -> None:
    names = [name for name, _, _ in CASES]
    assert len(set(names)) == len(names)


def test_corpus_of_bad_models() -> None:
    folder = CORPUS / "bad"
    if not folder.is_dir():
        pytest.skip(f"no corpus at {CORPUS}; set CORPUS")
    paths = sorted(folder.glob("*.onnx"))
    assert paths
    for path in paths:
        check(path, CORPUS_CODES[path.name[:2]])


def test_memory_of_all_cases_together(tmp_path: Path) -> None:
    """One process opens every case; its peak stays under the limit."""
    paths: list[str] = []
    for name, _, write in CASES:
        (tmp_path / name).mkdir()
        paths.append(str(write(tmp_path / name)))
    script = (
        "import json, resource, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.frontend.test_hostile import outcome\n"
        "codes = [getattr(outcome(Path(p)), 'code', None) for p in json.load(sys.stdin)]\n"
        "print(json.dumps([codes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(paths), text=True, capture_output=True, cwd=root, check=True
    )
    codes, peak = json.loads(done.stdout)
    assert codes == [code for _, code, _ in CASES]
    assert peak * 1024 < MEGABYTES * 10**6  # Linux counts in KiB


@pytest.mark.parametrize(("make", "code"), [("missing", "E-FILE-MISSING"), ("folder", "E-FILE-KIND"), ("pipe", "E-FILE-KIND")])
def test_what_is_no_file(make: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    check(path, code)


def test_unsorted_and_hard_linked_models_warn(tmp_path: Path) -> None:
    for name, text in (("unsorted", "order"), ("ext_hardlink", "hard links")):
        write = next(write for case, _, write in CASES if case == name)
        (tmp_path / name).mkdir()
        assert any(text in warning for warning in load_model(write(tmp_path / name)).warnings)
