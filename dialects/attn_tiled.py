"""
The tiled half of the `attn` dialect: FlashAttention-2 in FP32 (level 3).

`attn.lanes` runs its body once for every warp of every thread block of every head: a lane. Values inside belong to one lane;
engines run many lanes at once. `attn.tile_loop` walks the key tiles and carries the online-softmax state.
Tensors inside a lane are [keys of a tile, query rows] for scores and [rows, size] for queries and outputs.
Source: docs/lampattention.md sections 3 and 4; FlashAttention-2 (arXiv 2307.08691), algorithm 1.
"""

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, StringAttr, TensorType, UnitAttr, i64
from xdsl.ir import Attribute, Block, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from lampc.numerics.sets import MAX_SUB_BLOCKS

ORDERS = ("forward", "reverse", "sink-first")
LANE_COUNTS = ("batch", "heads", "group", "blocks", "warps", "rows")


@irdl_attr_definition
class LaneType(ParametrizedAttribute, TypeAttribute):
    """One warp of one thread block of one head: the unit that runs a body."""

    name = "attn.lane"


@irdl_attr_definition
class LivenessType(ParametrizedAttribute, TypeAttribute):
    """Which keys a lane's query rows may see: causal limit, window, lengths and boolean mask together."""

    name = "attn.liveness"


def _tensor(value: SSAValue) -> TensorType[Attribute]:
    return SSAValue.get(value, type=TensorType).type


@irdl_op_definition
class RoundOperandOp(IRDLOperation):
    """Round Q, K or V to the type they are stored in (docs/lampattention.md section 3), nearest even, saturating for e4m3."""

    name = "attn.round_operand"
    input = operand_def(TensorType)
    output = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($output)"

    def __init__(self, input: SSAValue, element: Attribute):
        super().__init__(operands=[input], result_types=[TensorType(element, _tensor(input).get_shape())])

    def verify_(self) -> None:
        if _tensor(self.input).get_shape() != _tensor(self.output).get_shape():
            raise VerifyException("rounding keeps the shape")


@irdl_op_definition
class SplitMaskOp(IRDLOperation):
    """
    Decide for every mask entry whether its key is dead, and keep the rest as a bias.

    A boolean mask with a finite `masked_value` is that value where false. A float entry of -inf is dead; a finite one at most
    `threshold` is dead too if its row has a live entry above it (docs/lampattention.md section 4.3). The row decision sees
    the causal limit and window as well. `live` and `bias` broadcast to [batch, heads, queries, keys].
    """

    name = "attn.split_mask"
    mask = operand_def(TensorType)
    live = result_def(TensorType)
    bias = result_def(TensorType)
    threshold = prop_def(FloatAttr)
    queries = prop_def(IntegerAttr)
    keys = prop_def(IntegerAttr)
    masked_value = opt_prop_def(FloatAttr)
    causal = opt_prop_def(UnitAttr)
    causal_offset = opt_prop_def(IntegerAttr)
    window = opt_prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$mask attr-dict `:` type($mask) `->` type($live) `,` type($bias)"

    def verify_(self) -> None:
        if _tensor(self.live).get_shape() != _tensor(self.bias).get_shape():
            raise VerifyException("live and bias differ in shape")
        if len(_tensor(self.live).get_shape()) != 4:
            raise VerifyException("live and bias have four axes: [batch, heads, queries, keys], 1 where they broadcast")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """End of a body; its operands are the body's results."""

    name = "attn.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue):
        super().__init__(operands=[list(values)])


