"""A small program with every kind of operand."""

import pytest

from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.program import Program

TEXT = """\
; comment
.isa 1
.cfg bq=16 bk=16 nk=4 nq=8 d=64 dv=64 lq=512 lk=512 batch=1 hq=9 hkv=3 scale=0.125 causal=true
.registers granules=40 vectors=14
.descriptor q f32 1x9x512x64
.descriptor k bf16 1x3x512x64
.buffer k base=0 bytes=16384 slots=3
.buffer v base=49152 bytes=16384 slots=2
.barrier k_full first=0 slots=3 expected=1
.barrier k_empty first=3 slots=3 expected=8
.table lut
.stream warp
  s.mov s0, -4
  dma.ldr t0, q
again:
  v.live p1, p2, s3
  v.live p1, p2, s3, t36
  v.const v3, -inf
  mx.qk.e4m3 t16, t0, k[s4] @p1 wait=k_full signal=k_empty skip0 ; layers.0/attention
  v.threat o1, v4, v3 @p1
  exp.lut t16 @p1
  bar.wait k_full[s4] xor
  br.ge s3, again, 2
  br.nz p1, again ; back; to the \\\\ start
  halt
.stream dma
  dma.ld k[s4], k, s2 wait=k_empty xor signal=k_full
  halt
"""


@pytest.fixture
def text() -> str:
    return TEXT


@pytest.fixture
def program() -> Program:
    return assemble(TEXT)
