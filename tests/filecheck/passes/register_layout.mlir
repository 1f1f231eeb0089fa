// RUN: lampc-opt %s -p lamp-tile-attention,lamp-register-layout | filecheck %s
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout{layout=compact}' | filecheck %s --check-prefix=COMPACT
// RUN: lampc-opt %s -p 'lamp-tile-attention{nk=7},lamp-mixed-precision{stage2=false},lamp-register-layout{layout=compact}' | filecheck %s --check-prefix=SEVEN
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision{policy=low},lamp-register-layout{layout=compact}' | filecheck %s --check-prefix=LOW
// RUN: not lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout{layout=compact},lamp-register-layout' 2>&1 | filecheck %s --check-prefix=BACK

func.func @attention(%q: tensor<1x2x16x8xf32>, %k: tensor<1x2x64x8xf32>, %v: tensor<1x2x64x8xf32>, %b: tensor<16x64xf32>) -> tensor<1x2x16x8xf32> {
  %o = attn.attention %q, %k, %v mask %b : tensor<16x64xf32> {scale = 0.5 : f32, softcap = 3.0 : f32} : tensor<1x2x16x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32> -> tensor<1x2x16x8xf32>
  func.return %o : tensor<1x2x16x8xf32>
}

// CHECK: attn.lanes {{.*}} layout "safe"

// COMPACT: attn.lanes {{.*}} layout "compact"
// COMPACT: %[[MU1:.*]], %[[HIGH:.*]] = lamp.recompute_unsafe
// COMPACT: lamp.record %lane stage1 %{{.*}} : !lamp.mask<4> stage2 %again : !lamp.mask<4> {at_most = 2 : i64}
// COMPACT-NEXT: %mu_c, %omega_c, %acc_c = lamp.disruptive %sbs, %alive, %m, %o_1, %a in chunks of 3 where(%high, %again) live(%live) entry(%mu, %omega, %acc) otherwise(%mu1, %omega1, %acc1)
// COMPACT-NEXT: lamp.recompute %{{.*}} in %sbs
// COMPACT-NEXT: lamp.accumulate {{.*}} at %{{.*}} -> tensor<16x16x!lamp.float<e4m11>>
// COMPACT-NEXT: attn.soft_cap
// COMPACT-NEXT: attn.add_bias
// COMPACT: lamp.raise_maximum %m
// COMPACT-NEXT: lamp.exponential {{.*}} %alive in %sbs {{.*}}unit = "sfu"
// COMPACT: lamp.update_output %a
// COMPACT-NEXT: lamp.yield
// COMPACT: attn.yield %mu_c, %omega_c, %acc_c

// SEVEN: lamp.disruptive {{.*}} in chunks of 4 where(%high) live

// LOW-NOT: lamp.disruptive
// LOW: layout "compact"
// LOW-NOT: lamp.disruptive

// BACK: option layout=safe: the module already has layout compact, which cannot be undone

