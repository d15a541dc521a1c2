from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import elsewhere, export, ragged
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe_plugins.encoders.transformer import Layer, Transformer

AXES = {"x": ("b", "t"), "mask": ("b", "t")}
MASKS = [ragged(1), ragged(9), ragged(2, 1), ragged(3, 12, 1, 7, 12)]


def noisy(mask: Tensor, dim: int = 8) -> Tensor:
    """Numbers where tokens are, NaN in the padding."""
    return torch.randn(*mask.shape, dim).masked_fill(~mask[..., None], float("nan"))


def built(**options: Any) -> Transformer:
    """A transformer whose weights are all drawn at random, norms included."""
    made = Transformer(8, heads=2, feedforward=12, **options).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def as_library(layer: Layer, activation: str) -> nn.TransformerEncoderLayer:
    """The library's layer with our weights; its keys have a bias beside them, which changes nothing."""
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, activation=activation, batch_first=True, norm_first=layer.pre, dropout=0.0
    )
    weights, inner = dict(layer.attention.named_parameters()), layer.feedforward
    attention = theirs.self_attn
    attention.in_proj_weight.data.copy_(torch.cat([weights[f"{name}.weight"] for name in ("query", "key", "value")]))
    attention.in_proj_bias.data.copy_(torch.cat([weights["query.bias"], torch.randn(8), weights["value.bias"]]))
    for ours, other in zip(
        (layer.attention.output, inner[0], inner[3], *layer.norms),
        (attention.out_proj, theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2),
        strict=True,
    ):
        other.load_state_dict(ours.state_dict())
    return theirs.eval()


def expected(encoder: Transformer, x: Tensor, mask: Tensor, activation: str, causal: bool) -> tuple[Tensor, Tensor]:
    """What the library's layers make of x, and what the tokens attended to in the last."""
    T = x.shape[1]
    future = torch.ones(T, T).triu(1).bool() if causal else None
    x = x.masked_fill(~mask[..., None], 0.0)
    weights = x
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        theirs = as_library(layer, activation)
        read = theirs.norm1(x) if layer.pre else x
        _, weights = theirs.self_attn(
            read, read, read, key_padding_mask=~mask, attn_mask=future, average_attn_weights=False
        )
        x = theirs(x, src_mask=future, src_key_padding_mask=~mask)
    real = mask[:, None, :, None] & mask[:, None, None]
    return encoder.norm(x), torch.where(real, weights, 0.0)


def waves(length: int, dim: int) -> np.ndarray:
    """The paper's positions, one number at a time."""
    table = np.zeros((length, dim))
    for t in range(length):
        for d in range(dim):
            angle = t / 10_000 ** ((d - d % 2) / dim)
            table[t, d] = np.cos(angle) if d % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_are_the_library_s_with_the_same_weights(norm: str, activation: str, causal: bool) -> None:
    encoder = built(layers=2, positions="none", norm=norm, activation=activation, causal=causal)
    mask = ragged(4, 9, 1)
    x = noisy(mask)
    made = encoder(x, mask)
    states, weights = expected(encoder, x, mask, activation, causal)
    assert (made["x"] - states)[mask].abs().max() < 1e-5
    assert not made["x"][~mask].any()
    assert (made["attention"] - weights).abs().max() < 1e-6


@pytest.mark.parametrize("options", [{}, {"norm": "post", "causal": True, "activation": "gelu"}])
def test_the_graph_follows_the_library_and_the_paper_s_positions(options: dict[str, Any], tmp_path: Path) -> None:
    encoder = built(layers=2, **options)
    example = ragged(7, 2, 4)
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, AXES, x=noisy(example), mask=example)
    for mask in MASKS:
        x = noisy(mask)
        placed = 8**0.5 * x + torch.from_numpy(waves(x.shape[1], 8)).float()
        states, weights = expected(
            encoder, placed, mask, options.get("activation", "relu"), options.get("causal", False)
        )
        in_graph = {name: torch.from_numpy(array) for name, array in graph(x=x, mask=mask).items()}
        for made in (in_graph, encoder(x, mask)):
            assert tuple(made) == encoder.returns
            assert (made["x"] - states)[mask].abs().max() < 1e-5
            assert (made["attention"] - weights).abs().max() < 1e-5


def test_what_a_token_attends_to_sums_to_one_over_real_tokens() -> None:
    mask = ragged(4, 9, 1)
    weights = built()(noisy(mask), mask)["attention"]  # (B, H, T, T)
    assert torch.allclose(weights.sum(3), mask[:, None].float().expand(-1, 2, -1))
    assert not weights.masked_fill(mask[:, None, None], 0.0).any()


def test_neighbours_and_padding_never_change_a_row() -> None:
    encoder, mask = built(), ragged(4, 9, 1)
    x = noisy(mask)
    together = encoder(x, mask)
    for b, n in enumerate(mask.sum(1).tolist()):
        alone = encoder(x[b : b + 1, :n], ragged(n))
        assert torch.allclose(together["x"][b, :n], alone["x"][0], atol=1e-5)
        assert torch.allclose(together["attention"][b, :, :n, :n], alone["attention"][0], atol=1e-6)


def test_a_causal_token_is_told_nothing_of_those_after_it() -> None:
    encoder, x, mask = built(causal=True), torch.randn(2, 6, 8), ragged(6, 6)
    assert torch.allclose(encoder(x, mask)["x"][:, :4], encoder(x[:, :4], mask[:, :4])["x"], atol=1e-5)
    free = built()
    assert not torch.allclose(free(x, mask)["x"][:, :4], free(x[:, :4], mask[:, :4])["x"], atol=1e-3)


def test_without_positions_the_order_of_the_tokens_makes_no_difference() -> None:
    x, mask, order = torch.randn(2, 6, 8), ragged(6, 6), torch.randperm(6)
    bag, ordered = built(positions="none"), built()
    assert torch.allclose(bag(x[:, order], mask)["x"], bag(x, mask)["x"][:, order], atol=1e-5)
    assert not torch.allclose(ordered(x[:, order], mask)["x"], ordered(x, mask)["x"][:, order], atol=1e-3)


def test_another_width_has_a_layer_of_its_own_before_the_first() -> None:
    encoder, mask = built(hidden=6), ragged(4, 2)
    assert encoder.dim == encoder(noisy(mask), mask)["x"].shape[2] == 6
    assert isinstance(encoder.input, nn.Linear)
    assert isinstance(built(hidden=8).input, nn.Identity)


def test_every_weight_learns_and_dropout_is_for_training_only() -> None:
    encoder, mask = Transformer(8, hidden=6, heads=2, positions="learned", longest=4, dropout=0.2), ragged(6, 4, 5, 3)
    x = torch.randn(4, 6, 8)
    assert not torch.equal(encoder(x, mask)["x"], encoder(x, mask)["x"])
    encoder(x, mask)["x"].mul(torch.randn(4, 6, 6)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())
    encoder.eval()
    assert torch.equal(encoder(x, mask)["x"], encoder(x, mask)["x"])


def test_heads_that_do_not_divide_the_width_are_refused_with_a_cure() -> None:
    with pytest.raises(UsageError) as refused:
        Transformer(10, heads=4)
    assert "heads: 4 heads do not divide the width 10; choose 1, 2, 5, 10, or another width" in str(refused.value)


def test_everything_is_made_where_the_input_is() -> None:
    encoder, x, mask = built(positions="learned", causal=True), torch.randn(2, 4, 8), ragged(4, 2)
    with elsewhere():
        assert {tensor.device.type for tensor in encoder(x, mask).values()} == {"cpu"}
