// RUN: XDSL_ROUNDTRIP
// RUN: XDSL_GENERIC_ROUNDTRIP

accel.program @attention_0 {bq = 16 : i64, bk = 16 : i64, nk = 4 : i64, nq = 8 : i64, d = 64 : i64, dv = 64 : i64, lq = 512 : i64, lk = 512 : i64, batch = 1 : i64, hq = 9 : i64, hkv = 3 : i64, scale = 1.250000e-01 : f64, delta = 3.906250e-03 : f64, tau = 5.000000e-01 : f64, tie = "slack", cap = 0.000000e+00 : f64, causal = true, causal_offset = 0 : i64, window = 0 : i64, layout = "safe", policy = "lamp", kv_order = "forward", rounding = "rne", overflow = "saturate", seed = 0 : i64, accumulate_block = 1 : i64, operand = "f32", has_mask = false, has_bias = false, has_sinks = false} {
  %k = accel.descriptor {tensor = "k", type = tensor<1x3x512x64xbf16>}
  %kb = accel.buffer {buffer = "k", slots = 3 : i64, bytes = 16384 : i64}
  %kb2 = accel.buffer {buffer = "k2", slots = 3 : i64, bytes = 16384 : i64, base = 49152 : i64, index = 1 : i64}
  %full = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64}
  %empty = accel.barrier {barrier = "k_empty", slots = 3 : i64, expected = 8 : i64, index = 3 : i64}
  accel.stream "warp" {
    %y = accel.tile {granules = 8 : i64}
    %q = accel.tile {granules = 16 : i64, index = 8 : i64}
    %bm = accel.tile {granules = 4 : i64}
    %mu = accel.vector {count = 1 : i64}
    %top = accel.vector {count = 4 : i64, index = 7 : i64}
    %live = accel.mask
    %partial = accel.mask {index = 2 : i64}
    %order = accel.order
    %ring = accel.scalar {count = 2 : i64}
    %range = accel.scalar {count = 2 : i64}
    %count = accel.part %range {offset = 1 : i64} : !accel.scalar
    accel.inst "s.mov"(sd = %count, imm = -4)
    accel.inst "v.const"(vd = %mu, value = -inf)
    accel.inst "v.scaleq"(q = %q, value = 1.250000e-01)
    accel.inst "s.range"(sd = %range)
    accel.loop %count {
      accel.inst "v.live"(pd = %live, pd2 = %partial, tile = %count)
      accel.inst "v.live"(pd = %live, pd2 = %partial, tile = %count, m = %bm)
      accel.if_mask %live {
        accel.inst "mx.qk.e4m3"(t = %y, q = %q, buf = %kb, ring = %ring) at %live wait %full signal %empty skip0
        accel.inst "v.rmax.e4m3"(vd = %top, t = %y) at %live
        accel.while %live {
          accel.inst "p.next"(pd = %live, pa = %live, order = %order)
        } do {
          accel.inst "v.vmax"(vd = %mu, va = %mu, vb = %top) at %live skip0
        }
      } else {
        accel.inst "bar.arrive"(bar = %empty, ring = %ring)
      }
      accel.if_at_least %count, 2 {
        accel.inst "mark"(imm = 1)
      }
      accel.if_at_least %count, 3 {
      } else {
        accel.inst "mark"(imm = 2)
      }
      accel.inst "s.ring"(ring = %ring, imm = 3)
    }
  }
  accel.stream "dma" {
    %ring = accel.scalar {count = 2 : i64}
    %tile = accel.scalar {count = 1 : i64}
    accel.inst "dma.ld"(buf = %kb, desc = %k, tile = %tile, ring = %ring) wait %empty xor signal %full
  }
}

