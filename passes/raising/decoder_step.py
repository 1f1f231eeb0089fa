"""
Match onnxruntime's `DecoderMaskedMultiHeadAttention`: one query, on a cache of fixed length or on the keys of an encoder.

The host puts the new key and value into the cache, which is the outputs present_key and present_value too. Semantics were found
by trial on onnxruntime 1.32 (docs/onnx.md §3).
"""

import numpy as np
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, numpy_dtype, onnx_dtype
from lampc.passes.raising.fused_inputs import Inputs, heads_apart, refuse, sliced, used, with_bias
from lampc.passes.raising.graph import Refusal, element_of, int_attribute, operand, shape_of
from lampc.passes.raising.host_nodes import HostNodes


def inputs_of(node: NodeOp, host: HostNodes, heads: int) -> Inputs:
    """The call; `host` takes nodes to be added. Raises Refusal with the reason."""
    refuse(node, {8: "beam_width", 9: "cache_indirection"}, {3: "qk"})
    query, key, value = operand(node, 0), operand(node, 1), operand(node, 2)
    if query is None or len(shape_of(query)) != 3:
        raise Refusal("packed query, key and value", node)
    if shape_of(query)[1] != 1:
        raise Refusal(f"{shape_of(query)[1]} queries, where it takes one", node)
    if key is None or value is None or len(shape_of(key)) != len(shape_of(value)):
        raise Refusal("key and value of other ranks", node)
    if len(shape_of(key)) == 4:
        return _cross(node, host, query, key, value)
    return _self(node, host, heads, query, key, value)


def _cross(node: NodeOp, host: HostNodes, query: SSAValue, key: SSAValue, value: SSAValue) -> Inputs:
    """On keys [batch, heads, keys, size], to which no bias is added."""
    names = {4: "attention_bias", 5: "past_key", 6: "past_value", 7: "past_sequence_length"}
    refuse(node, names, {1: "present_key", 2: "present_value"})
    bias = operand(node, 10)
    if bias is not None:
        width = shape_of(query)[2]
        if len(shape_of(bias)) != 1 or shape_of(bias)[0] < width:
            raise Refusal(f"a bias of shape {shape_of(bias)} for a hidden size of {width}", node)
        query = host.node("Add", [query, sliced(host, bias, [width], 0)[0]])
    return Inputs(query, key, value, padding=operand(node, 3))


def _self(node: NodeOp, host: HostNodes, heads: int, query: SSAValue, key: SSAValue, value: SSAValue) -> Inputs:
    """
    On a cache [batch, heads, places, size] that holds past_sequence_length keys, the new one put behind them.

    A mask or attention_bias covers as many keys as there are then.
    """
    pasts, count = [operand(node, 5), operand(node, 6)], operand(node, 7)
    if not int_attribute(node, "past_present_share_buffer", 0):
        raise Refusal("past_present_share_buffer is 0", node)
    if count is None or shape_of(count) not in ((), (1,)):
        raise Refusal("past_sequence_length is not one number", node)
    query, key, value = with_bias(node, host, [query, key, value], operand(node, 10))
    padding, bias = operand(node, 3), operand(node, 4)
    batch = shape_of(query)[0]
    places = [shape_of(past)[2] for past in pasts if past is not None and len(shape_of(past)) == 4]
    widths = [shape_of(part)[2] for part in (key, value)]
    expected = [(batch, heads, length, width // heads) for length, width in zip(places, widths, strict=False)]
    if [shape_of(past) for past in pasts if past is not None] != expected or len(set(places)) != 1 or len(expected) != 2:
        raise Refusal(f"past_key and past_value are not of {heads} heads, a length and the sizes of the new ones", node)
    if {shape_of(part)[:2] for part in (key, value)} != {(batch, 1)}:
        raise Refusal("more than one new key", node)
    length = places[0]
    covered = {shape_of(mask)[-1] for mask in (padding, bias) if mask is not None and len(shape_of(mask)) > 1}
    if len(covered) > 1 or max(covered, default=length) > length:
        raise Refusal(f"masks for {sorted(covered)} keys on a cache of {length}", node)
    most = min(covered, default=length) - 1
    count = host.reshape(host.node("Cast", [count], i64, to=onnx_dtype(i64)), (1,))
    count = host.limited(count, most, "past_sequence_length")
    steps = host.steps(length)
    here = host.reshape(host.node("Equal", [steps, count], i1), (length, 1))
    kept: list[SSAValue] = []
    others: list[tuple[SSAValue, SSAValue]] = []
    for index, (past, new) in enumerate(zip(pasts, (key, value), strict=True), 1):
        assert past is not None
        name = node.names.data[index].data if used(node, index) else None
        chosen = [here, heads_apart(host, new, heads), past]
        kept.append(host.node("Where", chosen, element_of(past), shape_of(past), name=name))
        if name is not None:
            others.append((node.results[index], kept[-1]))
    return Inputs(
        query,
        kept[0],
        kept[1],
        padding=padding if padding is None else _longer(host, padding, length, 1),
        bias=bias if bias is None else _longer(host, bias, length, 0),
        live=host.node("LessOrEqual", [steps, count], i1),
        others=tuple(others),
    )


def _longer(host: HostNodes, mask: SSAValue, length: int, filler: int) -> SSAValue:
    """A mask continued to all places of the cache; lengths stay as they are."""
    shape = shape_of(mask)
    if len(shape) == 1 or shape[-1] == length:
        return mask
    pads = host.integers(*[0] * (2 * len(shape) - 1), length - shape[-1])
    value = host.constant(np.array(filler, numpy_dtype(element_of(mask))))
    return host.node("Pad", [mask, pads, value], shape=(*shape[:-1], length))
