// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout,lamp-convert-to-accel' | filecheck %s
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-convert-to-accel{k-slots=2}' | filecheck %s --check-prefix=FP32
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{policy=low},lamp-convert-to-accel' | filecheck %s --check-prefix=LOW
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{policy=high},lamp-convert-to-accel' | filecheck %s --check-prefix=HIGH
// RUN: not lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{range=unbounded shift=exact exp-above-one=keep},lamp-convert-to-accel' 2>&1 | filecheck %s --check-prefix=PAPER
// RUN: not lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{rounding=rtz},lamp-convert-to-accel' 2>&1 | filecheck %s --check-prefix=RTZ
// RUN: lampc-opt %s -p 'lamp-tile-attention{kv-order=reverse},lamp-mixed-precision,lamp-convert-to-accel' | filecheck %s --check-prefix=ORDER
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout{layout=compact},lamp-convert-to-accel' | filecheck %s --check-prefix=COMPACT
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{policy=high},lamp-register-layout{layout=compact},lamp-convert-to-accel' | filecheck %s --check-prefix=SPARE

func.func @attention(%q: tensor<1x4x40x8xf32>, %k: tensor<1x2x96x8xf32>, %v: tensor<1x2x96x4xf32>, %m: tensor<1x1x40x96xf32>) -> tensor<1x4x40x4xf32> {
  %o = attn.attention %q, %k, %v mask %m : tensor<1x1x40x96xf32> {scale = 0.5 : f32, softcap = 20.0 : f32} : tensor<1x4x40x8xf32>, tensor<1x2x96x8xf32>, tensor<1x2x96x4xf32> -> tensor<1x4x40x4xf32>
  func.return %o : tensor<1x4x40x4xf32>
}

// What stands around the lanes stays on the host.
// CHECK:      %live_mask, %bias = attn.split_mask %m
// CHECK-NEXT: accel.launch @attention_program(q = %q, k = %k, v = %v, mask = %live_mask, bias = %bias)
// CHECK:      accel.program @attention_program {bq = 16 : i64, bk = 16 : i64, nk = 4 : i64, nq = 8 : i64, d = 8 : i64, dv = 4 : i64, lq = 40 : i64, lk = 96 : i64
// CHECK-SAME: policy = "lamp"
// CHECK-SAME: has_mask = true, has_bias = true, has_sinks = false
// CHECK:      accel.stream "warp" {
// CHECK:      "v.live"
// CHECK:      accel.if_mask %live {
// CHECK:      "mx.qk.e4m3"{{.*}} at %live wait %k_full
// CHECK-NEXT: "v.cap.e4m3"
// CHECK-NEXT: "v.bias.e4m3"
// CHECK-NEXT: "v.mask.e4m3"
// CHECK-NEXT: "v.rmax.e4m3"
// CHECK-NEXT: "v.threat"
// Stage 1: test what is left, recompute the first unsafe sub-block, go on behind it.
// CHECK:      accel.while %one {
// CHECK-NEXT: "v.test"
// CHECK-NEXT: "p.next"
// CHECK-NEXT: } do {
// CHECK-NEXT: "mx.qk.e4m11"{{.*}} at %one skip0
// CHECK:      "v.vmax"
// CHECK-NEXT: "p.after"
// CHECK:      "exp.lut"{{.*}} at %low skip0
// CHECK:      "exp.sfu.e4m11"{{.*}} at %high skip0
// Stage 2, and the second sum only where it recomputed something.
// CHECK:      "v.rsum.mix"(vd = %omega_hat
// CHECK-NEXT: "v.xi"
// CHECK-NEXT: "knap"
// CHECK:      "mx.qk.e4m11"{{.*}} at %again signal %k_empty skip0
// CHECK:      "v.mov"(vd = %omega, va = %omega_hat)
// CHECK-NEXT: accel.if_mask %again {
// CHECK-NEXT: "v.rsum.mix"(vd = %omega
// CHECK:      "mx.pv.mix"{{.*}} wait %v_full signal %v_empty
// CHECK-NEXT: "v.stat"
// A warp without a live entry leaves its slots.
// CHECK:      } else {
// CHECK-NEXT: "bar.arrive"(bar = %k_empty, ring = %k_ring) wait %k_full
// CHECK:      accel.stream "dma" {
// CHECK:      "dma.ld"(buf = %k_buffer{{.*}} wait %k_empty xor signal %k_full

