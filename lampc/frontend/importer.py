"""
A checked model, its dimensions bound, as a module of the `onnx` dialect.

One walk over the nodes in order: each is evaluated if all its inputs are constants and the result is within budget, else typed
and emitted. Constants are emitted where a node first uses them. Source: onnx.md §6.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, NameLoc, StringAttr, UnknownLoc, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from lampc.dialects.onnx import (
    INLINE_ELEMENTS,
    AbsentOp,
    AbsentType,
    ConstantOp,
    InitializerOp,
    NodeOp,
    ValuesAttr,
    YieldOp,
    element_type,
    is_tensor,
    numpy_dtype,
    schema_of,
)
from lampc.dialects.onnx_attributes import Array
from lampc.dialects.onnx_schema import OpSignature, SchemaMismatch, check_types
from lampc.errors import LampcError, ModelError, printable
from lampc.frontend.attention_rules import attention_types
from lampc.frontend.attributes import ir_attributes, python_attributes
from lampc.frontend.branches import chosen_branch, deciding_names, names_in
from lampc.frontend.contrib import contrib_types
from lampc.frontend.dims import Binding
from lampc.frontend.fold import FOLDABLE, CannotFold, fold
from lampc.frontend.inference import check_values, infer_types, with_declared
from lampc.frontend.limits import raise_it
from lampc.frontend.masks import classify, is_two_valued
from lampc.frontend.model import Model
from lampc.frontend.names import cleaned, node_label, subgraphs
from lampc.frontend.tensors import densify, tensor_array, to_proto
from lampc.frontend.types import (
    bound,
    common,
    dtype_of,
    element_count,
    shape_of,
    static_shape,
    tensor_type,
    to_ir,
    type_of_array,
)

_HINT = re.compile(r"[^A-Za-z0-9_]+")
_SUFFIX = re.compile(r"_+(?=\d)")


def _hint(name: str) -> str:
    """
    An SSA name that reads like the ONNX name.

    Without an underscore before a digit: xDSL tells equal names apart by such a suffix, and one of our own would clash with it.
    """
    text = _SUFFIX.sub("", _HINT.sub("_", name)).strip("_")[:48].rstrip("_")
    return text if text and not text[0].isdigit() else f"v{text}"


def _locate(op: Operation, name: str) -> None:
    op.location = NameLoc(StringAttr(name), UnknownLoc())


@dataclass
class _Scope:
    """
    What is known inside one graph; lookups go outward.

    block       where ops of this graph go
    types       name to type
    constants   name to value, where it is one
    ops         name to SSA value, once emitted
    locations   name of a constant to the name of the node that made it
    declared    types that the graph declares for its values
    optional    inside a branch of an If, which need not fit the sizes at hand if it is not taken
    """

    block: Block
    parent: _Scope | None = None
    types: dict[str, TypeProto] = field(default_factory=dict[str, TypeProto])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    ops: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    locations: dict[str, str] = field(default_factory=dict[str, str])
    declared: Mapping[str, TypeProto] = field(default_factory=dict[str, TypeProto])
    optional: bool = False

    def owner(self, name: str) -> _Scope:
        """The scope that defines a name; this one if none does."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.types or name in scope.constants or name in scope.ops:
                return scope
            scope = scope.parent
        return self

    def type_of(self, name: str) -> TypeProto | None:
        return self.owner(name).types.get(name)

    def define(self, name: str, value: SSAValue, type_: TypeProto | None) -> None:
        value.name_hint = _hint(name)
        self.ops[name] = value
        if type_ is not None:
            self.types[name] = type_


