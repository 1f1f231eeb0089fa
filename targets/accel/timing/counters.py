"""
Counters of a timing run. docs/counters.md is written from the texts here: `python -m lampc.targets.accel.timing.pages`.

Source: docs/accelerator.md section 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from lampc.numerics.arrays import Ints
from lampc.targets.accel.instruction import Unit
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.errors import InternalError
from lampc.targets.accel.timing.prepare import UNITS, Prepared
from lampc.targets.accel.timing.prices import RATES

STALLS: dict[str, str] = {
    "issue": "the cycle in which an instruction issues",
    "branch": "penalty of a taken branch",
    "barrier": "waiting for a barrier's phase",
    **{f"operand_{unit.lower()}": f"waiting for a register that {unit} writes or still reads" for unit in UNITS},
    **{f"unit_{unit.lower()}": f"waiting for {unit} to be free" for unit in UNITS},
    "queue": "waiting for room among the outstanding loads or stores",
    "issue_slot": "everything else was ready, but the core's issue slots were taken",
    "drain": "ended, while other contexts or results of its thread block were under way",
    "empty": "no thread block: before the first, while the next one launches, and after the last",
}
"""Stall classes in the loop's order, and what each means. CTL is never waited for as a unit."""


def _counter(unit: str, meaning: str) -> Any:
    return field(metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True)
class UnitUse:
    """One unit, all cores together; DMA is the memory channel that they share, CTL the issue slots."""

    busy: int = _counter("cycles", "in which the unit was occupied")
    idle: int = _counter("cycles", "in which it was not; busy and idle add up to cycles times units")
    work: Mapping[str, int] = _counter("by kind", "work done, in the unit that the kind's rate counts, by kind")
    utilisation: float = _counter("fraction", "busy / (busy + idle)")
    efficiency: float = _counter(
        "fraction", "cycles that the work takes at full rate / busy: what rounding up and operand fetches leave"
    )


@dataclass(frozen=True)
class Counters:
    """Everything that a run counts: numbers, texts and mappings, as `dataclasses.asdict` and JSON take them."""

    cycles: int = _counter("cycles", "from the launch of the first thread block to the end of the last one's last result")
    issued: Mapping[str, int] = _counter("instructions", "issued, by mnemonic, all contexts")
    skipped: Mapping[str, int] = _counter("instructions", "of those issued, retired by skip0 with an empty mask, by mnemonic")
    units: Mapping[str, UnitUse] = _counter("", "use of each unit, see below")
    contexts: Mapping[str, int] = _counter("contexts", "hardware contexts in use, by stream: warp and dma")
    stalls: Mapping[str, Mapping[str, int]] = _counter(
        "cycles",
        "by stream and class, each cycle of each context in exactly one; a stream's classes add up to cycles times contexts",
    )
    hbm_bytes: Mapping[str, int] = _counter("bytes", "moved between HBM and cores, by tensor")
    hbm_compulsory_bytes: Mapping[str, int] = _counter("bytes", "of the same, each part of a tensor once, by tensor")
    sram_bytes: Mapping[str, int] = _counter(
        "bytes", "read from SRAM for the operands of mx.qk and mx.pv, and written by loads (fill), by consumer"
    )
    operand_buffer: Mapping[str, int] = _counter(
        "instructions", "matrix instructions that found all their sub-blocks in the operand buffer (hits) or not (misses)"
    )
    register_bytes: int = _counter("bytes", "register high water: what the resident thread blocks of a core take")
    sram_bytes_used: int = _counter("bytes", "SRAM high water: what the resident thread blocks of a core take")
    resident_blocks: int = _counter("blocks", "thread blocks on a core at a time")
    padded_work_fraction: float = _counter(
        "fraction", "share of the multiply-accumulates on rows and keys beyond the tensors, which fill up warps and tiles"
    )
    live_tiles: int = _counter("tiles", "live tiles of warps, counted by v.stat")
    recomputed_stage1: tuple[int, ...] = _counter("tiles", "live tiles by how many sub-blocks stage 1 recomputed, from 0")
    recomputed: tuple[int, ...] = _counter("tiles", "live tiles by how many sub-blocks both stages recomputed, from 0")


