from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from encoders.test_transformer import waves
from exported import elsewhere, export, ragged
from torch import Tensor

from seqpipe_plugins.embeddings.positions import Positions


@pytest.mark.parametrize("dim", [1, 6, 7])
def test_waves_are_the_paper_s_for_every_length(dim: int, tmp_path: Path) -> None:
    embedding = Positions(dim=dim)

    def call(mask: Tensor) -> dict[str, Tensor]:
        return {"x": embedding(mask)}

    graph = export(tmp_path / "positions.onnx", embedding, call, {"mask": ("b", "t")}, mask=ragged(7, 2, 4))
    for mask in (ragged(1), ragged(60), ragged(2, 1), ragged(3, 12, 1, 7, 12)):
        real = mask.numpy()
        expected = np.where(real[..., None], waves(mask.shape[1], dim), 0.0)
        assert np.abs(embedding(mask).numpy() - expected).max() < 1e-5
        assert np.abs(graph(mask=mask)["x"] - expected).max() < 1e-5


def test_learned_vectors_end_with_their_table_in_pytorch_and_in_the_graph(tmp_path: Path) -> None:
    embedding = Positions(dim=5, positions="learned", longest=3)
    table = embedding.vectors.table
    assert table is not None

    def call(mask: Tensor) -> dict[str, Tensor]:
        return {"x": embedding(mask)}

    graph = export(tmp_path / "positions.onnx", embedding, call, {"mask": ("b", "t")}, mask=ragged(7, 2, 4))
    mask = ragged(6, 2)
    expected = torch.where(mask[..., None], table[torch.tensor([0, 1, 2, 2, 2, 2])], 0.0)
    assert torch.equal(embedding(mask), expected)
    assert np.array_equal(graph(mask=mask)["x"], expected.numpy())


def test_learned_vectors_learn_and_waves_do_not() -> None:
    learned = Positions(dim=4, positions="learned", longest=8, dropout=0.2)
    learned(ragged(5, 3)).sum().backward()
    assert learned.vectors.table is not None
    assert learned.vectors.table.grad is not None
    assert learned.vectors.table.grad[:5].any()
    assert not learned.vectors.table.grad[5:].any()
    assert not [*Positions(dim=4).parameters()]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_everything_is_made_where_the_input_is(positions: str) -> None:
    embedding, mask = Positions(dim=4, positions=positions), ragged(4, 2)  # type: ignore[arg-type]
    with elsewhere():
        assert embedding(mask).device.type == "cpu"
