// RUN: not lampc-opt %s 2>&1 | filecheck %s --check-prefix=VERIFY
// RUN: not lampc-opt %s -p lamp-nonsense 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not lampc-opt %s -p 'cse{' 2>&1 | filecheck %s --check-prefix=SYNTAX
// RUN: not lampc-opt %s -p 'cse{depth=1}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not lampc-opt %s.missing 2>&1 | filecheck %s --check-prefix=FILE
// RUN: lampc-opt %s --verify-diagnostics | filecheck %s --check-prefix=DIAGNOSTIC

// VERIFY:      lampc-opt: {{.*}} expected from variable 'T', but got tensor<2xf32>; in: %sum = "arith.addf"
// VERIFY-NOT:  Traceback
// PASS:        lampc-opt: Unrecognized passes: ['lamp-nonsense']
// SYNTAX:      lampc-opt: Error parsing pass pipeline specification:
// SYNTAX-NOT:  Traceback
// OPTION:      lampc-opt: Provided arguments ["depth"] not found
// FILE:        lampc-opt: {{.*}}errors.mlir.missing: No such file or directory
// DIAGNOSTIC:  expected from variable 'T', but got tensor<2xf32>
func.func @wrong(%x: tensor<4xf32>) {
  %sum = "arith.addf"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<2xf32>
  func.return
}
