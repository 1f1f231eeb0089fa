"""The command line of `lampc`: its options, their help, and what they say."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from lampc import __version__
from lampc.errors import UsageError
from lampc.frontend.limits import Limits, budgets
from lampc.numerics.formats import FP32_LARGEST
from lampc.options import BASELINES, POLICIES, PRESETS, Options

MAX_WARPS = 64
EMIT = ("onnx", "attn", "tiled", "lamp", "accel", "asm")
DESCRIPTION = """
Compile the attentions of an ONNX model to LampAttention (look-ahead mixed precision, arXiv 2609.39361), run the whole model
with them, and say what it does to the outputs and what it costs on a modelled accelerator.
"""
EPILOG = """
examples:
  lampc model.onnx --target numpy --inputs inputs.npz      accuracy and recompute statistics
  lampc model.onnx --target accel --inputs inputs.npz      the same, and cycles against FlashAttention-2
  lampc model.onnx --target numpy --dim batch=1 --dim seq=512 --policy fp32 --check
  lampc model.onnx --explain                               which attentions it has, what is not recognised and why
  lampc model.onnx --target accel --emit lamp              print the IR in which every format is explicit
  lampc model.onnx --target accel --report - -q            JSON on stdout

exit codes: 0 done; 1 the input is at fault, or --check failed; 2 wrong usage; 70 an internal error
"""


@dataclass(frozen=True)
class Arguments:
    """A parsed command line: the request, and where results go."""

    request: Any
    folder: Path
    outputs: Path | None
    report: str | None
    emit: tuple[str, ...]
    check: bool
    rtol: float | None
    atol: float
    max_error: float | None
    print_pipeline: bool
    explain: bool
    isolate: bool
    memory_limit: float
    time_limit: float
    quiet: bool
    verbose: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _number(text: str) -> float:
    """A float, a fraction such as 1/256, or a power such as 2^-8."""
    try:
        if "^" in text:
            base, _, exponent = text.partition("^")
            return float(base) ** int(exponent)
        if "/" in text:
            above, _, below = text.partition("/")
            return float(above) / float(below)
        return float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"'{text}' is no number; write 0.004, 1/256 or 2^-8") from None


def _count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {least} to {most}")
        return int(text)

    return parse


def _list(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(allowed)}")
        return names

    return parse


def build_parser() -> argparse.ArgumentParser:
    """The parser of `lampc`; its help is the reference of the options."""
    parser = _Parser("lampc", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("--target", choices=("numpy", "accel"), help="numpy interprets; accel runs and times a program")
    parser.add_argument("--version", action="version", version=f"lampc {__version__}")
    _add_data(parser.add_argument_group("data"))
    _add_scheme(parser.add_argument_group("scheme (docs/lampattention.md section 5)"))
    _add_machine(parser.add_argument_group("machine (--target accel)"))
    _add_results(parser.add_argument_group("results"))
    return parser


def _add_data(group: Any) -> None:
    group.add_argument(
        "--inputs", type=Path, metavar="F.npz", help="run on these arrays, keys = graph inputs; default: synthetic"
    )
    group.add_argument(
        "--seed", type=_count(0, 2**64 - 1), default=0, metavar="N", help="of synthetic inputs and stochastic rounding"
    )
    group.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="bind a symbolic dimension (repeatable)")
    group.add_argument("--shape", action="append", default=[], metavar="INPUT=1x512", help="give an input's shape (repeatable)")
    group.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="INPUT=X",
        help="fill an input with one value, such as use_cache_branch=true; the branch that it chooses is compiled (repeatable)",
    )
    group.add_argument("--external-data-dir", type=Path, metavar="DIR", help="also look for external weights here")
    group.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="BUDGET=N",
        help="what a model may ask for before it is refused: "
        + ", ".join(f"{name} ({number})" for name, number in budgets().items())
        + " (repeatable; docs/onnx.md section 6)",
    )
    group.add_argument(
        "--isolate",
        action="store_true",
        help="for models nobody vouches for: do it all in a process of its own, within --memory-limit and --time-limit",
    )
    group.add_argument(
        "--memory-limit", type=_number, default=8.0, metavar="GIB", help="of --isolate: private memory; default 8"
    )
    group.add_argument("--time-limit", type=_number, default=600.0, metavar="S", help="of --isolate: real time; default 600")
    group.add_argument("--outputs", type=Path, metavar="F.npz", help="write the graph outputs")
    group.add_argument(
        "--threads", type=_count(1, 1024), metavar="N", help="for onnxruntime and the kernels; default: all cores"
    )


def _add_scheme(group: Any) -> None:
    default = Options()
    group.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        default="hw",
        help="hw: the machine's formats; paper-sim: FP32 range, rounded mantissas",
    )
    group.add_argument(
        "--policy",
        choices=POLICIES,
        default="lamp",
        help="lamp, low (8 bit only), high (16 bit only), fp32 (FlashAttention-2), "
        "host (the model's own attentions in onnxruntime, cut out the same way)",
    )
    group.add_argument(
        "--delta", type=_number, default=default.delta, metavar="X", help="safety margin of stage 1; default 2^-8"
    )
    group.add_argument("--tau", type=_number, default=default.tau, metavar="X", help="threshold of stage 2; default 0.5")
    group.add_argument("--stage1", choices=("on", "off"), default="on", help="look at the maxima first")
    group.add_argument("--stage2", choices=("on", "off"), default="on", help="look at the exponentials after")
    group.add_argument(
        "--tie", choices=("slack", "first"), default="slack", help="which of several largest sets stage 2 keeps low"
    )
    group.add_argument(
        "--operands", choices=("model", "f32", "bf16", "f16", "e4m3"), default="model", help="storage type of Q, K and V"
    )
    group.add_argument("--bq", type=_count(1, 64), default=default.bq, metavar="N", help="query rows of a warp; default 16")
    group.add_argument("--nq", type=_count(1, MAX_WARPS), metavar="N", help="warps of a thread block; default 128/bq")
    group.add_argument("--bk", type=_count(1, 256), default=default.bk, metavar="N", help="keys of a sub-block; default 16")
    group.add_argument("--nk", type=_count(1, 16), default=default.nk, metavar="N", help="sub-blocks of a key tile; default 4")
    group.add_argument(
        "--kv-order", choices=("forward", "reverse", "sink-first"), default="forward", help="order of the key tiles"
    )
    group.add_argument("--layout", choices=("safe", "compact"), default="safe", help="register layout of the score tiles")
    group.add_argument("--range", choices=("hw", "unbounded"), help="exponent range; default by preset")
    group.add_argument("--shift", choices=("truncate", "exact"), help="running maximum of low exponentials; default by preset")
    group.add_argument("--exp-above-one", choices=("clamp", "keep"), help="logits above the maximum; default by preset")
    group.add_argument("--rounding", choices=("rne", "rtz", "stochastic"), default="rne", help="of accumulation, cap and bias")
    group.add_argument(
        "--overflow",
        choices=("saturate", "nan"),
        default="saturate",
        help="what accumulation, cap and bias make of a value beyond the largest finite one",
    )
    group.add_argument(
        "--accumulate-block", type=_count(1, 4096), default=1, metavar="N", help="products summed before each rounding"
    )
    group.add_argument(
        "--mask-threshold",
        type=_number,
        default=default.mask_threshold,
        metavar="X",
        help="a mask entry this low means masked; default -1e4",
    )


def _add_machine(group: Any) -> None:
    group.add_argument(
        "--machine", action="append", metavar="NAME|F.toml", help="machine description (repeatable); default packed and flat"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=N", help="override a value of every machine (repeatable)"
    )
    group.add_argument(
        "--baseline",
        type=_list(tuple(BASELINES)),
        default=("fa2-fp32",),
        metavar="LIST",
        help=f"programs to compare with, of {', '.join(BASELINES)}; default fa2-fp32",
    )


def _add_results(group: Any) -> None:
    group.add_argument(
        "-o", type=Path, metavar="DIR", dest="folder", help="artefacts: IR, assembly, report; default ./MODEL.lampc"
    )
    group.add_argument("--report", metavar="F.json", help="write the report here too; - for stdout")
    group.add_argument(
        "--emit", type=_list(EMIT), default=(), metavar="LIST", help=f"print these stages on stdout, of {', '.join(EMIT)}"
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="exit 1 unless the outputs agree with onnxruntime (policies fp32 and host), or see --max-error",
    )
    group.add_argument(
        "--rtol",
        type=_number,
        metavar="X",
        help="of --check, relative to an output's largest value; default 1e-4, FP16 outputs 5e-3",
    )
    group.add_argument("--atol", type=_number, default=0.0, metavar="X", help="of --check, absolute; default 0")
    group.add_argument(
        "--max-error", type=_number, metavar="X", help="--check fails beyond this relative error, for any policy"
    )
    group.add_argument("--no-compare", action="store_true", help="do not run onnxruntime on the unmodified model")
    group.add_argument("--perplexity", action="store_true", help="next-token perplexity of the logits on the token ids")
    group.add_argument(
        "--explain",
        action="store_true",
        help="only list what looks like attention: raised as what, or where matching stopped and why (needs no --target)",
    )
    group.add_argument("--compile-only", action="store_true", help="write the IR and stop")
    group.add_argument("--pipeline", metavar="STR", help="run this pass pipeline instead")
    group.add_argument("--print-pipeline", action="store_true", help="print the pass pipeline and stop")
    group.add_argument("--traceback", action="store_true", help="show Python's traceback of an error")
    group.add_argument("-q", "--quiet", action="store_true", help="no table, no progress")
    group.add_argument("-v", "--verbose", action="store_true", help="also print times, peak memory and program hashes")


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Read a command line. Raises UsageError, and SystemExit(0) after --help or --version."""
    parsed = build_parser().parse_args(words)
    if parsed.target is None:
        if not parsed.explain:
            raise UsageError("the following arguments are required: --target")
        parsed.target = "numpy"
    options = _options(parsed)
    if parsed.explain and (parsed.emit or parsed.check or parsed.outputs):
        raise UsageError(
            "--explain compiles and runs nothing, so --emit, --check and --outputs have nothing to do; leave them out"
        )
    for name, value in (("--memory-limit", parsed.memory_limit), ("--time-limit", parsed.time_limit)):
        if not 0 < value < math.inf:
            raise UsageError(f"{name} {value}: give a number above 0")
    if parsed.check and parsed.no_compare:
        raise UsageError("--check needs the comparison that --no-compare leaves out")
    if options.policy == "host" and parsed.target != "numpy":
        raise UsageError("--policy host needs --target numpy: the host runs the attentions, so there is no program to time")
    if parsed.report == "-" and parsed.emit:
        raise UsageError("--report - and --emit both print on stdout; choose one")
    return Arguments(
        request=_request(parsed, options),
        folder=parsed.folder or default_folder(parsed.model),
        outputs=parsed.outputs,
        report=parsed.report,
        emit=parsed.emit,
        check=parsed.check,
        rtol=parsed.rtol,
        atol=parsed.atol,
        max_error=parsed.max_error,
        print_pipeline=parsed.print_pipeline,
        explain=parsed.explain,
        isolate=parsed.isolate,
        memory_limit=parsed.memory_limit,
        time_limit=parsed.time_limit,
        quiet=parsed.quiet,
        verbose=parsed.verbose,
    )


