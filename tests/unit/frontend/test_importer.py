"""The imported module: names, locations, types, constants, what is folded and what is left alone."""

from __future__ import annotations

import os
import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from xdsl.context import Context
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    Builtin,
    ModuleOp,
    NameLoc,
    StringAttr,
    TensorType,
    UnknownLoc,
    UnrankedTensorType,
)
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from lampc.dialects.onnx import (
    AbsentType,
    ConstantOp,
    InitializerOp,
    MaskAttr,
    NodeOp,
    Onnx,
    StringType,
    UnknownType,
    ValuesAttr,
    YieldOp,
)
from lampc.dialects.onnx_attributes import Array
from lampc.errors import ModelError
from lampc.frontend.constants import array_sha256
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.inputs import load_inputs
from lampc.frontend.limits import Limits
from lampc.frontend.model import load_model
from lampc.frontend.xdsl_frontend import OnnxFrontend
from tests.unit.frontend.builders import attention, imported, load, model, node, nodes_of, tensor, value

CORPUS = Path(os.environ.get("CORPUS", Path(__file__).parents[4] / "shared" / "corpus"))
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
LENGTH = 40
"""Long enough that a [LENGTH, LENGTH] mask is no inline constant."""


def text_of(module: ModuleOp) -> str:
    stream = StringIO()
    Printer(stream).print_op(module)
    return stream.getvalue()


def reparsed(text: str) -> str:
    context = Context()
    for dialect in (Builtin, Func, Onnx):
        context.load_dialect(dialect)
    return text_of(Parser(context, text).parse_module())


def function_of(module: ModuleOp) -> FuncOp:
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    return function


def returned(module: ModuleOp) -> Any:
    """The op that makes the only result."""
    end = function_of(module).body.block.last_op
    assert isinstance(end, ReturnOp)
    (result,) = end.operands
    return result.owner


def test_names_are_on_arguments_results_and_nodes() -> None:
    made, module = imported(attention())
    function = function_of(module)
    assert function.arg_attrs is not None and function.res_attrs is not None
    assert [entry.data["onnx.name"] for entry in function.arg_attrs] == [StringAttr(name) for name in "QKV"]
    assert [entry.data["onnx.name"] for entry in function.res_attrs] == [StringAttr("Y")]
    (found,) = nodes_of(module)
    assert [name.data for name in found.names] == ["Y"]
    assert found.location == NameLoc(StringAttr("node_Y"), UnknownLoc())
    assert module.attributes["onnx.model"] == StringAttr(made.file)
    assert reparsed(text_of(module)) == text_of(module)


def shape_of(op: Operation) -> tuple[int, ...]:
    """Shape of the only result."""
    (type_,) = op.result_types
    assert isinstance(type_, TensorType)
    return type_.get_shape()


