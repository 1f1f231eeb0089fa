"""
The `accel` dialect: instructions of the modelled accelerator, still structured (level 5).

An `accel.program` is one attention. It declares what its contexts share (descriptors, SRAM buffers, barriers) and holds two
streams: "warp", run by every warp, and "dma", run once for each thread block. Registers are storage that instructions read and
write (`accel_registers.py`); instructions are one generic op (`accel_inst.py`); control flow stays structured until the object
is made. Source: docs/accelerator.md sections 1 and 2.
"""

from typing import Self

from xdsl.dialects.builtin import (
    BoolAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    f64,
    i64,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from lampc.dialects.accel_inst import InstOp
from lampc.dialects.accel_launch import LaunchOp
from lampc.dialects.accel_registers import (
    DECLARATIONS,
    TYPE_OF_KIND,
    BarrierOp,
    BufferOp,
    DescriptorOp,
    MaskType,
    ScalarType,
)
from lampc.errors import LampcError
from lampc.targets.accel.config import Config

STREAMS = ("warp", "dma")


def _parse_body(parser: Parser) -> Region:
    """A region of one block, also where nothing stands in it."""
    region = parser.parse_region()
    if not region.blocks:
        region.add_block(Block())
    return region


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """One attention as a program: `accel.program @attention_0 {bq = 16 : i64, ...} { declarations, two streams }`."""

    name = "accel.program"
    sym_name = prop_def(StringAttr)
    cfg = prop_def(DictionaryAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), NoTerminator())

    def __init__(self, name: str, config: Config | DictionaryAttr, body: Region):
        cfg = config if isinstance(config, DictionaryAttr) else config_attribute(config)
        super().__init__(regions=[body], properties={"sym_name": StringAttr(name), "cfg": cfg})

    @property
    def config(self) -> Config:
        """The configuration; InputError if the attribute holds none."""
        return config_of(self.cfg)

    def stream(self, name: str) -> "StreamOp":
        """The stream `warp` or `dma`."""
        return next(op for op in self.body.block.ops if isinstance(op, StreamOp) and op.stream.data == name)

    def verify_(self) -> None:
        try:
            _ = self.config
        except LampcError as error:
            raise VerifyException(str(error)) from error
        names: list[str] = []
        for op in self.body.block.ops:
            if isinstance(op, StreamOp):
                names.append(op.stream.data)
            elif not isinstance(op, DescriptorOp | BufferOp | BarrierOp):
                raise VerifyException(f"a program holds streams and what they share; {op.name} belongs into a stream")
        if sorted(names) != sorted(STREAMS):
            raise VerifyException(f'a program has one stream "warp" and one "dma", got {names}')

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_symbol_name()
        cfg = DictionaryAttr(parser.parse_optional_attr_dict())
        return cls(name.data, cfg, _parse_body(parser))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_op_attributes(self.cfg.data)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=True)


@irdl_op_definition
class StreamOp(IRDLOperation):
    """The instructions of one kind of context, with its registers: `accel.stream "warp" { ... }`. It halts at its end."""

    name = "accel.stream"
    stream = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, stream: str, body: Region):
        super().__init__(regions=[body], properties={"stream": StringAttr(stream)})

    def verify_(self) -> None:
        if self.stream.data not in STREAMS:
            raise VerifyException(f"a stream is one of {', '.join(STREAMS)}, not {self.stream.data!r}")
        _verify_body(self.body)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return cls(parser.parse_str_literal(), _parse_body(parser))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.stream.data)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=True)


@irdl_op_definition
class LoopOp(IRDLOperation):
    """
    Run the body as often as the counter says, not at all if it is 0; the counter ends at 0: `accel.loop %n { }`.

    Becomes `br.sz counter, end`, the body, `loop counter, body`.
    """

    name = "accel.loop"
    counter = operand_def(ScalarType())
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, counter: SSAValue, body: Region):
        super().__init__(operands=[counter], regions=[body])

    def verify_(self) -> None:
        _verify_body(self.body)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        counter = parser.resolve_operand(parser.parse_unresolved_operand(), ScalarType())
        return cls(counter, _parse_body(parser))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.counter)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=True)


@irdl_op_definition
class WhileOp(IRDLOperation):
    """
    Run the first region; while the mask is not empty then, run the second and start again: `accel.while %p { } do { }`.

    Becomes the first region, `br.z mask, end`, the second region, `br` back.
    """

    name = "accel.while"
    mask = operand_def(MaskType())
    test = region_def("single_block")
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, mask: SSAValue, test: Region, body: Region):
        super().__init__(operands=[mask], regions=[test, body])

    def verify_(self) -> None:
        _verify_body(self.test)
        _verify_body(self.body)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        mask = parser.resolve_operand(parser.parse_unresolved_operand(), MaskType())
        test = _parse_body(parser)
        parser.parse_keyword("do")
        return cls(mask, test, _parse_body(parser))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.mask)
        printer.print_string(" ")
        printer.print_region(self.test, print_block_terminators=True)
        printer.print_string(" do ")
        printer.print_region(self.body, print_block_terminators=True)


