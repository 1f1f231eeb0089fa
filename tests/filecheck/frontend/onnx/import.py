# RUN: %python %s %t.onnx && lampc-opt %t.onnx --print-debuginfo | filecheck %s
"""A layer as exporters write it: projections, a causal mask computed from shapes, attention with an absent cache."""

import sys
from pathlib import Path

import numpy as np

from tests.unit.frontend.builders import model, node, tensor, value

LENGTH = 40

nodes = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "one"], ["length"]),
    node("Range", ["zero", "length", "one"], ["positions"]),
    node("Unsqueeze", ["positions", "axis1"], ["queries"]),
    node("LessOrEqual", ["positions", "queries"], ["allowed"]),
    node("MatMul", ["x", "w"], ["q"]),
    node("Attention", ["q", "x", "x", "allowed"], ["layer.0/a"], q_num_heads=2, kv_num_heads=2, scale=0.1),
    node("Softmax", ["layer.0/a"], ["p"], axis=-1),
]
constants = [
    tensor("w", np.ones((64, 64)), np.float32),
    tensor("zero", 0, np.int64),
    tensor("one", 1, np.int64),
    tensor("axis1", [1], np.int64),
]
made = model(nodes, [value("x", (1, LENGTH, 64))], [value("p", ("batch", "seq", 64))], constants)
Path(sys.argv[1]).write_bytes(made.SerializeToString())

# CHECK:      builtin.module attributes {onnx.model = "import.py.tmp.onnx", onnx.opset = {ai.onnx = 23 : i64}} {
# CHECK-NEXT:   func.func @main(%x: tensor<1x40x64xf32> {onnx.name = "x"} loc(unknown))
# CHECK-SAME:     -> (tensor<1x40x64xf32> {onnx.name = "p"}) {
# CHECK-NEXT:     %w = onnx.initializer "w" {sha256 = "{{[0-9a-f]+}}", content = #onnx.mask<fill, {{.*}}masked = 1.0>}
# CHECK-SAME:       : tensor<64x64xf32> loc("w"
# CHECK-NEXT:     %q = onnx.node "MatMul"(%x, %w) version 13 names ["q"]
# CHECK-SAME:       : (tensor<1x40x64xf32>, tensor<64x64xf32>) -> tensor<1x40x64xf32> loc("node_q"
# CHECK-NEXT:     %allowed = onnx.initializer "allowed"
# CHECK-SAME:       content = #onnx.mask<causal, offset = 0, window = -1, masked = -inf>} : tensor<40x40xi1> loc("node_allowed"
# CHECK-NEXT:     %layer0_a = onnx.node "Attention"(%q, %x, %x, %allowed)
# CHECK-SAME:       {kv_num_heads = 2 : i64, q_num_heads = 2 : i64, scale = 1.000000e-01 : f32} version 23 names ["layer.0/a"]
# CHECK-SAME:       -> tensor<1x40x64xf32> loc("node_layer.0/a"
# CHECK-NEXT:     %p = onnx.node "Softmax"(%layer0_a) {axis = -1 : i64} version 13 names ["p"] {{.*}} loc("node_p"
# CHECK-NEXT:     func.return %p : tensor<1x40x64xf32>
