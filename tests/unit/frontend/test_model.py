"""Opening good models: external data, payloads of every type, names, functions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError
from lampc.frontend.constants import array_sha256
from lampc.frontend.limits import Limits
from lampc.frontend.model import Model, load_model
from lampc.frontend.tensors import STRIPPED
from tests.unit.frontend.builders import attention, load, model, node, tensor, value

WEIGHT = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
OFFSET = 4096


def with_weight(weight: TensorProto) -> ModelProto:
    return model([node("MatMul", ["x", "w"], ["y"])], [value("x", ("batch", 64))], [value("y", ("batch", 32))], [weight])


def write_external(folder: Path, data: Path) -> Path:
    """A model whose weight lies at an offset of `data`, named relative to the model's folder."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=WEIGHT.shape, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", data.name), ("offset", str(OFFSET)), ("length", str(WEIGHT.nbytes))):
        weight.external_data.add(key=key, value=text)
    data.write_bytes(bytes(OFFSET) + WEIGHT.tobytes())
    path = folder / "m.onnx"
    path.write_bytes(with_weight(weight).SerializeToString())
    return path


def weight_of(loaded: Model) -> Array:
    return loaded.constants["w"]


def test_external_weight_is_a_view_of_the_file(tmp_path: Path) -> None:
    loaded = load_model(write_external(tmp_path, tmp_path / "w.bin"))
    weight = weight_of(loaded)
    np.testing.assert_array_equal(weight, WEIGHT)
    assert not weight.flags.writeable
    assert not weight.flags.owndata
    assert loaded.constants["w"] is weight
    assert loaded.sha256 == hashlib.sha256((tmp_path / "m.onnx").read_bytes()).hexdigest()


def test_proto_has_no_large_payloads(tmp_path: Path) -> None:
    for loaded in (load_model(write_external(tmp_path, tmp_path / "w.bin")), load(with_weight(tensor("w", WEIGHT)))):
        (weight,) = loaded.proto.graph.initializer
        assert not weight.raw_data
        assert tuple(weight.dims) == WEIGHT.shape
        assert [entry.value for entry in weight.external_data] == [STRIPPED]
        np.testing.assert_array_equal(weight_of(loaded), WEIGHT)


def test_small_values_stay_in_the_proto() -> None:
    loaded = load(with_weight(tensor("w", WEIGHT)), Limits(inline_elements=WEIGHT.size))
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.proto.graph.initializer[0]), WEIGHT)


def test_cache_of_links_into_blobs(tmp_path: Path) -> None:
    """The Hugging Face cache: model and data are links to files beside each other in another folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    written = write_external(blobs, blobs / "m.onnx.data")
    written.rename(blobs / "0123")
    (blobs / "m.onnx.data").rename(blobs / "4567")
    (snapshot / "m.onnx").symlink_to(blobs / "0123")
    (snapshot / "m.onnx.data").symlink_to(blobs / "4567")
    np.testing.assert_array_equal(weight_of(load_model(snapshot / "m.onnx")), WEIGHT)


def test_external_data_dir(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "data").mkdir()
    path = write_external(tmp_path / "model", tmp_path / "data" / "w.bin")
    with pytest.raises(ModelError, match="--external-data-dir") as caught:
        load_model(path)
    assert caught.value.code == "E-EXTDATA-MISSING"
    np.testing.assert_array_equal(weight_of(load_model(path, external_data_dir=tmp_path / "data")), WEIGHT)


DTYPES: list[type[Any]] = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    np.int8,
    np.uint8,
    np.int32,
    np.int64,
    np.uint64,
    np.bool_,
    np.complex64,
]


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=[np.dtype(dtype).name for dtype in DTYPES])
def test_initializer_of_every_type(dtype: type[Any], raw: bool) -> None:
    values: Array = np.asarray(np.arange(15) % 7).astype(dtype).reshape(3, 5)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if raw:
        made = numpy_helper.from_array(values, "w")
    else:
        plain: Any = [complex(x) if np.dtype(dtype).kind == "c" else float(x) for x in values.reshape(-1)]
        made = helper.make_tensor("w", kind, values.shape, plain)
    loaded = load(model([node("Identity", ["w"], ["y"])], [], [value("y", (3, 5), kind)], [made]))
    assert weight_of(loaded).dtype == values.dtype
    np.testing.assert_array_equal(weight_of(loaded), values)


def test_any_byte_but_zero_is_true() -> None:
    made = TensorProto(name="w", data_type=TensorProto.BOOL, dims=[3], raw_data=bytes([0, 1, 255]))
    loaded = load(model([node("Identity", ["w"], ["y"])], [], [value("y", (3,), TensorProto.BOOL)], [made]))
    assert weight_of(loaded).view(np.uint8).tolist() == [0, 1, 1]


def test_hash_covers_type_shape_and_values() -> None:
    arrays = [WEIGHT, WEIGHT.T, WEIGHT.reshape(32, 64), WEIGHT.view(np.int32), WEIGHT + 1, WEIGHT[:0]]
    assert len({array_sha256(array) for array in arrays}) == len(arrays)
    assert array_sha256(WEIGHT) == array_sha256(np.asfortranarray(WEIGHT))
    assert load(with_weight(tensor("w", WEIGHT))).constants.sha256("w") == array_sha256(WEIGHT)


def test_renamed_values_keep_their_original_names() -> None:
    evil = 'in "quotes"\n' + "x" * 500
    made = model([node("Relu", [evil], ["y"])], [value(evil)], [value("y")])
    loaded = load(made)
    (read,) = loaded.inputs
    assert read.original == evil
    assert read.name.isprintable() and '"' not in read.name and len(read.name) < 200
    assert loaded.proto.graph.node[0].input[0] == read.name
    assert loaded.original(read.name) == evil


def test_renaming_keeps_different_names_different() -> None:
    made = model([node("Add", ["a\n", "a\t"], ["y"])], [value("a\n"), value("a\t"), value("a_~1")], [value("y")])
    names = [read.name for read in load(made).inputs]
    assert len(set(names)) == len(names)
    assert names[2] == "a_~1"


def test_input_with_a_default_is_no_input() -> None:
    made = with_weight(tensor("w", WEIGHT))
    made.graph.input.append(value("w", WEIGHT.shape))
    assert [read.name for read in load(made).inputs] == ["x"]


def reference_output(proto: ModelProto, feeds: dict[str, Array]) -> Array:
    """First output by onnx's own evaluator."""
    evaluator: Any = ReferenceEvaluator(proto)
    return evaluator.run(None, feeds)[0]