class _Importer:
    def __init__(self, model: Model, binding: Binding, given: Mapping[str, Array]):
        self.model = model
        self.binding = binding
        self.given = given
        self.limits = model.limits
        self.opsets = list(model.proto.opset_import)
        self.protos: dict[int, tuple[Array, TensorProto]] = {}
        self.folded_elements = 0
        self.absent: SSAValue | None = None
        self.output_names = {info.name for info in model.proto.graph.output}
        self.nodes: list[NodeProto] = []
        self.taken: set[str] = set()
        self.unhashed: list[InitializerOp] = []

    # -- constants --------------------------------------------------------------------------------------------------------

    def constant(self, name: str, scope: _Scope) -> Array | None:
        """The value of a name if it is a constant."""
        owner = scope.owner(name)
        if name in owner.constants:
            return owner.constants[name]
        if owner.parent is None and name in self.model.constants.initializers:
            return self.model.constants[name]
        return None

    def _small_proto(self, array: Array, name: str) -> TensorProto:
        """A constant for shape inference; the array is kept so that its id stays its own."""
        known = self.protos.get(id(array))
        if known is None:
            known = self.protos[id(array)] = (array, to_proto(array, name))
        return known[1]

    def _emit_constant(self, name: str, array: Array, scope: _Scope) -> SSAValue:
        content = classify(array) if array.ndim >= 2 else None
        op: ConstantOp | InitializerOp
        if array.size <= INLINE_ELEMENTS and array.dtype.kind != "O":
            says_more = content is not None and content.filled is None
            op = ConstantOp(name, array, content if says_more else None)
        else:
            key = self._keep(name, array)
            type_ = to_ir(type_of_array(array), f"constant '{printable(name)}'")
            assert is_tensor(type_)
            op = InitializerOp(key, type_, "", content)
            self.unhashed.append(op)
        if name not in self.model.constants and array.size <= INLINE_ELEMENTS:
            self._keep(name, array)
        _locate(op, scope.locations.get(name, name))
        scope.block.add_op(op)
        return op.result

    def _keep(self, name: str, array: Array) -> str:
        """Make a computed value available by name; subgraphs beside each other may use one name for two values."""
        constants = self.model.constants
        key = name
        while key in constants and constants[key] is not array:
            key += "~"
        if key not in constants:
            array.flags.writeable = False
            constants.folded[key] = array
        return key

    def value(self, name: str, scope: _Scope) -> SSAValue:
        """The SSA value of a name, emitting it first if it is a constant."""
        if not name:
            if self.absent is None:
                root = scope
                while root.parent is not None:
                    root = root.parent
                op = AbsentOp()
                root.block.insert_ops_before([op], root.block.first_op) if root.block.first_op else root.block.add_op(op)
                op.result.name_hint = "absent"
                self.absent = op.result
            return self.absent
        owner = scope.owner(name)
        if name not in owner.ops:
            array = self.constant(name, owner)
            assert array is not None
            owner.define(name, self._emit_constant(name, array, owner), None)
        return owner.ops[name]

    # -- folding ----------------------------------------------------------------------------------------------------------

    def _may_transform(self, name: str, array: Array, scope: _Scope) -> bool:
        """Weights are left alone: their transposes and casts are the host's work. Masks are not weights."""
        if array.size <= self.limits.fold_weight:
            return True
        computed = name in scope.owner(name).locations
        return array.size <= self.limits.fold_elements and (computed or is_two_valued(array))

    def _shape_only(self, node: NodeProto, attributes: Mapping[str, Any], scope: _Scope) -> list[Array] | None:
        """Shape and Size of a value of known shape."""
        shape = static_shape(scope.type_of(node.input[0]))
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.array(element_count(shape), np.int64)]
        rank = len(shape)
        start, end = attributes.get("start", 0), attributes.get("end", rank)
        start, end = (min(max(edge + rank if edge < 0 else edge, 0), rank) for edge in (start, end))
        return [np.array(shape[start:end], np.int64)]

    def _constant_node(self, node: NodeProto, attributes: Mapping[str, Any]) -> list[Array]:
        for attribute in node.attribute:
            if attribute.name == "sparse_value":
                return [densify(attribute.sparse_tensor, node_label(node), self.limits)]
        name, value = next(iter(attributes.items()))
        match name:
            case "value":
                return [value]
            case "value_float" | "value_floats":
                return [np.array(value, np.float32)]
            case "value_int" | "value_ints":
                return [np.array(value, np.int64)]
            case _:
                texts = [value] if isinstance(value, bytes) else value
                array = np.array(texts, np.object_)
                return [array.reshape(()) if isinstance(value, bytes) else array]

    def _fold(
        self,
        node: NodeProto,
        schema: OpSignature,
        attributes: Mapping[str, Any],
        types: Sequence[TypeProto | None],
        scope: _Scope,
    ) -> list[Array] | None:
        """Values of all outputs of a node that is a constant; None if it is not, or is left to the host."""
        if node.op_type == "Constant":
            return self._constant_node(node, attributes)
        if node.op_type in ("Shape", "Size"):
            return self._shape_only(node, attributes, scope)
        if node.op_type not in FOLDABLE:
            return None
        arrays = [self.constant(name, scope) if name else None for name in node.input]
        if node.op_type == "CastLike" and arrays[1] is None and (dtype := dtype_of(scope.type_of(node.input[1]))):
            arrays[1] = np.empty(0, numpy_dtype(element_type(dtype)))  # only its type is read
        if any(name and array is None for name, array in zip(node.input, arrays, strict=True)):
            return None
        count = 0
        for type_ in types:
            shape = static_shape(type_)
            if shape is None:
                return None
            count += element_count(shape)
        if count > self.limits.host_elements:
            raise ModelError(
                f"it makes a constant of {count} elements, more than {self.limits.host_elements}; {raise_it('host_elements')}",
                where=node_label(node),
                code="E-FOLD-BUDGET",
            )
        weights = any(
            array is not None and not self._may_transform(name, array, scope)
            for name, array in zip(node.input, arrays, strict=True)
        )
        if weights or count > self.limits.fold_elements or self.folded_elements + count > self.limits.fold_total:
            return None
        self.folded_elements += count
        try:
            results = fold(node.op_type, schema.since_version, arrays, attributes, len(node.output))
        except CannotFold:
            return None
        fits = all(
            array.shape == static_shape(type_) and dtype_of(type_of_array(array)) == dtype_of(type_)
            for array, type_ in zip(results, types, strict=True)
        )
        return results if fits else None

    # -- nodes ------------------------------------------------------------------------------------------------------------

    def _types(
        self, node: NodeProto, schema: OpSignature | None, attributes: Mapping[str, Any], scope: _Scope, *, shapes: bool = True
    ) -> list[TypeProto | None]:
        """Types of a node's outputs, without what the model declares; from element types alone if not `shapes`."""
        inputs = [scope.type_of(name) if name else None for name in node.input]
        if not shapes:
            inputs = [tensor_type(dtype, None) if (dtype := dtype_of(type_)) else type_ for type_ in inputs]
        if schema is None:
            known = contrib_types(node.op_type, attributes, inputs)
            return [*known, *[None] * len(node.output)][: len(node.output)]
        check_values(node, attributes, inputs)
        if node.op_type == "Attention" and not schema.domain:
            present = [bool(name) for name in node.input]
            outputs = [bool(name) for name in node.output]
            types, warnings = attention_types(node_label(node), schema.since_version, attributes, inputs, present, outputs)
            for warning in warnings:
                self._warn(warning)
            return types
        named = {name: type_ for name, type_ in zip(node.input, inputs, strict=True) if type_ is not None}
        constants = {
            name: self._small_proto(array, name)
            for name in node.input
            if shapes and name and (array := self.constant(name, scope)) is not None and array.size <= INLINE_ELEMENTS
        }
        return infer_types(node, schema.since_version, named, constants, self.opsets, self.model.proto.ir_version)

    def _check_loop(self, node: NodeProto, scope: _Scope) -> None:
        trips = self.constant(node.input[0], scope) if node.input and node.input[0] else None
        if trips is not None and trips.size == 1 and int(trips.reshape(())) > self.limits.loop_iterations:
            raise ModelError(
                f"its trip count is above {self.limits.loop_iterations}; {raise_it('loop_iterations')}",
                where=node_label(node),
                code="E-UNSUPPORTED(Loop)",
            )

    def _take_branch(self, node: NodeProto, scope: _Scope) -> bool:
        """Import the branch of an If that a constant condition chooses; false if the condition is not constant."""
        condition = self.constant(node.input[0], scope)
        if condition is None or condition.size != 1:
            return False
        self.taken = self.taken or names_in(self.model.proto.graph)
        for inner in chosen_branch(node, bool(condition.reshape(())), self.taken):
            self.node(inner, scope)
        return True

    def _warn(self, warning: str) -> None:
        if warning not in self.model.warnings:
            self.model.warnings.append(warning)

    def node(self, node: NodeProto, scope: _Scope) -> None:
        """Fold or emit one node."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = schema_of(node.op_type, domain, self.model.opsets[domain])
        attributes = python_attributes(node, self.limits)
        location = node.name or next((name for name in node.output if name), node.op_type)
        if node.op_type == "Loop" and not domain:
            self._check_loop(node, scope)
        if scope.parent is None:
            if node.op_type == "If" and not domain and self._take_branch(node, scope):
                return
            self.nodes.append(node)
        if schema is not None:
            inputs = [to_ir(scope.type_of(name), location) if name else AbsentType() for name in node.input]
            _check_types(node, schema, inputs, [])
        bodies: dict[str, Region] = {}
        results: list[list[TypeProto | None]] = []
        for name, graph in subgraphs(node):
            region, outputs = self.subgraph(node, graph, scope)
            bodies[name if name not in bodies else f"{name}.{len(bodies)}"] = region
            results.append(outputs)
        if bodies:
            types = _graph_node_types(node, results)
        elif node.op_type == "Constant" and not domain:
            types = [None]
        else:
            try:
                types = self._types(node, schema, attributes, scope)
            except ModelError:
                if not scope.optional:
                    raise
                types = self._types(node, schema, attributes, scope, shapes=False)
        if not bodies and not domain and schema is not None:
            arrays = self._fold(node, schema, attributes, types, scope)
            if arrays is not None:
                for name, array in zip(node.output, arrays, strict=True):
                    if name:
                        scope.constants[name] = array
                        scope.locations[name] = location
                        scope.types[name] = type_of_array(array)
                        self._declared(node, name, scope.types[name], scope)
                return
        self._emit(
            node,
            schema,
            [self._declared(node, n, t, scope) for n, t in zip(node.output, types, strict=True)],
            bodies,
            scope,
            location,
        )

    def _declared(self, node: NodeProto, name: str, inferred: TypeProto | None, scope: _Scope) -> TypeProto | None:
        if not name:
            return None
        is_output = scope.parent is None and name in self.output_names
        where = f"graph output '{printable(name)}'" if is_output else node_label(node)
        return with_declared(inferred, scope.declared.get(name), where, is_output=is_output)

    def _emit(
        self,
        node: NodeProto,
        schema: OpSignature | None,
        types: Sequence[TypeProto | None],
        bodies: dict[str, Region],
        scope: _Scope,
        location: str,
    ) -> None:
        where = node_label(node)
        operands = [self.value(name, scope) for name in node.input]
        result_types = [to_ir(type_, where) if name else AbsentType() for name, type_ in zip(node.output, types, strict=True)]
        if schema is not None:
            _check_types(node, schema, [operand.type for operand in operands], result_types)
        op = NodeOp(
            node.op_type,
            operands,
            result_types,
            names=list(node.output),
            domain="" if node.domain == "ai.onnx" else node.domain,
            version=schema.since_version if schema is not None else 0,
            attributes={cleaned(name): value for name, value in ir_attributes(node, self.limits).items()},
            bodies=bodies,
        )
        _locate(op, location)
        scope.block.add_op(op)
        for name, result, type_ in zip(node.output, op.results, types, strict=True):
            if name:
                scope.define(name, result, type_)

    # -- graphs -----------------------------------------------------------------------------------------------------------

    def _declarations(self, graph: GraphProto) -> dict[str, TypeProto]:
        return {info.name: bound(info.type, self.binding) for info in (*graph.value_info, *graph.output) if info.name}

    def subgraph(self, node: NodeProto, graph: GraphProto, outer: _Scope) -> tuple[Region, list[TypeProto | None]]:
        """One body of a node: its region, and the types of its outputs."""
        where = node_label(node)
        types = _body_input_types(node, graph, outer)
        block = Block(arg_types=[to_ir(type_, where) for type_ in types])
        optional = outer.optional or node.op_type == "If"
        scope = _Scope(block, outer, declared=self._declarations(graph), optional=optional)
        for info, argument, type_ in zip(graph.input, block.args, types, strict=True):
            scope.define(info.name, argument, type_)
        initializers = [(t.name, tensor_array(t, f"initializer '{t.name}'", self.limits)) for t in graph.initializer]
        initializers += [(s.values.name, densify(s, s.values.name, self.limits)) for s in graph.sparse_initializer]
        for name, array in initializers:
            scope.constants[name] = array
            scope.types[name] = type_of_array(array)
        for inner in graph.node:
            self.node(inner, scope)
        results = [self.value(info.name, scope) for info in graph.output]
        end = YieldOp(results)
        _locate(end, node.name or node.op_type)
        block.add_op(end)
        return Region(block), [scope.type_of(info.name) for info in graph.output]

    def _choices(self) -> dict[str, Array]:
        """Given inputs of one element that choose a branch: the model is compiled for their values."""
        single = {name: array for name, array in self.given.items() if array.size == 1 and array.dtype.kind in "biu"}
        deciding = deciding_names(self.model.proto.graph) if single else set[str]()
        return {name: array for name, array in single.items() if name in deciding}

    def run(self) -> ModuleOp:
        """The whole model."""
        model, graph = self.model, self.model.proto.graph
        types: list[TypeProto] = []
        for value in model.inputs:
            where = f"input '{printable(value.original)}'"
            type_ = value.proto
            if value.is_tensor:
                if not value.proto.tensor_type.elem_type:
                    raise ModelError("it declares no element type", where=where, code="E-TYPE")
                type_ = tensor_type(value.proto.tensor_type.elem_type, self.binding.shapes.get(value.name))
            types.append(type_)
        arguments = [to_ir(t, f"input '{printable(v.original)}'") for t, v in zip(types, model.inputs, strict=True)]
        block = Block(arg_types=arguments)
        scope = _Scope(block, declared=self._declarations(graph))
        for value, argument, type_ in zip(model.inputs, block.args, types, strict=True):
            scope.define(value.name, argument, type_)
        scope.constants.update(self._choices())
        for tensor in graph.initializer:
            scope.types[tensor.name] = tensor_type(tensor.data_type, tuple(tensor.dims))
        large = (t.name for t in graph.initializer if t.data_location == TensorProto.EXTERNAL)
        model.constants.hash_ahead(large)
        for node in graph.node:
            self.node(node, scope)
        if self.taken:
            model.proto = ModelProto()
            model.proto.CopyFrom(model.source)
            del model.proto.graph.node[:]
            model.proto.graph.node.extend(self.nodes)
        results = [self.value(info.name, scope) for info in graph.output]
        block.add_op(func.ReturnOp(*results))
        function = func.FuncOp(
            "main",
            (arguments, [result.type for result in results]),
            Region(block),
            arg_attrs=ArrayAttr(_named(value.name, scope.constants.get(value.name)) for value in model.inputs),
            res_attrs=ArrayAttr(_named(value.name) for value in model.outputs),
        )
        for op in self.unhashed:
            op.properties["sha256"] = StringAttr(model.constants.sha256(op.tensor_name.data))
        opsets: dict[str, Attribute] = {
            domain or "ai.onnx": IntegerAttr(version, i64) for domain, version in model.opsets.items()
        }
        return ModuleOp(
            [function],
            {"onnx.model": StringAttr(cleaned(os.path.basename(model.file))), "onnx.opset": DictionaryAttr(opsets)},
        )


def _check_types(node: NodeProto, schema: OpSignature, inputs: Sequence[Attribute], outputs: Sequence[Attribute]) -> None:
    try:
        check_types(schema, inputs, outputs)
    except SchemaMismatch as error:
        raise ModelError(str(error), where=node_label(node), code=error.code) from error


def _named(name: str, value: Array | None = None) -> DictionaryAttr:
    """Attributes of an argument or result of @main: its ONNX name, and the value that the module is specialised to."""
    bound = {} if value is None else {"onnx.value": ValuesAttr.from_numpy(value)}
    return DictionaryAttr({"onnx.name": StringAttr(name), **bound})


def _body_input_types(node: NodeProto, graph: GraphProto, outer: _Scope) -> list[TypeProto | None]:
    """
    Types of a body's inputs: element types from what flows in, shapes only as the body declares them.

    A value that a loop carries may change its shape from one iteration to the next.
    """
    flowing: list[TypeProto | None] = [outer.type_of(name) if name else None for name in node.input]
    if node.op_type == "Loop":
        flowing = [tensor_type(TensorProto.INT64, ()), tensor_type(TensorProto.BOOL, ()), *flowing[2:]]
    result: list[TypeProto | None] = []
    for index, info in enumerate(graph.input):
        declared = info.type
        if declared.WhichOneof("value") not in (None, "tensor_type"):
            result.append(declared)
            continue
        dtype = dtype_of(declared) or (dtype_of(flowing[index]) if index < len(flowing) else 0)
        fixed = node.op_type == "Loop" and index < 2
        shape = shape_of(flowing[index]) if fixed else shape_of(declared)
        result.append(tensor_type(dtype, shape) if dtype else None)
    return result


def _graph_node_types(node: NodeProto, results: Sequence[list[TypeProto | None]]) -> list[TypeProto | None]:
    """Types of the outputs of a node with subgraphs, from the types its bodies yield."""
    count = len(node.output)
    if node.op_type == "If" and len(results) == 2 and all(len(outputs) == count for outputs in results):
        return [common([outputs[index] for outputs in results]) for index in range(count)]
    if node.op_type in ("Loop", "Scan") and len(results) == 1:
        outputs = results[0][1:] if node.op_type == "Loop" else results[0]
        kinds = [dtype_of(type_) for type_ in outputs]
        return [tensor_type(kind, None) if kind else None for kind in (*kinds, *[0] * count)][:count]
    return [None] * count


def import_model(model: Model, binding: Binding, given: Mapping[str, Array] | None = None) -> ModuleOp:
    """
    `model` as a module of the `onnx` dialect, specialised to the sizes in `binding` (`bind_dims`).

    given   arrays of inputs by name as in `Model.proto`; an integer or boolean of one element is taken as a constant if the
            condition of an If depends on it, so that the chosen branch can be compiled

    The module has one function @main; arguments and results carry `onnx.name`, arguments taken as constants `onnx.value`.
    Values that were computed are in `model.constants.folded` afterwards, as far as a node that was not folded uses them; a
    second import replaces them. Where an If of the main graph has a constant condition, `model.proto` afterwards has the nodes
    of the branch in its place.

    Raises ModelError: E-TYPE, E-DTYPE, E-SHAPE, E-TYPE-CONFLICT, E-SHAPE-CONFLICT, E-ATTR-VALUE, E-ATTN-*, E-FOLD-BUDGET,
    E-UNSUPPORTED.
    """
    model.constants.folded.clear()
    model.proto = model.source
    try:
        return _Importer(model, binding, given or {}).run()
    except LampcError as error:
        error.file = error.file or model.file
        raise
