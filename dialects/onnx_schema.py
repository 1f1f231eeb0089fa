"""
Checks of an `onnx.node` against its operator's schema in `onnx.defs`: arity, types, attribute names and kinds.

Source: onnx.md §1.1, §6 (what onnx.checker does not look at).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache

import onnx.defs
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from lampc.dialects.onnx_attributes import AbsentType, ValuesAttr, onnx_type_name

UNBOUNDED = 2**31 - 1
"""What schemas give as the largest number of arguments of a variadic operator."""

_KINDS: Mapping[str, tuple[type[Attribute], ...]] = {
    "FLOAT": (FloatAttr,),
    "INT": (IntegerAttr,),
    "STRING": (StringAttr,),
    "TENSOR": (ValuesAttr, ArrayAttr),  # strings are no values
    "FLOATS": (ArrayAttr,),
    "INTS": (DenseArrayBase,),
    "STRINGS": (ArrayAttr,),
}


class SchemaMismatch(VerifyException):
    """A node is not what its schema says; `code` is the stable name that the frontend reports."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Formal:
    """A formal input or output: accepted type names, and the type variable that all its arguments share ("" for none)."""

    name: str
    types: frozenset[str]
    variable: str
    required: bool


@dataclass(frozen=True)
class OpSignature:
    """
    What `onnx.defs` says about one version of an operator, in Python objects (its own copy on every access).

    attributes maps a name to (kind, required); kinds are those of AttributeProto: "FLOAT", "INTS", "GRAPH", ...
    """

    name: str
    domain: str
    since_version: int
    deprecated: bool
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    input_count: tuple[int, int]
    output_count: tuple[int, int]
    attributes: Mapping[str, tuple[str, bool]]


def _formal(formal: onnx.defs.OpSchema.FormalParameter) -> Formal:
    required = formal.option == onnx.defs.OpSchema.FormalParameterOption.Single
    return Formal(formal.name, frozenset(formal.types), formal.type_str if formal.is_homogeneous else "", required)


@cache
def schema_of(op_type: str, domain: str, opset: int) -> OpSignature | None:
    """The newest signature of an operator that version `opset` of its domain knows, or None."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return OpSignature(
        name=schema.name,
        domain=schema.domain,
        since_version=schema.since_version,
        deprecated=schema.deprecated,
        inputs=tuple(_formal(formal) for formal in schema.inputs),
        outputs=tuple(_formal(formal) for formal in schema.outputs),
        input_count=(schema.min_input, schema.max_input),
        output_count=(schema.min_output, schema.max_output),
        attributes={name: (str(a.type).rpartition(".")[2], bool(a.required)) for name, a in schema.attributes.items()},
    )


def check_arity(schema: OpSignature, what: str, count: int) -> None:
    """Raises SchemaMismatch if an operator does not take `count` inputs or outputs (`what`)."""
    low, high = schema.output_count if what == "output" else schema.input_count
    if not low <= count <= high:
        expected = str(low) if low == high else f"at least {low}" if high >= UNBOUNDED else f"{low} to {high}"
        raise SchemaMismatch("E-OP-ARITY", f"{schema.name} takes {expected} {what}s, not {count}")


def check_types(schema: OpSignature, inputs: Sequence[Attribute], outputs: Sequence[Attribute]) -> None:
    """
    Raises SchemaMismatch if a value has a type its operator does not take, a required one is absent, or two that share a
    type variable differ. Values of unknown type pass.
    """
    bound: dict[str, tuple[str, str]] = {}
    for what, types, formals in (("input", inputs, schema.inputs), ("output", outputs, schema.outputs)):
        for position, type_ in enumerate(types):
            formal = formals[min(position, len(formals) - 1)]
            who = f"{what} {position} ({formal.name})"
            if isinstance(type_, AbsentType):
                if formal.required and what == "input":
                    raise SchemaMismatch("E-OP-ARITY", f"{schema.name} needs its {who}")
                continue
            name = onnx_type_name(type_)
            if name is None:
                continue
            if name not in formal.types:
                raise SchemaMismatch("E-TYPE", f"{who} of {schema.name} cannot be {name}")
            if not formal.variable:
                continue
            seen, first = bound.setdefault(formal.variable, (name, who))
            if seen != name:
                raise SchemaMismatch(
                    "E-TYPE",
                    f"{who} of {schema.name} is {name}, but {first} is {seen}; they share type {formal.variable}",
                )


def check_attribute_kinds(schema: OpSignature, kinds: Mapping[str, str]) -> None:
    """
    Raises SchemaMismatch for an attribute the operator does not have, one of the wrong kind, or a required one missing.

    kinds: attribute name to kind, such as "FLOAT" or "GRAPH".
    """
    for name, kind in kinds.items():
        if name not in schema.attributes:
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise SchemaMismatch(
                "E-ATTR-UNKNOWN", f"{schema.name} version {schema.since_version} has no attribute '{name}'; it has {known}"
            )
        if schema.attributes[name][0] != kind:
            raise SchemaMismatch(
                "E-ATTR-TYPE", f"attribute '{name}' of {schema.name} must be {schema.attributes[name][0]}, not {kind}"
            )
    for name, (_, required) in schema.attributes.items():
        if required and name not in kinds:
            raise SchemaMismatch("E-ATTR-MISSING", f"{schema.name} needs the attribute '{name}'")


def check_attributes(schema: OpSignature, attributes: Mapping[str, Attribute], graphs: AbstractSet[str]) -> None:
    """Raises SchemaMismatch as `check_attribute_kinds` does, for the attributes and region names of an `onnx.node`."""
    kinds = dict.fromkeys(graphs, "GRAPH")
    for name, value in attributes.items():
        expected = schema.attributes[name][0] if name in schema.attributes else ""
        fits = isinstance(value, _KINDS.get(expected, (Attribute,))) and expected not in ("GRAPH", "GRAPHS")
        kinds[name] = expected if fits else type(value).__name__
    check_attribute_kinds(schema, kinds)