@irdl_op_definition
class LanesOp(IRDLOperation):
    """
    Run the body for every lane (batch, query head, thread block, warp) and gather the rows it yields.

    `rows` query rows make a warp, `warps` warps a thread block, `blocks` blocks cover the queries. Query head h reads
    key-value head h // `group`. `layout` names the register layout once it is chosen.

    ```mlir
    %o = attn.lanes %lane in (batch = 1, heads = 9, group = 3, blocks = 4, warps = 8, rows = 16) -> tensor<1x9x512x64xf32> {
      ...
      attn.yield %rows : tensor<16x64xf32>
    }
    ```
    """

    name = "attn.lanes"
    body = region_def("single_block")
    output = result_def(TensorType)
    batch = prop_def(IntegerAttr)
    heads = prop_def(IntegerAttr)
    group = prop_def(IntegerAttr)
    blocks = prop_def(IntegerAttr)
    warps = prop_def(IntegerAttr)
    rows = prop_def(IntegerAttr)
    layout = opt_prop_def(StringAttr)

    def __init__(
        self,
        body: Region,
        output: TensorType[Attribute],
        *,
        batch: int,
        heads: int,
        group: int,
        blocks: int,
        warps: int,
        rows: int,
        layout: str | None = None,
    ):
        counts = {"batch": batch, "heads": heads, "group": group, "blocks": blocks, "warps": warps, "rows": rows}
        properties: dict[str, Attribute] = {name: IntegerAttr(count, i64) for name, count in counts.items()}
        if layout is not None:
            properties["layout"] = StringAttr(layout)
        super().__init__(regions=[body], result_types=[output], properties=properties)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        lane = parser.parse_argument(expect_type=False).resolve(LaneType())
        parser.parse_keyword("in")
        counts: dict[str, int] = {}
        with parser.in_parens():
            for position, name in enumerate(LANE_COUNTS):
                if position:
                    parser.parse_punctuation(",")
                parser.parse_keyword(name)
                parser.parse_punctuation("=")
                counts[name] = parser.parse_integer(allow_boolean=False)
        layout = None
        if parser.parse_optional_keyword("layout") is not None:
            layout = parser.parse_str_literal()
        parser.parse_punctuation("->")
        output = parser.parse_type()
        if not isa(output, TensorType[Attribute]):
            parser.raise_error("the lanes' output is a tensor")
        body = parser.parse_region([lane])
        return cls(body, output, layout=layout, **counts)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.body.block.args[0])
        counts = ", ".join(f"{name} = {self.count(name)}" for name in LANE_COUNTS)
        printer.print_string(f" in ({counts})")
        if self.layout is not None:
            printer.print_string(f' layout "{self.layout.data}"')
        printer.print_string(" -> ")
        printer.print_attribute(self.output.type)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    def count(self, name: str) -> int:
        """The value of one of batch, heads, group, blocks, warps, rows."""
        attribute = self.properties[name]
        assert isinstance(attribute, IntegerAttr)
        return attribute.value.data

    def verify_(self) -> None:
        for name in LANE_COUNTS:
            if self.count(name) < 0 or (name in ("group", "warps", "rows") and self.count(name) < 1):
                raise VerifyException(f"{name} must be positive, got {self.count(name)}")
        if tuple(self.body.block.arg_types) != (LaneType(),):
            raise VerifyException("the body takes one argument of type !attn.lane")
        shape = _tensor(self.output).get_shape()
        if len(shape) != 4:
            raise VerifyException("the output has four axes: [batch, heads, queries, value size]")
        if shape[:2] != (self.count("batch"), self.count("heads")):
            raise VerifyException(f"the output's batch and heads {shape[:2]} are not those of the lanes")
        if self.count("blocks") * self.count("warps") * self.count("rows") < shape[2]:
            raise VerifyException(f"the lanes cover fewer than {shape[2]} query rows")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or len(last.values) != 1:
            raise VerifyException("the body ends in an attn.yield of the lane's output rows")
        if _tensor(last.values[0]).get_shape() != (self.count("rows"), shape[3]):
            raise VerifyException(f"the body must yield {self.count('rows')} rows of {shape[3]}")


@irdl_op_definition
class LivenessOp(IRDLOperation):
    """
    The keys that the lane's rows may see, of `keys` in all.

    Row j (of all `queries`) sees key i if i < keys, with `causal` i <= j + causal_offset, with `window` w
    i > j + causal_offset - w, and where the boolean mask says so.
    """

    name = "attn.liveness"
    lane = operand_def(LaneType)
    mask = opt_operand_def(TensorType)
    result = result_def(LivenessType)
    queries = prop_def(IntegerAttr)
    keys = prop_def(IntegerAttr)
    causal = opt_prop_def(UnitAttr)
    causal_offset = opt_prop_def(IntegerAttr)
    window = opt_prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$lane (`mask` $mask^ `:` type($mask))? attr-dict"


