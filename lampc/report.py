"""What a run found, as one JSON object: `report.json`, and the source of the table on the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from lampc import __version__
from lampc.dialects import attn_tiled as tiled
from lampc.dialects import lamp
from lampc.dialects.lamp_types import FloatType
from lampc.driver import Compiled, Request, Result, environment
from lampc.engines import AttentionRecord
from lampc.ir import tensor_shape
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
        "attention": [_attention(compiled.attention, record) for record in calls],
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
    """(node, function) of every attention call, for a module that did not run."""
    calls = [op for op in compiled.host.walk() if isinstance(op, CallOp)]
    return [(node_name(call), call.callee.string_value()) for call in calls]


def _attention(module: ModuleOp, record: AttentionRecord | tuple[str, str]) -> Json:
    node, function = record if isinstance(record, tuple) else (record.node, record.function)
    entry: Json = {"name": node, "function": function, **_described(module, function)}
    if isinstance(record, AttentionRecord):
        entry["statistics"] = record.statistics.to_json()
        entry |= record.extra
    return entry


def _described(module: ModuleOp, name: str) -> Json:
    """Shape and formats of an attention function, read off its IR."""
    for function in module.body.ops:
        if isinstance(function, FuncOp) and function.sym_name.data == name:
            return {"shape": _shape(function), "formats": _formats(function)}
    return {}


def _shape(function: FuncOp) -> Json:
    for lanes in function.walk():
        if isinstance(lanes, tiled.LanesOp):
            loads = [op for op in lanes.walk() if isinstance(op, tiled.LoadQueryOp | tiled.LoadTileOp)]
            query, key, value = (tensor_shape(op.source) for op in loads[:3])
            names = ("batch", "query_heads", "kv_heads", "queries", "keys", "head_size", "value_size")
            return dict(zip(names, (*query[:2], key[1], query[2], key[2], query[3], value[3]), strict=True))
    return {}


def _formats(function: FuncOp) -> Json:
    """Storage type of Q, and the accumulator and exponential formats that occur."""
    found: dict[str, list[str]] = {"operands": [], "accumulators": [], "exponentials": []}
    for op in function.walk():
        role, value = None, None
        match op:
            case tiled.LoadQueryOp():
                role, value = "operands", op.source
            case tiled.ScoresOp() | lamp.AccumulateOp():
                role, value = "accumulators", op.result
            case tiled.OnlineSoftmaxOp():
                role, value = "exponentials", op.scores
            case lamp.ExponentialOp():
                role, value = "exponentials", op.result
            case _:
                continue
        element = SSAValue.get(value, type=TensorType).type.element_type
        name = element.format.name if isinstance(element, FloatType) else str(element)
        if name not in found[role]:
            found[role].append(name)
    return found


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


def _add_cycles(programs: dict[str, dict[str, Json]], extra: Mapping[str, Any]) -> None:
    for name, program in extra.get("programs", {}).items():
        for machine, timing in program["machines"].items():
            total = programs.setdefault(name, {}).setdefault(machine, {"cycles": 0, "bound": 0, "binding": {}})
            total["cycles"] += timing["cycles"]
            total["bound"] += timing["bound"]
            binding = timing["binding"]
            total["binding"][binding] = total["binding"].get(binding, 0) + timing["cycles"]
