"""
The `onnx` dialect: an ONNX graph as it stands in the file, one `onnx.node` per node, weights outside.

A node keeps its operator, domain, schema version, attributes and the ONNX names of its outputs, and is checked against the
operator's schema in `onnx.defs` where there is one. Small constants are inline and exact (`onnx.constant`); large ones are
named, typed and hashed (`onnx.initializer`) and their values stay with the model. Source: onnx.md §1.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, StringAttr, SymbolRefAttr, TensorType, i64
from xdsl.ir import Attribute, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, IsTerminator, MemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from lampc.dialects.onnx_attributes import (
    AbsentType,
    Array,
    MaskAttr,
    OptionalType,
    SequenceType,
    StringType,
    UnknownType,
    ValuesAttr,
    element_of_dtype,
    element_type,
    is_tensor,
    numpy_dtype,
    onnx_dtype,
    parse_values,
    values_bytes,
)
from lampc.dialects.onnx_schema import check_arity, check_attributes, check_types, schema_of

INLINE_ELEMENTS = 1024
"""Constants of at most this many elements are inline (`onnx.constant`), larger ones are `onnx.initializer`."""


def _strings(values: Sequence[str]) -> ArrayAttr[StringAttr]:
    return ArrayAttr(StringAttr(value) for value in values)


def _parse_strings(parser: Parser) -> ArrayAttr[StringAttr]:
    return _strings(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal))


def _parse_call(parser: Parser) -> list[Any]:
    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)


def _parse_signature(parser: Parser, operands: Sequence[Any]) -> tuple[Sequence[SSAValue], Sequence[Attribute]]:
    """`: (types) -> (types)`, the operands resolved."""
    parser.parse_punctuation(":")
    position = parser.pos
    signature = parser.parse_function_type()
    return parser.resolve_operands(operands, signature.inputs.data, position), signature.outputs.data


def _print_signature(printer: Printer, op: Operation) -> None:
    printer.print_string(" : ")
    printer.print_function_type(op.operand_types, op.result_types)  # print_operation_type adds a second location


def _print_strings(printer: Printer, values: ArrayAttr[StringAttr]) -> None:
    with printer.in_square_brackets():
        printer.print_list(values.data, lambda value: printer.print_string_literal(value.data))


class _NodeEffects(MemoryEffect):
    """Nodes compute and nothing else, except random ones (two draws differ) and those with bodies (a loop may not end)."""

    RANDOM: ClassVar = frozenset(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
    )

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance] | None:
        known = isinstance(op, NodeOp) and op.version.value.data and op.op_type.data not in cls.RANDOM
        return set() if known and not op.regions else None


@irdl_op_definition
class NodeOp(IRDLOperation):
    """
    One ONNX node: `%y = onnx.node "Softmax"(%x) {axis = -1 : i64} version 13 names ["p"] : (tensor<..>) -> tensor<..>`.

    A domain other than ai.onnx stands before the operator: `"com.microsoft::Attention"`. `version` is the schema's
    since_version, 0 where no schema is known. `names` are the ONNX names of the outputs, "" for an absent one. Subgraphs are
    regions named by `graphs`; what they use from outside is captured. Verified against the schema: arity, types, attribute
    names and kinds.
    """

    name = "onnx.node"

    inputs = var_operand_def()
    outputs = var_result_def()
    bodies = var_region_def()
    op_type = prop_def(StringAttr)
    domain = prop_def(StringAttr)
    version = prop_def(IntegerAttr)
    names = prop_def(ArrayAttr[StringAttr])
    node_attributes = prop_def(DictionaryAttr, prop_name="attributes")
    graphs = opt_prop_def(ArrayAttr[StringAttr])

    traits = traits_def(_NodeEffects())

    def __init__(
        self,
        op_type: str,
        inputs: Sequence[SSAValue],
        output_types: Sequence[Attribute],
        *,
        names: Sequence[str],
        domain: str = "",
        version: int = 0,
        attributes: Mapping[str, Attribute] | None = None,
        bodies: Mapping[str, Region] | None = None,
    ):
        bodies = bodies or {}
        super().__init__(
            operands=[inputs],
            result_types=[output_types],
            regions=[list(bodies.values())],
            properties={
                "op_type": StringAttr(op_type),
                "domain": StringAttr(domain),
                "version": IntegerAttr(version, i64),
                "names": _strings(names),
                "attributes": DictionaryAttr(attributes or {}),
                "graphs": _strings(list(bodies)) if bodies else None,
            },
        )

    def verify_(self) -> None:
        if len(self.names) != len(self.results):
            raise VerifyException(f"{len(self.results)} results but {len(self.names)} names")
        graphs = [graph.data for graph in self.graphs] if self.graphs else []
        if len(graphs) != len(self.regions):
            raise VerifyException(f"{len(self.regions)} regions but {len(graphs)} graph names")
        version = self.version.value.data
        if not version:
            return
        schema = schema_of(self.op_type.data, self.domain.data, version)
        if schema is None or schema.since_version != version:
            raise VerifyException(f"no version {version} of operator '{self.op_type.data}' in domain '{self.domain.data}'")
        check_attributes(schema, self.node_attributes.data, frozenset(graphs))
        check_arity(schema, "input", len(self.inputs))
        check_arity(schema, "output", len(self.outputs))
        check_types(schema, [value.type for value in self.inputs], [value.type for value in self.outputs])

    def print(self, printer: Printer) -> None:
        prefix = f"{self.domain.data}::" if self.domain.data else ""
        printer.print_string(" ")
        printer.print_string_literal(prefix + self.op_type.data)
        with printer.in_parens():
            printer.print_list(self.operands, printer.print_ssa_value)
        if self.node_attributes.data:
            printer.print_string(" ")
            printer.print_attribute(self.node_attributes)
        printer.print_string(f" version {self.version.value.data} names ")
        _print_strings(printer, self.names)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        for graph, region in zip(self.graphs or (), self.regions, strict=True):
            printer.print_string(" graph ")
            printer.print_string_literal(graph.data)
            printer.print_string(" ")
            printer.print_region(region)
        _print_signature(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> NodeOp:
        domain, _, op_type = parser.parse_str_literal(" (operator)").rpartition("::")
        operands = _parse_call(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_keyword("version")
        version = parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_keyword("names")
        names = _parse_strings(parser)
        extra = parser.parse_optional_attr_dict_with_keyword()
        bodies: dict[str, Region] = {}
        while parser.parse_optional_keyword("graph"):
            graph = parser.parse_str_literal()
            if graph in bodies:
                parser.raise_error(f"graph '{graph}' given twice")
            bodies[graph] = parser.parse_region()
        inputs, outputs = _parse_signature(parser, operands)
        op = cls(
            op_type,
            inputs,
            outputs,
            names=[name.data for name in names],
            domain=domain,
            version=version,
            attributes=attributes,
            bodies=bodies,
        )
        op.attributes.update(extra.data if extra else {})
        return op


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a subgraph of an `onnx.node`: `onnx.yield %a, %b : tensor<..>, tensor<..>`."""

    name = "onnx.yield"

    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[values])


