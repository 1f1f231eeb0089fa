"""
`accel.inst`: one generic op for every instruction, checked against the instruction table.

Source: docs/accelerator.md section 2; the table is lampc.targets.accel.isa.
"""

from collections.abc import Mapping
from typing import Self

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, UnitAttr, f32, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from lampc.dialects.accel_registers import TYPE_OF_KIND, BarrierType, MaskType, run_size
from lampc.targets.accel.instruction import Field, Format, Instruction, Kind, Span
from lampc.targets.accel.isa import BY_MNEMONIC, BY_NAME

FIXED_SPAN = {Span.ONE: 1, Span.TWO: 2, Span.FOUR: 4}
"""Spans that need no configuration to check; the loader checks the others."""


def lookup(mnemonic: str) -> tuple[Instruction, Format]:
    """Row and format of a mnemonic. VerifyException if there is none, or if control flow has its own op for it."""
    if mnemonic not in BY_MNEMONIC:
        if mnemonic in BY_NAME:
            choices = ", ".join(BY_NAME[mnemonic].mnemonic(f) for f in BY_NAME[mnemonic].formats)
            raise VerifyException(f"{mnemonic} needs a format: {choices}")
        raise VerifyException(f"there is no instruction {mnemonic!r}")
    row, fmt = BY_MNEMONIC[mnemonic]
    if row.name == "halt" or any(f.kind is Kind.TARGET for f in row.fields):
        raise VerifyException(f"{mnemonic} is control flow: write accel.loop, accel.while, accel.if_mask or accel.if_at_least")
    return row, fmt


def register_fields(row: Instruction) -> list[Field]:
    """The fields that name registers, in the table's order; an optional one comes last."""
    return [f for f in row.fields if f.kind in TYPE_OF_KIND]


