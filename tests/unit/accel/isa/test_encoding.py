"""Words: bits where the table says, and nothing else decodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lampc.errors import InputError
from lampc.targets.accel.encoding import DecodedStream, WordError, Words, decode, encode
from lampc.targets.accel.isa import BY_NAME, COUNT, HEADER, TABLE, Format, Instruction, Kind


def one(name: str, fmt: Format = Format.NONE, /, **fields: int) -> DecodedStream:
    """A stream of one instruction; header fields by name too."""
    stream = DecodedStream.empty(1)
    stream.opcode[0], stream.format[0] = BY_NAME[name].opcode, fmt
    for key, value in fields.items():
        (stream.fields[key] if key in stream.fields else getattr(stream, key))[0] = value
    return stream


QK = {"t": 8, "q": 16, "buf": 1, "ring": 4}


def test_bits_lie_where_the_table_says() -> None:
    row = BY_NAME["mx.qk"]
    stream = one("mx.qk", Format.E4M11, **QK, predicate=3, wait=7, signal=9, xor=1, skip0=1)
    header = {"opcode": row.opcode, "format": 2, "predicate": 3, "wait_enable": 1, "wait": 7, "signal_enable": 1, "signal": 9}
    header |= {"xor": 1, "skip0": 1}
    number = sum(value << HEADER[name].offset for name, value in header.items())
    number += sum(value << 32 + row[name].offset for name, value in QK.items())
    assert encode(stream).tobytes() == number.to_bytes(16, "little")


def test_immediates_keep_sign_and_bits() -> None:
    assert decode(encode(one("s.mov", sd=1, imm=-5))).fields["imm"][0] == -5
    stream = decode(encode(one("v.const", vd=1, value=int(np.float32(-0.1).view(np.uint32)))))
    assert stream.floats[0] == np.float32(-0.1)


def test_an_optional_field_may_be_absent_and_zero() -> None:
    present = decode(encode(one("v.live", pd=1, pd2=2, tile=0, m=0)))
    absent = decode(encode(one("v.live", pd=1, pd2=2, tile=0)))
    assert (present.fields["m"][0], absent.fields["m"][0]) == (0, -1)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (one("mx.qk", Format.MIX, **QK), "bad format; it has e4m3, e4m11, f32, e4m11.seq"),
        (one("mx.qk", **QK), "bad format"),
        (one("mx.qk", Format.E4M3, **{**QK, "t": COUNT[Kind.T]}), "t is 1024, not in 0..1023"),
        (one("mx.qk", Format.E4M3, **{**QK, "ring": COUNT[Kind.S] - 1}), "ring runs past the last register s31"),
        (one("mx.qk", Format.E4M3, **QK, xor=1), "xor without wait"),
        (one("s.id", sd=29), "sd runs past the last register s31"),
        (one("s.mov", sd=0, imm=1 << 31), "imm is"),
        (one("p.mov", pd=0, pa=1), "writes p0, which is read-only"),
        (one("v.mov", vd=0, va=1, predicate=1), "works on no sub-block mask"),
        (one("v.mov", vd=0, va=1, skip0=1), "has no skip0"),
        (one("v.mov", vd=0, va=1, wait=1), "has no ring"),
        (one("v.mov", vd=0, va=1, signal=1), "has no ring"),
        (one("v.vmax", vd=0, va=1, vb=2, predicate=1, skip0=1), "skip0 needs vd and va equal"),
        (one("br", target=1), "branches out of the stream of 1 words"),
        (one("v.mov", vd=0, va=1, predicate=16), "predicate is 16"),
        (one("mx.qk", Format.E4M3, **QK, wait=32), "wait is 32"),
    ],
)
def test_encode_refuses(stream: DecodedStream, message: str) -> None:
    with pytest.raises(WordError, match="word 0: ") as error:
        encode(stream)
    assert message in str(error.value)


def set_bits(words: Words, offset: int, value: int) -> Words:
    words = words.copy()
    words[0, offset // 32] |= np.uint32(value << offset % 32)
    return words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.zeros((1, 4), np.uint32), "unknown opcode 0x00"),
        (set_bits(encode(one("halt")), 31, 1), "reserved header bits are not zero"),
        (set_bits(encode(one("halt")), 32, 1), "halt: reserved payload bits are not zero"),
        (set_bits(encode(one("halt")), HEADER["wait"].offset, 1), "wait is off but names a barrier"),
        (set_bits(encode(one("halt")), HEADER["signal"].offset, 1), "signal is off but names a barrier"),
        (set_bits(encode(one("halt")), HEADER["format"].offset, 7), "halt: bad format; it has none"),
        (
            set_bits(encode(one("v.live", pd=1, pd2=2, tile=0)), 32 + BY_NAME["v.live"]["m"].offset, 1),
            "v.live: m is absent but not zero",
        ),
    ],
)
def test_decode_refuses_and_shows_the_word(words: Words, message: str) -> None:
    with pytest.raises(WordError) as error:
        decode(np.concatenate([encode(one("halt")), words]))
    assert error.value.index == 1
    assert f"word 1 (0x{int.from_bytes(words.tobytes(), 'little'):032x}): " in str(error.value)
    assert message in str(error.value)


def test_decode_refuses_other_arrays() -> None:
    for bad in (np.zeros((1, 3), np.uint32), np.zeros(4, np.uint32), np.zeros((1, 4), np.int64)):
        with pytest.raises(InputError, match="a stream is uint32"):
            decode(bad)  # pyright: ignore[reportArgumentType]


def example(row: Instruction) -> Words:
    """The instruction with ones in its registers: fits everywhere."""
    fields = {f.name: 0 if f.kind is Kind.TARGET else 1 for f in row.fields}
    return encode(one(row.name, row.formats[0], **fields))


@given(st.sampled_from(TABLE), st.sets(st.integers(0, 127), min_size=1, max_size=3))
def test_a_changed_word_is_refused_or_another_instruction(row: Instruction, bits: set[int]) -> None:
    words = example(row)
    for bit in bits:
        words[0, bit // 32] ^= np.uint32(1 << bit % 32)
    try:
        stream = decode(words)
    except WordError:
        return
    assert (encode(stream) == words).all()
