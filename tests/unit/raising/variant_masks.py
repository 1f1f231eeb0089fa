"""Masks of the composed graphs: every way to say that a key is dead for a query, or worth less."""

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from lampc.dialects.onnx_attributes import Array

if TYPE_CHECKING:
    from tests.unit.raising.variants import Variant

LOWEST = float(np.finfo(np.float32).min)
MASKED = (-np.inf, LOWEST, -1e9, -1e4)


def masked(graph: "Variant", scores: str, index: int) -> str:
    """The scores [batch, heads, queries, keys] behind one more mask; every row keeps key 0."""

    def bias() -> str:
        return graph.commuted("Add", scores, graph.input(f"bias{index}", *_shape(graph)))

    def subtracted() -> str:
        return graph.node("Sub", scores, graph.input(f"bias{index}", *_shape(graph)))

    def added() -> str:
        live = _live(graph, _shape(graph))
        return graph.commuted("Add", scores, graph.given(f"mask{index}", np.where(live, 0, np.float32(graph.pick(*MASKED)))))

    def added_constant() -> str:
        live = _live(graph, _shape(graph, batch=False))
        return graph.commuted("Add", scores, graph.constant(np.where(live, 0, graph.pick(*MASKED))))

    def causal_constant() -> str:
        return graph.commuted("Add", scores, graph.constant(np.where(_causal(graph), 0, graph.pick(*MASKED))))

    def selected() -> str:
        live = graph.given(f"live{index}", _live(graph, _shape(graph)))
        return graph.node("Where", live, scores, _filler(graph))

    def selected_dead() -> str:
        dead = graph.given(f"dead{index}", ~_live(graph, _shape(graph)))
        return graph.node("Where", dead, _filler(graph), scores)

    def negated() -> str:
        dead = graph.given(f"dead{index}", ~_live(graph, _shape(graph)))
        return graph.node("Where", graph.node("Not", dead), scores, _filler(graph))

    def compared_to_zero() -> str:
        """TF and nanoGPT: masked_fill(mask == 0, c)."""
        live = graph.given(f"live{index}", _live(graph, _shape(graph)).astype(np.int64))
        return graph.node("Where", graph.node("Equal", live, graph.constant(0, np.int64)), _filler(graph), scores)

    def one_minus() -> str:
        """BERT: (1 - m) * c."""
        tokens = graph.cast(_tokens(graph, index))
        dead = graph.node("Sub", graph.constant(1.0), tokens)
        return graph.commuted("Add", scores, graph.commuted("Mul", dead, graph.number(graph.pick(LOWEST, -1e9, -1e4))))

    def minus_dead() -> str:
        tokens = graph.cast(_tokens(graph, index))
        dead = graph.commuted("Mul", graph.node("Sub", graph.constant(1.0), tokens), graph.constant(1e9))
        return graph.node("Sub", scores, dead)

    def chosen_from_tokens() -> str:
        """Hugging Face: Where(padding, 0, finfo.min), then Expand and Add."""
        live = graph.cast(_tokens(graph, index), TensorProto.BOOL)
        bias = graph.node("Where", live, graph.constant(0.0), _filler(graph))
        wide = graph.node("Expand", bias, graph.shape(graph.batch, 1, graph.queries, graph.keys))
        return graph.commuted("Add", scores, wide)

    def causal_and_tokens() -> str:
        live = graph.cast(_tokens(graph, index), TensorProto.BOOL)
        both = graph.commuted("And", _positions(graph), live)
        if graph.some(0.5):
            return graph.node("Where", both, scores, _filler(graph))
        return graph.commuted("Add", scores, graph.node("Where", both, graph.constant(0.0), _filler(graph)))

    def causal_positions() -> str:
        return graph.node("Where", _positions(graph), scores, _filler(graph))

    def blended() -> str:
        """tf2onnx and GPT-2 in TF: scores * live + c * (1 - live)."""
        live = np.broadcast_to(_causal(graph), (graph.queries, graph.keys)).astype(np.float32)
        kept = graph.commuted("Mul", scores, graph.constant(live))
        if graph.some(0.5):
            return graph.node("Sub", kept, graph.constant((1 - live) * 1e9))
        return graph.commuted("Add", kept, graph.constant((1 - live) * -1e9))

    def blended_tokens() -> str:
        live = graph.cast(_tokens(graph, index), TensorProto.BOOL)
        kept = graph.commuted("Mul", scores, graph.cast(live))
        dead = graph.pick(graph.cast(graph.node("Not", live)), graph.node("Sub", graph.constant(1.0), graph.cast(live)))
        return graph.commuted("Add", kept, graph.commuted("Mul", dead, graph.constant(-1e9)))

    def two_in_one() -> str:
        """T5: position bias and padding added before they meet the scores."""
        live = _live(graph, (graph.batch, 1, 1, graph.keys))
        mask = graph.given(f"mask{index}", np.where(live, 0, np.float32(graph.pick(*MASKED))))
        bias = graph.input(f"bias{index}", 1, graph.heads, graph.queries, graph.keys)
        return graph.commuted("Add", scores, graph.commuted("Add", bias, mask))

    def causal_in_one() -> str:
        """Position bias plus a causal constant."""
        mask = graph.constant(np.where(_causal(graph), 0, graph.pick(*MASKED)))
        bias = graph.input(f"bias{index}", 1, graph.heads, graph.queries, graph.keys)
        return graph.commuted("Add", scores, graph.commuted("Add", bias, mask))

    def fifth_axis() -> str:
        wide = graph.unsqueeze(scores, 1)
        bias = graph.input(f"bias{index}", graph.batch, 1, 1, graph.queries, graph.keys)
        return graph.squeeze(graph.commuted("Add", wide, bias), 1)

    def lengths() -> str:
        """Keys below a length per batch."""
        length = graph.given(f"lengths{index}", graph.rng.integers(1, graph.keys + 1, (graph.batch,)).astype(np.int64))
        steps = graph.constant(np.arange(graph.keys), np.int64)
        live = graph.node("Less", steps, graph.reshape(length, graph.batch, 1, 1, 1))
        return graph.node("Where", live, scores, _filler(graph))

    products = [blended, blended_tokens] if index == 0 else []  # 0 times a score of -inf is NaN
    return graph.one_of(
        "mask",
        *products,
        bias,
        subtracted,
        added,
        added_constant,
        causal_constant,
        selected,
        selected_dead,
        negated,
        compared_to_zero,
        one_minus,
        minus_dead,
        chosen_from_tokens,
        causal_and_tokens,
        causal_positions,
        two_in_one,
        causal_in_one,
        fifth_axis,
        lengths,
    )


