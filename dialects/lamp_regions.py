"""
The ops of the `lamp` dialect that hold regions: recomputation of single sub-blocks, and the disruptive branch of the compact
register layout.

Source: docs/lampattention.md sections 4.5, 4.8 and 7.
"""

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, TensorType, f32, i1, i64
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from lampc.dialects.lamp_types import FloatType, MaskType, OrderType
from lampc.numerics.formats import FloatFormat


def _tensor(value: SSAValue) -> TensorType[Attribute]:
    return SSAValue.get(value, type=TensorType).type


def verify_format(value: SSAValue, role: str) -> FloatFormat:
    """The number format of a tensor's elements. Raises VerifyException if they have none."""
    element = _tensor(value).element_type
    if not isinstance(element, FloatType):
        raise VerifyException(f"{role} must have a !lamp.float element type, got {element}")
    return element.format


@irdl_op_definition
class YieldOp(IRDLOperation):
    """End of a region: the sub-block that was recomputed, or the state after a chunk."""

    name = "lamp.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue):
        super().__init__(operands=[list(values)])


@irdl_op_definition
class RecomputeUnsafeOp(IRDLOperation):
    """
    Stage 1: in threat order, recompute each live sub-block that is not safe, and let it raise the running maximum.

    A sub-block is safe if every row with a live entry has maximum > f32(top + f32(|maximum| * delta)); NaN and a maximum of
    -inf are not safe. The region computes one sub-block in the high format; its column maximum raises the maximum that the
    rest is tested against. Results: the recomputed scores (of the sub-blocks in `recomputed`, others unspecified), the raised
    maximum, and which sub-blocks were recomputed. Source: section 4.5, paper equation 7.

    ```mlir
    %y16, %mu1, %high = lamp.recompute_unsafe %sb in %order margin(%top, %mu, %live) delta = 3.906250e-03
        : (!lamp.order<4>, tensor<4x16x!lamp.float<e4m3>>, tensor<16x!lamp.float<e4m11>>, tensor<64x16xi1>)
        -> tensor<64x16x!lamp.float<e4m11>> {
      %y = lamp.accumulate %key, %query at %sb {...}
      lamp.yield %y : tensor<16x16x!lamp.float<e4m11>>
    }
    ```
    """

    name = "lamp.recompute_unsafe"
    order = operand_def(OrderType)
    top = operand_def(TensorType)
    maximum = operand_def(TensorType)
    live = operand_def(TensorType)
    scores = result_def(TensorType)
    new_maximum = result_def(TensorType)
    recomputed = result_def(MaskType)
    delta = prop_def(FloatAttr)
    body = region_def("single_block")

    def __init__(
        self,
        order: SSAValue,
        top: SSAValue,
        maximum: SSAValue,
        live: SSAValue,
        body: Region,
        scores: TensorType[Attribute],
        *,
        delta: float,
    ):
        sub_blocks = SSAValue.get(order, type=OrderType).type.sub_blocks
        super().__init__(
            operands=[order, top, maximum, live],
            result_types=[scores, SSAValue.get(maximum).type, MaskType.of(sub_blocks.data)],
            properties={"delta": FloatAttr(delta, f32)},
            regions=[body],
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        argument = parser.parse_argument(expect_type=False).resolve(IndexType())
        parser.parse_keyword("in")
        names = [parser.parse_unresolved_operand()]
        parser.parse_keyword("margin")
        names += parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        parser.parse_keyword("delta")
        parser.parse_punctuation("=")
        delta = parser.parse_number()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if len(names) != 4 or len(types) != 4:
            parser.raise_error("expected %order, (%top, %maximum, %live) and their four types")
        parser.parse_punctuation("->")
        scores = parser.parse_type()
        if not isa(scores, TensorType[Attribute]):
            parser.raise_error("expected a tensor of scores")
        operands = [parser.resolve_operand(name, type) for name, type in zip(names, types, strict=True)]
        body = parser.parse_region([argument])
        return cls(operands[0], operands[1], operands[2], operands[3], body, scores, delta=float(delta))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.body.block.args[0])
        printer.print_string(" in ")
        printer.print_ssa_value(self.order)
        printer.print_string(" margin(")
        printer.print_list([self.top, self.maximum, self.live], printer.print_ssa_value)
        printer.print_string(") delta = ")
        printer.print_float(self.delta.value.data, f32)
        printer.print_string(" : (")
        printer.print_list([operand.type for operand in self.operands], printer.print_attribute)
        printer.print_string(") -> ")
        printer.print_attribute(self.scores.type)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    def verify_(self) -> None:
        verify_format(self.scores, "the scores")
        _verify_region(self.body, self.scores, SSAValue.get(self.order, type=OrderType).type.sub_blocks.data)
        delta = self.delta.value.data
        if not 0 <= delta < float("inf"):
            raise VerifyException(f"delta must be finite and not negative, got {delta}")


