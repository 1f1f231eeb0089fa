"""docs/machine.md and docs/counters.md say what the code and the descriptions say."""

from pathlib import Path

import pytest

from lampc.targets.accel.machine import machine_names
from lampc.targets.accel.timing import pages


@pytest.mark.parametrize("name", pages.PAGES)
def test_page_is_current(name: str):
    assert (pages.DOCS / name).read_text() == pages.PAGES[name](), f"run {pages.COMMAND}"


def test_every_number_of_every_machine_has_a_source():
    text = pages.machine_page()
    for section, kind in pages.SECTIONS.items():
        for key in kind.__dataclass_fields__:
            # Once where it is explained, once for each machine's source.
            assert text.count(f"| `{section}.{key}` |") == 1 + len(machine_names()), key


def test_check_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    assert pages.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    told = capsys.readouterr().err
    assert all(name in told for name in pages.PAGES)
    assert pages.main([]) == 0
    assert pages.main(["--check"]) == 0
    assert pages.main(["--help"]) == 2
