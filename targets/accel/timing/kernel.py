"""
The timing loop: events, one per instruction, over integer arrays.

One context per warp and one DMA context per resident thread block; a heap gives the context whose next instruction can start
first, by what its own registers and barriers say. It then waits for its unit and an issue slot:
start = max(context ready, barrier phase, operands, unit free, issue slot). Units serve who comes first; the matrix engine
first those whose operands its buffer holds, which keeps two thread blocks from sending each other's tiles away.

Values do not exist here; scalars, sub-block masks and orders do, since branches hang on them, and the decision log gives those
that depend on values. Everything is int64 and plain Python, so that Numba's machine code and the interpreter give the same
numbers. Helpers take the few arrays that they need and index them fully: tuples and views of arrays are what costs time in
compiled code.
Source: docs/accelerator.md sections 2 to 4.
"""

from lampc.numerics.arrays import Ints
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.control import begin, branch, masks, pop, scalar
from lampc.targets.accel.timing.jit import helper
from lampc.targets.accel.timing.resources import (
    bytes_moved,
    completes,
    issue_slot,
    missing_blocks,
    next_waiter,
    occupy,
    operands,
    pop_first,
    push,
    slot_key,
    stall,
    useful,
)


@helper
def after_barrier(code: Ints, access: Ints, slots: Ints, ctx: Ints, board: Ints, c: int) -> int:
    """When the context's next instruction can start as far as its barrier and registers say."""
    pc = ctx[c, col.PC]
    mask = ctx[c, col.P + code[pc, col.PREDICATE]]
    ctx[c, col.MASK] = mask
    end = code[pc, col.ACCESS_ALWAYS] if code[pc, col.SKIP0] == 1 and mask == 0 else code[pc, col.ACCESS_END]
    high = ctx[c, col.P + code[pc, col.HIGH]] if code[pc, col.HIGH] >= 0 else 0
    latest = operands(access, slots, board, c, code[pc, col.ACCESS], end, mask, high)
    ctx[c, col.OPERAND_TIME] = latest
    return max(ctx[c, col.READY], ctx[c, col.BARRIER_TIME], latest >> col.UNIT_BITS)


@helper
def look(code: Ints, access: Ints, slots: Ints, ctx: Ints, board: Ints, bars: Ints, fault: Ints, c: int, contended: int) -> int:
    """As `after_barrier`, but -1 if the barrier's phase is open, which parks the context, or a ring has no such slot."""
    pc = ctx[c, col.PC]
    ctx[c, col.BARRIER_TIME] = 0
    ctx[c, col.QUEUE_TIME] = 0
    ring = code[pc, col.RING]
    if ring >= 0 and code[pc, col.KIND] != col.S_RING:
        slot = ctx[c, col.S + ring]
        if slot < 0 or slot >= code[pc, col.SLOTS]:
            fault[col.F_STATUS], fault[col.F_CONTEXT], fault[col.F_PC] = col.BAD_SLOT, c, pc
            return -1
        if code[pc, col.WAIT] >= 0 and contended:
            place, barrier = ctx[c, col.PLACE], code[pc, col.WAIT] + slot
            parity = (ctx[c, col.S + ring + 1] ^ code[pc, col.XOR]) & 1
            if bars[place, barrier, col.PHASE] & 1 == parity:
                ctx[c, col.STATE], ctx[c, col.PARKED_ON], ctx[c, col.PARKED_PARITY] = col.PARKED, barrier, parity
                return -1
            ctx[c, col.BARRIER_TIME] = bars[place, barrier, col.COMPLETED + parity]
    return after_barrier(code, access, slots, ctx, board, c)


