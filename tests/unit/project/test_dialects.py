"""Every registered dialect: its tests, and that a reader can learn the syntax of each op."""

import re
from pathlib import Path

import pytest
from xdsl.dialects import get_all_dialects
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation

from lampc import registry
from lampc.docgen.docstrings import docstring

DIALECTS = list(registry.DIALECTS)


def dialect(name: str) -> Dialect:
    return registry.get_all_dialects()[name]()


@pytest.mark.parametrize("name", DIALECTS)
def test_has_its_registered_name(name: str):
    assert dialect(name).name == name
    assert all(op.name.startswith(f"{name}.") for op in dialect(name).operations)
    assert all(attribute.name.startswith(f"{name}.") for attribute in dialect(name).attributes)


def test_no_name_is_one_of_xdsls():
    assert set(DIALECTS) & set(get_all_dialects()) == set()


@pytest.mark.parametrize("name", DIALECTS)
def test_every_op_round_trips_in_a_lit_file(root: Path, name: str):
    text = (root / "tests" / "filecheck" / "dialects" / name / "ops.mlir").read_text()
    assert "RUN: XDSL_ROUNDTRIP" in text
    assert "RUN: XDSL_GENERIC_ROUNDTRIP" in text
    checked = "\n".join(line for line in text.splitlines() if line.lstrip().startswith("// CHECK"))
    missing = [op.name for op in dialect(name).operations if not re.search(rf"(?<![\w.]){re.escape(op.name)}\b", checked)]
    assert missing == []


@pytest.mark.parametrize("name", DIALECTS)
def test_has_a_lit_file_of_what_is_refused(root: Path, name: str):
    text = (root / "tests" / "filecheck" / "dialects" / name / "invalid.mlir").read_text()
    assert "--verify-diagnostics" in text
    assert "CHECK" in text


@pytest.mark.parametrize("name", DIALECTS)
def test_everything_has_a_docstring_of_its_own(name: str):
    items = (*dialect(name).operations, *dialect(name).attributes)
    assert [item.__name__ for item in items if not docstring(item)] == []


@pytest.mark.parametrize("name", DIALECTS)
def test_syntax_is_declared_or_shown(name: str):
    """An op either has an assembly format, which its page shows, or an example in its docstring."""
    hidden: list[str] = []
    for op in dialect(name).operations:
        assert issubclass(op, IRDLOperation)
        declared = op.get_irdl_definition().assembly_format is not None
        if not declared and f"{op.name} " not in docstring(op):
            hidden.append(op.name)
    assert hidden == []
