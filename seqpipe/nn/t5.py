"""The encoder and the decoder of a T5, from a checkpoint's configuration and weights (Raffel et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import DataError
from seqpipe.nn.constants import BOS, EOS
from seqpipe.nn.encoder_decoder import Attention, DecoderParts, EncoderParts, Layer, Stack
from seqpipe.nn.feedforward import Gated, RMSNorm, linear_of
from seqpipe.nn.pretrained import Seq2SeqCheckpoint, optional_attribute

_ACTIVATIONS = {"relu": "", "gelu_new": "tanh", "gelu": "none"}


class Distances(nn.Module):
    """A number for each head by how far behind a token the one stands that it looks at, which is added to its scores.

    Distances share a number, the more the farther: half of them have one of their own, the others are logarithmic.

    Args:
        weight: The numbers, (buckets, H).
        farthest: From which distance on all are alike.
        both: Whether a token looks at those behind it too, which have half of the numbers.
    """

    buckets: Tensor

    def __init__(self, weight: Tensor, farthest: int, both: bool):
        super().__init__()
        self.farthest, self.weight = farthest, nn.Parameter(weight)
        count = len(weight) // 2 if both else len(weight)
        near = count // 2
        d = torch.arange(-farthest, farthest + 1)  # of the other token from the one that looks
        far = d.abs() if both else (-d).clamp(min=0)
        logarithmic = (far.float() / near).clamp(min=1).log() / math.log(farthest / near) * (count - near)
        buckets = torch.where(far < near, far, (near + logarithmic.long()).clamp(max=count - 1))
        self.register_buffer("buckets", buckets + count * (d > 0) * both, persistent=False)  # (2 farthest + 1,)

    def forward(self, distance: Tensor) -> Tensor:  # (n, m) -> (H, n, m)
        place = distance.clamp(-self.farthest, self.farthest) + self.farthest
        return F.embedding(F.embedding(place, self.buckets[:, None])[..., 0], self.weight).permute(2, 0, 1)


class T5Stack(Stack):
    """Pre-norm layers with scores that are not scaled, the distances that they share, and the norm on top."""

    def __init__(self, layers: Iterable[Layer], distances: Distances, norm: RMSNorm, dropout: float):
        super().__init__(layers, dropout)
        self.distances, self.norm = distances, norm

    def enter(self, x: Tensor, places: Tensor) -> Tensor:
        entered: Tensor = self.dropout(x)
        return entered

    def position_bias(self, distance: Tensor) -> Tensor:
        bias: Tensor = self.distances(distance)
        return bias

    def leave(self, x: Tensor) -> Tensor:
        left: Tensor = self.dropout(self.norm(x))
        return left


def encoder(checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> EncoderParts:
    """The encoder; `dropout` is null for the checkpoint's own. A text ends with the end token."""
    checkpoint.refuse_language(language)
    table = checkpoint.state["shared.weight"][checkpoint.ids]
    return EncoderParts(_stack(checkpoint, "encoder", dropout), table, (), (EOS,), len(table), None)


def decoder(checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> DecoderParts:
    """The decoder. T5 1.0 ties the output layer to the token vectors and scales what it reads."""
    checkpoint.refuse_language(language)
    config, output = checkpoint.config, checkpoint.state["lm_head.weight"]
    tied = torch.equal(output, checkpoint.state["shared.weight"])
    scales = optional_attribute(config, "scale_decoder_outputs")
    return DecoderParts(
        stack=_stack(checkpoint, "decoder", dropout),
        table=None,
        output=None if tied else output[checkpoint.ids],
        bias=None,
        scale=config.d_model**-0.5 if (config.tie_word_embeddings if scales is None else scales) else 1.0,
        start=(BOS,),
        known=len(checkpoint.ids),
        ends=False,
        positions=None,
    )


def _stack(checkpoint: Seq2SeqCheckpoint, side: str, dropout: float | None) -> T5Stack:
    """The `encoder` or the `decoder`; DataError if its activation is not known here."""
    config, state = checkpoint.config, checkpoint.state
    if config.dense_act_fn not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        problem = f"its activation {config.dense_act_fn!r} is not known here ({known}); choose another checkpoint"
        raise DataError(f"{checkpoint.name}: {problem}")
    p = config.dropout_rate if dropout is None else dropout
    form = _ACTIVATIONS[config.dense_act_fn]
    g = nn.GELU(form) if form else nn.ReLU()

    def linear(*names: str) -> nn.Linear:
        return linear_of(torch.cat([state[f"{side}.{name}.weight"] for name in names]))

    def norm(name: str) -> RMSNorm:
        return RMSNorm(state[f"{side}.{name}.weight"], config.layer_norm_epsilon)

    def attention(at: str) -> Attention:
        return Attention(linear(f"{at}.q"), linear(f"{at}.k", f"{at}.v"), linear(f"{at}.o"), config.num_heads, p)

    def layer(number: int) -> Layer:
        at, kinds = f"block.{number}.layer", ["SelfAttention"]
        kinds += ["EncDecAttention"] if side == "decoder" else []
        attentions = [attention(f"{at}.{i}.{kind}") for i, kind in enumerate(kinds)]
        inner, norms = (
            f"{at}.{len(kinds)}.DenseReluDense",
            [norm(f"{at}.{i}.layer_norm") for i in range(len(kinds) + 1)],
        )
        if config.is_gated_act:
            feedforward: nn.Module = Gated(
                linear(f"{inner}.wi_0"), linear(f"{inner}.wi_1"), linear(f"{inner}.wo"), g, p
            )
        else:
            feedforward = nn.Sequential(linear(f"{inner}.wi"), g, nn.Dropout(p), linear(f"{inner}.wo"))
        return Layer(norms, attentions, feedforward, p)

    count = config.num_layers if side == "encoder" else config.num_decoder_layers
    weight = state[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    distances = Distances(weight, config.relative_attention_max_distance, side == "encoder")
    return T5Stack((layer(i) for i in range(count)), distances, norm("final_layer_norm"), p)
