"""Where results go: the table, the report, the artefact folder, stages on stdout, and the verdict of --check."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lampc.arguments import Arguments
from lampc.artefacts import MARK, check_folder, new_folder, write_arrays, write_file
from lampc.driver import Compiled, Result
from lampc.errors import InputError, UsageError, printable
from lampc.pipeline import STAGE_AFTER
from lampc.report import build_report, programs_of
from lampc.table import render


def progress(arguments: Arguments) -> Callable[[str], None]:
    """Shows what is going on, on one line of a terminal; nothing elsewhere. An empty text clears the line."""
    shown = sys.stderr.isatty() and not arguments.quiet

    def show(text: str) -> None:
        if shown:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return show


def check_places(arguments: Arguments) -> None:
    """See before the work starts that results can be written. Raises InputError."""
    check_folder(arguments.folder)
    _check_files(arguments)


def _check_files(arguments: Arguments) -> None:
    for text in (arguments.outputs, arguments.report if arguments.report != "-" else None):
        if text is None:
            continue
        path = Path(text)
        parent = path.resolve().parent
        if path.is_dir():
            raise InputError("it is a folder; name a file", file=printable(str(path)))
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise InputError("its folder does not exist or cannot be written to", file=printable(str(path)))


def explain(arguments: Arguments, progress: Callable[[str], None]) -> int:
    """Do what --explain asks for. Raises LampcError."""
    from lampc import explain

    try:
        _check_files(arguments)
        explanation = explain.explain(arguments.request, progress)
    finally:
        progress("")
    text = json.dumps(explanation.to_json(), indent=1) + "\n"
    if arguments.report == "-":
        sys.stdout.write(text)
    elif arguments.report is not None:
        write_file(Path(arguments.report), text.encode())
    if not arguments.quiet:
        (sys.stderr if arguments.report == "-" else sys.stdout).write(explain.render(explanation))
    return 0


def check_emit(arguments: Arguments, compiled: Compiled) -> None:
    """See that the stages of --emit exist. Raises UsageError."""
    names = {stage.name for stage in compiled.stages}
    for name in arguments.emit:
        if name == "asm":
            if arguments.request.target != "accel":
                raise UsageError("--emit asm needs --target accel")
        elif STAGE_AFTER[name] not in names:
            raise UsageError(f"--emit {name}: the pipeline of this run has no {STAGE_AFTER[name]}")


def write(arguments: Arguments, compiled: Compiled, result: Result | None) -> int:
    """
    Write and print everything; the exit code says whether --check passed.

    Raises InputError if a place does not take its file.
    """
    report = build_report(arguments.request, compiled, result)
    verdict = _verdict(arguments, result)
    if verdict is not None:
        report["check"] = verdict
    programs = _programs(compiled, result)
    text = json.dumps(report, indent=1, allow_nan=True) + "\n"
    with new_folder(arguments.folder) as folder:
        _write_stages(folder / "ir", compiled)
        for name, content in programs.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        (folder / MARK).write_text(text)
    if arguments.outputs is not None and result is not None and result.outputs is not None:
        write_arrays(arguments.outputs, {compiled.model.original(k): v for k, v in result.outputs.items()})
    if arguments.report == "-":
        sys.stdout.write(text)
    elif arguments.report is not None:
        write_file(Path(arguments.report), text.encode())
    for name in arguments.emit:
        sys.stdout.write(_emitted(name, compiled, programs))
    if not arguments.quiet:
        table = sys.stderr if arguments.report == "-" or arguments.emit else sys.stdout
        table.write(render(report, arguments.folder))
        if arguments.verbose:
            table.write(_details(report))
        if verdict is not None and verdict["passed"]:
            table.write(f"check passed: {verdict['rule']}\n")
    if verdict is not None and not verdict["passed"]:
        message = f"check failed: {verdict['why']}; {verdict['rule']}"
        print(f"lampc: {compiled.model.file}: {message}", file=sys.stderr)
        return 1
    return 0


def _write_stages(folder: Path, compiled: Compiled) -> None:
    folder.mkdir()
    for number, stage in enumerate(compiled.stages):
        (folder / f"{number:02}-{stage.name}.mlir").write_text(stage.text)


def _programs(compiled: Compiled, result: Result | None) -> dict[str, bytes]:
    """Files of the accelerator's programs: assembly and object, by name below the artefact folder."""
    files: Any = getattr(result.engine if result is not None else None, "files", None)
    if files is not None:
        return files()
    if any(stage.name == STAGE_AFTER["accel"] for stage in compiled.stages):
        from lampc.accel_engine import program_files

        return program_files(compiled.attention)
    return {}


def _emitted(name: str, compiled: Compiled, programs: dict[str, bytes]) -> str:
    if name == "asm":
        return "".join(content.decode() for path, content in programs.items() if path.endswith(".s"))
    return next(stage.text for stage in reversed(compiled.stages) if stage.name == STAGE_AFTER[name])


def _verdict(arguments: Arguments, result: Result | None) -> dict[str, Any] | None:
    """What --check says; None without it. Policies that round only fail beyond --max-error."""
    if not arguments.check or result is None or result.accuracy is None or result.outputs is None:
        return None
    options = arguments.request.options
    differences = result.accuracy.differences
    if arguments.max_error is not None:
        limit = arguments.max_error
        bad = [d for d in differences if not replace(d).within(limit, 0.0)]
        rule = f"largest relative error allowed {limit:g}"
    elif options.policy in ("fp32", "host"):
        outputs, rtol = result.outputs, arguments.rtol

        def allowed(name: str) -> float:
            half = outputs[name].dtype.itemsize == 2
            return rtol if rtol is not None else (5e-3 if half else 1e-4)

        bad = [d for d in differences if not d.within(allowed(d.output), arguments.atol)]
        rule = f"every output within {rtol if rtol is not None else '1e-4 (FP16 5e-3)'} of its largest value"
    else:
        bad, rule = [], f"policy {options.policy} reports its error; --max-error sets a limit"
    worst = max(bad, key=lambda d: d.max_rel if np.isfinite(d.max_rel) else np.inf, default=None)
    why = "" if worst is None else f"output '{printable(worst.output)}' differs by {worst.max_rel:.2e} of its largest value"
    if worst is not None and worst.mismatched:
        why += f" and in {worst.mismatched} entries NaN or infinite in one only"
    return {"passed": not bad, "rule": rule, "why": why}


def _details(report: dict[str, Any]) -> str:
    lines = [f"{phase.removesuffix('_seconds'):<12}{seconds:.2f} s" for phase, seconds in report["timing"].items()]
    lines.append(f"{'memory':<12}{report['environment']['peak_memory_bytes'] / 2**20:.0f} MiB at most")
    lines += [f"{'machine':<12}{name} {machine['hash'][:16]}" for name, machine in report["machines"].items()]
    seen: set[str] = set()
    for attention in report["attention"]:
        for name, program in programs_of(attention).items():
            if program["program_hash"] not in seen:
                seen.add(program["program_hash"])
                lines.append(f"{'program':<12}{attention['function']} {name} {program['program_hash'][:16]}")
    return "\n".join(lines) + "\n"
