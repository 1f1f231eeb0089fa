"""The standard Attention: each row of onnx.md §1.4 that an importer decides."""

from __future__ import annotations

import math
from typing import Any

import pytest
from onnx import TensorProto
from xdsl.dialects.builtin import TensorType

from lampc.errors import ModelError
from tests.unit.frontend.builders import attention, imported, nodes_of, value

INT64 = TensorProto.INT64
PACKED = {"q": (2, 4, 24), "k": (2, 6, 8), "v": (2, 6, 20), "q_num_heads": 3, "kv_num_heads": 1}


def result_shapes(**arguments: Any) -> list[tuple[int, ...]]:
    _, module = imported(attention(**arguments))
    (found,) = nodes_of(module)
    return [type_.get_shape() for type_ in found.result_types if isinstance(type_, TensorType)]


@pytest.mark.parametrize(
    ("attributes", "accepted"),
    [
        ({"scale": 0.5}, True),
        ({"scale": 0.0}, False),
        ({"scale": -1.0}, False),
        ({"scale": math.nan}, False),
        ({"scale": math.inf}, False),
        ({"softcap": 0.0}, True),
        ({"softcap": 2.0}, True),
        ({"softcap": -2.0}, False),
        ({"softcap": math.nan}, False),
        ({"is_causal": 1}, True),
        ({"is_causal": 2}, False),
        ({"softmax_precision": TensorProto.FLOAT}, True),
        ({"softmax_precision": TensorProto.BFLOAT16}, True),
        ({"softmax_precision": TensorProto.INT64}, False),
        ({"softmax_precision": 0}, False),
        ({"qk_matmul_output_mode": 3}, True),
        ({"qk_matmul_output_mode": 7}, False),
        ({"q_num_heads": 0, "kv_num_heads": 2}, False),
        ({"left_window_size": 3, "opset": 25}, True),
        ({"left_window_size": -2, "opset": 25}, False),
    ],
)
def test_attribute_values(attributes: dict[str, Any], accepted: bool) -> None:
    if accepted:
        imported(attention(**attributes))
        return
    with pytest.raises(ModelError) as caught:
        imported(attention(**attributes))
    assert caught.value.code == "E-ATTR-VALUE"
    assert "node_Y" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"q_num_heads": 2, "kv_num_heads": 2}, None),
        ({"q_num_heads": 4, "kv_num_heads": 2}, "E-ATTN-HEADS"),
        ({"opset": 25, "q_num_heads": 2, "kv_num_heads": 2}, None),
        ({"q": (1, 3, 4, 8)}, "E-ATTN-HEADS"),
        ({"q": (1, 4, 4, 8)}, None),
        ({"k": (1, 1, 4, 8)}, "E-ATTN-SHAPE"),
        ({"k": (1, 2, 4, 9)}, "E-ATTN-SHAPE"),
        ({"k": (1, 2, 5, 8)}, "E-ATTN-SHAPE"),
        ({"v": (1, 2, 4, 5)}, None),
        ({"q": (3, 2, 4, 8)}, "E-ATTN-SHAPE"),
        ({"q": (1, 2, 0, 8)}, None),
        ({"q": (0, 2, 4, 8), "k": (0, 2, 4, 8), "v": (0, 2, 4, 8)}, None),
        ({"k": (1, 2, 0, 8), "v": (1, 2, 0, 8)}, None),
        ({"q": (1, 2, 4, 0), "k": (1, 2, 4, 0)}, "E-ATTN-SHAPE"),
        ({"k": (1, 4, 16), "q_num_heads": 2, "kv_num_heads": 2}, "E-ATTN-SHAPE"),
        ({"q": (4, 8)}, "E-ATTN-SHAPE"),
        (PACKED, None),
        ({**PACKED, "q_num_heads": 5}, "E-ATTN-HEADS"),
    ],
)
def test_operand_shapes(arguments: dict[str, Any], code: str | None) -> None:
    check(arguments, code)


