from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import elsewhere, export, ragged
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe_plugins.encoders.bag import Bag

AXES = {"x": ("b", "t"), "mask": ("b", "t")}
Array = np.ndarray
POOLS = {"sum": np.sum, "mean": np.mean, "max": np.max}
LAYERS: list[dict[str, Any]] = [{}, {"hidden": 6}, {"hidden": 4, "layers": 2, "activation": "tanh"}]


def noisy(mask: Tensor) -> Tensor:
    return torch.randn(*mask.shape, 5).masked_fill(~mask[..., None], float("nan"))


def expected(encoder: Bag, row: Array, activation: str) -> Array:
    h = POOLS[encoder.pool](row, axis=0)
    for layer in encoder.layers:
        if isinstance(layer, nn.Linear):
            W, b = (p.detach().double().numpy() for p in layer.parameters())
            h = np.tanh(W @ h + b) if activation == "tanh" else np.maximum(W @ h + b, 0)
    return h


def assert_follows(encoder: Bag, x: Tensor, mask: Tensor, made: dict[str, Array], activation: str) -> None:
    assert tuple(made) == tuple(encoder.returns)
    for b, n in enumerate(mask.sum(1).tolist()):
        state = expected(encoder, x[b, :n].double().numpy(), activation)
        assert made["state"].shape[1] == encoder.dim
        assert np.abs(made["state"][b] - state).max() < 1e-5
        assert np.abs(made["x"][b, :n] - state).max() < 1e-5
        assert not made["x"][b, n:].any()


@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize("pool", POOLS)
def test_a_text_is_its_pooled_vectors_and_what_layers_make_of_them(pool: str, options: dict[str, Any]) -> None:
    encoder, mask = Bag(5, pool=pool, **options).eval(), ragged(3, 12, 1, 7)  # type: ignore[arg-type]
    x = noisy(mask)
    made = {name: value.detach().numpy() for name, value in encoder(x, mask).items()}
    assert_follows(encoder, x, mask, made, options.get("activation", "relu"))


@pytest.mark.parametrize("pool", POOLS)
def test_the_graph_makes_the_same_at_every_size(pool: str, tmp_path: Path) -> None:
    encoder, example = Bag(5, pool=pool, hidden=6).eval(), ragged(7, 2, 4)  # type: ignore[arg-type]
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, AXES, x=noisy(example), mask=example)
    for mask in (ragged(1), ragged(9), ragged(2, 1), ragged(3, 12, 1, 7, 12)):
        x = noisy(mask)
        assert_follows(encoder, x, mask, graph(x=x, mask=mask), "relu")


@pytest.mark.parametrize("pool", POOLS)
def test_order_makes_no_difference(pool: str) -> None:
    encoder, x, mask = Bag(5, pool=pool, hidden=4), torch.randn(2, 6, 5), ragged(6, 6)  # type: ignore[arg-type]
    assert torch.allclose(encoder(x, mask)["state"], encoder(x[:, torch.randperm(6)], mask)["state"], atol=1e-6)


@pytest.mark.parametrize("pool", POOLS)
def test_a_text_without_tokens_is_zeros(pool: str) -> None:
    mask = torch.tensor([[True], [False]])
    assert not Bag(5, pool=pool)(noisy(mask), mask)["state"][1].any()  # type: ignore[arg-type]


def test_every_weight_learns_and_dropout_is_for_training_only() -> None:
    encoder, x, mask = Bag(5, hidden=30, layers=2, dropout=0.5), torch.randn(4, 6, 5), ragged(6, 4, 5, 3)
    assert not torch.equal(encoder(x, mask)["x"], encoder(x, mask)["x"])
    encoder.eval()
    assert torch.equal(encoder(x, mask)["x"], encoder(x, mask)["x"])
    encoder(x, mask)["x"].square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_layers_without_a_width_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        Bag(5, layers=2)
    assert "bag.layers: 2 layers have no width; set hidden" in str(refused.value)


def test_everything_is_made_where_the_input_is() -> None:
    encoder, x, mask = Bag(5, pool="max"), torch.randn(2, 4, 5), ragged(4, 2)
    with elsewhere():
        assert {tensor.device.type for tensor in encoder(x, mask).values()} == {"cpu"}
