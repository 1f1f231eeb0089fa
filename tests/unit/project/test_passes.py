"""Every registered pass: its names, its lit file, its options, and the examples in its docstring."""

import re
from io import StringIO
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr, UnknownLoc
from xdsl.parser import Parser
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer

from lampc import registry
from lampc.docgen.docstrings import PassExample, docstring, pass_examples, summary
from lampc.docgen.pass_page import pass_options
from lampc.opt import LampcOptMain

PASSES = list(registry.PASSES)


def pass_class(name: str) -> type[ModulePass]:
    return registry.get_all_passes()[name]()


def examples(name: str) -> list[PassExample]:
    found = pass_examples(docstring(pass_class(name)))
    assert found, f"the docstring of {name} has no Before/After example"
    return found


def parse(context: Context, text: str) -> ModuleOp:
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def run(example: PassExample, module: ModuleOp, driver: LampcOptMain) -> None:
    PassPipeline.parse_spec(driver.available_passes, example.pipeline).apply(driver.ctx, module)
    module.verify()


def without_names(module: ModuleOp) -> str:
    """The module as printed text in which only order, not the author, names values."""
    for op in module.walk():
        for value in (*op.results, *(argument for region in op.regions for block in region.blocks for argument in block.args)):
            value.name_hint = None
    text = StringIO()
    Printer(text).print_op(module)
    return text.getvalue()


@pytest.fixture
def driver() -> LampcOptMain:
    return LampcOptMain(args=[])


@pytest.mark.parametrize("name", PASSES)
def test_name_file_and_class_agree(name: str):
    stem = name.removeprefix("lamp-").replace("-", "_")
    each = pass_class(name)
    assert name.startswith("lamp-")
    assert each.name == name
    assert each.__module__ == f"lampc.passes.{stem}"
    assert each.__name__ == "".join(word.capitalize() for word in stem.split("_")) + "Pass"


def test_every_pass_is_registered(root: Path):
    names = {
        match.group(1)
        for path in (root / "passes").rglob("*.py")
        for match in re.finditer(r'^    name = "(lamp-[a-z0-9-]+)"$', path.read_text(), re.MULTILINE)
    }
    assert names == set(PASSES)


@pytest.mark.parametrize("name", PASSES)
def test_has_a_lit_file_of_its_name(root: Path, name: str):
    stem = name.removeprefix("lamp-").replace("-", "_")
    text = (root / "tests" / "filecheck" / "passes" / f"{stem}.mlir").read_text()
    runs = [line for line in text.splitlines() if line.startswith("// RUN:")]
    assert any(name in line for line in runs)
    assert "CHECK" in text


@pytest.mark.parametrize("name", PASSES)
def test_docstring_tells_what_and_every_option(name: str):
    each = pass_class(name)
    text = docstring(each)
    assert summary(text)
    silent = [o.name for o in pass_options(each) if not o.meaning and not re.search(rf"`{re.escape(o.name)}[`=]", text)]
    assert silent == []


@pytest.mark.parametrize("name", PASSES)
def test_examples_are_true(name: str, driver: LampcOptMain):
    for example in examples(name):
        assert name in example.pipeline
        module = parse(driver.ctx, example.before)
        run(example, module, driver)
        assert without_names(module) == without_names(parse(driver.ctx, example.after))


@pytest.mark.parametrize("name", PASSES)
def test_keeps_locations(name: str, driver: LampcOptMain):
    """Every op after a pass must come from some op before it, and say so."""
    for example in examples(name):
        module = parse(driver.ctx, example.before)
        for i, op in enumerate(module.walk()):
            op.location = NameLoc(StringAttr(f"origin-{i}"), UnknownLoc())
        run(example, module, driver)
        assert [str(op) for op in module.walk() if "origin-" not in str(op.location)] == []
