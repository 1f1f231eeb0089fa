"""The page of one dialect: every op, type and attribute, from its definition and docstring."""

from enum import StrEnum
from types import ModuleType

from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import IRDLOperation, OpDef, OptionalDef, VariadicDef
from xdsl.irdl.operations import AttrOrPropDef

from lampc.docgen.constraints import describe
from lampc.docgen.docstrings import docstring, inline, markdown, summary

_PAGES = "../"
_FORMAT_WIDTH = 100
_VARIABLES = (
    "A letter in brackets, such as (`T`), stands for one attribute: it is the same wherever the letter stands in an operation."
)
# xDSL's own record of how many operands belong to each optional or variadic one.
_SEGMENTS = {"operandSegmentSizes", "resultSegmentSizes", "regionSegmentSizes", "successorSegmentSizes"}


def dialect_page(dialect: Dialect, module: ModuleType) -> str:
    """
    The Markdown page of `dialect`, whose definition is in `module`.

    Raises TypeError for an op that is not defined with xDSL's `irdl_op_definition`.
    """
    operations = list(dialect.operations)
    attributes = list(dialect.attributes)
    types = [attribute for attribute in attributes if issubclass(attribute, TypeAttribute)]
    others = [attribute for attribute in attributes if attribute not in types]
    parts = [f"# The `{dialect.name}` dialect", markdown(docstring(module), _PAGES), _contents(operations)]
    # Operations first: a type may share the name of an operation, and links lead to the first heading of a name.
    parts += ["## Operations", _VARIABLES, *(part for operation in operations for part in _operation(operation))]
    for title, items in (("Types", types), ("Attributes", others)):
        if items:
            parts += [f"## {title}", *(part for item in items for part in _attribute(item))]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, or nothing without rows; cells may hold `|`."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _anchor(name: str) -> str:
    """The anchor that a heading `name` gets: lower case, dots and backticks dropped."""
    return name.lower().replace(".", "")


def _contents(operations: list[type[Operation]]) -> str:
    rows = [
        [f"[`{operation.name}`](#{_anchor(operation.name)})", inline(summary(docstring(operation)), _PAGES)]
        for operation in operations
    ]
    return table(["operation", "what it does"], rows)


def _origin(item: type) -> str:
    """Where a class is written, as a path in the repository."""
    path = item.__module__.removeprefix("lampc.").replace(".", "/")
    return f"Defined in `{path}.py`."


def _attribute(attribute: type[Attribute]) -> list[str]:
    sign = "!" if issubclass(attribute, TypeAttribute) else "#"
    parts = [f"### `{sign}{attribute.name}`", markdown(docstring(attribute), _PAGES)]
    enum_type: type[StrEnum] | None = getattr(attribute, "enum_type", None)
    if enum_type is not None:
        parts.append("One of " + ", ".join(f"`{member.value}`" for member in enum_type) + ".")
    if issubclass(attribute, ParametrizedAttribute):
        parameters = attribute.get_irdl_definition().parameters
        parts.append(table(["parameter", "what it may be"], [[f"`{n}`", describe(p.constr)] for n, p in parameters]))
    return [*parts, _origin(attribute)]


def _operation(operation: type[Operation]) -> list[str]:
    if not issubclass(operation, IRDLOperation):
        raise TypeError(f"{operation.__name__} has no IRDL definition")
    definition = operation.get_irdl_definition()
    return [
        f"### `{operation.name}`",
        markdown(docstring(operation), _PAGES),
        _syntax(definition),
        _parts_table(definition),
        _traits(definition),
        _origin(operation),
    ]


def _syntax(definition: OpDef) -> str:
    """The declarative assembly format, broken between words; ops that parse themselves show their syntax in the docstring."""
    if definition.assembly_format is None:
        return ""
    lines = [definition.name]
    for word in definition.assembly_format.split():
        if len(lines[-1]) + 1 + len(word) > _FORMAT_WIDTH:
            lines.append("   ")
        lines[-1] += " " + word
    return "\n".join(["```text", *lines, "```"])


def _parts_table(definition: OpDef) -> str:
    rows: list[list[str]] = []
    for role, parts in (("operand", definition.operands), ("result", definition.results)):
        rows += [[f"`{name}`", role + _count(part), describe(part.constr)] for name, part in parts]
    for role, fields in (("property", definition.properties), ("attribute", definition.attributes)):
        rows += [
            [f"`{name}`", role + _default(field), describe(field.constr)]
            for name, field in fields.items()
            if name not in _SEGMENTS
        ]
    for name, region in definition.regions:
        arguments = describe(region.entry_args)
        what = "any block arguments" if arguments == "any" else f"block arguments: {arguments}"
        rows.append([f"`{name}`", "region" + _count(region), what])
    rows += [[f"`{name}`", "successor", "block"] for name, _ in definition.successors]
    return table(["name", "role", "what it may be"], rows)


def _count(part: object) -> str:
    if isinstance(part, OptionalDef):
        return ", optional"
    return ", any number" if isinstance(part, VariadicDef) else ""


def _default(field: AttrOrPropDef) -> str:
    if field.default_value is not None:
        return f", default `{field.default_value}`"
    return ", optional" if isinstance(field, OptionalDef) else ""


def _traits(definition: OpDef) -> str:
    """The public traits by name: what generic passes may rely on."""
    names = sorted(name for trait in definition.traits if not (name := type(trait).__name__).startswith("_"))
    return f"Traits: {', '.join(names)}." if names else ""
