"""
Hostile and broken models, written by code: each with the error it deserves (onnx.md §6), or None where it must import.

A case is a function from an empty folder to the path of the model it wrote there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto, helper

from tests.unit.frontend.builders import FLOAT, HEADS, attention, model, node, tensor, value

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


def chain(nodes: list[NodeProto], outputs: tuple[str, ...] = ("Y",), initializers: tuple[TensorProto, ...] = ()) -> ModelProto:
    return model(nodes, inputs(), [value(name) for name in outputs], initializers)


ATTENTION = ("Attention", ["q2", "K", "V"], ["Y"])


@case("cycle", "E-GRAPH-CYCLE")
def _(folder: Path) -> ModelProto:
    return chain([node("Add", ["q3", "Q"], ["q2"]), node("Relu", ["q2"], ["q3"]), node(*ATTENTION)])


@case("cycle_through_body", "E-GRAPH-CYCLE")
def _(folder: Path) -> ModelProto:
    body = helper.make_graph([node("Relu", ["q2"], ["r"])], "b", [], [value("r")])
    nodes = [node("If", ["c"], ["q2"], then_branch=body, else_branch=body), node(*ATTENTION)]
    return chain(nodes, initializers=(tensor("c", True),))


@case("unsorted", None)
def _(folder: Path) -> ModelProto:
    return chain([node(*ATTENTION), node("Relu", ["Q"], ["q2"])])


@case("duplicate_output", "E-GRAPH-SSA")
def _(folder: Path) -> ModelProto:
    return chain([node("Attention", ["Q", "K", "V"], ["Y"]), node("Relu", ["Q"], ["Y"])])


@case("undefined", "E-GRAPH-UNDEFINED")
def _(folder: Path) -> ModelProto:
    made = chain([node("Attention", ["Q", "K", "V"], ["Y"])])
    del made.graph.input[1]
    return made


@case("output_missing", "E-GRAPH-OUTPUT")
def _(folder: Path) -> ModelProto:
    return chain([node("Attention", ["Q", "K", "V"], ["Y"])], ("Y", "Z"))


@case("initializer_overwritten", "E-GRAPH-SSA")
def _(folder: Path) -> ModelProto:
    zeros = tensor("q2", np.zeros(HEADS), np.float32)
    return chain([node("Relu", ["Q"], ["q2"]), node(*ATTENTION)], initializers=(zeros,))


@case("duplicate_inputs", "E-GRAPH-SSA")
def _(folder: Path) -> ModelProto:
    made = attention()
    made.graph.input.append(value("Q"))
    return made


def function(name: str, calls: list[str], domain: str = "lf") -> FunctionProto:
    names = ["x", *(f"t{index}" for index in range(len(calls) - 1)), "y"]
    nodes = [
        helper.make_node(call, [names[index]], [names[index + 1]], domain="" if call == "Relu" else "lf")
        for index, call in enumerate(calls)
    ]
    return helper.make_function(domain, name, ["x"], ["y"], nodes, [helper.make_opsetid("", 23), helper.make_opsetid("lf", 1)])


def calling(name: str, functions: list[FunctionProto]) -> ModelProto:
    nodes = [node(name, ["Q"], ["q2"], domain="lf"), node(*ATTENTION)]
    return model(nodes, inputs(), [value("Y")], domains={"lf": 1}, functions=functions)


@case("function_ok", None)
def _(folder: Path) -> ModelProto:
    return calling("F", [function("F", ["G", "G"]), function("G", ["Relu", "Relu"])])


@case("function_recursive", "E-FUNC-RECURSION")
def _(folder: Path) -> ModelProto:
    return calling("F", [function("F", ["F"])])


@case("function_mutual", "E-FUNC-RECURSION")
def _(folder: Path) -> ModelProto:
    return calling("F", [function("F", ["G"]), function("G", ["F"])])


@case("function_billion_laughs", "E-FUNC-BUDGET")
def _(folder: Path) -> ModelProto:
    doubling = [function(f"F{index}", [f"F{index - 1}"] * 2) for index in range(1, 27)]
    return calling("F26", [function("F0", ["Relu"]), *doubling])


@case("function_shadows_standard", "E-FUNC-SHADOW")
def _(folder: Path) -> ModelProto:
    shadow = helper.make_function(
        "", "Attention", ["q", "k", "v"], ["y"], [helper.make_node("Identity", ["v"], ["y"])], [helper.make_opsetid("", 23)]
    )
    return model([node("Attention", ["Q", "K", "V"], ["Y"])], inputs(), [value("Y")], functions=[shadow])


@case("function_other_opset", "E-FUNC-OPSET")
def _(folder: Path) -> ModelProto:
    made = function("F", ["Relu"])
    made.node[0].op_type = "Softmax"
    made.opset_import[0].version = 11
    return calling("F", [made])


def nested_ifs(depth: int) -> ModelProto:
    inner: GraphProto | None = None
    for level in range(depth):
        branches: dict[str, GraphProto] = {}
        for branch, prefix in (("then_branch", "r"), ("else_branch", "e")):
            name = f"{prefix}{level}"
            step = (
                node(
                    "If",
                    ["c"],
                    [name],
                    then_branch=inner,
                    else_branch=helper.make_graph([node("Relu", ["Q"], [f"z{level}"])], "z", [], [value(f"z{level}")]),
                )
                if inner is not None and prefix == "r"
                else node("Relu", ["Q"], [name])
            )
            branches[branch] = helper.make_graph([step], branch, [], [value(name)])
        inner = branches["then_branch"]
    assert inner is not None
    return model([*inner.node], [value("Q"), value("c", [], TensorProto.BOOL)], [value(f"r{depth - 1}")])


@case("if_nested", None)
def _(folder: Path) -> ModelProto:
    return nested_ifs(15)


@case("if_nested_deeper", "E-NESTING")
def _(folder: Path) -> ModelProto:
    return nested_ifs(28)


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    size, length = b"", len(content)
    while True:
        length, low = length >> 7, length & 127
        size += bytes([low | (128 if length else 0)])
        if not length:
            return bytes([number << 3 | 2]) + size + content


@case("if_nested_deepest", "E-NESTING")
def _(folder: Path) -> bytes:
    graph = b""
    for _ in range(2000):
        attribute = field(1, b"then_branch") + field(6, graph) + bytes([0xA0, 0x01, 5])
        graph = field(1, field(4, b"If") + field(5, attribute))
    return bytes([8, 10]) + field(7, graph)


@case("no_opset", "E-OPSET-MISSING")
def _(folder: Path) -> ModelProto:
    made = attention()
    del made.opset_import[:]
    return made


@case("opset_old", "E-OPSET-OP")
def _(folder: Path) -> ModelProto:
    return attention(opset=22)


@case("opset_future", "E-OPSET-FUTURE")
def _(folder: Path) -> ModelProto:
    return attention(opset=99)


@case("ir_future", "E-IR-FUTURE")
def _(folder: Path) -> ModelProto:
    made = attention()
    made.ir_version = 99
    return made


@case("custom_domain", "E-DOMAIN")
def _(folder: Path) -> ModelProto:
    return model([node("MyAttn", ["Q", "K", "V"], ["Y"], domain="foo")], inputs(), [value("Y")], domains={"foo": 1})


@case("domain_not_imported", "E-OPSET-MISSING")
def _(folder: Path) -> ModelProto:
    made = node("MultiHeadAttention", ["Q", "K", "V"], ["Y"], domain="com.microsoft", num_heads=2)
    return model([made], inputs(), [value("Y")])


@case("unknown_operator", "E-OP-UNKNOWN")
def _(folder: Path) -> ModelProto:
    return chain([node("Atention", ["Q", "K", "V"], ["Y"])])


@case("string_tensor", "E-TYPE")
def _(folder: Path) -> ModelProto:
    made = attention()
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    return made


@case("no_shape", "W-NOSHAPE")
def _(folder: Path) -> ModelProto:
    return attention(q=None, k=None, v=None)


@case("rank3_without_heads", "E-ATTN-HEADS")
def _(folder: Path) -> ModelProto:
    return attention(q=(1, 4, 16), k=(1, 4, 16), v=(1, 4, 16))


@case("attribute_type", "E-ATTR-TYPE")
def _(folder: Path) -> ModelProto:
    return attention(is_causal=1.0)


@case("attribute_type_lies", "E-ATTR-TYPE")
def _(folder: Path) -> ModelProto:
    made = attention(is_causal=1)
    made.graph.node[0].attribute[0].ClearField("i")
    made.graph.node[0].attribute[0].f = 1.0
    return made


@case("attribute_unknown", "E-ATTR-UNKNOWN")
def _(folder: Path) -> ModelProto:
    return attention(left_window_size=2)


@case("attribute_twice", "E-ATTR-DUPLICATE")
def _(folder: Path) -> ModelProto:
    made = attention(is_causal=1)
    made.graph.node[0].attribute.append(made.graph.node[0].attribute[0])
    return made


@case("attribute_missing", "E-ATTR-MISSING")
def _(folder: Path) -> ModelProto:
    return chain([node("Cast", ["Q"], ["q2"]), node(*ATTENTION)])


@case("scale_nan", "E-ATTR-VALUE")
def _(folder: Path) -> ModelProto:
    return attention(scale=float("nan"))


@case("heads_overflow", "E-ATTR-VALUE")
def _(folder: Path) -> ModelProto:
    return attention(q=(1, 4, 16), k=(1, 4, 16), v=(1, 4, 16), q_num_heads=2**62, kv_num_heads=2)


@case("head_mismatch", "E-ATTN-SHAPE")
def _(folder: Path) -> ModelProto:
    return attention(k=(1, 2, 4, 16))


@case("mask_rank5", "E-ATTN-MASK-RANK")
def _(folder: Path) -> ModelProto:
    return attention([value("M", (1, 1, 1, 4, 4))])


def bomb(maker: NodeProto, *initializers: TensorProto) -> ModelProto:
    nodes = [maker, node("ReduceSum", ["c"], ["r"], keepdims=0), node("Add", ["Q", "r"], ["q2"]), node(*ATTENTION)]
    return chain(nodes, initializers=initializers)


@case("constant_bomb", "E-FOLD-BUDGET")
def _(folder: Path) -> ModelProto:
    return bomb(node("ConstantOfShape", ["sh"], ["c"]), tensor("sh", [2**40], np.int64))


@case("expand_bomb", "E-FOLD-BUDGET")
def _(folder: Path) -> ModelProto:
    return bomb(node("Expand", ["one", "sh"], ["c"]), tensor("one", 1.0, np.float32), tensor("sh", [2**33], np.int64))


@case("range_bomb", "E-FOLD-BUDGET")
def _(folder: Path) -> ModelProto:
    ends = [tensor(name, number, np.float32) for name, number in (("a", 0), ("b", 1e30), ("s", 1))]
    return bomb(node("Range", ["a", "b", "s"], ["c"]), *ends)


@case("loop_forever", "E-UNSUPPORTED(Loop)")
def _(folder: Path) -> ModelProto:
    body = helper.make_graph(
        [node("Identity", ["cond"], ["cond_out"]), node("Attention", ["x", "K", "V"], ["x_out"])],
        "body",
        [value("i", [], TensorProto.INT64), value("cond", [], TensorProto.BOOL), value("x")],
        [value("cond_out", [], TensorProto.BOOL), value("x_out")],
    )
    constants = (tensor("trips", 2**62, np.int64), tensor("on", True))
    return chain([node("Loop", ["trips", "on", "Q"], ["Y"], body=body)], initializers=constants)


@case("reference_in_main", "E-ATTR-REF")
def _(folder: Path) -> ModelProto:
    made = attention(scale=1.0)
    made.graph.node[0].attribute[0].ref_attr_name = "scale"
    return made


@case("shadow_in_body", "E-GRAPH-SSA")
def _(folder: Path) -> ModelProto:
    then = helper.make_graph([node("Relu", ["Q"], ["q2"])], "t", [], [value("q2")])
    other = helper.make_graph([node("Relu", ["Q"], ["e"])], "e", [], [value("e")])
    nodes = [
        node("Relu", ["Q"], ["q2"]),
        node("If", ["c"], ["q3"], then_branch=then, else_branch=other),
        node("Attention", ["q3", "K", "V"], ["Y"]),
    ]
    return chain(nodes, initializers=(tensor("c", True),))


@case("wrong_declared_shape", "E-SHAPE-CONFLICT")
def _(folder: Path) -> ModelProto:
    made = attention()
    made.graph.output[0].CopyFrom(value("Y", (1, 2, 4, 9)))
    return made


@case("wrong_declared_type", "E-TYPE-CONFLICT")
def _(folder: Path) -> ModelProto:
    made = attention()
    made.graph.output[0].CopyFrom(value("Y", HEADS, TensorProto.FLOAT16))
    return made


@case("too_many_inputs", "E-OP-ARITY")
def _(folder: Path) -> ModelProto:
    return attention(names=["Q", "K", "V", "", "", "", "", "Q", "Q"])


@case("required_input_absent", "E-OP-ARITY")
def _(folder: Path) -> ModelProto:
    return attention(names=["Q", "", "V"])


@case("softmax_axis", "E-ATTR-VALUE")
def _(folder: Path) -> ModelProto:
    return chain([node("Softmax", ["Q"], ["q2"], axis=7), node(*ATTENTION)])


@case("perm_duplicate", "E-ATTR-VALUE")
def _(folder: Path) -> ModelProto:
    return chain([node("Transpose", ["Q"], ["q2"], perm=[0, 1, 1, 3]), node(*ATTENTION)])


@case("inputs_do_not_fit", "E-SHAPE")
def _(folder: Path) -> ModelProto:
    return chain([node("MatMul", ["Q", "K"], ["q2"]), node("Attention", ["Q", "K", "V"], ["Y"])])


@case("evil_names", None)
def _(folder: Path) -> ModelProto:
    evil = 'q"; DROP\n../x\0y' + "A" * 65536
    return chain([node("Relu", ["Q"], [evil]), node("Attention", [evil, "K", "V"], ["Y"])])


@case("name_not_utf8", "E-PARSE")
def _(folder: Path) -> bytes:
    return attention().SerializeToString().replace(b"\x01Q", b"\x01\xff")


@case("truncated", "E-PARSE")
def _(folder: Path) -> bytes:
    whole = attention().SerializeToString()
    return whole[: len(whole) // 2]


@case("random", "E-PARSE")
def _(folder: Path) -> bytes:
    return np.random.default_rng(0).bytes(4096)


@case("text", "E-PARSE")
def _(folder: Path) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@case("empty", "E-PARSE")
def _(folder: Path) -> bytes:
    return b""
