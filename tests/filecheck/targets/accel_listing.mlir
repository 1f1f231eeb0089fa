// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout,lamp-convert-to-accel,lamp-accel-allocate' -t lamp-assembly | filecheck %s
// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout,lamp-convert-to-accel,lamp-accel-allocate' -t lamp-assembly -o %t.s && lampc-asm assemble %t.s -o %t.bin && lampc-asm disassemble %t.bin | filecheck %s
// RUN: not lampc-opt %s -p 'lamp-tile-attention,lamp-convert-to-accel' -t lamp-assembly 2>&1 | filecheck %s --check-prefix=EARLY

func.func @attention(%q: tensor<1x4x40x8xbf16>, %k: tensor<1x2x96x8xbf16>, %v: tensor<1x2x96x4xbf16>, %m: tensor<40x96xi1>) -> tensor<1x4x40x4xbf16> {
  %o = attn.attention %q, %k, %v mask %m : tensor<40x96xi1> {scale = 0.5 : f32} : tensor<1x4x40x8xbf16>, tensor<1x2x96x8xbf16>, tensor<1x2x96x4xbf16> -> tensor<1x4x40x4xbf16>
  func.return %o : tensor<1x4x40x4xbf16>
}

// The mask broadcasts over batch and heads, and Q, K and V are stored in 2 bytes; the output is FP32.
// CHECK:      .cfg seed=0 accumulate_block=1 operand=bf16 has_mask=true has_bias=false has_sinks=false
// CHECK:      .descriptor q bf16 1x4x40x8
// CHECK:      .descriptor mask i1 1x1x40x96
// CHECK-NEXT: .descriptor o f32 1x4x40x4
// CHECK-NEXT: .buffer k base=0 bytes=1024 slots=3
// CHECK-NEXT: .buffer v base=3072 bytes=512 slots=2
// CHECK-NEXT: .barrier k_full first=0 slots=3 expected=1
// CHECK-NEXT: .barrier k_empty first=3 slots=3 expected=8
// CHECK:      .table lut
// CHECK-NEXT: .table sfu
// CHECK-NEXT: .stream warp
// Nothing is done for a thread block that sees no key tile.
// CHECK:      s.range [[TILES:s[0-9]+]]
// CHECK-NEXT: br.sz [[LEFT:s[0-9]+]], [[END:L[0-9]+]]
// CHECK-NEXT: [[LOOP:L[0-9]+]]:
// CHECK-NEXT: dma.ldm [[MASK:t[0-9]+]], mask, [[TILES]]
// CHECK-NEXT: v.live [[LIVE:p[0-9]+]], [[PARTIAL:p[0-9]+]], [[TILES]], [[MASK]]
// CHECK-NEXT: br.z [[LIVE]], [[DEAD:L[0-9]+]]
// CHECK-NEXT: mx.qk.e4m3 [[T:t[0-9]+]], [[Q:t[0-9]+]], k[s0] @[[LIVE]] wait=k_full
// CHECK-NEXT: v.mask.e4m3 [[T]], [[TILES]], [[MASK]] @[[PARTIAL]] skip0
// CHECK:      [[STAGE1:L[0-9]+]]:
// CHECK-NEXT: v.test
// CHECK-NEXT: p.next [[ONE:p[0-9]+]]
// CHECK-NEXT: br.z [[ONE]], [[SAFE:L[0-9]+]]
// CHECK-NEXT: mx.qk.e4m11 [[T]], [[Q]], k[s0] @[[ONE]] skip0
// CHECK:      br [[STAGE1]]
// CHECK-NEXT: [[SAFE]]:
// CHECK:      mx.qk.e4m11 [[T]], [[Q]], k[s0] @{{p[0-9]+}} signal=k_empty skip0
// CHECK:      mx.pv.mix {{.*}} wait=v_full signal=v_empty
// CHECK:      br [[NEXT:L[0-9]+]]
// CHECK-NEXT: [[DEAD]]:
// CHECK-NEXT: bar.arrive k_empty[s0] wait=k_full
// CHECK-NEXT: bar.arrive v_empty[s2] wait=v_full
// CHECK-NEXT: [[NEXT]]:
// CHECK:      loop [[LEFT]], [[LOOP]]
// CHECK-NEXT: [[END]]:
// CHECK-NEXT: v.norm
// CHECK-NEXT: dma.st o,
// CHECK-NEXT: halt
// CHECK-NEXT: .stream dma
// CHECK:      dma.ld k[s0], k, {{s[0-9]+}} wait=k_empty xor signal=k_full

// EARLY: a program is compiled after its registers are allocated; run lamp-accel-allocate
