// RUN: lampc-opt %s -p 'lamp-tile-attention{bq=32 nq=2 bk=16 nk=2 operands=bf16 kv-order=sink-first}' --split-input-file | filecheck %s

func.func @masked(%q: tensor<2x4x100x8xf32>, %k: tensor<2x2x70x8xf32>, %v: tensor<2x2x70x4xf32>, %m: tensor<100x70xf32>) -> tensor<2x4x100x4xf32> {
  %o = attn.attention %q, %k, %v mask %m : tensor<100x70xf32> {scale = 0.5 : f32, window = 9 : i64, softcap = 30.0 : f32} : tensor<2x4x100x8xf32>, tensor<2x2x70x8xf32>, tensor<2x2x70x4xf32> -> tensor<2x4x100x4xf32>
  func.return %o : tensor<2x4x100x4xf32>
}

// CHECK-LABEL: @masked
// CHECK:         attn.round_operand %q : tensor<2x4x100x8xf32> -> tensor<2x4x100x8xbf16>
// CHECK:         %live_mask, %bias = attn.split_mask %m {threshold = -1.000000e+04 : f32, window = 9 : i64, queries = 100 : i64, keys = 70 : i64} : tensor<100x70xf32> -> tensor<1x1x100x70xi1>, tensor<1x1x100x70xf32>
// CHECK-NEXT:    attn.lanes %lane in (batch = 2, heads = 4, group = 2, blocks = 2, warps = 2, rows = 32) -> tensor<2x4x100x4xf32>
// CHECK:         attn.liveness %lane mask %live_mask : tensor<1x1x100x70xi1> {queries = 100 : i64, keys = 70 : i64, window = 9 : i64}
// CHECK:         attn.tile_loop %t in 3 sub_blocks 2 order "sink-first"
// CHECK:         %y = attn.scores
// CHECK-NEXT:    %capped = attn.soft_cap %y {cap = 3.000000e+01 : f32} : tensor<32x32xf32>
// CHECK-NEXT:    %biased = attn.add_bias %capped, %bias[%lane, %t]
// CHECK-NEXT:    attn.online_softmax {{.*}}, %biased, %live, %value

// -----

func.func @boolean(%q: tensor<1x2x8x8xf16>, %k: tensor<1x2x8x8xf16>, %v: tensor<1x2x8x8xf16>, %m: tensor<8x8xi1>, %s: tensor<2xf32>) -> tensor<1x2x8x8xf16> {
  %o = attn.attention %q, %k, %v mask %m : tensor<8x8xi1> sinks %s : tensor<2xf32> {scale = 0.5 : f32} : tensor<1x2x8x8xf16>, tensor<1x2x8x8xf16>, tensor<1x2x8x8xf16> -> tensor<1x2x8x8xf16>
  func.return %o : tensor<1x2x8x8xf16>
}

// A boolean mask only kills: no bias. The result goes back to the model's type.
// CHECK-LABEL: @boolean
// CHECK:         %mask = attn.rearrange %m {pattern = "a b -> 1 1 a b"} : tensor<8x8xi1> -> tensor<1x1x8x8xi1>
// CHECK:         attn.softmax_init %lane sinks %s
// CHECK-NOT:     attn.add_bias
// CHECK:         attn.round_operand {{.*}} : tensor<1x2x8x8xf32> -> tensor<1x2x8x8xf16>
