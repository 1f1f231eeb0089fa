"""
Match onnxruntime's `GroupQueryAttention`: grouped heads, a cache, rotary positions, a window, sinks.

The host unpacks, rotates and joins the cache; present_key and present_value stay outputs of the node itself. A cache of P keys
may be longer than what is in it: the attention runs over P + S keys, and a mask says which are there. Semantics were found by
trial on onnxruntime 1.32 (docs/onnx.md §3).
"""

import math
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, numpy_dtype
from lampc.passes.raising.axis_maps import Layout, axis
from lampc.passes.raising.fused_inputs import bias_term, refuse, sliced
from lampc.passes.raising.graph import Refusal, element_of, float_attribute, int_attribute, operand, shape_of, text_attribute
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.mask_structure import Structure, split_masks
from lampc.passes.raising.mask_terms import MaskTerm
from lampc.passes.raising.plan import Operand, Plan

_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"),
    *("position_ids", "attention_bias", "head_sink"),
)
_REFUSED = ("k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens")


@dataclass(frozen=True)
class _Sizes:
    """Sizes of one node; `past` is the length of the cache's tensors."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    size: int
    past: int

    @property
    def keys(self) -> int:
        return self.past + self.queries

    @property
    def scores(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.queries, self.keys


def match(node: NodeOp, host: HostNodes) -> Plan:
    """The attention that the node computes; `host` takes nodes to be added. Raises Refusal with the reason."""
    given = {name: operand(node, index) for index, name in enumerate(_INPUTS)}
    _refuse_unsupported(node)
    sizes = _sizes(node, given)
    query, key, value = _parts(node, host, sizes, given)
    before = _before(node, host, sizes, given)
    if int_attribute(node, "do_rotary", 0):
        query, key = _rotated(node, host, sizes, given, before, query, key)
    b, l, k, d = axis("b", sizes.batch), axis("l", sizes.queries), axis("k", sizes.keys), axis("d", sizes.size)
    h, kv = axis("h", sizes.heads), axis("h", sizes.kv_heads)
    canonical = (b, h, l, k)
    structure, terms = _masks(node, host, canonical, sizes, given, before)
    sinks = _sinks(node, host, sizes, given)
    keys = [_joined(host, sizes, *pair) for pair in ((given["past_key"], key), (given["past_value"], value))]
    return Plan(
        node,
        Operand(query, (b, l, h, d), (b, h, l, d)),
        Operand(keys[0], (b, kv, k, d), (b, kv, k, d)),
        Operand(keys[1], (b, kv, k, d), (b, kv, k, d)),
        (b, l, (*h, *d)),
        canonical,
        d,
        _scale(node, sizes.size),
        structure=structure,
        terms=terms,
        sinks=None if sinks is None else Operand(sinks, (h,), (h,)),
        softcap=_softcap(node),
    )


def _refuse_unsupported(node: NodeOp) -> None:
    refuse(node, dict(enumerate(_REFUSED, len(_INPUTS))), {3: "output_qk"})
    for name in ("k_quant_type", "v_quant_type"):
        if (kind := text_attribute(node, name, "NONE")) != "NONE":
            raise Refusal(f"{name} is {kind}: the cache is quantised", node)
    for name in ("sliding_window_cache", "kv_cache_bit_width"):
        if int_attribute(node, name, 0):
            raise Refusal(f"{name} is set", node)
    if int_attribute(node, "causal", 1) != 1 and int_attribute(node, "local_window_size", -1) != -1:
        raise Refusal("local_window_size without causality", node)


def _sizes(node: NodeOp, given: dict[str, SSAValue | None]) -> _Sizes:
    heads, kv_heads = int_attribute(node, "num_heads", 0), int_attribute(node, "kv_num_heads", 0)
    query, key, value = given["query"], given["key"], given["value"]
    if query is None or len(shape_of(query)) != 3 or heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise Refusal(f"{heads} query heads on {kv_heads} key-value heads, or a query that has no three axes", node)
    batch, queries, width = shape_of(query)
    packed = key is None and value is None
    size = width // (heads + 2 * kv_heads if packed else heads)
    expected = (batch, queries, size * kv_heads)
    if not packed and (key is None or value is None or {shape_of(key), shape_of(value)} != {expected}):
        raise Refusal(f"keys and values are not of shape {expected}", node)
    if width != size * (heads + 2 * kv_heads if packed else heads):
        raise Refusal(f"{heads} heads on a hidden size of {width}", node)
    past, past_value = given["past_key"], given["past_value"]
    if (past is None) != (past_value is None):
        raise Refusal("only one of past_key and past_value is given", node)
    length = 0
    if past is not None and past_value is not None:
        length = shape_of(past)[2] if len(shape_of(past)) == 4 else -1
        if {shape_of(past), shape_of(past_value)} != {(batch, kv_heads, length, size)}:
            raise Refusal(f"past_key and past_value of shapes {shape_of(past)} and {shape_of(past_value)}", node)
    lengths = given["seqlens_k"]
    if lengths is None or shape_of(lengths) not in ((batch,), (batch, 1)) or given["total_sequence_length"] is None:
        raise Refusal("seqlens_k is not one length for each of the batch, or total_sequence_length is missing", node)
    if 0 in (batch, queries, size):
        raise Refusal("an empty tensor", node)
    return _Sizes(batch, heads, kv_heads, queries, size, length)


def _parts(
    node: NodeOp, host: HostNodes, sizes: _Sizes, given: dict[str, SSAValue | None]
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Query, key and value as [batch, length, heads, size]."""
    query, key, value = given["query"], given["key"], given["value"]
    assert query is not None
    counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    if key is None or value is None:
        total = sum(counts)
        split = host.reshape(query, (sizes.batch, sizes.queries, total, sizes.size))
        parts: list[SSAValue] = []
        for start, count in zip((0, counts[0], counts[0] + counts[1]), counts, strict=True):
            limits = [host.integers(start), host.integers(start + count), host.integers(2)]
            parts.append(host.node("Slice", [split, *limits], shape=(sizes.batch, sizes.queries, count, sizes.size)))
        return parts[0], parts[1], parts[2]
    shaped = [
        host.reshape(x, (sizes.batch, sizes.queries, count, sizes.size))
        for x, count in zip((query, key, value), counts, strict=True)
    ]
    return shaped[0], shaped[1], shaped[2]


