"""The documentation generator on its own."""

from dataclasses import dataclass
from typing import Literal

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, f32
from xdsl.irdl import AnyAttr, AnyOf, BaseAttr, EqAttrConstraint, VarConstraint
from xdsl.passes import ModulePass

from lampc.docgen.constraints import describe
from lampc.docgen.docstrings import PassExample, definitions, inline, markdown, pass_examples, summary
from lampc.docgen.pass_page import Option, pass_options, pass_page


@dataclass(frozen=True)
class ExamplePass(ModulePass):
    """
    Do nothing: for this test.

    tile    rows of a tile,
            at least one
    """

    name = "lamp-example"

    tile: int = 16
    policy: Literal["lamp", "low"] = "lamp"
    """Which sub-blocks are
    recomputed."""
    limit: float | None = None
    exact: bool = False
    sizes: tuple[int, ...] = (1, 2)

    def apply(self, ctx: Context, op: ModuleOp) -> None: ...


def test_options_with_types_defaults_and_meanings():
    assert pass_options(ExamplePass) == [
        Option("tile", "int", "`16`", "rows of a tile, at least one"),
        Option("policy", "`lamp` or `low`", "`lamp`", "Which sub-blocks are recomputed."),
        Option("limit", "float or none", "none", ""),
        Option("exact", "bool", "`false`", ""),
        Option("sizes", "list of int", "`1,2`", ""),
    ]


def test_pass_page_shows_summary_docstring_and_options():
    page = pass_page([ExamplePass])
    assert "| [`lamp-example`](#lamp-example) | Do nothing: for this test |" in page
    assert "- `tile`: rows of a tile, at least one" in page
    assert "| `policy` | `lamp` or `low` | `lamp` | Which sub-blocks are recomputed. |" in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One line.", "One line"),
        ("Ends a body: its operands.\n\nMore.", "Ends a body: its operands"),
        ("First sentence. Second one.", "First sentence"),
        ("Split axes: `x.y` shows it.", "Split axes"),
        ("Section 4.2 of\nthe page.", "Section 4.2 of the page"),
    ],
)
def test_summary_is_the_first_sentence(text: str, expected: str):
    assert summary(text) == expected


def test_markdown_keeps_code_and_escapes_prose():
    text = "i <= j * 2, `a <= b`; docs/lampattention.md section 4.\n\n```mlir\n%x = a.b<c> *\n\n%y\n```\nAfter."
    assert markdown(text, "../") == (
        "i \\<= j \\* 2, `a <= b`; [lampattention.md](../lampattention.md) section 4.\n\n"
        "```mlir\n%x = a.b<c> *\n\n%y\n```\n\nAfter."
    )


def test_markdown_keeps_indented_code():
    assert markdown("Syntax:\n\n    a.op %x : a<b>  * 2") == "Syntax:\n\n    a.op %x : a<b>  * 2"


def test_definitions_need_two_spaces_on_every_entry():
    assert definitions("query   [b, h]\nmask    at most\n        four axes") == {"query": "[b, h]", "mask": "at most four axes"}
    assert definitions("Some prose  with two spaces\nand a second line.") == {}


def test_names_of_pages_in_code_spans_stay():
    assert inline("`isa.md` and isa.md") == "`isa.md` and [isa.md](isa.md)"


def test_examples_of_a_pass():
    text = "Do.\n\nBefore:\n```mlir\na\n```\nAfter `x{y=1}`:\n```mlir\nb\n```\nAfter ``x,cse``:\n```mlir\nc\n```\nSource: here."
    assert pass_examples(text) == [PassExample("a", "x{y=1}", "b"), PassExample("a", "x,cse", "c")]


@pytest.mark.parametrize(
    "text",
    [
        "Before:\n```mlir\na\n```",
        "After `x`:\n```mlir\na\n```",
        "Before:\n```mlir\na\n```\nAfter:\n```mlir\nb\n```",
    ],
)
def test_incomplete_examples_are_refused(text: str):
    with pytest.raises(ValueError):
        pass_examples(text)


def test_constraints_in_words():
    assert describe(AnyAttr()) == "any"
    assert describe(BaseAttr(StringAttr)) == "string"
    assert describe(EqAttrConstraint(f32)) == "`f32`"
    assert describe(AnyOf.get(BaseAttr(StringAttr), BaseAttr(IntegerAttr))) == "string or integer"
    assert describe(VarConstraint("T", BaseAttr(TensorType))) == "tensor (`T`)"
    assert describe(TensorType.constr(EqAttrConstraint(f32))) == "tensor of `f32`"
