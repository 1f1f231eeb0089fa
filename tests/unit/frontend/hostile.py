"""
Hostile and broken models, written by code: each with the error it deserves (onnx.md §6), or None where it must import.

A case is a function from an empty folder to the path of the model it wrote there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import ModelProto, SparseTensorProto, TensorProto, ValueInfoProto, helper

from tests.unit.frontend.builders import FLOAT, model, node, tensor, value

Case = tuple[str, str | None, Callable[[Path], Path]]
CASES: list[Case] = []


def case(name: str, code: str | None) -> Callable[[Callable[[Path], ModelProto | bytes]], None]:
    """Register a function that gives the model's message or bytes; it may write other files into the folder."""

    def register(build: Callable[[Path], ModelProto | bytes]) -> None:
        def write(folder: Path) -> Path:
            made = build(folder)
            path = folder / f"{name}.onnx"
            path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
            return path

        CASES.append((name, code, write))

    return register


def inputs() -> list[ValueInfoProto]:
    return [value(name) for name in "QKV"]


def with_weight(weight: TensorProto | None, sparse: SparseTensorProto | None = None) -> ModelProto:
    """Q + w, then Attention."""
    nodes = [node("Add", ["Q", "w"], ["q2"]), node("Attention", ["q2", "K", "V"], ["Y"])]
    made = model(nodes, inputs(), [value("Y")], [weight] if weight else [])
    if sparse:
        made.graph.sparse_initializer.append(sparse)
    return made


def external(dims: list[int], **entries: str) -> ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        weight.external_data.add(key=key, value=text)
    return with_weight(weight)


def data_file(folder: Path, name: str = "ok.bin", size: int = 128) -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    return path


@case("ext_traversal", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    data_file(folder.parent, "secret.bin")
    return external([4, 8], location="../secret.bin")


@case("ext_inner_traversal", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    (folder / "inner").mkdir()
    data_file(folder.parent, "secret.bin")
    return external([4, 8], location="inner/../../secret.bin")


@case("ext_absolute", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    return external([4, 8], location=str(data_file(folder)))


@case("ext_symlink", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    (folder / "link.bin").symlink_to(data_file(folder.parent, "secret.bin"))
    return external([4, 8], location="link.bin")


@case("ext_linked_folder", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    (folder.parent / "elsewhere").mkdir()
    data_file(folder.parent / "elsewhere")
    (folder / "inner").symlink_to(folder.parent / "elsewhere")
    return external([4, 8], location="inner/ok.bin")


@case("ext_pipe", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    os.mkfifo(folder / "pipe.bin")
    return external([4, 8], location="pipe.bin")


@case("ext_folder", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    (folder / "data").mkdir()
    return external([4, 8], location="data")


@case("ext_hardlink", None)
def _(folder: Path) -> ModelProto:
    (folder / "hard.bin").hardlink_to(data_file(folder))
    return external([4, 8], location="hard.bin")


@case("ext_short", "E-EXTDATA-SIZE")
def _(folder: Path) -> ModelProto:
    data_file(folder)
    return external([1024, 1024], location="ok.bin")


@case("ext_wrong_length", "E-EXTDATA-SIZE")
def _(folder: Path) -> ModelProto:
    data_file(folder)
    return external([4, 8], location="ok.bin", length="64")


@case("ext_offset", "E-EXTDATA-RANGE")
def _(folder: Path) -> ModelProto:
    data_file(folder)
    return external([4, 8], location="ok.bin", offset="1000000000", length="128")


@case("ext_negative_offset", "E-EXTDATA-RANGE")
def _(folder: Path) -> ModelProto:
    data_file(folder)
    return external([4, 8], location="ok.bin", offset="-64", length="128")


@case("ext_missing", "E-EXTDATA-MISSING")
def _(folder: Path) -> ModelProto:
    return external([4, 8], location="nofile.bin")


@case("ext_bad_key", "E-EXTDATA-KEY")
def _(folder: Path) -> ModelProto:
    data_file(folder)
    return external([4, 8], location="ok.bin", __class__="x")


@case("ext_no_location", "E-EXTDATA-KEY")
def _(folder: Path) -> ModelProto:
    return external([4, 8], offset="0")


@case("ext_in_attribute", "E-EXTDATA-PATH")
def _(folder: Path) -> ModelProto:
    made = external([4, 8], location="../secret.bin")
    constant = node("Constant", [], ["w"], value=made.graph.initializer[0])
    del made.graph.initializer[:]
    made.graph.node.insert(0, constant)
    return made


@case("huge_dims", "E-DIMS-OVERFLOW")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[2**31, 2**31], raw_data=bytes(16)))


@case("huge_dims_hidden_by_zero", "E-DIMS-OVERFLOW")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[0, 2**31, 2**31]))


@case("negative_dims", "E-DIMS-NEGATIVE")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[-4, -8], raw_data=bytes(128)))


@case("raw_size", "E-TENSOR-SIZE")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[4, 8], raw_data=bytes(100)))


@case("typed_size", "E-TENSOR-SIZE")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[4, 8], float_data=[0.0] * 31))


@case("no_payload", "E-TENSOR-SIZE")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[4, 8]))


@case("two_payloads", "E-TENSOR-PAYLOAD")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[4, 8], raw_data=bytes(128), float_data=[1.0] * 32))


@case("wrong_payload", "E-TENSOR-PAYLOAD")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=FLOAT, dims=[4, 8], int64_data=[1] * 32))


@case("undefined_dtype", "E-DTYPE")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=200, dims=[4, 8], raw_data=bytes(128)))


@case("no_dtype", "E-DTYPE")
def _(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", dims=[4, 8], raw_data=bytes(128)))


def sparse(index: int) -> ModelProto:
    made = helper.make_sparse_tensor(tensor("w", [1.5], np.float32), tensor("i", [index], np.int64), [4, 8])
    return with_weight(None, made)


@case("sparse_outside", "E-SPARSE-INDEX")
def _(folder: Path) -> ModelProto:
    return sparse(999)


@case("sparse_negative", "E-SPARSE-INDEX")
def _(folder: Path) -> ModelProto:
    return sparse(-1)


@case("sparse_ok", None)
def _(folder: Path) -> ModelProto:
    return sparse(3)
