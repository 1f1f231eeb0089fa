"""
Arrays to run a model on: read from an .npz file that nobody vouches for, or made up from a seed.

Source: onnx.md §6 ("`--inputs` is read without pickle and with header sizes checked").
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError, UsageError, printable
from lampc.frontend.limits import raise_it
from lampc.frontend.model import GraphValue, Model

_LONGEST_HEADER = 10_000
_LARGEST_SYNTHETIC = 2**28
_CORPUS_PREFIX = "in/"


def _header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of an .npy stream, read without evaluating or allocating anything large."""
    try:
        version = npy.read_magic(stream)
        if version == (1, 0):
            return npy.read_array_header_1_0(stream, max_header_size=_LONGEST_HEADER)
        if version == (2, 0):
            return npy.read_array_header_2_0(stream, max_header_size=_LONGEST_HEADER)
    except Exception as error:  # NumPy's reader of headers lets through whatever Python's tokeniser raises
        raise InputError(f"{what} is no NumPy array: {printable(str(error), 160)}", code="E-INPUT-FILE") from error
    raise InputError(f"{what} has .npy format version {version}; save it with numpy.savez", code="E-INPUT-FILE")


def _stored_dtype(value: GraphValue) -> tuple[np.dtype[Any], ...]:
    """Dtypes that hold an input's values: its own, and for types NumPy files lack the bit patterns."""
    dtype = value.dtype
    if dtype.kind == "V" or dtype.isbuiltin != 1:
        return dtype, np.dtype(f"V{dtype.itemsize}"), np.dtype(f"u{dtype.itemsize}")
    return (dtype,)


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, value: GraphValue, model: Model, room: int) -> Array:
    what = f"array '{printable(info.filename.removesuffix('.npy'))}'"
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(stream, what)
        wanted = f"{value.dtype.name} {value.shape_text()}"
        found = f"{dtype.name} {list(shape)}"
        if dtype.newbyteorder("=") not in _stored_dtype(value):
            raise InputError(f"{what} is {found}; {model.file} takes {wanted}. Convert it with astype.", code="E-INPUT-DTYPE")
        static = value.dims is not None and (
            len(shape) != len(value.dims)
            or any(isinstance(dim, int) and dim != size for dim, size in zip(value.dims, shape, strict=True))
        )
        if static or any(size < 0 for size in shape):
            raise InputError(f"{what} is {found}; {model.file} takes {wanted}", code="E-INPUT-SHAPE")
        size = prod(shape) * dtype.itemsize
        if size > info.file_size:
            raise InputError(f"{what} claims {size} bytes, the file has {info.file_size}", code="E-INPUT-SIZE")
        if size > room:  # a file of zeros unpacks to a thousand times its size
            raise InputError(
                f"with {what} of {size} bytes the arrays unpack to more than {model.limits.input_bytes}; "
                f"{raise_it('input_bytes')}",
                code="E-INPUT-SIZE",
            )
        data = stream.read(size)
    if len(data) != size:
        raise InputError(f"{what} claims {size} bytes, the file has {len(data)}", code="E-INPUT-SIZE")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    native = np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False)).reshape(shape)
    return native if native.dtype == value.dtype else native.view(value.dtype)


def _input_keys(archive: zipfile.ZipFile, model: Model, optional: Set[str]) -> Mapping[str, zipfile.ZipInfo]:
    """Input name as in the file to archive member; `in/NAME` and `out/NAME` keys follow the convention of recorded examples."""
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if not info.is_dir()}
    names = {value.original for value in model.inputs}
    if not names & members.keys() and any(key.startswith(_CORPUS_PREFIX) for key in members):
        members = {key.removeprefix(_CORPUS_PREFIX): info for key, info in members.items() if key.startswith(_CORPUS_PREFIX)}
    missing = sorted(names - members.keys() - optional)
    extra = sorted(members.keys() - names)
    if missing or extra:
        shown = [printable(", ".join(keys), 300) or "nothing" for keys in (sorted(members), sorted(names))]
        raise InputError(
            f"it holds {shown[0]}; {model.file} takes {shown[1]}. Keys must be the graph inputs.", code="E-INPUT-NAME"
        )
    return members


