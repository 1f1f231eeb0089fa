"""
Make an allocated program fit a machine: fewer slots in its rings, fewer warps in a block, as the planner says.

Neither changes what a warp computes nor which registers it takes, so the instructions stay; only ring lengths, arrival counts
and the SRAM map follow. Source: docs/accelerator.md section 1.
"""

from xdsl.dialects.builtin import IntegerAttr, i32, i64
from xdsl.ir import SSAValue

from lampc.dialects.accel import ProgramOp, config_attribute
from lampc.dialects.accel_inst import InstOp
from lampc.dialects.accel_registers import BarrierOp, BufferOp
from lampc.targets.accel.planner import plan
from lampc.targets.accel.program import Program


def fit_program(op: ProgramOp, program: Program, *, register_bytes: int, sram_bytes: int) -> tuple[str, ...]:
    """
    Change `op`, whose object is `program`, so that a thread block fits the register file and the SRAM of a core.

    returns  what had to give, one sentence each; then `op` must be compiled again. Empty: it fits as it is

    Raises CompileError if nothing fits.
    """
    planned = plan(
        program.cfg,
        register_bytes=register_bytes,
        sram_bytes=sram_bytes,
        granules=program.granules,
        vectors=program.vectors,
    )
    if not planned.changes:
        return ()
    op.properties["cfg"] = config_attribute(planned.config)
    slots = {"k": planned.k_slots, "v": planned.v_slots}
    _shrink_rings(op, slots)
    for barrier in op.body.block.ops:
        if isinstance(barrier, BarrierOp):
            tensor, _, state = barrier.barrier.data.partition("_")
            barrier.properties["slots"] = IntegerAttr(slots[tensor], i64)
            if state == "empty":
                barrier.properties["expected"] = IntegerAttr(planned.config.nq, i64)
    return planned.changes


def _shrink_rings(op: ProgramOp, slots: dict[str, int]) -> None:
    base = 0
    for buffer in op.body.block.ops:
        if isinstance(buffer, BufferOp):
            count = slots[buffer.buffer.data]
            buffer.properties["slots"] = IntegerAttr(count, i64)
            buffer.properties["base"] = IntegerAttr(base, i64)
            base += buffer.bytes.value.data * count
    rings: dict[SSAValue, int] = {}
    instructions = [inst for inst in op.walk() if isinstance(inst, InstOp)]
    for inst in instructions:
        named = inst.named()
        if "buf" in named:
            owner = named["buf"].owner
            assert isinstance(owner, BufferOp)
            rings[named["ring"]] = slots[owner.buffer.data]
    for inst in instructions:
        if inst.mnemonic.data == "s.ring":
            inst.properties["imm"] = IntegerAttr(rings[inst.named()["ring"]], i32)
