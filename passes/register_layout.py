"""Choose the register layout of the score tiles."""

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from lampc.dialects.attn_tiled import LanesOp
from lampc.errors import UsageError


@dataclass(frozen=True)
class RegisterLayoutPass(ModulePass):
    """
    Name the register layout (`layout`) of every `attn.lanes`.

    `safe` keeps space for all sub-blocks of a tile in 16 bit, so that no recomputation changes the schedule. The paper's
    `compact` layout (8 bit for all and one 16-bit sub-block) is refused for now.

    Before:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x16x8xf32>, %v: tensor<1x1x16x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) -> tensor<1x1x16x8xf32> {
        %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<16x8xf32>
        attn.yield %query : tensor<16x8xf32>
      }
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    After `lamp-register-layout{layout=safe}`:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x16x8xf32>, %v: tensor<1x1x16x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) layout "safe" -> tensor<1x1x16x8xf32> {
        %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<16x8xf32>
        attn.yield %query : tensor<16x8xf32>
      }
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    Source: docs/lampattention.md section 7.
    """  # noqa: E501

    name = "lamp-register-layout"

    layout: Literal["safe", "compact"] = "safe"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.layout == "compact":
            raise UsageError("option layout=compact: this layout is not supported yet; use layout=safe")
        for lanes in op.walk():
            if isinstance(lanes, LanesOp):
                lanes.properties["layout"] = StringAttr(self.layout)
