"""Text, words, object and back, for random valid programs."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lampc.targets.accel.assembler import assemble, unescape
from lampc.targets.accel.disassembler import disassemble, escape, float_text
from lampc.targets.accel.encoding import DecodedStream, encode
from lampc.targets.accel.isa import BY_NAME, COUNT, TABLE, Format, Instruction, Kind, Unit
from lampc.targets.accel.object import Barrier, Buffer, Config, Descriptor, Program, exponential_tables, load, save

NK = 4
CONFIGS = [
    Config(bq=16, bk=16, nk=NK, nq=8, d=64, dv=32, lq=500, lk=512, batch=2, hq=4, hkv=2, scale=0.125, layout=layout)
    for layout in ("safe", "compact")
]
DESCRIPTORS = (
    Descriptor("k", (2, 2, 512, 64), "f32"),
    Descriptor("v", (2, 2, 512, 32), "f32"),
    Descriptor("q", (2, 4, 500, 64), "f32"),
)
BUFFERS = (Buffer("kb", 0, 16384, 3), Buffer("vb", 49152, 16384, 2))
BARRIERS = (Barrier("k_full", 0, 3, 1), Barrier("v_full", 3, 2, 1), Barrier("k_empty", 5, 3, 8))
FIRSTS = [barrier.first for barrier in BARRIERS]
WARP = [row for row in TABLE if row.name not in ("dma.ld", "halt")]
DMA = [row for row in TABLE if (row.unit is Unit.CTL and row.name != "halt") or row.name == "dma.ld"]


@st.composite
def instructions(draw: st.DrawFn, row: Instruction, config: Config, count: int) -> dict[str, int]:
    """Values of a random instruction `row` in a stream of `count` words."""
    formats = [f for f in row.formats if f is not Format.E4M11_SEQ or config.layout == "compact"]
    fmt = draw(st.sampled_from(formats))
    values: dict[str, int] = {
        "opcode": row.opcode,
        "format": fmt,
        "predicate": 0,
        "wait": -1,
        "signal": -1,
        "xor": 0,
        "skip0": 0,
    }
    for f in row.fields:
        match f.kind:
            case Kind.BARRIER:
                strategy = st.sampled_from(FIRSTS)
            case Kind.IMM:
                strategy = st.integers(-(1 << 31), (1 << 31) - 1)
            case Kind.F32:
                strategy = st.integers(0, (1 << 32) - 1)
            case Kind.TARGET:
                strategy = st.integers(0, count - 1)
            case Kind.D:
                strategy = st.integers(0, len(DESCRIPTORS) - 1)
            case Kind.B:
                strategy = st.integers(0, len(BUFFERS) - 1)
            case Kind.T | Kind.V | Kind.P | Kind.O | Kind.S:
                first = int(f.kind is Kind.P and f.writes)
                strategy = st.integers(first, COUNT[f.kind] - config.geometry.span(f, fmt))
        values[f.name] = draw(st.just(-1) | strategy if f.optional else strategy)
    if row.masked:
        values["predicate"] = draw(st.integers(0, COUNT[Kind.P] - 1))
    if row.skip0 and draw(st.booleans()):
        values["skip0"] = 1
        if row.in_place is not None:
            values[row.in_place[0]] = values[row.in_place[1]]
    if row.synchronises:
        values["wait"], values["signal"] = (draw(st.sampled_from([-1, *FIRSTS])) for _ in range(2))
        if values["wait"] >= 0 or row.name == "bar.wait":
            values["xor"] = draw(st.integers(0, 1))
    return values


@st.composite
def programs(draw: st.DrawFn) -> Program:
    config = draw(st.sampled_from(CONFIGS))
    streams: dict[str, DecodedStream] = {}
    symbols: dict[str, tuple[str, ...]] = {}
    for name, rows in (("warp", WARP), ("dma", DMA)):
        chosen = draw(st.lists(st.sampled_from(rows), max_size=6))
        stream = DecodedStream.empty(len(chosen) + 1)
        stream.opcode[-1] = BY_NAME["halt"].opcode
        for index, row in enumerate(chosen):
            for key, value in draw(instructions(row, config, len(stream))).items():
                (stream.fields[key] if key in stream.fields else getattr(stream, key))[index] = value
        streams[name] = stream
        symbols[name] = tuple(draw(st.lists(st.text(max_size=8), min_size=len(stream), max_size=len(stream))))
    return Program(
        cfg=config,
        descriptors=DESCRIPTORS,
        buffers=BUFFERS,
        barriers=BARRIERS,
        granules=COUNT[Kind.T],
        vectors=COUNT[Kind.V],
        streams={name: encode(stream) for name, stream in streams.items()},
        tables=exponential_tables(),
        symbols=symbols,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_text_words_text(program: Program) -> None:
    text = disassemble(program)
    again = assemble(text)
    assert disassemble(again) == text
    for name in program.streams:
        assert (again.streams[name] == program.streams[name]).all()
        assert again.symbols[name] == program.symbols[name]
    assert again.cfg == program.cfg
    assert again.program_hash() == program.program_hash()
    assert save(again) == save(program)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_object_and_back(program: Program) -> None:
    data = save(program)
    again = load(data)
    assert save(again) == data
    assert disassemble(again) == disassemble(program)


@given(st.text())
def test_symbols_survive(symbol: str) -> None:
    written = escape(symbol)
    assert "\n" not in written and written == written.strip()
    assert unescape(written) == symbol


@given(st.integers(0, (1 << 32) - 1))
def test_floats_survive(bits: int) -> None:
    program = assemble(
        ".cfg bq=1 bk=1 nk=1 nq=1 d=1 dv=1 lq=1 lk=1 batch=1 hq=1 hkv=1 scale=1\n.registers granules=1 vectors=1\n"
        f".stream warp\n v.const v0, {float_text(bits)}\n halt\n.stream dma\n halt\n"
    )
    assert program.decoded["warp"].fields["value"][0] == bits
