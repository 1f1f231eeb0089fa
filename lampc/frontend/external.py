"""
External data, resolved and mapped by lampc itself: no path leaves the model's folder and no size is taken on trust.

Allowed is a regular file inside the model's folder or inside the folder of the model's own real path (the Hugging Face cache
links both into `blobs/`), or inside a folder the user names. Source: onnx.md §6 (01 to 09, "Links").
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from lampc.dialects.onnx_attributes import Array
from lampc.errors import printable
from lampc.frontend.limits import Limits
from lampc.frontend.tensors import check_tensor, stored_bytes, tensor_dtype, tensor_error, view_bytes

_KEYS = frozenset(("location", "offset", "length", "checksum"))


@dataclass(frozen=True)
class ByteRange:
    """Where a tensor's bytes lie: the file's real path, the first byte and the number of bytes."""

    path: str
    offset: int
    length: int


def _entries(tensor: TensorProto, what: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise tensor_error(
                what, f"external data has the unknown key '{printable(str(entry.key))}'; known are {known}", "E-EXTDATA-KEY"
            )
        if entry.key in entries:
            raise tensor_error(what, f"external data gives '{entry.key}' twice", "E-EXTDATA-KEY")
        entries[entry.key] = entry.value
    if not entries.get("location"):
        raise tensor_error(what, "external data names no location", "E-EXTDATA-KEY")
    return entries


def _number(entries: dict[str, str], key: str, what: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise tensor_error(what, f"external data has {key} '{printable(text)}'; a count of bytes is needed", "E-EXTDATA-RANGE")
    return int(text)


@dataclass
class ExternalData:
    """
    The external files of one model.

    model_path   the model's path as given, or None for a model read from bytes without one
    extra_dir    a folder the user allows and prefers, or None
    """

    model_path: Path | None
    extra_dir: Path | None = None
    warnings: list[str] = field(default_factory=list[str])
    _maps: dict[str, mmap.mmap | bytes] = field(default_factory=dict[str, "mmap.mmap | bytes"])

    def _folders(self) -> list[tuple[str, str]]:
        """(folder to look in, real folder that must hold the file), in the order they are tried."""
        folders: list[tuple[str, str]] = []
        if self.extra_dir is not None:
            folders.append((str(self.extra_dir), os.path.realpath(self.extra_dir)))
        if self.model_path is not None:
            folder = os.path.dirname(os.path.abspath(self.model_path))
            folders.append((folder, os.path.realpath(folder)))
            own = os.path.dirname(os.path.realpath(self.model_path))
            folders.append((folder, own))
            folders.append((own, own))
        return folders

    def _resolve(self, location: str, what: str) -> str:
        """The real path of a location, or ModelError E-EXTDATA-PATH, E-EXTDATA-MISSING."""
        shown = printable(location)
        absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\")
        if absolute or "\0" in location or ".." in location.replace("\\", "/").split("/"):
            raise tensor_error(
                what, f"external data location '{shown}' must be a file inside the model's folder", "E-EXTDATA-PATH"
            )
        outside = None
        for folder, allowed in self._folders():
            real = os.path.realpath(os.path.join(folder, location))
            if not os.path.lexists(real):
                continue
            if os.path.commonpath((real, allowed)) == allowed:
                return real
            outside = real
        if outside is not None:
            raise tensor_error(
                what,
                f"external data location '{shown}' is a link that leaves the model's folder; copy the file there or name its "
                "folder with --external-data-dir",
                "E-EXTDATA-PATH",
            )
        raise tensor_error(
            what,
            f"external data file '{shown}' does not exist beside the model; copy it there or name its folder with "
            "--external-data-dir",
            "E-EXTDATA-MISSING",
        )

    def _map(self, real: str, what: str) -> mmap.mmap | bytes:
        if real in self._maps:
            return self._maps[real]
        try:
            # Not blocking: opening a pipe would wait for a writer before its kind can be seen.
            handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise tensor_error(what, f"cannot open its external data: {error.strerror}", "E-EXTDATA-MISSING") from error
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise tensor_error(what, "its external data is no regular file", "E-EXTDATA-PATH")
            if status.st_nlink > 1:
                self.warnings.append(f"external data file '{printable(real)}' has {status.st_nlink} hard links")
            mapped = mmap.mmap(handle, 0, prot=mmap.PROT_READ) if status.st_size else b""
        finally:
            os.close(handle)
        self._maps[real] = mapped
        return mapped

    def locate(self, tensor: TensorProto, what: str, limits: Limits) -> ByteRange:
        """
        Where the bytes of an external tensor lie; the file is there and long enough.

        Raises ModelError: E-EXTDATA-KEY, -PATH, -MISSING, -SIZE (file or length too short), -RANGE (offset), or what
        `check_tensor` raises.
        """
        entries = _entries(tensor, what)
        offset = _number(entries, "offset", what) or 0
        length = _number(entries, "length", what)
        real = self._resolve(entries["location"], what)
        count = check_tensor(tensor, what, limits)
        need = stored_bytes(tensor.data_type, count, tensor_dtype(tensor.data_type, what).itemsize)
        size = len(self._map(real, what))
        if length is not None and length != need:
            raise tensor_error(
                what, f"external data is {length} bytes long, {list(tensor.dims)} needs {need}", "E-EXTDATA-SIZE"
            )
        if offset > size:
            raise tensor_error(what, f"external data starts at byte {offset} of a file of {size} bytes", "E-EXTDATA-RANGE")
        if offset + need > size:
            message = f"external data needs {need} bytes from byte {offset} on, the file has {size}"
            raise tensor_error(what, message, "E-EXTDATA-SIZE")
        return ByteRange(real, offset, need)

    def unload(self) -> None:
        """Give back the memory that the mapped files take; what is used again is read again."""
        for mapped in self._maps.values():
            if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def read(self, tensor: TensorProto, where: ByteRange, what: str) -> Array:
        """The values at `where`, a read-only view of the mapped file (a copy only for 4-bit and boolean tensors)."""
        view = memoryview(self._map(where.path, what))[where.offset : where.offset + where.length]
        array = view_bytes(view, tensor.data_type, tensor.dims, what)
        array.flags.writeable = False
        return array
