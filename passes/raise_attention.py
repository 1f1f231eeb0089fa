"""Find attention in an ONNX graph and raise it to `attn.attention`."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from lampc.dialects.onnx import ConstantOp, InitializerOp, NodeOp
from lampc.passes.raising import decomposed, standard
from lampc.passes.raising.candidates import Site, sites, unweighted
from lampc.passes.raising.emit import Emission
from lampc.passes.raising.graph import Refusal, name_of
from lampc.passes.raising.host_nodes import HostNodes


@dataclass(frozen=True)
class RaiseAttentionPass(ModulePass):
    """
    Replace every attention, one `Attention` node or contraction, softmax, contraction, by `attn.attention`.

    Scalar factors anywhere on Q, K or the scores become `scale`; layout chains become one `attn.rearrange` per operand
    or none; repeated key-value heads are read in place; causal and window masks become attributes. What looks like attention
    and is not raised is listed with the reason in the module attribute `attn.rejected`. Nodes that nobody uses any more go.

    Before:
    ```mlir
    ```
    After ``lamp-raise-attention``:
    ```mlir
    ```
    Source: onnx.md §1 and §4.
    """

    name = "lamp-raise-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        opset = _opset(op)
        rejected: list[DictionaryAttr] = []
        for function in op.body.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _erase_unused(function)
                for site in sites(function):
                    reason = _raise(site, opset)
                    if reason is not None:
                        rejected.append(_record(site, reason))
                rejected.extend(_record(site, str(site.refusal)) for site in unweighted(function))
                _erase_unused(function)
        if rejected:
            op.attributes["attn.rejected"] = ArrayAttr(rejected)


def _opset(module: ModuleOp) -> int:
    """The opset of ai.onnx that nodes added for the host are written in."""
    versions = module.attributes.get("onnx.opset")
    if isinstance(versions, DictionaryAttr):
        for domain in ("", "ai.onnx"):
            version = versions.data.get(domain)
            if isinstance(version, IntegerAttr):
                return version.value.data
    return 17


def _raise(site: Site, opset: int) -> str | None:
    """Raise one candidate; the reason if it stays."""
    if site.refusal is not None:
        return str(site.refusal)
    host = HostNodes(site.node if site.contraction is None else site.contraction.node, opset)
    try:
        plan = (
            standard.match(site.node, host) if site.contraction is None else decomposed.match(site.contraction, site.side, host)
        )
        emission = Emission(plan, host)
        emission.commit(emission.build())
    except Refusal as refusal:
        host.discard()
        return str(refusal)
    return None


def _record(site: Site, reason: str) -> DictionaryAttr:
    fields = {"node": name_of(site.node), "form": site.form, "reason": reason}
    return DictionaryAttr({key: StringAttr(text) for key, text in fields.items()})


def _erase_unused(function: FuncOp) -> None:
    for op in reversed(list(function.body.block.ops)):
        if isinstance(op, NodeOp | ConstantOp | InitializerOp) and not any(r.uses for r in op.results):
            op.detach()
            op.erase()
