// RUN: lampc-opt %s -p lamp-outline-host --split-input-file --print-debuginfo | filecheck %s

// Two attentions in a row that are equal share a function; the weight is in the segment that uses it, the mask before its call.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: [[H:%[a-z0-9_]+]] = onnx.segment @segment_0(%x) inputs ["x"] outputs ["h"]
// CHECK-NEXT: [[M:%[a-z0-9_]+]] = onnx.constant "mask"
// CHECK-NEXT: [[A:%[a-z0-9_]+]] = func.call @attention_0([[H]], [[H]], [[H]], [[M]]) {onnx.name = "a"} : {{.*}} loc("layers.0")
// CHECK-NEXT: [[G:%[a-z0-9_]+]] = onnx.segment @segment_1([[A]], [[H]]) inputs ["a", "h"] outputs ["g"]
// CHECK-NEXT: [[B:%[a-z0-9_]+]] = func.call @attention_0([[G]], [[G]], [[G]], [[M]]) {onnx.name = "b"} : {{.*}} loc("layers.1")
// CHECK-NEXT: func.return [[B]]
// CHECK: func.func private @segment_0
// CHECK-NEXT: onnx.node "Relu"
// CHECK-NEXT: func.return
// CHECK: func.func private @segment_1
// CHECK-NEXT: onnx.constant "w"
// CHECK-NEXT: onnx.node "Neg"(%{{.*}}) version 13 names ["late"]
// CHECK-NEXT: onnx.node "Add"
// CHECK-NEXT: onnx.node "Mul"
// CHECK-NEXT: func.return
// CHECK: func.func private @attention_0(%query: tensor<1x6x16xf32> {{.*}}, %key: {{.*}}, %value: {{.*}}, %mask: tensor<1x1x1x6xi1> {{.*}}) -> tensor<1x6x16xf32>
// CHECK-NEXT: [[Q:%[a-z0-9_]+]] = attn.rearrange %query
// CHECK-NEXT: [[K:%[a-z0-9_]+]] = attn.rearrange %key
// CHECK-NEXT: [[V:%[a-z0-9_]+]] = attn.rearrange %value
// CHECK-NEXT: [[O:%[a-z0-9_]+]] = attn.attention [[Q]], [[K]], [[V]] mask %mask : tensor<1x1x1x6xi1> {scale = 5.000000e-01 : f32}
// CHECK-NEXT: [[R:%[a-z0-9_]+]] = attn.rearrange [[O]]
// CHECK-NEXT: func.return [[R]]
// CHECK-NOT: @attention_1
func.func @main(%x: tensor<1x6x16xf32>) -> tensor<1x6x16xf32> {
  %mask = onnx.constant "mask" dense<[[[[true, true, true, true, true, false]]]]> : tensor<1x1x1x6xi1>
  %w = onnx.constant "w" dense<2.0> : tensor<f32>
  %late = onnx.node "Neg"(%w) version 13 names ["late"] : (tensor<f32>) -> tensor<f32>
  %h = onnx.node "Relu"(%x) version 14 names ["h"] : (tensor<1x6x16xf32>) -> tensor<1x6x16xf32>
  %q0 = attn.rearrange %h {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}} : tensor<1x6x16xf32> -> tensor<1x4x6x4xf32>
  %k0 = attn.rearrange %h {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}} : tensor<1x6x16xf32> -> tensor<1x4x6x4xf32>
  %v0 = attn.rearrange %h {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}} : tensor<1x6x16xf32> -> tensor<1x4x6x4xf32>
  %o0 = attn.attention %q0, %k0, %v0 mask %mask : tensor<1x1x1x6xi1> {scale = 0.5 : f32} : tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32> -> tensor<1x4x6x4xf32> loc("layers.0")
  %a = attn.rearrange %o0 {pattern = "b h l d -> b l (h d)", onnx.name = "a"} : tensor<1x4x6x4xf32> -> tensor<1x6x16xf32> loc("layers.0")
  %f = onnx.node "Add"(%a, %h) version 14 names ["f"] : (tensor<1x6x16xf32>, tensor<1x6x16xf32>) -> tensor<1x6x16xf32>
  %g = onnx.node "Mul"(%f, %late) version 14 names ["g"] : (tensor<1x6x16xf32>, tensor<f32>) -> tensor<1x6x16xf32>
  %q1 = attn.rearrange %g {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}} : tensor<1x6x16xf32> -> tensor<1x4x6x4xf32>
  %k1 = attn.rearrange %g {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}} : tensor<1x6x16xf32> -> tensor<1x4x6x4xf32>
  %v1 = attn.rearrange %g {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}} : tensor<1x6x16xf32> -> tensor<1x4x6x4xf32>
  %o1 = attn.attention %q1, %k1, %v1 mask %mask : tensor<1x1x1x6xi1> {scale = 0.5 : f32} : tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32> -> tensor<1x4x6x4xf32> loc("layers.1")
  %b = attn.rearrange %o1 {pattern = "b h l d -> b l (h d)", onnx.name = "b"} : tensor<1x4x6x4xf32> -> tensor<1x6x16xf32> loc("layers.1")
  func.return %b : tensor<1x6x16xf32>
}

// -----

// Two attentions side by side need no segment between them; different scales are different functions.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: func.call @attention_0(%q, %k, %k)
// CHECK-NEXT: func.call @attention_1(%q, %k, %k)
// CHECK-NEXT: onnx.segment @segment_0
// CHECK-NEXT: func.return
func.func @main(%q: tensor<1x4x6x4xf32>, %k: tensor<1x4x6x4xf32>) -> tensor<1x4x6x4xf32> {
  %a = attn.attention %q, %k, %k {scale = 0.5 : f32} : tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32> -> tensor<1x4x6x4xf32>
  %b = attn.attention %q, %k, %k {scale = 0.25 : f32} : tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32> -> tensor<1x4x6x4xf32>
  %c = onnx.node "Add"(%a, %b) version 14 names ["c"] : (tensor<1x4x6x4xf32>, tensor<1x4x6x4xf32>) -> tensor<1x4x6x4xf32>
  func.return %c : tensor<1x4x6x4xf32>
}

// -----

// Without attention the model is one segment; a body's captured value is an input of it.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: onnx.segment @segment_0(%c, %x) inputs ["c", "x"] outputs ["y"]
// CHECK-NEXT: func.return
func.func @main(%c: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %y = onnx.node "If"(%c) version 16 names ["y"] graph "then_branch" {
    %t = onnx.node "Neg"(%x) version 13 names ["t"] : (tensor<4xf32>) -> tensor<4xf32>
    onnx.yield %t : tensor<4xf32>
  } graph "else_branch" {
    onnx.yield %x : tensor<4xf32>
  } : (tensor<i1>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
