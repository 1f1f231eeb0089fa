"""The table a plain run prints, from its report."""

from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any

from lampc.errors import printable

Json = dict[str, Any]


def render(report: Json, folder: Path | None) -> str:
    """A short table of a report; `folder` is where the artefacts are."""
    lines = [*_model(report), *_attentions(report), *_precision(report)]
    if report["totals"]["live_tiles"]:
        lines += _tiles(report["totals"])
    if report["totals"]["programs"]:
        lines += _cycles(report)
    lines += _accuracy(report)
    lines += [("warning", warning) for warning in report["warnings"]]
    if folder is not None:
        lines.append(("artefacts", printable(str(folder), 300)))
    width = max(len(label) for label, _ in lines) + 2
    return "\n".join(f"{label:<{width}}{text}".rstrip() for label, text in lines) + "\n"


def _model(report: Json) -> list[tuple[str, str]]:
    shapes = ", ".join(
        f"{printable(name)} {'x'.join(map(str, s)) or 'scalar'}" for name, s in report["inputs"]["shapes"].items()
    )
    source = printable(report["inputs"]["source"], 200)
    if report["inputs"]["synthetic"]:
        source = f"SYNTHETIC (no --inputs): {source.removeprefix('synthetic, ')}; accuracy and statistics say little"
    return [
        ("model", f"{printable(report['model']['path'], 200)}  (sha256 {report['model']['sha256'][:12]})"),
        ("inputs", f"{source}  [{shapes}]"),
    ]


def _attentions(report: Json) -> list[tuple[str, str]]:
    found, rejected = report["attention"], report["rejected"]
    text = _plural(len(found), "attention")
    if found:
        kinds: dict[str, int] = {}
        for each in found:
            kind = _shape_text(each.get("shape", {}))
            kinds[kind] = kinds.get(kind, 0) + 1
        shapes = ", ".join(f"{count} x [{kind}]" if len(kinds) > 1 else f"[{kind}]" for kind, count in kinds.items())
        text += f" {shapes}"
    elif not rejected:
        text += "; nothing in the model looks like one"
    if rejected:
        text += f"; {_plural(len(rejected), 'candidate')} not raised:"
    lines = [("found", text)]
    for each in rejected[:10]:
        form = f" ({printable(each['form'], 60)})" if each.get("form") else ""
        lines.append(("", f"- {printable(each.get('node', '?'))}{form}: {printable(each.get('reason', ''), 300)}"))
    if len(rejected) > 10:
        lines.append(("", f"- and {len(rejected) - 10} more, in report.json"))
    return lines


def _shape_text(shape: Json) -> str:
    if not shape:
        return "unknown shape"
    heads = f"{shape['query_heads']}" + (f"/{shape['kv_heads']}" if shape["kv_heads"] != shape["query_heads"] else "")
    size = f"{shape['head_size']}" + (f"/{shape['value_size']}" if shape["value_size"] != shape["head_size"] else "")
    batch = f"batch {shape['batch']}, " if shape["batch"] != 1 else ""
    return f"{batch}{heads} heads, {shape['queries']} queries x {shape['keys']} keys, d {size}"


def _precision(report: Json) -> list[tuple[str, str]]:
    options = report["options"]
    policy = options["policy"]
    tiles = f"{options['bq']} x {options['bk']} sub-blocks, {options['nk']} to a tile"
    if not report["attention"]:
        return []
    if policy == "host":
        return [("scheme", "none: the host runs the model's own attentions, each a segment")]
    operands = "/".join(report["attention"][0].get("formats", {}).get("operands", ["?"]))
    if policy == "fp32":
        return [
            (
                "scheme",
                f"FlashAttention-2 in FP32; {options['bq']} x {options['bk'] * options['nk']} tiles; operands {operands}",
            )
        ]
    text = {"lamp": "LampAttention", "low": "8 bit only", "high": "16 bit only"}[policy]
    if policy == "lamp":
        stage1 = f"delta {_power(options['delta'])}" if options["stage1"] else "stage 1 off"
        stage2 = f"tau {options['tau']:g}" if options["stage2"] else "stage 2 off"
        text += f", {stage1}, {stage2}"
    return [("scheme", f"{text}; preset {options['preset']}; {tiles}; operands {operands}")]


def _power(value: float) -> str:
    exponent = log2(value) if value > 0 else 0.5
    return f"2^{int(exponent)}" if exponent == int(exponent) else f"{value:g}"


def _tiles(totals: Json) -> list[tuple[str, str]]:
    live = totals["live_tiles"]
    zero, one, more = (f"{100 * count / live:.1f} %" for count in totals["columns"])
    lines = [("tiles", f"sub-blocks recomputed: none {zero}, one {one}, two or more {more} (of {live:,} live tiles)")]
    notes = [f"{count:,} accumulators saturated in {name}" for name, count in totals["saturated"].items()]
    if notes:
        notes.append(f"largest {totals['largest_accumulator']:g}, limit {totals['limit']:g}")
        lines.append(("", "; ".join(notes)))
    return lines


def _cycles(report: Json) -> list[tuple[str, str]]:
    programs, machines = report["totals"]["programs"], list(report["machines"])
    rows: list[list[str]] = [["", *machines]]
    first = next(iter(programs))
    for name, timings in programs.items():
        row = [name]
        for machine in machines:
            timing = timings[machine]
            binding = max(timing["binding"], key=timing["binding"].__getitem__)
            ratio = timing["cycles"] / timing["bound"] if timing["bound"] else float("inf")
            row.append(f"{timing['cycles']:,}  ({ratio:.2f} x {binding} bound)")
        rows.append(row)
    for name in list(programs)[1:]:
        speed = [programs[name][machine]["cycles"] / programs[first][machine]["cycles"] for machine in machines]
        rows.append([f"{first} against {name}", *(f"{value:.2f} x" for value in speed)])
    return [("cycles" if index == 0 else "", line) for index, line in enumerate(_columns(rows))]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _accuracy(report: Json) -> list[tuple[str, str]]:
    accuracy = report["accuracy"]
    if accuracy is None:
        return []
    lines: list[tuple[str, str]] = []
    for index, each in enumerate(accuracy["outputs"][:8]):
        text = (
            f"{printable(each['output'])}: largest difference {each['max_abs']:.3g} "
            f"({each['max_rel']:.2e} of the largest value), cosine {each['cosine']:.8f}"
        )
        if each["mismatched"]:
            text += f", {each['mismatched']:,} entries NaN or infinite in one only"
        lines.append(("error" if index == 0 else "", text))
    if len(accuracy["outputs"]) > 8:
        lines.append(("", f"and {len(accuracy['outputs']) - 8} more outputs, in report.json"))
    if "perplexity" in accuracy:
        text = f"{accuracy['perplexity']:.3f}, onnxruntime in FP32 {accuracy['reference_perplexity']:.3f}"
        lines.append(("perplexity", text))
    lines.append(("", f"against {accuracy['against']} on the unmodified model"))
    return lines


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
