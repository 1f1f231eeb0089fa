"""
Errors that a user can act on.

Each says where (file and node, tensor, line or option), what is wrong and what to do, in one line; the command line prints
that line and exits with `exit_code`. Anything else that escapes is a fault of lampc and exits with 70.
"""

from typing import ClassVar


def printable(name: str, limit: int = 120) -> str:
    """`name` on one line of printable characters, shortened: names come from untrusted models."""
    text = name.encode("unicode_escape", "backslashreplace").decode("ascii")
    return text if len(text) <= limit else text[: limit - 3] + "..."


class LampcError(Exception):
    """
    Something the user's input is at fault for (exit code 1).

    code    short stable name such as `E-EXTDATA-PATH`, or None
    where   what the message is about, for example "node 'layers.0/attention'"; names in it go through `printable`
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, file: str | None = None, where: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.file = file
        self.where = where
        self.code = code

    def __str__(self) -> str:
        parts = [p for p in (self.file, self.where) if p]
        text = ": ".join([*parts, self.message])
        return f"{text} [{self.code}]" if self.code else text


class ModelError(LampcError):
    """The ONNX file is broken, hostile, or uses what lampc does not support."""


class InputError(LampcError):
    """An input or output file, array or folder does not fit."""


class CompileError(LampcError):
    """A stage cannot be compiled with the chosen options or machine."""


class UsageError(LampcError):
    """The command line or an option value is wrong (exit code 2)."""

    exit_code: ClassVar[int] = 2
