"""The standard Attention, option by option, under --policy fp32 against its own oracle (tests/onnx_attention_oracle.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from lampc.dialects.onnx import element_of_dtype, onnx_dtype
from lampc.dialects.onnx_attributes import Array
from lampc.driver import Request, Result, compile_model, run_model
from lampc.errors import LampcError
from lampc.options import Options
from tests.onnx_attention_oracle import Rejected, attention
from tests.unit.frontend.builders import onnx_node_cases

NAMES = ("query", "key", "value", "mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("y", "present_key", "present_value", "qk")
BF16 = np.dtype(ml_dtypes.bfloat16)
LOWEST = {kind: float(np.finfo(kind).min) for kind in (np.float32, np.float64)}


@dataclass(frozen=True)
class Form:
    """
    One call.

    rank       of Q, K and V; kinds: their type and that of V
    mask       its shape and type, "bool", "int64" and so on; mask_value: all of it
    masked     what stands in the masked places of a float mask
    lengths    nonpad_kv_seqlen
    outputs    how many of the four outputs there are; present: whether the middle ones are among them
    """

    version: int = 23
    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    queries: int = 5
    keys: int = 7
    size: int = 8
    value_size: int = 8
    past: int | None = None
    rank: int = 4
    kind: Any = np.float32
    mask: tuple[int, ...] | None = None
    mask_kind: Any = np.float32
    mask_value: float | None = None
    masked: float = -np.inf
    lengths: tuple[int, ...] | None = None
    outputs: int = 1
    present: bool = True
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def arrays(form: Form) -> dict[str, Array]:
    """The inputs by name."""
    rng = np.random.default_rng(0)

    def normal(heads: int, length: int, size: int, rank: int = form.rank) -> Array:
        shape = (form.batch, heads, length, size) if rank == 4 else (form.batch, length, heads * size)
        return rng.standard_normal(shape).astype(form.kind)

    given = {
        "query": normal(form.heads, form.queries, form.size),
        "key": normal(form.kv_heads, form.keys, form.size),
        "value": normal(form.kv_heads, form.keys, form.value_size),
    }
    if form.mask is not None:
        given["mask"] = _mask(form, form.mask, rng)
    if form.past is not None:
        given["past_key"] = normal(form.kv_heads, form.past, form.size, 4)
        given["past_value"] = normal(form.kv_heads, form.past, form.value_size, 4)
    if form.lengths is not None:
        given["nonpad_kv_seqlen"] = np.array(form.lengths, np.int64)
    return given


def _mask(form: Form, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    kind = np.dtype(form.mask_kind)
    if form.mask_value is not None:
        return np.full(shape, form.mask_value, kind)
    live = rng.random(shape) < 0.7
    if kind == np.bool_:
        return live
    if kind.kind in "iu":
        return rng.integers(0, 4, shape).astype(kind)
    return np.where(live, rng.standard_normal(shape), form.masked).astype(kind)


def save(form: Form, given: Mapping[str, Array], folder: Path) -> tuple[Path, Path]:
    """The model and its inputs as files."""

    def info(name: str, array: Array) -> Any:
        return helper.make_tensor_value_info(name, onnx_dtype(element_of_dtype(array.dtype)), array.shape)

    outputs = [name if form.present or "present" not in name else "" for name in OUTPUTS[: form.outputs]]
    heads = {"q_num_heads": form.heads, "kv_num_heads": form.kv_heads} if form.rank == 3 else {}
    names = [name if name in given else "" for name in NAMES]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, outputs, name="n", **heads, **form.options)
    kind = onnx_dtype(element_of_dtype(given["query"].dtype))
    graph = helper.make_graph(
        [node],
        "g",
        [info(name, array) for name, array in given.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", form.version)], ir_version=10)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    stored = {name: array.view(np.uint16) if array.dtype == BF16 else array for name, array in given.items()}
    np.savez(folder / "inputs.npz", **stored)  # pyright: ignore[reportArgumentType]
    return folder / "model.onnx", folder / "inputs.npz"


def run(model: Path, inputs: Path) -> tuple[Result, list[dict[str, str]], list[str]]:
    """What lampc gives, what it did not raise, and its warnings."""
    request = Request(model, "numpy", Options(policy="fp32"), inputs=inputs, compare=False)
    compiled = compile_model(request, lambda _: None)
    return run_model(request, compiled, lambda _: None), compiled.rejected, compiled.model.warnings


def expected(form: Form, given: Mapping[str, Array]) -> dict[str, Array]:
    heads: dict[str, Any] = {"q_num_heads": form.heads, "kv_num_heads": form.kv_heads} if form.rank == 3 else {}
    result = attention(**given, version=form.version, **heads, **form.options)
    names = [name for name in OUTPUTS[: form.outputs] if form.present or "present" not in name]
    return {name: getattr(result, name) for name in names}


def close(actual: Mapping[str, Array], wanted: Mapping[str, Array], tolerance: float) -> None:
    for name, array in wanted.items():
        assert actual[name].dtype == array.dtype and actual[name].shape == array.shape, name
        one, other = actual[name].astype(np.float64), array.astype(np.float64)
        np.testing.assert_array_equal(np.isneginf(one), np.isneginf(other))
        limit = tolerance * max(1.0, np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
        np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=name)


SCORES = (2, 4, 5, 7)
FORMS: dict[str, Form] = {
    **{
        f"{np.dtype(kind).name}, {rank} axes, causal, cache, all outputs": Form(
            kind=kind, rank=rank, past=3, outputs=4, options={"is_causal": 1, "qk_matmul_output_mode": 2}
        )
        for kind in (np.float64, np.float16, BF16)
        for rank in (3, 4)
    },
    **{
        f"{np.dtype(kind).name} mask on {np.dtype(base).name}": Form(kind=base, mask=SCORES, mask_kind=kind, outputs=1)
        for base in (np.float32, np.float64, np.float16, BF16)
        for kind in (np.float16, np.float32, np.float64, BF16, np.bool_, np.int8, np.int32, np.int64, np.uint8)
    },
    **{
        f"mode {mode}, soft cap, mask {mask}": Form(
            mask=(5, 7), mask_kind=mask, outputs=4, options={"qk_matmul_output_mode": mode, "softcap": 0.5, "is_causal": 1}
        )
        for mode in range(4)
        for mask in (np.bool_, np.float32)
    },
    **{
        f"mode {mode}, lengths, {np.dtype(kind).name}": Form(
            version=24,
            kind=kind,
            lengths=(7, 2),
            outputs=4,
            present=False,
            options={"qk_matmul_output_mode": mode, "is_causal": 1},
        )
        for mode in (2, 3)
        for kind in (np.float64, np.float32)
    },
    "scale with a cache": Form(past=4, outputs=3, options={"scale": 0.7}),
    "cache, no present outputs": Form(past=4, options={"is_causal": 1}),
    "present outputs, no cache": Form(outputs=3, rank=3),
    "scale, soft cap": Form(options={"scale": 1.5, "softcap": 2.0}),
    **{
        f"mask of {len(shape)} axes {shape}, version {version}": Form(version=version, mask=shape, mask_kind=kind, outputs=4)
        for version in (23, 24, 25)
        for kind, shape in (
            (np.float32, (7,)),
            (np.bool_, (7,)),
            (np.float32, (1, 7)),
            (np.bool_, (4, 5, 7)),
            (np.float32, (4, 1, 7)),
            (np.float32, (2, 1, 1, 7)),
            (np.bool_, (1, 4, 5, 7)),
        )
    },
    "one key in the mask, version 23": Form(mask=(5, 1), masked=-3.0),
    **{
        f"{shape[-1]} keys in the mask, {np.dtype(kind).name}, version {version}": Form(
            version=version, mask=shape, mask_kind=kind, outputs=1
        )
        for version in (24, 25)
        for kind in (np.float32, np.bool_, np.int32, np.float16)
        for shape in ((5, 1), (5, 4), (2, 1, 5, 6))
    },
    "more queries than keys, causal": Form(queries=7, keys=4, options={"is_causal": 1}),
    "more keys than queries, causal": Form(queries=4, keys=7, options={"is_causal": 1}),
    "one query, causal, no cache": Form(queries=1, keys=7, options={"is_causal": 1}),
    "many keys": Form(batch=1, queries=70, keys=600, past=30, options={"is_causal": 1}),
    "many keys, window": Form(version=25, batch=1, queries=70, keys=600, options={"is_causal": 1, "left_window_size": 40}),
    "window on both sides, cache": Form(version=25, past=6, options={"left_window_size": 2, "right_window_size": 1}),
    "lowest numbers alone": Form(mask=SCORES, mask_value=LOWEST[np.float32]),
    "lowest numbers alone, causal": Form(mask=(5, 7), mask_value=LOWEST[np.float32], options={"is_causal": 1}),
    "lowest numbers alone, float64": Form(kind=np.float64, mask=SCORES, mask_kind=np.float64, mask_value=LOWEST[np.float64]),
    "float64's lowest number on float32": Form(mask=SCORES, mask_kind=np.float64, mask_value=LOWEST[np.float64]),
    "-inf alone": Form(mask=SCORES, mask_value=-np.inf, outputs=4, options={"qk_matmul_output_mode": 3}),
    "false alone": Form(mask=SCORES, mask_kind=np.bool_, mask_value=0, outputs=4, options={"qk_matmul_output_mode": 3}),
    "lengths": Form(version=24, lengths=(7, 3)),
    "lengths, three axes": Form(version=24, rank=3, lengths=(0, 3), value_size=5),
    "lengths, causal": Form(version=24, lengths=(3, 6), options={"is_causal": 1}),
    "lengths, mask, window": Form(version=25, lengths=(7, 3), mask=SCORES, options={"left_window_size": 2}),
    "no keys": Form(keys=0, outputs=4),
    "no keys, float16": Form(keys=0, kind=np.float16),
    "no keys, bfloat16, three axes": Form(keys=0, kind=BF16, rank=3),
    "no new keys, cache": Form(keys=0, past=3, outputs=3),
    "no queries": Form(queries=0, outputs=4),
    "no queries, cache": Form(queries=0, past=3, outputs=4, kind=np.float64),
    "no batch": Form(batch=0, outputs=4),
    "no batch, three axes, cache": Form(batch=0, rank=3, past=2, outputs=3),
    "empty cache": Form(past=0, outputs=3, options={"is_causal": 1}),
    **{f"softmax precision {kind}": Form(options={"softmax_precision": kind}) for kind in (1, 10, 11, 16)},
    "head attributes on four axes": Form(options={"q_num_heads": 4, "kv_num_heads": 2}),
}


def _tolerance(form: Form) -> float:
    if form.kind == BF16:
        return 2e-2
    return 4e-3 if form.kind == np.float16 else 2e-5


@pytest.mark.parametrize("name", FORMS)
def test_as_the_oracle(name: str, tmp_path: Path):
    form = FORMS[name]
    given = arrays(form)
    result, rejected, _ = run(*save(form, given, tmp_path))
    assert result.outputs is not None
    if 0 in (form.batch, form.queries, form.keys + (form.past or 0)):
        assert len(rejected) == 1 and rejected[0]["reason"].startswith(("there are no keys", "its result is empty"))
    else:
        assert rejected == []
    close(result.outputs, expected(form, given), _tolerance(form))


def test_the_padding_behind_lengths_is_not_read(tmp_path: Path):
    form = Form(version=24, lengths=(7, 3))
    given = arrays(form)
    wanted = expected(form, given)
    given["key"][1, :, 3:] = np.nan
    given["value"][1, :, 3:] = np.inf
    result, _, _ = run(*save(form, given, tmp_path))
    assert result.outputs is not None
    close(result.outputs, wanted, 2e-5)
    close(expected(form, given), wanted, 0)


@pytest.mark.parametrize("length", [-1, 8])
def test_lengths_outside_the_keys_stop_the_run(length: int, tmp_path: Path):
    form = Form(version=24, lengths=(7, length))
    given = arrays(form)
    with pytest.raises(LampcError, match="nonpad_kv_seqlen is not 0 to 7"):
        run(*save(form, given, tmp_path))
    with pytest.raises(Rejected):
        expected(form, given)


@pytest.mark.parametrize(("keys", "told"), [(1, "has 1 key where there are 7"), (4, "has 4 keys where there are 7"), (7, "")])
def test_a_short_mask_gives_one_warning(keys: int, told: str, tmp_path: Path):
    form = Form(version=24, mask=(5, keys))
    _, _, warnings = run(*save(form, arrays(form), tmp_path))
    assert len(warnings) == bool(told)
    assert all(told in warning for warning in warnings)


REJECTED: dict[str, Form] = {
    "softmax_precision 7": Form(options={"softmax_precision": 7}),
    "softmax_precision 0": Form(options={"softmax_precision": 0}),
    "negative soft cap": Form(options={"softcap": -1.0}),
    "scale 0": Form(options={"scale": 0.0}),
    "negative scale": Form(options={"scale": -1.0}),
    "scale NaN": Form(options={"scale": float("nan")}),
    "is_causal 2": Form(options={"is_causal": 2}),
    "mode 7": Form(options={"qk_matmul_output_mode": 7}),
    "a short mask in version 23": Form(mask=(5, 4)),
    "a long mask": Form(version=25, mask=(5, 8)),
    "five axes": Form(mask=(1, 2, 4, 5, 7)),
    "heads that do not divide": Form(heads=3),
    "other head attributes on four axes": Form(options={"q_num_heads": 2, "kv_num_heads": 2}),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_is_rejected(name: str, tmp_path: Path):
    form = REJECTED[name]
    given = arrays(form)
    with pytest.raises(LampcError):
        run(*save(form, given, tmp_path))
    with pytest.raises(Rejected):
        expected(form, given)


@cache
def _cases() -> dict[str, Any]:
    names = [case for case in onnx_node_cases() if case.name.startswith("test_attention")]
    return {case.name: case for case in names if not case.name.endswith("_expanded")}


@pytest.mark.parametrize("name", _cases())
def test_the_oracle_on_onnx_cases(name: str):
    """onnx's own expected outputs."""
    case = _cases()[name]
    (node,) = case.model.graph.node
    ((inputs, outputs),) = case.data_sets
    stored = iter(inputs)
    given = {name: np.asarray(next(stored)) for name, used in zip(NAMES, node.input, strict=False) if used}
    options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    result = attention(**given, version=case.model.opset_import[0].version, **options)
    produced = [getattr(result, key) for key, used in zip(OUTPUTS, node.output, strict=False) if used]
    for actual, wanted in zip(produced, outputs, strict=True):
        assert actual.dtype == np.asarray(wanted).dtype
        half = actual.dtype.itemsize == 2
        close({"output": actual}, {"output": np.asarray(wanted)}, (2e-2 if actual.dtype == BF16 else 4e-3) if half else 1e-5)
