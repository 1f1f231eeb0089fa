// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{tau=0.125 tie=first}' | filecheck %s
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{policy=low}' | filecheck %s --check-prefix=LOW
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{policy=high}' | filecheck %s --check-prefix=HIGH
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{stage1=false}' | filecheck %s --check-prefix=STAGE2
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{stage2=false range=unbounded shift=exact exp-above-one=keep}' | filecheck %s --check-prefix=PAPER

func.func @attention(%q: tensor<1x2x16x8xf32>, %k: tensor<1x2x64x8xf32>, %v: tensor<1x2x64x8xf32>, %m: tensor<1x1x16x64xf32>) -> tensor<1x2x16x8xf32> {
  %o = attn.attention %q, %k, %v mask %m : tensor<1x1x16x64xf32> {scale = 0.5 : f32, softcap = 20.0 : f32} : tensor<1x2x16x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32> -> tensor<1x2x16x8xf32>
  func.return %o : tensor<1x2x16x8xf32>
}

// CHECK:      attn.softmax_init %lane : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x8xf32>
// CHECK:      %y8 = lamp.accumulate %key, %scaled {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : {{.*}} -> tensor<64x16x!lamp.float<e4m3>>
// CHECK-NEXT: attn.soft_cap %y8 {cap = 2.000000e+01 : f32, rounding = "rne", overflow = "saturate"} : tensor<64x16x!lamp.float<e4m3>>
// CHECK-NEXT: attn.add_bias
// CHECK:      lamp.threat_order
// CHECK:      lamp.recompute_unsafe %sb in %order
// CHECK-NEXT:   lamp.accumulate %key, %scaled at %sb
// CHECK-NEXT:   attn.soft_cap {{.*}} at %sb
// CHECK-NEXT:   attn.add_bias {{.*}} at %sb
// CHECK-NEXT:   lamp.yield
// CHECK:      lamp.exponential {{.*}} in %low {{.*}} unit = "lut"
// CHECK:      lamp.exponential {{.*}} in %high {{.*}} unit = "sfu"
// CHECK:      lamp.keep_low {{.*}} among %low {tau = 1.250000e-01 : f32, tie = "first"}
// CHECK:      lamp.recompute %{{.*}} in %again
// CHECK:      lamp.record %lane stage1 %high : !lamp.mask<4> stage2 %again : !lamp.mask<4>

// LOW:      lamp.accumulate {{.*}} -> tensor<64x16x!lamp.float<e4m3>>
// LOW:      lamp.raise_maximum
// LOW-NOT:  lamp.recompute
// LOW:      lamp.record %lane{{$}}

// HIGH-NOT:  e4m3>
// HIGH:      lamp.recompute %sb in %blocks : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>>
// HIGH:      lamp.raise_maximum
// HIGH-NOT:  lamp.keep_low
// HIGH:      lamp.record %lane stage1 %blocks

// STAGE2-NOT: lamp.recompute_unsafe
// STAGE2:     lamp.raise_maximum
// STAGE2:     lamp.keep_low
// STAGE2:     lamp.record %lane stage2 %again

// PAPER:     lamp.recompute_unsafe {{.*}} -> tensor<64x16x!lamp.float<e8m11, unbounded>>
// PAPER:     lamp.exponential {{.*}} {shift_format = !lamp.float<ue8m3, unbounded>, shift = "exact", above_one = "keep", unit = "lut"}
// PAPER-NOT: lamp.keep_low
