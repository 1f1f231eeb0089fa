// RUN: XDSL_ROUNDTRIP
// RUN: XDSL_GENERIC_ROUNDTRIP

// The upstream dialects that lampc's IR uses are there.
func.func @upstream(%x: tensor<4xf32>, %n: index) -> tensor<4xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %y = scf.for %i = %zero to %n step %one iter_args(%acc = %x) -> (tensor<4xf32>) {
    %next = "test.op"(%acc) : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %next : tensor<4xf32>
  }
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @upstream
// CHECK-NEXT:    %zero = arith.constant 0 : index
// CHECK-NEXT:    %one = arith.constant 1 : index
// CHECK-NEXT:    %y = scf.for %i = %zero to %n step %one iter_args(%acc = %x) -> (tensor<4xf32>) {
// CHECK-NEXT:      %next = "test.op"(%acc) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:      scf.yield %next : tensor<4xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return %y : tensor<4xf32>