def load_inputs(path: str | Path, model: Model, optional: Set[str] = frozenset()) -> dict[str, Array]:
    """
    The arrays of an .npz file, by input name as in `Model.proto`. Keys are the graph inputs, or `in/NAME` for each.

    optional  inputs that the file may lack, names as in the model's file

    Types numpy files lack (bfloat16, float8) may be stored as unsigned bit patterns. Sizes are checked against the graph and
    the file before anything is allocated, and nothing is unpickled.

    Raises InputError: E-INPUT-FILE, E-INPUT-NAME, E-INPUT-DTYPE, E-INPUT-SHAPE, E-INPUT-SIZE, naming both sides.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError("it is no regular file; name an .npz file", code="E-INPUT-FILE")
        with zipfile.ZipFile(path) as archive:
            members = _input_keys(archive, model, optional)
            arrays: dict[str, Array] = {}
            room = model.limits.input_bytes
            for value in model.inputs:
                if value.original in members:
                    array = arrays[value.name] = _read_array(archive, members[value.original], value, model, room)
                    room -= array.nbytes
            return arrays
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", file=printable(str(path)), code="E-INPUT-FILE") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise InputError(
            f"it is no .npz file: {printable(str(error), 120)}; save it with numpy.savez",
            file=printable(str(path)),
            code="E-INPUT-FILE",
        ) from error
    except InputError as error:
        error.file = error.file or printable(str(path))
        raise
    except Exception as error:
        # zlib.error and its like: the decompressors have no common base class
        raise InputError(
            f"cannot read it: {printable(str(error), 120)}", file=printable(str(path)), code="E-INPUT-FILE"
        ) from error


_CARRIES_INDEX = frozenset(
    ("Cast", "Clip", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)


def _users(model: Model) -> dict[str, list[tuple[str, int, tuple[str, ...], tuple[str, ...]]]]:
    """Value name to (operator, position, inputs, outputs) of the nodes that read it."""
    users: dict[str, list[tuple[str, int, tuple[str, ...], tuple[str, ...]]]] = {}
    for node in model.proto.graph.node:
        for position, name in enumerate(node.input):
            users.setdefault(name, []).append((node.op_type, position, tuple(node.input), tuple(node.output)))
    return users


class _Roles:
    """What integer and mask inputs are for, from the nodes that read them."""

    def __init__(self, model: Model):
        self.model = model
        self.users = _users(model)
        self.shapes = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}

    def reached(self, name: str) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """(operator, position, inputs) of every node that reads `name`, or what casts and reshapes made of it."""
        stack, seen = [name], {name}
        while stack:
            for operator, position, inputs, outputs in self.users.get(stack.pop(), ()):
                yield operator, position, inputs
                if operator in _CARRIES_INDEX and position == 0:
                    stack.extend(output for output in outputs if output not in seen)
                    seen.update(outputs)

    def table_rows(self, name: str) -> int | None:
        """Rows of the smallest initializer that `name` indexes through Gather, or None."""
        rows = [
            self.shapes[inputs[0]][0]
            for operator, position, inputs in self.reached(name)
            if operator == "Gather" and position == 1 and self.shapes.get(inputs[0])
        ]
        return min(rows, default=None)

    def is_additive_mask(self, name: str) -> bool:
        """True if a float input is added to scores: zeros then mean that nothing is masked."""
        return any(
            operator == "Add" or (operator == "Attention" and position == 3) for operator, position, _ in self.reached(name)
        )

    def rotary_rows(self, name: str) -> int | None:
        """Rows of the cos cache that `name` positions, or None."""
        for operator, position, inputs in self.reached(name):
            if operator == "RotaryEmbedding" and position in (1, 3):
                sizes = [self.shapes[i][0] for i in inputs if len(self.shapes.get(i, ())) == 2]
                return min(sizes, default=2**31)
        return None


def _integers(value: GraphValue, shape: tuple[int, ...], roles: _Roles, generator: np.random.Generator) -> Array:
    name = value.name.lower()
    rows = roles.table_rows(value.name)
    rotary = roles.rotary_rows(value.name)
    readers = {(operator, position) for operator, position, _ in roles.reached(value.name)}
    if "mask" in name:
        return np.ones(shape, value.dtype)
    if "position" in name or "pos_ids" in name or rotary is not None:
        limit = min(limit for limit in (rows, rotary, 2**31) if limit is not None)
        counting = np.arange(shape[-1] if shape else 1) % max(limit, 1)
        return np.broadcast_to(counting if shape else counting[0], shape).astype(value.dtype)
    if rows is not None:
        return generator.integers(0, max(rows, 1), shape).astype(value.dtype)
    if ("Attention", 6) in readers or "seqlen" in name:
        return np.full(shape, _key_count(roles.model, value), value.dtype)
    return generator.integers(0, 2, shape).astype(value.dtype)


def _key_count(model: Model, value: GraphValue) -> int:
    """Length of the keys of the Attention whose lengths `value` gives, 1 if it is not declared."""
    inputs = {graph_input.name: graph_input for graph_input in model.inputs}
    for node in model.proto.graph.node:
        if node.op_type == "Attention" and value.name in node.input[6:]:
            dims = inputs[node.input[1]].dims if node.input[1] in inputs else None
            size = dims[-2] if dims and len(dims) > 2 else None
            return size if isinstance(size, int) else 1
    return 1


def _check_synthetic(model: Model, value: GraphValue, shape: tuple[int, ...]) -> None:
    where = f"input '{printable(value.original)}'"
    if not value.is_tensor or value.dtype == np.object_:
        raise InputError(
            "it is no tensor of numbers; give it with --inputs", file=model.file, where=where, code="E-INPUT-DTYPE"
        )
    if prod(max(size, 1) for size in shape) > _LARGEST_SYNTHETIC:
        raise InputError(
            f"{list(shape)} is too large to make up; choose smaller sizes", file=model.file, where=where, code="E-INPUT-SIZE"
        )


def synthetic_inputs(model: Model, shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Array]:
    """
    Made-up inputs by name as in `Model.proto`; equal seeds give equal arrays.

    shapes  input name to shape (`Binding.shapes`)

    Floats are standard normal, ids lie within the table they index, masks allow everything, positions count.
    Raises InputError for inputs that are no tensors of numbers. Whoever prints results says that they are `SYNTHETIC`.
    """
    roles = _Roles(model)
    arrays: dict[str, Array] = {}
    for index, value in enumerate(model.inputs):
        generator = np.random.Generator(np.random.Philox(key=[seed, index]))
        shape = shapes.get(value.name, ())
        _check_synthetic(model, value, shape)
        if value.dtype == np.bool_:
            arrays[value.name] = np.ones(shape, np.bool_)
        elif value.dtype.name.startswith(("int", "uint")):
            arrays[value.name] = _integers(value, shape, roles, generator)
        elif "mask" in value.name.lower():
            additive = roles.is_additive_mask(value.name)
            arrays[value.name] = (np.zeros if additive else np.ones)(shape, value.dtype)
        else:
            arrays[value.name] = generator.standard_normal(shape, np.float32).astype(value.dtype, copy=False)
    return arrays


def parse_value(text: str) -> tuple[str, bool | int | float]:
    """`INPUT=X` of `--value` as (input, number); UsageError if it is not of that form."""
    name, equals, number = text.rpartition("=")
    if equals and name:
        if number.lower() in ("true", "false"):
            return name, number.lower() == "true"
        for read in (int, float):
            with suppress(ValueError):
                return name, read(number)
    raise UsageError(f"--value {printable(text)}: expected INPUT=X with true, false or a number, such as use_cache_branch=true")


def filled_inputs(
    model: Model, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, bool | int | float]
) -> dict[str, Array]:
    """
    Arrays of one value everywhere, by name as in `Model.proto`.

    shapes  input name to shape (`Binding.shapes`)
    values  input name as in the model's file to its value (`parse_value`)

    Raises UsageError for inputs the model does not have and values that their types do not hold.
    """
    by_original = {value.original: value for value in model.inputs}
    arrays: dict[str, Array] = {}
    for name, number in values.items():
        if name not in by_original:
            known = ", ".join(printable(original) for original in by_original)
            raise UsageError(
                f"--value: no input is named '{printable(name)}'; inputs: {known}", file=model.file, code="E-INPUT-NAME"
            )
        value = by_original[name]
        shape = shapes[value.name]
        _check_synthetic(model, value, shape)
        filled: Array | None = None
        with suppress(OverflowError), np.errstate(all="ignore"):
            filled = np.array(number).astype(value.dtype)
        if filled is None or (value.dtype.kind in "biu" and filled != number):
            text = f"--value: input '{printable(name)}' is {value.dtype.name} and cannot be {number:g}"
            raise UsageError(text, file=model.file, code="E-INPUT-VALUE")
        arrays[value.name] = np.full(shape, filled, value.dtype)
    return arrays


SYNTHETIC = "synthetic inputs: seeded noise, ids within their tables, masks of ones, counting positions"
"""What to call the inputs of `synthetic_inputs` wherever results are printed."""
