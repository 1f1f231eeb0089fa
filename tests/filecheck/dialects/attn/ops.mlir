// RUN: XDSL_ROUNDTRIP
// RUN: XDSL_GENERIC_ROUNDTRIP

func.func @attention(%q: tensor<1x6x20x8xf32>, %k: tensor<1x3x40x8xf32>, %v: tensor<1x3x40x4xf32>, %m: tensor<20x40xf32>, %b: tensor<1x1x1x40xi1>, %s: tensor<6xf32>, %p: tensor<1x20x48xf32>) {
  %causal = attn.attention %q, %k, %v {scale = 0.35355338 : f32, causal, causal_offset = 20 : i64, window = 16 : i64, softcap = 50.0 : f32} : tensor<1x6x20x8xf32>, tensor<1x3x40x8xf32>, tensor<1x3x40x4xf32> -> tensor<1x6x20x4xf32>
  %masked = attn.attention %q, %k, %v mask %m : tensor<20x40xf32> sinks %s : tensor<6xf32> {scale = 0.5 : f32} : tensor<1x6x20x8xf32>, tensor<1x3x40x8xf32>, tensor<1x3x40x4xf32> -> tensor<1x6x20x4xf32>
  %boolean = attn.attention %q, %k, %v mask %b : tensor<1x1x1x40xi1> {scale = 0.5 : f32, masked_value = -3.40282347e+38 : f32} : tensor<1x6x20x8xf32>, tensor<1x3x40x8xf32>, tensor<1x3x40x4xf32> -> tensor<1x6x20x4xf32>
  %heads = attn.rearrange %p {pattern = "b l (h d) -> b h l d", sizes = {h = 6 : i64}} : tensor<1x20x48xf32> -> tensor<1x6x20x8xf32>
  func.return
}
func.func @tiled(%q: tensor<1x6x20x8xf32>, %k: tensor<1x3x40x8xf32>, %v: tensor<1x3x40x4xf32>, %m: tensor<1x1x20x40xf32>, %s: tensor<6xf32>) -> tensor<1x6x20x4xf32> {
  %qb = attn.round_operand %q : tensor<1x6x20x8xf32> -> tensor<1x6x20x8xbf16>
  %lm, %bias = attn.split_mask %m {threshold = -10000.0 : f32, queries = 20 : i64, keys = 40 : i64, causal} : tensor<1x1x20x40xf32> -> tensor<1x1x20x40xi1>, tensor<1x1x20x40xf32>
  %o = attn.lanes %lane in (batch = 1, heads = 6, group = 2, blocks = 1, warps = 2, rows = 16) layout "safe" -> tensor<1x6x20x4xf32> {
    %qw = attn.load_query %qb[%lane] : tensor<1x6x20x8xbf16> -> tensor<16x8xf32>
    %qs = attn.scale_query %qw {scale = 0.5 : f32} : tensor<16x8xf32>
    %liveness = attn.liveness %lane mask %lm : tensor<1x1x20x40xi1> {queries = 20 : i64, keys = 40 : i64, causal, window = 8 : i64}
    %mu0, %omega0, %acc0 = attn.softmax_init %lane sinks %s : tensor<6xf32> : tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>
    %mu, %omega, %acc = attn.tile_loop %t in 2 sub_blocks 2 order "reverse" where %liveness iter(%a = %mu0, %b = %omega0, %c = %acc0) : (tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>) {
      %kt = attn.load_tile %k[%lane, %t] : tensor<1x3x40x8xf32> -> tensor<32x8xf32>
      %vt = attn.load_tile %v[%lane, %t] : tensor<1x3x40x4xf32> -> tensor<32x4xf32>
      %live = attn.live_entries %liveness[%t] : tensor<32x16xi1>
      %y = attn.scores %kt, %qs : tensor<32x8xf32>, tensor<16x8xf32> -> tensor<32x16xf32>
      %capped = attn.soft_cap %y {cap = 30.0 : f32} : tensor<32x16xf32>
      %biased = attn.add_bias %capped, %bias[%lane, %t] : tensor<1x1x20x40xf32>, tensor<32x16xf32>
      %a1, %b1, %c1 = attn.online_softmax %a, %b, %c, %biased, %live, %vt : tensor<32x16xf32>, tensor<32x16xi1>, tensor<32x4xf32> -> tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>
      attn.yield %a1, %b1, %c1 : tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>
    }
    %rows = attn.normalize %acc, %omega : tensor<16x4xf32>, tensor<16xf32>
    attn.yield %rows : tensor<16x4xf32>
  }
  func.return %o : tensor<1x6x20x4xf32>
}

