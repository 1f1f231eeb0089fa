"""
What no schedule can beat, and what every schedule beats.

Each lower bound ignores all but one resource; the largest one binds. Source: docs/accelerator.md section 6.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lampc.targets.accel.instruction import Unit
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.counters import Counters, work_cycles
from lampc.targets.accel.timing.errors import InternalError
from lampc.targets.accel.timing.prepare import Prepared

LOWER_BOUNDS: dict[str, str] = {
    "matrix": "multiply-accumulates of each format at that format's rate",
    "lut": "8-bit exponentials at the table's rate",
    "sfu": "16-bit and FP32 exponentials at the special-function unit's rates",
    "vector": "element operations at the lanes' rates",
    "knap": "additions and comparisons of stage 2",
    "hbm_compulsory": "every byte that is needed moved once at full bandwidth",
    "hbm": "every byte that the thread blocks move, at full bandwidth",
    "sram": "operand fetches at the read port's bandwidth",
    "issue": "instructions at the issue width",
    "latency": "dependences alone: the longest thread block, and all of them spread over the places that hold one",
}
"""Name and meaning; cycles."""

UPPER_BOUND = "serial"
"""One instruction after the other, with its latency, and every launch."""


@dataclass(frozen=True)
class Bounds:
    """
    lower    cycles by the names of LOWER_BOUNDS
    serial   upper bound, cycles
    binding  the largest lower bound's name
    ratio    cycles of the run / that bound
    """

    lower: Mapping[str, int]
    serial: int
    binding: str
    ratio: float


def bounds(prepared: Prepared, counters: Counters, tally: col.Tally, chains: col.Tally) -> Bounds:
    """
    Bounds of a run.

    tally   of the run itself
    chains  of the same program without contention

    Raises InternalError if the run is below a lower bound or above the upper one.
    """
    limits = prepared.limits

    def per_core(cycles: float) -> float:
        return cycles / limits.cores

    hbm_rate = prepared.machine.hbm.bytes_per_cycle
    fetched = counters.sram_bytes["mx.qk"] + counters.sram_bytes["mx.pv"]
    chain = chains.block_time + limits.launch
    cycles = {
        "matrix": per_core(work_cycles(prepared, tally, Unit.MXE)),
        "lut": per_core(work_cycles(prepared, tally, Unit.LUT)),
        "sfu": per_core(work_cycles(prepared, tally, Unit.SFU)),
        "vector": per_core(work_cycles(prepared, tally, Unit.VEC)),
        "knap": per_core(work_cycles(prepared, tally, Unit.KNAP)),
        "hbm_compulsory": sum(counters.hbm_compulsory_bytes.values()) / hbm_rate,
        "hbm": sum(counters.hbm_bytes.values()) / hbm_rate,
        "sram": per_core(fetched / limits.fetch_rate),
        "issue": per_core(int(tally.issued.sum()) / limits.issue_width),
        "latency": max(int(chain.max()), int(chain.sum()) / (limits.cores * limits.places)),
    }
    lower = {name: math.ceil(cycles[name] - 1e-6) for name in LOWER_BOUNDS}
    serial = int(tally.total[col.T_SERIAL])
    binding = max(lower, key=lambda name: lower[name])
    for name, bound in lower.items():
        if counters.cycles < bound:
            raise InternalError(f"the run took {counters.cycles} cycles, less than its lower bound '{name}' of {bound}")
    if counters.cycles > serial:
        raise InternalError(f"the run took {counters.cycles} cycles, more than its serial sum of {serial}")
    return Bounds(lower, serial, binding, counters.cycles / max(1, lower[binding]))
