"""Philox4x32-10 against the known answers published with Random123 (kat_vectors)."""

import numpy as np
import pytest

from lampc.numerics.philox import RandomSite, philox


@pytest.mark.parametrize(
    ("seed", "counter", "word"),
    [
        (0, (0, 0, 0, 0), 0x6627E8D5),
        (2**64 - 1, (0xFFFFFFFF,) * 4, 0x408F276D),
        (0x299F31D0_A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0xD16CFE09),
    ],
)
def test_known_answers(seed: int, counter: tuple[int, int, int, int], word: int):
    assert philox(seed, *counter) == word


def test_site_is_the_counter_of_the_specification():
    site = RandomSite(7, 2, np.array([5, 6]), np.array([16, 32]), np.array([64, 0]), step=1)
    words = site.words(3, 2)
    for lane, (stream, query, key) in enumerate(((5, 16, 64), (6, 32, 0))):
        for i in range(3):
            for r in range(2):
                assert words[lane, i, r] == philox(7, stream, query + r, key + i, 1 * 4 + 2)
    assert (site.part(slice(1, 2)).words(3, 2) == words[1:]).all()
