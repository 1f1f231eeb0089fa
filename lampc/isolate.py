"""
`--isolate`: the same command in a process of its own, under limits of memory and time.

What onnxruntime does with the host's part of a model escapes every budget of the importer: it may allocate without end, never
return or crash. The child gets the command without `--isolate`, so results are the same bits. Source: docs/onnx.md section 6.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from lampc.errors import InputError


def run_isolated(words: Sequence[str], file: str, *, memory_gib: float, seconds: float) -> int:
    """
    Exit code of `lampc` on `words` in a child process.

    memory_gib  of private data (RLIMIT_DATA) that it may hold; beyond, an allocation fails and the run ends in its one line
    seconds     of real time

    Raises InputError naming `file` if the child runs too long or dies.
    """
    command = [sys.executable, "-m", "lampc.cli", *words]
    limit = _limiter(int(memory_gib * 2**30)) if os.name == "posix" else None
    with subprocess.Popen(command, preexec_fn=limit) as child:
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            raise InputError(f"stopped after {seconds:g} s; --time-limit allows more", file=file) from None
        except BaseException:
            child.kill()
            raise
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        raise InputError(f"the isolated run died of {name}; with --memory-limit it may hold more", file=file)
    return code


def _limiter(limit: int) -> Callable[[], None]:
    import resource

    def apply() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        ceiling = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, most))

    return apply
