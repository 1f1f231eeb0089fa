"""
The command `lampc`.

stdout is for results, stderr for progress and diagnostics. Exit codes: 0 done; 1 the input is at fault (bad model, bad inputs,
failed --check); 2 wrong usage; 70 an internal error. No Python traceback without --traceback.
"""

import sys
import traceback
from collections.abc import Sequence

from lampc.arguments import Arguments, parse_arguments
from lampc.errors import LampcError, UsageError, printable
from lampc.streams import describe, drop_stdout, open_streams


def main(args: Sequence[str] | None = None) -> None:
    """Run `lampc` on `args` (default: the command line's). Raises SystemExit with the exit codes above where it is not 0."""
    open_streams()
    words = list(sys.argv[1:] if args is None else args)
    try:
        arguments = parse_arguments(words)
        code = _isolated(arguments, words) if arguments.isolate else _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough: lampc ... | head
        drop_stdout()
        code = 1
    except KeyboardInterrupt:
        print("\nlampc: interrupted", file=sys.stderr)
        code = 130
    except LampcError as error:
        if "--traceback" in words:
            traceback.print_exc()
        hint = "; see lampc --help" if isinstance(error, UsageError) else ""
        print(f"lampc: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        code = error.exit_code
    except MemoryError:
        print("lampc: out of memory; use smaller dimensions (--dim, --shape)", file=sys.stderr)
        code = 1
    except OSError as error:
        if "--traceback" in words:
            traceback.print_exc()
        drop_stdout()
        print(f"lampc: {describe(error)}", file=sys.stderr)
        code = 1
    except Exception as error:
        if "--traceback" in words:
            traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        command = " ".join(["lampc", *words])
        print(f"lampc: internal error: {what}; please report it with the output of: {command} --traceback", file=sys.stderr)
        code = 70
    if code:
        sys.exit(code)


def _isolated(arguments: Arguments, words: Sequence[str]) -> int:
    from lampc.isolate import run_isolated

    rest = [word for word in words if word != "--isolate"]
    file = printable(str(arguments.request.model), 300)
    return run_isolated(rest, file, memory_gib=arguments.memory_limit, seconds=arguments.time_limit)


def _run(arguments: Arguments) -> int:
    if arguments.print_pipeline:
        print(arguments.request.pipeline or arguments.request.options.pipeline(arguments.request.target))
        return 0
    # What follows imports onnxruntime and the kernels, which --help should not wait for.
    from lampc import driver, output

    progress = output.progress(arguments)
    if arguments.explain:
        return output.explain(arguments, progress)
    try:
        output.check_places(arguments)
        compiled = driver.compile_model(arguments.request, progress)
        output.check_emit(arguments, compiled)
        result = None if arguments.request.compile_only else driver.run_model(arguments.request, compiled, progress)
    finally:
        progress("")
    return output.write(arguments, compiled, result)


if __name__ == "__main__":
    main()
