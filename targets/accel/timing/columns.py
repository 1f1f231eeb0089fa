"""
The arrays of the timing loop: their columns, and what their numbers mean. Everything is int64.

Plain numbers and tuples, since compiled code reads them as constants. Source: docs/accelerator.md sections 2 to 4.
"""

from typing import NamedTuple

from lampc.numerics.arrays import Ints

# What an instruction does to the registers that decide control flow, or how its bytes follow from shapes.
PLAIN, HALT, BR, BR_Z, BR_NZ, BR_SZ, BR_GE, LOOP = range(8)
S_ID, S_MOV, S_ADD, S_RING, S_RANGE, S_TILE = range(8, 14)
P_MOV, P_AND, P_OR, P_ANDN, P_CONST, P_CNT, P_NEXT, P_AFTER, STAT = range(14, 23)
LOG_LIVE, LOG_ORDER, LOG_MASK = range(23, 26)
LOAD_TILE, LOAD_ROWS, LOAD_ENTRIES, LOAD_FIXED, STORE_ROWS, MATRIX_QK, MATRIX_PV = range(26, 33)

# Columns of `code`: one row per word, the dma stream behind the warp stream; -1 where there is nothing.
KIND, NAME, UNIT, PREDICATE, WAIT, SIGNAL, XOR, SKIP0, RING = range(9)
SOURCE_A, SOURCE_B, DEST, DEST_2, IMM, TARGET, ORDER, BUFFER, DESCRIPTOR, TILE, HIGH = range(9, 20)
RATE, RATE_HIGH, PER_BLOCK, FIXED, LATENCY, LATENCY_BLOCK, FETCH = range(20, 27)
ACCESS, ACCESS_ALWAYS, ACCESS_END, ROWS_LIMIT, KEYS_LIMIT, SLOTS = range(27, 33)
CODE_COLUMNS = 33

# Columns of `access`, registers that a word touches: COUNT from FIRST, or where LOW is not -1 those that row LOW of `slots`
# gives for the sub-blocks in the mask, row HIGH_ROW for those that field `hi` names.
FIRST, COUNT, LOW, HIGH_ROW, WRITES = range(5)

# Entries of `shape`: sizes of lampattention.md section 3, and where things start.
NK, BK, BQ, NQ, LQ, LK, HEADS, HQ, HKV, TILES, KV_ORDER, DMA_START, BLOCKS = range(13)

# Entries of `limits`, of the machine. Without CONTENDED, units, barriers, queues and issue slots are always free.
CONTENDED, CORES, PLACES, ISSUE_WIDTH, BRANCH_PENALTY, LAUNCH, FETCH_RATE, LOADS, STORES, INSTRUCTIONS = range(10)
RATES = 10

UNIT_CTL, UNIT_DMA, UNIT_MXE, UNIT_VEC, UNIT_LUT, UNIT_SFU, UNIT_KNAP = range(7)
UNITS = 7
UNIT_BITS = 3
UNIT_MASK = 7

# Columns of `ctx`, contexts of a place one after the other: its DMA context, then its warps. Registers are the last columns.
PC, READY, STATE, HEAD, KV, BLOCK, WARP, PLACE, CORE, LOG_AT, LOG_END = range(11)
BARRIER_TIME, OPERAND_TIME, QUEUE_TIME, MASK, PARKED_ON, PARKED_PARITY, LAST_FINISH, HALTED, ROWS = range(11, 20)
S, P, O = 20, 52, 68
CTX_COLUMNS = 72
EMPTY, RUNNING, PARKED, DONE = range(4)

# Columns of `place`, a slot for a thread block on a core.
PLACE_BLOCK, PLACE_LEFT, PLACE_SINCE, PLACE_FREE = range(4)
PLACE_COLUMNS = 4

# Columns of `bars`: completed phases, arrivals, their latest time, when the last phase of each parity completed.
PHASE, ARRIVED, ARRIVING, COMPLETED = range(4)
BAR_COLUMNS = 5

# Columns of `ring`, an SRAM slot: its key tile, how often it was filled.
RING_TILE, RING_FILLS = range(2)

# Columns of `waiters`, a unit: contexts that wait for it, and whether a grant is in the heap.
WAITING, GRANTING = range(2)

# Columns of `held`, a slot of the operand buffer: SRAM slot, its fill, sub-blocks present, last use.
HELD, HELD_FILL, PRESENT, USED = range(4)

# Stall classes; operands and units take one for each unit.
S_ISSUE, S_BRANCH, S_BARRIER, S_OPERAND, S_UNIT, S_QUEUE, S_SLOT, S_DRAIN, S_EMPTY = 0, 1, 2, 3, 10, 17, 18, 19, 20
STALLS = 21

# Entries of `total`.
T_CYCLES, T_SERIAL, T_HITS, T_MISSES, T_FETCH_QK, T_FETCH_PV, T_FILL, T_MATRIX, T_USEFUL, T_TILES = range(10)
TOTALS = 10

# Entries of `fault`, and what its status says.
F_STATUS, F_CONTEXT, F_PC = range(3)
OK, DEADLOCK, LOG_SHORT, LOG_LONG, ENDLESS, BAD_SLOT = range(6)

CTX_BITS = 20
LAST_CYCLE = 1 << 42
"""What runs longer is taken for endless; a cycle and a context share the 63 bits of a heap entry."""
ISSUE_WINDOW = 1 << 14
"""Cycles ahead for which issue slots are counted; a load that would start later asks again when the time comes."""


class Code(NamedTuple):
    """
    The program, for one machine.

    code, access, shape  see above
    slots                [rows, N_k, 2] first register and number of registers of each sub-block
    expected             [32] arrivals that complete a phase
    ranges               [blocks, 2] first key tile and number of key tiles of a block
    """

    code: Ints
    access: Ints
    slots: Ints
    expected: Ints
    ranges: Ints
    shape: Ints


class State(NamedTuple):
    """
    Registers and resources.

    ctx, place, bars, ring, held, fault  see above
    board      [contexts, registers, 2] when a register was written and when it was last read, with the unit in the low bits
    unit_free  [cores, units]; DMA's is that of the first core, since all share the memory
    waiting    [cores, units, contexts] those that wait for a unit, in the order in which they came; `waiters` counts them
    issue      [cores, ISSUE_WINDOW] cycle << 20 | instructions that it issues
    queue      [cores, 2, entries] when the outstanding loads and stores end; `queued` counts those there ever were
    heap       next time << CTX_BITS | context, or behind the contexts core * UNITS + unit: a unit that is free then
    """

    ctx: Ints
    board: Ints
    place: Ints
    bars: Ints
    ring: Ints
    held: Ints
    unit_free: Ints
    waiting: Ints
    waiters: Ints
    issue: Ints
    queue: Ints
    queued: Ints
    heap: Ints
    fault: Ints


class Tally(NamedTuple):
    """Counters: see `counters.py` for what each means."""

    issued: Ints
    skipped: Ints
    busy: Ints
    work: Ints
    hbm: Ints
    touched: Ints
    stalls: Ints
    histogram: Ints
    block_time: Ints
    total: Ints
