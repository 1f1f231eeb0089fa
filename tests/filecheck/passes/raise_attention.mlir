// RUN: lampc-opt %s -p lamp-raise-attention --split-input-file | filecheck %s

// The standard operator on three axes: heads split off, causal, the default scale 1/sqrt(16).
// CHECK-LABEL: func.func @standard_3d
// CHECK: [[Q:%[a-z0-9_]+]] = attn.rearrange %q {pattern = "b l (h d) -> b h l d", sizes = {h = 8 : i64}} : tensor<1x6x128xf32> -> tensor<1x8x6x16xf32>
// CHECK: [[K:%[a-z0-9_]+]] = attn.rearrange %k {pattern = "b l (h d) -> b h l d", sizes = {h = 2 : i64}} : tensor<1x6x32xf32> -> tensor<1x2x6x16xf32>
// CHECK: [[V:%[a-z0-9_]+]] = attn.rearrange %v
// CHECK: [[O:%[a-z0-9_]+]] = attn.attention [[Q]], [[K]], [[V]] {scale = 2.500000e-01 : f32, causal}
// CHECK: %y = attn.rearrange [[O]] {{.*}}pattern = "b h l d -> b l (h d)"
// CHECK-NEXT: func.return %y
func.func @standard_3d(%q: tensor<1x6x128xf32>, %k: tensor<1x6x32xf32>, %v: tensor<1x6x32xf32>) -> tensor<1x6x128xf32> {
  %y = onnx.node "Attention"(%q, %k, %v) {is_causal = 1 : i64, q_num_heads = 8 : i64, kv_num_heads = 2 : i64} version 23 names ["y"] : (tensor<1x6x128xf32>, tensor<1x6x32xf32>, tensor<1x6x32xf32>) -> tensor<1x6x128xf32>
  func.return %y : tensor<1x6x128xf32>
}

// -----

// A cache: the host joins it and the causal limit moves by its length; left_window_size = 3 keeps four keys.
// CHECK-LABEL: func.func @cache_and_window
// CHECK: %present_k = onnx.node "Concat"(%past_k, %k) {axis = 2 : i64} version 13 names ["present_k"]
// CHECK: [[V:%[a-z0-9_]+]] = onnx.node "Concat"(%past_v, %v)
// CHECK: %y = attn.attention %q, %present_k, [[V]] {{.*}}causal, causal_offset = 5 : i64, window = 4 : i64
// CHECK: func.return %y, %present_k
builtin.module attributes {onnx.opset = {"" = 25 : i64}} {
func.func @cache_and_window(%q: tensor<1x2x3x8xf32>, %k: tensor<1x2x3x8xf32>, %v: tensor<1x2x3x8xf32>, %past_k: tensor<1x2x5x8xf32>, %past_v: tensor<1x2x5x8xf32>) -> (tensor<1x2x3x8xf32>, tensor<1x2x8x8xf32>) {
  %none = onnx.absent
  %y, %present_k, %present_v = onnx.node "Attention"(%q, %k, %v, %none, %past_k, %past_v) {is_causal = 1 : i64, left_window_size = 3 : i64} version 25 names ["y", "present_k", "present_v"] : (tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, !onnx.absent, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>) -> (tensor<1x2x3x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>)
  func.return %y, %present_k : tensor<1x2x3x8xf32>, tensor<1x2x8x8xf32>
}
}

// -----

