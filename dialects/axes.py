"""Axis patterns: einops' notation for splitting, merging and permuting axes, without repetition or reduction."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

_TOKEN = re.compile(r"\(([^()]*)\)|([A-Za-z_][A-Za-z0-9_]*|1)")


def _groups(side: str) -> list[list[str]]:
    groups: list[list[str]] = []
    position = 0
    for match in _TOKEN.finditer(side):
        if side[position : match.start()].strip():
            raise ValueError(f"cannot read {side.strip()!r}")
        names = match.group(1).split() if match.group(1) is not None else [match.group(2)]
        groups.append([name for name in names if name != "1"])
        position = match.end()
    if side[position:].strip():
        raise ValueError(f"cannot read {side.strip()!r}")
    return groups


@dataclass(frozen=True)
class Rearrangement:
    """
    `reshape(split_shape)`, `transpose(permutation)`, `reshape(result_shape)`: how a pattern runs on one shape.
    """

    split_shape: tuple[int, ...]
    permutation: tuple[int, ...]
    result_shape: tuple[int, ...]

    @classmethod
    def parse(cls, pattern: str, sizes: Mapping[str, int], shape: Sequence[int]) -> Self:
        """
        Read `pattern` for an array of `shape`; `sizes` gives the axes that a split leaves open (one per group may be left).

        Raises ValueError if the pattern is malformed, repeats or drops an axis, or does not fit the shape.
        """
        left_text, arrow, right_text = pattern.partition("->")
        if not arrow:
            raise ValueError(f"pattern {pattern!r} has no '->'")
        left, right = _groups(left_text), _groups(right_text)
        left_names = [name for group in left for name in group]
        right_names = [name for group in right for name in group]
        if len(set(left_names)) != len(left_names) or sorted(left_names) != sorted(right_names):
            raise ValueError(f"pattern {pattern!r} must name every axis once on each side")
        if len(left) != len(shape):
            raise ValueError(f"pattern {pattern!r} has {len(left)} axes, the operand {len(shape)}")
        known = dict(sizes)
        for group, size in zip(left, shape, strict=True):
            unknown = [name for name in group if name not in known]
            fixed = prod(known[name] for name in group if name in known)
            if len(unknown) > 1:
                raise ValueError(f"pattern {pattern!r} leaves the sizes of {', '.join(unknown)} open")
            if unknown:
                if fixed == 0 or size % fixed:
                    raise ValueError(f"an axis of size {size} does not split by {fixed}")
                known[unknown[0]] = size // fixed
            elif fixed != size:
                raise ValueError(f"({' '.join(group)}) has size {fixed}, the operand's axis {size}")
        return cls(
            tuple(known[name] for name in left_names),
            tuple(left_names.index(name) for name in right_names),
            tuple(prod(known[name] for name in group) for group in right),
        )
