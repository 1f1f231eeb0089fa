"""What a run found, as one JSON object: `report.json`, and the source of the table on the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from xdsl.dialects.func import CallOp

from lampc import __version__
from lampc.dialects.onnx import SegmentOp
from lampc.driver import Compiled, Request, Result, environment
from lampc.engines import AttentionRecord
from lampc.numerics.statistics import LIMIT
from lampc.runtime.host import node_name

SCHEMA = 1

Json = dict[str, Any]


def build_report(request: Request, compiled: Compiled, result: Result | None) -> Json:
    """
    The report of a run, or of a compilation alone (`result` None).

    Keys: schema, lampc, model, inputs, target, options, pipeline, attention, totals, rejected, accuracy, machines, timing,
    environment, warnings.
    """
    model = compiled.model
    records = result.engine.records if result is not None and result.engine is not None else []
    calls = records or _compiled_calls(compiled)
    timing = {f"{phase}_seconds": seconds for phase, seconds in compiled.timer.seconds.items()}
    report: Json = {
        "schema": SCHEMA,
        "lampc": __version__,
        "model": {"path": model.file, "sha256": model.sha256},
        "inputs": {
            "source": f"synthetic, seed {request.seed}" if compiled.synthetic else str(request.inputs),
            "synthetic": compiled.synthetic,
            "shapes": {model.original(name): list(array.shape) for name, array in compiled.inputs.items()},
        },
        "target": request.target,
        "options": request.options.to_json(),
        "pipeline": compiled.pipeline,
        "attention": [_attention(compiled.described, record) for record in calls],
        "totals": _totals(records),
        "rejected": compiled.rejected,
        "accuracy": result.accuracy.to_json() if result is not None and result.accuracy is not None else None,
        "machines": {machine.name: machine.manifest() for machine in request.machines},
        "timing": timing,
        "environment": environment(),
        "warnings": list(model.warnings),
    }
    return report


def _compiled_calls(compiled: Compiled) -> list[tuple[str, str]]:
    """(node, function) of every attention call, for a module that did not run, or whose attentions the host runs."""
    calls = [op for op in compiled.host.walk() if isinstance(op, CallOp | SegmentOp)]
    functions = [(node_name(call), call.callee.string_value()) for call in calls]
    return [(node, function) for node, function in functions if function in compiled.described]


def _attention(described: Mapping[str, Json], record: AttentionRecord | tuple[str, str]) -> Json:
    node, function = record if isinstance(record, tuple) else (record.node, record.function)
    entry: Json = {"name": node, "function": function, **described.get(function, {})}
    if isinstance(record, AttentionRecord):
        entry["statistics"] = record.statistics.to_json()
        entry |= record.extra
    return entry


def _totals(records: Iterable[AttentionRecord]) -> Json:
    """Sums over all attentions: the paper's columns, saturation, and cycles by program and machine."""
    columns = [0, 0, 0]
    dead = above_one = 0
    saturated: dict[str, int] = {}
    largest = 0.0
    programs: dict[str, dict[str, Json]] = {}
    for record in records:
        counted: Json = record.statistics.to_json()["total"]
        columns = [a + b for a, b in zip(columns, counted["columns"], strict=True)]
        dead += counted["dead_tiles"]
        above_one += counted["above_one"]
        largest = max(largest, counted["largest_accumulator"])
        for name, count in counted["saturated"].items():
            saturated[name] = saturated.get(name, 0) + count
        _add_cycles(programs, record.extra)
    return {
        "columns": columns,
        "live_tiles": sum(columns),
        "dead_tiles": dead,
        "saturated": saturated,
        "above_one": above_one,
        "largest_accumulator": largest,
        "limit": LIMIT,
        "programs": programs,
    }


def programs_of(attention: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The programs of one attention by name: the scheme under study, then its baselines."""
    return {attention["program"]: attention, **attention["baselines"]} if "program" in attention else {}


def _add_cycles(programs: dict[str, dict[str, Json]], extra: Mapping[str, Any]) -> None:
    for name, program in programs_of(extra).items():
        for machine, timing in program["machines"].items():
            total = programs.setdefault(name, {}).setdefault(machine, {"cycles": 0, "bound": 0, "binding": {}})
            total["cycles"] += timing["cycles"]
            total["bound"] += timing["bound"]
            binding = timing["binding"]
            total["binding"][binding] = total["binding"].get(binding, 0) + timing["cycles"]
