"""
What contexts wait for: registers, barriers, the operand buffer, issue slots; and which class a wait counts in.

Compiled into the timing loop; see `kernel.py`. Source: docs/accelerator.md sections 3 and 4.
"""

from lampc.numerics.arrays import Ints
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.control import pop
from lampc.targets.accel.timing.jit import helper


@helper
def push(heap: Ints, size: int, entry: int) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry


@helper
def pop_first(heap: Ints, size: int) -> int:
    """The smallest of `size` entries, which leaves."""
    first, entry = heap[0], heap[size - 1]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry
    return first


@helper
def operands(access: Ints, slots: Ints, board: Ints, c: int, begin: int, end: int, mask: int, high: int) -> int:
    """When the registers of accesses begin..end can be used, with the unit that is waited for in the low bits."""
    latest = 0
    for i in range(begin, end):
        low, writes = access[i, col.LOW], access[i, col.WRITES]
        rest = 1 if low < 0 else mask
        theta = 0
        while rest:
            if rest & 1:
                first, count = access[i, col.FIRST], access[i, col.COUNT]
                if low >= 0:
                    row = access[i, col.HIGH_ROW] if high >> theta & 1 else low
                    first, count = slots[row, theta, 0], slots[row, theta, 1]
                for r in range(first, first + count):
                    latest = max(latest, board[c, r, 0])
                    if writes:
                        latest = max(latest, board[c, r, 1])
            rest >>= 1
            theta += 1
    return latest


@helper
def occupy(
    access: Ints, slots: Ints, board: Ints, c: int, begin: int, end: int, mask: int, high: int, read: int, written: int
) -> None:
    """Note that accesses begin..end read until `read` or are written at `written`, both with the unit in the low bits."""
    for i in range(begin, end):
        low, writes = access[i, col.LOW], access[i, col.WRITES]
        rest = 1 if low < 0 else mask
        theta = 0
        while rest:
            if rest & 1:
                first, count = access[i, col.FIRST], access[i, col.COUNT]
                if low >= 0:
                    row = access[i, col.HIGH_ROW] if high >> theta & 1 else low
                    first, count = slots[row, theta, 0], slots[row, theta, 1]
                for r in range(first, first + count):
                    if writes:
                        board[c, r, 0] = max(written, board[c, r, 0])
                    else:
                        board[c, r, 1] = max(read, board[c, r, 1])
            rest >>= 1
            theta += 1


@helper
def completes(bars: Ints, place: int, barrier: int, expected: int, time: int) -> bool:
    """One arrival; whether it completes the phase."""
    bars[place, barrier, col.ARRIVED] += 1
    bars[place, barrier, col.ARRIVING] = max(bars[place, barrier, col.ARRIVING], time)
    if bars[place, barrier, col.ARRIVED] < expected:
        return False
    parity = bars[place, barrier, col.PHASE] & 1
    bars[place, barrier, col.COMPLETED + parity] = bars[place, barrier, col.ARRIVING]
    bars[place, barrier, col.PHASE] += 1
    bars[place, barrier, col.ARRIVED] = 0
    bars[place, barrier, col.ARRIVING] = 0
    return True


@helper
def slot_key(ring: Ints, place: int, buffer: int, slot: int) -> int:
    """The number of an SRAM slot among those of all places."""
    return (place * ring.shape[1] + buffer) * ring.shape[2] + slot


@helper
def held_entry(held: Ints, core: int, key: int, fill: int) -> int:
    """The operand buffer's entry for filling `fill` of SRAM slot `key`, or -1."""
    for i in range(held.shape[1]):
        if held[core, i, col.HELD] == key and held[core, i, col.HELD_FILL] == fill:
            return i
    return -1


@helper
def missing_blocks(held: Ints, core: int, key: int, fill: int, mask: int, now: int) -> int:
    """Sub-blocks in the mask that the operand buffer lacks of filling `fill` of SRAM slot `key`; now it has them."""
    entry = held_entry(held, core, key, fill)
    if entry < 0:
        entry = 0
        for i in range(held.shape[1]):
            # An older filling of the same slot is of no more use.
            if held[core, i, col.HELD] == key:
                entry = i
                break
            if held[core, i, col.USED] < held[core, entry, col.USED]:
                entry = i
        held[core, entry, col.HELD] = key
        held[core, entry, col.HELD_FILL] = fill
        held[core, entry, col.PRESENT] = 0
    missing = pop(mask & ~held[core, entry, col.PRESENT])
    held[core, entry, col.PRESENT] |= mask
    held[core, entry, col.USED] = now + 1
    return missing


