// RUN: lampc-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

%x = "test.op"() : () -> tensor<2x4xf32>
%y = onnx.node "Softmax"(%x) {axes = -1 : i64} version 13 names ["p"] : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: Softmax version 13 has no attribute 'axes'; it has axis

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%y = onnx.node "Softmax"(%x) {axis = -1.0 : f32} version 13 names ["p"] : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: attribute 'axis' of Softmax must be INT, not FloatAttr

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%y = onnx.node "Cast"(%x) version 13 names ["c"] : (tensor<2x4xf32>) -> tensor<2x4xf16>
// CHECK: Cast needs the attribute 'to'

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%y = onnx.node "MatMul"(%x) version 13 names ["s"] : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: MatMul takes 2 inputs, not 1

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%n = onnx.absent
%y = onnx.node "MatMul"(%x, %n) version 13 names ["s"] : (tensor<2x4xf32>, !onnx.absent) -> tensor<2x4xf32>
// CHECK: MatMul needs its input 1 (B)

// -----

%x = "test.op"() : () -> tensor<2x4x!onnx.string>
%y = onnx.node "MatMul"(%x, %x) version 13 names ["s"] : (tensor<2x4x!onnx.string>, tensor<2x4x!onnx.string>) -> tensor<2x4xf32>
// CHECK: input 0 (A) of MatMul cannot be tensor(string)

// -----

%x, %h = "test.op"() : () -> (tensor<2x4xf32>, tensor<4x2xf16>)
%y = onnx.node "MatMul"(%x, %h) version 13 names ["s"] : (tensor<2x4xf32>, tensor<4x2xf16>) -> tensor<2x2xf32>
// CHECK: input 1 (B) of MatMul is tensor(float16), but input 0 (A) is tensor(float); they share type T

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%y = onnx.node "Attention"(%x, %x, %x) version 22 names ["y"] : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: no version 22 of operator 'Attention' in domain ''

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%y = onnx.node "Relu"(%x) version 14 names [] : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: 1 results but 0 names

// -----

%c = onnx.constant "c" dense<[1.0, 2.0]> : tensor<3xf32>
// CHECK: tensor<3xf32> has 3 elements, 2 given

// -----

%c = onnx.constant "c" dense<[1.5]> : tensor<1xi64>
// CHECK: values do not fit tensor<1xi64>: int64 takes no fractions

// -----

%c = onnx.constant "c" dense<"0x00"> : tensor<2xi64>
// CHECK: 2 elements of 8 bytes expected, 1 bytes given

// -----

%c = onnx.constant "c" dense<true> {content = #onnx.mask<none, offset = 0, window = -1, masked = -inf>} : tensor<4xi1>
// CHECK: content describes the last two axes, but the result is tensor<4xi1>

// -----

%c = onnx.constant "c" dense<true> {content = #onnx.mask<diagonal, offset = 0, window = -1, masked = -inf>} : tensor<4x4xi1>
// CHECK: a mask is causal, none, factor, fill or keys, not 'diagonal'

// -----

%x = "test.op"() : () -> tensor<2x4xf32>
%q = onnx.segment @segment_0(%x) inputs ["x", "y"] outputs ["q"] : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: 1 operands but 2 tensor names
