"""docs/isa.md is what the table says, and covers every instruction."""

from pathlib import Path

import pytest

from lampc.targets.accel import isa_doc
from lampc.targets.accel.isa import TABLE


def test_the_page_is_up_to_date() -> None:
    assert isa_doc.PAGE.read_text() == isa_doc.page(), f"run {isa_doc.COMMAND}"


def test_every_instruction_is_priced_in_one_step() -> None:
    names = [name for _, _, names in isa_doc.STEPS for name in names]
    assert sorted(names) == sorted(row.name for row in TABLE)
    rows = [line for line in isa_doc.page().split("\n") if line.startswith("| ") and "`" in line]
    assert len(rows) >= len(isa_doc.STEPS)
    for row in TABLE:
        assert row.price.strip(" 0")


def test_check_tells_and_writing_mends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(isa_doc, "PAGE", tmp_path / "isa.md")
    assert isa_doc.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert isa_doc.main([]) == 0
    assert isa_doc.main(["--check"]) == 0
    assert isa_doc.main(["--help"]) == 2
