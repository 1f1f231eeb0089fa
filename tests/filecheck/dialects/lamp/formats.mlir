// RUN: lampc-opt %s | lampc-opt | filecheck %s

// Formats are data: sign, exponent and mantissa bits, bias, and which codes are NaN.
func.func @formats(%a: tensor<4x!lamp.float<e4m3>>, %b: tensor<4x!lamp.float<e5m2, nan = ieee>>, %c: tensor<4x!lamp.float<ue3m5, bias = -2, nan = none>>, %d: tensor<4x!lamp.float<e8m7, nan = ieee>>, %e: tensor<4x!lamp.float<e4m3, nan = all_ones>>) {
  func.return
}
// CHECK:      %a: tensor<4x!lamp.float<e4m3>>
// CHECK-SAME: %b: tensor<4x!lamp.float<e5m2, nan = ieee>>
// CHECK-SAME: %c: tensor<4x!lamp.float<ue3m5, bias = -2, nan = none>>
// CHECK-SAME: %d: tensor<4x!lamp.float<e8m7, unbounded>>
// CHECK-SAME: %e: tensor<4x!lamp.float<e4m3>>
