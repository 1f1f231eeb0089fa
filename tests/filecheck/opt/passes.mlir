// RUN: lampc-opt %s -p cse,dce | filecheck %s
// RUN: lampc-opt %s -p 'canonicalize,cse' --print-debuginfo | filecheck %s --check-prefix=LOCATION

// CHECK-LABEL: func.func @twice
// CHECK-NEXT:    %first = arith.addf %x, %x : f32
// CHECK-NEXT:    "test.op"(%first, %first)
// LOCATION:      arith.addf %x, %x : f32 loc("layers.0/add"
func.func @twice(%x: f32) {
  %first = arith.addf %x, %x : f32 loc("layers.0/add")
  %second = arith.addf %x, %x : f32 loc("layers.1/add")
  "test.op"(%first, %second) : (f32, f32) -> ()
  func.return
}
