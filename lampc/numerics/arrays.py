"""Short names for array types."""

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint32]

ScalarT = TypeVar("ScalarT", bound=np.generic)


def frozen(x: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """A read-only view of `x`, made contiguous: Numba compiles once for these, whatever the caller's array allows."""
    view = np.ascontiguousarray(x).view()
    view.flags.writeable = False
    return view
