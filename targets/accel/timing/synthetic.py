"""
Decision logs made up from rates: what would a program cost if its data recomputed this often?

Source: docs/accelerator.md section 4. Every result of such a log says that it is synthetic.
"""

from dataclasses import dataclass

import numpy as np

from lampc.errors import UsageError
from lampc.numerics.arrays import Ints
from lampc.numerics.masks import live_entries
from lampc.targets.accel.config import Config
from lampc.targets.accel.decision_log import DecisionLog, pack_live, pack_order
from lampc.targets.accel.key_tiles import structure
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.timing import columns as col
from lampc.targets.accel.timing.control import begin, branch, masks, scalar
from lampc.targets.accel.timing.prepare import prepare


@dataclass(frozen=True)
class Rates:
    """Chance of a live sub-block to be recomputed in stage 1, and of one that stage 1 left to be so in stage 2."""

    stage1: float
    stage2: float

    def __post_init__(self) -> None:
        for name in ("stage1", "stage2"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"synthetic rate {name} must lie in 0..1, got {getattr(self, name)}")


def synthetic_log(program: Program, machine: Machine, rates: Rates, seed: int) -> DecisionLog:
    """
    A log for `program` on any machine (`machine` is one that it fits), with liveness by the structured rules, a random order
    of threat, and sub-blocks recomputed independently of each other.

    Raises UsageError for a rate outside 0..1, else as `prepare`.
    """
    cfg = program.cfg
    walker = _Walker(program, machine, rates, np.random.default_rng(seed))
    lanes = [walker.lane(linear, warp) for linear in range(cfg.heads * cfg.blocks) for warp in range(cfg.nq)]
    counts = np.array([0, *map(len, lanes)], np.int64)
    values = np.concatenate([np.zeros(0, np.int64), *(np.array(lane, np.int64) for lane in lanes)])
    return DecisionLog(values, np.cumsum(counts), program.program_hash(), (cfg.heads, cfg.blocks, cfg.nq), synthetic=True)


class _Walker:
    """Executes the control flow of one warp at a time and answers its logged instructions."""

    def __init__(self, program: Program, machine: Machine, rates: Rates, random: np.random.Generator):
        prepared = prepare(program, machine)
        self._program, self._code, self._rates, self._random = program, prepared.code, rates, random
        contexts = program.cfg.nq + 1
        self._ctx: Ints = np.zeros((contexts, col.CTX_COLUMNS), np.int64)
        self._starts: Ints = np.zeros(program.cfg.heads * program.cfg.blocks * program.cfg.nq + 1, np.int64)

    def lane(self, linear: int, warp: int) -> list[int]:
        """Logged values of a warp of thread block number `linear`."""
        code, ctx, c = self._code, self._ctx, warp + 1
        scratch: Ints = np.zeros((len(ctx), 1, 2), np.int64)
        place: Ints = np.zeros((1, col.PLACE_COLUMNS), np.int64)
        bars: Ints = np.zeros((1, 1, 1), np.int64)
        begin(code.shape, ctx, scratch, place, bars, np.zeros((len(ctx), col.STALLS), np.int64), self._starts, 0, linear, 0)
        values: list[int] = []
        pc, unsafe = 0, 0
        while (kind := int(code.code[pc, col.KIND])) != col.HALT:
            taken = False
            if col.BR <= kind <= col.LOOP:
                taken = branch(code.code, ctx, c, pc)
            elif col.S_ID <= kind <= col.S_TILE:
                scalar(code.code, code.shape, code.ranges, ctx, c, pc)
            elif col.P_MOV <= kind <= col.P_AFTER:
                masks(code.code, code.shape, ctx, c, pc)
            elif kind == col.LOG_LIVE:
                unsafe = self._draw(self._rates.stage1)
                live, partial = self._live(c, int(ctx[c, col.S + code.code[pc, col.TILE]]))
                ctx[c, col.P + code.code[pc, col.DEST]], ctx[c, col.P + code.code[pc, col.DEST_2]] = live, partial
                values.append(int(pack_live(np.array([live]), np.array([partial]))[0]))
            elif kind == col.LOG_ORDER:
                order = self._random.permutation(self._program.cfg.nk).astype(np.int8)
                values.append(int(pack_order(order[None])[0]))
                ctx[c, col.O + code.code[pc, col.ORDER]] = values[-1]
            elif kind == col.LOG_MASK:
                values.append(self._mask(c, pc, unsafe))
                ctx[c, col.P + code.code[pc, col.DEST]] = values[-1]
            pc = int(code.code[pc, col.TARGET]) if taken else pc + 1
        return values

    def _draw(self, rate: float) -> int:
        return sum(int(hit) << theta for theta, hit in enumerate(self._random.random(self._program.cfg.nk) < rate))

    def _mask(self, c: int, pc: int, unsafe: int) -> int:
        """Unsafe sub-blocks of v.test's mask, or those of knap's that stay low."""
        row = self._code.code[pc]
        if self._program.decoded["warp"].row(pc).name == "knap":
            return int(self._ctx[c, col.P + row[col.SOURCE_A]]) & ~self._draw(self._rates.stage2)
        return int(self._ctx[c, col.P + row[col.PREDICATE]]) & unsafe

    def _live(self, c: int, tile: int) -> tuple[int, int]:
        """Sub-blocks with a live entry, and those with live and dead ones."""
        cfg: Config = self._program.cfg
        width = cfg.nk * cfg.bk
        batch, head = divmod(int(self._ctx[c, col.HEAD]), cfg.hq)
        first = (int(self._ctx[c, col.BLOCK]) * cfg.nq + int(self._ctx[c, col.WARP])) * cfg.bq
        where = [np.array([value], np.int64) for value in (batch, head, first, tile * width)]
        entries = live_entries(structure(cfg), where[0], where[1], where[2], where[3], cfg.bq, width)[0]
        blocks = entries.reshape(cfg.nk, -1)
        some, whole = blocks.any(axis=1), blocks.all(axis=1)
        return _bits(some), _bits(some & ~whole)


def _bits(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    return sum(int(flag) << theta for theta, flag in enumerate(flags))
