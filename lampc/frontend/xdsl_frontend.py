"""The `.onnx` frontend of xDSL's drivers: `lampc-opt MODEL.onnx -p ...`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.frontend import Frontend

from lampc.errors import UsageError
from lampc.frontend.dims import bind_dims, parse_dim
from lampc.frontend.importer import import_model
from lampc.frontend.model import load_bytes


@dataclass(frozen=True)
class OnnxFrontend(Frontend):
    """
    Reads an ONNX model. Symbolic dimensions are bound by `dims`, as in `-f 'onnx{dims="batch=1,seq=128"}'`.

    External data is looked for beside the file. Raises ModelError, InputError (unbound dimensions), UsageError.
    """

    name = "onnx"

    dims: str = ""

    def parse(self, ctx: Context, input: IO[bytes], input_name: str) -> ModuleOp:
        path = Path(input_name)
        model = load_bytes(input.read(), input_name, path=path if path.is_file() else None)
        pairs = [parse_dim(pair.strip()) for pair in self.dims.split(",") if pair.strip()]
        sizes = dict(pairs)
        if len(sizes) < len(pairs):
            raise UsageError("dims names a dimension twice")
        return import_model(model, bind_dims(model, sizes))
