"""Which of the two forms of the kernels runs: Numba's or NumPy's. Their results have identical bits."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, cast

from lampc.errors import UsageError

Engine: TypeAlias = Literal["auto", "numba", "numpy"]

_chosen: Engine | None = None


def set_engine(name: Engine) -> None:
    """Choose the engine for all later calls; raises UsageError for an unknown one or Numba where it is missing."""
    global _chosen
    if name not in ("auto", "numba", "numpy"):
        raise UsageError(f"kernel engine '{name}' is unknown; choose auto, numba or numpy")
    if name == "numba" and find_spec("numba") is None:
        raise UsageError("kernel engine 'numba' needs the package numba; install it or choose numpy")
    _chosen = name


def engine() -> Literal["numba", "numpy"]:
    """The engine that calls use now."""
    if _chosen is None:
        set_engine(cast(Engine, os.environ.get("LAMPC_KERNELS", "auto")))
    if _chosen == "auto":
        set_engine("numba" if find_spec("numba") else "numpy")
    return "numpy" if _chosen == "numpy" else "numba"


def form(part: Literal["accumulate", "stages", "output", "tiles"]) -> Any:
    """The module of the engine in use; Numba's is imported on first need, since that takes a second."""
    return import_module(f"lampc.numerics.{'numba_' if engine() == 'numba' else ''}{part}")
