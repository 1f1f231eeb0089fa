"""Scalars, masks and orders in many contexts, against one context in plain Python."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lampc.targets.accel.config import Config
from lampc.targets.accel.functional import control
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.words import Word
from lampc.targets.accel.instruction import Format
from lampc.targets.accel.isa import BY_NAME
from lampc.targets.accel.key_tiles import key_range, tile_at

N = 200


def config(**values: Any) -> Config:
    plain = Config(bq=4, bk=4, nk=5, nq=2, d=8, dv=8, lq=70, lk=130, batch=1, hq=2, hkv=1, scale=1.0)
    return replace(plain, **values)


def word(name: str, **fields: int) -> Word:
    return Word(0, BY_NAME[name], name, Format.NONE, 0, -1, -1, 0, False, fields, np.float32(0))


@pytest.fixture
def contexts() -> Contexts:
    rng = np.random.default_rng(0)
    number = np.arange(N, dtype=np.int64)
    made = Contexts(config(), [], number % 2, number % 9, number % 2, number // 2, number % 2)
    made.p[1:] = rng.integers(0, 32, made.p[1:].shape)
    made.o[:] = rng.permuted(np.tile(np.arange(5), (*made.o.shape[:2], 1)), axis=2)
    return made


EVERYBODY = np.arange(N, dtype=np.int64)


def run(c: Contexts, name: str, **fields: int) -> None:
    control.HANDLERS[name](None, c, word(name, **fields), EVERYBODY)  # pyright: ignore[reportArgumentType]


def test_next_is_the_first_of_the_mask_in_the_order(contexts: Contexts):
    run(contexts, "p.next", pd=1, pa=2, order=3)
    for i in EVERYBODY:
        members = [int(theta) for theta in contexts.o[3, i] if contexts.p[2, i] >> int(theta) & 1]
        assert contexts.p[1, i] == (1 << members[0] if members else 0)


def test_after_is_what_the_order_has_behind_the_others(contexts: Contexts):
    run(contexts, "p.after", pd=1, pa=2, pb=3, order=0)
    for i in EVERYBODY:
        order = contexts.o[0, i].tolist()
        last = max((order.index(theta) for theta in range(5) if contexts.p[3, i] >> theta & 1), default=-1)
        expected = sum(1 << theta for theta in order[last + 1 :] if contexts.p[2, i] >> theta & 1)
        assert contexts.p[1, i] == expected


def test_masks_combine(contexts: Contexts):
    a, b = contexts.p[2].copy(), contexts.p[3].copy()
    for name, expected in (("p.and", a & b), ("p.or", a | b), ("p.andn", a & ~b)):
        contexts.p[2] = a
        run(contexts, name, pd=2, pa=2, pb=3)
        assert np.array_equal(contexts.p[2], expected)


def test_scalars(contexts: Contexts):
    run(contexts, "s.mov", sd=4, imm=(1 << 31) - 1)
    run(contexts, "s.add", sd=5, sa=4, imm=2)
    assert (contexts.s[5] == -(1 << 31) + 1).all()  # 32 bits wrap
    run(contexts, "p.cnt", sd=6, pa=0)
    assert (contexts.s[6] == 5).all()
    run(contexts, "p.const", pd=7, imm=-1)
    assert (contexts.p[7] == 31).all()
    run(contexts, "s.id", sd=8)
    assert np.array_equal(contexts.s[8:12], [contexts.head, contexts.head // 2, contexts.block, contexts.warp])


def test_a_ring_goes_round(contexts: Contexts):
    seen: list[tuple[int, int]] = []
    for _ in range(7):
        seen.append((int(contexts.s[2, 0]), int(contexts.s[3, 0])))
        run(contexts, "s.ring", ring=2, imm=3)
    assert seen == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 0)]


RULES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "causal_offset": 60},
    {"causal": True, "causal_offset": -40},
    {"causal": True, "window": 13, "causal_offset": 30},
    {"window": 9},
    {"window": 3, "causal_offset": 200},
    {"lk": 7, "causal": True, "causal_offset": -69},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_a_block_walks_from_its_first_live_tile_to_its_last(rules: dict[str, Any]):
    c = config(**rules)
    first, count = key_range(c, np.arange(c.blocks, dtype=np.int64))
    for block in range(c.blocks):
        tiles: set[int] = set()
        for j in range(block * 8, min(block * 8 + 8, c.lq)):
            for i in range(c.lk):
                dead = (c.causal and i > j + c.causal_offset) or (c.window and i <= j + c.causal_offset - c.window)
                if not dead:
                    tiles.add(i // 20)
        expected = (min(tiles), max(tiles) - min(tiles) + 1) if tiles else (0, 0)
        assert (first[block], count[block]) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("forward", {(0, 4): [0, 1, 2, 3], (2, 3): [2, 3, 4]}),
        ("reverse", {(0, 4): [3, 2, 1, 0], (2, 3): [4, 3, 2]}),
        ("sink-first", {(0, 4): [0, 3, 2, 1], (0, 1): [0], (2, 3): [4, 3, 2]}),
    ],
)
def test_key_orders(order: str, expected: dict[tuple[int, int], list[int]]):
    c = config(kv_order=order)
    for (first, count), tiles in expected.items():
        whole = np.full(count, count, np.int64)
        assert tile_at(c, np.full(count, first, np.int64), whole, np.arange(count, dtype=np.int64)).tolist() == tiles