def _before(node: NodeOp, host: HostNodes, sizes: _Sizes, given: dict[str, SSAValue | None]) -> SSAValue | None:
    """
    Keys in the cache before this step, int64 [batch, 1]; None: none, whatever the model is given.

    A step with as many queries as there are keys in all is the first one.
    """
    if not sizes.past:
        return None
    total = given["total_sequence_length"]
    assert total is not None
    lengths = _lengths(host, sizes, given)
    count = host.node("Cast", [host.reshape(total, (1, 1))], i64, to=7)
    cached = host.node("Sub", [lengths, host.integer(sizes.queries - 1)])
    first = host.node("Equal", [count, host.integer(sizes.queries)], i1)
    before = host.node("Where", [first, host.integer(0), cached], i64, shape=(sizes.batch, 1))
    return host.limited(before, sizes.past, "keys in the cache by seqlens_k")


def _lengths(host: HostNodes, sizes: _Sizes, given: dict[str, SSAValue | None]) -> SSAValue:
    """seqlens_k, one less than the keys that there are in all, int64 [batch, 1]."""
    lengths = given["seqlens_k"]
    assert lengths is not None
    return host.node("Cast", [host.reshape(lengths, (sizes.batch, 1))], i64, to=7)


def _rotated(
    node: NodeOp,
    host: HostNodes,
    sizes: _Sizes,
    given: dict[str, SSAValue | None],
    before: SSAValue | None,
    query: SSAValue,
    key: SSAValue,
) -> tuple[SSAValue, SSAValue]:
    """Query and key turned by the angles of their positions."""
    tables = [given["cos_cache"], given["sin_cache"]]
    if any(table is None or len(shape_of(table)) != 2 for table in tables):
        raise Refusal("do_rotary without cos_cache and sin_cache", node)
    positions = given["position_ids"]
    if positions is None:
        positions = host.reshape(host.steps(sizes.queries), (1, sizes.queries))
        if before is not None:
            positions = host.node("Add", [positions, before])
    elif shape_of(positions) != (sizes.batch, sizes.queries):
        raise Refusal(f"position_ids of shape {shape_of(positions)}", node)
    angles: list[SSAValue] = []
    half = 0
    for table in tables:
        assert table is not None
        half = shape_of(table)[1]
        rows, length = shape_of(positions)
        taken = host.node("Gather", [table, positions], shape=(rows, length, half))
        angles.append(host.reshape(taken, (rows, length, 1, half)))
    if not 0 < 2 * half <= sizes.size:
        raise Refusal(f"rotary tables of {half} angles for heads of {sizes.size}", node)
    interleaved = int_attribute(node, "rotary_interleaved", 0) == 1
    return _turned(host, query, angles, interleaved), _turned(host, key, angles, interleaved)


