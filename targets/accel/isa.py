"""
The instruction table of the modelled accelerator, as data.

Decoder, assembler, dialect, both engines and docs/isa.md read this one table. Source: docs/accelerator.md sections 2 to 4.
"""

from lampc.targets.accel.instruction import (
    COUNT,
    HEADER,
    ISA_VERSION,
    MAX_SUB_BLOCKS,
    WIDTH,
    Field,
    Format,
    HeaderField,
    Instruction,
    Kind,
    Span,
    Unit,
)

__all__ = [
    "BY_MNEMONIC",
    "BY_NAME",
    "BY_OPCODE",
    "COUNT",
    "FIELD_NAMES",
    "HEADER",
    "ISA_VERSION",
    "MAX_SUB_BLOCKS",
    "TABLE",
    "WIDTH",
    "Field",
    "Format",
    "HeaderField",
    "Instruction",
    "Kind",
    "Span",
    "Unit",
]


def _t(name: str, access: str, span: Span = Span.TILE, optional: bool = False) -> Field:
    return Field(name, Kind.T, access, span, optional)


def _v(name: str, access: str, span: Span = Span.ONE) -> Field:
    return Field(name, Kind.V, access, span)


def _p(name: str, access: str = "r") -> Field:
    return Field(name, Kind.P, access)


def _s(name: str, access: str = "r", span: Span = Span.ONE) -> Field:
    return Field(name, Kind.S, access, span)


_BUF = Field("buf", Kind.B)
_RING = _s("ring", "r", Span.TWO)
_TILE = _s("tile")
_DESC = Field("desc", Kind.D)
_BAR = Field("bar", Kind.BARRIER)
_IMM = Field("imm", Kind.IMM)
_VALUE = Field("value", Kind.F32)
_TARGET = Field("target", Kind.TARGET)
_ORDER = Field("order", Kind.O, "r")
_T = _t("t", "rw")

_LOW_HIGH = (Format.E4M3, Format.E4M11, Format.F32, Format.E4M11_SEQ)
_MIXED = (Format.MIX, Format.F32, Format.E4M11_SEQ)
_CTL = "1 cycle"
_BRANCH = "1 cycle; branch penalty if taken"
_VEC = "pop*b_k*b_q / (lanes*pack) cycles; vec latency"
_ROW = "b_q / lanes cycles; vec latency"
_ROWS = "pop*b_q / lanes cycles; vec latency"
_SUM = "pop*b_k*b_q / lanes cycles; pop*b_k dependent adds"
_LOAD = "bytes / hbm bytes per cycle, outstanding limit; hbm latency"


def _op(
    opcode: int,
    name: str,
    unit: Unit,
    fields: tuple[Field, ...],
    meaning: str,
    price: str,
    formats: tuple[Format, ...] = (Format.NONE,),
    masked: bool = False,
    skip0: bool = False,
    in_place: tuple[str, str] | None = None,
    log: str = "",
) -> Instruction:
    return Instruction(opcode, name, unit, fields, formats, masked, skip0, in_place, log, meaning, price)