@irdl_op_definition
class AbsentOp(IRDLOperation):
    """Stands for an optional input that is not there: `%0 = onnx.absent`."""

    name = "onnx.absent"

    result = result_def(AbsentType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(result_types=[AbsentType()])


@irdl_op_definition
class InitializerOp(IRDLOperation):
    """
    A constant of more than `INLINE_ELEMENTS` elements, whose values stay with the model under this ONNX name.

    `sha256` covers dtype, shape and bytes, so equal hashes are equal tensors; `content` says what a mask-like constant holds.
    `%w = onnx.initializer "weight" {sha256 = "..."} : tensor<576x576xf32>`.
    """

    name = "onnx.initializer"

    tensor_name = prop_def(StringAttr)
    sha256 = prop_def(StringAttr)
    content = opt_prop_def(MaskAttr)
    result = result_def(TensorType)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$tensor_name attr-dict `:` type($result)"

    def __init__(self, tensor_name: str, type: TensorType[Attribute], sha256: str, content: MaskAttr | None = None):
        super().__init__(
            result_types=[type],
            properties={"tensor_name": StringAttr(tensor_name), "sha256": StringAttr(sha256), "content": content},
        )

    def verify_(self) -> None:
        _check_content(self.content, self.result.type)


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """
    A small constant, values inline and exact: `%c = onnx.constant "scale" dense<0.125> : tensor<f32>`.

    The values are those of `#onnx.values`; `content` says what a mask-like constant holds.
    """

    name = "onnx.constant"

    tensor_name = prop_def(StringAttr)
    values = prop_def(ValuesAttr)
    content = opt_prop_def(MaskAttr)
    result = result_def(TensorType)

    traits = traits_def(Pure())

    def __init__(self, tensor_name: str, values: ValuesAttr | Array, content: MaskAttr | None = None):
        attribute = values if isinstance(values, ValuesAttr) else ValuesAttr.from_numpy(values)
        super().__init__(
            result_types=[attribute.type],
            properties={"tensor_name": StringAttr(tensor_name), "values": attribute, "content": content},
        )

    def to_numpy(self) -> Array:
        """The values, a read-only array."""
        return self.values.to_numpy()

    def verify_(self) -> None:
        if self.values.type != self.result.type:
            raise VerifyException(f"values are {self.values.type}, the result is {self.result.type}")
        _check_content(self.content, self.result.type)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.tensor_name.data)
        printer.print_string(" dense")
        with printer.in_angle_brackets():
            self.values.print_values(printer)
        extra = {**({"content": self.content} if self.content else {}), **self.attributes}
        if extra:
            printer.print_string(" ")
            printer.print_attribute(DictionaryAttr(extra))
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        name = parser.parse_str_literal(" (tensor name)")
        parser.parse_keyword("dense")
        with parser.in_angle_brackets():
            values = parse_values(parser)
        extra = dict(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        data = values_bytes(parser, values, type_)
        assert is_tensor(type_)
        content = extra.pop("content", None)
        if content is not None and not isinstance(content, MaskAttr):
            parser.raise_error("content must be #onnx.mask")
        op = cls(name, ValuesAttr(type_, data), content)
        op.attributes.update(extra)
        return op


def _check_content(content: MaskAttr | None, type_: Attribute) -> None:
    if content is not None and not (is_tensor(type_) and type_.get_num_dims() >= 2):
        raise VerifyException(f"content describes the last two axes, but the result is {type_}")


@irdl_op_definition
class SegmentOp(IRDLOperation):
    """
    A part of the model that the host runs: the nodes between `inputs` and `outputs`, ONNX tensor names in the order of operands
    and results.

    `%r = onnx.segment @segment_0(%a) inputs ["input_ids"] outputs ["q", "k"] : (tensor<..>) -> (tensor<..>, tensor<..>)`; the
    symbol is a private function with the same nodes for reading.
    """

    name = "onnx.segment"

    arguments = var_operand_def()
    outputs = var_result_def()
    callee = prop_def(SymbolRefAttr)
    input_names = prop_def(ArrayAttr[StringAttr])
    output_names = prop_def(ArrayAttr[StringAttr])

    def __init__(
        self,
        callee: str,
        arguments: Sequence[SSAValue],
        output_types: Sequence[Attribute],
        *,
        input_names: Sequence[str],
        output_names: Sequence[str],
    ):
        super().__init__(
            operands=[arguments],
            result_types=[output_types],
            properties={
                "callee": SymbolRefAttr(callee),
                "input_names": _strings(input_names),
                "output_names": _strings(output_names),
            },
        )

    def verify_(self) -> None:
        for what, values, names in (
            ("operands", self.arguments, self.input_names),
            ("results", self.outputs, self.output_names),
        ):
            if len(values) != len(names):
                raise VerifyException(f"{len(values)} {what} but {len(names)} tensor names")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.callee)
        with printer.in_parens():
            printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" inputs ")
        _print_strings(printer, self.input_names)
        printer.print_string(" outputs ")
        _print_strings(printer, self.output_names)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        _print_signature(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> SegmentOp:
        callee = parser.parse_symbol_name()
        operands = _parse_call(parser)
        parser.parse_keyword("inputs")
        input_names = _parse_strings(parser)
        parser.parse_keyword("outputs")
        output_names = _parse_strings(parser)
        extra = parser.parse_optional_attr_dict_with_keyword()
        arguments, output_types = _parse_signature(parser, operands)
        op = cls(
            callee.data,
            arguments,
            output_types,
            input_names=[name.data for name in input_names],
            output_names=[name.data for name in output_names],
        )
        op.attributes.update(extra.data if extra else {})
        return op


Onnx = Dialect(
    "onnx",
    [NodeOp, YieldOp, AbsentOp, InitializerOp, ConstantOp, SegmentOp],
    [StringType, AbsentType, UnknownType, SequenceType, OptionalType, ValuesAttr, MaskAttr],
)

__all__ = [
    "INLINE_ELEMENTS",
    "AbsentOp",
    "AbsentType",
    "ConstantOp",
    "InitializerOp",
    "MaskAttr",
    "NodeOp",
    "Onnx",
    "OptionalType",
    "SegmentOp",
    "SequenceType",
    "StringType",
    "UnknownType",
    "ValuesAttr",
    "YieldOp",
    "element_of_dtype",
    "element_type",
    "is_tensor",
    "numpy_dtype",
    "onnx_dtype",
    "schema_of",
]
