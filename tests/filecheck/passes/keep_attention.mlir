// RUN: lampc-opt %s -p 'lamp-keep-attention' | filecheck %s
// RUN: lampc-opt %s -p 'lamp-keep-attention,lamp-outline-host' | filecheck %s --check-prefix=OUTLINED

// The scale before the product belongs to the attention; the mask, which both read, is made once outside.

func.func @main(%x: tensor<1x2x5x4xf32>, %k: tensor<1x2x4x5xf32>, %v: tensor<1x2x5x4xf32>, %bias: tensor<5x5xf32>) -> tensor<1x2x5x4xf32> {
  %scale = onnx.constant "scale" dense<0.5> : tensor<f32>
  %mask = onnx.node "Neg"(%bias) version 13 names ["mask"] : (tensor<5x5xf32>) -> tensor<5x5xf32>
  %q = onnx.node "Relu"(%x) version 14 names ["q"] : (tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  %qs = onnx.node "Mul"(%q, %scale) version 14 names ["qs"] : (tensor<1x2x5x4xf32>, tensor<f32>) -> tensor<1x2x5x4xf32>
  %qk = onnx.node "MatMul"(%qs, %k) version 13 names ["qk"] : (tensor<1x2x5x4xf32>, tensor<1x2x4x5xf32>) -> tensor<1x2x5x5xf32>
  %m = onnx.node "Add"(%qk, %mask) version 14 names ["m"] : (tensor<1x2x5x5xf32>, tensor<5x5xf32>) -> tensor<1x2x5x5xf32>
  %p = onnx.node "Softmax"(%m) {axis = -1 : i64} version 13 names ["p"] : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x5xf32>
  %o = onnx.node "MatMul"(%p, %v) version 13 names ["o"] : (tensor<1x2x5x5xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  %y = onnx.node "Neg"(%o) version 13 names ["y"] : (tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  func.return %y : tensor<1x2x5x4xf32>
}

// CHECK:      func.func @main
// CHECK:      %mask = onnx.node "Neg"(%bias)
// CHECK-NEXT: %q = onnx.node "Relu"(%x)
// CHECK-NEXT: %o = onnx.segment @kept_0(%q, %k, %mask, %v) inputs ["q", "k", "mask", "v"] outputs ["o"]
// CHECK-NEXT: %y = onnx.node "Neg"(%o)
// CHECK:      func.func private @kept_0
// CHECK-SAME: queries = 5 : i64, keys = 5 : i64, head_size = 4 : i64
// CHECK:      onnx.node "Mul"
// CHECK-NEXT: onnx.node "MatMul"
// CHECK-NEXT: onnx.node "Add"
// CHECK-NEXT: onnx.node "Softmax"
// CHECK-NEXT: onnx.node "MatMul"

// OUTLINED:      func.func @main
// OUTLINED-NEXT: onnx.segment @segment_0(
// OUTLINED-NEXT: onnx.segment @kept_0(
// OUTLINED-NEXT: onnx.segment @segment_1(
// OUTLINED-NEXT: func.return