// Scale on Q and on K, K transposed by reshapes, key-value heads repeated, a causal constant, a NaN guard.
// CHECK-LABEL: func.func @repeated_heads
// CHECK-NEXT: %o = attn.attention %q, %k, %v {{.*}}scale = 2.500000e-01 : f32, causal} : tensor<1x4x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
// CHECK-NEXT: func.return %o
func.func @repeated_heads(%q: tensor<1x4x8x16xf32>, %k: tensor<1x2x8x16xf32>, %v: tensor<1x2x8x16xf32>) -> tensor<1x4x8x16xf32> {
  %half = onnx.constant "half" dense<0.5> : tensor<f32>
  %zero = onnx.constant "zero" dense<0.0> : tensor<f32>
  %two = onnx.constant "two" dense<2> : tensor<1xi64>
  %wide = onnx.constant "wide" dense<[1, 2, 2, 8, 16]> : tensor<5xi64>
  %heads = onnx.constant "heads" dense<[1, 4, 8, 16]> : tensor<4xi64>
  %flat = onnx.constant "flat" dense<[4, 8, 16]> : tensor<3xi64>
  %turned = onnx.constant "turned" dense<[1, 4, 16, 8]> : tensor<4xi64>
  %mask = onnx.initializer "mask" {sha256 = "", content = #onnx.mask<causal, offset = 0, window = -1, masked = -inf>} : tensor<1x1x8x8xf32>
  %qs = onnx.node "Mul"(%q, %half) version 14 names ["qs"] : (tensor<1x4x8x16xf32>, tensor<f32>) -> tensor<1x4x8x16xf32>
  %k1 = onnx.node "Unsqueeze"(%k, %two) version 13 names ["k1"] : (tensor<1x2x8x16xf32>, tensor<1xi64>) -> tensor<1x2x1x8x16xf32>
  %k2 = onnx.node "Expand"(%k1, %wide) version 13 names ["k2"] : (tensor<1x2x1x8x16xf32>, tensor<5xi64>) -> tensor<1x2x2x8x16xf32>
  %k3 = onnx.node "Reshape"(%k2, %flat) version 14 names ["k3"] : (tensor<1x2x2x8x16xf32>, tensor<3xi64>) -> tensor<4x8x16xf32>
  %k4 = onnx.node "Transpose"(%k3) {perm = array<i64: 0, 2, 1>} version 13 names ["k4"] : (tensor<4x8x16xf32>) -> tensor<4x16x8xf32>
  %k5 = onnx.node "Reshape"(%k4, %turned) version 14 names ["k5"] : (tensor<4x16x8xf32>, tensor<4xi64>) -> tensor<1x4x16x8xf32>
  %k6 = onnx.node "Mul"(%half, %k5) version 14 names ["k6"] : (tensor<f32>, tensor<1x4x16x8xf32>) -> tensor<1x4x16x8xf32>
  %v1 = onnx.node "Unsqueeze"(%v, %two) version 13 names ["v1"] : (tensor<1x2x8x16xf32>, tensor<1xi64>) -> tensor<1x2x1x8x16xf32>
  %v2 = onnx.node "Expand"(%v1, %wide) version 13 names ["v2"] : (tensor<1x2x1x8x16xf32>, tensor<5xi64>) -> tensor<1x2x2x8x16xf32>
  %v3 = onnx.node "Reshape"(%v2, %heads) version 14 names ["v3"] : (tensor<1x2x2x8x16xf32>, tensor<4xi64>) -> tensor<1x4x8x16xf32>
  %s = onnx.node "MatMul"(%qs, %k6) version 13 names ["s"] : (tensor<1x4x8x16xf32>, tensor<1x4x16x8xf32>) -> tensor<1x4x8x8xf32>
  %m = onnx.node "Add"(%mask, %s) version 14 names ["m"] : (tensor<1x1x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %p = onnx.node "Softmax"(%m) {axis = -1 : i64} version 13 names ["p"] : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %nan = onnx.node "IsNaN"(%p) version 13 names ["nan"] : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xi1>
  %guarded = onnx.node "Where"(%nan, %zero, %p) version 16 names ["guarded"] : (tensor<1x4x8x8xi1>, tensor<f32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %o = onnx.node "MatMul"(%guarded, %v3) version 13 names ["o"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
  func.return %o : tensor<1x4x8x16xf32>
}

// -----

// Soft-cap, then a selection with a finite constant: boolean mask, lowest number where false. The softmax is written out.
// CHECK-LABEL: func.func @softcap_and_selection
// CHECK-NEXT: %o = attn.attention %q, %k, %v mask %live : tensor<8x8xi1> {{.*}}scale = 1.000000e+01 : f32, softcap = 2.000000e+01 : f32, masked_value = -3.4028234{{.*}} : f32}
func.func @softcap_and_selection(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x8x16xf32>, %v: tensor<1x4x8x16xf32>, %live: tensor<8x8xi1>) -> tensor<1x4x8x16xf32> {
  %half = onnx.constant "half" dense<0.5> : tensor<f32>
  %cap = onnx.constant "cap" dense<20.0> : tensor<1xf32>
  %low = onnx.constant "low" dense<-1.0e9> : tensor<f32>
  %last = onnx.constant "last" dense<-1> : tensor<1xi64>
  %kt = onnx.node "Transpose"(%k) {perm = array<i64: 0, 1, 3, 2>} version 13 names ["kt"] : (tensor<1x4x8x16xf32>) -> tensor<1x4x16x8xf32>
  %s = onnx.node "MatMul"(%q, %kt) version 13 names ["s"] : (tensor<1x4x8x16xf32>, tensor<1x4x16x8xf32>) -> tensor<1x4x8x8xf32>
  %h = onnx.node "Mul"(%s, %half) version 14 names ["h"] : (tensor<1x4x8x8xf32>, tensor<f32>) -> tensor<1x4x8x8xf32>
  %t = onnx.node "Tanh"(%h) version 13 names ["t"] : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %c = onnx.node "Mul"(%t, %cap) version 14 names ["c"] : (tensor<1x4x8x8xf32>, tensor<1xf32>) -> tensor<1x4x8x8xf32>
  %m = onnx.node "Where"(%live, %c, %low) version 16 names ["m"] : (tensor<8x8xi1>, tensor<1x4x8x8xf32>, tensor<f32>) -> tensor<1x4x8x8xf32>
  %max = onnx.node "ReduceMax"(%m, %last) version 18 names ["max"] : (tensor<1x4x8x8xf32>, tensor<1xi64>) -> tensor<1x4x8x1xf32>
  %d = onnx.node "Sub"(%m, %max) version 14 names ["d"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x1xf32>) -> tensor<1x4x8x8xf32>
  %e = onnx.node "Exp"(%d) version 13 names ["e"] : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %z = onnx.node "ReduceSum"(%e, %last) version 13 names ["z"] : (tensor<1x4x8x8xf32>, tensor<1xi64>) -> tensor<1x4x8x1xf32>
  %p = onnx.node "Div"(%e, %z) version 14 names ["p"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x1xf32>) -> tensor<1x4x8x8xf32>
  %o = onnx.node "MatMul"(%p, %v) version 13 names ["o"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
  func.return %o : tensor<1x4x8x16xf32>
}

// -----

// Scores [keys, queries] with the softmax over the first of them: K and Q swap. The host turns two masks and adds them up.
// CHECK-LABEL: func.func @transposed_scores
// CHECK: [[A:%[0-9]+]] = onnx.node "Transpose"({{.*}}) {perm = array<i64: 0, 2, 1>}
// CHECK: [[B:%[0-9]+]] = onnx.node "Reshape"([[A]]
// CHECK: [[C:%[0-9]+]] = onnx.node "Transpose"({{.*}}) {perm = array<i64: 1, 0>}
// CHECK: [[D:%[0-9]+]] = onnx.node "Reshape"([[C]]
// CHECK: [[E:%[0-9]+]] = onnx.node "Add"([[B]], [[D]])
// CHECK: attn.attention %q, %k, %v mask [[E]] : tensor<1x4x8x8xf32>
builtin.module attributes {onnx.opset = {"" = 17 : i64}} {
func.func @transposed_scores(%q: tensor<2x4x8x16xf32>, %k: tensor<2x4x8x16xf32>, %v: tensor<2x4x8x16xf32>, %bias: tensor<4x8x8xf32>, %pad: tensor<1x1x8x8xf32>) -> tensor<2x4x8x16xf32> {
  %qt = onnx.node "Transpose"(%q) {perm = array<i64: 0, 1, 3, 2>} version 13 names ["qt"] : (tensor<2x4x8x16xf32>) -> tensor<2x4x16x8xf32>
  %s = onnx.node "MatMul"(%k, %qt) version 13 names ["s"] : (tensor<2x4x8x16xf32>, tensor<2x4x16x8xf32>) -> tensor<2x4x8x8xf32>
  %a = onnx.node "Add"(%s, %pad) version 14 names ["a"] : (tensor<2x4x8x8xf32>, tensor<1x1x8x8xf32>) -> tensor<2x4x8x8xf32>
  %m = onnx.node "Add"(%a, %bias) version 14 names ["m"] : (tensor<2x4x8x8xf32>, tensor<4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %p = onnx.node "Softmax"(%m) {axis = 2 : i64} version 13 names ["p"] : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %pt = onnx.node "Transpose"(%p) {perm = array<i64: 0, 1, 3, 2>} version 13 names ["pt"] : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %o = onnx.node "MatMul"(%pt, %v) version 13 names ["o"] : (tensor<2x4x8x8xf32>, tensor<2x4x8x16xf32>) -> tensor<2x4x8x16xf32>
  func.return %o : tensor<2x4x8x16xf32>
}
}

// -----

// Left alone, with the node where matching stopped.
// CHECK: builtin.module attributes {attn.rejected = [
// CHECK-SAME: {node = "p", form = "Softmax, MatMul", reason = "stopped at Softmax 'p': its result is also used by the graph's outputs"}
// CHECK-LABEL: func.func @probabilities_returned
// CHECK-NOT: attn.attention
func.func @probabilities_returned(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x16x8xf32>, %v: tensor<1x4x8x16xf32>) -> (tensor<1x4x8x16xf32>, tensor<1x4x8x8xf32>) {
  %s = onnx.node "MatMul"(%q, %k) version 13 names ["s"] : (tensor<1x4x8x16xf32>, tensor<1x4x16x8xf32>) -> tensor<1x4x8x8xf32>
  %p = onnx.node "Softmax"(%s) {axis = -1 : i64} version 13 names ["p"] : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %o = onnx.node "MatMul"(%p, %v) version 13 names ["o"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
  func.return %o, %p : tensor<1x4x8x16xf32>, tensor<1x4x8x8xf32>
}

// -----

// Before opset 13 a Softmax flattens: axis 1 of four axes is no softmax over keys.
// CHECK: reason = "stopped at Softmax 'p': it does not run over the keys alone"
// CHECK-LABEL: func.func @flattening_softmax
func.func @flattening_softmax(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x16x8xf32>, %v: tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32> {
  %s = onnx.node "MatMul"(%q, %k) version 9 names ["s"] : (tensor<1x4x8x16xf32>, tensor<1x4x16x8xf32>) -> tensor<1x4x8x8xf32>
  %p = onnx.node "Softmax"(%s) version 11 names ["p"] : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %o = onnx.node "MatMul"(%p, %v) version 9 names ["o"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
  func.return %o : tensor<1x4x8x16xf32>
}

// -----

// CHECK: reason = "stopped at MatMul 'o': no softmax between the two products"
// CHECK-LABEL: func.func @no_softmax
func.func @no_softmax(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x16x8xf32>, %v: tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32> {
  %s = onnx.node "MatMul"(%q, %k) version 13 names ["s"] : (tensor<1x4x8x16xf32>, tensor<1x4x16x8xf32>) -> tensor<1x4x8x8xf32>
  %o = onnx.node "MatMul"(%s, %v) version 13 names ["o"] : (tensor<1x4x8x8xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
  func.return %o : tensor<1x4x8x16xf32>
}

// -----

// CHECK: {node = "y", form = "com.microsoft.PagedAttention", reason = "stopped at com.microsoft.PagedAttention 'y': this operator is not supported: its cache is in pages found by a block table"}
func.func @microsoft(%q: tensor<1x8x64xf32>) -> tensor<1x8x64xf32> {
  %y = onnx.node "com.microsoft::PagedAttention"(%q, %q, %q) {num_heads = 4 : i64} version 0 names ["y"] : (tensor<1x8x64xf32>, tensor<1x8x64xf32>, tensor<1x8x64xf32>) -> tensor<1x8x64xf32>
  func.return %y : tensor<1x8x64xf32>
}

// -----

// onnxruntime's own operator: the host adds the biases.
// CHECK-LABEL: func.func @multi_head
// CHECK: [[Q:%[0-9]+]] = onnx.node "Add"(%q, %{{[0-9]+}})
// CHECK: [[R:%[0-9]+]] = attn.rearrange [[Q]] {pattern = "b l (h d) -> b h l d", sizes = {h = 4 : i64}}
// CHECK: attn.attention [[R]], %{{[0-9]+}}, %{{[0-9]+}} {scale = 2.500000e-01 : f32}
func.func @multi_head(%q: tensor<1x8x64xf32>, %b: tensor<192xf32>) -> tensor<1x8x64xf32> {
  %y = onnx.node "com.microsoft::MultiHeadAttention"(%q, %q, %q, %b) {num_heads = 4 : i64} version 0 names ["y"] : (tensor<1x8x64xf32>, tensor<1x8x64xf32>, tensor<1x8x64xf32>, tensor<192xf32>) -> tensor<1x8x64xf32>
  func.return %y : tensor<1x8x64xf32>
}
