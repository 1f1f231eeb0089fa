"""Whole models through frontend, raising, outlining and the host runtime, attentions by the tests' oracle."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from lampc.dialects.attn import AttentionOp
from lampc.dialects.onnx_attributes import Array
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.model import Model
from lampc.passes.outline_host import OutlineHostPass
from lampc.passes.raise_attention import RaiseAttentionPass
from lampc.runtime.check import Difference, compare, reference_outputs
from lampc.runtime.host import HostRuntime
from tests.unit.runtime.oracle import run_function

CORPUS = Path(os.environ.get("CORPUS", Path(__file__).resolve().parents[3] / "shared" / "corpus"))
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus in {CORPUS}; set CORPUS to its folder")


@dataclass(frozen=True)
class Raised:
    """A model after raising: its attentions and what was left alone, by node name."""

    model: Model
    module: ModuleOp
    attentions: list[AttentionOp]
    rejected: dict[str, str]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outline and run with the oracle."""
        OutlineHostPass().apply(Context(), self.module)
        self.module.verify()
        runtime = HostRuntime(self.model, self.module, threads=1)
        assert len(runtime.calls) == len(self.attentions)

        def attention(function: str, call: int, node: str, operands: list[Array]) -> Array:
            assert runtime.calls[call].node == node
            return run_function(runtime.functions[function], operands)

        return runtime.run(inputs, attention)

    def against(self, inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> list[Difference]:
        """Every output compared with what is expected."""
        return compare(self.run(inputs), expected)

    def differences(self, inputs: Mapping[str, Array]) -> list[Difference]:
        """Every output compared with onnxruntime."""
        return self.against(inputs, reference_outputs(self.model, inputs, threads=1))


def raised(model: Model, inputs: Mapping[str, Array]) -> Raised:
    """Import for the inputs' shapes and raise."""
    module = import_model(model, bind_dims(model, inputs=inputs))
    RaiseAttentionPass().apply(Context(), module)
    module.verify()
    attentions = [op for op in module.walk() if isinstance(op, AttentionOp)]
    return Raised(model, module, attentions, rejections(module))


def rejections(module: ModuleOp) -> dict[str, str]:
    """Node name to reason, from `attn.rejected`."""
    found: dict[str, str] = {}
    listed = module.attributes.get("attn.rejected", ArrayAttr[Attribute]([]))
    for entry in cast(ArrayAttr[Attribute], listed).data:
        assert isinstance(entry, DictionaryAttr)
        node, reason = entry.data["node"], entry.data["reason"]
        assert isinstance(node, StringAttr) and isinstance(reason, StringAttr)
        found[node.data] = reason.data
    return found