@irdl_op_definition
class RecomputeOp(IRDLOperation):
    """
    Compute the sub-blocks in the mask by the region; the other entries of the result are unspecified.

    Stage 2's recomputation, and policy `high`, which computes every live sub-block this way.

    ```mlir
    %y16 = lamp.recompute %sb in %again : !lamp.mask<4> -> tensor<64x16x!lamp.float<e4m11>> {
      %y = lamp.accumulate %key, %query at %sb {...}
      lamp.yield %y : tensor<16x16x!lamp.float<e4m11>>
    }
    ```
    """

    name = "lamp.recompute"
    mask = operand_def(MaskType)
    scores = result_def(TensorType)
    body = region_def("single_block")

    def __init__(self, mask: SSAValue, body: Region, scores: TensorType[Attribute]):
        super().__init__(operands=[mask], result_types=[scores], regions=[body])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        argument = parser.parse_argument(expect_type=False).resolve(IndexType())
        parser.parse_keyword("in")
        name = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        mask = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation("->")
        scores = parser.parse_type()
        if not isa(scores, TensorType[Attribute]):
            parser.raise_error("expected a tensor of scores")
        return cls(mask, parser.parse_region([argument]), scores)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.body.block.args[0])
        printer.print_string(" in ")
        printer.print_ssa_value(self.mask)
        printer.print_string(" : ")
        printer.print_attribute(self.mask.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.scores.type)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    def verify_(self) -> None:
        verify_format(self.scores, "the scores")
        _verify_region(self.body, self.scores, SSAValue.get(self.mask, type=MaskType).type.sub_blocks.data)


