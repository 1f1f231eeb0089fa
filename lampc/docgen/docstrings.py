"""
Docstrings as Markdown, and the before/after examples in those of passes.

A docstring is prose, code (fenced or indented), and aligned definitions such as

    query   [batch, heads, queries, size]
    mask    at most four axes,
            broadcast from the right

which become a list.
"""

import inspect
import re
from dataclasses import dataclass

_FENCE = re.compile(r"^```")
_CODE_SPAN = re.compile(r"(`[^`]*`)")
_PAGE = re.compile(r"\b(?:docs/)?([a-z_]+)\.md\b")
_DEFINITION = re.compile(r"^(\S+(?: \S+)*?) {2,}(\S.*)$")
_AFTER = re.compile(r"^After (`+)(.+?)\1:$")


def docstring(item: object) -> str:
    """The docstring of a module or class itself, dedented; empty without one (an inherited one describes something else)."""
    return inspect.cleandoc(vars(item).get("__doc__") or "")


def summary(text: str) -> str:
    """The first sentence of a docstring on one line, without its final stop or colon."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    end = re.search(r"[.:](?= [A-Z`]|$)", paragraph)
    return (paragraph[: end.start()] if end else paragraph).rstrip(".:")


def definitions(text: str) -> dict[str, str]:
    """The aligned definitions of a docstring: name and text on one line."""
    found: dict[str, str] = {}
    for block in _blocks(text):
        if not block[0].startswith("```") and (entries := _definition_list(block)):
            found.update(entries)
    return found


def markdown(text: str, pages: str = "") -> str:
    """
    A docstring as Markdown.

    Pages of the documentation that it names become links; `pages` is the way from the new page to them ("../").
    """
    parts: list[str] = []
    for block in _blocks(text):
        if _FENCE.match(block[0]) or all(line.startswith("    ") for line in block):
            parts.append("\n".join(block))
        elif entries := _definition_list(block):
            parts.append("\n".join(f"- `{name}`: {inline(meaning, pages)}" for name, meaning in entries.items()))
        else:
            parts.append(inline("\n".join(block), pages))
    return "\n\n".join(parts)


def inline(text: str, pages: str = "") -> str:
    """Prose in which nothing but code spans is markup, with links to the pages that it names."""

    def prose(span: str) -> str:
        return _PAGE.sub(rf"[\1.md]({pages}\1.md)", re.sub(r"([<*])", r"\\\1", span))

    return "".join(span if span.startswith("`") else prose(span) for span in _CODE_SPAN.split(text))


def _blocks(text: str) -> list[list[str]]:
    """The paragraphs and fenced blocks of a docstring, as lines."""
    blocks: list[list[str]] = [[]]
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            if not fenced:
                blocks.append([])
            blocks[-1].append(line)
            if fenced:
                blocks.append([])
            fenced = not fenced
        elif fenced or line.strip():
            blocks[-1].append(line)
        else:
            blocks.append([])
    return [block for block in blocks if block]


def _definition_list(block: list[str]) -> dict[str, str]:
    """Name and text of each entry if the whole block is aligned definitions, else nothing."""
    entries: dict[str, str] = {}
    name = ""
    for line in block:
        if match := _DEFINITION.match(line):
            name = match.group(1).strip("`")
            entries[name] = match.group(2)
        elif name and line.startswith("  "):
            entries[name] += " " + line.strip()
        else:
            return {}
    return entries


@dataclass(frozen=True)
class PassExample:
    """IR before and after a pipeline, as written in the docstring of a pass."""

    before: str
    pipeline: str
    after: str


def pass_examples(text: str) -> list[PassExample]:
    """
    The examples in the docstring of a pass: `Before:`, a fence, then one or more of "After `pipeline`:", a fence.

    Raises ValueError if a part is missing or out of order.
    """
    examples: list[PassExample] = []
    before = ""
    heading = ""
    for block in _blocks(text):
        if not _FENCE.match(block[0]):
            heading = block[-1].strip()
            continue
        code = "\n".join(block[1:-1])
        if heading == "Before:":
            before = code
        elif match := _AFTER.match(heading):
            if not before:
                raise ValueError(f"{heading!r} comes before 'Before:'")
            examples.append(PassExample(before, match.group(2).strip(), code))
        elif "```mlir" in block[0]:
            raise ValueError(f"IR under {heading!r}; expected 'Before:' or 'After `pipeline`:'")
        heading = ""
    if before and not examples:
        raise ValueError("'Before:' without 'After `pipeline`:'")
    return examples
