"""
The values of a model's constants by ONNX name: initializers, mapped or held once, and what import computed.

Source: onnx.md §6 ("Initialisers go in as OrtValues from our own map").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from lampc.dialects.onnx_attributes import Array

_LARGE = 2**20
"""Bytes of an initializer that are worth letting go of after they were read."""
_PIECE = 2**26
"""Bytes that hashing reads before it lets go of them."""


def array_sha256(array: Array, unload: Callable[[], None] | None = None) -> str:
    """
    SHA-256 over dtype, shape and little-endian bytes: equal digests are equal tensors, whatever file they come from.

    unload  called after every piece of a large one that was read (`Constants.unload`)

    Reads every byte once (about 1.1 GB/s); strings are hashed by their text.
    """
    digest = hashlib.sha256(f"{array.dtype.name}{list(array.shape)}".encode())
    if array.dtype == np.object_:
        for item in array.reshape(-1):
            digest.update(repr(item).encode())
    elif array.size:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _PIECE):
            digest.update(flat[start : start + _PIECE].data)
            if unload is not None and flat.size >= _LARGE:
                unload()
    return digest.hexdigest()


class Constants(Mapping[str, Array]):
    """
    Read-only arrays by ONNX name.

    Initializers come from a loader each, called at first use: external ones are views of the mapped file, whose memory `unload`
    gives back. `folded` holds values
    that import computed for the dimensions at hand; an initializer is never replaced.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Array]], unload: Callable[[], None] | None = None):
        self._loaders = dict(loaders)
        self._unload = unload
        self._loaded: dict[str, Array] = {}
        self._hashes: dict[str, Future[str]] = {}
        self.folded: dict[str, Array] = {}

    @property
    def initializers(self) -> frozenset[str]:
        """Names of the initializers."""
        return frozenset(self._loaders)

    def __getitem__(self, name: str) -> Array:
        if name in self._loaded:
            return self._loaded[name]
        loader = self._loaders.get(name)
        if loader is None:
            return self.folded[name]
        array = self._loaded[name] = loader()
        return array

    def __iter__(self) -> Iterator[str]:
        yield from self._loaders
        yield from self.folded

    def __len__(self) -> int:
        return len(self._loaders) + len(self.folded)

    def __contains__(self, name: object) -> bool:
        return name in self._loaders or name in self.folded

    def hash_ahead(self, names: Iterable[str]) -> None:
        """Start hashing initializers on another thread: hashlib lets the interpreter go on while it reads weights."""
        pool = ThreadPoolExecutor(1, "lampc-hash")
        for name in names:
            if name not in self._hashes:
                self._hashes[name] = pool.submit(self._hash, name)
        pool.shutdown(wait=False)

    def sha256(self, name: str) -> str:
        """`array_sha256` of a constant; that of an initializer is computed once. KeyError for an unknown name."""
        if name in self.folded and name not in self._loaders:
            return array_sha256(self.folded[name])
        if name not in self._hashes:
            self._hashes[name] = done = Future[str]()
            done.set_result(self._hash(name))
        return self._hashes[name].result()

    def unload(self) -> None:
        """Let go of the memory that mapped initializers take; they are read from their files again when they are used."""
        if self._unload is not None:
            self._unload()

    def _hash(self, name: str) -> str:
        return array_sha256(self[name], self._unload)
