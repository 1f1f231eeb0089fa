"""xDSL's constraints in words: what an operand, result, attribute or parameter may be."""

from xdsl.dialects.builtin import ArrayOfConstraint
from xdsl.ir import Attribute, TypeAttribute
from xdsl.irdl import (
    AllOf,
    AnyAttr,
    AnyOf,
    AttrConstraint,
    AttrSetConstraint,
    BaseAttr,
    EqAttrConstraint,
    MessageConstraint,
    ParamAttrConstraint,
    RangeConstraint,
    RangeLengthConstraint,
    RangeOf,
    RangeVarConstraint,
    VarConstraint,
)

_BUILTIN_NAMES = {
    "array": "array",
    "builtin.int": "integer",
    "bool": "boolean",
    "bytes": "bytes",
    "dictionary": "dictionary",
    "float": "float",
    "integer": "integer",
    "string": "string",
    "symbol_ref": "symbol",
    "tensor": "tensor",
    "unit": "present or not",
}

# What says nothing about a parameter: anything, or the shape of any tensor.
_UNCONSTRAINED = {"any", "array of integer"}


def name_of(attribute: type[Attribute]) -> str:
    """An attribute or type as one refers to it: `tensor`, `!lamp.float`, `#onnx.mask`; an abstract one by its class."""
    name = getattr(attribute, "name", None)
    if not isinstance(name, str):
        return attribute.__name__
    if name in _BUILTIN_NAMES:
        return _BUILTIN_NAMES[name]
    if "." not in name:
        return name
    return f"`{'!' if issubclass(attribute, TypeAttribute) else '#'}{name}`"


def describe(constraint: AttrConstraint | RangeConstraint) -> str:
    """A constraint in words, as far as words are short; the verifier and the docstring say the rest."""
    match constraint:
        case AnyAttr():
            return "any"
        case BaseAttr():
            return name_of(constraint.attr)
        case EqAttrConstraint():
            return f"`{constraint.attr}`"
        case AttrSetConstraint():
            return " or ".join(sorted(f"`{value}`" for value in constraint.values))
        case AnyOf():
            return " or ".join(describe(option) for option in constraint.attr_constrs)
        case AllOf():
            parts = [describe(part) for part in constraint.attr_constrs]
            return " and ".join(part for part in dict.fromkeys(parts) if part != "any") or "any"
        case VarConstraint():
            return f"{describe(constraint.constraint)} (`{constraint.name}`)"
        case MessageConstraint():
            return describe(constraint.constr)
        case ArrayOfConstraint():
            return f"array of {describe(constraint.elem_range_constraint)}"
        case ParamAttrConstraint():
            return _parametrised(constraint.base_attr, constraint.param_constrs)
        case RangeOf():
            return describe(constraint.constr)
        case RangeLengthConstraint() | RangeVarConstraint():
            return describe(constraint.constraint)
        case _:
            return type(constraint).__name__


def _parametrised(base: type[Attribute], parameters: tuple[AttrConstraint, ...]) -> str:
    described = [describe(parameter) for parameter in parameters]
    telling = [text for text in described if text not in _UNCONSTRAINED]
    return f"{name_of(base)} of {', '.join(telling)}" if telling else name_of(base)
