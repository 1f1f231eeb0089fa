"""`lampc-opt -t lamp-assembly`: the programs of an allocated module as assembly."""

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from lampc.targets.accel.disassembler import disassemble
from lampc.targets.accel.run import compile_programs


@dataclass(frozen=True)
class AssemblyTarget(Target):
    """Every program of the module, each under a comment with its name. Raises LampcError as `compile_programs` does."""

    name = "lamp-assembly"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        for name, compiled in compile_programs(module).items():
            output.write(f"; {name}\n{disassemble(compiled.program)}")
