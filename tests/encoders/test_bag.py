from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_equations import noisy, outputs
from numpy_cells import Array
from torch import nn

from seqpipe.errors import UsageError
from seqpipe_plugins.encoders.bag import Bag

POOLS = {"sum": np.sum, "mean": np.mean, "max": np.max}
LAYERS: list[dict[str, Any]] = [{}, {"hidden": 6}, {"hidden": 4, "layers": 2, "activation": "tanh"}]


def expected(encoder: Bag, row: Array, activation: str) -> Array:
    h = POOLS[encoder.pool](row, axis=0)
    for layer in encoder.layers:
        if isinstance(layer, nn.Linear):
            W, b = (p.detach().double().numpy() for p in layer.parameters())
            h = np.tanh(W @ h + b) if activation == "tanh" else np.maximum(W @ h + b, 0)
    return h


@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize("pool", POOLS)
def test_a_text_is_its_pooled_vectors_and_layers_over_them(pool: str, options: dict[str, Any], tmp_path: Path) -> None:
    encoder = Bag(5, pool=pool, **options).eval()  # type: ignore[arg-type]
    for x, mask, output in outputs(encoder, tmp_path if options == {"hidden": 6} else None):
        assert tuple(output) == tuple(encoder.returns)
        for b, n in enumerate(mask.sum(1).tolist()):
            state = expected(encoder, x[b, :n].double().numpy(), options.get("activation", "relu"))
            assert output["state"].shape[1] == encoder.dim
            assert np.abs(output["state"][b] - state).max() < 1e-5
            assert np.abs(output["x"][b, :n] - state).max() < 1e-5
            assert not output["x"][b, n:].any()


@pytest.mark.parametrize("pool", POOLS)
def test_a_text_without_tokens_is_zeros(pool: str) -> None:
    mask = torch.tensor([[True], [False]])
    assert not Bag(5, pool=pool)(noisy(mask), mask)["state"][1].any()  # type: ignore[arg-type]


def test_layers_without_a_width_are_refused() -> None:
    with pytest.raises(UsageError, match=r"bag\.layers: 2 layers have no width; set hidden"):
        Bag(5, layers=2)
