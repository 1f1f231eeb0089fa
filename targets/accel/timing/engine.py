"""
The timing engine: a program, what it decided, and a machine give cycles; no values.

Source: docs/accelerator.md section 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter

import numpy as np

from lampc.errors import InputError
from lampc.numerics.arrays import Ints
from lampc.numerics.engine import engine
from lampc.targets.accel.decision_log import DecisionLog
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing import kernel
from lampc.targets.accel.timing.bounds import Bounds, bounds
from lampc.targets.accel.timing.counters import Counters, collect
from lampc.targets.accel.timing.errors import InternalError
from lampc.targets.accel.timing.jit import compiled
from lampc.targets.accel.timing.prepare import Limits, Prepared, prepare
from lampc.targets.accel.timing.prices import Rate

Simulate = Callable[[col.Code, Ints, col.State, col.Tally, Ints, Ints], None]


@dataclass(frozen=True)
class TimingResult:
    """
    Cycles of one program with one decision log on one machine.

    seconds        that the cycles take at the machine's clock
    program_hash   of the program, the same that its functional run prints
    machine_hash   of the machine's numbers
    synthetic      the decisions were made up from rates
    host_seconds   that this simulation took
    """

    cycles: int
    seconds: float
    counters: Counters
    bounds: Bounds
    program_hash: str
    machine_hash: str
    machine: str
    synthetic: bool
    host_seconds: float

    @property
    def binding(self) -> str:
        """The lower bound that binds."""
        return self.bounds.binding

    @property
    def ratio(self) -> float:
        """Cycles / the binding lower bound."""
        return self.bounds.ratio

    @property
    def instructions(self) -> int:
        """Issued by all contexts."""
        return sum(self.counters.issued.values())


def run_timing(program: Program, log: DecisionLog, machine: Machine) -> TimingResult:
    """
    Cycles of a program whose decisions are in `log`.

    Raises CompileError if the program does not fit the machine, InputError if the log is of another program or the program
    blocks itself, InternalError if the log is not consumed exactly or a bound is violated.
    """
    return run_prepared(prepare(program, machine), log)


def run_prepared(prepared: Prepared, log: DecisionLog) -> TimingResult:
    """As `run_timing`; for many logs of one program on one machine."""
    began = perf_counter()
    program, machine = prepared.program, prepared.machine
    program_hash, cfg = program.program_hash(), program.cfg
    if log.program_hash != program_hash:
        raise InputError(
            f"the decision log is of program {log.program_hash[:12]}, this is {program_hash[:12]}; run the program for its log"
        )
    if log.shape != (cfg.heads, cfg.blocks, cfg.nq):
        raise InputError(
            f"the decision log has heads, blocks, warps {log.shape}, the program {(cfg.heads, cfg.blocks, cfg.nq)}"
        )
    tally = simulate(prepared, prepared.limits, log.values, log.starts)
    alone = replace(prepared.limits, contended=False, cores=1, places=1)
    chains = simulate(prepared, alone, log.values, log.starts)
    counters = collect(prepared, tally)
    return TimingResult(
        cycles=counters.cycles,
        seconds=counters.cycles / machine.core.clock_hz,
        counters=counters,
        bounds=bounds(prepared, counters, tally, chains),
        program_hash=program_hash,
        machine_hash=machine.hash,
        machine=machine.name,
        synthetic=log.synthetic,
        host_seconds=perf_counter() - began,
    )


def simulate(prepared: Prepared, limits: Limits, values: Ints, starts: Ints) -> col.Tally:
    """One pass of the loop. Raises InputError for a program at fault, InternalError for a log that does not fit."""
    state, tally = _state(prepared, limits), _tally(prepared, limits)
    _loop(engine())(prepared.code, limits.array(prepared.rates), state, tally, values, np.ascontiguousarray(starts))
    status = int(state.fault[col.F_STATUS])
    if status != col.OK:
        _report(prepared, state, status)
    return tally


@cache
def _loop(name: str) -> Simulate:
    return compiled(kernel.simulate) if name == "numba" else kernel.simulate


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, np.int64)


def _state(prepared: Prepared, limits: Limits) -> col.State:
    program, code = prepared.program, prepared.code
    places = limits.cores * limits.places
    contexts = places * (program.cfg.nq + 1)
    held = _zeros(limits.cores, prepared.machine.mxe.operand_slots_count, 4)
    held[..., col.HELD] = -1
    return col.State(
        ctx=_zeros(contexts, col.CTX_COLUMNS),
        board=_zeros(contexts, prepared.registers, 2),
        place=_zeros(places, col.PLACE_COLUMNS),
        bars=_zeros(places, len(code.expected), col.BAR_COLUMNS),
        ring=_zeros(places, max(1, len(program.buffers)), max((b.slots for b in program.buffers), default=1), 2),
        held=held,
        unit_free=_zeros(limits.cores, col.UNITS),
        waiting=_zeros(limits.cores, col.UNITS, contexts // limits.cores),
        waiters=_zeros(limits.cores, col.UNITS, 2),
        issue=_zeros(limits.cores, col.ISSUE_WINDOW),
        queue=_zeros(limits.cores, 2, max(limits.loads, limits.stores)),
        queued=_zeros(limits.cores, 2),
        heap=_zeros(contexts + limits.cores * col.UNITS + 1),
        fault=_zeros(3),
    )


def _tally(prepared: Prepared, limits: Limits) -> col.Tally:
    program = prepared.program
    contexts = limits.cores * limits.places * (program.cfg.nq + 1)
    return col.Tally(
        issued=_zeros(len(prepared.names)),
        skipped=_zeros(len(prepared.names)),
        busy=_zeros(col.UNITS),
        work=_zeros(len(Rate)),
        hbm=_zeros(len(program.descriptors)),
        touched=_zeros(len(program.descriptors), program.cfg.batch * program.cfg.hkv * program.cfg.tiles),
        stalls=_zeros(contexts, col.STALLS),
        histogram=_zeros(2, program.cfg.nk + 1),
        block_time=_zeros(program.cfg.heads * program.cfg.blocks),
        total=_zeros(col.TOTALS),
    )


def _report(prepared: Prepared, state: col.State, status: int) -> None:
    context, word = int(state.fault[col.F_CONTEXT]), int(state.fault[col.F_PC])
    here = _describe(prepared, state, context, word)
    if status == col.LOG_SHORT:
        raise InternalError(f"the decision log has no value left for {here}")
    if status == col.LOG_LONG:
        left = int(state.ctx[context, col.LOG_END] - state.ctx[context, col.LOG_AT])
        raise InternalError(f"the decision log has {left} values left at the end of {here}")
    if status == col.BAD_SLOT:
        raise InputError(f"{here} names a ring slot that does not exist")
    if status == col.ENDLESS:
        raise InputError(f"the program does not end; the last instruction was that of {here}")
    waiting = [
        _describe(prepared, state, c, int(state.ctx[c, col.PC]))
        + f" for barrier {_barrier(prepared, int(state.ctx[c, col.PARKED_ON]))}"
        for c in range(len(state.ctx))
        if state.ctx[c, col.STATE] == col.PARKED
    ]
    raise InputError(f"deadlock; waiting: {'; '.join(waiting[:4])}{'; ...' if len(waiting) > 4 else ''}")


def _describe(prepared: Prepared, state: col.State, context: int, word: int) -> str:
    code, shape = prepared.code, prepared.code.shape
    number = context % (prepared.program.cfg.nq + 1)
    head, block = int(state.ctx[context, col.HEAD]), int(state.ctx[context, col.BLOCK])
    name = f"warp {number - 1}" if number else "dma"
    index = word - (0 if number else int(shape[col.DMA_START]))
    mnemonic = prepared.names[int(code.code[word, col.NAME])]
    return f"block {block} of head {head}: {name} at word {index} ({mnemonic})"


def _barrier(prepared: Prepared, index: int) -> str:
    for barrier in prepared.program.barriers:
        if barrier.first <= index < barrier.first + barrier.slots:
            return f"{barrier.name}[{index - barrier.first}]"
    return str(index)
