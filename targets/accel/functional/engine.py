"""
The functional engine: a program's words executed for their values, bit for bit as docs/lampattention.md says.

Heads run in chunks, all warps of a chunk at once, so that memory stays bounded and one interpreted instruction is spread over
many warps. Source: docs/accelerator.md section 4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lampc.errors import InputError
from lampc.numerics.arrays import F32, Ints
from lampc.numerics.statistics import Statistics
from lampc.targets.accel.decision_log import DecisionLog, LogRecorder, join
from lampc.targets.accel.functional.chunk import Chunk
from lampc.targets.accel.functional.contexts import Contexts
from lampc.targets.accel.functional.memory import Describe, Sram, Tensors
from lampc.targets.accel.functional.schedule import Stream, run_chunk
from lampc.targets.accel.functional.sync import Barriers
from lampc.targets.accel.functional.words import words_of
from lampc.targets.accel.instruction import COUNT, Format, Kind
from lampc.targets.accel.key_tiles import structure
from lampc.targets.accel.program import Program

WARPS_AT_ONCE = 288
"""Warps of a chunk: enough to hide the interpreter, few enough to stay in cache."""

Scheduler = Callable[[Chunk, tuple[Stream, Stream], Callable[[int], str]], None]


@dataclass(frozen=True)
class FunctionalResult:
    """
    output      float32 [batch, query heads, queries, value size]
    statistics  of docs/lampattention.md section 6
    log         what the timing engine needs
    counters    `issued` and `skipped` (by skip0): contexts per mnemonic
    """

    output: F32
    statistics: Statistics
    log: DecisionLog
    counters: dict[str, dict[str, int]]


class Engine:
    """Runs one program on operands. Raises InputError for a program whose buffers do not hold what it computes from."""

    def __init__(self, program: Program, *, warps_at_once: int = WARPS_AT_ONCE, scheduler: Scheduler = run_chunk):
        self._program = program
        self._warps_at_once = warps_at_once
        self._scheduler = scheduler
        self._warp_words = words_of(program.decoded["warp"])
        self._dma_words = words_of(program.decoded["dma"])
        self._widths = self._buffer_widths()
        if program.cfg.rounding != "rne":
            raise InputError(f"rounding {program.cfg.rounding} is no rounding of the machine")

    def run(self, tensors: Tensors) -> FunctionalResult:
        """Execute the program on `tensors`, whose output it overwrites."""
        cfg = self._program.cfg
        statistics = Statistics(cfg.hq, cfg.nk)
        parts: list[tuple[Ints, Ints]] = []
        counters: dict[str, dict[str, int]] = {"issued": {}, "skipped": {}}
        with np.errstate(all="ignore"):
            for heads in self._chunks():
                chunk = self._run_heads(heads, tensors, statistics)
                parts.append(chunk.log.parts())
                for name, counts in (("issued", chunk.issued), ("skipped", chunk.skipped)):
                    for mnemonic, count in counts.items():
                        counters[name][mnemonic] = counters[name].get(mnemonic, 0) + count
        self._count_dead_tiles(statistics)
        log = join(parts, self._program.program_hash(), (cfg.heads, cfg.blocks, cfg.nq))
        output = tensors.output.reshape(cfg.batch, cfg.hq, cfg.lq, cfg.dv)
        return FunctionalResult(output, statistics, log, counters)

    def _chunks(self) -> Iterator[Ints]:
        cfg = self._program.cfg
        step = max(1, self._warps_at_once // (cfg.blocks * cfg.nq))
        for first in range(0, cfg.heads, step):
            yield np.arange(first, min(first + step, cfg.heads), dtype=np.int64)

    def _run_heads(self, heads: Ints, tensors: Tensors, statistics: Statistics) -> Chunk:
        program, cfg = self._program, self._program.cfg
        places = len(heads) * cfg.blocks
        place = np.arange(places, dtype=np.int64)
        head, block = heads[place // cfg.blocks], place % cfg.blocks
        warp_place, warp = np.divmod(np.arange(places * cfg.nq, dtype=np.int64), cfg.nq)
        warps = Contexts(cfg, self._warp_words, head[warp_place], block[warp_place], warp, warp_place, warp)
        dma = Contexts(cfg, self._dma_words, head, block, np.zeros_like(place), place, np.full_like(place, cfg.nq))
        barriers = Barriers(places, cfg.nq + 1, self._expected())
        describe = Describe(head, block, cfg.nq, (self._warp_words, self._dma_words))
        slots = [buffer.slots for buffer in program.buffers]
        tables = {Format.E4M3: "lut", Format.E4M11: "sfu", Format.E4M11_SEQ: "sfu"}
        chunk = Chunk(
            config=cfg,
            rules=structure(cfg),
            descriptors={index: descriptor.tensor for index, descriptor in enumerate(program.descriptors)},
            tensors=tensors,
            tables={fmt: program.tables[name] for fmt, name in tables.items() if name in program.tables},
            barriers=barriers,
            sram=Sram(cfg, places, slots, self._widths, barriers, describe),
            statistics=statistics,
            log=LogRecorder(len(warps)),
        )
        self._scheduler(chunk, (Stream(warps), Stream(dma)), self._barrier_name)
        return chunk

    def _expected(self) -> list[int]:
        expected = [1] * COUNT[Kind.BARRIER]
        for barrier in self._program.barriers:
            for slot in range(barrier.slots):
                expected[barrier.first + slot] = barrier.expected
        return expected

    def _barrier_name(self, index: int) -> str:
        for barrier in self._program.barriers:
            if barrier.first <= index < barrier.first + barrier.slots:
                return f"{barrier.name}[{index - barrier.first}]"
        return str(index)

    def _buffer_widths(self) -> dict[int, int]:
        """Columns of the tiles that each buffer takes, by what is loaded into it."""
        program = self._program
        widths: dict[int, int] = {}
        for word in self._dma_words:
            if word.row.name == "dma.ld":
                width = program.descriptors[word["desc"]].shape[3]
                if widths.setdefault(word["buf"], width) != width:
                    raise InputError(f"word {word.index}: buffer {word['buf']} holds tiles of different widths")
        for word in self._warp_words:
            needed = {"mx.qk": program.cfg.d, "mx.pv": program.cfg.dv}.get(word.row.name)
            if needed is not None and widths.get(word["buf"]) != needed:
                raise InputError(f"word {word.index}: {word.mnemonic} needs tiles of {needed} columns in buffer {word['buf']}")
        return widths

    def _count_dead_tiles(self, statistics: Statistics) -> None:
        """(warp, tile) pairs without a live entry, of warps that have a query row."""
        cfg = self._program.cfg
        warps = -(-cfg.lq // cfg.bq)
        heads = np.arange(cfg.hq)
        statistics.add_dead_tiles(heads, cfg.batch * warps * cfg.tiles - statistics.final.sum(axis=1))
