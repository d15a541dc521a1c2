"""Encoders in a list, each built on the width of the one before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from factory import parts, seqpipe, tagging, tiny

LSTM, CNN, CONV = (
    "{use: lstm, hidden: 6}",
    "{use: cnn, filters: 4, widths: [2, 3]}",
    "{use: conv, hidden: 8, layers: 2}",
)
TRANSFORMER = "{use: transformer, layers: 1, heads: 2}"
CHAINS = [
    [LSTM, CNN],
    [CNN, TRANSFORMER],
    [CONV, "{use: self-attention, score: additive, units: 5}", "{use: bag, hidden: 6}"],
]
PLACED = "embedding=[{use: lookup, dim: 6}, {use: positions, dim: 4}]"


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_encoders_exports_and_its_graph_answers_as_pytorch(chain: list[str], tmp_path: Path) -> None:
    done = seqpipe("check", tagging(tmp_path), PLACED, f"encoder=[{', '.join(chain)}]", "head=tags")
    assert done.code == 0, done.err


@pytest.mark.parametrize("chain", CHAINS)
def test_in_a_chain_a_text_is_decided_alone_as_among_others(chain: list[str], tmp_path: Path) -> None:
    pipeline, batches = parts(tiny(tmp_path, PLACED, f"encoder=[{', '.join(chain)}]", "head=tags"))
    pipeline.eval()
    batch = batches([*range(8)])
    with torch.no_grad():
        together = pipeline.decide(batch, {})["scores"]
        for b, n in enumerate(batch["mask"].sum(1).tolist()):
            alone = pipeline.decide({name: batch[name][b : b + 1, :n] for name in ("ids", "mask")}, {})["scores"]
            assert torch.allclose(together[b, :n], alone[0], atol=1e-5)


def test_a_chain_trains(tmp_path: Path) -> None:
    pipeline, batches = parts(tiny(tmp_path, PLACED, f"encoder=[{LSTM}, {CNN}, {TRANSFORMER}]", "head=tags"))
    optimizer, batch = torch.optim.Adam(pipeline.parameters(), lr=0.01), batches([*range(36)])
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = pipeline.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in pipeline.parameters())
