"""
What the standard `Attention` operator returns beside its result: scores or probabilities, computed by the host.

Source: docs/onnx.md section 1.1 (the order of steps, qk_matmul_output_mode) and 1.4.
"""

import math

import numpy as np
from xdsl.dialects.builtin import f32, f64, i1
from xdsl.ir import SSAValue

from lampc.dialects.onnx import NodeOp, numpy_dtype
from lampc.passes.raising.graph import element_of, int_attribute, shape_of
from lampc.passes.raising.host_nodes import HostNodes

_ONNX_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}


def score_output(
    node: NodeOp,
    host: HostNodes,
    query: SSAValue,
    key: SSAValue,
    *,
    scale: float,
    softcap: float | None,
    mask: SSAValue | None,
    live: SSAValue | None,
) -> SSAValue:
    """
    `qk_matmul_output` [batch, query heads, queries, keys] of the query's type, as its mode says: 0 the scaled products,
    1 after the soft cap, 2 after the masks, 3 after the softmax, where a row without a live key is 0.

    query, key  [batch, heads, length, head size], cache included; computed in FP32, FP64 for FP64
    mask        attn_mask, boolean or a number to add; live: a boolean from causality, windows and lengths
    """
    mode = int_attribute(node, "qk_matmul_output_mode", 0)
    element = element_of(query)
    wide = f64 if element == f64 else f32

    def as_wide(value: SSAValue) -> SSAValue:
        if element_of(value) == wide:
            return value
        return host.node("Cast", [value], wide, to=_ONNX_TYPES[numpy_dtype(wide).name])

    def number(value: float) -> SSAValue:
        return host.constant(np.array(value, numpy_dtype(wide)))

    batch, heads, queries, size = shape_of(query)
    kv_heads, keys = shape_of(key)[1], shape_of(key)[2]
    root = number(math.sqrt(scale))
    scaled = host.node("Mul", [as_wide(query), root])
    grouped = host.reshape(scaled, (batch, kv_heads, heads // kv_heads * queries, size))
    turned = host.node(
        "Transpose", [host.node("Mul", [as_wide(key), root])], shape=(batch, kv_heads, size, keys), perm=(0, 1, 3, 2)
    )
    products = host.node("MatMul", [grouped, turned], shape=(batch, kv_heads, heads // kv_heads * queries, keys))
    scores = host.reshape(products, (batch, heads, queries, keys))
    if mode >= 1 and softcap is not None:
        cap = number(softcap)
        scores = host.node("Mul", [host.node("Tanh", [host.node("Div", [scores, cap])]), cap])
    if mode >= 2:
        for dead in (mask, live):
            if dead is None:
                continue
            if element_of(dead) == i1:
                scores = host.node("Where", [dead, scores, number(-math.inf)], wide)
            else:
                scores = host.node("Add", [scores, as_wide(dead)])
    if mode == 3:
        probabilities = host.node("Softmax", [scores], axis=-1)
        most = host.node("ReduceMax", [scores, host.integers(3)], shape=(batch, heads, queries, 1), keepdims=1)
        none = host.node("Equal", [most, number(-math.inf)], i1)
        scores = host.node("Where", [none, number(0), probabilities], wide)
    name = node.names.data[3].data
    if element == wide:
        return host.node("Identity", [scores], name=name)
    return host.node("Cast", [scores], element, name=name, to=_ONNX_TYPES[numpy_dtype(element).name])
