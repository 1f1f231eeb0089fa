"""`lampc MODEL --explain` in a process of its own, and on stdout the memory and processor time it took: for hostile models."""

import json
import sys
import time

from lampc import cli
from tests.conformance.cases import peak_bytes


def main(words: list[str]) -> int:
    """The exit code of `lampc`; without a model 0, after importing what it imports."""
    status = 0
    try:
        cli.main([*words, "--explain", "--quiet"] if words else ["--version"])
    except SystemExit as stop:
        status = int(stop.code or 0)
    print("\n" + json.dumps({"bytes": peak_bytes(), "seconds": time.process_time()}))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
