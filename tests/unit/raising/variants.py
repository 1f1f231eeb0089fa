"""
Attention graphs composed at random: every stage is written one of the ways that exporters and people write it.

A `Variant` draws each choice from a seeded generator, so a seed is a model. What varies is docs/onnx.md section 4: opset,
layouts, repeated heads, where the scale is and how it is written, masks, the softmax, idle nodes in between, constants.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.unit.raising.graphs import Graph

T = TypeVar("T")
OPSETS = (11, 12, 13, 14, 17, 18, 21, 23)
LOWEST = float(np.finfo(np.float32).min)


class Variant(Graph):
    """A graph under construction whose helpers choose; `chosen` tells what, for a failing test's message."""

    def __init__(self, seed: int):
        self.draw = np.random.default_rng(seed)
        super().__init__(opset=int(self.draw.choice(OPSETS)), seed=seed)
        self.chosen: list[str] = [f"opset {self.opset}"]
        self.batch, self.kv_heads, self.group = self.pick(1, 2), self.pick(1, 2, 3), self.pick(1, 1, 2, 3)
        self.queries = self.pick(1, 4, 5, 6)
        self.keys = self.pick(self.queries, 6, 7)
        self.size, self.value_size = self.pick(4, 5), self.pick(3, 4)
        self.heads = self.kv_heads * self.group
        self.masks = self.pick(0, 1, 1, 2)

    # -- choosing ---------------------------------------------------------------------------------------------------------

    def pick(self, *options: T) -> T:
        return options[int(self.draw.integers(len(options)))]

    def one_of(self, what: str, *options: Callable[[], str]) -> str:
        """The result of one of the options, noted by its name."""
        option = self.pick(*options)
        self.chosen.append(f"{what}: {option.__name__.strip('_')}")
        return option()

    def some(self, chance: float) -> bool:
        return bool(self.draw.random() < chance)

    # -- constants and nodes whose form depends on the opset --------------------------------------------------------------

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """An initializer or a Constant node."""
        if self.some(0.5):
            return super().constant(values, dtype)
        return self.node("Constant", value=numpy_helper.from_array(np.asarray(values, dtype), "value"))

    def number(self, value: float) -> str:
        """A scalar constant of any rank, perhaps computed from others."""
        if self.some(0.2) and value > 0:
            return self.node("Sqrt", self.constant(value * value))
        if self.some(0.1) and value > 0:
            return self.node("Div", self.constant(2.0), self.node("Sqrt", self.constant(4 / value**2)))
        return self.constant(np.full(self.pick((), (), (1,), (1, 1), (1, 1, 1)), value))

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self._with_axes("Unsqueeze", value, axes, since=13)

    def squeeze(self, value: str, *axes: int) -> str:
        return self._with_axes("Squeeze", value, axes, since=13)

    def reduce(self, op: str, value: str, axis: int) -> str:
        return self._with_axes(op, value, (axis,), since=13 if op == "ReduceSum" else 18, keepdims=1)

    def _with_axes(self, op: str, value: str, axes: Sequence[int], since: int, **attributes: int) -> str:
        if self.opset >= since:
            return self.node(op, value, self.shape(*axes), **attributes)
        return self.node(op, value, axes=list(axes), **attributes)

    def cast(self, value: str, to: int = TensorProto.FLOAT) -> str:
        return self.node("Cast", value, to=to)

    def commuted(self, op: str, left: str, right: str) -> str:
        return self.node(op, left, right) if self.some(0.5) else self.node(op, right, left)

    def times(self, value: str, factor: float) -> str:
        """`value * factor` as a product or a quotient; the value itself for a factor of one, mostly."""
        if factor == 1.0 and self.some(0.8):
            return value
        if self.some(0.5):
            return self.node("Div", value, self.number(1 / factor))
        return self.commuted("Mul", value, self.number(factor))

    def idle(self, value: str, rank: int) -> str:
        """`value`, perhaps through nodes that do nothing."""
        while self.some(0.25):
            value = self._idle_once(value, rank)
        return value

    def _idle_once(self, value: str, rank: int) -> str:
        match self.pick("identity", "cast", "wide", "dropout", "reshape", "unsqueeze", "turns", "zero"):
            case "identity":
                return self.node("Identity", value)
            case "cast":
                return self.cast(value)
            case "wide":
                return self.cast(self.cast(value, TensorProto.DOUBLE))
            case "dropout":
                if self.opset < 12:
                    return self.node("Dropout", value, ratio=0.3)
                return self.node("Dropout", value, self.constant(0.3))
            case "reshape":
                return self.reshape(value, *[0] * (rank - 1), -1)
            case "unsqueeze":
                axis = self.pick(*range(rank + 1))
                return self.squeeze(self.unsqueeze(value, axis), axis)
            case "turns":
                order = [int(a) for a in self.draw.permutation(rank)]
                return self.transpose(self.transpose(value, *order), *(order.index(a) for a in range(rank)))
            case _:
                return self.commuted("Add", value, self.constant(0.0))

    # -- operands ---------------------------------------------------------------------------------------------------------

    def operand(self, name: str, heads: int, rows: int, size: int) -> str:
        """A graph input in some layout, brought to [batch, heads, rows, size]."""
        batch = self.batch

        def canonical() -> str:
            return self.input(name, batch, heads, rows, size)

        def rows_first() -> str:
            return self.transpose(self.input(name, batch, rows, heads, size), 0, 2, 1, 3)

        def projected() -> str:
            sizes = self.pick((batch, rows, heads, size), (0, 0, heads, -1))
            return self.transpose(self.reshape(self.input(name, batch, rows, heads * size), *sizes), 0, 2, 1, 3)

        def length_first() -> str:
            """nn.MultiheadAttention: [rows, batch, heads * size] -> [batch * heads, rows, size]."""
            merged = self.reshape(self.input(name, rows, batch, heads * size), rows, batch * heads, size)
            return self.reshape(self.transpose(merged, 1, 0, 2), batch, heads, rows, size)

        def merged() -> str:
            return self.reshape(self.input(name, batch * heads, rows, size), batch, heads, rows, size)

        def two_turns() -> str:
            value = self.transpose(self.input(name, rows, batch, size, heads), 1, 0, 3, 2)
            return self.transpose(value, 0, 2, 1, 3)

        def split_off() -> str:
            """One of three in a fused projection."""
            fused = self.reshape(self.input(name, batch, rows, 3 * heads * size), batch, rows, 3, heads, size)
            return self.node("Gather", self.transpose(fused, 2, 0, 3, 1, 4), self.constant(1, np.int64), axis=0)

        made = self.one_of(name, canonical, rows_first, projected, length_first, merged, two_turns, split_off)
        return self.idle(made, 4)

    def repeated(self, value: str, rows: int, size: int) -> str:
        """Key or value heads repeated for the query heads that read them, h // group."""
        if self.group == 1:
            return value
        b, h, g, heads = self.batch, self.kv_heads, self.group, self.heads

        def expand() -> str:
            wide = self.node("Expand", self.unsqueeze(value, 2), self.shape(b, h, g, rows, size))
            return self.reshape(wide, b, heads, rows, size)

        def expand_by_ones() -> str:
            wide = self.node("Expand", self.reshape(value, b, h, 1, rows, size), self.shape(1, 1, g, 1, 1))
            return self.reshape(wide, 0, heads, rows, -1)

        def tile() -> str:
            wide = self.node("Tile", self.unsqueeze(value, 2), self.shape(1, 1, g, 1, 1))
            return self.reshape(wide, b, heads, rows, size)

        def tile_within_head() -> str:
            return self.reshape(self.node("Tile", value, self.shape(1, 1, g, 1)), b, heads, rows, size)

        def gather() -> str:
            return self.node("Gather", value, self.constant(np.repeat(np.arange(h), g), np.int64), axis=self.pick(1, -3))

        def concat() -> str:
            wide = self.node("Concat", *[self.unsqueeze(value, 2)] * g, axis=2)
            return self.reshape(wide, b, heads, rows, size)

        return self.idle(self.one_of("repeated", expand, expand_by_ones, tile, tile_within_head, gather, concat), 4)

    # -- the spine --------------------------------------------------------------------------------------------------------

    def product(self, query: str, key: str) -> str:
        """Scores [batch, heads, queries, keys]."""
        full = (self.batch, self.heads, self.queries, self.keys)
        flat = self.batch * self.heads

        def matmul() -> str:
            return self.node("MatMul", query, self.idle(self.transpose(key, 0, 1, 3, 2), 4))

        def two_turns() -> str:
            turned = self.transpose(self.transpose(key, 0, 2, 3, 1), 0, 3, 2, 1)
            return self.node("MatMul", query, turned)

        def turned_flat() -> str:
            turned = self.transpose(self.reshape(key, -1, self.keys, self.size), 0, 2, 1)
            return self.node("MatMul", query, self.reshape(turned, self.batch, self.heads, self.size, self.keys))

        def merged() -> str:
            left = self.reshape(query, flat, self.queries, self.size)
            right = self.transpose(self.reshape(key, flat, self.keys, self.size), 0, 2, 1)
            return self.reshape(self.node("MatMul", left, right), *full)

        def swapped() -> str:
            scores = self.node("MatMul", key, self.transpose(query, 0, 1, 3, 2))
            return self.transpose(scores, 0, 1, 3, 2)

        def five() -> str:
            scores = self.node("MatMul", self.unsqueeze(query, 1), self.unsqueeze(self.transpose(key, 0, 1, 3, 2), 1))
            return self.squeeze(scores, 1)

        def einsum() -> str:
            equation = self.pick("bhqd,bhkd->bhqk", "b h i d, b h j d -> b h i j", "...id,...jd->...ij", "BhQd,BhKd->BhQK")
            return self.node("Einsum", query, key, equation=equation)

        def einsum_in_order() -> str:
            """Without an arrow the indices that stand once are the output, in alphabetical order."""
            scores = self.node("Einsum", query, key, equation="...az,...bz")
            return self.reshape(scores, self.batch, self.heads, self.queries, self.keys)

        def einsum_of_rows() -> str:
            left, right = self.transpose(query, 0, 2, 1, 3), self.transpose(key, 0, 2, 1, 3)
            return self.node("Einsum", left, right, equation="bqhd,bkhd->bhqk")

        def einsum_of_keras() -> str:
            left, right = self.transpose(key, 0, 2, 1, 3), self.transpose(query, 0, 2, 1, 3)
            return self.node("Einsum", left, right, equation="aecd,abcd->acbe")

        options = [matmul, two_turns, turned_flat, merged, swapped, five]
        if self.opset >= 12:
            options += [einsum, einsum_in_order, einsum_of_rows, einsum_of_keras]
        return self.idle(self.one_of("product", *options), 4)

    def capped(self, scores: str) -> str:
        if self.some(0.8):
            return scores
        self.chosen.append("soft-cap")
        return self.times(self.node("Tanh", self.times(scores, 0.5)), 2.0)

    def weights(self, scores: str) -> str:
        """Probabilities over the last axis."""

        def node() -> str:
            return self.node("Softmax", scores, axis=self.pick(3, -1) if self.opset >= 13 else self.pick(-1, 3))

        def default_axis() -> str:
            if self.opset >= 13:
                return self.node("Softmax", scores)
            rows = self.node("Softmax", self.reshape(scores, -1, self.keys))  # flattens from axis 1 on
            return self.reshape(rows, self.batch, self.heads, self.queries, self.keys)

        def in_double() -> str:
            return self.cast(self.node("Softmax", self.cast(scores, TensorProto.DOUBLE), axis=-1))

        def shifted() -> str:
            return self.node("Softmax", self.node("Sub", scores, self.reduce("ReduceMax", scores, -1)), axis=-1)

        def written() -> str:
            powers = self.node("Exp", self.node("Sub", scores, self.reduce("ReduceMax", scores, -1)))
            return self.node("Div", powers, self.reduce("ReduceSum", powers, -1))

        def reciprocal() -> str:
            powers = self.node("Exp", self.node("Sub", scores, self.reduce("ReduceMax", scores, -1)))
            return self.commuted("Mul", powers, self.node("Reciprocal", self.reduce("ReduceSum", powers, -1)))

        def logarithm() -> str:
            return self.node("Exp", self.node("LogSoftmax", scores, axis=-1))

        def over_rows() -> str:
            flat = self.reshape(scores, self.batch * self.heads, self.queries, self.keys)
            return self.reshape(self.node("Softmax", flat, axis=2), self.batch, self.heads, self.queries, self.keys)

        def turned() -> str:
            if self.opset < 13:
                return node()
            return self.transpose(self.node("Softmax", self.transpose(scores, 0, 3, 1, 2), axis=1), 0, 2, 3, 1)

        spellings = (node, node, default_axis, in_double, shifted, written, reciprocal, logarithm, over_rows, turned)
        made = self.one_of("softmax", *spellings)
        if self.some(0.25):
            self.chosen.append("guard")
            made = self.node("Where", self.node("IsNaN", made), self.number(0.0), made)
        return self.idle(made, 4)

    def weighted(self, weights: str, value: str) -> str:
        """The output in one of two layouts."""
        b, h, l, e = self.batch, self.heads, self.queries, self.value_size

        def matmul() -> str:
            return self.node("MatMul", weights, value)

        def merged() -> str:
            left = self.reshape(weights, b * h, l, self.keys)
            return self.reshape(self.node("MatMul", left, self.reshape(value, b * h, self.keys, e)), b, h, l, e)

        def swapped() -> str:
            turned = self.node("MatMul", self.transpose(value, 0, 1, 3, 2), self.transpose(weights, 0, 1, 3, 2))
            return self.transpose(turned, 0, 1, 3, 2)

        def einsum() -> str:
            return self.node("Einsum", weights, value, equation=self.pick("bhqk,bhkd->bhqd", "...ij,...jd->...id"))

        def einsum_to_rows() -> str:
            return self.transpose(self.node("Einsum", weights, value, equation="bhqk,bhkd->bqhd"), 0, 2, 1, 3)

        options = [matmul, merged, swapped]
        if self.opset >= 12:
            options += [einsum, einsum_to_rows]
        return self.idle(self.one_of("values", *options), 4)