@irdl_op_definition
class LoadQueryOp(IRDLOperation):
    """The lane's query rows, [rows, head size], widened to FP32; rows beyond the last query are zero."""

    name = "attn.load_query"
    source = operand_def(TensorType)
    lane = operand_def(LaneType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$source `[` $lane `]` attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, lane: SSAValue, result: TensorType[Attribute]):
        super().__init__(operands=[source, lane], result_types=[result])

    def verify_(self) -> None:
        if _tensor(self.source).get_shape()[-1] != _tensor(self.result).get_shape()[-1]:
            raise VerifyException("the rows keep their size")


@irdl_op_definition
class LoadTileOp(IRDLOperation):
    """Key tile `tile` of K or V for the lane's head, [keys of a tile, size], widened to FP32; missing keys are zero."""

    name = "attn.load_tile"
    source = operand_def(TensorType)
    lane = operand_def(LaneType)
    tile = operand_def(IndexType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$source `[` $lane `,` $tile `]` attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, lane: SSAValue, tile: SSAValue, result: TensorType[Attribute]):
        super().__init__(operands=[source, lane, tile], result_types=[result])

    def verify_(self) -> None:
        if _tensor(self.source).get_shape()[-1] != _tensor(self.result).get_shape()[-1]:
            raise VerifyException("the rows keep their size")