def causal_model(length: int | str = "seq") -> ModelProto:
    """Scores plus a causal mask built as exporters build it: Range, Unsqueeze, LessOrEqual, Where."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "last"], ["length"]),
        node("Range", ["zero", "length", "one"], ["positions"]),
        node("Unsqueeze", ["positions", "axis0"], ["keys"]),
        node("Unsqueeze", ["positions", "axis1"], ["queries"]),
        node("LessOrEqual", ["keys", "queries"], ["allowed"]),
        node("Where", ["allowed", "nothing", "lowest"], ["mask"]),
        node("Add", ["x", "mask"], ["y"]),
    ]
    constants = [
        tensor("last", -1, np.int64),
        tensor("zero", 0, np.int64),
        tensor("one", 1, np.int64),
        tensor("axis0", [0], np.int64),
        tensor("axis1", [1], np.int64),
        tensor("nothing", 0, np.float32),
        tensor("lowest", np.finfo(np.float32).min, np.float32),
    ]
    return model(nodes, [value("x", (1, 2, length, length))], [value("y", (1, 2, length, length))], constants)


def test_mask_arithmetic_folds_to_one_described_constant() -> None:
    made, module = imported(causal_model(), {"seq": LENGTH})
    assert [found.op_type.data for found in nodes_of(module)] == ["Add"]
    (mask,) = (op for op in module.walk() if isinstance(op, InitializerOp))
    assert mask.content == MaskAttr.causal(masked=float(np.finfo(np.float32).min))
    values = made.constants["mask"]
    assert mask.sha256.data == array_sha256(values)
    np.testing.assert_array_equal(values, np.where(np.tri(LENGTH, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32))
    assert mask.location == NameLoc(StringAttr("node_mask"), UnknownLoc())
    assert set(made.constants.folded) == {"mask"}


def test_small_constants_are_inline() -> None:
    made, module = imported(causal_model(), {"seq": 4})
    (mask,) = (op for op in module.walk() if isinstance(op, ConstantOp))
    np.testing.assert_array_equal(mask.to_numpy(), made.constants["mask"])
    assert mask.content == MaskAttr.causal(masked=float(np.finfo(np.float32).min))


def test_second_import_replaces_what_the_first_computed() -> None:
    made = load(causal_model())
    for length in (4, LENGTH, 5):
        import_model(made, bind_dims(made, {"seq": length})).verify()
        assert made.constants["mask"].shape == (length, length)


def test_budget_leaves_nodes_unfolded() -> None:
    made, module = imported(causal_model(), {"seq": LENGTH}, Limits(fold_elements=LENGTH * LENGTH - 1))
    kinds = [found.op_type.data for found in nodes_of(module)]
    assert kinds == ["LessOrEqual", "Where", "Add"]
    assert set(made.constants.folded) == {"keys", "queries"}
    _, module = imported(causal_model(), {"seq": LENGTH}, Limits(fold_total=0))
    assert "Range" in [found.op_type.data for found in nodes_of(module)]


def weight_model(weight: Array, op_type: str, **attributes: Any) -> ModelProto:
    return model(
        [node(op_type, ["w"], ["t"], **attributes), node("Identity", ["x"], ["xx"])],
        [value("x")],
        [value("t", None, 0), value("xx", None, 0)],
        [tensor("w", weight)],
    )


def test_weights_are_not_transformed_but_masks_are() -> None:
    size = int(Limits().fold_weight ** 0.5) + 1
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    _, module = imported(weight_model(weight, "Transpose"))
    assert "Transpose" in [found.op_type.data for found in nodes_of(module)]
    made, module = imported(weight_model(np.tri(size, dtype=np.uint8), "Cast", to=BOOL))
    assert "Cast" not in [found.op_type.data for found in nodes_of(module)]
    assert made.constants["t"].dtype == np.bool_


def test_unused_constants_are_not_emitted() -> None:
    made = weight_model(np.ones((2, 2), np.float32), "Transpose")
    del made.graph.output[0]
    _, module = imported(made)
    assert not [op for op in module.walk() if isinstance(op, (ConstantOp, InitializerOp))]


def test_constant_nodes_of_every_kind() -> None:
    kinds: dict[str, Any] = {
        "value": tensor("", [[1.5]], np.float64),
        "value_float": 0.1,
        "value_floats": [0.1, -np.inf],
        "value_int": -3,
        "value_ints": [2**62, -1],
    }
    for kind, given in kinds.items():
        made, module = imported(model([node("Constant", [], ["c"], **{kind: given})], [], [value("c", None, 0)]))
        op = returned(module)
        assert isinstance(op, ConstantOp)
        np.testing.assert_array_equal(op.to_numpy(), made.constants["c"])
    strings = model([node("Constant", [], ["c"], value_strings=["a", "b"])], [], [value("c", None, TensorProto.STRING)])
    op = returned(imported(strings)[1])
    assert isinstance(op, InitializerOp)
    assert op.result.type == TensorType(StringType(), (2,))


def test_absent_inputs_and_outputs() -> None:
    made = attention([value("pk", (1, 2, 3, 8)), value("pv", (1, 2, 3, 8))], names=["Q", "K", "V", "", "pk", "pv"])
    made.graph.node[0].output.extend(["", "present_value"])
    _, module = imported(made)
    (found,) = nodes_of(module)
    assert [isinstance(operand.type, AbsentType) for operand in found.inputs] == [False, False, False, True, False, False]
    assert [isinstance(type_, AbsentType) for type_ in found.result_types] == [False, True, False]
    assert [name.data for name in found.names] == ["Y", "", "present_value"]


def test_declared_types_fill_in_what_nobody_infers() -> None:
    fused = node("FusedThing", ["x"], ["f"], domain="com.microsoft")
    unknown = node("FusedThing", ["x"], ["u"], domain="com.microsoft")
    nodes = [fused, unknown, node("Relu", ["f"], ["y"])]
    made = model(nodes, [value("x")], [value("y", None)], domains={"com.microsoft": 1}, values=[value("f", (2, "n", "other"))])
    made.graph.input.append(value("z", ("n",)))
    _, module = imported(made, {"n": 3})
    types = {found.names.data[0].data: found.result_types[0] for found in nodes_of(module)}
    for name in "fy":
        type_ = types[name]
        assert isinstance(type_, TensorType)
        assert type_.get_shape() == (2, 3, DYNAMIC_INDEX)
    assert types["u"] == UnknownType()
    assert {found.version.value.data for found in nodes_of(module) if found.op_type.data == "FusedThing"} == {0}


def test_inner_declarations_give_way_to_inference() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Relu", ["r"], ["y"])]
    _, module = imported(model(nodes, [value("x", (5, 6))], [value("y", None)], values=[value("r", (1, 6))]))
    assert shape_of(returned(module)) == (5, 6)


def if_model(condition: str = "c") -> ModelProto:
    """Both branches use the outer value `r`; one has a constant of its own."""
    then = helper.make_graph([node("Add", ["r", "k"], ["t"])], "then", [], [value("t", None)], [tensor("k", [1.0], np.float32)])
    other = helper.make_graph([node("Mul", ["r", "two"], ["e"])], "else", [], [value("e", None)])
    nodes = [node("Relu", ["x"], ["r"]), node("If", [condition], ["y"], then_branch=then, else_branch=other)]
    inputs = [value("x", (2, 3)), value("c", (), BOOL)]
    return model(nodes, inputs, [value("y", None)], [tensor("two", [2.0], np.float32), tensor("yes", True)])


def test_branches_become_regions_that_capture_values() -> None:
    _, module = imported(if_model())
    outer = returned(module)
    assert isinstance(outer, NodeOp) and outer.graphs is not None
    assert [graph.data for graph in outer.graphs] == ["else_branch", "then_branch"]
    assert shape_of(outer) == (2, 3)
    for region in outer.regions:
        end = region.block.last_op
        assert isinstance(end, YieldOp)
        inner = end.values[0].owner
        assert isinstance(inner, NodeOp)
        relu = inner.inputs[0].owner
        assert isinstance(relu, NodeOp) and relu.op_type.data == "Relu"
    assert reparsed(text_of(module)) == text_of(module)


def reference_output(proto: ModelProto, feeds: dict[str, Array]) -> Array:
    """First output by onnx's own evaluator."""
    evaluator: Any = ReferenceEvaluator(proto)
    return evaluator.run(None, feeds)[0]


