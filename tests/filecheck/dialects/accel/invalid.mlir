// RUN: lampc-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

accel.inst "mx.qk"()
// CHECK: mx.qk needs a format: mx.qk.e4m3, mx.qk.e4m11, mx.qk.f32, mx.qk.e4m11.seq

// -----

accel.inst "mx.kq"()
// CHECK: there is no instruction 'mx.kq'

// -----

accel.inst "br.z"()
// CHECK: br.z is control flow: write accel.loop, accel.while, accel.if_mask or accel.if_at_least

// -----

accel.inst "halt"()
// CHECK: halt is control flow

// -----

%v = accel.vector {count = 1 : i64}
accel.inst "v.mov"(vd = %v)
// CHECK: v.mov needs va

// -----

%v = accel.vector {count = 1 : i64}
accel.inst "v.mov"(vd = %v, va = %v, vb = %v)
// CHECK: v.mov has no vb

// -----

%v = accel.vector {count = 1 : i64}
accel.inst "v.mov"(vd = %v, vd = %v)
// CHECK: v.mov has no second vd

// -----

%v = accel.vector {count = 1 : i64}
accel.inst "v.const"(vd = %v)
// CHECK: v.const needs value

// -----

%v = accel.vector {count = 1 : i64}
"accel.inst"(%v, %v) <{mnemonic = "v.mov", imm = 1 : i32, operandSegmentSizes = array<i32: 2, 0, 0, 0>}> : (!accel.vector, !accel.vector) -> ()
// CHECK: v.mov has no imm

// -----

%v = accel.vector {count = 1 : i64}
%p = accel.mask
"accel.inst"(%v, %p) <{mnemonic = "v.mov", operandSegmentSizes = array<i32: 2, 0, 0, 0>}> : (!accel.vector, !accel.mask) -> ()
// CHECK: v.mov: va must be !accel.vector, got !accel.mask

// -----

%v = accel.vector {count = 1 : i64}
%p = accel.mask
accel.inst "v.mov"(vd = %v, va = %v) at %p
// CHECK: v.mov works on no sub-block mask

// -----

%v = accel.vector {count = 1 : i64}
accel.inst "v.mov"(vd = %v, va = %v) skip0
// CHECK: v.mov has no skip0

// -----

%v = accel.vector {count = 1 : i64}
%w = accel.vector {count = 1 : i64}
%top = accel.vector {count = 4 : i64}
accel.inst "v.vmax"(vd = %v, va = %w, vb = %top) skip0
// CHECK: v.vmax: skip0 needs vd and va equal

// -----

%v = accel.vector {count = 1 : i64}
%b = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64}
accel.inst "v.mov"(vd = %v, va = %v) wait %b
// CHECK: v.mov has no ring, so it neither waits nor signals

// -----

%b = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64}
%r = accel.scalar {count = 2 : i64}
accel.inst "bar.arrive"(bar = %b, ring = %r) xor
// CHECK: xor without wait

// -----

%r = accel.scalar {count = 1 : i64}
accel.inst "s.ring"(ring = %r, imm = 3)
// CHECK: s.ring: ring covers 2 registers, the run has 1

// -----

%r = accel.scalar {count = 2 : i64}
%p = accel.part %r {offset = 2 : i64} : !accel.scalar
// CHECK: offset 2 lies outside a run of 2

// -----

%r = "test.op"() : () -> !accel.scalar
accel.inst "s.ring"(ring = %r, imm = 3)
// CHECK: an instruction's operands are declared registers

// -----

%t = accel.tile {granules = 1025 : i64}
// CHECK: t0 to t1024 do not exist: there are 1024

// -----

%v = accel.vector {count = 4 : i64, index = 61 : i64}
// CHECK: v61 to v64 do not exist: there are 64

// -----

%v = accel.vector {count = 0 : i64}
// CHECK: a declaration names at least one register, not 0

// -----

%b = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 0 : i64}
// CHECK: a barrier expects at least one arrival, not 0

// -----

%b = accel.buffer {buffer = "k", slots = 0 : i64, bytes = 16 : i64}
// CHECK: a buffer has at least one slot of at least one byte, from byte 0 on

// -----

accel.stream "thread" {
}
// CHECK: a stream is one of warp, dma, not 'thread'

// -----

accel.stream "warp" {
  "test.op"() : () -> ()
}
// CHECK: a stream holds instructions, their registers and control flow, not test.op

// -----

accel.stream "warp" {
  %b = accel.buffer {buffer = "k", slots = 1 : i64, bytes = 16 : i64}
}
// CHECK: a stream holds instructions, their registers and control flow, not accel.buffer

// -----

accel.program @attention {bq = 16 : i64} {
}
// CHECK: configuration: entry 'bk' is missing

// -----

accel.program @attention {bq = 1 : i64, bk = 1 : i64, nk = 1 : i64, nq = 1 : i64, d = 1 : i64, dv = 1 : i64, lq = 1 : i64, lk = 1 : i64, batch = 1 : i64, hq = 1 : i64, hkv = 1 : i64, scale = 1.0 : f64, delta = 0.0 : f64, tau = 0.5 : f64, tie = "slack", cap = 0.0 : f64, causal = false, causal_offset = 0 : i64, window = 0 : i64, layout = "safe", policy = "lamp", kv_order = "forward", rounding = "rne", overflow = "saturate", seed = 0 : i64, accumulate_block = 1 : i64, operand = "f32", has_mask = false, has_bias = false, has_sinks = false} {
  accel.stream "warp" {
  }
}
// CHECK: a program has one stream "warp" and one "dma", got ['warp']