@irdl_op_definition
class ScaleQueryOp(IRDLOperation):
    """`f32(query * scale)`, once, before accumulation (docs/lampattention.md section 4.1)."""

    name = "attn.scale_query"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    query = operand_def(T)
    result = result_def(T)
    scale = prop_def(FloatAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$query attr-dict `:` type($result)"

    def __init__(self, query: SSAValue, scale: FloatAttr):
        super().__init__(operands=[query], result_types=[query.type], properties={"scale": scale})


@irdl_op_definition
class SoftmaxInitOp(IRDLOperation):
    """
    The state before the first tile: running maximum -inf, running sum 0, output 0.

    With a sink (one logit per head): maximum = the sink rounded to the type of the running maximum, sum =
    f32(exp(sink - maximum)), docs/lampattention.md section 3.
    """

    name = "attn.softmax_init"
    lane = operand_def(LaneType)
    sinks = opt_operand_def(TensorType)
    maximum = result_def(TensorType)
    sum = result_def(TensorType)
    output = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$lane (`sinks` $sinks^ `:` type($sinks))? attr-dict `:` type($maximum) `,` type($sum) `,` type($output)"


@irdl_op_definition
class TileLoopOp(IRDLOperation):
    """
    Run the body for each of `tiles` key tiles in which the lane has a live entry, carrying state.

    A tile's keys are `sub_blocks` equal groups, the unit in which precision is decided later.

    `order` is forward, reverse, or sink-first (the first tile, then the others backwards). Tiles without a live entry are
    skipped for the lane and counted apart.

    ```mlir
    %mu1, %omega1, %acc1 = attn.tile_loop %t in 8 sub_blocks 4 order "forward" where %liveness
        iter(%mu = %mu0, %omega = %omega0, %acc = %acc0) : (tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>) {
      ...
      attn.yield %mu2, %omega2, %acc2 : tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>
    }
    ```
    """

    name = "attn.tile_loop"
    liveness = operand_def(LivenessType)
    initial = var_operand_def()
    outputs = var_result_def()
    body = region_def("single_block")
    tiles = prop_def(IntegerAttr)
    sub_blocks = prop_def(IntegerAttr, default_value=IntegerAttr(1, i64))
    order = prop_def(StringAttr)

    def __init__(
        self,
        liveness: SSAValue,
        initial: Sequence[SSAValue],
        body: Region,
        *,
        tiles: int,
        order: str,
        sub_blocks: int = 1,
    ):
        super().__init__(
            operands=[liveness, list(initial)],
            result_types=[[value.type for value in initial]],
            regions=[body],
            properties={
                "tiles": IntegerAttr(tiles, i64),
                "sub_blocks": IntegerAttr(sub_blocks, i64),
                "order": StringAttr(order),
            },
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        tile = parser.parse_argument(expect_type=False).resolve(IndexType())
        parser.parse_keyword("in")
        tiles = parser.parse_integer(allow_boolean=False)
        sub_blocks = 1
        if parser.parse_optional_keyword("sub_blocks") is not None:
            sub_blocks = parser.parse_integer(allow_boolean=False)
        parser.parse_keyword("order")
        order = parser.parse_str_literal()
        parser.parse_keyword("where")
        liveness = parser.resolve_operand(parser.parse_unresolved_operand(), LivenessType())
        parser.parse_keyword("iter")

        def carried() -> tuple[Parser.UnresolvedArgument, UnresolvedOperand]:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            return argument, parser.parse_unresolved_operand()

        pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, carried)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if len(types) != len(pairs):
            parser.raise_error("as many types as carried values are needed")
        arguments = [argument.resolve(type) for (argument, _), type in zip(pairs, types, strict=True)]
        initial = [parser.resolve_operand(value, type) for (_, value), type in zip(pairs, types, strict=True)]
        body = parser.parse_region([tile, *arguments])
        return cls(liveness, initial, body, tiles=tiles, order=order, sub_blocks=sub_blocks)

    def print(self, printer: Printer) -> None:
        tile, *state = self.body.block.args
        printer.print_string(" ")
        printer.print_ssa_value(tile)
        printer.print_string(f" in {self.tiles.value.data}")
        if self.sub_blocks.value.data != 1:
            printer.print_string(f" sub_blocks {self.sub_blocks.value.data}")
        printer.print_string(f' order "{self.order.data}" where ')
        printer.print_ssa_value(self.liveness)
        printer.print_string(" iter(")
        for position, (argument, value) in enumerate(zip(state, self.initial, strict=True)):
            printer.print_string(", " if position else "")
            printer.print_ssa_value(argument)
            printer.print_string(" = ")
            printer.print_ssa_value(value)
        printer.print_string(") : (")
        printer.print_list([value.type for value in self.initial], printer.print_attribute)
        printer.print_string(") ")
        printer.print_region(self.body, print_entry_block_args=False)

    def verify_(self) -> None:
        if self.order.data not in ORDERS:
            raise VerifyException(f"order must be one of {', '.join(ORDERS)}, got {self.order.data!r}")
        if not 1 <= self.sub_blocks.value.data <= MAX_SUB_BLOCKS:
            raise VerifyException(f"a key tile has 1 to {MAX_SUB_BLOCKS} sub-blocks")
        state = [value.type for value in self.initial]
        if list(self.body.block.arg_types) != [IndexType(), *state]:
            raise VerifyException("the body takes the tile index and the carried state")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or [value.type for value in last.values] != state:
            raise VerifyException("the body must yield a value of the same type for each carried one")
        if [value.type for value in self.outputs] != state:
            raise VerifyException("the results have the types of the carried state")


@irdl_op_definition
class LiveEntriesOp(IRDLOperation):
    """Which entries of the tile's scores are live for the lane, boolean [keys of a tile, rows]."""

    name = "attn.live_entries"
    liveness = operand_def(LivenessType)
    tile = operand_def(IndexType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$liveness `[` $tile `]` attr-dict `:` type($result)"


@irdl_op_definition
class ScoresOp(IRDLOperation):
    """Scores `key . query` in FP32, products added one by one in the order of the head size, [keys of a tile, rows]."""

    name = "attn.scores"
    key = operand_def(TensorType)
    query = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$key `,` $query attr-dict `:` type($key) `,` type($query) `->` type($result)"

    def verify_(self) -> None:
        verify_scores(_tensor(self.key), _tensor(self.query), _tensor(self.result))


def verify_scores(key: TensorType[Attribute], query: TensorType[Attribute], result: TensorType[Attribute]) -> None:
    """Raise VerifyException unless [keys, size] times [rows, size] gives [keys, rows]."""
    keys, size = key.get_shape()
    rows, size2 = query.get_shape()
    if size != size2:
        raise VerifyException(f"key has head size {size}, query {size2}")
    if result.get_shape() != (keys, rows):
        raise VerifyException(f"expected scores of shape {(keys, rows)}")


@irdl_op_definition
class SoftCapOp(IRDLOperation):
    """`cap * tanh(y / cap)` in float64, rounded once to FP32 and then to the scores' format (section 4.3)."""

    name = "attn.soft_cap"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    scores = operand_def(T)
    result = result_def(T)
    sub_block = opt_operand_def(IndexType)
    cap = prop_def(FloatAttr)
    rounding = opt_prop_def(StringAttr)
    overflow = opt_prop_def(StringAttr)
    seed = opt_prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$scores (`at` $sub_block^)? attr-dict `:` type($result)"


@irdl_op_definition
class AddBiasOp(IRDLOperation):
    """Add the lane's tile of a bias tensor, `f32(y + bias)` rounded to the scores' format (section 4.3)."""

    name = "attn.add_bias"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    scores = operand_def(T)
    bias = operand_def(TensorType)
    lane = operand_def(LaneType)
    tile = operand_def(IndexType)
    sub_block = opt_operand_def(IndexType)
    result = result_def(T)
    rounding = opt_prop_def(StringAttr)
    overflow = opt_prop_def(StringAttr)
    seed = opt_prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$scores `,` $bias `[` $lane `,` $tile `]` (`at` $sub_block^)? attr-dict `:` type($bias) `,` type($result)"
    )


@irdl_op_definition
class OnlineSoftmaxOp(IRDLOperation):
    """
    One FlashAttention-2 step in FP32: new maximum, sum and output row after this tile.

    maximum' = max(maximum, live scores); E = f32(exp(f32(scores - maximum'))); lambda = f32(exp(maximum - maximum'));
    sum' = f32(lambda*sum) + E in key order; output' = f32(output*lambda) + E*value in key order (policy `fp32`, section 4).
    """

    name = "attn.online_softmax"
    M: ClassVar = VarConstraint("M", BaseAttr(TensorType))
    S: ClassVar = VarConstraint("S", BaseAttr(TensorType))
    A: ClassVar = VarConstraint("A", BaseAttr(TensorType))
    maximum = operand_def(M)
    sum = operand_def(S)
    output = operand_def(A)
    scores = operand_def(TensorType)
    live = operand_def(TensorType)
    value = operand_def(TensorType)
    new_maximum = result_def(M)
    new_sum = result_def(S)
    new_output = result_def(A)
    traits = traits_def(Pure())
    assembly_format = (
        "$maximum `,` $sum `,` $output `,` $scores `,` $live `,` $value attr-dict `:` "
        "type($scores) `,` type($live) `,` type($value) `->` type($new_maximum) `,` type($new_sum) `,` type($new_output)"
    )


@irdl_op_definition
class NormalizeOp(IRDLOperation):
    """`f32(output / sum)`; rows with sum 0 (nothing live) give 0."""

    name = "attn.normalize"
    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))
    output = operand_def(T)
    sum = operand_def(TensorType)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$output `,` $sum attr-dict `:` type($output) `,` type($sum)"


def single_block(arg_types: Sequence[Attribute]) -> Region:
    """A region of one block with arguments of `arg_types`."""
    return Region(Block(arg_types=arg_types))


OPERATIONS = (
    RoundOperandOp,
    SplitMaskOp,
    YieldOp,
    LanesOp,
    LivenessOp,
    LoadQueryOp,
    LoadTileOp,
    ScaleQueryOp,
    SoftmaxInitOp,
    TileLoopOp,
    LiveEntriesOp,
    ScoresOp,
    SoftCapOp,
    AddBiasOp,
    OnlineSoftmaxOp,
    NormalizeOp,
)
ATTRIBUTES = (LaneType, LivenessType)
