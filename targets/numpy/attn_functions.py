"""NumPy semantics of the tiled `attn` ops."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import BFloat16Type, Float8E4M3FNType, Float16Type, Float32Type, Float64Type, TensorType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Attribute, Operation, SSAValue

from lampc.dialects import attn, lamp
from lampc.dialects import attn_tiled as tiled
from lampc.dialects.lamp_types import FloatType
from lampc.errors import InputError
from lampc.numerics import kernels
from lampc.numerics.formats import E4M3, FloatFormat
from lampc.numerics.masks import Liveness, rows_tile, split_mask
from lampc.numerics.philox import SITE_BIAS, SITE_CAP, RandomSite
from lampc.numerics.rounding import round_to
from lampc.numerics.statistics import Statistics
from lampc.targets.numpy.lanes import Ints, Run, Step, SubBlocks, TileRef, cut_lanes

LANES_AT_ONCE = 1024
"""Lanes per pass over the body: enough to hide the interpreter; a scores tile of so many takes 4 MB at the default sizes."""


def element_format(value: SSAValue) -> FloatFormat | None:
    """The number format of a tensor's elements; None for FP32. Raises TypeError for any other type."""
    element = SSAValue.get(value, type=TensorType).type.element_type
    if isinstance(element, FloatType):
        return element.format
    if isinstance(element, Float32Type):
        return None
    raise TypeError(f"element type {element} is neither f32 nor !lamp.float")


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The static shape of a tensor value."""
    return SSAValue.get(value, type=TensorType).type.get_shape()


def _integer(op: Operation, name: str, default: int = 0) -> int:
    attribute: Any = op.properties.get(name)
    return default if attribute is None else attribute.value.data


def _rules(op: Operation, mask: Any) -> Liveness:
    return Liveness(
        _integer(op, "queries"),
        _integer(op, "keys"),
        causal="causal" in op.properties,
        causal_offset=_integer(op, "causal_offset"),
        window=_integer(op, "window", -1) if "window" in op.properties else None,
        mask=mask,
    )


def round_operand(values: np.ndarray[Any, Any], element: Attribute) -> np.ndarray[Any, Any]:
    """
    Round an operand to its storage type and give it back in FP32, which holds every such value exactly.

    float32 stays; bf16 and f16 round to nearest even (f16 overflows to infinity, as a store would); e4m3 saturates.
    """
    if isinstance(element, Float8E4M3FNType):
        return round_to(values, E4M3)
    types: dict[type[Attribute], Any] = {
        BFloat16Type: ml_dtypes.bfloat16,
        Float16Type: np.float16,
        Float32Type: np.float32,
        Float64Type: np.float64,
    }
    with np.errstate(over="ignore"):
        return values.astype(types[type(element)]).astype(np.float32)


def random_site(run: Run, op: Operation, site: int, key_start: Ints, at: Sequence[SubBlocks]) -> RandomSite | None:
    """Where an op with `rounding = stochastic` draws its words (docs/lampattention.md section 2); None for other ops."""
    if "seed" not in op.properties:
        return None
    lanes = run.running()
    if at:
        lanes = lanes[at[0].lane]
    stream = lanes.batch * run.counts().heads + lanes.head
    after_high = int(bool(at)) if site in (SITE_CAP, SITE_BIAS) else 0
    return RandomSite(_integer(op, "seed"), site, stream, lanes.query_start, key_start, after_high)


@register_impls
class AttnFunctions(InterpreterFunctions):
    """Implementations of `attn.*`; `run` is shared with those of `lamp.*`."""

    def __init__(self, run: Run):
        super().__init__()
        self.run = run

    @impl(attn.RearrangeOp)
    def run_rearrange(self, interpreter: Interpreter, op: attn.RearrangeOp, args: PythonValues) -> PythonValues:
        plan = op.rearrangement
        return (args[0].reshape(plan.split_shape).transpose(plan.permutation).reshape(plan.result_shape),)

    @impl(tiled.RoundOperandOp)
    def run_round(self, interpreter: Interpreter, op: tiled.RoundOperandOp, args: PythonValues) -> PythonValues:
        return (round_operand(args[0], SSAValue.get(op.output, type=TensorType).type.element_type),)

    @impl(tiled.SplitMaskOp)
    def run_split(self, interpreter: Interpreter, op: tiled.SplitMaskOp, args: PythonValues) -> PythonValues:
        shape = shape_of(op.live)
        live, bias = split_mask(
            args[0],
            masked_value=op.masked_value.value.data if op.masked_value is not None else -np.inf,
            threshold=op.threshold.value.data,
            shape=(max(shape[0], 1), max(shape[1], 1), _integer(op, "queries"), _integer(op, "keys")),
            causal=op.causal is not None,
            causal_offset=_integer(op, "causal_offset"),
            window=_integer(op, "window", -1) if op.window is not None else None,
        )
        return live, bias

    @impl_terminator(tiled.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: tiled.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()

    @impl(tiled.LanesOp)
    def run_lanes(self, interpreter: Interpreter, op: tiled.LanesOp, args: PythonValues) -> PythonValues:
        run = self.run
        batch, heads, queries, size = shape_of(op.output)
        rows = op.count("rows")
        run.statistics = Statistics(heads, _sub_blocks(op))
        output = np.zeros((batch, heads, queries, size), np.float32)
        for lanes in cut_lanes(
            batch=batch, heads=heads, group=op.count("group"), queries=queries, rows=rows, at_most=LANES_AT_ONCE
        ):
            run.lanes = lanes
            (result,) = interpreter.run_ssacfg_region(op.body, (None,), "lanes")
            query = lanes.query_start[:, None] + np.arange(rows)
            inside = query < queries
            where = np.broadcast_to(lanes.batch[:, None], query.shape), np.broadcast_to(lanes.head[:, None], query.shape)
            output[where[0][inside], where[1][inside], query[inside]] = result[inside]
        run.lanes = None
        return (output,)

    @impl(tiled.LivenessOp)
    def run_liveness(self, interpreter: Interpreter, op: tiled.LivenessOp, args: PythonValues) -> PythonValues:
        return (_rules(op, args[1] if op.mask is not None else None),)

    @impl(tiled.LoadQueryOp)
    def run_load_query(self, interpreter: Interpreter, op: tiled.LoadQueryOp, args: PythonValues) -> PythonValues:
        source, lanes = args[0], self.run.running()
        query = lanes.query_start[:, None] + np.arange(lanes.rows)
        inside = query < source.shape[2]
        rows = source[lanes.batch[:, None], lanes.head[:, None], np.where(inside, query, 0)]
        return (np.where(inside[..., None], rows, np.float32(0)).astype(np.float32),)

    @impl(tiled.ScaleQueryOp)
    def run_scale(self, interpreter: Interpreter, op: tiled.ScaleQueryOp, args: PythonValues) -> PythonValues:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = args[0] * np.float32(op.scale.value.data)
        # Rows contiguous, as the accumulation kernels read them.
        return (np.ascontiguousarray(scaled.swapaxes(1, 2)).swapaxes(1, 2),)

    @impl(tiled.SoftmaxInitOp)
    def run_init(self, interpreter: Interpreter, op: tiled.SoftmaxInitOp, args: PythonValues) -> PythonValues:
        lanes = self.run.running()
        shape = (len(lanes), lanes.rows)
        maximum, total = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
        if op.sinks is not None:
            sink_maximum, sink_sum = kernels.sink_state(args[1], element_format(op.maximum))
            maximum[:], total[:] = sink_maximum[lanes.head][:, None], sink_sum[lanes.head][:, None]
        return maximum, total, np.zeros((*shape, shape_of(op.output)[1]), np.float32)

    @impl(tiled.TileLoopOp)
    def run_loop(self, interpreter: Interpreter, op: tiled.TileLoopOp, args: PythonValues) -> PythonValues:
        run = self.run
        rules, *state = args
        lanes = run.running()
        keys = _tile_keys(op)
        branches = any(isinstance(inner, lamp.DisruptiveOp) for inner in op.body.block.ops)
        for tile in _order(op.tiles.value.data, op.order.data):
            step = Step.of(rules, lanes, tile, keys)
            skipped = np.ones(len(lanes), np.bool_)
            skipped[step.index] = False
            dead = np.bincount(lanes.head[skipped])
            run.counts().add_dead_tiles(np.arange(len(dead)), dead)
            if not len(step.index):
                continue
            step.held = [] if branches else None
            run.step = step
            some = step.run_of()
            # A slice copies nothing; the body may update it in place, and writes to nothing else that it is given.
            where = step.index if some is None else some
            new = interpreter.run_ssacfg_region(op.body, (tile, *(value[where] for value in state)), "tile")
            if len(step.index) == len(lanes):
                state = list(new)
            else:
                for old, value in zip(state, new, strict=True):
                    if not np.may_share_memory(old, value):
                        old[where] = value
        run.step = None
        return tuple(state)

    @impl(tiled.LiveEntriesOp)
    def run_live(self, interpreter: Interpreter, op: tiled.LiveEntriesOp, args: PythonValues) -> PythonValues:
        return (self.run.in_step().live,)

    @impl(tiled.LoadTileOp)
    def run_load_tile(self, interpreter: Interpreter, op: tiled.LoadTileOp, args: PythonValues) -> PythonValues:
        batch, heads, keys, size = args[0].shape
        source = args[0].reshape(batch * heads, keys, size)
        return (TileRef(source, self.run.in_step().key_start, shape_of(op.result)[0]),)

    @impl(tiled.ScoresOp)
    def run_scores(self, interpreter: Interpreter, op: tiled.ScoresOp, args: PythonValues) -> PythonValues:
        tile, query = args
        step = self.run.in_step()
        start = np.full(len(step.index), tile.start, np.int64)
        scores = kernels.accumulate(tile.data, step.lanes.key_value, start, query, step.index, tile.count, None)
        self.run.counts().add_saturation("f32", step.lanes.head, *kernels.count_saturated(scores, step.live, None))
        return (scores,)

    @impl(tiled.SoftCapOp)
    def run_cap(self, interpreter: Interpreter, op: tiled.SoftCapOp, args: PythonValues) -> PythonValues:
        start = self._key_starts(args[0].shape[1], args[1:])
        random = random_site(self.run, op, SITE_CAP, start, args[1:])
        fmt = element_format(op.result)
        return (kernels.soft_cap(args[0], op.cap.value.data, fmt, **_to_format(op), random=random),)

    def _key_starts(self, count: int, at: Sequence[SubBlocks]) -> Ints:
        """First key of each lane's tile, or of each sub-block of `count` keys that a region recomputes."""
        step = self.run.in_step()
        start = np.full(len(step.index), step.key_start, np.int64)
        return start[at[0].lane] + at[0].theta * count if at else start

    @impl(tiled.AddBiasOp)
    def run_bias(self, interpreter: Interpreter, op: tiled.AddBiasOp, args: PythonValues) -> PythonValues:
        scores, bias = args[:2]
        if bias is None:
            return (scores,)
        at: Sequence[SubBlocks] = args[4:]
        lanes, start = self.run.in_step().lanes, self._key_starts(scores.shape[1], at)
        if at:
            lanes = lanes[at[0].lane]
        tile = rows_tile(bias, lanes.batch, lanes.head, lanes.query_start, start, lanes.rows, scores.shape[1])
        random = random_site(self.run, op, SITE_BIAS, start, at)
        return (kernels.add_bias(scores, tile, element_format(op.result), **_to_format(op), random=random),)

    @impl(tiled.OnlineSoftmaxOp)
    def run_online(self, interpreter: Interpreter, op: tiled.OnlineSoftmaxOp, args: PythonValues) -> PythonValues:
        maximum, total, output, scores, live, value = args
        top = kernels.subblock_max(scores, live, 1)[:, 0]
        new_maximum = np.maximum(maximum, top)
        exponentials = kernels.shift_exp(scores, live, new_maximum, None, None, clamp=False)
        factor = kernels.rescale(maximum, new_maximum)
        with np.errstate(over="ignore", invalid="ignore"):
            alpha = factor * total
        new_total = kernels.row_sum(alpha, exponentials, live)
        start = np.full(len(scores), value.start, np.int64)
        key_value = self.run.running().key_value
        new_output = kernels.update_output(output, factor, exponentials, live, value.data, key_value, start)
        none = np.zeros(len(scores), np.int64)
        self.run.counts().add_tiles(self.run.running().head, none, none)
        return new_maximum, new_total, new_output

    @impl(tiled.NormalizeOp)
    def run_normalize(self, interpreter: Interpreter, op: tiled.NormalizeOp, args: PythonValues) -> PythonValues:
        return (kernels.normalise(args[0], args[1]),)


def _to_format(op: tiled.SoftCapOp | tiled.AddBiasOp) -> dict[str, Any]:
    """How the result of an op gets its format; level 3 has FP32, and does not say."""
    choices = {"rounding": op.rounding, "overflow": op.overflow}
    return {name: choice.data for name, choice in choices.items() if choice is not None}


def _order(tiles: int, order: str) -> list[int]:
    forward = list(range(tiles))
    if order == "forward":
        return forward
    return forward[::-1] if order == "reverse" else forward[:1] + forward[:0:-1]


def _tile_keys(op: tiled.TileLoopOp) -> int:
    for inner in op.body.block.ops:
        if isinstance(inner, tiled.LiveEntriesOp):
            return shape_of(inner.result)[0]
    raise InputError("an attn.tile_loop without attn.live_entries cannot run: nothing says how many keys a tile has")


def _sub_blocks(op: tiled.LanesOp) -> int:
    for inner in op.body.block.ops:
        if isinstance(inner, tiled.TileLoopOp):
            return inner.sub_blocks.value.data
    return 1
