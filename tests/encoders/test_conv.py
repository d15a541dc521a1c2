from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import elsewhere, export, ragged
from torch import Tensor, nn

from seqpipe_plugins.encoders.conv import Conv

AXES = {"x": ("b", "t"), "mask": ("b", "t")}
Array = np.ndarray
OPTIONS: list[dict[str, Any]] = [
    {},
    {"gated": True},
    {"dilated": False, "residual": False, "width": 4},
    {"hidden": 6, "width": 2, "gated": True, "residual": False},
    {"causal": True, "iterations": 2},
    {"causal": True, "gated": True, "hidden": 4},
]


def noisy(mask: Tensor) -> Tensor:
    return torch.randn(*mask.shape, 5).masked_fill(~mask[..., None], float("nan"))


def built(options: dict[str, Any]) -> Conv:
    return Conv(5, layers=3, **options).eval()


def numbers(module: nn.Module) -> list[Array]:
    return [p.detach().double().numpy() for p in module.parameters()]


def expected(encoder: Conv, row: Array, options: dict[str, Any]) -> Array:
    """Token by token, layer by layer: (T, D) -> (T, D')."""
    width, T = options.get("width", 3), len(row)
    if "hidden" in options:
        W, b = numbers(encoder.input)
        row = row @ W.T + b
    first = -(width - 1) if options.get("causal") else -((width - 1) // 2)
    for _ in range(options.get("iterations", 1)):
        for depth, layer in enumerate(encoder.layers):
            W, b = numbers(layer)  # (D' or 2 D', D', width)
            step = 2**depth if options.get("dilated", True) else 1
            made = np.zeros((T, len(b)))
            for t in range(T):
                made[t] = b
                for k in range(width):
                    place = t + (first + k) * step
                    if 0 <= place < T:
                        made[t] += W[:, :, k] @ row[place]
            if options.get("gated"):
                a, gate = np.split(made, 2, 1)
                made = a / (1 + np.exp(-gate))
            else:
                made = np.maximum(made, 0)
            row = row + made if options.get("residual", True) else made
    return row


def assert_follows(encoder: Conv, x: Tensor, mask: Tensor, made: Array, options: dict[str, Any]) -> None:
    assert made.shape == (*mask.shape, encoder.dim)
    for b, n in enumerate(mask.sum(1).tolist()):
        assert np.abs(made[b, :n] - expected(encoder, x[b, :n].double().numpy(), options)).max() < 1e-5
        assert not made[b, n:].any()


@pytest.mark.parametrize("options", OPTIONS)
def test_every_layer_follows_its_equation_and_sees_zeros_beyond_the_text(options: dict[str, Any]) -> None:
    encoder, mask = built(options), ragged(4, 12, 1)
    x = noisy(mask)
    assert_follows(encoder, x, mask, encoder(x, mask).detach().numpy(), options)


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[3], OPTIONS[4]])
def test_the_graph_follows_the_equations_at_every_size(options: dict[str, Any], tmp_path: Path) -> None:
    encoder, example = built(options), ragged(7, 2, 4)

    def call(x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"x": encoder(x, mask)}

    graph = export(tmp_path / "encoder.onnx", encoder, call, AXES, x=noisy(example), mask=example)
    for mask in (ragged(1), ragged(9), ragged(2, 1), ragged(3, 12, 1, 7, 12)):
        x = noisy(mask)
        assert_follows(encoder, x, mask, graph(x=x, mask=mask)["x"], options)


@pytest.mark.parametrize(("causal", "reached"), [(False, range(13, 28)), (True, range(20, 35))])
def test_dilated_layers_see_twice_as_far_each(causal: bool, reached: range) -> None:
    encoder, x, mask = built({"causal": causal, "gated": True}), torch.randn(1, 41, 5), ragged(41)
    other = x.index_fill(1, torch.tensor(20), 2.0)
    changed = (encoder(x, mask) != encoder(other, mask)).any(2)[0]
    assert changed.nonzero()[:, 0].tolist() == [*reached]


def test_every_weight_learns_and_dropout_is_for_training_only() -> None:
    encoder, x, mask = Conv(5, hidden=6, gated=True, dropout=0.5), torch.randn(2, 9, 5), ragged(9, 2)
    assert not torch.equal(encoder(x, mask), encoder(x, mask))
    encoder.eval()
    assert torch.equal(encoder(x, mask), encoder(x, mask))
    encoder(x, mask).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_everything_is_made_where_the_input_is() -> None:
    encoder, x, mask = Conv(5, causal=True), torch.randn(2, 4, 5), ragged(4, 2)
    with elsewhere():
        assert encoder(x, mask).device.type == "cpu"
