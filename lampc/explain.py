"""
What became of every region of a model that looks like attention: raised to what, or where and why matching stopped.

Source: docs/onnx.md section 5.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, TensorType, i1
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from lampc.dialects.attn import AttentionOp, RearrangeOp
from lampc.dialects.onnx import ConstantOp, InitializerOp, NodeOp
from lampc.driver import Request, open_model, rejected_of
from lampc.errors import LampcError, printable
from lampc.frontend.importer import import_model
from lampc.frontend.model import Model
from lampc.ir import tensor_shape
from lampc.passes.raising.candidates import sites
from lampc.passes.raising.graph import name_of
from lampc.pipeline import run_pipeline

Json = dict[str, Any]

SCHEMA = 1
"""Version of the JSON that `Explanation.to_json` gives; it changes when a field does."""


@dataclass(frozen=True)
class Explanation:
    """
    regions  one for every candidate, in the order of the graph: `raised` true with what it became, or false with `reason`
    """

    model: Model
    regions: list[Json]

    @property
    def raised(self) -> int:
        """How many regions became an `attn.attention`."""
        return sum(region["raised"] for region in self.regions)

    def to_json(self) -> Json:
        """Everything, in plain values."""
        return {
            "schema": SCHEMA,
            "model": {"path": self.model.file, "sha256": self.model.sha256},
            "summary": {"regions": len(self.regions), "raised": self.raised},
            "regions": self.regions,
            "warnings": list(self.model.warnings),
        }


def explain(request: Request, progress: Callable[[str], None]) -> Explanation:
    """
    Import a model and raise its attentions; nothing is compiled or run.

    Raises LampcError for a model that cannot be read or dimensions that are not bound.
    """
    progress("reading the model")
    opened = open_model(request)
    progress("importing the graph")
    try:
        module = import_model(opened.model, opened.binding, opened.given)
        found = [candidate for function in _functions(module) for candidate in _candidates(function)]
        run_pipeline(module, "lamp-raise-attention")
    except LampcError as error:
        error.file = error.file or opened.model.file
        raise
    return Explanation(opened.model, _regions(module, found))


def _functions(module: ModuleOp) -> Iterator[FuncOp]:
    return (op for op in module.body.ops if isinstance(op, FuncOp) and op.body.blocks)


def _candidates(function: FuncOp) -> Iterator[tuple[str, str, str]]:
    """Node, form and the node where the attention ends, of every candidate."""
    for site in sites(function):
        end = site.node if site.contraction is None else site.contraction.node
        yield name_of(site.node), site.form, name_of(end)


def _regions(module: ModuleOp, found: list[tuple[str, str, str]]) -> list[Json]:
    attentions: dict[str, list[AttentionOp]] = {}
    for function in _functions(module):
        for op in function.walk():
            if isinstance(op, AttentionOp):
                attentions.setdefault(name_of(op), []).append(op)
    rejected: dict[tuple[str, str], list[Json]] = {}
    for record in rejected_of(module):
        entry = {"node": record["node"], "form": record["form"], "raised": False, "reason": record["reason"]}
        rejected.setdefault((record["node"], record["form"]), []).append(entry)
    regions: list[Json] = []
    for node, form, end in found:
        if refused := rejected.get((node, form)):
            regions.append(refused.pop(0))
        elif ops := attentions.get(end):
            regions.append({"node": node, "form": form, "raised": True, "ends_at": end, **_described(ops.pop(0))})
    # What is no softmax's: products with none between, found after the rest.
    return regions + [entry for entries in rejected.values() for entry in entries]


def _described(op: AttentionOp) -> Json:
    query, key, value = (tensor_shape(operand) for operand in (op.query, op.key, op.value))
    names = ("batch", "query_heads", "kv_heads", "queries", "keys", "head_size", "value_size")
    return {
        "shape": dict(zip(names, (*query[:2], key[1], query[2], key[2], query[3], value[3]), strict=True)),
        "scale": op.scale.value.data,
        "causal": op.causal is not None,
        "causal_offset": _integer(op.causal_offset) or 0,
        "window": _integer(op.window),
        "softcap": None if op.softcap is None else op.softcap.value.data,
        "mask": _mask(op),
        "sinks": op.sinks is not None,
        "operands": {role: _operand(operand) for role, operand in (("query", op.query), ("key", op.key), ("value", op.value))},
    }


def _integer(attribute: Attribute | None) -> int | None:
    return attribute.value.data if isinstance(attribute, IntegerAttr) else None


def _mask(op: AttentionOp) -> Json | None:
    if op.mask is None:
        return None
    boolean = SSAValue.get(op.mask, type=TensorType).type.element_type == i1
    masked = op.masked_value.value.data if isinstance(op.masked_value, FloatAttr) else float("-inf")
    return {
        "kind": "boolean" if boolean else "float",
        "shape": list(tensor_shape(op.mask)),
        "constant": isinstance(op.mask.owner, ConstantOp | InitializerOp),
        "masked_value": str(masked) if boolean else None,
    }


def _operand(value: SSAValue) -> Json:
    """Element type, the layout change in front of the attention, and the node that it comes from."""
    patterns: list[str] = []
    element = str(SSAValue.get(value, type=TensorType).type.element_type)
    while isinstance(value.owner, RearrangeOp):
        patterns.append(value.owner.pattern.data)
        value = value.owner.operands[0]
    source = name_of(value.owner) if isinstance(value.owner, NodeOp | ConstantOp | InitializerOp) else value.name_hint
    return {"type": element, "rearranged": patterns[::-1], "from": source}


def render(explanation: Explanation) -> str:
    """The same for people: equal regions once."""
    model, regions = explanation.model, explanation.regions
    lines = [("model", f"{printable(model.file, 200)}  (sha256 {model.sha256[:12]})")]
    if not regions:
        lines.append(("regions", "none: nothing in the model looks like attention"))
    else:
        count = explanation.raised
        shout = "NONE of " if count == 0 else f"{count} of "
        lines.append(("regions", f"{shout}{len(regions)} raised to attn.attention"))
    groups: dict[str, list[Json]] = {}
    for region in regions:
        groups.setdefault(_text(region), []).append(region)
    for text, members in groups.items():
        label = "raised" if members[0]["raised"] else "not raised"
        first, *rest = text.split("\n")
        lines.append((label, f"{len(members)} x  {first}"))
        lines += [("", f"     {line}") for line in rest]
        names = [printable(member["node"]) for member in members]
        shown = names if len(names) <= 3 else [names[0], names[1], "...", names[-1]]
        lines.append(("", f"     at {', '.join(shown)}"))
    lines += [("warning", warning) for warning in dict.fromkeys(model.warnings)]
    return "".join(f"{label:<12}{text}".rstrip() + "\n" for label, text in lines)


def _text(region: Json) -> str:
    """What groups regions: everything but the names of nodes."""
    form = printable(region["form"], 80)
    if not region["raised"]:
        return f"{form}\nbecause {printable(region['reason'], 400)}"
    s = region["shape"]
    heads = f"{s['query_heads']}/{s['kv_heads']}" if s["query_heads"] != s["kv_heads"] else f"{s['query_heads']}"
    sizes = f"d {s['head_size']}" + (f"/{s['value_size']}" if s["value_size"] != s["head_size"] else "")
    shape = f"batch {s['batch']}, {heads} heads, {s['queries']} queries x {s['keys']} keys, {sizes}"
    facts = [f"scale {region['scale']:.6g}", *_liveness(region)]
    if region["softcap"] is not None:
        facts.append(f"softcap {region['softcap']:g}")
    if region["sinks"]:
        facts.append("sinks")
    facts.append("operands " + "/".join(dict.fromkeys(operand["type"] for operand in region["operands"].values())))
    layouts = [f"{role} '{' , '.join(o['rearranged'])}'" for role, o in region["operands"].items() if o["rearranged"]]
    return "\n".join([f"{form}  [{shape}]", "; ".join(facts), *([f"layout {'; '.join(layouts)}"] if layouts else [])])


def _liveness(region: Json) -> list[str]:
    """Which keys a query sees, in words."""
    facts: list[str] = []
    if region["causal"]:
        facts.append("causal" + (f" with offset {region['causal_offset']}" if region["causal_offset"] else ""))
    if region["window"] is not None:
        facts.append(f"window {region['window']}")
    mask = region["mask"]
    if mask is not None:
        constant = "constant " if mask["constant"] else ""
        facts.append(f"{constant}{mask['kind']} mask {'x'.join(map(str, mask['shape']))}")
    return facts or ["no mask"]
