"""`lampc-asm`: assemble, disassemble and check programs of the modelled accelerator."""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from lampc import __version__
from lampc.errors import InputError, LampcError, UsageError
from lampc.streams import describe, drop_stdout, open_streams
from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.disassembler import disassemble
from lampc.targets.accel.isa import TABLE
from lampc.targets.accel.loader import check_fit
from lampc.targets.accel.machine import load_machine
from lampc.targets.accel.object import MAGIC, Program, load, save

LARGEST_FILE = 1 << 26

DESCRIPTION = """\
Programs of the modelled accelerator as text (.s) and as objects (.bin).

  lampc-asm assemble layer.s -o layer.bin     text to object
  lampc-asm disassemble layer.bin             object to text, on stdout; assembling it gives the same object, byte for byte
  lampc-asm check layer.bin                   is it well-formed? prints its size, register and SRAM use, and its hash
  lampc-asm check layer.s --machine packed    ... and does a thread block fit that machine?
  lampc-asm list                              every instruction: operands and meaning
"""

EPILOG = """\
A program in short (docs/isa.md has every instruction):

  .cfg bq=16 bk=16 nk=4 nq=8 d=64 dv=64 lq=512 lk=512 batch=1 hq=9 hkv=3 scale=0.125
  .registers granules=40 vectors=14
  .descriptor k f32 1x3x512x64
  .buffer k base=0 bytes=16384 slots=3
  .barrier k_full first=0 slots=3 expected=1
  .barrier k_empty first=3 slots=3 expected=8
  .stream warp
  again:
    mx.qk.e4m3 t8, t0, k[s4] @p1 wait=k_full signal=k_empty skip0 ; symbol of this instruction
    br.nz p1, again
    halt
  .stream dma
    dma.ld k[s0], k, s2 wait=k_empty xor signal=k_full
    halt

`lampc MODEL.onnx --target accel -o DIR` writes DIR/*.s and DIR/*.bin to start from.

exit codes: 0 done; 1 the program is at fault; 2 wrong command line; 70 internal error
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser("lampc-asm", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"lampc-asm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        sub.add_argument("--traceback", action="store_true", help="show Python's traceback of an error")
        sub.set_defaults(run=run)
        return sub

    sub = command("assemble", _assemble, "Text to object.")
    sub.add_argument("file", help="assembly text, - for stdin")
    sub.add_argument("-o", "--output", help="object file (default: FILE with .bin for its suffix)")
    sub = command("disassemble", _disassemble, "Object to text.")
    sub.add_argument("file", help="object file")
    sub.add_argument("-o", "--output", help="text file (default: stdout)")
    sub = command("check", _check, "Is the program well-formed, and does a thread block fit the machine?")
    sub.add_argument("file", help="object file or assembly text, - for text on stdin")
    sub.add_argument("--machine", metavar="NAME|F.toml", help="accelerator description to fit")
    command("list", _list, "Every instruction: operands and meaning.")
    return parser


def _read(file: str) -> bytes:
    with sys.stdin.buffer if file == "-" else open(file, "rb") as stream:
        data = stream.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise InputError(f"larger than {LARGEST_FILE} bytes, so no program", file=file)
    return data


def _parse(data: bytes, file: str) -> Program:
    name = "stdin" if file == "-" else file
    if data.startswith(MAGIC):
        raise InputError("this is an object already; see lampc-asm disassemble", file=name)
    try:
        return assemble(data.decode(), name)
    except UnicodeDecodeError as error:
        raise InputError("assembly text is UTF-8", file=name) from error


def _assemble(arguments: argparse.Namespace) -> None:
    if arguments.file == "-" and arguments.output is None:
        raise UsageError("text from stdin needs -o FILE")
    data = save(_parse(_read(arguments.file), arguments.file))
    output = Path(arguments.output or Path(arguments.file).with_suffix(".bin"))
    if arguments.file != "-" and output.exists() and output.samefile(arguments.file):
        raise UsageError(f"{output} is the text itself; name the object with -o FILE")
    output.write_bytes(data)


def _disassemble(arguments: argparse.Namespace) -> None:
    text = disassemble(load(_read(arguments.file), arguments.file))
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        Path(arguments.output).write_text(text)


def _check(arguments: argparse.Namespace) -> None:
    file: str = arguments.file
    data = _read(file)
    program = load(data, file) if data.startswith(MAGIC) else _parse(data, file)
    if arguments.machine is not None:
        machine = load_machine(arguments.machine)
        check_fit(program, register_bytes=machine.core.register_bytes, sram_bytes=machine.sram.capacity_bytes)
    words = ", ".join(f"{len(stream)} {name}" for name, stream in program.streams.items())
    print(f"words: {words}")
    print(f"registers: {program.granules} granules and {program.vectors} vectors, {program.warp_bytes} bytes a warp")
    block = program.cfg.nq * program.warp_bytes
    print(f"thread block: {program.cfg.nq} warps, {block} register bytes, {program.sram_bytes} SRAM bytes")
    print(f"hash: {program.program_hash()}")


def _list(_: argparse.Namespace) -> None:
    for row in TABLE:
        operands = ", ".join(f"[{f.name}]" if f.optional else f.name for f in row.fields)
        mnemonics = " | ".join(row.mnemonic(fmt) for fmt in row.formats)
        print(f"{mnemonics}  {operands}\n    {row.meaning}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `lampc-asm`. Raises SystemExit with the exit code where it is not 0."""
    open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parsed = _parser().parse_args(given)
        parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough: lampc-asm ... | head
        drop_stdout()
        sys.exit(1)
    except Exception as error:
        if "--traceback" in given:
            traceback.print_exception(error)
        elif isinstance(error, LampcError):
            print(f"lampc-asm: {error}", file=sys.stderr)
        elif isinstance(error, OSError):
            drop_stdout()
            print(f"lampc-asm: {describe(error)}", file=sys.stderr)
        else:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"lampc-asm: internal error: {what}; please report what --traceback shows", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, LampcError) else 1 if isinstance(error, OSError) else 70)


if __name__ == "__main__":
    main()
