"""One run of `lampc`: open, import, compile, run, compare, report."""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr

from lampc import __version__
from lampc.accuracy import Accuracy, measure
from lampc.describe import describe, kept
from lampc.dialects.onnx_attributes import Array
from lampc.engines import AttentionEngine, NumpyEngine
from lampc.errors import InputError, LampcError
from lampc.frontend.dims import Binding, bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.inputs import filled_inputs, load_inputs, synthetic_inputs
from lampc.frontend.limits import Limits
from lampc.frontend.model import Model, load_model
from lampc.memory import check_memory, physical_memory
from lampc.numerics import threads
from lampc.options import BASELINES, Options, Target, scheme_name
from lampc.pipeline import Stage, StageWriter, attention_module, run_pipeline
from lampc.runtime.host import HostRuntime
from lampc.runtime.session import share_pool
from lampc.targets.accel.machine import Machine

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """Everything a user asks for on the command line, checked as far as that goes without the model."""

    model: Path
    target: Target
    options: Options = field(default_factory=Options)
    pipeline: str | None = None
    inputs: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    values: Mapping[str, bool | int | float] = field(default_factory=dict[str, bool | int | float])
    seed: int = 0
    threads: int | None = None
    external_data_dir: Path | None = None
    limits: Limits = field(default_factory=Limits)
    machines: tuple[Machine, ...] = ()
    baselines: tuple[str, ...] = ()
    compile_only: bool = False
    compare: bool = True
    perplexity: bool = False


@dataclass
class Timer:
    """Seconds of each phase."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        """Charge the time since the last call to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


@dataclass
class Compiled:
    """
    A model compiled for a target: the IR of every stage, and what was found on the way.

    host       level 2: segments and calls of attentions
    level2     the attention functions alone, before they are tiled
    attention  the same as the target runs them
    described  shape and formats of each
    """

    model: Model
    binding: Binding
    inputs: Mapping[str, Array]
    synthetic: bool
    host: ModuleOp
    level2: ModuleOp
    attention: ModuleOp
    described: dict[str, dict[str, Any]]
    stages: list[Stage]
    rejected: list[dict[str, str]]
    pipeline: str
    timer: Timer


@dataclass
class Result:
    """What a run gave."""

    compiled: Compiled
    engine: AttentionEngine | None
    outputs: dict[str, Array] | None
    accuracy: Accuracy | None


@dataclass(frozen=True)
class Opened:
    """
    A model with its dimensions bound.

    given      arrays from --inputs and --value
    synthetic  there was no --inputs
    """

    model: Model
    binding: Binding
    given: dict[str, Array]
    synthetic: bool


def open_model(request: Request) -> Opened:
    """Read the model and what the request says of its inputs. Raises LampcError."""
    model = load_model(request.model, external_data_dir=request.external_data_dir, limits=request.limits)
    arrays = _file_inputs(request, model)
    binding = bind_dims(model, request.dims, request.shapes, arrays)
    given = {**(arrays or {}), **filled_inputs(model, binding.shapes, request.values)}
    return Opened(model, binding, given, arrays is None)


