// RUN: lampc-opt %s -p 'lamp-tile-attention,lamp-mixed-precision,lamp-register-layout,lamp-convert-to-accel,lamp-accel-allocate' | filecheck %s
// RUN: not lampc-opt %s -p 'lamp-tile-attention{bq=16 bk=2 nk=8},lamp-convert-to-accel,lamp-accel-allocate' 2>&1 | filecheck %s --check-prefix=MANY

func.func @attention(%q: tensor<1x1x16x512xf32>, %k: tensor<1x1x64x512xf32>, %v: tensor<1x1x64x512xf32>) -> tensor<1x1x16x512xf32> {
  %o = attn.attention %q, %k, %v {scale = 0.5 : f32} : tensor<1x1x16x512xf32>, tensor<1x1x64x512xf32>, tensor<1x1x64x512xf32> -> tensor<1x1x16x512xf32>
  func.return %o : tensor<1x1x16x512xf32>
}

// Rings follow each other in SRAM; barriers take one number for each slot.
// CHECK:     accel.buffer {buffer = "k", slots = 3 : i64, bytes = 131072 : i64, index = 0 : i64, base = 0 : i64}
// CHECK:     accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64, index = 0 : i64}
// CHECK:     accel.barrier {barrier = "k_empty", slots = 3 : i64, expected = 8 : i64, index = 3 : i64}
// CHECK:     accel.buffer {buffer = "v", slots = 2 : i64, bytes = 131072 : i64, index = 1 : i64, base = 393216 : i64}
// The maxima and the stage-2 weights of a tile are never needed at once.
// CHECK:     %top = accel.vector {count = 4 : i64, index = [[#FIRST:]] : i64}
// CHECK:     %xi = accel.vector {count = 4 : i64, index = [[#FIRST]] : i64}

// MANY: the program needs more than the
