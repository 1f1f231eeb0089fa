"""
How kernels are compiled, and the vectors they compute with.

`Lanes` is a vector of 16 float32 that stays in registers (one 512-bit register where there are such, else several): LLVM's
vectoriser gives up on loops of 16 rows, so the kernels say what they want. Every function below is one or two IEEE
operations per lane. Nothing is contracted: c + k*q rounds twice.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from lampc.numerics.arrays import F32, Bools

# Neither package has types; Any keeps their names from spreading through strict checking.
ir: Any = import_module("llvmlite.ir")
llvm: Any = import_module("llvmlite.binding")
numba: Any = import_module("numba")
types: Any = import_module("numba.types")
extending: Any = import_module("numba.extending")
cgutils: Any = import_module("numba.core.cgutils")

F = TypeVar("F", bound=Callable[..., Any])

LANES = 16
"""Rows in one `Lanes`."""


def kernel(function: F) -> F:
    """
    Compile `function` on first use per argument types, keep the machine code on disk, run without interpreter lock.

    The kept code knows when its own file changes, not when this one does: after editing here delete `__pycache__/*.nbi`.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to keep it
        return numba.njit(nogil=True, error_model="numpy")(function)


class Lanes(types.Type):
    """The Numba type of 16 float32 in registers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")  # pyright: ignore[reportUnknownMemberType]


_LANES = Lanes()
_INT = ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_INT, LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_FEATURES = llvm.get_host_cpu_features()
_FUSED = _FEATURES.get("fma", False)
# An instruction by name, not by meaning, must be one that Numba may use.
_RANGE = _FEATURES.get("avx512dq", False) and numba.config.CPU_NAME is None and numba.config.CPU_FEATURES is None


@extending.register_model(Lanes)
class LanesModel(extending.models.PrimitiveModel):
    """Lanes are an LLVM vector."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _FLOATS)  # pyright: ignore[reportUnknownMemberType]


def _every(builder: Any, scalar: Any, vector_type: Any) -> Any:
    undefined = ir.Constant(vector_type, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))