def variant(seed: int) -> Variant:
    """The model of a seed: one attention, whose output is the only graph output."""
    from tests.unit.raising.variant_masks import masked

    graph = Variant(seed)
    query = graph.operand("q", graph.heads, graph.queries, graph.size)
    key = graph.operand("k", graph.kv_heads, graph.keys, graph.size)
    value = graph.operand("v", graph.kv_heads, graph.keys, graph.value_size)
    key = graph.repeated(key, graph.keys, graph.size)
    value = graph.repeated(value, graph.keys, graph.value_size)
    factors = graph.pick((1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (1.0, 0.5, 1.0), (1.0, 1.0, 0.5), (0.7, 0.7, 1.0), (0.7, 0.8, 0.9))
    query, key = graph.times(query, factors[0]), graph.times(key, factors[1])
    scores = graph.product(graph.idle(query, 4), graph.idle(key, 4))
    after = graph.some(0.2)
    if not after:
        scores = graph.idle(graph.times(scores, factors[2]), 4)
    scores = graph.capped(scores)
    for index in range(graph.masks):
        scores = graph.idle(masked(graph, scores, index), 4)
    if after:
        graph.chosen.append("scaled after the masks")
        scores = graph.times(scores, factors[2])
    result = graph.weighted(graph.weights(scores), value)
    shape: tuple[int, ...] = (graph.batch, graph.heads, graph.queries, graph.value_size)
    if graph.some(0.5):
        shape = (graph.batch, graph.queries, graph.heads * graph.value_size)
        result = graph.reshape(graph.transpose(result, 0, 2, 1, 3), *graph.pick(shape, (0, 0, -1)))
    graph.output(graph.node("Identity", result), *shape)
    return graph