def check(arguments: dict[str, Any], code: str | None, *extra: Any) -> None:
    if code is None:
        imported(attention(extra, **arguments))
        return
    with pytest.raises(ModelError) as caught:
        imported(attention(extra, **arguments))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("shape", "opset", "code"),
    [
        ((4, 4), 23, None),
        ((4,), 23, None),
        ((1, 1, 1, 4), 23, None),
        ((2, 4, 4), 23, None),
        ((3, 4, 4), 23, "E-ATTN-MASK-SHAPE"),
        ((3, 1, 4, 4), 23, "E-ATTN-MASK-SHAPE"),
        ((5, 4), 23, "E-ATTN-MASK-SHAPE"),
        ((4, 5), 23, "E-ATTN-MASK-SHAPE"),
        ((4, 5), 25, "E-ATTN-MASK-SHAPE"),
        ((4, 3), 23, "E-ATTN-MASK-SHAPE"),
        ((4, 3), 24, None),
        ((4, 1), 23, None),
        ((4, 1), 24, None),
        ((), 23, "E-ATTN-MASK-RANK"),
        ((1, 1, 1, 4, 4), 23, "E-ATTN-MASK-RANK"),
    ],
)
def test_mask_shapes(shape: tuple[int, ...], opset: int, code: str | None) -> None:
    check({"opset": opset}, code, value("M", shape))


def test_one_key_mask_warns_where_an_upgrade_changes_its_meaning() -> None:
    for opset, count in ((23, 0), (24, 1)):
        made, _ = imported(attention([value("M", (4, 1))], opset=opset))
        assert len(made.warnings) == count


CACHE = (value("pk", (1, 2, 3, 8)), value("pv", (1, 2, 3, 8)))
WITH_CACHE = ["Q", "K", "V", "", "pk", "pv"]
LENGTHS = value("n", (1,), INT64)
WITH_LENGTHS = ["Q", "K", "V", "", "", "", "n"]


@pytest.mark.parametrize(
    ("extra", "arguments", "code"),
    [
        (CACHE, {"names": WITH_CACHE, "outputs": 3}, None),
        (CACHE, {"names": WITH_CACHE}, None),
        (CACHE, {"names": WITH_CACHE[:5]}, "E-ATTN-CACHE"),
        ((value("pk", (1, 3, 3, 8)), CACHE[1]), {"names": WITH_CACHE}, "E-ATTN-CACHE"),
        ((value("pk", (1, 2, 2, 8)), CACHE[1]), {"names": WITH_CACHE}, "E-ATTN-CACHE"),
        ((value("pk", (1, 2, 24)), CACHE[1]), {"names": WITH_CACHE}, "E-ATTN-CACHE"),
        ((LENGTHS,), {"names": WITH_LENGTHS, "opset": 24}, None),
        ((LENGTHS,), {"names": WITH_LENGTHS, "opset": 24, "outputs": 3}, None),
        ((LENGTHS,), {"names": WITH_LENGTHS, "opset": 25, "outputs": 3}, "E-ATTN-CACHE"),
        ((value("n", (2,), INT64),), {"names": WITH_LENGTHS, "opset": 24}, "E-ATTN-CACHE"),
        ((*CACHE, LENGTHS), {"names": [*WITH_CACHE, "n"], "opset": 24}, "E-ATTN-CACHE"),
    ],
)
def test_caches_and_lengths(extra: tuple[Any, ...], arguments: dict[str, Any], code: str | None) -> None:
    check(arguments, code, *extra)


def test_result_shapes() -> None:
    assert result_shapes(q=(2, 6, 4, 8), k=(2, 3, 5, 8), v=(2, 3, 5, 7), outputs=1) == [(2, 6, 4, 7)]
    assert result_shapes(**PACKED, outputs=4) == [(2, 4, 60), (2, 1, 6, 8), (2, 1, 6, 20), (2, 3, 4, 6)]
    assert result_shapes(extra_inputs=CACHE, names=WITH_CACHE, outputs=4)[1:] == [(1, 2, 7, 8), (1, 2, 7, 8), (1, 2, 4, 7)]


def test_unknown_sizes_stay_unknown() -> None:
    """Inference of onnx writes 0 for the hidden size of an unknown input; nothing here does."""
    made = attention(q=("b", "s", "h"), k=("b", "t", 16), v=("b", "t", 16), q_num_heads=2, kv_num_heads=2, outputs=4)
    identity = made.graph.node.add(op_type="NonZero", input=["Q"], output=["nz"])
    assert identity.output[0] == "nz"
    made.graph.output.add(name="nz")
    _, module = imported(made, {"b": 1, "s": 4, "t": 5, "h": 16})
    for found in nodes_of(module):
        if found.op_type.data == "Attention":
            assert all(0 not in type_.get_shape() for type_ in found.result_types if isinstance(type_, TensorType))
