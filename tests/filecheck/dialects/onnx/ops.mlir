// RUN: XDSL_ROUNDTRIP
// RUN: XDSL_GENERIC_ROUNDTRIP

func.func @main(%x: tensor<1x4x8xf32>, %flag: tensor<i1>) -> tensor<1x4x4xf32> {
  %none = onnx.absent
  %w = onnx.initializer "layer.weight" {sha256 = "ab12"} : tensor<8x512xf32>
  %m = onnx.initializer "mask" {sha256 = "cd34", content = #onnx.mask<causal, offset = -3, window = 7, masked = -3.4028234663852886e+38>} : tensor<64x64xf32>
  %scale = onnx.constant "scale" dense<0.1> : tensor<f32>
  %special = onnx.constant "special" dense<[[-0.0, inf], [-inf, 1.0e+10]]> : tensor<2x2xf32>
  %nan = onnx.constant "nan" dense<"0x0100C07F"> : tensor<f32>
  %half = onnx.constant "half" dense<[-65504.0, 6.0e-08]> : tensor<2xf16>
  %empty = onnx.constant "empty" dense<[]> : tensor<0xi64>
  %zeros = onnx.constant "zeros" dense<0> : tensor<1000xi64>
  %big = onnx.constant "big" dense<[18446744073709551615, 0]> : tensor<2xui64>
  %tril = onnx.constant "tril" dense<[[true, false], [true, true]]> {content = #onnx.mask<causal, offset = 0, window = -1, masked = -inf>} : tensor<2x2xi1>
  %all = onnx.constant "all" dense<true> {content = #onnx.mask<none, offset = 0, window = -1, masked = -inf>} : tensor<2x2xi1>
  %t = onnx.node "Transpose"(%x) {perm = array<i64: 0, 2, 1>} version 25 names ["x_t"] : (tensor<1x4x8xf32>) -> tensor<1x8x4xf32>
  %s = onnx.node "MatMul"(%x, %t) version 13 names ["scores"] : (tensor<1x4x8xf32>, tensor<1x8x4xf32>) -> tensor<1x4x4xf32>
  %c = onnx.node "Clip"(%s, %none, %scale) version 13 names ["clipped"] : (tensor<1x4x4xf32>, !onnx.absent, tensor<f32>) -> tensor<1x4x4xf32>
  %o = onnx.node "com.microsoft::FusedThing"(%c) {alpha = 0xff800000 : f32, strings = ["a", "b"]} version 0 names ["fused"] : (tensor<1x4x4xf32>) -> !onnx.unknown
  %seq = onnx.node "SequenceConstruct"(%c, %c) version 11 names ["seq"] : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> !onnx.sequence<tensor<1x4x4xf32>>
  %i = onnx.node "If"(%flag) version 25 names ["chosen"] graph "then_branch" {
    onnx.yield %c : tensor<1x4x4xf32>
  } graph "else_branch" {
    %r = onnx.node "Relu"(%c) version 14 names ["r"] : (tensor<1x4x4xf32>) -> tensor<1x4x4xf32>
    onnx.yield %r : tensor<1x4x4xf32>
  } : (tensor<i1>) -> tensor<1x4x4xf32>
  %q, %k = onnx.segment @segment_0(%x) inputs ["x"] outputs ["q", "k"] : (tensor<1x4x8xf32>) -> (tensor<1x4x8xf32>, tensor<1x4x8xf32>)
  func.return %i : tensor<1x4x4xf32>
}

// CHECK:        func.func @main(%x: tensor<1x4x8xf32>, %flag: tensor<i1>) -> tensor<1x4x4xf32> {
// CHECK-NEXT:     %none = onnx.absent
// CHECK-NEXT:     %w = onnx.initializer "layer.weight" {sha256 = "ab12"} : tensor<8x512xf32>
// CHECK-NEXT:     %m = onnx.initializer "mask" {sha256 = "cd34", content = #onnx.mask<causal, offset = -3, window = 7, masked = -3.4028234663852886e+38>} : tensor<64x64xf32>
// CHECK-NEXT:     %scale = onnx.constant "scale" dense<0.1> : tensor<f32>
// CHECK-NEXT:     %special = onnx.constant "special" dense<{{\[\[}}-0.0, inf], [-inf, 1.0e+10]]> : tensor<2x2xf32>
// CHECK-NEXT:     %nan = onnx.constant "nan" dense<"0x0100C07F"> : tensor<f32>
// CHECK-NEXT:     %half = onnx.constant "half" dense<[-6.55e+04, 6.0e-08]> : tensor<2xf16>
// CHECK-NEXT:     %empty = onnx.constant "empty" dense<[]> : tensor<0xi64>
// CHECK-NEXT:     %zeros = onnx.constant "zeros" dense<0> : tensor<1000xi64>
// CHECK-NEXT:     %big = onnx.constant "big" dense<[18446744073709551615, 0]> : tensor<2xui64>
// CHECK-NEXT:     %tril = onnx.constant "tril" dense<{{\[\[}}true, false], [true, true]]> {content = #onnx.mask<causal, offset = 0, window = -1, masked = -inf>} : tensor<2x2xi1>
// CHECK-NEXT:     %all = onnx.constant "all" dense<true> {content = #onnx.mask<none, offset = 0, window = -1, masked = -inf>} : tensor<2x2xi1>
// CHECK-NEXT:     %t = onnx.node "Transpose"(%x) {perm = array<i64: 0, 2, 1>} version 25 names ["x_t"] : (tensor<1x4x8xf32>) -> tensor<1x8x4xf32>
// CHECK-NEXT:     %s = onnx.node "MatMul"(%x, %t) version 13 names ["scores"] : (tensor<1x4x8xf32>, tensor<1x8x4xf32>) -> tensor<1x4x4xf32>
// CHECK-NEXT:     %c = onnx.node "Clip"(%s, %none, %scale) version 13 names ["clipped"] : (tensor<1x4x4xf32>, !onnx.absent, tensor<f32>) -> tensor<1x4x4xf32>
// CHECK-NEXT:     %o = onnx.node "com.microsoft::FusedThing"(%c) {alpha = 0xff800000 : f32, strings = ["a", "b"]} version 0 names ["fused"] : (tensor<1x4x4xf32>) -> !onnx.unknown
// CHECK-NEXT:     %seq = onnx.node "SequenceConstruct"(%c, %c) version 11 names ["seq"] : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> !onnx.sequence<tensor<1x4x4xf32>>
// CHECK-NEXT:     %i = onnx.node "If"(%flag) version 25 names ["chosen"] graph "then_branch" {
// CHECK-NEXT:       onnx.yield %c : tensor<1x4x4xf32>
// CHECK-NEXT:     } graph "else_branch" {
// CHECK-NEXT:       %r = onnx.node "Relu"(%c) version 14 names ["r"] : (tensor<1x4x4xf32>) -> tensor<1x4x4xf32>
// CHECK-NEXT:       onnx.yield %r : tensor<1x4x4xf32>
// CHECK-NEXT:     } : (tensor<i1>) -> tensor<1x4x4xf32>
// CHECK-NEXT:     %q, %k = onnx.segment @segment_0(%x) inputs ["x"] outputs ["q", "k"] : (tensor<1x4x8xf32>) -> (tensor<1x4x8xf32>, tensor<1x4x8xf32>)
// CHECK-NEXT:     func.return %i : tensor<1x4x4xf32>
// CHECK-NEXT:   }
