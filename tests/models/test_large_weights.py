"""
A model with more than 2 GB of weights in a sparse file: set LAMPC_LARGE=1 to run it (half a minute).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

ROWS, WIDTH = 550_000, 1024
"""An embedding of 2.25 GB: more than protobuf holds in one message."""


def large_model(folder: Path) -> Path:
    """Embedding, self-attention of its rows, output; weights zero, which a sparse file stores in no space."""
    embedding = TensorProto(name="embedding", data_type=TensorProto.FLOAT, dims=(ROWS, WIDTH))
    embedding.data_location = TensorProto.EXTERNAL
    embedding.external_data.add(key="location", value="weights.data")
    with open(folder / "weights.data", "wb") as file:
        file.truncate(ROWS * WIDTH * 4)
    heads: dict[str, Any] = {"q_num_heads": 16, "kv_num_heads": 16, "is_causal": 1}
    nodes = [
        helper.make_node("Gather", ["embedding", "ids"], ["x"]),
        helper.make_node("Attention", ["x", "x", "x"], ["y"], name="attention", **heads),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "large", [ids], [y], [embedding]), opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    )
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.skipif(not os.environ.get("LAMPC_LARGE"), reason="reads 2.25 GB of weights; set LAMPC_LARGE=1 to run it")
@pytest.mark.parametrize("policy", ["fp32", "host"])
def test_weights_beyond_protobufs_limit_are_mapped(tmp_path: Path, policy: str):
    """The whole run, comparison included, agrees with onnxruntime and holds less than half of the weights."""
    words = [
        str(large_model(tmp_path)),
        "--target",
        "numpy",
        "--policy",
        policy,
        "--check",
        "--dim",
        "batch=1",
        "--dim",
        "seq=32",
    ]
    command = [sys.executable, "-m", "lampc.cli", *words, "-q", "--report", "-", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert len(report["attention"]) == 1 and report["check"]["passed"]
    assert report["environment"]["peak_memory_bytes"] < ROWS * WIDTH * 4 / 2
