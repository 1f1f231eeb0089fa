"""Write a run's files: into a temporary name first, so that nothing is left half-written."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError, printable

MARK = "report.json"
"""A folder that holds this file is one that lampc wrote and may replace."""


def _cannot(path: Path, what: str, error: OSError) -> InputError:
    return InputError(f"cannot {what}: {error.strerror or error}; choose another place", file=printable(str(path)))


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, all or nothing. Raises InputError if the place does not take it."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise _cannot(path, "write it", error) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise _cannot(path, "write it", error) from error


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write an .npz file, all or nothing. Raises InputError if the place does not take it."""
    import io

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_file(path, buffer.getvalue())


def check_folder(path: Path) -> None:
    """
    See before the work starts that a folder can be written to `path`.

    Raises InputError if something else is there, or if its parent does not exist or refuses.
    """
    if path.exists() and not path.is_dir():
        raise InputError("it is a file; name a folder", file=printable(str(path)))
    if path.is_dir() and any(path.iterdir()) and not (path / MARK).is_file():
        raise InputError("this folder holds other things; name a new or empty one", file=printable(str(path)))
    parent = path.resolve().parent
    if not parent.is_dir():
        raise InputError(f"folder '{printable(str(parent))}' does not exist; create it", file=printable(str(path)))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(
            f"folder '{printable(str(parent))}' cannot be written to; choose another place", file=printable(str(path))
        )


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """
    A temporary folder beside `path` that takes its place when the block ends well, and vanishes otherwise.

    Raises InputError as `check_folder` does.
    """
    check_folder(path)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.resolve().parent))
    except OSError as error:
        raise _cannot(path, "create it", error) from error
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.resolve().parent))
            os.replace(path, old / "old")
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise _cannot(path, "write it", error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