def _turned(host: HostNodes, x: SSAValue, angles: list[SSAValue], interleaved: bool) -> SSAValue:
    """x [batch, length, heads, size], the first 2*half elements of each head turned in pairs."""
    cos, sin = angles
    *outer, size = shape_of(x)
    half = shape_of(cos)[3]

    def part(value: SSAValue, start: int, end: int, step: int = 1) -> SSAValue:
        limits = [host.integers(n) for n in (start, end, 3, step)]
        return host.node("Slice", [value, *limits], shape=(*outer, -(-(end - start) // step)))

    if interleaved:
        a, b = part(x, 0, 2 * half, 2), part(x, 1, 2 * half, 2)
    else:
        a, b = part(x, 0, half), part(x, half, 2 * half)
    first = host.node("Sub", [host.node("Mul", [a, cos]), host.node("Mul", [b, sin])])
    second = host.node("Add", [host.node("Mul", [b, cos]), host.node("Mul", [a, sin])])
    if interleaved:
        pairs = [host.reshape(value, (*outer, half, 1)) for value in (first, second)]
        turned = [host.reshape(host.node("Concat", pairs, shape=(*outer, half, 2), axis=-1), (*outer, 2 * half))]
    else:
        turned = [first, second]
    if 2 * half < size:
        turned.append(part(x, 2 * half, size))
    return turned[0] if len(turned) == 1 else host.node("Concat", turned, shape=(*outer, size), axis=-1)


def _joined(host: HostNodes, sizes: _Sizes, past: SSAValue | None, new: SSAValue) -> SSAValue:
    """[batch, heads, past + new, size]."""
    shape = (sizes.batch, sizes.kv_heads, sizes.queries, sizes.size)
    turned = host.node("Transpose", [new], shape=shape, perm=(0, 2, 1, 3))
    if past is None or not sizes.past:
        return turned
    return host.node("Concat", [past, turned], shape=(*shape[:2], sizes.keys, sizes.size), axis=2)


def _masks(
    node: NodeOp,
    host: HostNodes,
    canonical: Layout,
    sizes: _Sizes,
    given: dict[str, SSAValue | None],
    before: SSAValue | None,
) -> tuple[Structure | None, tuple[MaskTerm, ...]]:
    """Causality, the window, what of the cache is there, and attention_bias."""
    window = int_attribute(node, "local_window_size", -1)
    if window == 0 or window < -1:
        raise Refusal(f"local_window_size is {window}", node)
    terms: list[MaskTerm] = []
    structure: Structure | None = None
    causal = int_attribute(node, "causal", 1) == 1
    if before is not None:
        live = _live(host, sizes, before, window, causal)
        terms.append(MaskTerm(node, live, (canonical[0], (), *canonical[2:]), selects=True))
    elif causal:
        structure = Structure(0, window if window > 0 else None)
    if before is None and (sizes.batch > 1 or not causal):
        # prompts padded on the right; of a single one only the padding itself would see the padding
        ends = host.reshape(_lengths(host, sizes, given), (sizes.batch, 1, 1, 1))
        there = host.node("LessOrEqual", [host.steps(sizes.queries), ends], i1)
        terms.append(MaskTerm(node, there, (canonical[0], (), (), canonical[3]), selects=True))
    bias = given["attention_bias"]
    if bias is not None:
        terms.append(bias_term(node, _bias(node, host, sizes, bias, before), canonical, sizes.scores))
    return split_masks(terms, canonical[2], canonical[3], structure)


def _bias(node: NodeOp, host: HostNodes, sizes: _Sizes, bias: SSAValue, before: SSAValue | None) -> SSAValue:
    """
    attention_bias [batch or 1, heads or 1, queries or 1, keys that there are] for the places of the cache and the new keys.

    Where the cache has more places than keys, zeros stand for the others, and the new keys' columns are looked up.
    """
    shape = shape_of(bias)
    if len(shape) != 4 or shape[3] < sizes.queries or shape[3] > sizes.keys:
        raise Refusal(f"an attention_bias of shape {shape} for scores of shape {sizes.scores}", node)
    if before is None or (shape[3] == sizes.keys and sizes.batch == 1):
        return bias
    old = min(shape[3], sizes.past)
    cached = sliced(host, bias, [old], 3)[0]
    if old < sizes.past:
        zero = host.constant(np.zeros((), numpy_dtype(element_of(bias))))
        pads = host.integers(0, 0, 0, 0, 0, 0, 0, sizes.past - old)
        cached = host.node("Pad", [cached, pads, zero], shape=(*shape[:3], sizes.past))
    columns = host.node("Add", [host.steps(sizes.queries), host.reshape(before, (sizes.batch, 1, 1, 1))])
    wide = (sizes.batch, *shape[1:3])
    columns = host.node("Expand", [columns, host.integers(*wide, sizes.queries)], shape=(*wide, sizes.queries))
    table = host.node("Expand", [bias, host.integers(*wide, shape[3])], shape=(*wide, shape[3]))
    new = host.node("GatherElements", [table, columns], shape=(*wide, sizes.queries), axis=3)
    cached = host.node("Expand", [cached, host.integers(*wide, sizes.past)], shape=(*wide, sizes.past))
    return host.node("Concat", [cached, new], shape=(*wide, sizes.keys), axis=3)


def _live(host: HostNodes, sizes: _Sizes, before: SSAValue, window: int, causal: bool) -> SSAValue:
    """
    bool [batch, 1, queries, past + queries]: with n keys in the cache, key i of it is there if i < n; query j and the key
    that came with it have position n + j.
    """
    count = host.reshape(before, (sizes.batch, 1, 1, 1))
    old = host.steps(sizes.past)
    there = host.node("Less", [old, count], i1)
    steps = host.steps(sizes.queries)
    rows = host.reshape(steps, (sizes.queries, 1))
    behind = host.node("Add", [host.node("Sub", [rows, old]), count])  # how far a cached key lies back
    beside = host.node("Sub", [rows, steps])
    late = host.node("GreaterOrEqual", [beside, host.integer(0 if causal else -sizes.queries)], i1)
    shape = (sizes.batch, 1, sizes.queries, sizes.past)
    if window > 0:
        there = host.node("And", [there, host.node("Less", [behind, host.integer(window)], i1)])
        late = host.node("And", [late, host.node("Less", [beside, host.integer(window)], i1)])
    there = host.node("Expand", [there, host.integers(*shape)], shape=shape)
    shape = (*shape[:3], sizes.queries)
    late = host.node("Expand", [late, host.integers(*shape)], shape=shape)
    return host.node("Concat", [there, late], shape=(*shape[:3], sizes.keys), axis=3)


def _sinks(node: NodeOp, host: HostNodes, sizes: _Sizes, given: dict[str, SSAValue | None]) -> SSAValue | None:
    sinks = given["head_sink"]
    if int_attribute(node, "smooth_softmax", 0) == 1 and sinks is None:
        query = given["query"]
        assert query is not None
        return host.constant(np.zeros(sizes.heads, numpy_dtype(element_of(query))))
    if sinks is not None and shape_of(sinks) != (sizes.heads,):
        raise Refusal(f"head_sink of shape {shape_of(sinks)} for {sizes.heads} heads", node)
    return sinks


def _scale(node: NodeOp, size: int) -> float:
    scale = float_attribute(node, "scale", 0.0) or 1 / math.sqrt(size)
    if not (scale > 0 and math.isfinite(scale)):
        raise Refusal(f"a scale of {scale:g}", node)
    return scale


def _softcap(node: NodeOp) -> float | None:
    cap = float_attribute(node, "softcap", 0.0)
    if not 0 <= cap < math.inf:
        raise Refusal(f"a soft cap of {cap:g}", node)
    return cap or None