@helper
def next_waiter(code: Ints, ctx: Ints, ring: Ints, held: Ints, waiting: Ints, waiters: Ints, core: int, unit: int) -> int:
    """The context that a free unit takes: the first that came, for MXE the first whose operands the buffer holds."""
    count = waiters[core, unit, col.WAITING]
    chosen = 0
    if unit == col.UNIT_MXE:
        for i in range(count):
            c = waiting[core, unit, i]
            pc = ctx[c, col.PC]
            place, buffer, slot = ctx[c, col.PLACE], code[pc, col.BUFFER], int(ctx[c, col.S + code[pc, col.RING]])
            key, fill = slot_key(ring, place, buffer, slot), ring[place, buffer, slot, col.RING_FILLS]
            entry = held_entry(held, core, key, fill)
            if entry >= 0 and ctx[c, col.MASK] & ~held[core, entry, col.PRESENT] == 0:
                chosen = i
                break
    context = waiting[core, unit, chosen]
    for i in range(chosen, count - 1):
        waiting[core, unit, i] = waiting[core, unit, i + 1]
    waiters[core, unit, col.WAITING] = count - 1
    return context


@helper
def useful(shape: Ints, mask: int, tile: int, rows: int) -> int:
    """Entries of the sub-blocks in the mask on rows and keys that the tensors have."""
    entries = 0
    for theta in range(shape[col.NK]):
        if mask >> theta & 1:
            entries += min(shape[col.BK], max(0, shape[col.LK] - (tile * shape[col.NK] + theta) * shape[col.BK])) * rows
    return entries


@helper
def bytes_moved(code: Ints, shape: Ints, ctx: Ints, touched: Ints, c: int, pc: int) -> int:
    """Bytes that a load or store moves between HBM and the core: what the tensor has of the tile."""
    kind, each = code[pc, col.KIND], code[pc, col.FIXED]
    if kind == col.LOAD_FIXED:
        return each
    rows = ctx[c, col.ROWS]
    if kind == col.LOAD_ROWS or kind == col.STORE_ROWS:
        return rows * each
    tile, width = ctx[c, col.S + code[pc, col.TILE]], shape[col.NK] * shape[col.BK]
    keys = min(width, max(0, shape[col.LK] - tile * width))
    if kind == col.LOAD_ENTRIES:
        return min(rows, code[pc, col.ROWS_LIMIT]) * min(keys, code[pc, col.KEYS_LIMIT]) * each
    if 0 <= tile < shape[col.TILES]:
        touched[code[pc, col.DESCRIPTOR], ctx[c, col.KV] * shape[col.TILES] + tile] = keys * each
    return keys * each


@helper
def issue_slot(issue: Ints, core: int, start: int, width: int) -> int:
    """The first cycle from `start` on with an issue slot left."""
    while True:
        entry = issue[core, start & (col.ISSUE_WINDOW - 1)]
        if entry >> 20 != start or entry & 0xFFFFF < width:
            return start
        start += 1


@helper
def stall(ctx: Ints, stalls: Ints, c: int, unit: int, unit_time: int, start: int, penalty: int) -> None:
    """Every cycle since the context was ready goes to one class."""
    at = ctx[c, col.READY]
    if ctx[c, col.BARRIER_TIME] > at:
        stalls[c, col.S_BARRIER] += ctx[c, col.BARRIER_TIME] - at
        at = ctx[c, col.BARRIER_TIME]
    operand = ctx[c, col.OPERAND_TIME] >> col.UNIT_BITS
    if operand > at:
        stalls[c, col.S_OPERAND + (ctx[c, col.OPERAND_TIME] & col.UNIT_MASK)] += operand - at
        at = operand
    if ctx[c, col.QUEUE_TIME] > at:
        stalls[c, col.S_QUEUE] += ctx[c, col.QUEUE_TIME] - at
        at = ctx[c, col.QUEUE_TIME]
    if unit_time > at:
        stalls[c, col.S_UNIT + unit] += unit_time - at
        at = unit_time
    stalls[c, col.S_SLOT] += start - at
    stalls[c, col.S_ISSUE] += 1
    stalls[c, col.S_BRANCH] += penalty
