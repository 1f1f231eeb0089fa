"""See before a run that its tensors fit into this machine's memory."""

import os
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from lampc.dialects.onnx import NodeOp, is_tensor, numpy_dtype
from lampc.errors import InputError, printable


def physical_memory() -> int:
    """Bytes of memory that this machine has; effectively unlimited where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def check_memory(module: ModuleOp, limit: int) -> None:
    """
    Raise InputError if one value of an imported module (level 1), an input or a node's result, takes more than `limit` bytes.
    """
    for function in module.body.ops:
        if not isinstance(function, FuncOp) or not function.body.blocks:
            continue
        for argument in function.body.block.args:
            _check(argument.type, f"input '{printable(argument.name_hint or '')}'", limit)
        for op in function.walk():
            if isinstance(op, NodeOp):
                for result, name in zip(op.results, op.names, strict=True):
                    _check(result.type, f"value '{printable(name.data)}'", limit)


def _check(type: Attribute, what: str, limit: int) -> None:
    if not is_tensor(type) or any(size < 0 for size in type.get_shape()):
        return
    bytes = prod(type.get_shape()) * _item_bytes(type.element_type)
    if bytes > limit:
        shape = "x".join(map(str, type.get_shape()))
        raise InputError(
            f"{what} of shape {shape} takes {bytes / 2**30:,.0f} GiB and this machine has {limit / 2**30:,.0f}; "
            "choose smaller dimensions (--dim, --shape, --inputs)",
            code="E-MEMORY",
        )


def _item_bytes(element: Attribute) -> int:
    try:
        return numpy_dtype(element).itemsize
    except KeyError:  # strings
        return 1