def default_folder(model: Path) -> Path:
    """Where artefacts go without -o: MODEL.lampc in the current folder."""
    return Path(f"{model.name.removesuffix('.onnx')}.lampc")


def _options(parsed: argparse.Namespace) -> Options:
    values = {field.name: getattr(parsed, field.name) for field in fields(Options)}
    for name, preset in PRESETS[parsed.preset].items():
        values[name] = values[name] or preset
    values["stage1"], values["stage2"] = parsed.stage1 == "on", parsed.stage2 == "on"
    values["nq"] = parsed.nq or min(MAX_WARPS, max(1, 128 // parsed.bq))
    if not 0 <= parsed.delta <= FP32_LARGEST:
        raise UsageError(f"--delta {parsed.delta}: the margin of stage 1 is finite in FP32 and not negative")
    if not 0 <= parsed.tau <= FP32_LARGEST:
        raise UsageError(
            f"--tau {parsed.tau}: the threshold of stage 2 is finite in FP32 and not negative; 1 turns stage 2 off"
        )
    if not abs(parsed.mask_threshold) <= FP32_LARGEST:
        raise UsageError(f"--mask-threshold {parsed.mask_threshold}: give a number that is finite in FP32")
    if values["exp_above_one"] == "keep" and values["range"] == "hw":
        raise UsageError("--exp-above-one keep needs --range unbounded: the hw shift format is unsigned")
    return Options(**values)


def _request(parsed: argparse.Namespace, options: Options) -> Any:
    from lampc.driver import Request
    from lampc.frontend.dims import parse_dim, parse_shape
    from lampc.frontend.inputs import parse_value
    from lampc.targets.accel.machine import load_machine

    machines = ()
    if parsed.target == "accel":
        machines = tuple(load_machine(name, parsed.set) for name in parsed.machine or ("packed", "flat"))
        names = [machine.name for machine in machines]
        if len(set(names)) != len(names):
            raise UsageError(f"--machine: two machines are called {max(names, key=names.count)}; rename one file")
    elif parsed.machine or parsed.set:
        raise UsageError("--machine and --set belong to --target accel")
    baselines = tuple(name for name in parsed.baseline if BASELINES[name] != {"policy": options.policy})
    return Request(
        model=parsed.model,
        target=parsed.target,
        options=options,
        pipeline=parsed.pipeline,
        inputs=parsed.inputs,
        dims=dict(map(parse_dim, parsed.dim)),
        shapes=dict(map(parse_shape, parsed.shape)),
        values=dict(map(parse_value, parsed.value)),
        seed=parsed.seed,
        threads=parsed.threads,
        external_data_dir=parsed.external_data_dir,
        limits=Limits().changed(parsed.limit),
        machines=machines,
        baselines=baselines,
        compile_only=parsed.compile_only,
        compare=not parsed.no_compare,
        perplexity=parsed.perplexity,
    )
