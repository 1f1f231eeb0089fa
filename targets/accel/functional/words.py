"""Instruction words taken apart once, before they run many times."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lampc.targets.accel.encoding import DecodedStream
from lampc.targets.accel.instruction import Format, Instruction, Kind


@dataclass(frozen=True)
class Word:
    """
    One instruction of a stream.

    wait, signal  barrier of the ring's first slot, or -1; bar.wait and bar.arrive have theirs here too
    fields        payload by field name; an optional one left out is -1
    value         field `value` as the FP32 number it is
    """

    index: int
    row: Instruction
    mnemonic: str
    format: Format
    predicate: int
    wait: int
    signal: int
    xor: int
    skip0: bool
    fields: Mapping[str, int]
    value: np.float32

    def __getitem__(self, name: str) -> int:
        return self.fields[name]


def words_of(stream: DecodedStream) -> list[Word]:
    """The words of a stream, in order."""
    out: list[Word] = []
    for index in range(len(stream)):
        row = stream.row(index)
        fields = {f.name: int(stream.fields[f.name][index]) for f in row.fields}
        wait, signal = int(stream.wait[index]), int(stream.signal[index])
        bits = next((fields[f.name] for f in row.fields if f.kind is Kind.F32), 0)
        out.append(
            Word(
                index,
                row,
                row.mnemonic(stream.fmt(index)),
                stream.fmt(index),
                int(stream.predicate[index]),
                fields["bar"] if row.name == "bar.wait" else wait,
                fields["bar"] if row.name == "bar.arrive" else signal,
                int(stream.xor[index]),
                bool(stream.skip0[index]),
                fields,
                np.uint32(bits).view(np.float32),
            )
        )
    return out
