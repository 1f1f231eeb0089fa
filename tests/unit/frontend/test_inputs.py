"""Inputs from files nobody vouches for, and made-up ones."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError, UsageError
from lampc.frontend.dims import bind_dims
from lampc.frontend.inputs import filled_inputs, load_inputs, parse_value, synthetic_inputs
from lampc.frontend.limits import Limits
from lampc.frontend.model import Model
from tests.unit.frontend.builders import attention, load, model, node, tensor, value

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
IDS = np.array([[3, 1, 2]], np.int64)
X = np.random.default_rng(0).standard_normal((1, 3, 4)).astype(np.float32)


def two_inputs() -> Model:
    nodes = [node("Identity", ["ids"], ["a"]), node("Identity", ["x"], ["b"])]
    inputs = [value("ids", ("batch", "seq"), INT64), value("x", ("batch", "seq", 4))]
    return load(model(nodes, inputs, [value("a", None, INT64), value("b", None)]))


def saved(folder: Path, arrays: Mapping[str, Array], compressed: bool = False) -> Path:
    path = folder / "inputs.npz"
    (np.savez_compressed if compressed else np.savez)(path, allow_pickle=True, **arrays)
    return path


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("prefix", ["", "in/"])
def test_inputs_are_read(prefix: str, compressed: bool, tmp_path: Path) -> None:
    arrays: dict[str, Array] = {f"{prefix}ids": IDS, f"{prefix}x": X, **({"out/a": IDS} if prefix else {})}
    read = load_inputs(saved(tmp_path, arrays, compressed), two_inputs())
    assert list(read) == ["ids", "x"]
    np.testing.assert_array_equal(read["ids"], IDS)
    np.testing.assert_array_equal(read["x"], X)


def test_byte_order_and_layout_do_not_matter(tmp_path: Path) -> None:
    arrays: dict[str, Array] = {"ids": IDS.astype(">i8"), "x": np.asfortranarray(X)}
    read = load_inputs(saved(tmp_path, arrays), two_inputs())
    assert read["ids"].dtype == np.int64
    np.testing.assert_array_equal(read["ids"], IDS)
    np.testing.assert_array_equal(read["x"], X)


def test_keys_are_the_original_names(tmp_path: Path) -> None:
    made = load(model([node("Relu", ["x\n"], ["y"])], [value("x\n", X.shape)], [value("y", None)]))
    with zipfile.ZipFile(tmp_path / "i.npz", "w") as archive:
        stream = io.BytesIO()
        np.save(stream, X)
        archive.writestr("x\n.npy", stream.getvalue())
    np.testing.assert_array_equal(load_inputs(tmp_path / "i.npz", made)[made.inputs[0].name], X)


@pytest.mark.parametrize("stored", [np.uint16, ml_dtypes.bfloat16])
def test_bfloat16_as_bit_patterns(stored: type[Any], tmp_path: Path) -> None:
    made = load(model([node("Relu", ["x"], ["y"])], [value("x", (2, 3), TensorProto.BFLOAT16)], [value("y", None, 16)]))
    values: Array = np.array([[0, 1, 2], [3, 4, 5]], ml_dtypes.bfloat16)
    read = load_inputs(saved(tmp_path, {"x": np.asarray(values.view(stored))}), made)["x"]
    assert read.dtype == values.dtype
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        ({"ids": IDS}, "E-INPUT-NAME", ("holds ids;", "takes ids, x")),
        ({"ids": IDS, "x": X, "z": X}, "E-INPUT-NAME", ("ids, x, z",)),
        ({}, "E-INPUT-NAME", ("holds nothing",)),
        ({"ids": IDS.astype(np.float32), "x": X}, "E-INPUT-DTYPE", ("float32 [1, 3]", "int64 [batch, seq]")),
        ({"ids": IDS.astype(np.int32), "x": X}, "E-INPUT-DTYPE", ("int32 [1, 3]", "int64")),
        ({"ids": IDS, "x": X[..., :2]}, "E-INPUT-SHAPE", ("[1, 3, 2]", "[batch, seq, 4]")),
        ({"ids": IDS[0], "x": X}, "E-INPUT-SHAPE", ("[3]", "[batch, seq]")),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Array], code: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = saved(tmp_path, arrays)
    with pytest.raises(InputError) as caught:
        load_inputs(path, two_inputs())
    assert caught.value.code == code
    assert str(caught.value).startswith(str(path))
    for word in words:
        assert word in str(caught.value)


def npy(header: str) -> bytes:
    """An .npy file with a hand-written header and no data."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


