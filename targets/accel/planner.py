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


def warp_granules(config: Config, scores_tiles: int = 1) -> int:
    """Granules of one warp: scores tiles, query and output fragments, mask and bias tiles."""
    geometry = config.geometry
    scores = scores_tiles * geometry.tile_granules(wide=config.policy == "fp32")
    masks = geometry.nk * config.has_mask + 4 * geometry.nk * config.has_bias
    return scores + geometry.query_granules + geometry.output_granules + masks


def warp_vectors(config: Config) -> int:
    """
    Row vectors of one warp as the lowering allocates them: the sub-blocks' maxima and stage-2 weights, and the running state
    (maximum old, new and cut, sum, its scaled and its new value, lambda).
    """
    return 2 * config.nk + 7


def tile_bytes(config: Config) -> tuple[int, int]:
    """Bytes of one K and one V tile in SRAM."""
    keys = config.bk * config.nk
    return keys * config.d * config.operand_bytes, keys * config.dv * config.operand_bytes


def plan(
    config: Config, *, register_bytes: int, sram_bytes: int, granules: int | None = None, vectors: int | None = None
) -> Plan:
    """
    The plan nearest to `config` and three K, two V slots that fits the register file and the SRAM of a core, in bytes.

    granules, vectors   of one warp, where the caller knows better than `warp_granules` and `warp_vectors`

    Raises CompileError if not even one warp with single buffers fits.
    """
    geometry = config.geometry
    granules = warp_granules(config) if granules is None else granules
    vectors = warp_vectors(config) if vectors is None else vectors
    if granules > COUNT[Kind.T] or vectors > COUNT[Kind.V]:
        raise CompileError(
            f"head sizes {config.d} and {config.dv} take {granules} granules and {vectors} vectors a warp, and a word can name "
            f"{COUNT[Kind.T]} and {COUNT[Kind.V]}; take a larger bk or a smaller nk"
        )
    warp_bytes = granules * geometry.granule_bytes + vectors * geometry.vector_bytes
    k_bytes, v_bytes = tile_bytes(config)
    slots = next((pair for pair in SLOTS if pair[0] * k_bytes + pair[1] * v_bytes <= sram_bytes), None)
    if slots is None:
        raise CompileError(
            f"one K and one V tile take {k_bytes + v_bytes} bytes of SRAM, the machine has {sram_bytes}; take a smaller nk "
            f"or bk, or narrower operands"
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
        wanted = SLOTS[0][0] * k_bytes + SLOTS[0][1] * v_bytes
        changes.append(
            f"K and V get {slots[0]} and {slots[1]} buffers instead of {SLOTS[0][0]} and {SLOTS[0][1]}: those take {wanted} "
            f"bytes of SRAM, the machine has {sram_bytes}"
        )
    if nq != config.nq:
        changes.append(
            f"a thread block has {nq} warps instead of {config.nq}: those take {config.nq * warp_bytes} register "
            f"bytes, the machine has {register_bytes}"
        )
    return Plan(replace(config, nq=nq), *slots, tuple(changes))
