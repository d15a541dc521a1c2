from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from exported import elsewhere, export, ragged
from torch import Tensor

from seqpipe_plugins.encoders.cnn import CNN
from seqpipe_plugins.heads.label import Label

AXES = {"x": ("b", "t"), "mask": ("b", "t")}
Array = np.ndarray


def noisy(mask: Tensor) -> Tensor:
    return torch.randn(*mask.shape, 5).masked_fill(~mask[..., None], float("nan"))


def expected(encoder: CNN, row: Array, activation: str) -> Array:
    """The paper's equation for each window of a text (T, D): (T, D')."""
    found = []
    for convolution, w in zip(encoder.convolutions, encoder.widths, strict=True):
        weight, bias = (p.detach().double().numpy() for p in convolution.parameters())  # (F, D, w), (F,)
        zeros = np.zeros((w, row.shape[1]))
        padded = np.concatenate([zeros, row, zeros])
        made = np.zeros((len(row), len(bias)))
        for t in range(len(row)):
            window = padded[t + w - (w - 1) // 2 :][:w]
            made[t] = [(weight[f].T * window).sum() + bias[f] for f in range(len(bias))]
        found.append(made)
    together = np.concatenate(found, 1)
    return np.tanh(together) if activation == "tanh" else np.maximum(together, 0)


def assert_follows(encoder: CNN, x: Tensor, mask: Tensor, made: Array, activation: str) -> None:
    assert made.shape == (*mask.shape, encoder.dim)
    for b, n in enumerate(mask.sum(1).tolist()):
        assert np.abs(made[b, :n] - expected(encoder, x[b, :n].double().numpy(), activation)).max() < 1e-5
        assert not made[b, n:].any()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("widths", [[1], [2], [3, 4, 5], [2, 7]])
def test_every_window_follows_the_equation_and_sees_zeros_beyond_the_text(widths: list[int], activation: str) -> None:
    encoder, mask = CNN(5, filters=4, widths=widths, activation=activation), ragged(4, 6, 1)  # type: ignore[arg-type]
    x = noisy(mask)
    assert_follows(encoder, x, mask, encoder(x, mask).detach().numpy(), activation)


def test_the_graph_follows_the_equation_at_every_size(tmp_path: Path) -> None:
    encoder, example = CNN(5, filters=4, widths=[2, 3, 5]), ragged(7, 2, 4)

    def call(x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"x": encoder(x, mask)}

    graph = export(tmp_path / "encoder.onnx", encoder, call, AXES, x=noisy(example), mask=example)
    for mask in (ragged(1), ragged(9), ragged(2, 1), ragged(3, 12, 1, 7, 12)):
        x = noisy(mask)
        assert_follows(encoder, x, mask, graph(x=x, mask=mask)["x"], "relu")


def test_padding_is_no_window_of_the_maximum_over_time() -> None:
    encoder, head = CNN(5, filters=4, widths=[3]), Label(4, ["a", "b"], pool="max").eval()
    torch.nn.init.constant_(encoder.convolutions[0].bias, 3.0)  # a window over padding alone would answer 3
    x, mask = noisy(ragged(2, 9)) - 5, ragged(2, 9)
    alone = head.decide(encoder(x[:1, :2], mask[:1, :2]), mask[:1, :2])["scores"]
    assert torch.allclose(head.decide(encoder(x, mask), mask)["scores"][:1], alone, atol=1e-6)


def test_every_weight_learns_and_dropout_is_for_training_only() -> None:
    encoder, x, mask = CNN(5, filters=4, widths=[2, 3], dropout=0.5), torch.randn(2, 4, 5), ragged(4, 2)
    assert not torch.equal(encoder(x, mask), encoder(x, mask))
    encoder.eval()
    assert torch.equal(encoder(x, mask), encoder(x, mask))
    encoder(x, mask).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_everything_is_made_where_the_input_is() -> None:
    encoder, x, mask = CNN(5), torch.randn(2, 4, 5), ragged(4, 2)
    with elsewhere():
        assert encoder(x, mask).device.type == "cpu"