@irdl_op_definition
class InstOp(IRDLOperation):
    """
    One instruction: mnemonic, registers by field name, immediates, and what the header says.

        accel.inst "mx.qk.e4m3"(t = %y, q = %q, buf = %k, ring = %r) at %p wait %full xor signal %empty skip0
        accel.inst "s.mov"(sd = %n, imm = 4)
        accel.inst "v.const"(vd = %mu, value = -inf)

    `at %p` is the mask of sub-blocks it works on, all of them without. `wait` and `signal` name the barrier of the ring's first
    slot; `xor` waits for the other parity.
    """

    name = "accel.inst"
    registers = var_operand_def()
    predicate = opt_operand_def(MaskType())
    wait = opt_operand_def(BarrierType())
    signal = opt_operand_def(BarrierType())
    mnemonic = prop_def(StringAttr)
    imm = opt_prop_def(IntegerAttr)
    value = opt_prop_def(FloatAttr)
    xor = opt_prop_def(UnitAttr)
    skip0 = opt_prop_def(UnitAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        mnemonic: str,
        registers: Mapping[str, SSAValue] | None = None,
        *,
        imm: int | None = None,
        value: float | None = None,
        predicate: SSAValue | None = None,
        wait: SSAValue | None = None,
        xor: bool = False,
        signal: SSAValue | None = None,
        skip0: bool = False,
    ):
        """Raises VerifyException for an unknown mnemonic or a register that the instruction does not have or lacks."""
        row, _ = lookup(mnemonic)
        given = dict(registers or {})
        ordered: list[SSAValue] = []
        for f in register_fields(row):
            if f.name in given:
                ordered.append(given.pop(f.name))
            elif not f.optional:
                raise VerifyException(f"{mnemonic} needs {f.name}")
        if given:
            raise VerifyException(f"{mnemonic} has no {min(given)}")
        properties: dict[str, Attribute] = {"mnemonic": StringAttr(mnemonic)}
        if imm is not None:
            properties["imm"] = IntegerAttr(imm, i32)
        if value is not None:
            properties["value"] = FloatAttr(value, f32)
        if xor:
            properties["xor"] = UnitAttr()
        if skip0:
            properties["skip0"] = UnitAttr()
        super().__init__(operands=[ordered, predicate, wait, signal], properties=properties)

    @property
    def row(self) -> Instruction:
        return lookup(self.mnemonic.data)[0]

    @property
    def format(self) -> Format:
        return lookup(self.mnemonic.data)[1]

    def named(self) -> dict[str, SSAValue]:
        """The registers by field name; an optional one left out is missing."""
        return {f.name: value for f, value in zip(register_fields(self.row), self.registers, strict=False)}

    def verify_(self) -> None:
        row, _ = lookup(self.mnemonic.data)
        fields = register_fields(row)
        if not sum(not f.optional for f in fields) <= len(self.registers) <= len(fields):
            raise VerifyException(f"{row.name} takes {', '.join(f.name for f in fields)}, not {len(self.registers)} registers")
        for f, value in zip(fields, self.registers, strict=False):
            if value.type != TYPE_OF_KIND[f.kind]:
                raise VerifyException(f"{row.name}: {f.name} must be {TYPE_OF_KIND[f.kind]}, got {value.type}")
            if f.span in FIXED_SPAN and f.kind in (Kind.S, Kind.V) and run_size(value) < FIXED_SPAN[f.span]:
                raise VerifyException(
                    f"{row.name}: {f.name} covers {FIXED_SPAN[f.span]} registers, the run has {run_size(value)}"
                )
        for name in ("imm", "value"):
            if (name in row) != (self.properties.get(name) is not None):
                raise VerifyException(f"{row.name} {'needs' if name in row else 'has no'} {name}")
        if self.predicate is not None and not row.masked:
            raise VerifyException(f"{row.name} works on no sub-block mask")
        if self.skip0 is not None and not row.skip0:
            raise VerifyException(f"{row.name} has no skip0")
        if self.skip0 is not None and row.in_place is not None:
            a, b = (self.named()[name] for name in row.in_place)
            if a is not b:
                raise VerifyException(f"{row.name}: skip0 needs {row.in_place[0]} and {row.in_place[1]} equal")
        if (self.wait is not None or self.signal is not None) and not row.synchronises:
            raise VerifyException(f"{row.name} has no ring, so it neither waits nor signals")
        if self.xor is not None and self.wait is None and row.name != "bar.wait":
            raise VerifyException("xor without wait")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        mnemonic = parser.parse_str_literal()
        try:
            row, _ = lookup(mnemonic)
        except VerifyException as error:
            parser.raise_error(str(error))
        registers: dict[str, SSAValue] = {}
        immediates: dict[str, float] = {}

        def field() -> None:
            name = parser.parse_identifier()
            if name not in row or name in registers or name in immediates:
                parser.raise_error(f"{row.name} has no{' second' if name in row else ''} {name}")
            parser.parse_punctuation("=")
            if name == "imm":
                immediates[name] = parser.parse_integer(allow_boolean=False)
            elif name == "value":
                immediates[name] = _parse_float(parser)
            else:
                registers[name] = _resolve(parser, parser.parse_unresolved_operand(), TYPE_OF_KIND[row[name].kind])

        parser.parse_comma_separated_list(parser.Delimiter.PAREN, field)

        def operand(keyword: str, type: Attribute) -> SSAValue | None:
            if parser.parse_optional_keyword(keyword) is None:
                return None
            return _resolve(parser, parser.parse_unresolved_operand(), type)

        predicate = operand("at", MaskType())
        wait = operand("wait", BarrierType())
        xor = parser.parse_optional_keyword("xor") is not None
        signal = operand("signal", BarrierType())
        skip0 = parser.parse_optional_keyword("skip0") is not None
        attributes = parser.parse_optional_attr_dict()
        imm = immediates.get("imm")
        try:
            op = cls(
                mnemonic,
                registers,
                imm=None if imm is None else int(imm),
                value=immediates.get("value"),
                predicate=predicate,
                wait=wait,
                xor=xor,
                signal=signal,
                skip0=skip0,
            )
        except VerifyException as error:
            parser.raise_error(str(error))
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.mnemonic.data)
        named = self.named()

        def field(f: Field) -> None:
            printer.print_string(f"{f.name} = ")
            if f.kind is Kind.IMM:
                printer.print_string(str(self.imm.value.data if self.imm is not None else 0))
            elif f.kind is Kind.F32:
                _print_float(printer, self.value.value.data if self.value is not None else 0.0)
            else:
                printer.print_ssa_value(named[f.name])

        with printer.in_parens():
            printer.print_list([f for f in self.row.fields if f.name in named or f.kind in (Kind.IMM, Kind.F32)], field)
        for keyword, value in (("at", self.predicate), ("wait", self.wait)):
            self._print_operand(printer, keyword, value)
        if self.xor is not None:
            printer.print_string(" xor")
        self._print_operand(printer, "signal", self.signal)
        if self.skip0 is not None:
            printer.print_string(" skip0")
        printer.print_op_attributes(self.attributes)

    @staticmethod
    def _print_operand(printer: Printer, keyword: str, value: SSAValue | None) -> None:
        if value is not None:
            printer.print_string(f" {keyword} ")
            printer.print_ssa_value(value)


def _resolve(parser: Parser, name: UnresolvedOperand, type: Attribute) -> SSAValue:
    return parser.resolve_operand(name, type)


def _parse_float(parser: Parser) -> float:
    """A number, or `inf`, `-inf`, `nan`."""
    negative = parser.parse_optional_punctuation("-") is not None
    for word in ("inf", "nan"):
        if parser.parse_optional_keyword(word) is not None:
            return -float(word) if negative else float(word)
    number = float(parser.parse_number(allow_boolean=False))
    return -number if negative else number


def _print_float(printer: Printer, value: float) -> None:
    if value - value == 0:
        printer.print_float(value, f32)
    else:
        printer.print_string(str(value))
