"""
Versions and operators: IR and opset versions lampc knows, domains that are imported, attributes and arity by the schema.

Source: onnx.md §6 (28 to 33, 37, 38, 46, 51), §1.2.
"""

from __future__ import annotations

import onnx
import onnx.defs
from onnx import AttributeProto, ModelProto, NodeProto

from lampc.dialects.onnx import schema_of
from lampc.dialects.onnx_schema import SchemaMismatch, check_arity, check_attribute_kinds
from lampc.errors import ModelError, printable
from lampc.frontend.names import all_nodes, node_label

_ANY_VERSION = 2**31 - 1

ORT_DOMAINS = frozenset(
    (
        "",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    )
)
"""Domains whose operators onnxruntime registers."""

ORT_OPERATORS = frozenset(("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"))
"""Operators that onnxruntime's own optimiser writes into the standard domain without a schema in ONNX."""

_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_SINGLE = frozenset(("f", "i", "s", "t", "g", "sparse_tensor", "tp"))


def check_versions(model: ModelProto) -> dict[str, int]:
    """
    Opset imports, domain "" for ai.onnx.

    Raises ModelError: E-IR-FUTURE, E-OPSET-MISSING, E-OPSET-FUTURE, E-OPSET-DUPLICATE.
    """
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"IR version {model.ir_version} is newer than {onnx.IR_VERSION}, the newest known; export with an older one",
            code="E-IR-FUTURE",
        )
    imports: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        if imports.setdefault(domain, opset.version) != opset.version:
            raise ModelError(f"domain '{printable(domain)}' is imported in two versions; keep one", code="E-OPSET-DUPLICATE")
    if not imports:
        raise ModelError("it imports no opset; set opset_import to the version it was written for", code="E-OPSET-MISSING")
    newest = onnx.defs.onnx_opset_version()
    if imports.get("", 1) > newest:
        raise ModelError(
            f"opset {imports['']} is newer than {newest}, the newest known; export with an older one", code="E-OPSET-FUTURE"
        )
    if any(version < 1 for version in imports.values()):
        raise ModelError("an imported opset has a version below 1", code="E-OPSET-MISSING")
    for domain, version in imports.items():
        if version >= 2**31:  # onnx's schemas have 32-bit versions
            raise ModelError(f"domain '{printable(domain)}' is imported in version {version}", code="E-OPSET-FUTURE")
    return imports


def attribute_kind(attribute: AttributeProto, where: str) -> str:
    """The kind of an attribute ("FLOAT", "INTS", ...); ModelError E-ATTR-TYPE if its value is of another one."""
    field = _FIELDS.get(attribute.type)
    name = printable(attribute.name)
    if field is None:
        raise ModelError(f"attribute '{name}' has no type", where=where, code="E-ATTR-TYPE")
    for other in _FIELDS.values():
        present = attribute.HasField(other) if other in _SINGLE else len(getattr(attribute, other))  # pyright: ignore[reportArgumentType]
        if present and other != field:
            raise ModelError(f"attribute '{name}' declares another type than its value has", where=where, code="E-ATTR-TYPE")
    return AttributeProto.AttributeType.Name(attribute.type)


def _attribute_kinds(node: NodeProto) -> dict[str, str]:
    where = node_label(node)
    kinds: dict[str, str] = {}
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise ModelError(
                f"attribute '{printable(attribute.name)}' refers to a function's attribute, but stands in no function",
                where=where,
                code="E-ATTR-REF",
            )
        if attribute.name in kinds:
            raise ModelError(f"attribute '{printable(attribute.name)}' is given twice", where=where, code="E-ATTR-DUPLICATE")
        kinds[attribute.name] = attribute_kind(attribute, where)
    return kinds


def _unknown_operator(node: NodeProto, domain: str, version: int) -> ModelError:
    where = node_label(node)
    newer = schema_of(node.op_type, domain, _ANY_VERSION)
    if newer is None:
        return ModelError(f"no operator '{printable(node.op_type)}' exists in ONNX", where=where, code="E-OP-UNKNOWN")
    return ModelError(
        f"opset {version} has no {node.op_type}; the model must import a newer one", where=where, code="E-OPSET-OP"
    )


def check_node(node: NodeProto, imports: dict[str, int]) -> None:
    """
    Raises ModelError: E-OPSET-MISSING (domain not imported), E-DOMAIN (nobody knows the domain), E-OP-UNKNOWN, E-OPSET-OP
    (not in this opset), E-ATTR-REF, E-ATTR-DUPLICATE, E-ATTR-TYPE, E-ATTR-UNKNOWN, E-ATTR-MISSING, E-OP-ARITY.
    """
    where = node_label(node)
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in imports:
        raise ModelError(
            f"opset_import does not list the domain '{printable(domain) or 'ai.onnx'}' of this operator; add it",
            where=where,
            code="E-OPSET-MISSING",
        )
    kinds = _attribute_kinds(node)
    schema = schema_of(node.op_type, domain, imports[domain])
    if schema is None:
        if domain not in ORT_DOMAINS:
            raise ModelError(
                f"nobody knows operators of the domain '{printable(domain)}'; export the model with standard operators",
                where=where,
                code="E-DOMAIN",
            )
        if domain in ("", "ai.onnx.ml") and node.op_type not in ORT_OPERATORS:
            raise _unknown_operator(node, domain, imports[domain])
        return
    if schema.deprecated:
        raise ModelError(
            f"{node.op_type} was removed from opset {schema.since_version} on; convert the model",
            where=where,
            code="E-OPSET-OP",
        )
    if node.op_type == "Constant" and not domain and len(kinds) != 1:
        raise ModelError(f"it has {len(kinds)} attributes; a constant has one value", where=where, code="E-ATTR-MISSING")
    try:
        check_attribute_kinds(schema, kinds)
        check_arity(schema, "input", len(node.input))
        check_arity(schema, "output", len(node.output))
        for position, name in enumerate(node.input):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            if not name and formal.required:
                raise SchemaMismatch("E-OP-ARITY", f"it needs its input {position} ({formal.name})")
    except SchemaMismatch as error:
        raise ModelError(str(error), where=where, code=error.code) from error


def check_nodes(model: ModelProto, imports: dict[str, int]) -> None:
    """Raises what `check_node` raises, for every node of the model and its subgraphs."""
    for node in all_nodes(model.graph):
        check_node(node, imports)
