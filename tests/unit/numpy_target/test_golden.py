"""The golden vectors: `python -m tests.golden.regenerate` writes them anew."""

import json

import pytest

from lampc.numerics import kernels
from tests.golden.vectors import FOLDER, SHAPES, vectors


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("engine", ["numba", "numpy"])
def test_bits_and_counts_are_those_recorded(shape: str, engine: kernels.Engine):
    if engine == "numba":
        pytest.importorskip("numba")
    chosen = kernels.engine()
    try:
        kernels.set_engine(engine)
        assert vectors(shape) == json.loads((FOLDER / f"{shape}.json").read_text())
    finally:
        kernels.set_engine(chosen)
