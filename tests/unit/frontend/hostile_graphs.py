"""Hostile and broken graphs, functions, attributes and files; the cases of `hostile` go on here (onnx.md §6)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from tests.unit.frontend.builders import HEADS, attention, model, node, tensor, value
from tests.unit.frontend.hostile import CASES, case, inputs

__all__ = ["CASES"]


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


@case("opset_wide", "E-OPSET-FUTURE")
def _(folder: Path) -> ModelProto:
    made = attention()
    made.opset_import.add(domain="com.microsoft", version=2**40)
    return made


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
