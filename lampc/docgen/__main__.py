"""`python -m lampc.docgen [--check] [--docs DIR]`: write the reference pages, or say which are out of date."""

import argparse
import sys
from pathlib import Path

from lampc.docgen.pages import outdated, write


def main() -> int:
    """Exit code 1 if `--check` finds a page out of date, else 0."""
    parser = argparse.ArgumentParser(prog="python -m lampc.docgen", description="Write docs/ pages from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing; list the pages that are out of date")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the folder of the pages (default: docs)")
    options = parser.parse_args()
    if not options.docs.is_dir():
        parser.error(f"{options.docs} is no folder; run this in the repository's root")
    if not options.check:
        write(options.docs)
        return 0
    stale = outdated(options.docs)
    for page in stale:
        print(f"{options.docs / page} is out of date; run: make docs")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
