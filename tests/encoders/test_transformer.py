from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_equations import outputs, waves
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe_plugins.encoders.transformer import Transformer, TransformerLayer


def build(**options: Any) -> Transformer:
    """A transformer whose weights are all drawn at random, norms included."""
    encoder = Transformer(8, heads=2, feedforward=12, **options).eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


def as_library(layer: TransformerLayer, activation: str) -> nn.TransformerEncoderLayer:
    """The library's layer with our weights; its keys have a bias beside them, which changes nothing."""
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, activation=activation, batch_first=True, norm_first=layer.pre_norm, dropout=0.0
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
    """The states after the library's layers, and the attention weights of the last."""
    T = x.shape[1]
    future = torch.ones(T, T).triu(1).bool() if causal else None
    weights = x = x.masked_fill(~mask[..., None], 0.0)
    for layer in encoder.layers:
        theirs = as_library(layer, activation)
        read = theirs.norm1(x) if layer.pre_norm else x
        masks = {"key_padding_mask": ~mask, "attn_mask": future}
        _, weights = theirs.self_attn(read, read, read, average_attn_weights=False, **masks)
        x = theirs(x, src_mask=future, src_key_padding_mask=~mask)
    real = mask[:, None, :, None] & mask[:, None, None]
    return encoder.norm(x), torch.where(real, weights, 0.0)


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_are_of_the_library(norm: str, activation: str, causal: bool, positions: str, tmp_path: Path) -> None:
    encoder = build(layers=2, positions=positions, norm=norm, activation=activation, causal=causal)
    in_graph = positions == "sinusoidal" and (norm, activation, causal) in (
        ("pre", "relu", False),
        ("post", "gelu", True),
    )
    for x, mask, output in outputs(encoder, tmp_path if in_graph else None, dim=8):
        placed = 8**0.5 * x + torch.from_numpy(waves(x.shape[1], 8)).float() if positions == "sinusoidal" else x
        states, weights = (tensor.detach().numpy() for tensor in expected(encoder, placed, mask, activation, causal))
        assert tuple(output) == encoder.returns
        assert np.abs(output["x"] - states)[mask.numpy()].max() < 1e-5
        assert not output["x"][~mask.numpy()].any()
        assert np.abs(output["attention"] - weights).max() < 1e-5


def test_another_width_has_a_linear_layer_before_the_first() -> None:
    encoder = build(hidden=6)
    assert encoder.dim == encoder.norm.normalized_shape[0] == 6
    assert (encoder.input.in_features, encoder.input.out_features) == (8, 6)
    assert isinstance(build(hidden=8).input, nn.Identity)


def test_heads_that_do_not_divide_the_width_are_refused_with_a_cure() -> None:
    with pytest.raises(
        UsageError, match="heads: 4 heads do not divide the width 10; choose 1, 2, 5, 10, or another width"
    ):
        Transformer(10, heads=4)
