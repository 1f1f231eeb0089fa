"""LampAttention of one head, one number at a time, to check everything else against: the page itself is `section4.py`."""

from lampc.numerics.reference.head import attention
from lampc.numerics.reference.scalars import Head, Options

__all__ = ["Head", "Options", "attention"]
