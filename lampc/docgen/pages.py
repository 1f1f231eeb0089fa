"""Which pages there are, and how they compare with those in docs/."""

from importlib import import_module
from pathlib import Path

from lampc import registry
from lampc.docgen.dialect_page import dialect_page
from lampc.docgen.pass_page import pass_page

PASS_PAGE = "passes.md"


def dialect_path(name: str) -> str:
    """The page of dialect `name`, relative to docs/."""
    return f"dialects/{name}.md"


def render(page: str) -> str:
    """The text of one page, from the code as it is now. Raises KeyError for a name that is no page."""
    if page == PASS_PAGE:
        return pass_page([load() for load in registry.get_all_passes().values()])
    (name,) = (name for name in registry.DIALECTS if dialect_path(name) == page)
    module = import_module(registry.DIALECTS[name].split(":")[0])
    return dialect_page(registry.get_all_dialects()[name](), module)


def page_names() -> list[str]:
    """Every generated page, relative to docs/."""
    return [*map(dialect_path, registry.DIALECTS), PASS_PAGE]


def write(docs: Path) -> None:
    """Write every page into the folder `docs` and drop pages of dialects that are gone."""
    for page in page_names():
        path = docs / page
        path.parent.mkdir(exist_ok=True)
        path.write_text(render(page))
    for page in _orphans(docs):
        (docs / page).unlink()


def outdated(docs: Path) -> list[str]:
    """The pages in the folder `docs` that differ from what the code says, are missing, or belong to nothing."""
    stale = [page for page in page_names() if not (docs / page).is_file() or (docs / page).read_text() != render(page)]
    return stale + _orphans(docs)


def _orphans(docs: Path) -> list[str]:
    known = set(page_names())
    present = (str(path.relative_to(docs)) for path in sorted(docs.glob("dialects/*.md")))
    return [page for page in present if page not in known]