@pytest.mark.parametrize("condition", [True, False])
def test_known_condition_leaves_one_branch(condition: bool) -> None:
    proto = if_model("known")
    proto.graph.initializer.append(tensor("known", condition))
    made, module = imported(proto)
    assert [found.op_type.data for found in nodes_of(module)] == ["Relu", "Add" if condition else "Mul", "Identity"]
    kinds = [inner.op_type for inner in made.proto.graph.node if inner.op_type != "Constant"]
    assert kinds == [found.op_type.data for found in nodes_of(module)]
    feeds: dict[str, Array] = {"x": np.array([[1, -2, 3], [4, 5, -6]], np.float32), "c": np.array(not condition)}
    np.testing.assert_array_equal(reference_output(made.proto, feeds), reference_output(proto, feeds))


def test_condition_known_for_some_sizes_is_decided_anew_at_each_import() -> None:
    proto = if_model("known")
    proto.graph.node.insert(0, node("Equal", ["rows", "one"], ["known"]))
    proto.graph.node.insert(0, node("Gather", ["shape", "zero"], ["rows"]))
    proto.graph.node.insert(0, node("Shape", ["x"], ["shape"]))
    proto.graph.input[0].CopyFrom(value("x", ("n", 3)))
    proto.graph.initializer.extend([tensor("zero", 0, np.int64), tensor("one", 1, np.int64)])
    made = load(proto)
    for size, kind in ((1, "Add"), (2, "Mul"), (1, "Add")):
        module = import_model(made, bind_dims(made, {"n": size}))
        assert [found.op_type.data for found in nodes_of(module)] == ["Relu", kind, "Identity"]


