"""
How many K and V buffers and warps a thread block takes so that it fits the machine.

A thread block needs the registers of its N_q warps and an SRAM ring of K tiles and one of V tiles. K wants three slots, since
a tile must stay until stage 2 is done with it, V two. Where that does not fit the planner first takes slots away, then halves
N_q, and says so. Source: docs/accelerator.md section 1.
"""

from dataclasses import dataclass, replace

from lampc.errors import CompileError
from lampc.targets.accel.config import Config
from lampc.targets.accel.instruction import COUNT, Kind

SLOTS = ((3, 2), (2, 2), (2, 1), (1, 1))
"""Slots of the K and V rings, from what is wanted to the least that runs."""
LINE_BYTES = 64
"""Buffers start at multiples of this."""


@dataclass(frozen=True)
class Plan:
    """
    config             with the N_q that fits
    k_slots, v_slots   slots of the rings
    changes            what had to give, one sentence each; empty where the wanted plan fits
    """

    config: Config
    k_slots: int
    v_slots: int
    changes: tuple[str, ...]


def tile_bytes(config: Config) -> tuple[int, int]:
    """Bytes of one K and one V tile in SRAM."""
    keys = config.bk * config.nk
    return keys * config.d * config.operand_bytes, keys * config.dv * config.operand_bytes


def ring_bytes(config: Config, k_slots: int, v_slots: int) -> int:
    """Bytes of SRAM that both rings take, V's from the line after K's."""
    k_bytes, v_bytes = tile_bytes(config)
    return -(-k_slots * k_bytes // LINE_BYTES) * LINE_BYTES + v_slots * v_bytes


def plan(config: Config, *, granules: int, vectors: int, register_bytes: int, sram_bytes: int) -> Plan:
    """
    The plan nearest to `config` and three K, two V slots that fits a core.

    granules, vectors           what one warp takes
    register_bytes, sram_bytes  what the core has

    Raises CompileError if not even one warp with single buffers fits.
    """
    geometry = config.geometry
    if granules > COUNT[Kind.T] or vectors > COUNT[Kind.V]:
        raise CompileError(
            f"head sizes {config.d} and {config.dv} take {granules} granules and {vectors} vectors a warp, and a word can name "
            f"{COUNT[Kind.T]} and {COUNT[Kind.V]}; take a larger bk or a smaller nk"
        )
    warp_bytes = granules * geometry.granule_bytes + vectors * geometry.vector_bytes
    slots = next((pair for pair in SLOTS if ring_bytes(config, *pair) <= sram_bytes), None)
    if slots is None:
        raise CompileError(
            f"one K and one V tile take {ring_bytes(config, 1, 1)} bytes of SRAM, the machine has {sram_bytes}; take a smaller "
            f"nk or bk, or narrower operands"
        )
    if warp_bytes > register_bytes:
        raise CompileError(
            f"one warp takes {warp_bytes} register bytes ({granules} granules, {vectors} vectors), the machine has "
            f"{register_bytes}; take a smaller bq or nk, or the compact layout"
        )
    nq = config.nq
    while nq * warp_bytes > register_bytes:
        nq = -(-nq // 2)
    changes: list[str] = []
    if slots != SLOTS[0]:
        changes.append(
            f"K and V get {slots[0]} and {slots[1]} buffers instead of {SLOTS[0][0]} and {SLOTS[0][1]}: those take "
            f"{ring_bytes(config, *SLOTS[0])} bytes of SRAM, the machine has {sram_bytes}"
        )
    if nq != config.nq:
        changes.append(
            f"a thread block has {nq} warps instead of {config.nq}: those take {config.nq * warp_bytes} register "
            f"bytes, the machine has {register_bytes}"
        )
    return Plan(replace(config, nq=nq), *slots, tuple(changes))