TABLE: tuple[Instruction, ...] = (
    # control: scalars, masks, branches, barriers
    _op(0x01, "halt", Unit.CTL, (), "end of the context", _CTL),
    _op(0x02, "mark", Unit.CTL, (_IMM,), "region marker imm for traces", _CTL),
    _op(0x03, "br", Unit.CTL, (_TARGET,), "branch", _BRANCH),
    _op(0x04, "br.z", Unit.CTL, (_p("pa"), _TARGET), "branch if mask pa is empty", _BRANCH),
    _op(0x05, "br.nz", Unit.CTL, (_p("pa"), _TARGET), "branch if mask pa is not empty", _BRANCH),
    _op(0x06, "br.sz", Unit.CTL, (_s("sa"), _TARGET), "branch if sa == 0", _BRANCH),
    _op(0x07, "br.ge", Unit.CTL, (_s("sa"), _TARGET, _IMM), "branch if sa >= imm", _BRANCH),
    _op(0x08, "loop", Unit.CTL, (_s("sd", "rw"), _TARGET), "sd -= 1; branch if sd > 0", _BRANCH),
    _op(0x09, "bar.arrive", Unit.CTL, (_BAR, _RING), "arrive at barrier bar + slot of the ring", _CTL),
    _op(0x0A, "bar.wait", Unit.CTL, (_BAR, _RING), "wait at barrier bar + slot, parity (phase ^ xor) & 1", _CTL),
    _op(
        0x10,
        "s.id",
        Unit.CTL,
        (_s("sd", "w", Span.FOUR),),
        "sd.. = head index, KV head index, query block, warp (0 in the dma stream)",
        _CTL,
    ),
    _op(0x11, "s.mov", Unit.CTL, (_s("sd", "w"), _IMM), "sd = imm", _CTL),
    _op(0x12, "s.add", Unit.CTL, (_s("sd", "w"), _s("sa"), _IMM), "sd = sa + imm", _CTL),
    _op(
        0x13,
        "s.ring",
        Unit.CTL,
        (_s("ring", "rw", Span.TWO), _IMM),
        "next slot of a ring of imm slots: slot += 1; at imm: slot = 0, phase ^= 1",
        _CTL,
    ),
    _op(
        0x14,
        "s.range",
        Unit.CTL,
        (_s("sd", "w", Span.TWO),),
        "sd, sd+1 = first key tile and number of key tiles that can be live for the block (causal, window, tail)",
        _CTL,
    ),
    _op(
        0x15,
        "s.tile",
        Unit.CTL,
        (_s("sd", "w"), _s("range", "r", Span.TWO), _s("sa")),
        "sd = key tile at position sa of the range, in the configuration's key order",
        _CTL,
    ),
    _op(0x18, "p.mov", Unit.CTL, (_p("pd", "w"), _p("pa")), "pd = pa", _CTL),
    _op(0x19, "p.and", Unit.CTL, (_p("pd", "w"), _p("pa"), _p("pb")), "pd = pa & pb", _CTL),
    _op(0x1A, "p.or", Unit.CTL, (_p("pd", "w"), _p("pa"), _p("pb")), "pd = pa | pb", _CTL),
    _op(0x1B, "p.andn", Unit.CTL, (_p("pd", "w"), _p("pa"), _p("pb")), "pd = pa & ~pb", _CTL),
    _op(0x1C, "p.const", Unit.CTL, (_p("pd", "w"), _IMM), "pd = the low N_k bits of imm", _CTL),
    _op(0x1D, "p.cnt", Unit.CTL, (_s("sd", "w"), _p("pa")), "sd = number of sub-blocks in pa", _CTL),
    _op(
        0x1E,
        "p.next",
        Unit.CTL,
        (_p("pd", "w"), _p("pa"), _ORDER),
        "pd = first sub-block of pa in the order, as a one-bit mask; empty if none",
        _CTL,
    ),
    _op(
        0x16,
        "p.after",
        Unit.CTL,
        (_p("pd", "w"), _p("pa"), _p("pb"), _ORDER),
        "pd = sub-blocks of pa that come after all those of pb in the order; pa where pb is empty",
        _CTL,
    ),
    _op(
        0x1F,
        "v.stat",
        Unit.CTL,
        (_p("pa"), _p("pb")),
        "count this live tile in the statistics: pa recomputed in stage 1, pb in stage 2; in layout compact two or more count "
        "as two, and what such a tile has accumulated in e4m11 or exponentiated before this is not counted",
        _CTL,
    ),
    # memory
    _op(
        0x20,
        "dma.ld",
        Unit.DMA,
        (_BUF, _DESC, _TILE, _RING),
        "copy key tile `tile` of the block's KV head into the ring slot; rows beyond the tensor are zero",
        _LOAD,
    ),
    _op(0x21, "dma.ldr", Unit.DMA, (_t("q", "w", Span.Q), _DESC), "load the warp's query rows, widened to FP32", _LOAD),
    _op(
        0x22,
        "dma.ldm",
        Unit.DMA,
        (_t("m", "w", Span.MASK), _DESC, _TILE),
        "load the warp's boolean mask entries of the key tile, 1 byte each",
        _LOAD,
    ),
    _op(
        0x23,
        "dma.ldb",
        Unit.DMA,
        (_t("bias", "w", Span.BIAS), _DESC, _TILE),
        "load the warp's FP32 bias entries of the key tile",
        _LOAD,
    ),
    _op(0x24, "v.ld", Unit.DMA, (_v("vd", "w"), _DESC), "vd = the head's sink, in every row", _LOAD),
    _op(0x25, "dma.st", Unit.DMA, (_DESC, _t("o", "r", Span.O)), "store the warp's output rows, FP32", _LOAD),
    # matrix engine
    _op(
        0x30,
        "mx.qk",
        Unit.MXE,
        (_t("t", "w"), _t("q", "r", Span.Q), _BUF, _RING),
        "scores of the sub-blocks in the mask, rounded to the format after every accumulate_block products",
        "max(pop*b_k*b_q*d / MAC rate of the format, operand-miss bytes / sram bytes per cycle) cycles; "
        "mx latency + ceil(d/accumulate_block) adds",
        formats=_LOW_HIGH,
        masked=True,
        skip0=True,
    ),
    _op(
        0x31,
        "mx.pv",
        Unit.MXE,
        (_t("o", "rw", Span.O), _t("t", "r"), _BUF, _RING, _p("hi")),
        "o += E*V in key order over the sub-blocks in the mask, each in its format (hi: 16 bit); dead entries take no part",
        "max(pop*b_k*b_q*d_v / MAC rate of each sub-block's format, operand-miss bytes / sram bytes per cycle) cycles; "
        "mx latency + pop*b_k adds",
        formats=_MIXED,
        masked=True,
        skip0=True,
    ),
    # vector unit: scores tiles
    _op(
        0x40,
        "v.live",
        Unit.VEC,
        (_p("pd", "w"), _p("pd2", "w"), _TILE, _t("m", "r", Span.MASK, optional=True)),
        "pd = sub-blocks with a live entry, pd2 = those with live and dead ones (causal, window, tail, mask tile)",
        "N_k*b_k*b_q / (4*lanes) cycles; vec latency",
        log="pd | pd2 << 16",
    ),
    _op(
        0x41,
        "v.mask",
        Unit.VEC,
        (_T, _TILE, _t("m", "r", Span.MASK, optional=True)),
        "write the dead code into the dead entries",
        _VEC,
        formats=_LOW_HIGH,
        masked=True,
        skip0=True,
    ),
    _op(
        0x42,
        "v.cap",
        Unit.VEC,
        (_T,),
        "y = round(f32(cap*tanh(y/cap)))",
        "pop*b_k*b_q*(vector operations of a tanh) / lanes cycles; vec latency",
        formats=_LOW_HIGH,
        masked=True,
        skip0=True,
    ),
    _op(
        0x43,
        "v.bias",
        Unit.VEC,
        (_T, _t("bias", "r", Span.BIAS)),
        "y = round(f32(y + bias))",
        "pop*b_k*b_q / lanes cycles; vec latency",
        formats=_LOW_HIGH,
        masked=True,
        skip0=True,
    ),
    _op(
        0x44,
        "v.rmax",
        Unit.VEC,
        (_v("vd", "w", Span.NK), _t("t", "r")),
        "vd[theta] = largest live score of each row, -inf if none",
        _VEC,
        formats=_LOW_HIGH,
        masked=True,
        skip0=True,
    ),
    _op(
        0x45,
        "v.sub",
        Unit.VEC,
        (_T, _v("va", "r")),
        "y becomes s = round(f32(va - y)) in the shift format, at least 0; dead entries get the largest shift and stay dead",
        _VEC,
        formats=_LOW_HIGH,
        masked=True,
        skip0=True,
    ),
    _op(
        0x46,
        "v.rsum",
        Unit.VEC,
        (_v("vd", "w"), _v("va", "r"), _t("t", "r"), _p("hi")),
        "vd = va plus the live E of each row, added one by one in FP32, in key order",
        _SUM,
        formats=_MIXED,
        masked=True,
        skip0=True,
        in_place=("vd", "va"),
    ),
    _op(
        0x47,
        "v.xi",
        Unit.VEC,
        (_v("vd", "w", Span.NK), _v("va", "r"), _t("t", "r"), _p("hi")),
        "vd[theta] = sum over its keys, in order, of f32(f32(va - E)*E)",
        _SUM,
        formats=(Format.MIX,),
        masked=True,
        skip0=True,
    ),
    _op(
        0x48,
        "v.floor",
        Unit.VEC,
        (_t("n", "w"), _T),
        "n = floor(t); t -= n (polynomial exponential)",
        _VEC,
        formats=(Format.F32,),
        masked=True,
        skip0=True,
    ),
    _op(
        0x49,
        "v.fma",
        Unit.VEC,
        (_t("acc", "rw"), _t("t", "r"), _VALUE),
        "acc = f32(acc*t + value), rounded once from float64",
        _VEC,
        formats=(Format.F32,),
        masked=True,
        skip0=True,
    ),
    _op(
        0x4A,
        "v.ldexp",
        Unit.VEC,
        (_T, _t("acc", "r"), _t("n", "r")),
        "t = acc * 2^n; dead entries 0",
        _VEC,
        formats=(Format.F32,),
        masked=True,
        skip0=True,
    ),
    _op(
        0x4B,
        "v.fill",
        Unit.VEC,
        (_t("t", "w"), _VALUE),
        "t = value in every entry",
        _VEC,
        formats=(Format.F32,),
        masked=True,
        skip0=True,
    ),
    _op(
        0x4C,
        "v.scalet",
        Unit.VEC,
        (_T, _VALUE),
        "t = f32(t*value); dead entries stay dead",
        _VEC,
        formats=(Format.F32,),
        masked=True,
        skip0=True,
    ),
    # vector unit: fragments
    _op(0x50, "v.zero", Unit.VEC, (_t("o", "w", Span.O),), "o = 0", "d_v*b_q / lanes cycles; vec latency"),
    _op(
        0x51,
        "v.scale",
        Unit.VEC,
        (_t("o", "rw", Span.O), _v("va", "r")),
        "o = f32(o*va), row by row",
        "d_v*b_q / lanes cycles; vec latency",
    ),
    _op(0x52, "v.scaleq", Unit.VEC, (_t("q", "rw", Span.Q), _VALUE), "q = f32(q*value)", "d*b_q / lanes cycles; vec latency"),
    _op(
        0x53,
        "v.norm",
        Unit.VEC,
        (_t("o", "rw", Span.O), _v("va", "r")),
        "o = f32(o/va), 0 in rows where va = 0",
        "d_v*b_q / lanes divisions; vec latency",
    ),
    # vector unit: row vectors
    _op(0x58, "v.mov", Unit.VEC, (_v("vd", "w"), _v("va", "r")), "vd = va", _ROW),
    _op(0x59, "v.const", Unit.VEC, (_v("vd", "w"), _VALUE), "vd = value in every row", _ROW),
    _op(0x5A, "v.mul", Unit.VEC, (_v("vd", "w"), _v("va", "r"), _v("vb", "r")), "vd = f32(va*vb)", _ROW),
    _op(
        0x5B,
        "v.vmax",
        Unit.VEC,
        (_v("vd", "w"), _v("va", "r"), _v("vb", "r", Span.NK)),
        "vd = max(va, vb[theta] for theta in the mask); NaN stays",
        _ROWS,
        masked=True,
        skip0=True,
        in_place=("vd", "va"),
    ),
    _op(
        0x5C,
        "v.trunc",
        Unit.VEC,
        (_v("vd", "w"), _v("va", "r")),
        "vd = va cut to e4m3 by dropping mantissa bits, saturating at 448",
        _ROW,
    ),
    _op(
        0x5D,
        "v.round",
        Unit.VEC,
        (_v("vd", "w"), _v("va", "r")),
        "vd = va rounded to the format (sinks)",
        _ROW,
        formats=(Format.E4M11, Format.F32),
    ),
    _op(
        0x5E,
        "v.threat",
        Unit.VEC,
        (Field("order", Kind.O, "w"), _v("vb", "r", Span.NK), _v("va", "r")),
        "order = sub-blocks of the mask by max over rows of f32(vb[theta] - va), descending, ties to the lower index, NaN "
        "first; then the others, ascending",
        "pop*b_q / lanes cycles and N_k^2 compares; vec latency",
        masked=True,
        log="theta at position i << 4*i",
    ),
    _op(
        0x5F,
        "v.test",
        Unit.VEC,
        (_p("pd", "w"), _v("vb", "r", Span.NK), _v("va", "r")),
        "pd = the unsafe sub-blocks of the mask: some row with a live entry has not va > f32(vb[theta] + f32(|va|*delta))",
        _ROWS,
        masked=True,
        log="pd",
    ),
    # exponentials and stage 2
    _op(
        0x60,
        "exp.lut",
        Unit.LUT,
        (_T,),
        "E of an 8-bit shift, by table, in place; dead entries 0",
        "pop*b_k*b_q / lut rate cycles; latency 1",
        formats=(Format.E4M3,),
        masked=True,
        skip0=True,
    ),
    _op(
        0x68,
        "exp.sfu",
        Unit.SFU,
        (_T,),
        "E of a 16-bit shift (table) or of an FP32 one (float64 exp, rounded to FP32), in place; dead entries 0",
        "pop*b_k*b_q / sfu rate cycles; sfu latency",
        formats=(Format.E4M11, Format.F32, Format.E4M11_SEQ),
        masked=True,
        skip0=True,
    ),
    _op(
        0x69,
        "exp.lambda",
        Unit.SFU,
        (_v("vd", "w"), _v("va", "r"), _v("vb", "r")),
        "vd = f32(exp(va - vb)) in float64, 0 where va = -inf",
        "b_q / sfu rate cycles; sfu latency",
    ),
    _op(
        0x70,
        "knap",
        Unit.KNAP,
        (_p("pd", "w"), _v("vb", "r", Span.NK), _v("va", "r"), _p("pa")),
        "pd = the sub-blocks of pa that stay low: weights vb, sums va; tau and tie of the configuration",
        "2^N_k*b_q / lanes cycles, twice that and a division per set and row for tie = slack; knap latency",
        log="pd",
    ),
)

BY_OPCODE: dict[int, Instruction] = {row.opcode: row for row in TABLE}
BY_NAME: dict[str, Instruction] = {row.name: row for row in TABLE}
BY_MNEMONIC: dict[str, tuple[Instruction, Format]] = {row.mnemonic(f): (row, f) for row in TABLE for f in row.formats}
FIELD_NAMES: dict[str, Kind] = {f.name: f.kind for row in TABLE for f in row.fields}
"""Every field name has one kind in the whole table."""
