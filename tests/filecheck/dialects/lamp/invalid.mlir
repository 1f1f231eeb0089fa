// RUN: lampc-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @format(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16xf32>
  func.return
}
// CHECK: the accumulator must have a !lamp.float element type, got f32

// -----

func.func @rounding(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "up", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16x!lamp.float<e4m3>>
  func.return
}
// CHECK: rounding must be one of rne, rtz, stochastic, got 'up'

// -----

func.func @seed(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "stochastic", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16x!lamp.float<e4m3>>
  func.return
}
// CHECK: stochastic rounding, and no other, takes a seed

// -----

func.func @shape(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x12x!lamp.float<e4m3>>
  func.return
}
// CHECK: a 64-key tile and 16 rows do not give scores of shape (64, 12)

// -----

func.func @sub_blocks(%y: tensor<64x16x!lamp.float<e4m3>>, %live: tensor<64x16xi1>) {
  %top = lamp.subblock_max %y, %live : tensor<64x16x!lamp.float<e4m3>>, tensor<64x16xi1> -> tensor<5x16x!lamp.float<e4m3>>
  func.return
}
// CHECK: 64 keys do not make 5 sub-blocks of 16 rows

// -----

func.func @region(%m: !lamp.mask<4>, %k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.recompute %sb in %m : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
    %h = lamp.accumulate %k, %q at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<16x16x!lamp.float<e4m3>>
    lamp.yield %h : tensor<16x16x!lamp.float<e4m3>>
  }
  func.return
}
// CHECK: the region must yield !lamp.float<e4m11>

// -----

func.func @keep(%y: tensor<64x16x!lamp.float<e4m3>>, %mu: tensor<16x!lamp.float<e4m11>>, %live: tensor<64x16xi1>, %m: !lamp.mask<4>) {
  %e = lamp.exponential %y, %mu, %live in %m {shift_format = !lamp.float<ue5m3, bias = 22>, shift = "exact", above_one = "keep", unit = "lut"} : tensor<64x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m3, bias = 31>>
  func.return
}
// CHECK: above_one = keep needs an unbounded range: the hw shift format is unsigned

// -----

func.func @cut(%y: tensor<64x16x!lamp.float<e4m3>>, %mu: tensor<16x!lamp.float<e4m11>>, %live: tensor<64x16xi1>, %m: !lamp.mask<4>) {
  %e = lamp.exponential %y, %mu, %live in %m {shift_format = !lamp.float<ue5m3, bias = 22>, shift = "truncate", above_one = "clamp", unit = "lut"} : tensor<64x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m3, bias = 31>>
  func.return
}
// CHECK: shift = truncate, and no other, names the format of the cut

// -----

func.func @tau(%xi: tensor<4x16xf32>, %omega: tensor<16xf32>, %free: !lamp.mask<4>) {
  %keep = lamp.keep_low %xi, %omega among %free {tau = -0.5 : f32, tie = "slack"} : tensor<4x16xf32>, tensor<16xf32>, !lamp.mask<4> -> !lamp.mask<4>
  func.return
}
// CHECK: tau must not be negative or NaN, got -0.5

// -----

func.func @tie(%xi: tensor<4x16xf32>, %omega: tensor<16xf32>, %free: !lamp.mask<4>) {
  %keep = lamp.keep_low %xi, %omega among %free {tau = 0.5 : f32, tie = "random"} : tensor<4x16xf32>, tensor<16xf32>, !lamp.mask<4> -> !lamp.mask<4>
  func.return
}
// CHECK: tie must be one of slack, first, got 'random'

// -----

func.func @mask(%m: !lamp.mask<17>) {
  func.return
}
// CHECK: a key tile has 1 to 16 sub-blocks (stage 2 enumerates every mask of them)

// -----

func.func @delta(%o: !lamp.order<4>, %top: tensor<4x16x!lamp.float<e4m3>>, %mu: tensor<16x!lamp.float<e4m11>>, %live: tensor<64x16xi1>, %k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y, %mu1, %hi = lamp.recompute_unsafe %sb in %o margin(%top, %mu, %live) delta = -1.0 : (!lamp.order<4>, tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>) -> tensor<64x16x!lamp.float<e4m11>> {
    %h = lamp.accumulate %k, %q at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<16x16x!lamp.float<e4m11>>
    lamp.yield %h : tensor<16x16x!lamp.float<e4m11>>
  }
  func.return
}
// CHECK: delta must be finite and not negative, got -1.0

// -----

func.func @chunk(%m4: !lamp.mask<4>, %live: tensor<64x16xi1>, %mu: tensor<16xf32>, %new: tensor<16xf32>) {
  %r = lamp.disruptive %sbs, %alive, %m in chunks of 5 where(%m4) live(%live) entry(%mu) otherwise(%new) : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16xf32>) {
    lamp.yield %m : tensor<16xf32>
  }
  func.return
}
// CHECK: a chunk has 1 to 4 sub-blocks, got 5

// -----

func.func @masks(%m4: !lamp.mask<4>, %live: tensor<64x16xi1>, %mu: tensor<16xf32>, %new: tensor<16xf32>) {
  %r = lamp.disruptive %sbs, %alive, %m in chunks of 3 where(%m4, %m4, %m4) live(%live) entry(%mu) otherwise(%new) : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16xf32>) {
    lamp.yield %m : tensor<16xf32>
  }
  func.return
}
// CHECK: one or two masks of one tile say which sub-blocks were recomputed

// -----

func.func @state(%m4: !lamp.mask<4>, %live: tensor<64x16xi1>, %mu: tensor<16xf32>, %new: tensor<16xf32>) {
  %r = lamp.disruptive %sbs, %alive, %m in chunks of 3 where(%m4) live(%live) entry(%mu) otherwise(%new) : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16xf32>) {
    lamp.yield %m, %m : tensor<16xf32>, tensor<16xf32>
  }
  func.return
}
// CHECK: the body ends in a lamp.yield of the state after a chunk

// -----

func.func @unsigned(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16x!lamp.float<ue4m3>>
  func.return
}
// CHECK: the accumulator must be signed, ue4m3 is not

// -----

func.func @overflow(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "rne", overflow = "wrap", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16x!lamp.float<e4m3>>
  func.return
}
// CHECK: overflow must be one of saturate, nan, got 'wrap'

// -----

func.func @no_nan(%k: tensor<64x8xf32>, %q: tensor<16x8xf32>) {
  %y = lamp.accumulate %k, %q {rounding = "rne", overflow = "nan", accumulate_block = 1 : i64} : tensor<64x8xf32>, tensor<16x8xf32> -> tensor<64x16x!lamp.float<e4m3, nan = none>>
  func.return
}
// CHECK: overflow = nan needs a format with a NaN, e4m3 has none

// -----

func.func @keep(%y: tensor<64x16x!lamp.float<e4m3>>, %mu: tensor<16x!lamp.float<e4m11>>, %live: tensor<64x16xi1>, %m: !lamp.mask<4>) {
  %e = lamp.exponential %y, %mu, %live in %m {shift_format = !lamp.float<ue5m3, bias = 22>, shift = "exact", above_one = "keep", unit = "lut"} : tensor<64x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m3, bias = 31>>
  func.return
}
// CHECK: above_one = keep needs an unbounded range: the hw shift format is unsigned
