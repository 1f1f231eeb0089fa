"""Attention composed at random from every spelling of docs/onnx.md section 4: always one attention, equal to onnxruntime."""

import pytest

from lampc.frontend.model import load_bytes
from lampc.ir import tensor_shape
from tests.models.whole import raised
from tests.unit.raising.variants import variant

SEEDS = 150
LIMIT = 2e-5


@pytest.mark.parametrize("seed", range(SEEDS))
def test_variant(seed: int):
    graph = variant(seed)
    spelling = "; ".join(graph.chosen)
    result = raised(load_bytes(graph.model().SerializeToString(), f"variant {seed}"), graph.inputs)
    assert result.rejected == {}, spelling
    (found,) = result.attentions
    assert tensor_shape(found.query)[2:] == (graph.queries, graph.size), spelling
    for difference in result.differences(graph.inputs):
        assert difference.within(LIMIT), (difference, spelling)


def test_variants_use_everything():
    """Each spelling that a variant can choose is in the seeds of the test above."""
    chosen = {part for seed in range(SEEDS) for part in variant(seed).chosen}
    more = {part for seed in range(SEEDS, 4 * SEEDS) for part in variant(seed).chosen}
    assert more == chosen
