"""
How much the last bits of the host's matrix products matter to a whole model's perplexity.

    python -m benchmarks.perturbation MODEL.onnx [--inputs F.npz] [--runs N]

Q, K and V of every attention are multiplied by 1 + 1e-7 * normal noise, about what two FP32 matrix libraries differ by.
"""

import argparse
from pathlib import Path

import numpy as np

from lampc.dialects.onnx_attributes import Array
from lampc.driver import Request, compile_model
from lampc.engines import NumpyEngine
from lampc.options import Options
from lampc.perplexity import find_logits, perplexity
from lampc.runtime.host import HostRuntime

TOKENS = Path(__file__).resolve().parents[1] / "examples" / "kjv_512_tokens.npz"
NOISE = 1e-7


def main() -> None:
    """Print one line per policy: the perplexities of the unperturbed and the perturbed runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--inputs", type=Path, default=TOKENS)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    for policy in ("fp32", "lamp", "low"):
        request = Request(arguments.model, "numpy", Options(policy=policy), inputs=arguments.inputs)
        compiled = compile_model(request, lambda _: None)
        runtime = HostRuntime(compiled.model, compiled.host)
        found: list[float] = []
        for seed in range(arguments.runs + 1):
            engine = NumpyEngine(compiled.attention)
            noise = np.random.default_rng(seed)

            def attention(function: str, index: int, node: str, operands: list[Array], seed=seed, engine=engine, noise=noise):
                if seed:  # run 0 is unperturbed
                    operands = [(x * (1 + NOISE * noise.standard_normal(x.shape))).astype(x.dtype) for x in operands]
                return engine(function, index, node, operands)

            outputs = runtime.run(compiled.inputs, attention)
            tokens, logits = find_logits(compiled.inputs, outputs)
            found.append(perplexity(compiled.inputs[tokens], outputs[logits]))
        spread = " ".join(f"{value:.3f}" for value in found[1:])
        print(f"{policy:<6}{found[0]:.3f}   perturbed: {spread}", flush=True)


if __name__ == "__main__":
    main()
