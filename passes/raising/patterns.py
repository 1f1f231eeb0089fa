"""Axis maps in einops' notation, for `attn.rearrange`."""

from lampc.passes.raising.axis_maps import Atom, Axis, Layout, atoms_of
from lampc.passes.raising.plan import Plan


def pattern_of(source: Layout, target: Layout, plan: Plan) -> tuple[str, dict[str, int]]:
    """
    The rearrangement from axes `source` to axes `target` in einops' notation, and the sizes it leaves open.

    Names follow the roles: b, h, l (rows; k for keys beside them), d; numbered where a role has several atoms.
    """
    present = atoms_of(source)
    batch, heads, rows, keys = plan.canonical
    heads = (*heads, *plan.key.target[1])
    roles = {"b": batch, "h": heads, "l": rows, ("k" if set(present) & set(rows) else "l"): keys}
    letters = {atom: letter for letter, group in roles.items() for atom in group}
    if set(rows) & set(present):
        letters.update(dict.fromkeys(rows, "l"))
    counts: dict[str, list[Atom]] = {}
    for atom in present:
        counts.setdefault(letters.get(atom, "d"), []).append(atom)
    names = {
        atom: letter if len(group) == 1 else f"{letter}{index}"
        for letter, group in counts.items()
        for index, atom in enumerate(group)
    }
    ones = _ones(source, target, set(names.values()))
    left = " ".join(_group(group, names, ones.get(("source", i))) for i, group in enumerate(source))
    right = " ".join(_group(group, names, ones.get(("target", i))) for i, group in enumerate(target))
    return f"{left} -> {right}", {names[atom]: atom.size for group in source for atom in group[:-1]}


def _ones(source: Layout, target: Layout, taken: set[str]) -> dict[tuple[str, int], str]:
    """Names for axes of size one, if both sides have equally many: `b h l d` reads better than `1 h l d`."""
    left = [i for i, group in enumerate(source) if not group]
    right = [i for i, group in enumerate(target) if not group]
    if len(left) != len(right):
        return {}
    result: dict[tuple[str, int], str] = {}
    for s, t in zip(left, right, strict=True):
        letter = "bhld"[t if len(target) == 4 else s] if 4 in (len(source), len(target)) else f"u{s}"
        if letter not in taken:
            result["source", s] = result["target", t] = letter
    return result


def _group(group: Axis, names: dict[Atom, str], one: str | None) -> str:
    if not group:
        return one or "1"
    return names[group[0]] if len(group) == 1 else f"({' '.join(names[atom] for atom in group)})"
