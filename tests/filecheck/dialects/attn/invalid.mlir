// RUN: lampc-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @head_sizes(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x8x12xf32>, %v: tensor<1x4x8x16xf32>) {
  %o = attn.attention %q, %k, %v {scale = 1.0 : f32} : tensor<1x4x8x16xf32>, tensor<1x4x8x12xf32>, tensor<1x4x8x16xf32> -> tensor<1x4x8x16xf32>
  func.return
}
// CHECK: query has head size 16, key 12

// -----

func.func @group(%q: tensor<1x4x8x16xf32>, %k: tensor<1x3x8x16xf32>, %v: tensor<1x3x8x16xf32>) {
  %o = attn.attention %q, %k, %v {scale = 1.0 : f32} : tensor<1x4x8x16xf32>, tensor<1x3x8x16xf32>, tensor<1x3x8x16xf32> -> tensor<1x4x8x16xf32>
  func.return
}
// CHECK: 4 query heads are no multiple of 3 key-value heads

// -----

func.func @rank(%q: tensor<4x8x16xf32>, %k: tensor<1x4x8x16xf32>, %v: tensor<1x4x8x16xf32>) {
  %o = attn.attention %q, %k, %v {scale = 1.0 : f32} : tensor<4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32> -> tensor<4x8x16xf32>
  func.return
}
// CHECK: query has 3 axes; expected [batch, heads, length, size]

// -----

func.func @unbound(%q: tensor<1x4x?x16xf32>, %k: tensor<1x4x8x16xf32>, %v: tensor<1x4x8x16xf32>) {
  %o = attn.attention %q, %k, %v {scale = 1.0 : f32} : tensor<1x4x?x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32> -> tensor<1x4x?x16xf32>
  func.return
}
// CHECK: query has an unbound dimension; bind every dimension before raising

// -----

func.func @mask(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x8x16xf32>, %v: tensor<1x4x8x16xf32>, %m: tensor<3x8xf32>) {
  %o = attn.attention %q, %k, %v mask %m : tensor<3x8xf32> {scale = 1.0 : f32} : tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32> -> tensor<1x4x8x16xf32>
  func.return
}
// CHECK: mask of shape (3, 8) does not broadcast to scores (1, 4, 8, 8)

// -----

func.func @scale(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x8x16xf32>, %v: tensor<1x4x8x16xf32>) {
  %o = attn.attention %q, %k, %v {scale = -1.0 : f32} : tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32> -> tensor<1x4x8x16xf32>
  func.return
}
// CHECK: scale must be positive and finite, got -1.0

// -----

func.func @window(%q: tensor<1x4x8x16xf32>, %k: tensor<1x4x8x16xf32>, %v: tensor<1x4x8x16xf32>) {
  %o = attn.attention %q, %k, %v {scale = 1.0 : f32, window = 0 : i64} : tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32> -> tensor<1x4x8x16xf32>
  func.return
}
// CHECK: a window keeps at least one key

// -----

func.func @pattern(%x: tensor<2x8x48xf32>) {
  %y = attn.rearrange %x {pattern = "b l (h d) -> b h d", sizes = {h = 6 : i64}} : tensor<2x8x48xf32> -> tensor<2x6x8xf32>
  func.return
}
// CHECK: pattern 'b l (h d) -> b h d' must name every axis once on each side

// -----

func.func @sizes(%x: tensor<2x8x48xf32>) {
  %y = attn.rearrange %x {pattern = "b l (h d) -> b h l d", sizes = {h = 5 : i64}} : tensor<2x8x48xf32> -> tensor<2x5x8x9xf32>
  func.return
}
// CHECK: an axis of size 48 does not split by 5

// -----

func.func @rows(%q: tensor<1x1x16x8xf32>) {
  %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 8) -> tensor<1x1x16x8xf32> {
    %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<8x8xf32>
    attn.yield %query : tensor<8x8xf32>
  }
  func.return
}
// CHECK: the lanes cover fewer than 16 query rows

// -----

func.func @yield(%q: tensor<1x1x16x8xf32>) {
  %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) -> tensor<1x1x16x8xf32> {
    %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<8x8xf32>
    attn.yield %query : tensor<8x8xf32>
  }
  func.return
}
// CHECK: the body must yield 16 rows of 8

// -----

func.func @order(%q: tensor<1x1x16x8xf32>) {
  %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) -> tensor<1x1x16x8xf32> {
    %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<16x8xf32>
    %liveness = attn.liveness %lane {queries = 16 : i64, keys = 16 : i64}
    %r = attn.tile_loop %t in 1 order "sideways" where %liveness iter(%a = %query) : (tensor<16x8xf32>) {
      attn.yield %a : tensor<16x8xf32>
    }
    attn.yield %r : tensor<16x8xf32>
  }
  func.return
}
// CHECK: order must be one of forward, reverse, sink-first, got 'sideways'

// -----

func.func @scores(%k: tensor<32x8xf32>, %q: tensor<16x4xf32>) {
  %y = attn.scores %k, %q : tensor<32x8xf32>, tensor<16x4xf32> -> tensor<32x16xf32>
  func.return
}
// CHECK: key has head size 8, query 4
