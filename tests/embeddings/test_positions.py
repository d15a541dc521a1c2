from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_equations import MASKS, waves
from exported_graphs import export, ragged_mask
from numpy_cells import Array

from seqpipe_plugins.embeddings.positions import Positions


def learned(embedding: Positions, length: int) -> Array:
    """The table's vectors, of which the last serves all later places."""
    return embedding.vectors.table.detach().numpy()[[min(t, 2) for t in range(length)]]


@pytest.mark.parametrize(
    "options", [{"dim": 1}, {"dim": 6}, {"dim": 7}, {"dim": 5, "positions": "learned", "longest": 3}]
)
def test_positions_are_the_paper_s_waves_or_the_learned_table(options: dict[str, Any], tmp_path: Path) -> None:
    embedding = Positions(**options)
    axes = {"mask": ("b", "t")}
    graph = export(tmp_path / "x.onnx", embedding, lambda mask: {"x": embedding(mask)}, axes, mask=ragged_mask(7, 2, 4))
    for mask in (*MASKS, ragged_mask(60)):
        length, real = mask.shape[1], mask.numpy()[..., None]
        vectors = learned(embedding, length) if "longest" in options else waves(length, options["dim"])
        assert np.abs(embedding(mask).numpy() - np.where(real, vectors, 0.0)).max() < 1e-5
        assert np.abs(graph(mask=mask)["x"] - np.where(real, vectors, 0.0)).max() < 1e-5


def test_learned_vectors_learn_and_waves_do_not() -> None:
    embedding = Positions(dim=4, positions="learned", longest=8, dropout=0.2)
    embedding(ragged_mask(5, 3)).sum().backward()
    assert embedding.vectors.table.grad[:5].any()
    assert not embedding.vectors.table.grad[5:].any()
    assert not [*Positions(dim=4).parameters()]
