"""Decoders with a cache, one step at a time: the prompt without a past, a step on top of one; both merged behind an If."""

import numpy as np
import pytest
from onnx import ModelProto
from xdsl.context import Context

from lampc.dialects.attn import AttentionOp
from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError
from lampc.frontend.dims import bind_dims
from lampc.frontend.importer import import_model
from lampc.frontend.model import load_bytes, load_model
from lampc.passes.outline_host import OutlineHostPass
from lampc.passes.raise_attention import RaiseAttentionPass
from lampc.runtime.host import HostRuntime
from tests.models.merged_decoder import LAYERS, PAST, SIZE, cached_decoder, decoder_inputs, merged_decoder
from tests.models.whole import CORPUS, Raised, needs_corpus, raised, rejections


def with_branch(proto: ModelProto, inputs: dict[str, Array]) -> Raised:
    """Import with the inputs' values, as `lampc` does, and raise."""
    model = load_bytes(proto.SerializeToString(), "decoder")
    module = import_model(model, bind_dims(model, inputs=inputs), inputs)
    RaiseAttentionPass().apply(Context(), module)
    return Raised(model, module, [op for op in module.walk() if isinstance(op, AttentionOp)], rejections(module))


def nothing(function: str, call: int, node: str, operands: list[Array]) -> Array:
    """An attention that is never called."""
    raise AssertionError


def check(result: Raised, inputs: dict[str, Array]) -> None:
    """Every layer is raised, and all outputs, the new cache among them, are onnxruntime's on the file as it is."""
    assert len(result.attentions) == LAYERS and not result.rejected
    differences = result.differences(inputs)
    assert len(differences) == 1 + 2 * LAYERS
    for difference in differences:
        assert difference.within(1e-5), difference


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(("past", "length"), [(0, 7), (5, 1), (4, 3)])
def test_a_step_with_a_cache(batch: int, past: int, length: int):
    proto = cached_decoder()
    inputs = decoder_inputs(batch, past, length)
    check(raised(load_bytes(proto.SerializeToString(), "decoder"), inputs), inputs)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("past", "length", "cached"), [(0, 7, False), (5, 1, True), (0, 4, True)])
def test_a_merged_decoder_is_compiled_for_the_branch_its_input_chooses(batch: int, past: int, length: int, cached: bool):
    inputs = decoder_inputs(batch, past, length, merged=cached)
    check(with_branch(merged_decoder(), inputs), inputs)


def test_a_merged_decoder_without_a_choice_keeps_both_branches():
    """Even where one of them does not fit the sizes: the prompt's branch takes the mask to be as long as the ids."""
    proto = merged_decoder()
    inputs = decoder_inputs(1, 5, 1, merged=True)
    result = raised(load_bytes(proto.SerializeToString(), "decoder"), inputs)
    assert not result.attentions and len(result.rejected) == 2 * LAYERS
    for branch in ("then_branch", "else_branch"):
        reasons = [reason for reason in result.rejected.values() if branch in reason]
        assert len(reasons) == LAYERS
        for reason in reasons:
            assert reason.startswith(f"E-UNSUPPORTED(If): attention found in branch {branch} of node 'optimum::if'")
            assert reason.endswith("give its condition with --inputs or --value use_cache_branch=true")
    for difference in result.differences(inputs):
        assert difference.within(0.0)


def test_a_module_of_one_branch_refuses_to_run_the_other():
    inputs = decoder_inputs(1, 0, 4, merged=False)
    result = with_branch(merged_decoder(), inputs)
    OutlineHostPass().apply(Context(), result.module)
    runtime = HostRuntime(result.model, result.module, threads=1)
    with pytest.raises(InputError, match="input 'use_cache_branch': it is True, the model was compiled for False"):
        runtime.run(inputs | {"use_cache_branch": np.array([True])}, nothing)


@pytest.mark.parametrize(
    ("total", "dims"),
    [
        (f"{PAST} + sequence_length", {"batch_size": 1, "sequence_length": 2, PAST: 3}),
        (f"{PAST} + 1", {"batch_size": 1, "sequence_length": 1, PAST: 4}),
        ("total_length", {"batch_size": 1, "sequence_length": 1, PAST: 0, "total_length": 1}),
    ],
)
def test_dimensions_of_the_cache_are_bound_by_name(total: str, dims: dict[str, int]):
    model = load_bytes(cached_decoder(total).SerializeToString(), "decoder")
    binding = bind_dims(model, dims)
    assert binding.shapes["attention_mask"] == (1, dims[PAST] + dims["sequence_length"])
    assert binding.shapes["past_key_values.0.key"] == (1, 2, dims[PAST], SIZE)
    shapes = {"past_key_values.1.value": (1, 2, dims[PAST], SIZE)}
    by_shape = bind_dims(model, {name: size for name, size in dims.items() if name != PAST}, shapes)
    assert by_shape.shapes == binding.shapes


@needs_corpus
@pytest.mark.parametrize(
    "name", ["llama_kvcache_decode.d23", "sdpa_kvcache.d18", "sdpa_kvcache.t18", "sdpa_kvcache_gqa.d23", "sdpa_kvcache_gqa.t18"]
)
def test_a_step_with_a_cache_of_the_corpus(name: str):
    with np.load(CORPUS / "models" / f"{name.rsplit('.', 1)[0]}.npz") as stored:
        inputs = {key[3:]: stored[key] for key in stored if key.startswith("in/")}
    result = raised(load_model(CORPUS / "models" / f"{name}.onnx"), inputs)
    assert result.attentions and not result.rejected
    for difference in result.differences(inputs):
        assert difference.within(1e-5), difference