// FP32:     accel.program @attention_program {{.*}} policy = "fp32"
// FP32:     accel.buffer {buffer = "k", slots = 2 : i64
// FP32:     "mx.qk.f32"{{.*}} wait %k_full signal %k_empty
// FP32-NOT: exp.lut
// FP32:     "exp.sfu.f32"
// FP32:     "mx.pv.f32"

// LOW:     policy = "low"
// LOW:     "mx.qk.e4m3"
// LOW-NOT: e4m11
// LOW:     "exp.lut"

// HIGH:     policy = "high"
// HIGH-NOT: mx.qk.e4m3
// HIGH:     "mx.qk.e4m11"
// HIGH:     "exp.sfu.e4m11"

// PAPER: range = unbounded (preset paper-sim) is not a program of the machine
// RTZ: rounding = rtz is not a program of the machine

// Other orders take the tile's number from its place in the order.
// ORDER: kv_order = "reverse"
// ORDER: "s.tile"(sd = %tile, range = %tiles, sa = %position)

// One 16-bit sub-block: the step branches as soon as a second one is needed, in either stage.
// COMPACT:      layout = "compact", policy = "lamp"
// COMPACT:      %scores = accel.tile {granules = 6 : i64}
// COMPACT:      "v.test"(pd = %unsafe
// COMPACT-NEXT: "p.next"(pd = %high
// COMPACT-NEXT: accel.if_mask %high {
// COMPACT:      "v.test"(pd = %unsafe
// COMPACT-NEXT: "p.next"(pd = %second
// COMPACT-NEXT: "p.or"(pd = %high, pa = %high, pb = %second)
// COMPACT:      "p.cnt"(sd = %recomputed, pa = %high)
// COMPACT-NEXT: accel.if_at_least %recomputed, 2 {
// COMPACT-NEXT: "p.const"(pd = %again, imm = 0)
// COMPACT-NEXT: } else {
// COMPACT:      "knap"
// COMPACT:      "p.cnt"(sd = %recomputed, pa = %high_all)
// COMPACT-NEXT: accel.if_at_least %recomputed, 2 {
// COMPACT-NEXT: } else {
// COMPACT-NEXT: "mx.qk.e4m11"{{.*}} at %again skip0
// COMPACT:      "bar.arrive"(bar = %k_empty, ring = %k_ring)
// COMPACT:      "mx.pv.mix"{{.*}} wait %v_full signal %v_empty
// COMPACT-NEXT: "v.stat"
// COMPACT:      accel.if_at_least %recomputed, 2 {
// COMPACT-NEXT: "v.stat"
// COMPACT-NEXT: "p.const"(pd = %sbs, imm = 7)
// COMPACT-NEXT: "p.and"(pd = %sbs, pa = %live, pb = %sbs)
// COMPACT-NEXT: accel.if_mask %sbs {
// COMPACT:      "mx.qk.e4m11.seq"{{.*}} at %sbs
// COMPACT:      "mx.pv.e4m11.seq"{{.*}} at %sbs wait %v_full
// COMPACT:      "p.const"(pd = %sbs, imm = 8)
// COMPACT:      "mx.pv.e4m11.seq"
// COMPACT:      "bar.arrive"(bar = %k_empty, ring = %k_ring)
// COMPACT-NEXT: "bar.arrive"(bar = %v_empty, ring = %v_ring)

// Policy high branches at once, on the live sub-blocks.
// SPARE:     "p.cnt"(sd = %recomputed, pa = %live)
// SPARE:     "mx.qk.e4m11"{{.*}} at %live wait %k_full
// SPARE:     "mx.qk.e4m11.seq"{{.*}} at %sbs wait %k_full
