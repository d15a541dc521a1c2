from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import export, ragged

from seqpipe_plugins.heads.vector import Vector

AXES = {"x": ("b", "t"), "mask": ("b", "t")}
X, MASK = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1)), ragged(4, 2, 1, 3, 4, 2)
POOLED = np.array([row[real].mean(0) for row, real in zip(X.double().numpy(), MASK.numpy(), strict=True)])


def contrastive(vectors: np.ndarray, labels: list[int], temperature: float) -> float:
    """Khosla et al. (2020), equation 2, an anchor and a positive at a time."""
    z = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    losses = []
    for i in range(len(z)):
        positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        below = sum(np.exp(z[i] @ z[a] / temperature) for a in range(len(z)) if a != i)
        if positives:
            losses.append(-sum(np.log(np.exp(z[i] @ z[p] / temperature) / below) for p in positives) / len(positives))
    return float(np.mean(losses)) if losses else 0.0


@pytest.mark.parametrize("temperature", [0.1, 0.7])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 4]])
def test_the_loss_is_the_supervised_contrastive_one_over_the_batch(labels: list[int], temperature: float) -> None:
    made = Vector(5, temperature=temperature)
    assert made.loss(X, MASK, torch.tensor(labels)).item() == pytest.approx(
        contrastive(POOLED, labels, temperature), abs=1e-5
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_without_two_texts_of_a_label_teaches_nothing_and_breaks_nothing(rows: int) -> None:
    made = Vector(5, width=3)
    loss = made.loss(X[:rows], MASK[:rows], torch.arange(rows))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in made.parameters())


@pytest.mark.parametrize(("normalize", "width"), [(True, 3), (False, 3), (True, None), (False, None)])
def test_the_vector_is_the_pooled_text_brought_to_a_width_and_a_length(
    tmp_path: Path, normalize: bool, width: Any
) -> None:
    made = Vector(5, normalize=normalize, width=width)
    expected = POOLED
    if width:
        expected = POOLED @ made.output.weight.detach().double().numpy().T + made.output.bias.detach().double().numpy()
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    graph = export(tmp_path / "vector.onnx", made, made.decide, AXES, x=X[:3], mask=ragged(4, 2, 3))
    polluted = X.masked_fill(~MASK[..., None], float("nan"))
    for found in (made.decide(X, MASK)["vector"].detach().numpy(), graph(x=polluted, mask=MASK)["vector"]):
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < 1e-6


def test_texts_of_one_label_come_near_each_other() -> None:
    torch.manual_seed(3)
    made, labels = Vector(5, width=4), torch.tensor([0, 1, 0, 1, 1, 0])
    optimizer = torch.optim.Adam(made.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        made.loss(X, MASK, labels).backward()
        optimizer.step()
    vectors = made.decide(X, MASK)["vector"].detach()
    cosines = (vectors @ vectors.T).fill_diagonal_(-2)
    assert (labels[cosines.argmax(1)] == labels).all()
