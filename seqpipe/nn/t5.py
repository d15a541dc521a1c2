"""The layers of T5's encoder and decoder, from a checkpoint's configuration and weights (Raffel et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import DataError
from seqpipe.nn.constants import LOG_ZERO
from seqpipe.nn.feedforward import Gated, RMSNorm, linear_of
from seqpipe.nn.kv_cache import places_of, put
from seqpipe.nn.loops import State

FAMILIES = ("t5", "mt5")
_ACTIVATIONS = {"relu": "", "gelu_new": "tanh", "gelu": "none"}


class Memory(NamedTuple):
    """Projected keys (B, H, d, S) and values (B, H, S, d)."""

    keys: Tensor
    values: Tensor


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


class Attention(nn.Module):
    """Scores that are not scaled, to which distances are added; H heads of d numbers."""

    def __init__(self, query: nn.Linear, keys_and_values: nn.Linear, mix: nn.Linear, heads: int, dropout: float):
        super().__init__()
        self.query, self.keys_and_values, self.mix, self.heads = query, keys_and_values, mix, heads
        self.dropout = nn.Dropout(dropout)

    def memory(self, x: Tensor) -> Memory:  # (B, S, D)
        keys, values = self.keys_and_values(x).chunk(2, 2)
        return Memory(self._split(keys).transpose(2, 3).contiguous(), self._split(values).contiguous())

    def forward(self, x: Tensor, memory: Memory, bias: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, n, D) to its context (B, n, D), and the weights (B, H, n, S)."""
        weights = (self._split(self.query(x)) @ memory.keys + bias).softmax(3)
        return self.mix((self.dropout(weights) @ memory.values).transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:  # (B, n, H d) -> (B, H, n, d)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention to the text itself, in a decoder then to the source, and a feed-forward network."""

    def __init__(self, norms: Iterable[nn.Module], attentions: Iterable[Attention], feedforward: nn.Module, out: float):
        super().__init__()
        self.norms, self.attentions, self.feedforward = nn.ModuleList(norms), nn.ModuleList(attentions), feedforward
        self.dropout = nn.Dropout(out)

    @property
    def itself(self) -> Attention:
        return cast("Attention", self.attentions[0])

    @property
    def source(self) -> Attention:
        return cast("Attention", self.attentions[1])

    def first(self, x: Tensor) -> Tensor:
        """The input of self-attention: x, normalised."""
        return cast("Tensor", self.norms[0](x))

    def self_attend(self, x: Tensor, memory: Memory, bias: Tensor) -> Tensor:
        """x (B, n, D) plus the context of self-attention."""
        return x + self.dropout(self.itself(self.first(x), memory, bias)[0])

    def cross_attend(self, x: Tensor, memory: Memory, bias: Tensor) -> tuple[Tensor, Tensor]:
        """x (R, n, D), R being B times the beams that stand side by side, and the weights (B, H, R / B * n, S)."""
        rows = self.norms[1](x).reshape(memory.values.shape[0], -1, x.shape[2])
        context, weights = self.source(rows, memory, bias)
        return x + self.dropout(context.reshape(x.shape)), weights

    def feed_forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.feedforward(self.norms[-1](x)))


