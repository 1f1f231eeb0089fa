"""The standard streams of a command, where they are closed, full, or read by nobody any more."""

import os
import sys


def open_streams() -> None:
    """Give a command started without stdout or stderr (`>&-`) streams that take everything and show nothing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for as long as the process lives


def drop_stdout() -> None:
    """Throw away what stdout cannot take; without this Python complains once more when it closes it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(error: OSError) -> str:
    """What a failed system call means for the user, on one line: the file, or the output if none is named."""
    return f"{error.filename if error.filename is not None else 'the output cannot be written'}: {error.strerror or error}"
