"""Compile the timing loop with Numba where it is there; the plain Python functions give the same numbers, slowly."""

import hashlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def helper(function: F) -> F:
    """A function that the timing loop calls: stays as it is for Python, and Numba may compile it into the loop."""
    if find_spec("numba") is None:
        return function
    extending: Any = import_module("numba.extending")
    return extending.register_jitable(function)


def compiled(function: F) -> F:
    """
    Machine code of `function`, kept on disk.

    Kept code notices changes of the function's own file alone, so its name tells the content of all files of this folder.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    function.__qualname__ = f"{function.__name__}_{digest.hexdigest()[:12]}"
    jit: Any = import_module("lampc.numerics.jit")
    return jit.kernel(function)
