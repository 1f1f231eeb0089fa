"""Counting, adding up and writing statistics (lampattention.md §6)."""

import json

import numpy as np
import pytest

from lampc.numerics.statistics import LIMIT, Statistics


def some(seed: int) -> Statistics:
    rng = np.random.default_rng(seed)
    stats = Statistics(3, 4)
    head = rng.integers(0, 3, 20)
    stage1 = rng.integers(0, 5, 20)
    stats.add_tiles(head, stage1, np.minimum(stage1 + rng.integers(0, 2, 20), 4))
    stats.add_dead_tiles(head[:4])
    stats.add_dead_tiles([0, 0], [5, 2])
    stats.add_saturation("e4m3", head, rng.integers(0, 9, 20), rng.random(20) * 448)
    stats.add_saturation("e4m11", head, np.zeros(20), np.zeros(20))
    stats.add_above_one(head, rng.integers(0, 3, 20))
    return stats


def test_totals():
    stats = some(0)
    data = stats.to_json()["total"]
    assert sum(data["recomputed"]) == data["live_tiles"] == 20 and data["dead_tiles"] == 4 + 5 + 2
    assert sum(data["columns"]) == sum(data["columns_after_stage1"]) == 20
    assert data["columns"][2] == sum(data["recomputed"][2:])
    per_head = [stats.columns(head=h) for h in range(3)]
    assert tuple(map(sum, zip(*per_head, strict=True))) == stats.columns()
    assert list(data["saturated"]) == ["e4m3"] and data["limit"] == LIMIT == 448


def test_repeated_heads_count_every_time():
    stats = Statistics(1, 2)
    stats.add_tiles([0, 0, 0], [1, 1, 0], [1, 2, 0])
    assert stats.stage1.tolist() == [[1, 2, 0]] and stats.final.tolist() == [[1, 1, 1]]


def test_merge_is_counting_together():
    together, other = some(1), some(2)
    together.merge(other)
    assert (together.final == some(1).final + other.final).all()
    assert (together.largest == np.maximum(some(1).largest, other.largest)).all()
    assert together.saturated["e4m3"].sum() == some(1).saturated["e4m3"].sum() + other.saturated["e4m3"].sum()
    with pytest.raises(ValueError, match="different"):
        together.merge(Statistics(3, 2))


def test_equality_and_json():
    assert some(3) == some(3) and some(3) != some(4)
    assert Statistics.from_json(json.loads(json.dumps(some(3).to_json()))) == some(3)
    empty = Statistics(2, 4)
    assert Statistics.from_json(empty.to_json()) == empty and empty.columns() == (0, 0, 0)
    changed = some(3)
    changed.largest[1] = np.nextafter(changed.largest[1], np.float32(np.inf))
    assert changed != some(3)