def test_branches_in_branches_and_equal_names_in_them() -> None:
    """Attention two constant conditions deep, twice with the same inner names, and once more used by a real branch."""

    def conditional(result: str, condition: str, inner: GraphProto) -> NodeProto:
        other = helper.make_graph([node("Identity", ["Q"], ["t"])], "o", [], [value("t", None)])
        return node("If", [condition], [result], then_branch=inner, else_branch=other)

    attend = helper.make_graph([node("Attention", ["Q", "K", "V"], ["t"])], "a", [], [value("t", None)])
    nested = helper.make_graph([conditional("s", "yes", attend), node("Relu", ["s"], ["u"])], "n", [], [value("u", None)])
    open_branch = helper.make_graph([node("Relu", ["first"], ["t"])], "b", [], [value("t", None)])
    nodes = [
        conditional("first", "yes", nested),
        conditional("second", "yes", nested),
        conditional("third", "c", open_branch),
        node("Sum", ["first", "second", "third"], ["Y"]),
    ]
    proto = model(nodes, [*map(value, "QKV"), value("c", (), BOOL)], [value("Y", None)], [tensor("yes", True)])
    made, module = imported(proto)
    assert [found.op_type.data for found in nodes_of(module)].count("Attention") == 2
    assert not made.warnings
    load(made.proto)
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {name: generator.standard_normal((1, 2, 4, 8)).astype(np.float32) for name in "QKV"}
    feeds["c"] = np.array(True)
    np.testing.assert_array_equal(reference_output(made.proto, feeds), reference_output(proto, feeds))


def test_branches_of_different_shape_have_a_common_type() -> None:
    made = if_model()
    (other,) = (attribute for attribute in made.graph.node[1].attribute if attribute.name == "else_branch")
    other.g.node[0].op_type = "MatMul"
    made.graph.initializer[0].CopyFrom(tensor("two", np.ones((3, 7)), np.float32))
    _, module = imported(made)
    assert shape_of(returned(module)) == (2, DYNAMIC_INDEX)


def test_loop_carries_values_of_changing_shape() -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["go_out"]),
            node("Concat", ["s", "s"], ["s_out"], axis=0),
            node("Identity", ["i"], ["scan"]),
        ],
        "body",
        [value("i", (), INT64), value("go", (), BOOL), value("s", None)],
        [value("go_out", (), BOOL), value("s_out", None), value("scan", None, INT64)],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "scanned"], body=body)
    made = model([loop], [value("x", (2, 3)), value("n", (), INT64)], [value("y", None), value("scanned", None, INT64)])
    _, module = imported(made)
    found = next(op for op in nodes_of(module) if op.op_type.data == "Loop")
    assert all(isinstance(type_, UnrankedTensorType) for type_ in found.result_types)
    assert reparsed(text_of(module)) == text_of(module)


