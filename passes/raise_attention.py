"""Find attention in an ONNX graph and raise it to `attn.attention`."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from lampc.dialects.onnx import ConstantOp, InitializerOp, NodeOp, is_tensor
from lampc.passes.raising import decomposed, microsoft, standard
from lampc.passes.raising.axis_maps import LayoutError
from lampc.passes.raising.candidates import Site, sites, unweighted
from lampc.passes.raising.emit import Emission
from lampc.passes.raising.graph import Refusal, name_of, title
from lampc.passes.raising.host_nodes import HostNodes
from lampc.passes.raising.plan import Nothing, Plan


@dataclass(frozen=True)
class RaiseAttentionPass(ModulePass):
    """
    Replace every attention, one `Attention` node or contraction, softmax, contraction, by `attn.attention`.

    Scalar factors anywhere on Q, K or the scores become `scale`; layout chains become one `attn.rearrange` per operand
    or none; repeated key-value heads are read in place; causal and window masks become attributes. What looks like attention
    and is not raised is listed with the reason in the module attribute `attn.rejected`. Nodes that nobody uses any more go.

    Before:
    ```mlir
    func.func @main(%q: tensor<1x9x40x64xf32>, %k: tensor<1x40x576xf32>, %v: tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %scale = onnx.constant "scale" dense<0.125> : tensor<f32>
      %mask = onnx.initializer "mask" {sha256 = "", content = #onnx.mask<causal, offset = 0, window = -1, masked = -inf>} : tensor<40x40xf32>
      %heads = onnx.constant "heads" dense<[1, 40, 9, 64]> : tensor<4xi64>
      %qs = onnx.node "Mul"(%q, %scale) version 14 names ["qs"] : (tensor<1x9x40x64xf32>, tensor<f32>) -> tensor<1x9x40x64xf32>
      %k4 = onnx.node "Reshape"(%k, %heads) version 14 names ["k4"] : (tensor<1x40x576xf32>, tensor<4xi64>) -> tensor<1x40x9x64xf32>
      %kt = onnx.node "Transpose"(%k4) {perm = array<i64: 0, 2, 3, 1>} version 13 names ["kt"] : (tensor<1x40x9x64xf32>) -> tensor<1x9x64x40xf32>
      %s = onnx.node "MatMul"(%qs, %kt) version 13 names ["s"] : (tensor<1x9x40x64xf32>, tensor<1x9x64x40xf32>) -> tensor<1x9x40x40xf32>
      %m = onnx.node "Add"(%s, %mask) version 14 names ["m"] : (tensor<1x9x40x40xf32>, tensor<40x40xf32>) -> tensor<1x9x40x40xf32>
      %p = onnx.node "Softmax"(%m) {axis = -1 : i64} version 13 names ["p"] : (tensor<1x9x40x40xf32>) -> tensor<1x9x40x40xf32>
      %o = onnx.node "MatMul"(%p, %v) version 13 names ["o"] : (tensor<1x9x40x40xf32>, tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32>
      func.return %o : tensor<1x9x40x64xf32>
    }
    ```
    After `lamp-raise-attention`:
    ```mlir
    func.func @main(%q: tensor<1x9x40x64xf32>, %k: tensor<1x40x576xf32>, %v: tensor<1x9x40x64xf32>) -> tensor<1x9x40x64xf32> {
      %heads = onnx.constant "heads" dense<[1, 40, 9, 64]> : tensor<4xi64>
      %k4 = onnx.node "Reshape"(%k, %heads) version 14 names ["k4"] : (tensor<1x40x576xf32>, tensor<4xi64>) -> tensor<1x40x9x64xf32>
      %kt = onnx.node "Transpose"(%k4) {perm = array<i64: 0, 2, 3, 1>} version 13 names ["kt"] : (tensor<1x40x9x64xf32>) -> tensor<1x9x64x40xf32>
      %0 = attn.rearrange %kt {pattern = "b h d l -> b h l d"} : tensor<1x9x64x40xf32> -> tensor<1x9x40x64xf32>
      %o = attn.attention %q, %0, %v {onnx.name = "o", scale = 1.250000e-01 : f32, causal} : tensor<1x9x40x64xf32>, tensor<1x9x40x64xf32>, tensor<1x9x40x64xf32> -> tensor<1x9x40x64xf32>
      func.return %o : tensor<1x9x40x64xf32>
    }
    ```
    Source: docs/onnx.md §1 and §4.
    """  # noqa: E501

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
                _erase_unused(function)
                rejected.extend(_record(site, str(site.refusal)) for site in unweighted(function))
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
    standard_node = site.contraction is None and not site.node.domain.data
    result = site.node.results[0].type
    if not standard_node and is_tensor(result) and 0 in result.get_shape():
        return "its result is empty; there is nothing to compute"
    host = HostNodes(site.node if site.contraction is None else site.contraction.node, opset)
    if not host.anchor.results[0].uses:  # raised from its other operand
        return None
    try:
        plan = _match(site, host)
        if isinstance(plan, Nothing):
            host.commit(plan.results)
            return plan.reason
        emission = Emission(plan, host)
        emission.commit(emission.build())
    except Refusal as refusal:
        host.discard()
        return str(refusal)
    except LayoutError as error:
        host.discard()
        return f"stopped at {title(host.anchor)}: {error}"
    return None


def _match(site: Site, host: HostNodes) -> Plan | Nothing:
    if site.contraction is not None:
        return decomposed.match(site.contraction, site.side, host)
    if site.node.domain.data:
        return microsoft.match(site.node, host)
    return standard.match(site.node, host)


def _record(site: Site, reason: str) -> DictionaryAttr:
    fields = {"node": name_of(site.node), "form": site.form, "reason": reason}
    return DictionaryAttr({key: StringAttr(text) for key, text in fields.items()})


def _erase_unused(function: FuncOp) -> None:
    for op in reversed(list(function.body.block.ops)):
        if isinstance(op, NodeOp | ConstantOp | InitializerOp) and not any(r.uses for r in op.results):
            op.detach()
            op.erase()
