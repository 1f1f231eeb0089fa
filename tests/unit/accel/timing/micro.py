"""Small programs of one warp, written in assembly, and a log for them."""

from collections.abc import Sequence

import numpy as np

from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.decision_log import DecisionLog
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.timing.engine import TimingResult, run_timing

HEAD = """\
.isa 1
.cfg bq={bq} bk=16 nk=4 nq={nq} d=64 dv=64 lq={lq} lk={lk} batch=1 hq={hq} hkv={hq} scale=0.125 tie={tie}
.registers granules={granules} vectors=40
.descriptor q f32 1x{hq}x{lq}x64
.descriptor k f32 1x{hq}x{lk}x64
.descriptor v f32 1x{hq}x{lk}x64
.descriptor o f32 1x{hq}x{lq}x64
.buffer k base=0 bytes=16384 slots=2
.buffer v base=32768 bytes=16384 slots=2
.barrier full first=0 slots=2 expected=1
.barrier empty first=2 slots=2 expected={nq}
.table lut
.table sfu
.stream warp
"""


def micro(
    warp: str,
    dma: str = "",
    *,
    nq: int = 1,
    bq: int = 16,
    hq: int = 1,
    lk: int = 64,
    lq: int = 0,
    tie: str = "slack",
    granules: int = 240,
) -> Program:
    """A program whose warps run `warp` and whose DMA context runs `dma`; a head has one thread block."""
    head = HEAD.format(nq=nq, bq=bq, hq=hq, lk=lk, lq=lq or nq * bq, tie=tie, granules=granules)
    return assemble(f"{head}{warp}\nhalt\n.stream dma\n{dma}\nhalt\n")


def log_of(program: Program, values: Sequence[int] = ()) -> DecisionLog:
    """A log that gives every warp the same values."""
    cfg = program.cfg
    lanes = cfg.heads * cfg.blocks * cfg.nq
    return DecisionLog(
        np.tile(np.array(values, np.int64), lanes),
        np.arange(lanes + 1, dtype=np.int64) * len(values),
        program.program_hash(),
        (cfg.heads, cfg.blocks, cfg.nq),
    )


def time(program: Program, machine: Machine, values: Sequence[int] = ()) -> TimingResult:
    """Cycles of a micro-program."""
    return run_timing(program, log_of(program, values), machine)