def _verify_region(body: Region, scores: SSAValue, sub_blocks: int) -> None:
    if tuple(body.block.arg_types) != (IndexType(),):
        raise VerifyException("the region takes the sub-block's index")
    last = body.block.last_op
    if not isinstance(last, YieldOp) or len(last.values) != 1:
        raise VerifyException("the region ends in a lamp.yield of one sub-block")
    whole, part = _tensor(scores), SSAValue.get(last.values[0], type=TensorType).type
    keys, rows = whole.get_shape()
    if part.get_shape() != (keys // sub_blocks, rows) or keys % sub_blocks:
        raise VerifyException(f"the region must yield {keys // sub_blocks} keys of {rows} rows")
    if part.element_type != whole.element_type:
        raise VerifyException(f"the region must yield {whole.element_type}")


@irdl_op_definition
class DisruptiveOp(IRDLOperation):
    """
    The disruptive branch of layout `compact`: a tile that needs two or more recomputed sub-blocks is updated again, from the
    state at its entry, `chunk` sub-blocks at a time and all in 16 bit.

    A tile is disruptive if the masks `where` hold two sub-blocks or more together. Other tiles take the state `otherwise`. In a
    disruptive one the body runs for the sub-blocks 0 .. chunk-1, then chunk .. 2*chunk-1 and so on, a chunk with no live
    entry left out. It gets the chunk's live sub-blocks, the live entries of the tile that lie in the chunk, and the state so
    far, and yields the state after the chunk. Nothing that a disruptive tile accumulated in the high format or exponentiated
    outside the body is counted. Per-lane values reach the body as its arguments only; key, query, value and bias tiles may
    be used from outside. Source: docs/lampattention.md section 7.

    ```mlir
    %mu3, %omega3, %acc3 = lamp.disruptive %sbs, %alive, %m, %o, %a in chunks of 3 where(%high, %again) live(%live)
        entry(%mu, %omega, %acc) otherwise(%mu1, %omega1, %acc1)
        : !lamp.mask<4>, tensor<64x16xi1>, (tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>) {
      ...
      lamp.yield %m1, %o1, %a1 : tensor<16x!lamp.float<e4m11>>, tensor<16xf32>, tensor<16x64xf32>
    }
    ```
    """

    name = "lamp.disruptive"
    masks = var_operand_def(MaskType)
    live = operand_def(TensorType)
    entry = var_operand_def()
    otherwise = var_operand_def()
    outputs = var_result_def()
    chunk = prop_def(IntegerAttr)
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        masks: Sequence[SSAValue],
        live: SSAValue,
        entry: Sequence[SSAValue],
        otherwise: Sequence[SSAValue],
        body: Region,
        *,
        chunk: int,
    ):
        super().__init__(
            operands=[list(masks), live, list(entry), list(otherwise)],
            result_types=[[value.type for value in entry]],
            properties={"chunk": IntegerAttr(chunk, i64)},
            regions=[body],
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        arguments = [parser.parse_argument(expect_type=False)]
        while parser.parse_optional_punctuation(",") is not None:
            arguments.append(parser.parse_argument(expect_type=False))
        for word in ("in", "chunks", "of"):
            parser.parse_keyword(word)
        chunk = parser.parse_integer(allow_boolean=False)
        groups: list[list[UnresolvedOperand]] = []
        for word in ("where", "live", "entry", "otherwise"):
            parser.parse_keyword(word)
            groups.append(parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand))
        parser.parse_punctuation(":")
        mask = parser.parse_type()
        parser.parse_punctuation(",")
        live = parser.parse_type()
        parser.parse_punctuation(",")
        state = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if len(groups[1]) != 1 or {len(groups[2]), len(groups[3]), len(arguments) - 2} != {len(state)}:
            parser.raise_error("expected one live(...) and as many entry, otherwise and body values as types of state")
        masks = [parser.resolve_operand(name, mask) for name in groups[0]]
        live_value = parser.resolve_operand(groups[1][0], live)
        entry, otherwise = (
            [parser.resolve_operand(name, type) for name, type in zip(group, state, strict=True)] for group in groups[2:]
        )
        types = (mask, live, *state)
        body = parser.parse_region([argument.resolve(type) for argument, type in zip(arguments, types, strict=True)])
        return cls(masks, live_value, entry, otherwise, body, chunk=chunk)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.body.block.args, printer.print_ssa_value)
        printer.print_string(f" in chunks of {self.chunk.value.data}")
        groups = (("where", self.masks), ("live", [self.live]), ("entry", self.entry), ("otherwise", self.otherwise))
        for word, values in groups:
            printer.print_string(f" {word}(")
            printer.print_list(values, printer.print_ssa_value)
            printer.print_string(")")
        printer.print_string(" : ")
        printer.print_list([self.masks[0].type, self.live.type], printer.print_attribute)
        printer.print_string(", (")
        printer.print_list([value.type for value in self.entry], printer.print_attribute)
        printer.print_string(") ")
        printer.print_region(self.body, print_entry_block_args=False)

    def verify_(self) -> None:
        if not 1 <= len(self.masks) <= 2 or len({mask.type for mask in self.masks}) != 1:
            raise VerifyException("one or two masks of one tile say which sub-blocks were recomputed")
        sub_blocks = SSAValue.get(self.masks[0], type=MaskType).type.sub_blocks.data
        if not 1 <= self.chunk.value.data <= sub_blocks:
            raise VerifyException(f"a chunk has 1 to {sub_blocks} sub-blocks, got {self.chunk.value.data}")
        if _tensor(self.live).element_type != i1:
            raise VerifyException("live entries are boolean")
        state = [value.type for value in self.entry]
        if [value.type for value in self.otherwise] != state or [value.type for value in self.outputs] != state:
            raise VerifyException("the state has one type at entry, otherwise and in the results")
        if list(self.body.block.arg_types) != [self.masks[0].type, self.live.type, *state]:
            raise VerifyException("the body takes a mask, live entries and the state")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or [value.type for value in last.values] != state:
            raise VerifyException("the body ends in a lamp.yield of the state after a chunk")
