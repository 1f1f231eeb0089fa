"""
Bind symbolic dimensions: from the command line, from shapes of inputs, through expressions (`past_sequence_length + 1`).

This is what `--dim` and `--shape` of the command line do.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError, LampcError, UsageError, printable
from lampc.frontend.model import Dim, GraphValue, Model

_LONGEST_EXPRESSION = 400
_LARGEST = 2**40


class _NotAnExpression(Exception):
    """A dimension text that is no arithmetic lampc reads; it is then a name."""


class _Unbound(Exception):
    """An expression needs a symbol that has no value."""


def _names(tree: ast.expr) -> frozenset[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)


@cache
def _parse(text: str) -> ast.expr | None:
    """The expression in a dimension text that is not just a name, or None."""
    if len(text) > _LONGEST_EXPRESSION or text.isidentifier():
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        with suppress(ArithmeticError):  # an expression all the same, though not with ones everywhere
            _evaluate(tree, dict.fromkeys(_names(tree), 1))
    except (SyntaxError, ValueError, RecursionError, MemoryError, _NotAnExpression):
        return None
    return tree


def _evaluate(tree: ast.expr, values: Mapping[str, int]) -> Fraction:
    """Exact value of an expression; only numbers, names, arithmetic, min, max, floor and ceil exist in it."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            result = Fraction(number)
        case ast.Name(id=name):
            if name not in values:
                raise _Unbound(name)
            result = Fraction(values[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_evaluate(operand, values)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, values), _evaluate(right, values)
            match op:
                case ast.Add():
                    result = a + b
                case ast.Sub():
                    result = a - b
                case ast.Mult():
                    result = a * b
                case ast.Div():
                    result = a / b
                case ast.FloorDiv():
                    result = Fraction(a // b)
                case ast.Mod():
                    result = a % b
                case ast.Pow() if b.denominator == 1 and 0 <= b <= 40:
                    result = a ** int(b)
                case _:
                    raise _NotAnExpression
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if arguments:
            numbers = [_evaluate(argument, values) for argument in arguments]
            match name.lower(), numbers:
                case "max", _:
                    result = max(numbers)
                case "min", _:
                    result = min(numbers)
                case "floor", [number]:
                    result = Fraction(number.numerator // number.denominator)
                case "ceil" | "ceiling", [number]:
                    result = Fraction(-(-number.numerator // number.denominator))
                case _:
                    raise _NotAnExpression
        case _:
            raise _NotAnExpression
    if abs(result) > _LARGEST:
        raise OverflowError("a dimension is too large")
    return result


@dataclass(frozen=True)
class Binding:
    """
    Values for every dimension of a model's inputs.

    dims    symbol to size
    shapes  input name (as in `Model.proto`) to shape
    """

    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def size(self, dim: Dim) -> int | None:
        """The size of a declared dimension, or None if it is not known (unnamed, or a symbol no input has)."""
        if dim is None or isinstance(dim, int):
            return dim
        if dim in self.dims:
            return self.dims[dim]
        tree = _parse(dim)
        if tree is None:
            return None
        try:
            value = _evaluate(tree, self.dims)
        except (_Unbound, ArithmeticError):
            return None
        return int(value) if value.denominator == 1 and value >= 0 else None


class _Solver:
    """Collects sizes of symbols and says which two sources disagree."""

    def __init__(self, model: Model):
        self.model = model
        self.values: dict[str, int] = {}
        self.sources: dict[str, str] = {}
        symbols = model.symbols
        trees = {symbol: _parse(symbol) for symbol in symbols}
        plain = {symbol for symbol in symbols if trees[symbol] is None}
        # `batch-size` is a name unless `batch` and `size` are dimensions themselves.
        self.expressions = {s: tree for s, tree in trees.items() if tree is not None and _names(tree) and _names(tree) <= plain}

    @property
    def names(self) -> list[str]:
        """The symbols that can be bound, in order of appearance."""
        return [symbol for symbol in self.model.symbols if symbol not in self.expressions]

    def bind(self, name: str, value: int, source: str, error: type[LampcError]) -> None:
        if self.values.setdefault(name, value) != value:
            raise error(
                f"dimension '{printable(name)}' is {self.values[name]} ({self.sources[name]}) and {value} ({source}); "
                "make them agree",
                file=self.model.file,
                code="E-DIM-CONFLICT",
            )
        self.sources.setdefault(name, source)

    def size(self, dim: Dim) -> int | None:
        return Binding(self.values).size(dim)

    def bind_expression(self, text: str, value: int, source: str, error: type[LampcError]) -> None:
        """Check an expression against its size, or solve it for its one unbound symbol if it is linear in it."""
        tree = self.expressions[text]
        unbound = sorted(_names(tree) - set(self.values))
        if len(unbound) > 1:
            return
        if unbound:
            at = [_evaluate(tree, {**self.values, unbound[0]: number}) for number in (0, 1)]
            slope = at[1] - at[0]
            solution = (value - at[0]) / slope if slope else Fraction(-1)
            if solution.denominator == 1 and solution >= 0:
                self.bind(unbound[0], int(solution), source, error)
        if self.size(text) != value:
            raise error(
                f"dimension '{printable(text)}' is {self.size(text)} and {value} ({source}); make them agree",
                file=self.model.file,
                code="E-DIM-CONFLICT",
            )


def _match(model: Model, value: GraphValue, shape: tuple[int, ...], source: str, error: type[LampcError]) -> None:
    if value.dims is None:
        return
    fits = len(shape) == len(value.dims) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(value.dims, shape, strict=True)
    )
    if not fits:
        raise error(
            f"input '{printable(value.original)}' takes {value.shape_text()}, {source} gives {list(shape)}",
            file=model.file,
            code="E-INPUT-SHAPE",
        )


def _unbound_pieces(model: Model, solver: _Solver, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, str]]:
    """(what is unbound, option that binds it) for everything that is."""
    named: set[str] = set()
    for value in model.inputs:
        if not value.is_tensor or value.name in shapes:
            continue
        where = f"input '{printable(value.original)}' {value.shape_text()}"
        if value.dims is None or None in value.dims:
            example = (
                [_example_size(solver, dim) for dim in value.dims] if value.dims is not None else _guess_shape(model, value)
            )
            yield where, f"--shape {shlex.quote(printable(value.original) + '=' + 'x'.join(map(str, example)))}"
        for dim in value.dims or ():
            if isinstance(dim, str) and solver.size(dim) is None:
                tree = solver.expressions.get(dim)
                for name in sorted(_names(tree)) if tree is not None else (dim,):
                    if name not in named and name not in solver.values:
                        named.add(name)
                        option = shlex.quote(f"{printable(name)}={_example_size(solver, name)}")
                        yield f"'{printable(name)}' of {where}", f"--dim {option}"


def _example_size(solver: _Solver, dim: Dim) -> int:
    size = solver.size(dim)
    return size if size is not None else 1 if isinstance(dim, str) and "batch" in dim.lower() else 128


def _guess_shape(model: Model, value: GraphValue) -> tuple[int, ...]:
    """A shape to show for an input without one: four axes if an Attention reads it, else two."""
    heads = any(node.op_type == "Attention" and value.name in node.input for node in model.proto.graph.node)
    return (1, 8, 128, 64) if heads else (1, 128)


def bind_dims(
    model: Model,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Mapping[str, Array] | None = None,
) -> Binding:
    """
    Sizes for all dimensions of the model's inputs.

    dims    symbol to size (`--dim`)
    shapes  input name as the file has it to shape (`--shape`)
    inputs  arrays by name as in `Model.proto` (`load_inputs`), whose shapes bind what is left

    Raises UsageError for symbols or inputs the model does not have and for sizes that disagree, InputError for arrays that
    disagree and E-DIM-UNBOUND (W-NOSHAPE where an input declares no shape) listing everything unbound with a command to paste.
    """
    solver = _Solver(model)
    for name, size in (dims or {}).items():
        if name not in solver.names:
            known = ", ".join(printable(symbol) for symbol in solver.names) or "none"
            raise UsageError(
                f"no input has a dimension '{printable(name)}'; symbolic dimensions: {known}",
                file=model.file,
                code="E-DIM-UNKNOWN",
            )
        if not 0 <= size <= _LARGEST:
            raise UsageError(f"dimension '{printable(name)}' cannot be {size}", file=model.file, code="E-DIM-VALUE")
        solver.bind(name, size, f"--dim {printable(name)}={size}", UsageError)
    by_original = {value.original: value for value in model.inputs}
    given: dict[str, tuple[tuple[int, ...], str, type[LampcError]]] = {}
    for name, shape in (shapes or {}).items():
        if name not in by_original:
            known = ", ".join(printable(original) for original in by_original)
            raise UsageError(
                f"--shape: no input is named '{printable(name)}'; inputs: {known}", file=model.file, code="E-INPUT-NAME"
            )
        given[by_original[name].name] = (tuple(shape), f"--shape {printable(name)}", UsageError)
    for value in model.inputs:
        array = (inputs or {}).get(value.name)
        if array is None:
            continue
        if value.name in given and given[value.name][0] != array.shape:
            raise UsageError(
                f"{given[value.name][1]} gives {list(given[value.name][0])}, the array has {list(array.shape)}", file=model.file
            )
        given[value.name] = (array.shape, f"array '{printable(value.original)}'", InputError)
    expressions: list[tuple[str, int, str, type[LampcError]]] = []
    for value in model.inputs:
        if value.name not in given:
            continue
        shape, source, error = given[value.name]
        _match(model, value, shape, source, error)
        for dim, size in zip(value.dims or (), shape, strict=False):
            if isinstance(dim, str) and dim in solver.expressions:
                expressions.append((dim, size, source, error))
            elif isinstance(dim, str):
                solver.bind(dim, size, source, error)
    for text, size, source, error in expressions:
        solver.bind_expression(text, size, source, error)
    resolved = {name: shape for name, (shape, _, _) in given.items()}
    pieces = list(_unbound_pieces(model, solver, resolved))
    if pieces:
        what = ", ".join(dict.fromkeys(piece for piece, _ in pieces))
        options = dict.fromkeys(option for _, option in pieces)
        command = " ".join(["lampc", shlex.quote(printable(model.file, 300)), "--target numpy", *options])
        no_shape = any(value.dims is None and value.name not in resolved and value.is_tensor for value in model.inputs)
        raise InputError(
            f"no size for {what}; give inputs or sizes, for example: {command}",
            file=model.file,
            code="W-NOSHAPE" if no_shape else "E-DIM-UNBOUND",
        )
    for value in model.inputs:
        if value.is_tensor and value.name not in resolved:
            sizes = [solver.size(dim) for dim in value.dims or ()]
            resolved[value.name] = tuple(_checked(model, value, size) for size in sizes)
    return Binding(solver.values, resolved)


def _checked(model: Model, value: GraphValue, size: int | None) -> int:
    if size is None:
        raise UsageError(
            f"a dimension of input '{printable(value.original)}' {value.shape_text()} has no whole, positive size; "
            "choose other sizes",
            file=model.file,
            code="E-DIM-VALUE",
        )
    return size


def parse_dim(text: str) -> tuple[str, int]:
    """`NAME=N` of `--dim` as (name, size); UsageError if it is not of that form."""
    name, equals, size = text.rpartition("=")
    if not (equals and name and size.isascii() and size.isdigit() and len(size) < 13):
        raise UsageError(f"--dim {printable(text)}: expected NAME=N, such as batch=1")
    return name, int(size)


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`INPUT=1x512` of `--shape` as (input, shape); nothing after = is a scalar. UsageError if it is not of that form."""
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split("x") if sizes else []
    if not (equals and name and all(part.isascii() and part.isdigit() and len(part) < 13 for part in parts)):
        raise UsageError(f"--shape {printable(text)}: expected INPUT=SIZES, such as input_ids=1x512")
    return name, tuple(int(part) for part in parts)
