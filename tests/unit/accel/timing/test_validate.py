"""
Machine `validate` against simulators of others (docs/accelerator.md section 6): L = 1024, d = 128, 2-byte operands.

Their numbers are measurements that we cannot repeat here, so they stand in this file.
"""

from dataclasses import replace

import numpy as np
import pytest

from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.machine import Machine, load_machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.timing.engine import run_timing
from lampc.targets.accel.timing.synthetic import Rates, synthetic_log
from tests.unit.accel.programs import program_of
from tests.unit.accel.timing.micro import log_of
from tests.unit.numpy_target.compiled import Case

LENGTH, SIZE, HEADS = 1024, 128, 8
ONNXIM_GEMM = 9_809
ONNXIM_ATTENTION = 147_394

# Every tile of scores leaves as rows of 32 FP32 values: the bytes of 64 scores of 2 bytes.
GEMM = f"""\
.isa 1
.cfg bq=64 bk=16 nk=4 nq=4 d={SIZE} dv=32 lq={LENGTH} lk={LENGTH} batch=1 hq=1 hkv=1 scale=1.0 operand=bf16 policy=fp32
.registers granules=64 vectors=0
.descriptor q bf16 1x1x{LENGTH}x{SIZE}
.descriptor k bf16 1x1x{LENGTH}x{SIZE}
.descriptor o f32 1x1x{LENGTH}x32
.buffer k base=0 bytes=16384 slots=3
.barrier full first=0 slots=3 expected=1
.barrier empty first=3 slots=3 expected=4
.stream warp
s.mov s10, {LENGTH // 64}
dma.ldr t0, q
again:
mx.qk.f32 t32, t0, k[s8] wait=full signal=empty
dma.st o, t32
s.ring s8, 3
loop s10, again
halt
.stream dma
s.mov s10, {LENGTH // 64}
again:
dma.ld k[s8], k, s4 signal=full wait=empty xor
s.add s4, s4, 1
s.ring s8, 3
loop s10, again
halt
"""


@pytest.fixture(scope="module")
def validate() -> Machine:
    return load_machine("validate")


def test_gemm_lies_between_its_bound_and_onnxim(validate: Machine):
    program = assemble(GEMM)
    result = run_timing(program, log_of(program), validate)
    bound = LENGTH * LENGTH * SIZE // validate.mxe.qk_f32_macs_per_cycle
    assert (result.binding, result.bounds.lower["matrix"]) == ("matrix", bound)
    assert bound <= result.cycles <= ONNXIM_GEMM
    assert result.counters.hbm_bytes["o"] == LENGTH * LENGTH * 2


def attention() -> Program:
    """FlashAttention-2, eight heads, non-causal, with operands of 2 bytes."""
    zeros = np.zeros((1, HEADS, LENGTH, SIZE), np.float32)
    program = program_of(Case(zeros, zeros, zeros, attention={"scale": 1.0}, tiling={"bq": 64, "nq": 4}, precision=None))
    narrow = tuple(replace(d, element="bf16") if d.tensor in ("q", "k", "v") else d for d in program.descriptors)
    return replace(program, cfg=replace(program.cfg, operand="bf16"), descriptors=narrow)


def test_fused_attention_lies_near_onnxim(validate: Machine):
    program = attention()
    result = run_timing(program, synthetic_log(program, validate, Rates(0, 0), seed=0), validate)
    bound = 2 * HEADS * LENGTH * LENGTH * SIZE // validate.mxe.qk_f32_macs_per_cycle
    assert (result.binding, result.bounds.lower["matrix"]) == ("matrix", bound)
    assert abs(result.cycles / ONNXIM_ATTENTION - 1) < 0.12