class _Explosive:
    """Leaves a mark if anybody unpickles it."""

    exploded = False

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        return _explode, ()


def _explode() -> None:
    _Explosive.exploded = True


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([_Explosive()], object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776, 4)}"), "E-INPUT-SIZE"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-4, 4)}"), "E-INPUT-SHAPE"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 3)}"), "E-INPUT-SIZE"),
        (npy("{'descr': '<i8', 'fortran_order': False}"), "E-INPUT-FILE"),
        (npy("__import__('os').system('true')"), "E-INPUT-FILE"),
        (npy("(" * 5000), "E-INPUT-FILE"),
        (b"not an array", "E-INPUT-FILE"),
        (b"", "E-INPUT-FILE"),
        (pickled(), "E-INPUT-DTYPE"),
    ],
)
def test_hostile_arrays(content: bytes, code: str, tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, X)
    with zipfile.ZipFile(tmp_path / "i.npz", "w") as archive:
        archive.writestr("ids.npy", content)
        archive.writestr("x.npy", stream.getvalue())
    with pytest.raises(InputError) as caught:
        load_inputs(tmp_path / "i.npz", two_inputs())
    assert caught.value.code == code
    assert not _Explosive.exploded


def test_arrays_that_unpack_to_more_than_is_allowed(tmp_path: Path) -> None:
    proto = model([node("Add", ["a", "b"], ["y"])], [value("a", ("n",)), value("b", ("n",))], [value("y", ("n",))])
    np.savez_compressed(tmp_path / "i.npz", a=np.zeros(1000, np.float32), b=np.zeros(1000, np.float32))
    assert set(load_inputs(tmp_path / "i.npz", load(proto, Limits(input_bytes=8000)))) == {"a", "b"}
    with pytest.raises(InputError, match=r"array 'b' of 4000 bytes .* more than 7999; .* --limit input_bytes=N") as caught:
        load_inputs(tmp_path / "i.npz", load(proto, Limits(input_bytes=7999)))
    assert caught.value.code == "E-INPUT-SIZE"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", X.tobytes()])
def test_what_is_no_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    for wrong in (path, tmp_path, tmp_path / "missing.npz"):
        with pytest.raises(InputError) as caught:
            load_inputs(wrong, two_inputs())
        assert caught.value.code == "E-INPUT-FILE"


def test_damaged_archive(tmp_path: Path) -> None:
    path = saved(tmp_path, {"ids": IDS, "x": X}, compressed=True)
    data = bytearray(path.read_bytes())
    for position in range(60, 110):
        data[position] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError):
        load_inputs(path, two_inputs())


ROWS = 11


