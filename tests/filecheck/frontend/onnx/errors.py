# RUN: %python %s %t.onnx
# RUN: not lampc-opt %t.onnx 2>&1 | filecheck %s
# RUN: lampc-opt %t.onnx -f 'onnx{dims="seq=3"}' | filecheck %s --check-prefix=BOUND
"""What is wrong and what to type, on one line."""

import sys
from pathlib import Path

from tests.unit.frontend.builders import model, node, value

made = model([node("Relu", ["x"], ["y"])], [value("x", (2, "seq"))], [value("y", (2, "seq"))])
Path(sys.argv[1]).write_bytes(made.SerializeToString())

# CHECK:      errors.py.tmp.onnx: no size for 'seq' of input 'x' [2, seq]; give inputs or sizes, for example:
# CHECK-SAME:   lampc {{.*}}errors.py.tmp.onnx --target numpy --dim seq=128 [E-DIM-UNBOUND]
# CHECK-NOT:  Traceback
# BOUND:      onnx.node "Relu"(%x) version 14 names ["y"] : (tensor<2x3xf32>) -> tensor<2x3xf32>