def collect(prepared: Prepared, tally: col.Tally) -> Counters:
    """Counters of a run. Raises InternalError if cycles are missing from a context or a unit was busy for too many."""
    cycles, cfg = int(tally.total[col.T_CYCLES]), prepared.program.cfg
    contexts = prepared.contexts
    is_dma = np.arange(contexts) % (cfg.nq + 1) == 0
    if not (tally.stalls.sum(axis=1) == cycles).all() or (tally.stalls < 0).any():
        raise InternalError(f"stall classes of a context do not add up to the run's {cycles} cycles")
    matrix, useful = int(tally.total[col.T_MATRIX]), int(tally.total[col.T_USEFUL])
    moved = _by_tensor(prepared, tally.hbm)
    return Counters(
        cycles=cycles,
        issued=_by_name(prepared, tally.issued),
        skipped=_by_name(prepared, tally.skipped),
        units={unit.value: _unit_use(prepared, tally, unit, cycles) for unit in UNITS},
        contexts={"warp": int((~is_dma).sum()), "dma": int(is_dma.sum())},
        stalls={
            name: dict(zip(STALLS, (int(total) for total in tally.stalls[which].sum(axis=0)), strict=True))
            for name, which in (("warp", ~is_dma), ("dma", is_dma))
        },
        hbm_bytes=moved,
        hbm_compulsory_bytes=_compulsory(prepared, tally, moved),
        sram_bytes={
            "mx.qk": int(tally.total[col.T_FETCH_QK]),
            "mx.pv": int(tally.total[col.T_FETCH_PV]),
            "fill": int(tally.total[col.T_FILL]),
        },
        operand_buffer={"hits": int(tally.total[col.T_HITS]), "misses": int(tally.total[col.T_MISSES])},
        register_bytes=prepared.limits.places * cfg.nq * prepared.program.warp_bytes,
        sram_bytes_used=prepared.limits.places * prepared.program.sram_bytes,
        resident_blocks=prepared.limits.places,
        padded_work_fraction=1 - useful / matrix if matrix else 0.0,
        live_tiles=int(tally.total[col.T_TILES]),
        recomputed_stage1=_recomputed(prepared, tally.histogram[0]),
        recomputed=_recomputed(prepared, tally.histogram[1]),
    )


def work_cycles(prepared: Prepared, tally: col.Tally, unit: Unit) -> float:
    """Cycles that a unit's work takes at full rate, all cores' units one after the other."""
    return sum(int(tally.work[rate]) / prepared.rates[rate] for rate, info in RATES.items() if info.unit is unit)


def _unit_use(prepared: Prepared, tally: col.Tally, unit: Unit, cycles: int) -> UnitUse:
    busy, cores = int(tally.busy[UNITS.index(unit)]), prepared.limits.cores
    available = cycles * {Unit.DMA: 1, Unit.CTL: cores * prepared.limits.issue_width}.get(unit, cores)
    if busy > available:
        raise InternalError(f"{unit} was busy for {busy} of {available} cycles")
    work = {rate.name.lower(): int(tally.work[rate]) for rate, info in RATES.items() if info.unit is unit}
    ideal = work_cycles(prepared, tally, unit)
    if unit is Unit.CTL:
        # Issue slots serve every unit, so what CTL does is to issue.
        busy = int(tally.issued.sum())
        work, ideal = {"ctl": busy}, float(busy)
    return UnitUse(
        busy=busy,
        idle=available - busy,
        work=work,
        utilisation=busy / available if available else 0.0,
        efficiency=ideal / busy if busy else 0.0,
    )


def _recomputed(prepared: Prepared, counts: Ints) -> tuple[int, ...]:
    """Tiles by sub-blocks recomputed; what lies beyond two is not decided in layout compact."""
    exact = [int(count) for count in counts]
    if prepared.program.cfg.layout == "compact" and len(exact) > 3:
        exact[2:] = [sum(exact[2:]), *(0 for _ in exact[3:])]
    return tuple(exact)


def _by_name(prepared: Prepared, counts: Ints) -> dict[str, int]:
    return {name: int(count) for name, count in sorted(zip(prepared.names, counts, strict=True)) if count}


def _by_tensor(prepared: Prepared, counts: Ints) -> dict[str, int]:
    total: dict[str, int] = {}
    for descriptor, count in zip(prepared.program.descriptors, counts, strict=True):
        total[descriptor.tensor] = total.get(descriptor.tensor, 0) + int(count)
    return total


def _compulsory(prepared: Prepared, tally: col.Tally, moved: Mapping[str, int]) -> dict[str, int]:
    """K and V tiles once for each KV head that some block reads them for; of other tensors at most the whole."""
    once: dict[str, int] = {}
    for index, descriptor in enumerate(prepared.program.descriptors):
        whole = int(np.prod(descriptor.shape[:3])) * descriptor.row_bytes
        tiles = int(tally.touched[index].sum())
        once[descriptor.tensor] = tiles or min(whole, moved[descriptor.tensor])
    return once


def texts() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(table, rows of name, unit, meaning) for the page."""
    tables = (("Run", Counters), ("Unit", UnitUse))
    return [(title, [(f.name, f.metadata["unit"], f.metadata["meaning"]) for f in fields(kind)]) for title, kind in tables]
