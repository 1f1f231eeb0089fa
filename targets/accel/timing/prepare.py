"""
A program as the timing loop takes it: every word priced for a machine, its registers listed.

Source: docs/accelerator.md sections 1, 2 and 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lampc.errors import CompileError
from lampc.numerics.arrays import Ints
from lampc.targets.accel.config import CHOICES
from lampc.targets.accel.encoding import DecodedStream
from lampc.targets.accel.instruction import COUNT, Format, Instruction, Kind, Unit
from lampc.targets.accel.key_tiles import key_range
from lampc.targets.accel.loader import check_fit, check_program
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.program import STREAMS, Program
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.prices import PRICES, Rate, rates
from lampc.targets.accel.timing.scoreboard import Scoreboard

UNITS = (Unit.CTL, Unit.DMA, Unit.MXE, Unit.VEC, Unit.LUT, Unit.SFU, Unit.KNAP)
"""Units by their number in the loop."""

_KINDS: dict[str, int] = {
    "halt": col.HALT,
    "br": col.BR,
    "br.z": col.BR_Z,
    "br.nz": col.BR_NZ,
    "br.sz": col.BR_SZ,
    "br.ge": col.BR_GE,
    "loop": col.LOOP,
    "s.id": col.S_ID,
    "s.mov": col.S_MOV,
    "s.add": col.S_ADD,
    "s.ring": col.S_RING,
    "s.range": col.S_RANGE,
    "s.tile": col.S_TILE,
    "p.mov": col.P_MOV,
    "p.and": col.P_AND,
    "p.or": col.P_OR,
    "p.andn": col.P_ANDN,
    "p.const": col.P_CONST,
    "p.cnt": col.P_CNT,
    "p.next": col.P_NEXT,
    "p.after": col.P_AFTER,
    "v.stat": col.STAT,
    "v.live": col.LOG_LIVE,
    "v.threat": col.LOG_ORDER,
    "v.test": col.LOG_MASK,
    "knap": col.LOG_MASK,
    "dma.ld": col.LOAD_TILE,
    "dma.ldr": col.LOAD_ROWS,
    "dma.ldm": col.LOAD_ENTRIES,
    "dma.ldb": col.LOAD_ENTRIES,
    "v.ld": col.LOAD_FIXED,
    "dma.st": col.STORE_ROWS,
    "mx.qk": col.MATRIX_QK,
    "mx.pv": col.MATRIX_PV,
}
"""Instructions that steer control, are logged, or whose bytes depend on shapes; the others only take time."""

_COLUMNS: dict[str, int] = {
    "pa": col.SOURCE_A,
    "sa": col.SOURCE_A,
    "pb": col.SOURCE_B,
    "pd": col.DEST,
    "sd": col.DEST,
    "pd2": col.DEST_2,
    "range": col.DEST_2,
    "imm": col.IMM,
    "target": col.TARGET,
    "order": col.ORDER,
    "buf": col.BUFFER,
    "desc": col.DESCRIPTOR,
    "tile": col.TILE,
    "hi": col.HIGH,
    "ring": col.RING,
}
"""Payload field to column."""


@dataclass(frozen=True)
class Limits:
    """What bounds a run: the machine's numbers, or with `contended` off its latencies alone."""

    cores: int
    places: int
    issue_width: int
    branch_penalty: int
    launch: int
    fetch_rate: int
    loads: int
    stores: int
    instructions: int
    contended: bool = True

    def array(self, by_rate: Mapping[Rate, int]) -> Ints:
        """int64, as columns.py lists the entries."""
        machine = (self.issue_width, self.branch_penalty, self.launch, self.fetch_rate, self.loads, self.stores)
        entries = (self.contended, self.cores, self.places, *machine, self.instructions)
        return np.array([*entries, *(by_rate[rate] for rate in Rate)], np.int64)


@dataclass(frozen=True)
class Prepared:
    """
    A program on a machine.

    code       what the loop takes
    limits     the machine's, for a contended run
    names      mnemonic of each number in column NAME
    rates      by kind of work
    registers  entries of the scoreboard
    resident   thread blocks on a core at a time if there are enough of them
    """

    program: Program
    machine: Machine
    code: col.Code
    limits: Limits
    names: tuple[str, ...]
    rates: Mapping[Rate, int]
    registers: int
    resident: int

    @property
    def contexts(self) -> int:
        """Hardware contexts that the program uses: warps and one DMA context for each place."""
        return self.limits.cores * self.limits.places * (self.program.cfg.nq + 1)


