"""Binding of dimensions: options, shapes, arrays, expressions, and the errors that tell what to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import numpy as np
import pytest
from onnx import TensorProto

from lampc.errors import InputError, LampcError, UsageError
from lampc.frontend.dims import Binding, bind_dims, parse_dim, parse_shape
from lampc.frontend.model import Model
from tests.unit.frontend.builders import load, model, node, value

INT64 = TensorProto.INT64


def decoder() -> Model:
    """ids [batch, seq], mask [batch, past + seq], cache [batch, 2, past, 8]."""
    inputs = [
        value("ids", ("batch", "seq"), INT64),
        value("mask", ("batch", "past + seq"), INT64),
        value("cache", ("batch", 2, "past", 8)),
    ]
    nodes = [node("Identity", [info.name], [f"{info.name}_out"]) for info in inputs]
    outputs = [value("ids_out", None, INT64), value("mask_out", None, INT64), value("cache_out", None)]
    return load(model(nodes, inputs, outputs))


def one(*shape: int | str | None) -> Model:
    return load(model([node("Relu", ["x"], ["y"])], [value("x", shape)], [value("y", None)]))


def test_expressions_follow_their_symbols() -> None:
    bound = bind_dims(decoder(), {"batch": 2, "seq": 3, "past": 4})
    assert bound.shapes == {"ids": (2, 3), "mask": (2, 7), "cache": (2, 2, 4, 8)}


def test_shapes_and_arrays_bind_symbols() -> None:
    made = decoder()
    by_shape = bind_dims(made, {"past": 4}, {"ids": (2, 3)})
    arrays = {"ids": np.zeros((2, 3), np.int64), "cache": np.zeros((2, 2, 4, 8), np.float32)}
    assert bind_dims(made, inputs=arrays) == by_shape


def test_expression_is_solved_for_its_one_unknown() -> None:
    assert bind_dims(decoder(), {"seq": 3}, {"mask": (2, 7)}).dims == {"batch": 2, "seq": 3, "past": 4}


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("past_sequence_length + 1", {"past_sequence_length": 7}, 8),
        ("2*s0 - 1", {"s0": 4}, 7),
        ("floor(s0/3)", {"s0": 8}, 2),
        ("s0//3", {"s0": 8}, 2),
        ("ceiling(s0/3)", {"s0": 8}, 3),
        ("Max(1, s0)", {"s0": 0}, 1),
        ("Min(s0, s1)", {"s0": 5, "s1": 4}, 4),
        ("s0**2", {"s0": 3}, 9),
        ("s0 % 3", {"s0": 5}, 2),
        ("-s0 + 5", {"s0": 5}, 0),
        ("s0/2", {"s0": 3}, None),
        ("s0 - 4", {"s0": 3}, None),
        ("s0/s1", {"s0": 3, "s1": 0}, None),
        ("s0**s0**s0", {"s0": 40}, None),
        ("s0 + missing", {"s0": 3}, None),
        ("__import__('os').getpid()", {}, None),
        ("(lambda: 3)()", {}, None),
        ("s0 if s0 else 1", {"s0": 3}, None),
        ("[1][0]", {}, None),
        ("batch size", {}, None),
        ("(" * 300, {}, None),
        ("1+" * 3000 + "1", {}, None),
        ("True", {}, None),
    ],
)
def test_expression_values(text: str, values: Mapping[str, int], expected: int | None) -> None:
    assert Binding(values).size(text) == expected


def test_symbol_that_looks_like_an_expression() -> None:
    made = one("batch-size", "sequence length")
    assert bind_dims(made, {"batch-size": 2, "sequence length": 3}).shapes["x"] == (2, 3)


def options(error: LampcError) -> list[str]:
    """The options of the command that an error suggests."""
    words = shlex.split(error.message.split("for example: ")[1])
    return words[words.index("numpy") + 1 :]


def apply(made: Model, words: list[str]) -> Binding:
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return bind_dims(
        made,
        dict(parse_dim(text) for option, text in pairs if option == "--dim"),
        dict(parse_shape(text) for option, text in pairs if option == "--shape"),
    )


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (decoder(), "E-DIM-UNBOUND"),
        (one("batch", "it's seq"), "E-DIM-UNBOUND"),
        (one("batch", None, 4), "E-DIM-UNBOUND"),
        (load(model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])), "W-NOSHAPE"),
    ],
)
def test_one_error_lists_everything_unbound_and_its_command_works(made: Model, code: str) -> None:
    with pytest.raises(InputError) as caught:
        bind_dims(made)
    assert caught.value.code == code
    for symbol in made.symbols:
        assert symbol in caught.value.message
    apply(made, options(caught.value))


def test_bound_dimensions_are_not_asked_for_again() -> None:
    with pytest.raises(InputError) as caught:
        bind_dims(decoder(), {"batch": 1, "past": 4})
    assert options(caught.value) == ["--dim", "seq=128"]


@pytest.mark.parametrize(
    ("dims", "shapes", "code"),
    [
        ({"bach": 1}, {}, "E-DIM-UNKNOWN"),
        ({"batch": -1}, {}, "E-DIM-VALUE"),
        ({"past + seq": 4}, {}, "E-DIM-UNKNOWN"),
        ({}, {"id": (1, 2)}, "E-INPUT-NAME"),
        ({}, {"ids": (1, 2, 3)}, "E-INPUT-SHAPE"),
        ({"past": 1}, {"ids": (1, 2), "cache": (1, 3, 1, 8)}, "E-INPUT-SHAPE"),
        ({"batch": 2, "past": 1}, {"ids": (1, 2)}, "E-DIM-CONFLICT"),
        ({"past": 1}, {"ids": (1, 2), "mask": (1, 9)}, "E-DIM-CONFLICT"),
        ({"past": 1, "seq": 3}, {"ids": (1, 2)}, "E-DIM-CONFLICT"),
    ],
)
def test_sizes_that_disagree(dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        bind_dims(decoder(), dims, shapes)
    assert caught.value.code == code


def test_arrays_that_disagree_are_the_inputs_fault() -> None:
    arrays = {"ids": np.zeros((2, 3), np.int64), "mask": np.zeros((1, 7), np.int64)}
    with pytest.raises(InputError, match=r"'batch' is 2 .*'ids'.* and 1 .*'mask'"):
        bind_dims(decoder(), {"past": 4}, inputs=arrays)


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", "batch=-1", "batch=1.5", "batch=x", "batch=１"])
def test_malformed_dim(text: str) -> None:
    with pytest.raises(UsageError, match="NAME=N"):
        parse_dim(text)


@pytest.mark.parametrize("text", ["ids", "ids=1x", "ids=x", "ids=1,2", "=1x2"])
def test_malformed_shape(text: str) -> None:
    with pytest.raises(UsageError, match="INPUT=SIZES"):
        parse_shape(text)


def test_well_formed_options() -> None:
    assert parse_dim("a=b=3") == ("a=b", 3)
    assert parse_shape("ids=1x512") == ("ids", (1, 512))
    assert parse_shape("step=") == ("step", ())


def test_a_dimension_with_a_line_break_in_its_name_is_told_in_one_line():
    made = model([node("Relu", ["x"], ["y"])], [value("x", ("a\nb", 4))], [value("y", ("a\nb", 4))])
    with pytest.raises(InputError) as told:
        bind_dims(load(made))
    assert str(told.value).isprintable()
