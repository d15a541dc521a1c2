"""Base of pretrained encoder-decoders: attention, layers, stacks of layers, and their loading from a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqpipe.nn.layers import Modules, ResidualLayer, attention_bias
from seqpipe.nn.loops import State


class DecoderMemory(NamedTuple):
    """Projected keys (B, H, d, S) and values (B, H, S, d)."""

    keys: Tensor
    values: Tensor


class BiasedAttention(nn.Module):
    """softmax(scale Q K + bias) V with H heads of d numbers."""

    def __init__(
        self,
        query: nn.Linear,
        keys_and_values: nn.Linear,
        output: nn.Linear,
        heads: int,
        dropout: float,
        scale: float | None = None,
    ):
        super().__init__()
        self.query, self.keys_and_values, self.output, self.heads = query, keys_and_values, output, heads
        self.scale, self.dropout = scale, nn.Dropout(dropout)

    def memory(self, x: Tensor) -> DecoderMemory:  # (B, S, D)
        keys, values = self.keys_and_values(x).chunk(2, 2)
        return DecoderMemory(self._split(keys).transpose(2, 3).contiguous(), self._split(values).contiguous())

    def forward(self, x: Tensor, memory: DecoderMemory, bias: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the context (B, n, D) of x (B, n, D), and the weights (B, H, n, S)."""
        query = self.query(x) if self.scale is None else self.query(x) * self.scale
        weights = (self._split(query) @ memory.keys + bias).softmax(3)
        return self.output((self.dropout(weights) @ memory.values).transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:  # (B, n, H d) -> (B, H, n, d)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class EncoderDecoderLayer(ResidualLayer):
    """Residual layer of self-attention, in a decoder also cross-attention, and a feed-forward network."""

    def __init__(
        self,
        norms: Iterable[nn.Module],
        attentions: Iterable[BiasedAttention],
        feedforward: nn.Module,
        out: float,
        *,
        pre_norm: bool = True,
    ):
        super().__init__()
        self.norms, self.attentions, self.feedforward = nn.ModuleList(norms), Modules(attentions), feedforward
        self.dropout, self.pre_norm = nn.Dropout(out), pre_norm

    @property
    def self_attention(self) -> BiasedAttention:
        return self.attentions[0]

    @property
    def cross_attention(self) -> BiasedAttention:
        return self.attentions[1]

    def self_attend(self, x: Tensor, memory: DecoderMemory, bias: Tensor | float) -> Tensor:
        """Return x (B, n, D) after self-attention."""
        return self.after(0, x, self.self_attention(self.before(0, x), memory, bias)[0])

    def cross_attend(self, x: Tensor, memory: DecoderMemory, bias: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return x (R, n, D), R being B times the beams, and the weights (B, H, R / B * n, S)."""
        rows = self.before(1, x).reshape(memory.values.shape[0], -1, x.shape[2])
        context, weights = self.cross_attention(rows, memory, bias)
        return self.after(1, x, context.reshape(x.shape)), weights

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.after(-1, x, self.feedforward(self.before(-1, x)))


class Stack(nn.Module, ABC):
    """All layers of an encoder or a decoder. A subclass defines positions, input and output."""

    def __init__(self, layers: Iterable[EncoderDecoderLayer], dropout: float):
        super().__init__()
        self.layers, self.dropout = Modules(layers), nn.Dropout(dropout)

    @abstractmethod
    def enter(self, x: Tensor, places: Tensor) -> Tensor:  # (B, n, D), (n,) -> (B, n, D)
        """Return the input of the first layer from the token vectors at these positions."""

    @abstractmethod
    def position_bias(self, distance: Tensor) -> Tensor | float:  # (n, m) -> (H, n, m)
        """Return the bias of the self-attention scores for each distance from query to key."""

    @abstractmethod
    def leave(self, x: Tensor) -> Tensor:
        """Return the output from the last layer's x."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, n, D), (B, n) -> (B, n, D)
        """Run an encoder: each token attends to all."""
        t = torch.arange(x.shape[1], device=x.device)
        bias = self.position_bias(t - t[:, None]) + attention_bias(mask)[:, None, None]
        x = self.enter(x, t)
        for layer in self.layers:
            x = layer.feed_forward(layer.self_attend(x, layer.self_attention.memory(layer.before(0, x)), bias))
        return self.leave(x)

    def memories(self, x: Tensor) -> tuple[DecoderMemory, ...]:  # (B, S, D)
        """Return the source's projected keys and values for each layer of a decoder."""
        return tuple(layer.cross_attention.memory(x) for layer in self.layers)

    def teacher_forced(self, x: Tensor, source: tuple[DecoderMemory, ...], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Run a decoder on x (B, N, D) with teacher forcing; return also the weights on the source (B, N, S)."""
        t, weights = torch.arange(x.shape[1], device=x.device), x
        bias = self.position_bias(t - t[:, None]) + attention_bias(t <= t[:, None])
        x = self.enter(x, t)
        for layer, memory in zip(self.layers, source, strict=True):
            x = layer.self_attend(x, layer.self_attention.memory(layer.before(0, x)), bias)
            x, weights = layer.cross_attend(x, memory, attention_bias(mask)[:, None, None])
            x = layer.feed_forward(x)
        return self.leave(x), weights.mean(1)

    def init_cache(self, x: Tensor) -> State:
        """Return each layer's keys and values (B, H, t, d) of the t tokens so far: none."""
        attention = self.layers[0].self_attention
        empty = x.new_zeros(x.shape[0], attention.heads, 0, attention.query.out_features // attention.heads)
        return (empty,) * (2 * len(self.layers))

    def step(
        self, x: Tensor, state: State, source: tuple[DecoderMemory, ...], mask: Tensor
    ) -> tuple[Tensor, State, Tensor]:  # (R, D), …, (B, S) -> (R, D), …, (B, R / B, S)
        """Run a decoder for one token of each row; all rows have the same length."""
        x, weights, t = x[:, None], x, state[0].shape[2]
        bias = self.position_bias(torch.arange(t + 1, device=x.device)[None] - t)  # (H, 1, t + 1)
        x = self.enter(x, torch.full((1,), t, device=x.device))
        after: list[Tensor] = []
        for number, (layer, memory) in enumerate(zip(self.layers, source, strict=True)):
            new = layer.self_attention.memory(layer.before(0, x))
            keys = torch.cat([state[2 * number], new.keys.transpose(2, 3)], 2)
            values = torch.cat([state[2 * number + 1], new.values], 2)
            after += [keys, values]
            x = layer.self_attend(x, DecoderMemory(keys.transpose(2, 3), values), bias)
            x, weights = layer.cross_attend(x, memory, attention_bias(mask)[:, None, None])
            x = layer.feed_forward(x)
        return self.leave(x)[:, 0], tuple(after), weights.mean(1)

    @property
    def dim(self) -> int:
        return self.layers[0].self_attention.output.out_features


class EncoderParts(NamedTuple):
    """The encoder of a checkpoint.

    Args:
        stack: Its layers.
        table: (V, D) the token vectors.
        before: The special tokens before each text, as our ids.
        behind: The special tokens after each text, including the end token.
        known: Number of known tokens; later ids are read as the unknown token.
        positions: Maximum number of tokens that it reads, including special ones; None: no limit.
    """

    stack: Stack
    table: Tensor
    before: Sequence[int]
    behind: Sequence[int]
    known: int
    positions: int | None


class DecoderParts(NamedTuple):
    """The decoder of a checkpoint.

    Args:
        stack: Its layers.
        table: (V, D) the token vectors; None: those of the encoder.
        output: (V, D) the output layer; None: the token vectors.
        bias: (V,) bias of the output layer, not trained; None: no bias.
        scale: Factor of the input of the output layer.
        start: The tokens before each generated text, as our ids; at least one.
        known: Number of known tokens; later ids are read as the unknown token, and never generated.
        ends: Whether the last of `max_length` tokens is always the end token.
        positions: Maximum number of generated tokens, including `start`; None: no limit.
    """

    stack: Stack
    table: Tensor | None
    output: Tensor | None
    bias: Tensor | None
    scale: float
    start: Sequence[int]
    known: int
    ends: bool
    positions: int | None
