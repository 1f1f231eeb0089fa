"""What all tests share."""

from hypothesis import settings

# The same examples on every machine and in every run: what fails fails again, and nothing is kept between runs.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")