def _constant(value: int) -> Any:
    return ir.Constant(_INTS, [value] * LANES)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    # No bounds check and no wrapping of negative offsets: the kernels guarantee both.
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def _zero_lanes(_typing: Any) -> Any:
    def generate(_context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return ir.Constant(_FLOATS, [0.0] * LANES)

    return _LANES(), generate


def _load_lanes(_typing: Any, array: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(address, _FLOATS.as_pointer()), align=4)

    return _LANES(array, types.intp), generate


def _store_lanes(_typing: Any, array: Any, offset: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(address, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _plus_product(_typing: Any, total: Any, array: Any, offset: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scalar = builder.load(_address(context, builder, signature.args[1], args[1], args[2]))
        return builder.fadd(args[0], builder.fmul(_every(builder, scalar, _FLOATS), args[3]))

    return _LANES(_LANES, array, types.intp, _LANES), generate


def _read_live(context: Any, builder: Any, signature: Any, args: Any) -> tuple[Any, Any]:
    """16 values, and which are live, of a call (lanes, array, offset, live, ...)."""
    address = _address(context, builder, signature.args[1], args[1], args[2])
    values = builder.load(builder.bitcast(address, _FLOATS.as_pointer()), align=4)
    flags = builder.bitcast(_address(context, builder, signature.args[3], args[3], args[2]), _BYTES.as_pointer())
    return values, builder.icmp_unsigned("!=", builder.load(flags, align=1), ir.Constant(_BYTES, [0] * LANES))


def _size(builder: Any, values: Any) -> Any:
    return builder.bitcast(builder.and_(builder.bitcast(values, _INTS), _constant(0x7FFFFFFF)), _FLOATS)


def _plus_live(_typing: Any, total: Any, array: Any, offset: Any, live: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, alive = _read_live(context, builder, signature, args)
        return builder.select(alive, builder.fadd(args[0], values), args[0])

    return _LANES(_LANES, array, types.intp, live), generate


def _larger_live(_typing: Any, best: Any, array: Any, offset: Any, live: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, alive = _read_live(context, builder, signature, args)
        # Unordered: a NaN is taken, and the other comparison keeps it.
        taken = builder.and_(builder.fcmp_unordered("ugt", values, args[0]), builder.fcmp_ordered("ord", args[0], args[0]))
        return builder.select(builder.and_(alive, taken), values, args[0])

    return _LANES(_LANES, array, types.intp, live), generate


def _larger_size(_typing: Any, best: Any, array: Any, offset: Any, live: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, alive = _read_live(context, builder, signature, args)
        size = _size(builder, values)
        return builder.select(builder.and_(alive, builder.fcmp_ordered(">", size, args[0])), size, args[0])

    return _LANES(_LANES, array, types.intp, live), generate


def _counting(holds: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def count(_typing: Any, total: Any, array: Any, offset: Any, live: Any, limit: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values, alive = _read_live(context, builder, signature, args)
            counted = builder.and_(alive, holds(builder, values, args[4]))
            ones, zeros = (ir.Constant(_FLOATS, [number] * LANES) for number in (1.0, 0.0))
            return builder.fadd(args[0], builder.select(counted, ones, zeros))

        return _LANES(_LANES, array, types.intp, live, _LANES), generate

    return count


def _is_above(builder: Any, values: Any, limit: Any) -> Any:
    return builder.fcmp_ordered(">", values, limit)


def _is_size(builder: Any, values: Any, limit: Any) -> Any:
    return builder.fcmp_ordered("==", _size(builder, values), limit)


def _scaled(_typing: Any, lanes: Any, array: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scalar = builder.load(_address(context, builder, signature.args[1], args[1], args[2]))
        return builder.fmul(args[0], _every(builder, scalar, _FLOATS))

    return _LANES(_LANES, array, types.intp), generate


def _largest(_typing: Any, best: Any, lanes: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        # As integers: NaN is larger than infinity.
        best, size = builder.bitcast(args[0], _INTS), builder.bitcast(_size(builder, args[1]), _INTS)
        return builder.bitcast(builder.select(builder.icmp_signed(">", size, best), size, best), _FLOATS)

    return _LANES(_LANES, _LANES), generate


def _rounded(_typing: Any, lanes: Any, grid: Any) -> Any:
    # The kind of grid is known from its type, so each has its own machine code and none a branch.
    generate = (_keep, _round_near, _round_unbounded, _round_bounded, _round_finite)[len(grid)]
    return _LANES(_LANES, grid), generate


def _keep(_context: Any, _builder: Any, _signature: Any, args: Any) -> Any:
    return args[0]


def _round_unbounded(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    dropped, largest = (_every(builder, builder.extract_value(args[1], i), _INTS) for i in (0, 1))
    bits = builder.bitcast(args[0], _INTS)
    size = builder.and_(bits, _constant(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, dropped), _constant(1))
    half = builder.sub(builder.shl(_constant(1), builder.sub(dropped, _constant(1))), _constant(1))
    moved = builder.add(size, builder.add(half, odd))
    moved = builder.shl(builder.lshr(moved, dropped), dropped)
    moved = builder.select(builder.icmp_signed("<", largest, moved), largest, moved)
    signed = builder.bitcast(builder.or_(moved, builder.and_(bits, _constant(-0x80000000))), _FLOATS)
    nan = builder.fcmp_unordered("uno", args[0], args[0])
    zero = ir.Constant(_FLOATS, [0.0] * LANES)
    return builder.fadd(builder.select(nan, args[0], signed), zero)  # -0 becomes +0


def _round_bounded(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    largest, smallest, factor = (builder.extract_value(args[1], i) for i in range(3))
    return _to_power(builder, _clamped(builder, args[0], largest), smallest, factor)


def _round_finite(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    largest, smallest, factor = (builder.extract_value(args[1], i) for i in range(3))
    if not _RANGE:
        return _to_power(builder, _clamped(builder, args[0], largest), smallest, factor)
    # The smaller size, with the first one's sign; of a NaN it would make the largest value.
    shape = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _INT, _FLOATS, ir.IntType(16), _INT])
    clamp = cgutils.get_or_insert_function(builder.module, shape, "llvm.x86.avx512.mask.range.ps.512")
    all_lanes, smaller_size, current = ir.Constant(ir.IntType(16), -1), _INT(2), _INT(4)
    values = [args[0], _every(builder, largest, _FLOATS), smaller_size, ir.Constant(_FLOATS, ir.Undefined), all_lanes, current]
    return _to_power(builder, builder.call(clamp, values), smallest, factor)


def _round_near(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    # The smallest normal value is no constant here: of a known one LLVM makes a comparison and a blend.
    smallest, factor = (builder.extract_value(args[1], [0, i]) for i in range(2))
    return _to_power(builder, args[0], smallest, factor)


def _clamped(builder: Any, x: Any, largest: Any) -> Any:
    # Written so that NaN passes: the comparison is false and the value stays.
    top, bottom = _every(builder, largest, _FLOATS), _every(builder, builder.fneg(largest), _FLOATS)
    x = builder.select(builder.fcmp_ordered("<", top, x), top, x)
    return builder.select(builder.fcmp_ordered(">", bottom, x), bottom, x)


def _to_power(builder: Any, x: Any, smallest: Any, factor: Any) -> Any:
    """x to a multiple of 2^-m * (the power of two in x, at least `smallest`), nearest-even; factor = 1.5*2^(23-m)."""
    power = builder.and_(builder.bitcast(x, _INTS), _constant(0x7F800000))
    least = _every(builder, smallest, _INTS)
    power = builder.bitcast(builder.select(builder.icmp_signed(">", least, power), least, power), _FLOATS)
    factors = _every(builder, factor, _FLOATS)
    if _FUSED:  # The product is exact, so fused and separate forms agree; fused is one instruction less.
        shape = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fma = cgutils.get_or_insert_function(builder.module, shape, f"llvm.fma.v{LANES}f32")
        return builder.call(fma, [builder.fneg(power), factors, builder.call(fma, [power, factors, x])])
    magic = builder.fmul(power, factors)
    return builder.fsub(builder.fadd(x, magic), magic)


zero_lanes: Callable[[], Lanes] = extending.intrinsic(_zero_lanes)
"""16 zeros."""
load_lanes: Callable[[F32, int], Lanes] = extending.intrinsic(_load_lanes)
"""16 elements of a contiguous array from an offset."""
store_lanes: Callable[[F32, int, Lanes], None] = extending.intrinsic(_store_lanes)
"""Write 16 elements to a contiguous array at an offset."""
plus_product: Callable[[Lanes, F32, int, Lanes], Lanes] = extending.intrinsic(_plus_product)
"""f32(total + f32(array[offset] * lanes)), two roundings."""
plus_live: Callable[[Lanes, F32, int, Bools], Lanes] = extending.intrinsic(_plus_live)
"""f32(total + array[offset ..]) in the lanes that are live, total in the others."""
larger_live: Callable[[Lanes, F32, int, Bools], Lanes] = extending.intrinsic(_larger_live)
"""The larger of best and array[offset ..] in the lanes that are live; a NaN is taken and stays."""
larger_size: Callable[[Lanes, F32, int, Bools], Lanes] = extending.intrinsic(_larger_size)
"""The larger of best and |array[offset ..]| in the lanes that are live; a NaN is not taken."""
count_above: Callable[[Lanes, F32, int, Bools, Lanes], Lanes] = extending.intrinsic(_counting(_is_above))
"""One more in the lanes that are live and above a limit."""
count_size: Callable[[Lanes, F32, int, Bools, Lanes], Lanes] = extending.intrinsic(_counting(_is_size))
"""One more in the lanes that are live and of a size |array[offset ..]| equal to a limit."""
scaled: Callable[[Lanes, F32, int], Lanes] = extending.intrinsic(_scaled)
"""f32(lanes * array[offset])."""
largest: Callable[[Lanes, Lanes], Lanes] = extending.intrinsic(_largest)
"""The larger of best, not negative, and |lanes|; a NaN is larger than all else."""
rounded: Callable[[Lanes, tuple[Any, ...]], Lanes] = extending.intrinsic(_rounded)
"""
Lanes on a grid, nearest-even, as `rounding.round_in_place` does it. The grid is

()                            FP32 itself
((smallest, factor),)         FP32's exponent range, for values far from its end: factor = 1.5*2^(23-m) times them is finite
(dropped, largest)            FP32's exponent range: int32 bits dropped, int32 bits of the largest value
(largest, smallest, factor)   a bounded range: float32 largest value, int32 bits of the smallest normal value, float32 factor
(largest, smallest, factor, 0)  the same for values that are no NaN, which is quicker
"""
