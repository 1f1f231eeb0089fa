"""What all tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from lampc.numerics import engine, threads

# The same examples on every machine and in every run: what fails fails again, and nothing is kept between runs.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def automatic_engine() -> Iterator[None]:
    """No test runs with the kernels or threads that another one chose."""
    yield
    engine.set_engine("auto")
    threads.set_threads(None)