// CHECK:      accel.program @attention_0 {bq = 16 : i64
// CHECK-SAME: scale = 1.250000e-01 : f64
// CHECK-SAME: has_sinks = false} {
// CHECK-NEXT: %k = accel.descriptor {tensor = "k", type = tensor<1x3x512x64xbf16>}
// CHECK-NEXT: %kb = accel.buffer {buffer = "k", slots = 3 : i64, bytes = 16384 : i64}
// CHECK-NEXT: %kb2 = accel.buffer {buffer = "k2", slots = 3 : i64, bytes = 16384 : i64, base = 49152 : i64, index = 1 : i64}
// CHECK-NEXT: %full = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64}
// CHECK-NEXT: %empty = accel.barrier {barrier = "k_empty", slots = 3 : i64, expected = 8 : i64, index = 3 : i64}
// CHECK-NEXT: accel.stream "warp" {
// CHECK-NEXT:   %y = accel.tile {granules = 8 : i64}
// CHECK-NEXT:   %q = accel.tile {granules = 16 : i64, index = 8 : i64}
// CHECK-NEXT:   %bm = accel.tile {granules = 4 : i64}
// CHECK-NEXT:   %mu = accel.vector {count = 1 : i64}
// CHECK-NEXT:   %top = accel.vector {count = 4 : i64, index = 7 : i64}
// CHECK-NEXT:   %live = accel.mask
// CHECK-NEXT:   %partial = accel.mask {index = 2 : i64}
// CHECK-NEXT:   %order = accel.order
// CHECK-NEXT:   %ring = accel.scalar {count = 2 : i64}
// CHECK-NEXT:   %range = accel.scalar {count = 2 : i64}
// CHECK-NEXT:   %count = accel.part %range {offset = 1 : i64} : !accel.scalar
// CHECK-NEXT:   accel.inst "s.mov"(sd = %count, imm = -4)
// CHECK-NEXT:   accel.inst "v.const"(vd = %mu, value = -inf)
// CHECK-NEXT:   accel.inst "v.scaleq"(q = %q, value = 1.250000e-01)
// CHECK-NEXT:   accel.inst "s.range"(sd = %range)
// CHECK-NEXT:   accel.loop %count {
// CHECK-NEXT:     accel.inst "v.live"(pd = %live, pd2 = %partial, tile = %count)
// CHECK-NEXT:     accel.inst "v.live"(pd = %live, pd2 = %partial, tile = %count, m = %bm)
// CHECK-NEXT:     accel.if_mask %live {
// CHECK-NEXT:       accel.inst "mx.qk.e4m3"(t = %y, q = %q, buf = %kb, ring = %ring) at %live wait %full signal %empty skip0
// CHECK-NEXT:       accel.inst "v.rmax.e4m3"(vd = %top, t = %y) at %live
// CHECK-NEXT:       accel.while %live {
// CHECK-NEXT:         accel.inst "p.next"(pd = %live, pa = %live, order = %order)
// CHECK-NEXT:       } do {
// CHECK-NEXT:         accel.inst "v.vmax"(vd = %mu, va = %mu, vb = %top) at %live skip0
// CHECK-NEXT:       }
// CHECK-NEXT:     } else {
// CHECK-NEXT:       accel.inst "bar.arrive"(bar = %empty, ring = %ring)
// CHECK-NEXT:     }
// CHECK-NEXT:     accel.if_at_least %count, 2 {
// CHECK-NEXT:       accel.inst "mark"(imm = 1)
// CHECK-NEXT:     }
// CHECK-NEXT:     accel.if_at_least %count, 3 {
// CHECK-NEXT:     } else {
// CHECK-NEXT:       accel.inst "mark"(imm = 2)
// CHECK-NEXT:     }
// CHECK-NEXT:     accel.inst "s.ring"(ring = %ring, imm = 3)
// CHECK-NEXT:   }
// CHECK-NEXT: }
// CHECK-NEXT: accel.stream "dma" {
// CHECK:        accel.inst "dma.ld"(buf = %kb, desc = %k, tile = %tile, ring = %{{.*}}) wait %empty xor signal %full

func.func private @launches(%query: tensor<1x9x512x64xf32>, %kv: tensor<1x3x512x64xf32>, %m: tensor<1x1x512x512xi1>) -> tensor<1x9x512x64xf32> {
  %o = accel.launch @attention_0(q = %query, k = %kv, v = %kv, mask = %m) : (tensor<1x9x512x64xf32>, tensor<1x3x512x64xf32>, tensor<1x3x512x64xf32>, tensor<1x1x512x512xi1>) -> tensor<1x9x512x64xf32>
  func.return %o : tensor<1x9x512x64xf32>
}

// CHECK:      accel.launch @attention_0(q = %query, k = %kv, v = %kv, mask = %m) : (tensor<1x9x512x64xf32>, tensor<1x3x512x64xf32>, tensor<1x3x512x64xf32>, tensor<1x1x512x512xi1>) -> tensor<1x9x512x64xf32>
