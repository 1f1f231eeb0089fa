// RUN: lampc-opt %s --parsing-diagnostics --verify-diagnostics --split-input-file | filecheck %s

func.func @rule(%a: tensor<4x!lamp.float<e4m3, nan = some>>) { func.return }
// CHECK: format e4m3: NaN rule 'some' is none of all-ones, none, ieee

// -----

func.func @wide(%a: tensor<4x!lamp.float<e9m3>>) { func.return }
// CHECK: a format has 1 to 8 exponent bits and at most 23 mantissa bits

// -----

func.func @high(%a: tensor<4x!lamp.float<e8m3, bias = 3, nan = none>>) { func.return }
// CHECK: format e8m3 has values that FP32 has not

// -----

func.func @no_code(%a: tensor<4x!lamp.float<e4m0, nan = ieee>>) { func.return }
// CHECK: format e4m0 has no code for NaN

// -----

func.func @name(%a: tensor<4x!lamp.float<half>>) { func.return }
// CHECK: expected a format such as e4m3 or ue5m11
