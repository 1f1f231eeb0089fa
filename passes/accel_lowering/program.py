"""One attention as an `accel.program`: what its contexts share, the stream that loads tiles, the frame around a tile's step."""

from xdsl.dialects.builtin import Float32Type, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from lampc.dialects import attn_tiled as tiled
from lampc.dialects.accel import ProgramOp
from lampc.dialects.accel_registers import BarrierOp, BufferOp, DescriptorOp
from lampc.ir import tensor_shape
from lampc.passes.accel_lowering.compact import step_of
from lampc.passes.accel_lowering.description import Description, format_of
from lampc.passes.accel_lowering.refuse import refuse
from lampc.passes.accel_lowering.step import Rings, State
from lampc.passes.accel_lowering.stream import StreamWriter


class ProgramLowering:
    """
    Writes the program of one attention; `key_slots` and `value_slots` are the tiles that K's and V's rings hold.
    """

    def __init__(self, description: Description, key_slots: int, value_slots: int):
        self._d = description
        self._body = Block()
        self._slots = {"k": key_slots, "v": value_slots}
        self._descriptors: dict[str, SSAValue] = {}
        self._buffers: dict[str, SSAValue] = {}
        self._barriers: dict[str, SSAValue] = {}

    def lower(self, name: str) -> ProgramOp:
        """The program, called `name`. Raises CompileError for what is no program of the machine."""
        d, config = self._d, self._d.config
        for tensor, value in d.tensors.items():
            self._share(self._descriptors, DescriptorOp(tensor, type=_four_axes(value)), tensor)
        self._share(self._descriptors, DescriptorOp("o", type=_four_axes(d.lanes.output)), "o")
        rows = config.bk * config.nk * config.operand_bytes
        for tensor, size in (("k", config.d), ("v", config.dv)):
            slots = self._slots[tensor]
            self._share(self._buffers, BufferOp(tensor, slots, rows * size), tensor, f"{tensor}_buffer")
            for state, expected in (("full", 1), ("empty", config.nq)):
                key = f"{tensor}_{state}"
                self._share(self._barriers, BarrierOp(key, slots, expected), key)
        self._body.add_op(self._warps())
        self._body.add_op(self._loads())
        program = ProgramOp(name, config, Region(self._body))
        program.location = d.lanes.location
        return program

    def _share(self, into: dict[str, SSAValue], op: Operation, key: str, hint: str | None = None) -> None:
        op.location = self._d.lanes.location
        op.results[0].name_hint = hint or key
        self._body.add_op(op)
        into[key] = op.results[0]

    def _rings(self, w: StreamWriter) -> Rings:
        return Rings(
            key=w.ring("k_ring"),
            value=w.ring("v_ring"),
            slots=self._slots,
            buffers=self._buffers,
            barriers=self._barriers,
        )

    def _key_tiles(self, w: StreamWriter) -> "KeyTiles":
        return KeyTiles(w, self._d.config.kv_order)

    def _loads(self) -> Operation:
        """The dma stream: keep the rings filled."""
        d = self._d
        w = StreamWriter(d.loop)
        rings = self._rings(w)
        tiles = self._key_tiles(w)
        with w.inside(w.loop(tiles.counter)):
            tiles.begin()
            for op in (op for op in d.loop.body.block.ops if isinstance(op, tiled.LoadTileOp)):
                tensor = "k" if op.source is d.tensors["k"] and not rings.loaded("k") else "v"
                with w.at(op):
                    rings.load(w, tensor, self._descriptors[tensor], tiles.tile)
            rings.advance(w)
            tiles.end()
        return w.finish("dma")

    def _warps(self) -> Operation:
        """The warp stream: queries, the loop over key tiles, the result."""
        d, config, w = self._d, self._d.config, StreamWriter(self._d.lanes)
        geometry = config.geometry
        rings = self._rings(w)
        state: State | None = None
        query: SSAValue | None = None
        for op in d.lanes.body.block.ops:
            with w.at(op):
                match op:
                    case tiled.LoadQueryOp():
                        query = w.tile("query", geometry.query_granules)
                        w.inst("dma.ldr", q=query, desc=self._descriptors["q"])
                    case tiled.ScaleQueryOp():
                        assert query is not None
                        w.inst("v.scaleq", q=query, value=op.scale.value.data)
                    case tiled.SoftmaxInitOp():
                        state = self._initial(w, op, geometry.output_granules)
                    case tiled.TileLoopOp():
                        assert state is not None and query is not None
                        self._loop(w, rings, state, query)
                    case tiled.NormalizeOp():
                        assert state is not None
                        w.inst("v.norm", o=state.output, va=state.sum)
                    case tiled.YieldOp():
                        assert state is not None
                        w.inst("dma.st", desc=self._descriptors["o"], o=state.output)
                    case tiled.LivenessOp():
                        pass
                    case _:
                        refuse(op, f"{op.name} is no part of a program of the accelerator")
        return w.finish("warp")

    def _initial(self, w: StreamWriter, op: tiled.SoftmaxInitOp, granules: int) -> State:
        state = State(w.vector("mu"), w.vector("omega"), w.tile("output", granules))
        if op.sinks is None:
            w.inst("v.const", vd=state.maximum, value=float("-inf"))
            w.inst("v.const", vd=state.sum, value=0.0)
        else:
            sink = w.vector("sink")
            w.inst("v.ld", vd=sink, desc=self._descriptors["sinks"])
            w.inst(f"v.round.{format_of(op.maximum)}", vd=state.maximum, va=sink)
            w.inst("exp.lambda", vd=state.sum, va=sink, vb=state.maximum)
        w.inst("v.zero", o=state.output)
        return state

    def _loop(self, w: StreamWriter, rings: Rings, state: State, query: SSAValue) -> None:
        d, config = self._d, self._d.config
        tiles = self._key_tiles(w)
        live, partial = w.mask("live"), w.mask("partial")
        with w.inside(w.loop(tiles.counter)):
            tiles.begin()
            entries: dict[str, SSAValue] = {}
            with w.at(d.live):
                if config.has_mask:
                    entries["m"] = w.tile("mask", config.nk)
                    w.inst("dma.ldm", m=entries["m"], desc=self._descriptors["mask"], tile=tiles.tile)
                w.inst("v.live", entries, pd=live, pd2=partial, tile=tiles.tile)
            some, none = w.if_some(live)
            with w.inside(some):
                step = step_of(d)(w, d, rings, state, query, live, partial, tiles.tile, entries)
                step.lower(self._descriptors.get("bias"))
            with w.inside(none):
                rings.release_all(w)
            rings.advance(w)
            tiles.end()