def test_functions_are_inlined_with_their_attributes() -> None:
    scaled = helper.make_node("Attention", ["q", "k", "v"], ["a"])
    factor = scaled.attribute.add(name="scale", type=onnx.AttributeProto.FLOAT)
    factor.ref_attr_name = "factor"
    function = helper.make_function(
        "lf", "Scaled", ["q", "k", "v"], ["y"], [scaled, helper.make_node("Relu", ["a"], ["y"])],
        [helper.make_opsetid("", 23)], ["factor"],
    )  # fmt: skip
    call = node("Scaled", ["Q", "K", "V"], ["Y"], domain="lf", factor=0.3)
    made = attention()
    del made.graph.node[:]
    made.graph.node.append(call)
    made.functions.append(function)
    made.opset_import.add(domain="lf", version=1)
    loaded = load(made)
    assert not loaded.proto.functions
    assert [inner.op_type for inner in loaded.proto.graph.node] == ["Attention", "Relu"]
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {name: generator.standard_normal((1, 2, 4, 8)).astype(np.float32) for name in "QKV"}
    expected, got = (reference_output(proto, feeds) for proto in (made, loaded.proto))
    np.testing.assert_array_equal(got, expected)


def test_domain_that_only_a_function_imports_is_kept() -> None:
    inner = [helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)]
    function = helper.make_function("lf", "F", ["x"], ["y"], inner, [helper.make_opsetid("ai.onnx.ml", 3)])
    made = model([node("F", ["x"], ["y"], domain="lf")], [value("x")], [value("y")], domains={"lf": 1}, functions=[function])
    assert load(made).opsets["ai.onnx.ml"] == 3


def test_order_of_sorted_nodes_is_kept_where_possible() -> None:
    names = ["c", "b", "a"]
    nodes = [node("Add", ["b_out", "a_out"], ["y"]), *(node("Relu", ["x"], [f"{name}_out"]) for name in names)]
    loaded = load(model(nodes, [value("x")], [value("y")]))
    assert [inner.output[0] for inner in loaded.proto.graph.node] == ["c_out", "b_out", "a_out", "y"]


def test_mapped_weights_can_be_let_go_of_and_read_again(tmp_path: Path) -> None:
    weights = np.arange(2**19, dtype=np.float32)
    (tmp_path / "w.data").write_bytes(weights.tobytes())
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weights.shape, data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="w.data")
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model([node("Add", ["x", "w"], ["y"])], [value("x", (1,))], [value("y", None)], [outside]).SerializeToString()
    )
    constants = load_model(path).constants
    array = constants["w"]
    digest = array_sha256(np.array(array))
    assert constants.sha256("w") == digest
    constants.unload()
    np.testing.assert_array_equal(array, weights)
