"""Next-token perplexity of a language model's outputs on its own inputs."""

from collections.abc import Mapping
from math import exp

import numpy as np

from lampc.dialects.onnx_attributes import Array
from lampc.errors import InputError


def find_logits(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[str, str]:
    """
    Which input holds token ids, int [batch, seq], and which output their logits, float [batch, seq, vocabulary].

    Raises InputError if the model has not exactly one such pair.
    """
    pairs = [
        (ids, logits)
        for ids, tokens in inputs.items()
        if tokens.dtype.kind == "i" and tokens.ndim == 2 and "id" in ids and "position" not in ids and "type" not in ids
        for logits, scores in outputs.items()
        if scores.dtype.kind == "f" and scores.ndim == 3 and scores.shape[:2] == tokens.shape
    ]
    if len(pairs) != 1:
        raise InputError(
            "--perplexity needs one input of token ids [batch, seq] and one output of logits [batch, seq, vocabulary]; "
            f"this model has {len(pairs)} such pairs"
        )
    return pairs[0]


def perplexity(tokens: Array, logits: Array) -> float:
    """
    exp of the mean negative log-likelihood, in float64, of each token after the first given those before it.

    tokens  int [batch, seq]; logits float [batch, seq, vocabulary]

    Raises InputError for fewer than two tokens or ids outside the vocabulary.
    """
    if tokens.shape[1] < 2:
        raise InputError("--perplexity needs at least two tokens")
    targets = tokens[:, 1:].astype(np.int64)
    if targets.min() < 0 or targets.max() >= logits.shape[2]:
        raise InputError(f"a token id lies outside the vocabulary of {logits.shape[2]}")
    total = 0.0
    for scores, expected in zip(logits[:, :-1], targets, strict=True):
        wide = scores.astype(np.float64)
        top = wide.max(axis=1, keepdims=True)
        normaliser = np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0]
        total += float(np.sum(normaliser - wide[np.arange(len(expected)), expected]))
    return exp(total / targets.size)