def language_model() -> Model:
    """Token, segment and position ids into their tables, two masks."""
    inputs = [
        value("tokens", ("batch", "seq"), INT64),
        value("segments", ("batch", "seq"), INT64),
        value("position_ids", ("batch", "seq"), INT64),
        value("attention_mask", ("batch", "seq"), INT64),
        value("mask_bias", ("batch", 1, "seq", 4)),
        value("keep", ("seq",), TensorProto.BOOL),
    ]
    tables = [tensor(name, np.zeros((rows, 4), np.float32)) for name, rows in (("t", ROWS), ("s", 2), ("p", 3))]
    nodes = [
        node("Cast", ["tokens"], ["narrow"], to=TensorProto.INT32),
        node("Gather", ["t", "narrow"], ["te"]),
        node("Gather", ["s", "segments"], ["se"]),
        node("Gather", ["p", "position_ids"], ["pe"]),
        node("Add", ["te", "se"], ["ts"]),
        node("Add", ["ts", "pe"], ["e"]),
        node("Add", ["mask_bias", "e"], ["y"]),
        node("Identity", ["keep"], ["kept"]),
        node("Identity", ["attention_mask"], ["masked"]),
    ]
    outputs = [value("y", None), value("kept", None, TensorProto.BOOL), value("masked", None, INT64)]
    return load(model(nodes, inputs, outputs, tables))


def test_synthetic_inputs_fit_their_roles() -> None:
    made = language_model()
    shapes = bind_dims(made, {"batch": 3, "seq": 50}).shapes
    arrays = synthetic_inputs(made, shapes, seed=1)
    for read in made.inputs:
        assert arrays[read.name].shape == shapes[read.name]
        assert arrays[read.name].dtype == read.dtype
    assert arrays["tokens"].min() >= 0
    assert arrays["tokens"].max() == ROWS - 1
    assert set(arrays["segments"].reshape(-1).tolist()) == {0, 1}
    assert arrays["position_ids"][1].tolist() == [index % 3 for index in range(50)]
    assert arrays["attention_mask"].all()
    assert not arrays["mask_bias"].any()
    assert arrays["keep"].all()


def test_synthetic_inputs_depend_on_the_seed_alone() -> None:
    made = two_inputs()
    shapes = bind_dims(made, {"batch": 2, "seq": 5}).shapes
    first, again, other = (synthetic_inputs(made, shapes, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])


def test_synthetic_lengths_count_all_keys() -> None:
    lengths = value("lengths", (1,), INT64)
    made = load(attention([lengths], opset=24, names=["Q", "K", "V", "", "", "", "lengths"]))
    keys = made.inputs[1].dims
    assert keys is not None
    assert synthetic_inputs(made, bind_dims(made).shapes)["lengths"].tolist() == [keys[2]]


def test_synthetic_strings_are_refused() -> None:
    made = load(
        model([node("Identity", ["x"], ["y"])], [value("x", (2,), TensorProto.STRING)], [value("y", None, TensorProto.STRING)])
    )
    with pytest.raises(InputError, match="no tensor of numbers"):
        synthetic_inputs(made, {"x": (2,)})


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [("flag=TRUE", "flag", True), ("n=-3", "n", -3), ("a=b=0.5", "a=b", 0.5), ("x=inf", "x", np.inf)],
)
def test_values_are_read(text: str, name: str, expected: float) -> None:
    assert parse_value(text) == (name, expected)


@pytest.mark.parametrize("text", ["flag", "=true", "flag=", "flag=yes"])
def test_values_of_another_form(text: str) -> None:
    with pytest.raises(UsageError, match="expected INPUT=X"):
        parse_value(text)


def test_inputs_are_filled_in_their_own_type() -> None:
    inputs = [value("x", (2, 3)), value("n", (2,), INT64), value("f", (1,), BOOL)]
    made = load(model([node("Identity", ["x"], ["y"])], inputs, [value("y", None)]))
    shapes = bind_dims(made).shapes
    filled = filled_inputs(made, shapes, {"x": 1, "n": 7, "f": True})
    assert {name: (array.dtype.name, array.tolist()) for name, array in filled.items()} == {
        "x": ("float32", [[1.0] * 3] * 2),
        "n": ("int64", [7, 7]),
        "f": ("bool", [True]),
    }
    for values in ({"n": 0.5}, {"n": 2**70}, {"f": 2}, {"n": float("nan")}):
        with pytest.raises(UsageError, match="E-INPUT-VALUE"):
            filled_inputs(made, shapes, values)
