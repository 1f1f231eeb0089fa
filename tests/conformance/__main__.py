"""
`make conformance`: count what lampc recognises and gets right, print the table, list every case that is not raised.

Runs ONNX's own suite of Attention and, where CORPUS (default ../shared/corpus) exists, its folders models, zoo, real and bad.
Exit code 1 if any case is wrong. `--write-docs` puts the table into README.md and docs/conformance.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from lampc import __version__
from lampc.artefacts import write_file
from tests.conformance import cases
from tests.conformance.cases import Case, Outcome, Verdict
from tests.models.whole import CORPUS
from tests.unit.frontend.test_hostile import CORPUS_CODES

ROOT = Path(__file__).resolve().parents[2]
VERDICTS: tuple[Verdict, ...] = ("raised", "left alone", "no reference", "wrong")
BEGIN, END = "<!-- conformance: begin -->", "<!-- conformance: end -->"
COMMAND = "make conformance"


def sets() -> Iterator[tuple[str, list[tuple[str, Callable[[], Outcome]]]]]:
    """Name of each set, and its cases: a name, and what judges it."""

    def judged(found: Iterator[Case]) -> list[tuple[str, Callable[[], Outcome]]]:
        return [(case.name, lambda case=case: cases.judge(case)) for case in found]

    yield "ONNX suite, the operator", judged(cases.onnx_suite(expanded=False))
    yield "ONNX suite, decomposed", judged(cases.onnx_suite(expanded=True))
    if CORPUS.is_dir():
        yield "corpus/models", judged(cases.corpus_models("models"))
        yield "corpus/zoo", judged(cases.zoo())
        yield "corpus/real", judged(cases.corpus_models("real"))
        yield "corpus/bad", list(cases.hostile(CORPUS_CODES))


def table(results: dict[str, list[Outcome]]) -> str:
    """Markdown: a row for each set."""
    head = ("set", "cases", "raised and right", "left alone or refused, rightly", "onnxruntime cannot run it", "wrong")
    rows = [head, ("---", *["---:"] * (len(head) - 1))]
    for name, outcomes in results.items():
        counts = [sum(outcome.verdict == verdict for outcome in outcomes) for verdict in VERDICTS]
        rows.append((name, str(len(outcomes)), *map(str, counts)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def listing(results: dict[str, list[Outcome]]) -> str:
    """Markdown: every case that is not simply raised and right, and why."""
    lines: list[str] = []
    for name, outcomes in results.items():
        others = [outcome for outcome in outcomes if outcome.verdict != "raised" and name != "corpus/bad"]
        others += [outcome for outcome in outcomes if outcome.verdict == "wrong" and name == "corpus/bad"]
        if others:
            lines += ["", f"## {name}", ""]
        for outcome in others:
            lines.append(
                f"- `{outcome.case}`: {outcome.verdict}" + (", " + _code(outcome.reasons[-1]) if outcome.reasons else "")
            )
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|").replace("<", "&lt;")


def versions() -> str:
    """What the counts belong to."""
    return f"lampc {__version__}, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}"


def page(results: dict[str, list[Outcome]]) -> str:
    """docs/conformance.md."""
    narrow = f"{cases.HALF_TOLERANCE:g} where there is FP16, {cases.NARROW_TOLERANCE:g} bf16"
    limits = f"{cases.TOLERANCE:g} of its largest value ({narrow})"
    return f"""# Conformance

Written by `{COMMAND} WRITE=1` with {versions()}; do not edit.

A case is right if every output agrees with the expected one, else with onnxruntime's on the unmodified model, within
{limits}. Attentions run under `--policy fp32` semantics.
A hostile model (corpus/bad) is right if it gives the error that [onnx.md](onnx.md) names for it, in one line, with exit
code 1, within {cases.SECONDS:g} s and {cases.MEGABYTES} MB; those that are merely odd must import.

{table(results)}
Every case that is not simply raised and right:
{listing(results)}"""


def write_docs(results: dict[str, list[Outcome]]) -> None:
    """The page, and the table between the markers of README.md."""
    write_file(ROOT / "docs" / "conformance.md", page(results).encode())
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_file(readme, f"{before}{BEGIN}\n{table(results)}{END}{after}".encode())


def main(words: Sequence[str] | None = None) -> int:
    """Run, print, say by the exit code whether all is right."""
    parser = argparse.ArgumentParser(
        "tests.conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="F.json", help="write every outcome here")
    parser.add_argument("--write-docs", action="store_true", help="write docs/conformance.md and the table in README.md")
    arguments = parser.parse_args(words)
    if not CORPUS.is_dir():
        if arguments.write_docs:
            parser.error(f"no corpus at {CORPUS}: the pages would lose its rows; set CORPUS")
        print(f"no corpus at {CORPUS}: only ONNX's own suite runs; set CORPUS to its folder for the rest", file=sys.stderr)
    results: dict[str, list[Outcome]] = {}
    begin = time.perf_counter()
    for name, entries in sets():
        results[name] = []
        for number, (case, judge) in enumerate(entries, 1):
            if sys.stderr.isatty():
                print(f"\r\x1b[K{name} {number} of {len(entries)}: {case[:60]}", end="", file=sys.stderr, flush=True)
            results[name].append(judge())
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(f"{table(results)}{listing(results)}\n{versions()}; {time.perf_counter() - begin:.0f} s")
    if arguments.json is not None:
        data = {name: [vars(outcome) for outcome in outcomes] for name, outcomes in results.items()}
        write_file(arguments.json, (json.dumps({"versions": versions(), "sets": data}, indent=1) + "\n").encode())
    if arguments.write_docs:
        write_docs(results)
    return int(any(outcome.verdict == "wrong" for outcomes in results.values() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
