"""
`lampc-opt`: run passes on a module and print it, as `xdsl-opt` does, with lampc's dialects and passes alone.

    lampc-opt FILE.mlir -p 'lamp-tile-attention{bq=16},canonicalize'
    lampc-opt FILE.onnx -p lamp-raise-attention

Exit codes: 0 done; 1 the input does not parse or verify, or a pass cannot do it; 2 wrong command line or pipeline;
70 an internal error. `--traceback` shows Python's own account of any of them.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise

from xdsl import dialects, frontend, targets, transforms
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError
from xdsl.xdsl_opt_main import xDSLOptMain

from lampc import __version__, registry
from lampc.errors import LampcError, printable
from lampc.streams import describe, drop_stdout, open_streams

UPSTREAM_DIALECTS = ("builtin", "func", "arith", "tensor", "scf", "test")
UPSTREAM_PASSES = ("canonicalize", "cse", "dce")


class LampcOptMain(xDSLOptMain):
    """xDSL's driver with lampc's registries and the few upstream dialects and passes that lampc's IR uses."""

    version_format = f"lampc-opt {__version__} (xDSL {{xdsl_version}})"

    def register_all_dialects(self) -> None:
        upstream = dialects.get_all_dialects()
        for name in UPSTREAM_DIALECTS:
            self.ctx.register_dialect(name, upstream[name])
        for name, factory in registry.get_all_dialects().items():
            self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        upstream = transforms.get_all_passes()
        for name in UPSTREAM_PASSES:
            self.register_pass(name, upstream[name])
        for name, factory in registry.get_all_passes().items():
            self.register_pass(name, factory)

    def register_all_frontends(self) -> None:
        self.available_frontends.update(frontend.get_all_frontends())
        self.available_frontends.update(registry.get_all_frontends())

    def register_all_targets(self) -> None:
        self.available_targets["mlir"] = targets.get_all_targets()["mlir"]
        self.available_targets.update(registry.get_all_targets())

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        arg_parser.add_argument("--traceback", action="store_true", help="Show Python's traceback of an error.")


def _failing_op(error: BaseException) -> str | None:
    """The op that xDSL's note of a failed verification underlines; the note itself prints the whole module."""
    for note in getattr(error, "__notes__", ()):
        for line, below in pairwise(str(note).splitlines()):
            if below.lstrip().startswith("^^^"):
                return printable(line.strip())
    return None


def _message(error: BaseException) -> str:
    """What went wrong: on one line, except that a syntax error shows the source below it."""
    if isinstance(error, (ParseError, ArgSpecParseError)):
        return str(error).strip()
    if isinstance(error, OSError):
        return describe(error)
    text = " ".join(str(error).split()) or type(error).__name__
    op = _failing_op(error)
    return f"{text}; in: {op}" if op else text


def _exit_code(error: BaseException, running: bool) -> int:
    match error:
        case LampcError():
            return error.exit_code
        case ArgSpecParseError():
            return 2
        case ValueError():  # an unknown pass or option while the driver is set up; a pass that refuses its input after
            return 1 if running else 2
        case DiagnosticException() | ParseError() | OSError():
            return 1
        case _:
            return 70


def main(args: Sequence[str] | None = None) -> None:
    """
    Run `lampc-opt` on `args` (default: the command line's).

    Raises SystemExit with the exit codes above where it is not 0.
    """
    open_streams()
    running = False
    try:
        driver = LampcOptMain("Run lampc's passes on a module (MLIR text or ONNX) and print it.", args)
        running = True
        driver.run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough: lampc-opt ... | head
        drop_stdout()
        sys.exit(1)
    except (Exception, ArgSpecParseError) as error:  # xDSL derives ArgSpecParseError from BaseException
        code = _exit_code(error, running)
        if isinstance(error, OSError):
            drop_stdout()
        if "--traceback" in (sys.argv[1:] if args is None else args):
            traceback.print_exception(error)
        elif code == 70:
            what = f"{type(error).__name__}: {_message(error)}"
            print(f"lampc-opt: internal error: {what}; please report what --traceback shows", file=sys.stderr)
        else:
            print(f"lampc-opt: {_message(error)}", file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