// CHECK:      builtin.module {
// CHECK-NEXT:   func.func @attention(%q: tensor<1x6x20x8xf32>, %k: tensor<1x3x40x8xf32>, %v: tensor<1x3x40x4xf32>, %m: tensor<20x40xf32>, %b: tensor<1x1x1x40xi1>, %s: tensor<6xf32>, %p: tensor<1x20x48xf32>) {
// CHECK-NEXT:     %causal = attn.attention %q, %k, %v {scale = 0.353553385 : f32, causal, causal_offset = 20 : i64, window = 16 : i64, softcap = 5.000000e+01 : f32} : tensor<1x6x20x8xf32>, tensor<1x3x40x8xf32>, tensor<1x3x40x4xf32> -> tensor<1x6x20x4xf32>
// CHECK-NEXT:     %masked = attn.attention %q, %k, %v mask %m : tensor<20x40xf32> sinks %s : tensor<6xf32> {scale = 5.000000e-01 : f32} : tensor<1x6x20x8xf32>, tensor<1x3x40x8xf32>, tensor<1x3x40x4xf32> -> tensor<1x6x20x4xf32>
// CHECK-NEXT:     %boolean = attn.attention %q, %k, %v mask %b : tensor<1x1x1x40xi1> {scale = 5.000000e-01 : f32, masked_value = -3.40282347e+38 : f32} : tensor<1x6x20x8xf32>, tensor<1x3x40x8xf32>, tensor<1x3x40x4xf32> -> tensor<1x6x20x4xf32>
// CHECK-NEXT:     %heads = attn.rearrange %p {pattern = "b l (h d) -> b h l d", sizes = {h = 6 : i64}} : tensor<1x20x48xf32> -> tensor<1x6x20x8xf32>
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func @tiled(%q: tensor<1x6x20x8xf32>, %k: tensor<1x3x40x8xf32>, %v: tensor<1x3x40x4xf32>, %m: tensor<1x1x20x40xf32>, %s: tensor<6xf32>) -> tensor<1x6x20x4xf32> {
// CHECK-NEXT:     %qb = attn.round_operand %q : tensor<1x6x20x8xf32> -> tensor<1x6x20x8xbf16>
// CHECK-NEXT:     %lm, %bias = attn.split_mask %m {threshold = -1.000000e+04 : f32, queries = 20 : i64, keys = 40 : i64, causal} : tensor<1x1x20x40xf32> -> tensor<1x1x20x40xi1>, tensor<1x1x20x40xf32>
// CHECK-NEXT:     %o = attn.lanes %lane in (batch = 1, heads = 6, group = 2, blocks = 1, warps = 2, rows = 16) layout "safe" -> tensor<1x6x20x4xf32> {
// CHECK-NEXT:       %qw = attn.load_query %qb[%lane] : tensor<1x6x20x8xbf16> -> tensor<16x8xf32>
// CHECK-NEXT:       %qs = attn.scale_query %qw {scale = 5.000000e-01 : f32} : tensor<16x8xf32>
// CHECK-NEXT:       %liveness = attn.liveness %lane mask %lm : tensor<1x1x20x40xi1> {queries = 20 : i64, keys = 40 : i64, causal, window = 8 : i64}
// CHECK-NEXT:       %mu0, %omega0, %acc0 = attn.softmax_init %lane sinks %s : tensor<6xf32> : tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>
// CHECK-NEXT:       %mu, %omega, %acc = attn.tile_loop %t in 2 sub_blocks 2 order "reverse" where %liveness iter(%a = %mu0, %b = %omega0, %c = %acc0) : (tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>) {
// CHECK-NEXT:         %kt = attn.load_tile %k[%lane, %t] : tensor<1x3x40x8xf32> -> tensor<32x8xf32>
// CHECK-NEXT:         %vt = attn.load_tile %v[%lane, %t] : tensor<1x3x40x4xf32> -> tensor<32x4xf32>
// CHECK-NEXT:         %live = attn.live_entries %liveness[%t] : tensor<32x16xi1>
// CHECK-NEXT:         %y = attn.scores %kt, %qs : tensor<32x8xf32>, tensor<16x8xf32> -> tensor<32x16xf32>
// CHECK-NEXT:         %capped = attn.soft_cap %y {cap = 3.000000e+01 : f32} : tensor<32x16xf32>
// CHECK-NEXT:         %biased = attn.add_bias %capped, %bias[%lane, %t] : tensor<1x1x20x40xf32>, tensor<32x16xf32>
// CHECK-NEXT:         %a1, %b1, %c1 = attn.online_softmax %a, %b, %c, %biased, %live, %vt : tensor<32x16xf32>, tensor<32x16xi1>, tensor<32x4xf32> -> tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>
// CHECK-NEXT:         attn.yield %a1, %b1, %c1 : tensor<16xf32>, tensor<16xf32>, tensor<16x4xf32>
// CHECK-NEXT:       }
// CHECK-NEXT:       %rows = attn.normalize %acc, %omega : tensor<16x4xf32>, tensor<16xf32>
// CHECK-NEXT:       attn.yield %rows : tensor<16x4xf32>
// CHECK-NEXT:     }
// CHECK-NEXT:     func.return %o : tensor<1x6x20x4xf32>
// CHECK-NEXT:   }
// CHECK-NEXT: }
