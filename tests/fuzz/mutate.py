"""Mutations of ONNX models, by the fields of their messages; the same seed gives the same bytes."""

from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, 1, -1, 2, 3, 7, 64, 255, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-45, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "",
    "x",
    "Softmax",
    "MatMul",
    "Attention",
    "com.microsoft",
    "../../etc/passwd",
    "a\nb",
    "\x00",
    "\u202e",
    "q" * 100_000,
)
_RAW_BYTES_SHARE = 0.15


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes to a model: of fields, or now and then of bytes of the file."""
    if rng.random() < _RAW_BYTES_SHARE:
        return _bytes(data, rng)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(int(rng.integers(1, 5))):
        messages = list(_messages(model))
        _change(messages[int(rng.integers(len(messages)))], rng, model)
    return model.SerializeToString()


def _bytes(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
    return bytes(changed[: int(rng.integers(1, len(changed) + 1))]) if rng.random() < 0.3 else bytes(changed)


def _messages(message: Message) -> "list[Message]":
    """A message and all below it."""
    found: list[Message] = []
    pending: list[Any] = [message]
    while pending:
        current = pending.pop()
        found.append(current)
        for field, value in current.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                pending.extend(value if _repeated(field) else [value])
    return found


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _change(message: Any, rng: np.random.Generator, model: onnx.ModelProto) -> None:
    fields = [field for field, _ in message.ListFields()]
    if not fields or rng.random() < 0.1:
        fields = list(message.DESCRIPTOR.fields)
    field = fields[int(rng.integers(len(fields)))]
    try:
        if _repeated(field):
            _change_list(getattr(message, field.name), field, rng, model)
        elif field.type == FieldDescriptor.TYPE_MESSAGE or rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(field, getattr(message, field.name), rng, model))
    except (ValueError, TypeError):
        pass  # what a field cannot hold is no file


def _change_list(values: Any, field: Any, rng: np.random.Generator, model: onnx.ModelProto) -> None:
    count, is_message = len(values), field.type == FieldDescriptor.TYPE_MESSAGE
    where = int(rng.integers(count)) if count else 0
    match int(rng.integers(4)):
        case 0 if count:
            del values[where]
        case 1 if count:
            if is_message:
                values.add().CopyFrom(values[where])
            else:
                values.append(values[where])
        case 2 if count > 1:
            other = int(rng.integers(count))
            if is_message:
                first, second = type(values[where])(), type(values[where])()
                first.CopyFrom(values[where])
                second.CopyFrom(values[other])
                values[where].CopyFrom(second)
                values[other].CopyFrom(first)
            else:
                values[where], values[other] = values[other], values[where]
        case _ if not is_message and count:
            values[where] = _scalar(field, values[where], rng, model)
        case _:
            pass


def _scalar(field: Any, old: Any, rng: np.random.Generator, model: onnx.ModelProto) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _name(model, rng) if rng.random() < 0.6 else _TEXTS[int(rng.integers(len(_TEXTS)))]
        case FieldDescriptor.TYPE_BYTES:
            changed = _bytes(old, rng) if old else b"\x00"
            return changed if rng.random() < 0.5 else changed[: len(changed) // 2]
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return _FLOATS[int(rng.integers(len(_FLOATS)))]
        case FieldDescriptor.TYPE_ENUM:
            return int(rng.integers(20))
        case _:
            near = int(old) + int(rng.integers(-2, 3))
            return near if rng.random() < 0.5 else _INTEGERS[int(rng.integers(len(_INTEGERS)))]


def _name(model: onnx.ModelProto, rng: np.random.Generator) -> str:
    """Some name that the model has."""
    names = [name for node in model.graph.node for name in (*node.input, *node.output, node.op_type)]
    return names[int(rng.integers(len(names)))] if names else ""
