"""Few cases in which every two values of any two options meet."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

Choice: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[str, int, str, int]


def all_pairs(factors: Mapping[str, Sequence[Any]], seed: int = 0, tries: int = 40) -> list[Choice]:
    """
    Choices of one value per factor that cover every pair of values of every two factors.

    Greedy: each case starts from a pair not yet covered and is the best of `tries` at random. The same for the same seed.
    """
    rng = np.random.default_rng(seed)
    names = list(factors)
    left = {
        (a, i, b, j): None for a, b in combinations(names, 2) for i in range(len(factors[a])) for j in range(len(factors[b]))
    }
    cases: list[Choice] = []
    while left:
        a, i, b, j = next(iter(left))
        best: dict[str, int] = {}
        covered: list[Pair] = []
        for _ in range(tries):
            case = {name: int(rng.integers(len(factors[name]))) for name in names} | {a: i, b: j}
            pairs = [pair for x, y in combinations(names, 2) if (pair := (x, case[x], y, case[y])) in left]
            if len(pairs) > len(covered):
                best, covered = case, pairs
        for pair in covered:
            del left[pair]
        cases.append({name: factors[name][best[name]] for name in names})
    return cases


def some(factors: Mapping[str, Sequence[Any]], count: int, seed: int) -> list[Choice]:
    """`count` choices at random."""
    rng = np.random.default_rng(seed)
    return [{name: values[int(rng.integers(len(values)))] for name, values in factors.items()} for _ in range(count)]
