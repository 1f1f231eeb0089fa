"""
`accel.launch`: where the host runs a program of the accelerator.

It stands in the function that prepares the operands, and says which of them is which tensor of the program.
"""

from collections.abc import Mapping
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, result_def, var_operand_def
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

OPERANDS = ("q", "k", "v", "mask", "bias", "sinks")


@irdl_op_definition
class LaunchOp(IRDLOperation):
    """
    Run a program on tensors: `%o = accel.launch @attention_0_program(q = %q, k = %k, v = %v) : (types) -> type`.

    `mask`, `bias` and `sinks` are named where the program reads them. The result is the output, FP32.
    """

    name = "accel.launch"
    tensors = var_operand_def(TensorType)
    output = result_def(TensorType)
    program = prop_def(SymbolRefAttr)
    names = prop_def(ArrayAttr[StringAttr])

    def __init__(self, program: str, tensors: Mapping[str, SSAValue], output: Attribute):
        super().__init__(
            operands=[list(tensors.values())],
            result_types=[output],
            properties={
                "program": SymbolRefAttr(program),
                "names": ArrayAttr([StringAttr(name) for name in tensors]),
            },
        )

    def named(self) -> dict[str, SSAValue]:
        """The operands by the program's name for them."""
        return {name.data: value for name, value in zip(self.names, self.tensors, strict=True)}

    def verify_(self) -> None:
        names = [name.data for name in self.names]
        if len(names) != len(self.tensors):
            raise VerifyException(f"{len(names)} names for {len(self.tensors)} tensors")
        if len(set(names)) != len(names) or not {"q", "k", "v"} <= set(names) <= set(OPERANDS):
            raise VerifyException(f"a program takes q, k, v and maybe mask, bias, sinks, once each, not {', '.join(names)}")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        program = parser.parse_symbol_name().data

        def tensor() -> tuple[str, UnresolvedOperand]:
            name = parser.parse_identifier()
            parser.parse_punctuation("=")
            return name, parser.parse_unresolved_operand()

        named = parser.parse_comma_separated_list(parser.Delimiter.PAREN, tensor)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        parser.parse_punctuation("->")
        output = parser.parse_type()
        if len(types) != len(named):
            parser.raise_error(f"{len(types)} types for {len(named)} tensors")
        tensors = {name: parser.resolve_operand(value, type) for (name, value), type in zip(named, types, strict=True)}
        return cls(program, tensors, output)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.program.root_reference.data)

        def tensor(item: tuple[str, SSAValue]) -> None:
            printer.print_string(f"{item[0]} = ")
            printer.print_ssa_value(item[1])

        with printer.in_parens():
            printer.print_list(list(self.named().items()), tensor)
        printer.print_string(" : ")
        with printer.in_parens():
            printer.print_list([value.type for value in self.tensors], printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(self.output.type)