def compile_model(request: Request, progress: Progress) -> Compiled:
    """
    Open the model, bind its dimensions, import it and run the pipeline.

    Raises LampcError.
    """
    timer = Timer()
    progress("reading the model")
    opened = open_model(request)
    model, binding, given, synthetic = opened.model, opened.binding, opened.given, opened.synthetic
    inputs = {**synthetic_inputs(model, binding.shapes, request.seed), **given} if synthetic else given
    timer.lap("open")
    progress("importing the graph")
    try:
        module = import_model(model, binding, given)
        check_memory(module, physical_memory())
        writer = StageWriter()
        stages = [Stage("import", writer.text(module))]
        timer.lap("import")
        progress("compiling")
        pipeline = request.pipeline or request.options.pipeline(request.target)
        # Attentions and the host's part go separate ways: what comes later does not grow with the rest of the model.
        raising, marker, rest = pipeline.partition("lamp-outline-host,")
        stages += run_pipeline(module, raising + marker.rstrip(","), writer)
        rejected = rejected_of(module)
        # Attention that no better matching would raise: said once for each body that holds it.
        model.warnings += dict.fromkeys(each["reason"] for each in rejected if each["reason"].startswith("E-UNSUPPORTED"))
        level2 = attention_module(module)
        attention = level2.clone()
        scheme, marker, lowering = rest.partition("lamp-convert-to-accel")
        stages += run_pipeline(attention, scheme.rstrip(","), writer)
        described = describe(attention) | kept(module)
        stages += run_pipeline(attention, marker + lowering, writer)
    except LampcError as error:
        error.file = error.file or model.file
        raise
    timer.lap("compile")
    return Compiled(model, binding, inputs, synthetic, module, level2, attention, described, stages, rejected, pipeline, timer)


def _file_inputs(request: Request, model: Model) -> dict[str, Array] | None:
    if request.inputs is None:
        return None
    try:
        return load_inputs(request.inputs, model, request.values.keys())
    except InputError as error:
        error.file = error.file or str(request.inputs)
        raise


def rejected_of(module: ModuleOp) -> list[dict[str, str]]:
    """The candidates that were not raised: node, nearest form, reason."""
    listed = module.attributes.get("attn.rejected")
    if not isinstance(listed, ArrayAttr):
        return []
    records: list[dict[str, str]] = []
    for entry in listed.data:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(entry, DictionaryAttr):
            records.append({key: value.data for key, value in entry.data.items() if isinstance(value, StringAttr)})
    return records


def run_model(request: Request, compiled: Compiled, progress: Progress) -> Result:
    """
    Run a compiled model on its inputs, host segments in onnxruntime and attentions on the target.

    Raises LampcError.
    """
    try:
        return _run(request, compiled, progress)
    except LampcError as error:
        error.file = error.file or compiled.model.file
        raise


def _run(request: Request, compiled: Compiled, progress: Progress) -> Result:
    timer = compiled.timer
    threads.set_threads(request.threads)
    engine = _engine(request, compiled)
    if request.options.policy == "host":  # nothing but onnxruntime runs
        share_pool(request.threads)
    runtime = HostRuntime(compiled.model, compiled.host, threads=request.threads)
    timer.lap("sessions")
    count = len(runtime.calls)

    def attention(function: str, index: int, node: str, operands: list[Array]) -> Array:
        progress(f"attention {index + 1} of {count}")
        return engine(function, index, node, operands)

    progress("running")
    outputs = runtime.run(compiled.inputs, attention)
    del runtime
    timer.lap("run")
    accuracy = None
    if request.compare:
        progress("running onnxruntime for comparison")
        accuracy = measure(
            compiled.model, compiled.inputs, outputs, threads=request.threads, wants_perplexity=request.perplexity
        )
        timer.lap("compare")
    return Result(compiled, engine, outputs, accuracy)


def _engine(request: Request, compiled: Compiled) -> AttentionEngine:
    if request.target == "numpy":
        return NumpyEngine(compiled.attention)
    from lampc.accel_engine import AccelEngine

    return AccelEngine(scheme_name(request.options), compiled.attention, _baseline_modules(request, compiled), request.machines)


def _baseline_modules(request: Request, compiled: Compiled) -> dict[str, ModuleOp]:
    """The attention functions compiled for each baseline, from the same level 2."""
    modules: dict[str, ModuleOp] = {}
    for name in request.baselines:
        changes: dict[str, Any] = BASELINES[name]
        module = compiled.level2.clone()
        run_pipeline(module, replace(request.options, **changes).attention_pipeline("accel"))
        modules[name] = module
    return modules


def environment() -> dict[str, object]:
    """Versions and peak memory, for the report."""
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "lampc": __version__,
        "onnxruntime": onnxruntime.__version__,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
    }
