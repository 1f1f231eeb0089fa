"""How much a model may ask for before it is refused: every budget of the frontend in one place."""

from dataclasses import dataclass, fields, replace

from lampc.errors import UsageError

_FIXED = ("model_bytes", "rank", "inline_elements")
"""Limits of protobuf and NumPy, and a matter of speed: nothing for a user to raise."""


def raise_it(name: str) -> str:
    """What an error about a budget advises."""
    return f"for a model you trust, raise it with --limit {name}=N"


@dataclass(frozen=True)
class Limits:
    """
    Budgets of loading and importing one model. Source: onnx.md §6.

    model_bytes       size of the .onnx file itself (protobuf's own limit)
    nodes             nodes of all graphs together, counted before functions are inlined
    nesting           depth of subgraphs inside subgraphs
    rank              dimensions of a tensor (NumPy's own limit)
    inline_elements   elements up to which an initializer's values stay in `Model.proto`
    embedded_bytes    external data of one tensor that is no initializer of the main graph, and is therefore copied in
    dense_elements    elements of a sparse initializer written out
    fold_elements     elements of one constant computed at import
    fold_total        elements of all constants computed at import; beyond, nodes stay unfolded
    fold_weight       elements of a float initializer that folding may still transform (weights are left alone)
    host_elements     elements of one constant that a host segment could still be asked to compute
    loop_iterations   constant trip count of a Loop
    input_bytes       all arrays of --inputs, unpacked
    """

    model_bytes: int = 2**31 - 1
    nodes: int = 100_000
    nesting: int = 24
    rank: int = 64
    inline_elements: int = 1024
    embedded_bytes: int = 2**26
    dense_elements: int = 2**24
    fold_elements: int = 2**24
    fold_total: int = 2**27
    fold_weight: int = 2**16
    host_elements: int = 2**31
    loop_iterations: int = 1_000_000
    input_bytes: int = 2**32

    def changed(self, words: list[str]) -> "Limits":
        """The same with budgets replaced, each given as NAME=N. Raises UsageError."""
        limits = self
        for word in words:
            name, _, number = word.partition("=")
            if name not in budgets():
                raise UsageError(f"--limit {word}: no budget is called '{name}'; there are {', '.join(budgets())}")
            if not (number.isascii() and number.isdigit() and 1 <= len(number) <= 18 and int(number) > 0):
                raise UsageError(f"--limit {word}: give a whole number above 0")
            limits = replace(limits, **{name: int(number)})
        return limits


def budgets() -> dict[str, int]:
    """Name and default of every budget that a user may change."""
    return {field.name: getattr(Limits(), field.name) for field in fields(Limits) if field.name not in _FIXED}
