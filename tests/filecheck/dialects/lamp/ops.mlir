// RUN: XDSL_ROUNDTRIP
// RUN: XDSL_GENERIC_ROUNDTRIP

func.func @lamp(%q: tensor<1x9x512x64xf32>, %k: tensor<1x3x512x64xf32>, %v: tensor<1x3x512x64xf32>) -> tensor<1x9x512x64xf32> {
    %o = attn.lanes %lane in (batch = 1, heads = 9, group = 3, blocks = 4, warps = 8, rows = 16) layout "safe" -> tensor<1x9x512x64xf32> {
      %qr = attn.load_query %q[%lane] : tensor<1x9x512x64xf32> -> tensor<16x64xf32>
      %qs = attn.scale_query %qr {scale = 0.125 : f32} : tensor<16x64xf32>
      %alive = attn.liveness %lane {queries = 512 : i64, keys = 512 : i64, causal}
      %mu0, %om0, %acc0 = attn.softmax_init %lane : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>
      %mu, %om, %acc = attn.tile_loop %t in 8 sub_blocks 4 order "forward" where %alive iter(%m = %mu0, %w = %om0, %a = %acc0) : (tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>) {
        %kt = attn.load_tile %k[%lane, %t] : tensor<1x3x512x64xf32> -> tensor<64x64xf32>
        %vt = attn.load_tile %v[%lane, %t] : tensor<1x3x512x64xf32> -> tensor<64x64xf32>
        %live = attn.live_entries %alive[%t] : tensor<64x16xi1>
        %y8 = lamp.accumulate %kt, %qs {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<64x16x!lamp.float<e4m3>>
        %top = lamp.subblock_max %y8, %live : tensor<64x16x!lamp.float<e4m3>>, tensor<64x16xi1> -> tensor<4x16x!lamp.float<e4m3>>
        %order = lamp.threat_order %top, %m : tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>> -> !lamp.order<4>
        %y16, %muh, %hi = lamp.recompute_unsafe %sb in %order margin(%top, %m, %live) delta = 3.90625e-03 : (!lamp.order<4>, tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>) -> tensor<64x16x!lamp.float<e4m11>> {
          %h = lamp.accumulate %kt, %qs at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<16x16x!lamp.float<e4m11>>
          lamp.yield %h : tensor<16x16x!lamp.float<e4m11>>
        }
        %blocks = lamp.live_blocks %live : tensor<64x16xi1> -> !lamp.mask<4>
        %lo = lamp.without %blocks, %hi : !lamp.mask<4>
        %e8 = lamp.exponential %y8, %muh, %live in %lo {shift_format = !lamp.float<ue5m3, bias = 22>, shift = "truncate", cut = !lamp.float<e4m3>, above_one = "clamp", unit = "lut"} : tensor<64x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m3, bias = 31>>
        %e16 = lamp.exponential %y16, %muh, %live in %hi {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
        %e = lamp.merge %e8, %e16 in %hi : tensor<64x16x!lamp.float<ue5m3, bias = 31>>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
        %raised = lamp.raise_maximum %m, %top : tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>
        %wide = lamp.accumulate %kt, %qs {rounding = "stochastic", overflow = "saturate", accumulate_block = 4 : i64, seed = 7 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<64x16x!lamp.float<e8m3, unbounded>>
        %lambda = lamp.rescale %m, %muh : tensor<16x!lamp.float<e4m11>> -> tensor<16xf32>
        %alpha = lamp.scale_sum %w, %lambda : tensor<16xf32>
        %omh = lamp.row_sum %alpha, %e, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
        %xi = lamp.disturbance %omh, %e, %live : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1> -> tensor<4x16xf32>
        %keep = lamp.keep_low %xi, %omh among %lo {tau = 0.5 : f32, tie = "slack"} : tensor<4x16xf32>, tensor<16xf32>, !lamp.mask<4> -> !lamp.mask<4>
        %again = lamp.without %lo, %keep : !lamp.mask<4>
        %y16b = lamp.recompute %sb in %again : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
          %h = lamp.accumulate %kt, %qs at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<16x16x!lamp.float<e4m11>>
          lamp.yield %h : tensor<16x16x!lamp.float<e4m11>>
        }
        %e16b = lamp.exponential %y16b, %muh, %live in %again {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
        %ef = lamp.merge %e, %e16b in %again : tensor<64x16xf32>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
        %w1 = lamp.row_sum %alpha, %ef, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
        %a1 = lamp.update_output %a, %lambda, %ef, %live, %vt : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1>, tensor<64x64xf32> -> tensor<16x64xf32>
        lamp.record %lane stage1 %hi : !lamp.mask<4> stage2 %again : !lamp.mask<4>
        attn.yield %muh, %w1, %a1 : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>
      }
      %r = attn.normalize %acc, %om : tensor<16x64xf32>, tensor<16xf32>
      attn.yield %r : tensor<16x64xf32>
    }
    func.return %o : tensor<1x9x512x64xf32>
}

func.func @disruptive(%high: !lamp.mask<4>, %live: tensor<64x16xi1>, %mu: tensor<16xf32>, %new: tensor<16xf32>) -> tensor<16xf32> {
  %r = lamp.disruptive %sbs, %alive, %m in chunks of 3 where(%high, %high) live(%live) entry(%mu) otherwise(%new) : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16xf32>) {
    lamp.yield %m : tensor<16xf32>
  }
  func.return %r : tensor<16xf32>
}

func.func @record(%lane: !attn.lane, %high: !lamp.mask<4>) {
  lamp.record %lane stage1 %high : !lamp.mask<4> {at_most = 2 : i64}
  func.return
}

// CHECK:      builtin.module {
// CHECK-NEXT:   func.func @lamp(%q: tensor<1x9x512x64xf32>, %k: tensor<1x3x512x64xf32>, %v: tensor<1x3x512x64xf32>) -> tensor<1x9x512x64xf32> {
// CHECK-NEXT:     %o = attn.lanes %lane in (batch = 1, heads = 9, group = 3, blocks = 4, warps = 8, rows = 16) layout "safe" -> tensor<1x9x512x64xf32> {
// CHECK-NEXT:       %qr = attn.load_query %q[%lane] : tensor<1x9x512x64xf32> -> tensor<16x64xf32>
// CHECK-NEXT:       %qs = attn.scale_query %qr {scale = 1.250000e-01 : f32} : tensor<16x64xf32>
// CHECK-NEXT:       %alive = attn.liveness %lane {queries = 512 : i64, keys = 512 : i64, causal}
// CHECK-NEXT:       %mu0, %om0, %acc0 = attn.softmax_init %lane : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>
// CHECK-NEXT:       %mu, %om, %acc = attn.tile_loop %t in 8 sub_blocks 4 order "forward" where %alive iter(%m = %mu0, %w = %om0, %a = %acc0) : (tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>) {
// CHECK-NEXT:         %kt = attn.load_tile %k[%lane, %t] : tensor<1x3x512x64xf32> -> tensor<64x64xf32>
// CHECK-NEXT:         %vt = attn.load_tile %v[%lane, %t] : tensor<1x3x512x64xf32> -> tensor<64x64xf32>
// CHECK-NEXT:         %live = attn.live_entries %alive[%t] : tensor<64x16xi1>
// CHECK-NEXT:         %y8 = lamp.accumulate %kt, %qs {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<64x16x!lamp.float<e4m3>>
// CHECK-NEXT:         %top = lamp.subblock_max %y8, %live : tensor<64x16x!lamp.float<e4m3>>, tensor<64x16xi1> -> tensor<4x16x!lamp.float<e4m3>>
// CHECK-NEXT:         %order = lamp.threat_order %top, %m : tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>> -> !lamp.order<4>
// CHECK-NEXT:         %y16, %muh, %hi = lamp.recompute_unsafe %sb in %order margin(%top, %m, %live) delta = 3.906250e-03 : (!lamp.order<4>, tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>) -> tensor<64x16x!lamp.float<e4m11>> {
// CHECK-NEXT:           %h = lamp.accumulate %kt, %qs at %sb {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<16x16x!lamp.float<e4m11>>
// CHECK-NEXT:           lamp.yield %h : tensor<16x16x!lamp.float<e4m11>>
// CHECK-NEXT:         }
// CHECK-NEXT:         %blocks = lamp.live_blocks %live : tensor<64x16xi1> -> !lamp.mask<4>
// CHECK-NEXT:         %lo = lamp.without %blocks, %hi : !lamp.mask<4>
// CHECK-NEXT:         %e8 = lamp.exponential %y8, %muh, %live in %lo {shift_format = !lamp.float<ue5m3, bias = 22>, shift = "truncate", cut = !lamp.float<e4m3>, above_one = "clamp", unit = "lut"} : tensor<64x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m3, bias = 31>>
// CHECK-NEXT:         %e16 = lamp.exponential %y16, %muh, %live in %hi {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
// CHECK-NEXT:         %e = lamp.merge %e8, %e16 in %hi : tensor<64x16x!lamp.float<ue5m3, bias = 31>>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
// CHECK-NEXT:         %raised = lamp.raise_maximum %m, %top : tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>
// CHECK-NEXT:         %wide = lamp.accumulate %kt, %qs {rounding = "stochastic", overflow = "saturate", accumulate_block = 4 : i64, seed = 7 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<64x16x!lamp.float<e8m3, unbounded>>
// CHECK-NEXT:         %lambda = lamp.rescale %m, %muh : tensor<16x!lamp.float<e4m11>> -> tensor<16xf32>
// CHECK-NEXT:         %alpha = lamp.scale_sum %w, %lambda : tensor<16xf32>
// CHECK-NEXT:         %omh = lamp.row_sum %alpha, %e, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
// CHECK-NEXT:         %xi = lamp.disturbance %omh, %e, %live : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1> -> tensor<4x16xf32>
// CHECK-NEXT:         %keep = lamp.keep_low %xi, %omh among %lo {tau = 5.000000e-01 : f32, tie = "slack"} : tensor<4x16xf32>, tensor<16xf32>, !lamp.mask<4> -> !lamp.mask<4>
// CHECK-NEXT:         %again = lamp.without %lo, %keep : !lamp.mask<4>
// CHECK-NEXT:         %y16b = lamp.recompute %sb_1 in %again : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
// CHECK-NEXT:           %h_1 = lamp.accumulate %kt, %qs at %sb_1 {rounding = "rne", overflow = "saturate", accumulate_block = 1 : i64} : tensor<64x64xf32>, tensor<16x64xf32> -> tensor<16x16x!lamp.float<e4m11>>
// CHECK-NEXT:           lamp.yield %h_1 : tensor<16x16x!lamp.float<e4m11>>
// CHECK-NEXT:         }
// CHECK-NEXT:         %e16b = lamp.exponential %y16b, %muh, %live in %again {shift_format = !lamp.float<ue5m11, bias = 22>, shift = "exact", above_one = "clamp", unit = "sfu"} : tensor<64x16x!lamp.float<e4m11>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>, !lamp.mask<4> -> tensor<64x16x!lamp.float<ue5m11, bias = 31>>
// CHECK-NEXT:         %ef = lamp.merge %e, %e16b in %again : tensor<64x16xf32>, tensor<64x16x!lamp.float<ue5m11, bias = 31>>, !lamp.mask<4> -> tensor<64x16xf32>
// CHECK-NEXT:         %w1 = lamp.row_sum %alpha, %ef, %live : tensor<64x16xf32>, tensor<64x16xi1> -> tensor<16xf32>
// CHECK-NEXT:         %a1 = lamp.update_output %a, %lambda, %ef, %live, %vt : tensor<16xf32>, tensor<64x16xf32>, tensor<64x16xi1>, tensor<64x64xf32> -> tensor<16x64xf32>
// CHECK-NEXT:         lamp.record %lane stage1 %hi : !lamp.mask<4> stage2 %again : !lamp.mask<4>
// CHECK-NEXT:         attn.yield %muh, %w1, %a1 : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>
// CHECK-NEXT:       }
// CHECK-NEXT:       %r = attn.normalize %acc, %om : tensor<16x64xf32>, tensor<16xf32>
// CHECK-NEXT:       attn.yield %r : tensor<16x64xf32>
// CHECK-NEXT:     }
// CHECK-NEXT:     func.return %o : tensor<1x9x512x64xf32>
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func @disruptive(%high: !lamp.mask<4>, %live: tensor<64x16xi1>, %mu: tensor<16xf32>, %new: tensor<16xf32>) -> tensor<16xf32> {
// CHECK-NEXT:     %r = lamp.disruptive %sbs, %alive, %m in chunks of 3 where(%high, %high) live(%live) entry(%mu) otherwise(%new) : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16xf32>) {
// CHECK-NEXT:       lamp.yield %m : tensor<16xf32>
// CHECK-NEXT:     }
// CHECK-NEXT:     func.return %r : tensor<16xf32>
// CHECK-NEXT:   }
// CHECK-NEXT:   func.func @record(%lane: !attn.lane, %high: !lamp.mask<4>) {
// CHECK-NEXT:     lamp.record %lane stage1 %high : !lamp.mask<4> {at_most = 2 : i64}
// CHECK-NEXT:     func.return
// CHECK-NEXT:   }
// CHECK-NEXT: }
