"""
What steers a context: its scalars, sub-block masks and orders, executed exactly.

Compiled into the timing loop; see `kernel.py`. Source: docs/accelerator.md section 2.
"""

from lampc.numerics.arrays import Ints
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.jit import helper


@helper
def wrap(value: int) -> int:
    """Scalars have 32 bits."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@helper
def pop(mask: int) -> int:
    """Number of bits of a mask of at most 16 sub-blocks."""
    mask = mask - ((mask >> 1) & 0x5555)
    mask = (mask & 0x3333) + ((mask >> 2) & 0x3333)
    mask = (mask + (mask >> 4)) & 0x0F0F
    return (mask + (mask >> 8)) & 0x1F


@helper
def branch(code: Ints, ctx: Ints, c: int, pc: int) -> bool:
    """Whether a branch is taken; `loop` counts down."""
    kind = code[pc, col.KIND]
    if kind == col.BR_Z:
        return ctx[c, col.P + code[pc, col.SOURCE_A]] == 0
    if kind == col.BR_NZ:
        return ctx[c, col.P + code[pc, col.SOURCE_A]] != 0
    if kind == col.BR_SZ:
        return ctx[c, col.S + code[pc, col.SOURCE_A]] == 0
    if kind == col.BR_GE:
        return ctx[c, col.S + code[pc, col.SOURCE_A]] >= code[pc, col.IMM]
    if kind == col.LOOP:
        counter = col.S + code[pc, col.DEST]
        ctx[c, counter] = wrap(ctx[c, counter] - 1)
        return ctx[c, counter] > 0
    return True


@helper
def scalar(code: Ints, shape: Ints, ranges: Ints, ctx: Ints, c: int, pc: int) -> None:
    """Execute an instruction on scalars."""
    kind, dest = code[pc, col.KIND], col.S + code[pc, col.DEST]
    if kind == col.S_ID:
        for i in range(4):
            ctx[c, dest + i] = ctx[c, col.HEAD + i]
    elif kind == col.S_MOV:
        ctx[c, dest] = code[pc, col.IMM]
    elif kind == col.S_ADD:
        ctx[c, dest] = wrap(ctx[c, col.S + code[pc, col.SOURCE_A]] + code[pc, col.IMM])
    elif kind == col.S_RING:
        ring = col.S + code[pc, col.RING]
        ctx[c, ring] = wrap(ctx[c, ring] + 1)
        if ctx[c, ring] == code[pc, col.IMM]:
            ctx[c, ring] = 0
            ctx[c, ring + 1] ^= 1
    elif kind == col.S_RANGE:
        for i in range(2):
            ctx[c, dest + i] = ranges[ctx[c, col.BLOCK], i]
    elif kind == col.S_TILE:
        # As key_tiles.tile_at: forward, reverse, or tile 0 and then backwards.
        first, count = ctx[c, col.S + code[pc, col.DEST_2]], ctx[c, col.S + code[pc, col.DEST_2] + 1]
        position = ctx[c, col.S + code[pc, col.SOURCE_A]]
        tile = first + count - 1 - position
        if shape[col.KV_ORDER] == 0:
            tile = first + position
        elif shape[col.KV_ORDER] == 2 and first == 0:
            tile = 0 if position == 0 else tile + 1
        ctx[c, dest] = wrap(tile)


@helper
def masks(code: Ints, shape: Ints, ctx: Ints, c: int, pc: int) -> None:
    """Execute an instruction on sub-block masks."""
    kind, dest, a = code[pc, col.KIND], code[pc, col.DEST], ctx[c, col.P + code[pc, col.SOURCE_A]]
    if kind == col.P_CNT:
        ctx[c, col.S + dest] = pop(a)
        return
    b = ctx[c, col.P + max(0, code[pc, col.SOURCE_B])]
    result = a
    if kind == col.P_AND:
        result = a & b
    elif kind == col.P_OR:
        result = a | b
    elif kind == col.P_ANDN:
        result = a & ~b
    elif kind == col.P_CONST:
        result = code[pc, col.IMM] & ctx[c, col.P]
    elif kind == col.P_NEXT or kind == col.P_AFTER:
        order, result = ctx[c, col.O + code[pc, col.ORDER]], 0
        for position in range(shape[col.NK]):
            bit = 1 << (order >> 4 * position & 15)
            if kind == col.P_AFTER:
                result = 0 if b & bit else result | a & bit
            elif result == 0:
                result = a & bit
    ctx[c, col.P + dest] = result


@helper
def begin(
    shape: Ints,
    ctx: Ints,
    board: Ints,
    place: Ints,
    bars: Ints,
    stalls: Ints,
    starts: Ints,
    at_place: int,
    linear: int,
    at: int,
) -> None:
    """Thread block number `linear` starts at a place; its contexts' registers are as new."""
    contexts = shape[col.NQ] + 1
    head, block = linear // shape[col.BLOCKS], linear % shape[col.BLOCKS]
    place[at_place, col.PLACE_BLOCK] = linear
    place[at_place, col.PLACE_LEFT] = contexts
    place[at_place, col.PLACE_SINCE] = at
    bars[at_place] = 0
    identity = 0
    for theta in range(shape[col.NK]):
        identity |= theta << 4 * theta if theta < 15 else -(1 << 60)  # the sign's bit is the last nibble's
    for number in range(contexts):
        c = at_place * contexts + number
        stalls[c, col.S_EMPTY] += at - place[at_place, col.PLACE_FREE]
        warp = max(0, number - 1)
        core = ctx[c, col.CORE]
        ctx[c] = 0
        board[c] = 0
        ctx[c, col.PC] = 0 if number else shape[col.DMA_START]
        ctx[c, col.READY] = at
        ctx[c, col.STATE] = col.RUNNING
        ctx[c, col.HEAD] = head
        ctx[c, col.KV] = head // shape[col.HQ] * shape[col.HKV] + head % shape[col.HQ] // (shape[col.HQ] // shape[col.HKV])
        ctx[c, col.BLOCK] = block
        ctx[c, col.WARP] = warp
        ctx[c, col.PLACE] = at_place
        ctx[c, col.CORE] = core
        lane = linear * shape[col.NQ] + warp
        ctx[c, col.LOG_AT] = starts[lane] if number else 0
        ctx[c, col.LOG_END] = starts[lane + 1] if number else 0
        ctx[c, col.ROWS] = min(shape[col.BQ], max(0, shape[col.LQ] - (block * shape[col.NQ] + warp) * shape[col.BQ]))
        ctx[c, col.P] = (1 << shape[col.NK]) - 1
        for order in range(4):
            ctx[c, col.O + order] = identity