def test_sibling_branches_may_compute_different_constants_of_one_name() -> None:
    def branch(name: str, number: float) -> Any:
        nodes = [
            node("ConstantOfShape", ["big"], ["same"], value=tensor("", [number], np.float32)),
            node("Add", ["x", "same"], [name]),
        ]
        return helper.make_graph(nodes, name, [], [value(name, None)])

    choose = node("If", ["c"], ["y"], then_branch=branch("t", 1.0), else_branch=branch("e", 2.0))
    made, module = imported(
        model(
            [choose], [value("x", (1,)), value("c", (), BOOL)], [value("y", None)], [tensor("big", [LENGTH * LENGTH], np.int64)]
        )
    )
    names = [op.tensor_name.data for op in module.walk() if isinstance(op, InitializerOp)]
    assert sorted(float(made.constants[name][0]) for name in names) == [1.0, 2.0]


@pytest.mark.parametrize("value_", [True, False])
def test_given_input_chooses_the_branch(value_: bool) -> None:
    """Through nodes that compute the condition from it, and only if it is given."""
    proto = if_model("known")
    proto.graph.node.insert(0, node("Not", ["flipped"], ["known"]))
    proto.graph.node.insert(0, node("Not", ["c"], ["flipped"]))
    made = load(proto)
    kinds = ["Relu", "Add" if value_ else "Mul", "Identity"]
    module = import_model(made, bind_dims(made), {"c": np.array(value_), "x": np.zeros((2, 3), np.float32)})
    assert [found.op_type.data for found in nodes_of(module)] == kinds
    arguments = function_of(module).arg_attrs
    assert arguments is not None
    fixed = [attributes.data.get("onnx.value") for attributes in arguments.data]
    assert fixed == [None, ValuesAttr.from_numpy(np.array(value_))]
    assert reparsed(text_of(module)) == text_of(module)
    assert "If" in [found.op_type.data for found in nodes_of(import_model(made, bind_dims(made)))]


def test_given_input_that_chooses_nothing_stays_an_input() -> None:
    proto = model([node("Not", ["c"], ["y"])], [value("c", (), BOOL)], [value("y", (), BOOL)])
    made = load(proto)
    module = import_model(made, bind_dims(made), {"c": np.array(True)})
    assert [found.op_type.data for found in nodes_of(module)] == ["Not"]


def test_branch_that_does_not_fit_the_sizes_is_no_error_unless_it_is_taken() -> None:
    proto = if_model()
    proto.graph.initializer[0].CopyFrom(tensor("two", np.ones((2, 5)), np.float32))
    made = load(proto)
    assert isinstance(returned(import_model(made, bind_dims(made))).result_types[0], UnrankedTensorType)
    assert import_model(made, bind_dims(made), {"c": np.array(True)})
    with pytest.raises(ModelError, match="E-SHAPE"):
        import_model(made, bind_dims(made), {"c": np.array(False)})


def test_declared_output_of_a_folded_node_is_checked() -> None:
    made = model([node("Constant", [], ["c"], value_int=1)], [], [value("c", (2,), INT64)])
    with pytest.raises(ModelError) as caught:
        imported(made)
    assert caught.value.code == "E-SHAPE-CONFLICT"


def test_names_that_look_like_ssa_suffixes_do_not_clash() -> None:
    names = ["val", "val_1", "val_1_2", "val_12", "1", "_", "a/b:0"]
    nodes = [node("Relu", [before], [after]) for before, after in zip(["x", *names], names, strict=False)]
    _, module = imported(model(nodes, [value("x")], [value(names[-1])]))
    assert reparsed(text_of(module)) == text_of(module)