def _parse_branches(parser: Parser) -> tuple[Region, Region]:
    then = _parse_body(parser)
    if parser.parse_optional_keyword("else") is None:
        return then, Region(Block())
    return then, _parse_body(parser)


def _print_branches(printer: Printer, then: Region, otherwise: Region) -> None:
    printer.print_string(" ")
    printer.print_region(then, print_block_terminators=True, print_empty_block=False)
    if otherwise.block.ops:
        printer.print_string(" else ")
        printer.print_region(otherwise, print_block_terminators=True)


@irdl_op_definition
class IfMaskOp(IRDLOperation):
    """
    Run the first region if the mask is not empty, else the second: `accel.if_mask %p { } else { }`, or without the `else`.

    Becomes `br.z mask, else`.
    """

    name = "accel.if_mask"
    mask = operand_def(MaskType())
    then = region_def("single_block")
    otherwise = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, mask: SSAValue, then: Region, otherwise: Region | None = None):
        super().__init__(operands=[mask], regions=[then, otherwise or Region(Block())])

    def verify_(self) -> None:
        _verify_body(self.then)
        _verify_body(self.otherwise)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        mask = parser.resolve_operand(parser.parse_unresolved_operand(), MaskType())
        return cls(mask, *_parse_branches(parser))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.mask)
        _print_branches(printer, self.then, self.otherwise)


@irdl_op_definition
class IfAtLeastOp(IRDLOperation):
    """
    Run the first region if the scalar is at least `bound`, else the second: `accel.if_at_least %s, 2 { } else { }`, or without
    the `else`.

    Becomes `br.ge scalar, then, bound`.
    """

    name = "accel.if_at_least"
    scalar = operand_def(ScalarType())
    bound = prop_def(IntegerAttr)
    then = region_def("single_block")
    otherwise = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, scalar: SSAValue, bound: int, then: Region, otherwise: Region | None = None):
        super().__init__(
            operands=[scalar],
            properties={"bound": IntegerAttr(bound, i64)},
            regions=[then, otherwise or Region(Block())],
        )

    def verify_(self) -> None:
        _verify_body(self.then)
        _verify_body(self.otherwise)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        scalar = parser.resolve_operand(parser.parse_unresolved_operand(), ScalarType())
        parser.parse_punctuation(",")
        bound = parser.parse_integer(allow_boolean=False)
        return cls(scalar, bound, *_parse_branches(parser))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.scalar)
        printer.print_string(f", {self.bound.value.data}")
        _print_branches(printer, self.then, self.otherwise)


_CONTROL: tuple[type[Operation], ...] = (LoopOp, WhileOp, IfMaskOp, IfAtLeastOp)
_IN_STREAM: tuple[type[Operation], ...] = (InstOp, *_CONTROL, *DECLARATIONS)


def _verify_body(body: Region) -> None:
    for op in body.block.ops:
        if not isinstance(op, _IN_STREAM) or isinstance(op, DescriptorOp | BufferOp | BarrierOp):
            raise VerifyException(f"a stream holds instructions, their registers and control flow, not {op.name}")


def config_attribute(config: Config) -> DictionaryAttr:
    """The configuration as an attribute; `config_of` reads it back."""

    def attribute(value: int | float | str | bool) -> Attribute:
        if isinstance(value, bool):
            return BoolAttr.from_bool(value)
        if isinstance(value, int):
            return IntegerAttr(value, i64)
        return FloatAttr(value, f64) if isinstance(value, float) else StringAttr(value)

    return DictionaryAttr({name: attribute(value) for name, value in config.to_dict().items()})


def config_of(attribute: DictionaryAttr) -> Config:
    """The configuration in an attribute. Raises InputError if an entry is unknown, missing or ill-typed."""

    def value(entry: Attribute) -> object:
        match entry:
            case IntegerAttr(value=number, type=IntegerType()) if entry.type == IntegerType(1):
                return bool(number.data)
            case IntegerAttr(value=number):
                return number.data
            case FloatAttr(value=number):
                return number.data
            case StringAttr(data=text):
                return text
            case _:
                return entry

    return Config.from_dict({name: value(entry) for name, entry in attribute.data.items()})


Accel = Dialect(
    "accel",
    [ProgramOp, StreamOp, LoopOp, WhileOp, IfMaskOp, IfAtLeastOp, InstOp, LaunchOp, *DECLARATIONS],
    list(dict.fromkeys(type(entry) for entry in TYPE_OF_KIND.values())),
)