def simulate(program: col.Code, limits: Ints, state: col.State, tally: col.Tally, values: Ints, starts: Ints) -> None:
    """
    Run all thread blocks to their end; counters in `tally`, what went wrong in `state.fault`.

    values, starts  of the decision log
    Without `limits[CONTENDED]` every block starts at 0: then `tally.block_time` is what dependences alone take.
    """
    code, access, slots, expected, ranges, shape = program
    ctx, board, place, bars, ring, held, unit_free, waiting, waiters, issue, queue, queued, heap, fault = state
    issued, skipped, busy, work, hbm, touched, stalls, histogram, block_time, total = tally
    contended, cores, places, contexts = limits[col.CONTENDED], limits[col.CORES], limits[col.PLACES], shape[col.NQ] + 1
    blocks = shape[col.HEADS] * shape[col.BLOCKS]
    size, launched, executed, to_launch = 0, 0, 0, min(blocks, cores * places)
    for c in range(len(ctx)):
        ctx[c, col.CORE] = c // (places * contexts)

    free_place, free_time = 0, 0
    while True:
        # Launch: first into every place, one core after the other, then where a thread block has ended.
        while to_launch > 0 and launched < blocks:
            if launched < cores * places:
                free_place = launched % cores * places + launched // cores
            since = (free_time + limits[col.LAUNCH]) if contended else 0
            place[free_place, col.PLACE_FREE] = free_time if contended else 0
            begin(shape, ctx, board, place, bars, stalls, starts, free_place, launched, since)
            total[col.T_SERIAL] += limits[col.LAUNCH]
            for c in range(free_place * contexts, (free_place + 1) * contexts):
                key = look(code, access, slots, ctx, board, bars, fault, c, contended)
                if key >= 0:
                    push(heap, size, key << col.CTX_BITS | c)
                    size += 1
            launched += 1
            to_launch -= 1
        to_launch = 0
        if size == 0 or fault[col.F_STATUS] != col.OK:
            break

        entry = pop_first(heap, size)
        size -= 1
        now, c = entry >> col.CTX_BITS, entry & ((1 << col.CTX_BITS) - 1)
        granted = c >= len(ctx)
        if granted:
            # A unit is free, and contexts wait for it.
            core, unit = (c - len(ctx)) // col.UNITS, (c - len(ctx)) % col.UNITS
            waiters[core, unit, col.GRANTING] = 0
            c = next_waiter(code, ctx, ring, held, waiting, waiters, core, unit)
        pc, core, mask = ctx[c, col.PC], ctx[c, col.CORE], ctx[c, col.MASK]
        kind = code[pc, col.KIND]
        skip = code[pc, col.SKIP0] == 1 and mask == 0
        unit = col.UNIT_CTL if skip else code[pc, col.UNIT]
        start, store, served = now, 0, 0
        if contended and unit == col.UNIT_DMA:
            store = 1 if kind == col.STORE_ROWS else 0
            served = queued[core, store] % limits[col.LOADS + store]
            start = max(now, unit_free[0, col.UNIT_DMA])
            if queue[core, store, served] > now:
                ctx[c, col.QUEUE_TIME] = queue[core, store, served]
                push(heap, size, ctx[c, col.QUEUE_TIME] << col.CTX_BITS | c)
                size += 1
                continue
            if start - now >= col.ISSUE_WINDOW // 2:
                push(heap, size, (start - col.ISSUE_WINDOW // 2 + 1) << col.CTX_BITS | c)
                size += 1
                continue
        elif (
            contended
            and unit != col.UNIT_CTL
            and not granted
            and (unit_free[core, unit] > now or waiters[core, unit, col.WAITING] > 0)
        ):
            waiting[core, unit, waiters[core, unit, col.WAITING]] = c
            waiters[core, unit, col.WAITING] += 1
            if not waiters[core, unit, col.GRANTING]:
                waiters[core, unit, col.GRANTING] = 1
                push(heap, size, unit_free[core, unit] << col.CTX_BITS | (len(ctx) + core * col.UNITS + unit))
                size += 1
            continue
        unit_time = start
        if contended:
            start = issue_slot(issue, core, start, limits[col.ISSUE_WIDTH])
            entry = issue[core, start & (col.ISSUE_WINDOW - 1)]
            issue[core, start & (col.ISSUE_WINDOW - 1)] = entry + 1 if entry >> 20 == start else start << 20 | 1

        # Occupancy and latency.
        occupied, finish = 1, start + 1
        high = ctx[c, col.P + code[pc, col.HIGH]] if code[pc, col.HIGH] >= 0 else 0
        if unit != col.UNIT_CTL:
            rate, count = limits[col.RATES + code[pc, col.RATE]], pop(mask)
            if unit == col.UNIT_DMA:
                amount = bytes_moved(code, shape, ctx, touched, c, pc)
                hbm[code[pc, col.DESCRIPTOR]] += amount
            else:
                amount = code[pc, col.FIXED] + count * code[pc, col.PER_BLOCK]
            wide = 0
            if code[pc, col.RATE] != code[pc, col.RATE_HIGH]:
                wide = pop(mask & high) * code[pc, col.PER_BLOCK]
            occupied = (amount - wide + rate - 1) // rate
            work[code[pc, col.RATE]] += amount - wide
            if wide > 0:
                rate = limits[col.RATES + code[pc, col.RATE_HIGH]]
                occupied += (wide + rate - 1) // rate
                work[code[pc, col.RATE_HIGH]] += wide
            if code[pc, col.FETCH] > 0:
                at_place, buffer, slot = ctx[c, col.PLACE], code[pc, col.BUFFER], ctx[c, col.S + code[pc, col.RING]]
                key = slot_key(ring, at_place, buffer, slot)
                missing = missing_blocks(held, core, key, ring[at_place, buffer, slot, col.RING_FILLS], mask, start)
                total[col.T_MISSES if missing else col.T_HITS] += 1
                total[col.T_FETCH_QK if kind == col.MATRIX_QK else col.T_FETCH_PV] += missing * code[pc, col.FETCH]
                total[col.T_MATRIX] += amount
                entries = useful(shape, mask, ring[at_place, buffer, slot, col.RING_TILE], ctx[c, col.ROWS])
                total[col.T_USEFUL] += entries * (code[pc, col.PER_BLOCK] // (shape[col.BK] * shape[col.BQ]))
                if contended:
                    rate = limits[col.FETCH_RATE]
                    occupied = max(occupied, (missing * code[pc, col.FETCH] + rate - 1) // rate)
            occupied = max(1, occupied)
            finish = start + occupied - 1 + code[pc, col.LATENCY] + code[pc, col.LATENCY_BLOCK] * count
            if unit == col.UNIT_DMA:
                unit_free[0, unit] = start + occupied
                queue[core, store, served] = finish
                queued[core, store] += 1
            else:
                unit_free[core, unit] = start + occupied
                if waiters[core, unit, col.WAITING] > 0:
                    waiters[core, unit, col.GRANTING] = 1
                    push(heap, size, (start + occupied) << col.CTX_BITS | (len(ctx) + core * col.UNITS + unit))
                    size += 1
        busy[unit] += occupied
        issued[code[pc, col.NAME]] += 1
        executed += 1

        # Registers, control flow, SRAM slots. An instruction takes its masks before it overwrites them.
        taken = False
        read, written = int(start + occupied) << col.UNIT_BITS | unit, finish << col.UNIT_BITS | unit
        if skip:
            skipped[code[pc, col.NAME]] += 1
            occupy(access, slots, board, c, code[pc, col.ACCESS], code[pc, col.ACCESS_ALWAYS], mask, high, read, written)
        else:
            occupy(access, slots, board, c, code[pc, col.ACCESS], code[pc, col.ACCESS_END], mask, high, read, written)
            if col.BR <= kind <= col.LOOP:
                taken = branch(code, ctx, c, pc)
            elif col.S_ID <= kind <= col.S_TILE:
                scalar(code, shape, ranges, ctx, c, pc)
            elif col.P_MOV <= kind <= col.P_AFTER:
                masks(code, shape, ctx, c, pc)
            elif col.LOG_LIVE <= kind <= col.LOG_MASK:
                at = ctx[c, col.LOG_AT]
                if at >= ctx[c, col.LOG_END]:
                    fault[col.F_STATUS], fault[col.F_CONTEXT], fault[col.F_PC] = col.LOG_SHORT, c, pc
                    break
                ctx[c, col.LOG_AT] = at + 1
                if kind == col.LOG_ORDER:
                    ctx[c, col.O + code[pc, col.ORDER]] = values[at]
                else:
                    ctx[c, col.P + code[pc, col.DEST]] = values[at] & ctx[c, col.P]
                    if kind == col.LOG_LIVE:
                        ctx[c, col.P + code[pc, col.DEST_2]] = values[at] >> 16 & ctx[c, col.P]
            elif kind == col.STAT:
                first = ctx[c, col.P + code[pc, col.SOURCE_A]]
                total[col.T_TILES] += 1
                histogram[0, pop(first)] += 1
                histogram[1, pop(first | ctx[c, col.P + code[pc, col.SOURCE_B]])] += 1
            elif kind == col.LOAD_TILE:
                at_place, buffer, slot = ctx[c, col.PLACE], code[pc, col.BUFFER], ctx[c, col.S + code[pc, col.RING]]
                ring[at_place, buffer, slot, col.RING_TILE] = ctx[c, col.S + code[pc, col.TILE]]
                ring[at_place, buffer, slot, col.RING_FILLS] += 1
                total[col.T_FILL] += shape[col.NK] * shape[col.BK] * code[pc, col.FIXED]
        penalty = limits[col.BRANCH_PENALTY] if taken else 0
        stall(ctx, stalls, c, unit, unit_time, start, penalty)
        total[col.T_SERIAL] += finish - start + penalty
        ctx[c, col.LAST_FINISH] = max(ctx[c, col.LAST_FINISH], finish)
        ctx[c, col.READY] = start + 1 + penalty
        ctx[c, col.PC] = code[pc, col.TARGET] if taken else pc + 1
        if executed > limits[col.INSTRUCTIONS] or start >= col.LAST_CYCLE:
            fault[col.F_STATUS], fault[col.F_CONTEXT], fault[col.F_PC] = col.ENDLESS, c, pc
            break

        if code[pc, col.SIGNAL] >= 0 and contended:
            at_place, barrier = ctx[c, col.PLACE], code[pc, col.SIGNAL] + ctx[c, col.S + code[pc, col.RING]]
            if completes(bars, at_place, barrier, int(expected[barrier]), finish):
                parity = (bars[at_place, barrier, col.PHASE] - 1) & 1
                for other in range(at_place * contexts, (at_place + 1) * contexts):
                    parked = ctx[other, col.STATE] == col.PARKED and ctx[other, col.PARKED_ON] == barrier
                    if parked and ctx[other, col.PARKED_PARITY] == parity:
                        ctx[other, col.STATE] = col.RUNNING
                        ctx[other, col.BARRIER_TIME] = bars[at_place, barrier, col.COMPLETED + parity]
                        key = after_barrier(code, access, slots, ctx, board, other)
                        push(heap, size, key << col.CTX_BITS | other)
                        size += 1
        if kind != col.HALT:
            key = look(code, access, slots, ctx, board, bars, fault, c, contended)
            if key >= 0:
                push(heap, size, key << col.CTX_BITS | c)
                size += 1
            continue

        # The context has ended; with the last one of its thread block the place is free.
        if ctx[c, col.LOG_AT] != ctx[c, col.LOG_END]:
            fault[col.F_STATUS], fault[col.F_CONTEXT], fault[col.F_PC] = col.LOG_LONG, c, pc
            break
        ctx[c, col.STATE] = col.DONE
        ctx[c, col.HALTED] = start + 1
        free_place = ctx[c, col.PLACE]
        place[free_place, col.PLACE_LEFT] -= 1
        if place[free_place, col.PLACE_LEFT] == 0:
            free_time = 0
            for other in range(free_place * contexts, (free_place + 1) * contexts):
                free_time = max(free_time, ctx[other, col.HALTED], ctx[other, col.LAST_FINISH])
            for other in range(free_place * contexts, (free_place + 1) * contexts):
                stalls[other, col.S_DRAIN] += free_time - ctx[other, col.HALTED]
                ctx[other, col.STATE] = col.EMPTY
            block_time[place[free_place, col.PLACE_BLOCK]] = free_time - place[free_place, col.PLACE_SINCE]
            place[free_place, col.PLACE_FREE] = free_time
            total[col.T_CYCLES] = max(total[col.T_CYCLES], free_time)
            to_launch = 1

    if fault[col.F_STATUS] == col.OK:
        for c in range(len(ctx)):
            if ctx[c, col.STATE] != col.EMPTY:
                fault[col.F_STATUS], fault[col.F_CONTEXT], fault[col.F_PC] = col.DEADLOCK, c, ctx[c, col.PC]
            stalls[c, col.S_EMPTY] += total[col.T_CYCLES] - place[c // contexts, col.PLACE_FREE]
