"""The decision log: replayed with control instructions alone it is consumed exactly; saved and read back."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lampc.errors import InputError
from lampc.targets.accel.decision_log import DecisionLog, LogRecorder, join, unpack_live, unpack_order
from lampc.targets.accel.functional.engine import Engine
from lampc.targets.accel.functional.words import Word, words_of
from lampc.targets.accel.key_tiles import key_range
from lampc.targets.accel.program import Program
from tests.unit.accel.programs import program_of, run_with
from tests.unit.numpy_target.compiled import Case, operands


class Replay:
    """One warp, without values: scalars, masks, branches, and the log."""

    def __init__(self, program: Program, head: int, block: int, warp: int, log: list[int]):
        self.program, self.words = program, words_of(program.decoded["warp"])
        self.ids, self.log = (head, block, warp), log
        self.s, self.p, self.o = [0] * 32, [(1 << program.cfg.nk) - 1] + [0] * 15, [[0]] * 4
        self.issued: Counter[str] = Counter()

    def run(self) -> None:
        index = 0
        while True:
            word = self.words[index]
            self.issued[word.mnemonic] += 1
            if word.row.name == "halt":
                return
            index = word["target"] if self.step(word) else index + 1

    def step(self, word: Word) -> bool:
        s, p, name = self.s, self.p, word.row.name
        match name:
            case "br":
                return True
            case "br.z" | "br.nz":
                return (p[word["pa"]] == 0) == (name == "br.z")
            case "br.sz":
                return s[word["sa"]] == 0
            case "loop":
                s[word["sd"]] -= 1
                return s[word["sd"]] > 0
            case "s.mov":
                s[word["sd"]] = word["imm"]
            case "s.add":
                s[word["sd"]] = s[word["sa"]] + word["imm"]
            case "s.ring":
                s[word["ring"]] = (s[word["ring"]] + 1) % word["imm"]
            case "s.range":
                first, count = key_range(self.program.cfg, np.array([self.ids[1]], np.int64))
                s[word["sd"]], s[word["sd"] + 1] = int(first[0]), int(count[0])
            case "p.mov":
                p[word["pd"]] = p[word["pa"]]
            case "p.const":
                p[word["pd"]] = word["imm"] & p[0]
            case "p.and":
                p[word["pd"]] = p[word["pa"]] & p[word["pb"]]
            case "p.or":
                p[word["pd"]] = p[word["pa"]] | p[word["pb"]]
            case "p.andn":
                p[word["pd"]] = p[word["pa"]] & ~p[word["pb"]]
            case "p.next":
                order = [theta for theta in self.o[word["order"]] if p[word["pa"]] >> theta & 1]
                p[word["pd"]] = 1 << order[0] if order else 0
            case "p.after":
                order = self.o[word["order"]]
                last = max((at for at, theta in enumerate(order) if p[word["pb"]] >> theta & 1), default=-1)
                p[word["pd"]] = sum(1 << theta for theta in order[last + 1 :] if p[word["pa"]] >> theta & 1)
            case "v.live":
                p[word["pd"]], p[word["pd2"]] = unpack_live(self.log.pop(0))
            case "v.threat":
                self.o[word["order"]] = unpack_order(self.log.pop(0), self.program.cfg.nk)
            case "v.test" | "knap":
                p[word["pd"]] = self.log.pop(0)
            case _:
                assert not word.row.logged
        return False


@pytest.mark.parametrize("nk", [4, 16])
@pytest.mark.parametrize("precision", [{}, {"policy": "low"}, {"policy": "high"}, {"stage1": False}, None], ids=str)
def test_a_replay_takes_exactly_what_is_there(precision: dict[str, object] | None, nk: int):
    case = Case(
        *operands(6, heads=2, kv_heads=1, queries=29, keys=90),
        attention={"causal": True, "causal_offset": 60, "window": 50},
        tiling={"bq": 4, "nq": 3, "bk": 4, "nk": nk},
        precision=precision,
    )
    program, result = program_of(case), run_with(case, Engine)
    issued: Counter[str] = Counter()
    heads, blocks, warps = result.log.shape
    for head in range(heads):
        for block in range(blocks):
            for warp in range(warps):
                replay = Replay(program, head, block, warp, result.log.lane(head, block, warp).tolist())
                replay.run()
                assert replay.log == []
                issued += replay.issued
    of_warps = {word.mnemonic for word in words_of(program.decoded["warp"])}
    both = {word.mnemonic for word in words_of(program.decoded["dma"])}
    assert {name: count for name, count in issued.items() if name not in both} == {
        name: count for name, count in result.counters["issued"].items() if name in of_warps - both
    }


def test_recorder_orders_by_lane_and_time():
    recorder = LogRecorder(3)
    recorder.add(np.array([0, 2], np.int64), np.array([10, 20], np.int64))
    recorder.add(np.array([2], np.int64), np.array([21], np.int64))
    recorder.add(np.array([0, 2], np.int64), np.array([11, 22], np.int64))
    log = join([recorder.parts(), LogRecorder(3).parts()], "hash", (2, 1, 3))
    assert [log.lane(0, 0, warp).tolist() for warp in range(3)] == [[10, 11], [], [20, 21, 22]]
    assert log.lane(1, 0, 2).tolist() == []


def test_a_log_is_read_back(tmp_path: Path):
    log = DecisionLog(np.array([1, 2, 3], np.int64), np.array([0, 2, 3], np.int64), "abc", (1, 1, 2), synthetic=True)
    log.save(tmp_path / "log.npz")
    read = DecisionLog.load(tmp_path / "log.npz")
    assert np.array_equal(read.values, log.values) and np.array_equal(read.starts, log.starts)
    assert (read.program_hash, read.shape, read.synthetic) == ("abc", (1, 1, 2), True)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY"])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "log.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no decision log"):
        DecisionLog.load(path)


def test_an_archive_of_other_arrays_is_refused(tmp_path: Path):
    path = tmp_path / "log.npz"
    np.savez(path, values=np.zeros(3))
    with pytest.raises(InputError, match="no decision log"):
        DecisionLog.load(path)


@pytest.mark.parametrize(
    ("starts", "told"),
    [([0, 3], "2 lanes need 3 starts"), ([0, 4, 3], "ascend"), ([1, 2, 3], "ascend"), ([0, 1, 2], "ascend")],
)
def test_parts_must_fit(starts: list[int], told: str):
    with pytest.raises(InputError, match=told):
        DecisionLog(np.array([1, 2, 3], np.int64), np.array(starts, np.int64), "", (1, 1, 2))
