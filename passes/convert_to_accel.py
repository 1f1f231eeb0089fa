"""Turn attention functions into programs of the modelled accelerator."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from lampc.dialects import attn_tiled as tiled
from lampc.dialects.accel_launch import LaunchOp
from lampc.errors import UsageError
from lampc.passes.accel_lowering.description import describe
from lampc.passes.accel_lowering.program import ProgramLowering


@dataclass(frozen=True)
class ConvertToAccelPass(ModulePass):
    """
    DOC
    """

    name = "lamp-convert-to-accel"

    bk: int = 16
    k_slots: int = 3
    v_slots: int = 2

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for name, value in (("bk", self.bk), ("k-slots", self.k_slots), ("v-slots", self.v_slots)):
            if value < 1:
                raise UsageError(f"option {name}={value}: must be at least 1")
        for function in list(op.body.ops):
            if isinstance(function, FuncOp):
                for number, lanes in enumerate([inner for inner in function.walk() if isinstance(inner, tiled.LanesOp)]):
                    self._convert(function, lanes, number)

    def _convert(self, function: FuncOp, lanes: tiled.LanesOp, number: int) -> None:
        description = describe(lanes, self.bk)
        name = f"{function.sym_name.data}_program{number or ''}"
        program = ProgramLowering(description, self.k_slots, self.v_slots).lower(name)
        block, inside = function.parent, lanes.parent
        assert block is not None and inside is not None
        block.insert_op_after(program, function)
        launch = LaunchOp(name, description.tensors, lanes.output.type)
        launch.location = lanes.location
        launch.output.name_hint = lanes.output.name_hint
        inside.insert_op_before(launch, lanes)
        lanes.output.replace_all_uses_with(launch.output)
        inside.erase_op(lanes)