def prepare(program: Program, machine: Machine) -> Prepared:
    """Raises InputError for a program that is not well-formed, CompileError for one that does not fit the machine."""
    check_program(program)
    check_fit(program, register_bytes=machine.core.register_bytes, sram_bytes=machine.sram.capacity_bytes)
    cfg = program.cfg
    blocks = cfg.heads * cfg.blocks
    resident = _resident(program, machine)
    cores = min(machine.core.cores_count, blocks)
    places = min(resident, -(-blocks // cores))
    contexts = places * (cfg.nq + 1)
    if contexts > col.ISSUE_WINDOW // 2 or cores * (contexts + col.UNITS) >= 1 << col.CTX_BITS:
        raise CompileError(
            f"{cores} cores with {places} blocks of {cfg.nq} warps are more contexts than the timing engine takes"
        )
    words = _Words(program, machine)
    for name in STREAMS:
        words.stream(program.decoded[name])
    first, count = key_range(cfg, np.arange(cfg.blocks, dtype=np.int64))
    by_rate = rates(machine)
    shape = (cfg.nk, cfg.bk, cfg.bq, cfg.nq, cfg.lq, cfg.lk, cfg.heads, cfg.hq, cfg.hkv, cfg.tiles)
    order, dma_start = CHOICES["kv_order"].index(cfg.kv_order), len(program.streams["warp"])
    access, slots, registers = words.scoreboard.arrays()
    code = col.Code(
        code=words.code(),
        access=access,
        slots=slots,
        expected=_expected(program),
        ranges=np.stack([first, count], axis=1),
        shape=np.array([*shape, order, dma_start, cfg.blocks], np.int64),
    )
    core, hbm = machine.core, machine.hbm
    limits = Limits(
        cores=cores,
        places=places,
        issue_width=min(core.issue_instructions_per_cycle, cores * places * (cfg.nq + 1)),
        branch_penalty=core.branch_penalty_cycles,
        launch=core.block_launch_cycles,
        fetch_rate=machine.sram.read_bytes_per_cycle,
        loads=hbm.outstanding_loads_count,
        stores=hbm.outstanding_stores_count,
        instructions=_instruction_limit(program),
    )
    return Prepared(program, machine, code, limits, tuple(words.names), by_rate, registers, resident)


def _resident(program: Program, machine: Machine) -> int:
    """Thread blocks that a core holds at a time; check_fit has seen to it that there is room for one."""
    room = machine.core.resident_blocks_count
    if program.warp_bytes:
        room = min(room, machine.core.register_bytes // (program.cfg.nq * program.warp_bytes))
    if program.sram_bytes:
        room = min(room, machine.sram.capacity_bytes // program.sram_bytes)
    return room


def _instruction_limit(program: Program) -> int:
    """More than this many executed words are an endless loop: every word in every step of every sub-block."""
    cfg = program.cfg
    words = sum(len(program.streams[name]) for name in STREAMS)
    return words * cfg.heads * cfg.blocks * (cfg.nq + 1) * (cfg.tiles + 1) * (cfg.nk + 1)


def _expected(program: Program) -> Ints:
    expected = np.ones(COUNT[Kind.BARRIER], np.int64)
    for barrier in program.barriers:
        expected[barrier.first : barrier.first + barrier.slots] = barrier.expected
    return expected


class _Words:
    """Rows of the loop's tables, word after word."""

    def __init__(self, program: Program, machine: Machine):
        self._program, self._machine, self._cfg = program, machine, program.cfg
        self.names: list[str] = []
        self._code: list[Ints] = []
        self.scoreboard = Scoreboard(program.cfg.geometry, program.granules, program.vectors)
        self._ring_slots = {barrier.first: barrier.slots for barrier in program.barriers}

    def code(self) -> Ints:
        """int64 [words, columns]."""
        return np.stack(self._code)

    def stream(self, stream: DecodedStream) -> None:
        """Append the words of a stream."""
        start = len(self._code)
        for index in range(len(stream)):
            self._code.append(self._word(stream, index, start))

    def _word(self, stream: DecodedStream, index: int, start: int) -> Ints:
        row, fmt = stream.row(index), stream.fmt(index)
        fields = {f.name: int(stream.fields[f.name][index]) for f in row.fields}
        word = np.full(col.CODE_COLUMNS, -1, np.int64)
        word[col.KIND] = _KINDS.get(row.name, col.PLAIN)
        word[col.NAME] = self._name(row.mnemonic(fmt))
        word[col.UNIT] = UNITS.index(row.unit)
        word[col.PREDICATE] = stream.predicate[index]
        word[col.WAIT] = fields["bar"] if row.name == "bar.wait" else stream.wait[index]
        word[col.SIGNAL] = fields["bar"] if row.name == "bar.arrive" else stream.signal[index]
        word[col.XOR], word[col.SKIP0] = stream.xor[index], stream.skip0[index]
        for name, column in _COLUMNS.items():
            if name in fields:
                word[column] = fields[name] + (start if name == "target" else 0)
        word[col.SLOTS] = self._slot_limit(word)
        self._price(word, row, fmt, fields)
        word[col.ACCESS] = len(self.scoreboard)
        self.scoreboard.add_predicate(int(stream.predicate[index]))
        word[col.ACCESS_ALWAYS] = len(self.scoreboard)
        self.scoreboard.add_fields(row, fmt, fields)
        word[col.ACCESS_END] = len(self.scoreboard)
        return word

    def _name(self, mnemonic: str) -> int:
        if mnemonic not in self.names:
            self.names.append(mnemonic)
        return self.names.index(mnemonic)

    def _slot_limit(self, word: Ints) -> int:
        """Slots that the word's ring may name: those of its buffer and of its barriers."""
        limits = [self._ring_slots[int(word[column])] for column in (col.WAIT, col.SIGNAL) if word[column] >= 0]
        if word[col.BUFFER] >= 0:
            limits.append(self._program.buffers[int(word[col.BUFFER])].slots)
        return min(limits, default=1)

    def _price(self, word: Ints, row: Instruction, fmt: Format, fields: Mapping[str, int]) -> None:
        price = PRICES[row.name](fmt, self._cfg, self._machine)
        word[col.RATE], word[col.RATE_HIGH] = price.rate, price.high
        word[col.PER_BLOCK], word[col.FIXED] = price.per_block, price.fixed
        word[col.LATENCY], word[col.LATENCY_BLOCK] = price.latency, price.latency_per_block
        word[col.FETCH] = price.fetch_per_block
        if "desc" in fields:
            shape = self._program.descriptors[fields["desc"]].shape
            if row.name == "dma.ld":
                word[col.FIXED] *= shape[3]
            # A broadcast axis is read once.
            word[col.ROWS_LIMIT] = 1 if shape[2] == 1 else self._cfg.bq
            word[col.KEYS_LIMIT] = 1 if shape[3] == 1 else self._cfg.nk * self._cfg.bk
