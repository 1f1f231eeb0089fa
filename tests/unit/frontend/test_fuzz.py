"""A short run of the fuzzer, always of the same models; `make fuzz` runs for longer and on others."""

import time

import numpy as np

from tests.fuzz.__main__ import fault_of, run
from tests.fuzz.mutate import mutated
from tests.fuzz.worker import case, models

COUNT = 150


def test_mutated_models_compile_or_are_refused_in_one_line():
    records = list(run(0, COUNT, time.monotonic() + 300))
    assert [record["seed"] for record in records] == list(range(COUNT))
    faults = [f"seed {record['seed']} ({record['model']}): {fault}" for record in records if (fault := fault_of(record))]
    assert not faults, "\n".join(faults)


def test_the_same_seed_gives_the_same_model():
    assert case(5) == case(5)
    assert case(5) != case(6)


def test_mutations_change_models():
    name, data = models()[0]
    assert name == "form 0"
    assert sum(mutated(data, np.random.default_rng(seed)) != data for seed in range(20)) > 15
