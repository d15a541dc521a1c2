"""Encoders in a list, each built on the width of the one before it."""

from pathlib import Path

import pytest
import torch
from tiny_pipelines import build_parts, load_tagger, succeed, write_tagger

CNN = "{use: cnn, filters: 4, widths: [2, 3]}"
CHAINS = [
    ["{use: lstm, hidden: 6}", CNN],
    [CNN, "{use: transformer, layers: 1, heads: 2}"],
    ["{use: conv, hidden: 8, layers: 2}", "{use: self-attention, score: additive, units: 5}", "{use: gru, hidden: 6}"],
]
PLACED = "embedding=[{use: lookup, dim: 6}, {use: positions, dim: 4}]"


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_encoders_exports_has_gradients_and_reads_each_text_alone(chain: list[str], tmp_path: Path) -> None:
    changes = [PLACED, f"encoder=[{', '.join(chain)}]", "head=tags"]
    succeed("check", write_tagger(tmp_path), *changes)
    pipeline, batches = build_parts(load_tagger(tmp_path, *changes))
    pipeline.eval()
    batch = batches([*range(8)])
    pipeline.loss(batch).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in pipeline.parameters())
    together = pipeline.decide(batch, {})["scores"]
    for b, n in enumerate(batch["mask"].sum(1).tolist()):
        alone = pipeline.decide({name: batch[name][b : b + 1, :n] for name in ("ids", "mask")}, {})["scores"]
        assert torch.allclose(together[b, :n], alone[0], atol=1e-5)
