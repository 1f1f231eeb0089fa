"""Run a model's attentions on the modelled accelerator: values and decisions first, then cycles of the same words."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from lampc.dialects.onnx_attributes import Array
from lampc.engines import AttentionRecord, result_types
from lampc.targets.accel import object as object_file
from lampc.targets.accel.decision_log import DecisionLog
from lampc.targets.accel.disassembler import disassemble
from lampc.targets.accel.machine import Machine
from lampc.targets.accel.program import Program
from lampc.targets.accel.run import AccelTarget, compile_programs
from lampc.targets.accel.timing.engine import TimingResult, run_timing

Sizes = tuple[int, int]
"""Register file and SRAM of a core in bytes: what a program is made to fit."""


def _sizes(machine: Machine) -> Sizes:
    return machine.core.register_bytes, machine.sram.capacity_bytes


@dataclass
class _Scheme:
    """One way to compute every attention (LAMP, or a baseline), compiled once for each size of core."""

    targets: dict[Sizes, AccelTarget]
    logs: dict[tuple[Sizes, str, str], DecisionLog] = field(default_factory=dict[tuple[Sizes, str, str], DecisionLog])

    @classmethod
    def of(cls, module: ModuleOp, machines: Sequence[Machine]) -> "_Scheme":
        sizes = dict.fromkeys(map(_sizes, machines))
        return cls({size: AccelTarget(module.clone(), register_bytes=size[0], sram_bytes=size[1]) for size in sizes})

    def program(self, function: str, machine: Machine) -> Program:
        return self.targets[_sizes(machine)].compiled(function).program

    def decisions(self, function: str, machine: Machine, operands: list[Array]) -> DecisionLog:
        """
        The log of a run. A program without data-dependent precision decides by masks alone, so that one run serves every
        call with the same masks.
        """
        sizes = _sizes(machine)
        masks = hashlib.sha256()
        for operand in operands[3:]:
            masks.update(np.ascontiguousarray(operand).tobytes())
        key = sizes, function, masks.hexdigest()
        target = self.targets[sizes]
        if target.compiled(function).program.cfg.policy == "lamp":
            return target.run(function, operands)[1].log
        if key not in self.logs:
            self.logs[key] = target.run(function, operands)[1].log
        return self.logs[key]


class AccelEngine:
    """
    The scheme under study and its baselines on every machine.

    module, baselines  level 5: the attention functions as `lamp-accel-allocate` leaves them, by name
    machines           at least one

    Raises CompileError for a program that fits no core.
    """

    def __init__(self, name: str, module: ModuleOp, baselines: Mapping[str, ModuleOp], machines: Sequence[Machine]):
        self._machines = machines
        self._types = result_types(module)
        self._schemes = {name: _Scheme.of(module, machines)}
        self._schemes |= {baseline: _Scheme.of(each, machines) for baseline, each in baselines.items()}
        self._timings: dict[tuple[str, str, str], TimingResult] = {}
        self._main = name
        self.records: list[AttentionRecord] = []

    def __call__(self, function: str, index: int, node: str, operands: list[Array]) -> Array:
        main = self._schemes[self._main]
        first = self._machines[0]
        output, result = main.targets[_sizes(first)].run(function, operands)
        programs: dict[str, dict[str, Any]] = {}
        for name, scheme in self._schemes.items():
            machines: dict[str, Any] = {}
            for machine in self._machines:
                if scheme is main and _sizes(machine) == _sizes(first):
                    log = result.log
                else:
                    log = scheme.decisions(function, machine, operands)
                machines[machine.name] = _timing_json(self._timing(scheme.program(function, machine), log, machine))
            compiled = scheme.targets[_sizes(first)].compiled(function)
            programs[name] = {
                "program_hash": compiled.program.program_hash(),
                "words": {stream: len(words) for stream, words in compiled.program.streams.items()},
                "changes": list(compiled.changes),
                "machines": machines,
            }
        self.records.append(AttentionRecord(node, function, result.statistics, _extra(programs, self._main)))
        return output.astype(self._types[function])

    def _timing(self, program: Program, log: DecisionLog, machine: Machine) -> TimingResult:
        """Cycles of one log; equal logs of one program take equally long."""
        decided = hashlib.sha256(log.values.tobytes() + log.starts.tobytes()).hexdigest()
        key = program.program_hash(), decided, machine.hash
        if key not in self._timings:
            self._timings[key] = run_timing(program, log, machine)
        return self._timings[key]

    def files(self) -> dict[str, bytes]:
        """Assembly and object of every program, by file name."""
        files: dict[str, bytes] = {}
        for name, scheme in self._schemes.items():
            for target in scheme.targets.values():
                for program, compiled in target.programs.items():
                    files |= _files(f"{program.removesuffix('_program')}.{name}", compiled.program)
        return files


def _timing_json(timing: TimingResult) -> dict[str, Any]:
    """Cycles of one attention on one machine, with every bound and counter."""
    return {
        "cycles": timing.cycles,
        "seconds": timing.seconds,
        "bound": timing.bounds.lower[timing.binding],
        "binding": timing.binding,
        "ratio": timing.ratio,
        "bounds": {**timing.bounds.lower, "serial": timing.bounds.serial},
        "counters": asdict(timing.counters),
        "machine_hash": timing.machine_hash,
        "synthetic": timing.synthetic,
    }


def _extra(programs: dict[str, dict[str, Any]], main: str) -> dict[str, object]:
    """What one attention adds to report.json: the scheme's own program and cycles, and those of every baseline."""
    own = programs[main]
    return {
        "program": main,
        **own,
        "cycles": {machine: timing["cycles"] for machine, timing in own["machines"].items()},
        "bounds": {machine: timing["bounds"] for machine, timing in own["machines"].items()},
        "baselines": {name: program for name, program in programs.items() if name != main},
    }


def program_files(module: ModuleOp) -> dict[str, bytes]:
    """Assembly and object of every program of a level-5 module that did not run."""
    files: dict[str, bytes] = {}
    for name, compiled in compile_programs(module).items():
        files |= _files(name.removesuffix("_program"), compiled.program)
    return files


def _files(name: str, program: Program) -> dict[str, bytes]:
    return {f"{name}.s": disassemble(program).encode(), f"{name}.bin": object_file.save(program)}
