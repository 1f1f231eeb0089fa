"""The examples of docs/numerics.md run and print what the page says."""

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "numerics.md"


def test_examples():
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted > 20 and outcome.failed == 0
