"""
`make fuzz`: compile mutated models for a while; no crash, hang, traceback or hunger.

Each batch of models has a process of its own, and a new one follows where it dies or hangs. A fault prints the seed and where
the model is: `python -m tests.fuzz --seed N --count 1` shows it again.
"""

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

SECONDS, PATIENCE, MEGABYTES = 2.0, 30.0, 500
"""Processor time and memory of one model (docs/onnx.md section 6), and real time after which it hangs."""
BATCH = 200


def run(first: int, count: int, until: float) -> Iterator[dict[str, Any]]:
    """Records of the worker, one of its own for a model that kills or hangs it; stops at the time `until`."""
    seed = first
    while seed < first + count and time.monotonic() < until:
        amount = min(BATCH, first + count - seed)
        command = [sys.executable, "-m", "tests.fuzz.worker", str(seed), str(amount)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
            lines: queue.Queue[str] = queue.Queue()
            assert worker.stdout is not None
            threading.Thread(target=_pump, args=(worker.stdout, lines), daemon=True).start()
            end = seed + amount
            while seed < end and time.monotonic() < until:
                try:
                    record = json.loads(lines.get(timeout=PATIENCE))
                except queue.Empty:
                    died = worker.poll()
                    fault = f"hangs for {PATIENCE:.0f} s" if died is None else f"the process died with code {died}"
                    worker.kill()
                    yield {"seed": seed, "model": "?", "seconds": PATIENCE, "bytes": 0, "fault": fault}
                    seed += 1
                    break
                yield record
                seed += 1
            worker.kill()


def _pump(lines: Iterable[str], into: "queue.Queue[str]") -> None:
    for line in lines:
        into.put(line)


def fault_of(record: dict[str, Any]) -> str:
    """What is wrong with a record; empty if nothing is."""
    if record["fault"]:
        return str(record["fault"])
    if record["seconds"] > SECONDS:
        return f"takes {record['seconds']:.1f} s"
    return f"takes {record['bytes'] / 1e6:.0f} MB" if record["bytes"] > MEGABYTES * 10**6 else ""


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 if there was a fault."""
    parser = argparse.ArgumentParser("tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="stop after this long; default 120")
    parser.add_argument("--seed", type=int, default=None, help="of the first model; default: the time")
    parser.add_argument("--count", type=int, default=10**9, help="stop after so many models")
    arguments = parser.parse_args(words)
    first = int(time.time()) * 1000 if arguments.seed is None else arguments.seed
    print(f"first seed {first}", flush=True)
    done = 0
    folder = Path(tempfile.mkdtemp(prefix="lampc-fuzz-"))
    faults: list[int] = []
    for record in run(first, arguments.count, time.monotonic() + arguments.seconds):
        done += 1
        if fault := fault_of(record):
            from tests.fuzz.worker import case

            path = folder / f"{record['seed']}.onnx"
            path.write_bytes(case(record["seed"])[1])
            faults.append(record["seed"])
            print(f"seed {record['seed']} ({record['model']}), {path}: {fault}", flush=True)
    print(f"{done} models, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