class Stack(nn.Module):
    """All layers of an encoder or of a decoder, the distances that they share, and the norm on top."""

    def __init__(self, layers: Iterable[Layer], distances: Distances, norm: RMSNorm, dropout: float):
        super().__init__()
        self.layers, self.distances, self.norm = nn.ModuleList(layers), distances, norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, n, D), (B, n) -> (B, n, D)
        """An encoder: each token looks at all."""
        t = torch.arange(x.shape[1], device=x.device)
        bias = self.distances(t - t[:, None]) + hidden(mask)
        x = self.dropout(x)
        for layer in self._each:
            x = layer.feed_forward(layer.self_attend(x, layer.itself.memory(layer.first(x)), bias))
        return self.leave(x)

    def memories(self, x: Tensor) -> tuple[Memory, ...]:  # (B, S, D)
        """The source's projected keys and values for each layer of a decoder."""
        return tuple(layer.source.memory(x) for layer in self._each)

    def teacher_forced(self, x: Tensor, source: tuple[Memory, ...], mask: Tensor) -> tuple[Tensor, Tensor]:
        """A decoder: x (B, N, D), each token looking at those before it and at the source; the weights (B, N, S)."""
        t, weights = torch.arange(x.shape[1], device=x.device), x
        bias = self.distances(t - t[:, None]) + torch.where(t <= t[:, None], 0.0, LOG_ZERO)
        x = self.dropout(x)
        for layer, memory in zip(self._each, source, strict=True):
            x = layer.self_attend(x, layer.itself.memory(layer.first(x)), bias)
            x, weights = layer.cross_attend(x, memory, hidden(mask))
            x = layer.feed_forward(x)
        return self.leave(x), weights.mean(1)

    def init_cache(self, x: Tensor, max_length: int) -> State:
        """Of each layer keys and values (B, H, N, d) of at most N tokens; and the number of tokens so far, (B,)."""
        heads = self._each[0].itself.heads
        each = self._each[0].itself.query.out_features // heads
        caches = (x.new_zeros(x.shape[0], heads, max_length, each) for _ in self._each for _ in range(2))
        return (*caches, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device))

    def step(
        self, x: Tensor, state: State, source: tuple[Memory, ...], mask: Tensor
    ) -> tuple[Tensor, State, Tensor]:  # (R, D), …, (B, S) -> (R, D), …, (B, R / B, S)
        """A decoder, a token of each row at a time; all rows have as many."""
        *caches, t = state
        x, weights, N = x[:, None], x, caches[0].shape[2]
        times, now = torch.arange(N, device=x.device)[None], t[:1, None]
        bias = self.distances(times - now) + torch.where(times <= now, 0.0, LOG_ZERO)  # (H, 1, N)
        heads = self._each[0].itself.heads
        slots = places_of(t, heads)
        after: list[Tensor] = []
        for number, (layer, memory) in enumerate(zip(self._each, source, strict=True)):
            new = layer.itself.memory(layer.first(x))
            keys = put(caches[2 * number], new.keys[..., 0], slots)
            values = put(caches[2 * number + 1], new.values[:, :, 0], slots)
            after += [keys, values]
            x = layer.self_attend(x, Memory(keys.transpose(2, 3), values), bias)
            x, weights = layer.cross_attend(x, memory, hidden(mask))
            x = layer.feed_forward(x)
        return self.leave(x)[:, 0], (*after, t + 1), weights.mean(1)

    def leave(self, x: Tensor) -> Tensor:
        left: Tensor = self.dropout(self.norm(x))
        return left

    @property
    def _each(self) -> list[Layer]:
        return cast("list[Layer]", list(self.layers))


def hidden(mask: Tensor) -> Tensor:  # (B, S) -> (B, 1, 1, S)
    """The bias of attention scores: 0 for tokens, LOG_ZERO for padding."""
    return torch.where(mask, 0.0, LOG_ZERO)[:, None, None]


def stack(config: Any, state: Mapping[str, Tensor], side: str, dropout: float | None, checkpoint: object) -> Stack:
    """The `encoder` or the `decoder` of a checkpoint.

    Args:
        config: Of the checkpoint.
        state: Its weights, by their names in `transformers`.
        side: Which of the two.
        dropout: Dropout probability; None for the checkpoint's own.
        checkpoint: What errors call it.

    Raises:
        DataError: if its activation is not known here.
    """
    if config.dense_act_fn not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        problem = f"its activation {config.dense_act_fn!r} is not known here ({known}); choose another checkpoint"
        raise DataError(f"{checkpoint}: {problem}")
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
    return Stack((layer(i) for i in range(count)), distances, norm("final_layer_norm"), p)
