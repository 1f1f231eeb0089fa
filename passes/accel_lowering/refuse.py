"""Saying what the machine cannot do."""

from typing import NoReturn

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

from lampc.errors import CompileError, printable


def refuse(op: Operation, message: str) -> NoReturn:
    """Raise CompileError that names the node `op` comes from."""
    location = op.location
    where = f"node '{printable(location.desc.data)}'" if isinstance(location, NameLoc) else None
    raise CompileError(message, where=where)
