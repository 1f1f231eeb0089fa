// RUN: lampc-opt %s -p lamp-tile-attention,lamp-register-layout | filecheck %s
// RUN: not lampc-opt %s -p 'lamp-register-layout{layout=compact}' 2>&1 | filecheck %s --check-prefix=COMPACT

func.func @attention(%q: tensor<1x2x16x8xf32>, %k: tensor<1x2x64x8xf32>, %v: tensor<1x2x64x8xf32>) -> tensor<1x2x16x8xf32> {
  %o = attn.attention %q, %k, %v {scale = 0.5 : f32} : tensor<1x2x16x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32> -> tensor<1x2x16x8xf32>
  func.return %o : tensor<1x2x16x8xf32>
}

// CHECK: attn.lanes {{.*}} layout "safe"
// COMPACT: option layout=compact: this layout is not supported yet; use layout=safe
