"""The page of all passes, in pipeline order: what each does, its example and its options."""

import ast
import dataclasses
import inspect
import textwrap
from types import UnionType
from typing import Literal, Union, cast, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass

from lampc.docgen.dialect_page import table
from lampc.docgen.docstrings import definitions, docstring, inline, markdown, summary

_INTRODUCTION = """# Passes

In the order of the pipeline. Each is one file of passes/, runs alone under `lampc-opt FILE -p 'NAME{option=value}'`, and
is tested by the file of its name under tests/filecheck/passes. The examples below are tests as well."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a pass as its page shows it; `default` is None where a value must be given."""

    name: str
    type: str
    default: str | None
    meaning: str


def pass_page(passes: list[type[ModulePass]]) -> str:
    """The Markdown page of `passes`."""
    contents = [[f"[`{each.name}`](#{each.name})", inline(summary(docstring(each)))] for each in passes]
    parts = [_INTRODUCTION, table(["pass", "what it does"], contents)]
    for each in passes:
        parts += [
            f"## `{each.name}`",
            markdown(docstring(each)),
            _options_table(pass_options(each)),
            f"Defined in `{each.__module__.removeprefix('lampc.').replace('.', '/')}.py`.",
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _options_table(options: list[Option]) -> str:
    """Options that the docstring explains in prose have no meaning of their own; without any, there is no such column."""
    rows = [[f"`{o.name}`", o.type, "required" if o.default is None else o.default] for o in options]
    if not any(option.meaning for option in options):
        return table(["option", "type", "default"], rows)
    meanings = [inline(option.meaning) for option in options]
    return table(["option", "type", "default", "meaning"], [[*row, m] for row, m in zip(rows, meanings, strict=True)])


def pass_options(each: type[ModulePass]) -> list[Option]:
    """
    The options of a pass, in declaration order.

    What an option means is the string below its field, or else the aligned definition of its name in the docstring.
    """
    types = get_type_hints(each)
    meanings = definitions(docstring(each)) | _field_docstrings(each)
    options: list[Option] = []
    for field in dataclasses.fields(each):
        name = field.name.replace("_", "-")
        meaning = meanings.get(field.name, meanings.get(name, ""))
        options.append(Option(name, _type(types[field.name]), _default(field), meaning))
    return options


def _field_docstrings(each: type[ModulePass]) -> dict[str, str]:
    """The string that stands below each field in the source; Python itself does not keep it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[field.target.id] = " ".join(text.split())
                case _:
                    pass
    return found


def _type(hint: object) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join("none" if argument is type(None) else _type(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _default(field: "dataclasses.Field[object]") -> str | None:
    if field.default_factory is not dataclasses.MISSING:
        return _value(field.default_factory())
    return None if field.default is dataclasses.MISSING else _value(field.default)


def _value(value: object) -> str:
    """A default as one would write it in a pipeline."""
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            items = cast(tuple[object, ...], value)
            return f"`{','.join(map(str, items))}`" if items else "empty"
        case _:
            return f"`{value}`"