class KeyTiles:
    """Walks the key tiles of a thread block: `tile` is the current one, `counter` what the loop counts down."""

    def __init__(self, w: StreamWriter, order: str):
        self._w = w
        span = w.scalar("tiles", 2)
        w.inst("s.range", sd=span)
        self._span = span
        self._position: SSAValue | None = None
        if order == "forward":  # the range itself serves: its first tile counts up, its length down
            self.tile, self.counter = span, w.part(span, 1, "tiles_left")
            return
        self.tile, self.counter, self._position = w.scalar("tile"), w.scalar("tiles_left"), w.scalar("position")
        w.inst("s.add", sd=self.counter, sa=w.part(span, 1, "tiles_all"), imm=0)
        w.inst("s.mov", sd=self._position, imm=0)

    def begin(self) -> None:
        """At the top of the loop."""
        if self._position is not None:
            self._w.inst("s.tile", sd=self.tile, range=self._span, sa=self._position)

    def end(self) -> None:
        """At the bottom of the loop."""
        moving = self.tile if self._position is None else self._position
        self._w.inst("s.add", sd=moving, sa=moving, imm=1)


def _four_axes(value: SSAValue) -> TensorType[Attribute]:
    """The type of a tensor as a descriptor has it; sinks, [heads], stand on the axis of heads."""
    type = SSAValue.get(value, type=TensorType).type
    shape = tensor_shape(value)
    if len(shape) == 1:
        return TensorType(Float32Type(), [1, shape[0], 1, 1])
    return TensorType(type.element_type, shape)