def test_frontend_binds_dims_and_finds_external_data(tmp_path: Path) -> None:
    weight = np.ones((64, 64), np.float32)
    made = model([node("MatMul", ["x", "w"], ["y"])], [value("x", ("batch", 64))], [value("y", None)], [tensor("w", weight)])
    external = made.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(external.raw_data)
    external.ClearField("raw_data")
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="w.bin")
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    with path.open("rb") as stream:
        module = OnnxFrontend(dims="batch=3").parse(Context(), stream, str(path))
    assert function_of(module).function_type.inputs.data[0] == TensorType(returned(module).inputs[0].type.element_type, (3, 64))
    (op,) = (op for op in module.walk() if isinstance(op, InitializerOp))
    assert op.sha256.data == array_sha256(weight)


LAYERS = 30
SECONDS = 2.0
"""The project's budget for importing a model of 30 layers."""


def test_thirty_layers_import_quickly() -> None:
    """SmolLM2's sizes with zero weights that are one shared initializer, so that only the graph costs time."""
    heads, size, width = 9, 64, 576
    nodes: list[NodeProto] = []
    before = "x"
    for layer in range(LAYERS):
        names = {
            key: f"layers.{layer}/{key}"
            for key in ("norm", "q", "qs", "qh", "a", "at", "am", "o", "r", "g", "s", "m", "d", "e")
        }
        nodes += [
            node("RMSNormalization", [before, "scale"], [names["norm"]]),
            node("MatMul", [names["norm"], "w"], [names["q"]]),
            node("Reshape", [names["q"], "split"], [names["qs"]]),
            node("Transpose", [names["qs"]], [names["qh"]], perm=[0, 2, 1, 3]),
            node("Attention", [names["qh"]] * 3, [names["a"]], is_causal=1),
            node("Transpose", [names["a"]], [names["at"]], perm=[0, 2, 1, 3]),
            node("Reshape", [names["at"], "merge"], [names["am"]]),
            node("MatMul", [names["am"], "w"], [names["o"]]),
            node("Add", [before, names["o"]], [names["r"]]),
            node("MatMul", [names["r"], "w"], [names["g"]]),
            node("Sigmoid", [names["g"]], [names["s"]]),
            node("Mul", [names["g"], names["s"]], [names["m"]]),
            node("MatMul", [names["m"], "w"], [names["d"]]),
            node("Add", [names["r"], names["d"]], [names["e"]]),
        ]
        before = names["e"]
    constants = [
        tensor("scale", np.ones(width), np.float32),
        tensor("w", np.zeros((width, width)), np.float32),
        tensor("split", [0, 0, heads, size], np.int64),
        tensor("merge", [0, 0, width], np.int64),
    ]
    shape = ("batch", "seq", width)
    data = model(nodes, [value("x", shape)], [value(before, shape)], constants)
    start = time.perf_counter()
    _, module = imported(data, {"batch": 1, "seq": 512})
    assert time.perf_counter() - start < SECONDS
    assert len(nodes_of(module)) == len(nodes)


def test_every_model_of_the_corpus_imports() -> None:
    if not CORPUS.is_dir():
        pytest.skip(f"no corpus at {CORPUS}; set CORPUS")
    paths = [path for folder in ("real", "models") for path in sorted((CORPUS / folder).glob("*.onnx"))]
    assert paths
    for path in paths:
        made = load_model(path)
        recorded = path.with_suffix(".npz")
        inputs = load_inputs(recorded, made) if recorded.exists() else None
        module = import_model(made, bind_dims(made, None if inputs else dict.fromkeys(made.symbols, 8), inputs=inputs))
        module.verify()
        if inputs:
            with np.load(recorded) as arrays:
                wanted = [
                    arrays[f"out/{output.original}"].shape for output in made.outputs if f"out/{output.original}" in arrays
                ]
            if len(wanted) == len(made.outputs):
                got = [t.get_shape() for t in function_of(module).function_type.outputs if isinstance(t, TensorType)]
                for shape, expected in zip(got, wanted, strict=True):
                    assert len(shape) == len(expected), path.name
                    assert all(a in (DYNAMIC_INDEX, b) for a, b in zip(shape, expected, strict=True)), path.name
