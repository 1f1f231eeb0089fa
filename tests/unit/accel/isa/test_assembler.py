"""Assembly text: what is read, and errors that name the line."""

import pytest

from lampc.errors import InputError
from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.disassembler import disassemble, instruction_text
from lampc.targets.accel.isa import BY_MNEMONIC
from lampc.targets.accel.program import Program


def test_reads_what_it_says(program: Program, text: str) -> None:
    lines = [line.strip() for line in text.split(".stream warp\n")[1].split("\n") if line and not line.strip().endswith(":")]
    shown = [line.partition(" ; ")[0].replace("again", "L2") for line in lines]
    stop = shown.index(".stream dma")
    for stream, wanted in (("warp", shown[:stop]), ("dma", shown[stop + 1 :])):
        assert [instruction_text(program, stream, i) for i in range(len(program.streams[stream]))] == wanted
    assert program.symbol("warp", 5) == "layers.0/attention"
    assert program.symbol("warp", 10) == "back; to the \\ start"
    assert program.cfg.causal and program.cfg.scale == 0.125 and program.cfg.tau == 0.5
    assert program.sram_bytes == 49152 + 2 * 16384


def test_canonical_text_is_stable(program: Program) -> None:
    text = disassemble(program)
    assert disassemble(assemble(text)) == text


def test_windows_line_ends(program: Program, text: str) -> None:
    assert disassemble(assemble(text.replace("\n", "\r\n"))) == disassemble(program)


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("exp.lut t16", "exp.lutt t16", "there is no instruction 'exp.lutt'"),
        ("mx.qk.e4m3 t16", "mx.qk t16", "mx.qk needs a format: mx.qk.e4m3, mx.qk.e4m11, mx.qk.f32, mx.qk.e4m11.seq"),
        ("mx.qk.e4m3 t16", "mx.qk.e4m11.seq t16", "the sequential update belongs to the compact layout"),
        ("exp.lut t16", "exp.lut t1024", "expected a register t0 to t1023, got 't1024'"),
        ("exp.lut t16", "exp.lut v16", "expected a register t0 to t1023, got 'v16'"),
        ("exp.lut t16", "exp.lut t33", "exp.lut: t runs past the program's 40 granules"),
        ("v.threat o1, v4", "v.threat o1, v11", "v.threat: vb runs past the program's 14 vectors"),
        ("exp.lut t16 @p1", "exp.lut t16, t17 @p1", "exp.lut takes t; got 2 operands"),
        ("exp.lut t16 @p1", "exp.lut @p1", "exp.lut takes t; got 0 operands"),
        ("exp.lut t16 @p1", "exp.lut t16 @p1 @p2", "predicate stands here a second time"),
        ("exp.lut t16 @p1", "exp.lut t16 @p1 wait=k_full", "has no ring, so it neither waits nor signals"),
        ("exp.lut t16 @p1", "exp.lut t16 @p1 skip1", "cannot read skip1"),
        ("exp.lut t16 @p1", "v.test p0, v4, v3", "writes p0"),
        ("t0, k[s4] @p1", "t0, kk[s4] @p1", "there is no buffer 'kk'; declared above: k, v"),
        ("t0, k[s4] @p1", "t0, k @p1", "expected a buffer with its ring, such as k[s4], got 'k'"),
        ("wait=k_full signal", "wait=full signal", "there is no barrier 'full'"),
        ("dma.ldr t0, q", "dma.ldr t0, w", "there is no descriptor 'w'"),
        ("dma.ldr t0, q", "dma.ld k[s4], k, s2", "dma.ld: does not belong into this stream"),
        ("br.nz p1, again", "br.nz p1, agin", "there is no label 'agin'"),
        ("br.ge s3, again, 2", "br.ge s3, again, two", "expected a decimal integer, got 'two'"),
        ("v.const v3, -inf", "v.const v3, minus", "expected a number or the bits of one (0x7fc00000), got 'minus'"),
        ("again:", "again:\nagain:", "label again stands here a second time"),
        (".isa 1", ".isa 2", "this is version 1 of the instruction set, not 2"),
        (".isa 1", ".is 1", "cannot read directive .is 1"),
        (".cfg bq=16", ".cfg bq=16 bq=8", "bq is set a second time"),
        (".registers granules=40", ".registers", "granules=... is missing"),
        (".buffer k base=0", ".buffer k base=x", "expected a decimal integer, got 'x'"),
        (".descriptor q f32 1x9x512x64", ".descriptor q f32 9x512x64", "a shape is BATCHxHEADSxROWSxCOLUMNS"),
    ],
)
def test_an_error_names_the_line(text: str, old: str, new: str, message: str) -> None:
    assert text.count(old) == 1
    broken = text.replace(old, new)
    with pytest.raises(InputError) as error:
        assemble(broken, "layer.s")
    place = line_of(broken, new.rpartition("\n")[2]) + new.count("\n")
    assert str(error.value).startswith(f"layer.s: line {place}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bq=16", "bq=sixteen", "expected a decimal integer, got 'sixteen'"),
        ("bq=16 ", "", "configuration: entry 'bq' is missing"),
        ("bq=16", "bq=16 colour=1", "configuration: unknown entry 'colour'"),
        ("causal=true", "causal=maybe", "configuration: entry 'causal' must be bool, got 'maybe'"),
        ("nk=4", "nk=17", "a tile has at most 16 sub-blocks"),
        ("scale=0.125", "scale=nan", "scale must be finite"),
        (".registers granules=40 vectors=14", "", ".registers granules=... vectors=... is missing"),
        (".stream dma\n", ".stream warp\n", "cannot read directive .stream warp"),
        (".table lut", ".table cut", "there is no table 'cut'; there are lut, sfu"),
        (".table lut", ".table lut 00", "text holds no other"),
        (".table lut", "", "exp.lut: the program has no table 'lut'"),
        ("base=49152", "base=49151", "buffers 'k' and 'v' overlap in SRAM"),
        ("k_empty first=3", "k_empty first=2", "barrier 'k_empty': bad or overlapping numbers"),
        ("1x3x512x64", "1x3x512x128", "descriptor 'k': shape [1, 3, 512, 128]"),
    ],
)
def test_other_errors_say_what(text: str, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        assemble(text.replace(old, new, 1), "layer.s")
    assert str(error.value).startswith("layer.s: ")
    assert message in str(error.value)


def test_a_stream_must_end(text: str) -> None:
    with pytest.raises(InputError, match="this one runs off its end"):
        assemble(text.replace("  halt\n", "", 1))


def test_a_slot_must_hold_its_tile(text: str) -> None:
    with pytest.raises(InputError, match="a tile of k takes 8192 bytes, a slot of k has 4096"):
        assemble(text.replace("k base=0 bytes=16384", "k base=0 bytes=4096"))


def test_a_non_ascii_mnemonic_is_printable(text: str) -> None:
    with pytest.raises(InputError) as error:
        assemble(text.replace("exp.lut", "exp.l\u00fct\u001b"))
    assert str(error.value).isascii() and str(error.value).isprintable()


def test_every_mnemonic_can_be_split() -> None:
    for mnemonic, (row, fmt) in BY_MNEMONIC.items():
        assert mnemonic == row.mnemonic(fmt)