def _shape(graph: "Variant", *, batch: bool = True) -> tuple[int, ...]:
    """A shape that broadcasts to the scores, of rank two to four."""
    full = (graph.batch if batch else 1, graph.heads, graph.queries, graph.keys)
    sizes = tuple(n if graph.some(0.6) else 1 for n in full[:3])
    rank = graph.pick(2, 3, 4)
    return (*sizes, full[3])[4 - rank :]


def _live(graph: "Variant", shape: tuple[int, ...]) -> Array:
    live = graph.rng.random(shape) < 0.7
    live[..., 0] = True
    return live


def _tokens(graph: "Variant", index: int) -> str:
    """An attention_mask [batch, keys] of ones and zeros, as [batch, 1, 1, keys]."""
    tokens = graph.given(f"tokens{index}", _live(graph, (graph.batch, graph.keys)).astype(np.int64))
    return graph.unsqueeze(tokens, 1, 2) if graph.some(0.5) else graph.reshape(tokens, graph.batch, 1, 1, graph.keys)


def _causal(graph: "Variant") -> Array:
    window = graph.pick(None, None, 3) if graph.masks == 1 else None  # two masks together leave key 0 to every row
    offset = graph.keys - graph.queries
    rows, keys = np.indices((graph.queries, graph.keys))
    live = keys <= rows + offset
    return live if window is None else live & (keys > rows + offset - window)


def _filler(graph: "Variant") -> str:
    """A masking constant: scalar, of rank one, or as wide as the scores."""
    shape = graph.pick((), (), (1,), (graph.batch, graph.heads, graph.queries, graph.keys))
    return graph.constant(np.full(shape, graph.pick(*MASKED)))


def _positions(graph: "Variant") -> str:
    """A causal limit, perhaps with a window, computed from ranges; bool [1, 1, queries, keys]."""
    offset = graph.keys - graph.queries
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    rows = graph.unsqueeze(graph.node("Range", graph.constant(offset, np.int64), graph.constant(graph.keys, np.int64), one), 1)
    keys = graph.unsqueeze(graph.node("Range", zero, graph.constant(graph.keys, np.int64), one), 0)
    live = graph.node("Not", graph.node("Greater", keys, rows))
    if graph.masks == 1 and graph.some(0.3):
        inside = graph.node("Greater", keys, graph.node("Sub", rows, graph.constant(3, np.int64)))
        live = graph.node("And", live, inside)
    return graph.unsqueeze(live, 0, 1)
