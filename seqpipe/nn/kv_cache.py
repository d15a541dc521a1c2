"""More tokens of a text in, what an encoder makes of them out, given what it kept of those before: none is read twice.

An encoder of which no token sees a later one can be run incrementally. It offers the five methods of `Causal`; layers
of self-attention get them from `Attending`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.constants import LOG_ZERO
from seqpipe.nn.loops import State


class Before(NamedTuple):
    """What an encoder knows of texts so far, which changes no more: its memory, and which slots of it hold a token."""

    memory: State  # of B rows
    real: Tensor  # (B, S) bool
    length: Tensor  # (B,) how many tokens each text has so far

    def repeated(self, times: int) -> Before:
        """The same with each row so many times, one behind the other."""
        memory, (real, length) = repeated(self.memory, times), repeated((self.real, self.length), times)
        return Before(memory, real, length)


def before(memory: State, real: Tensor) -> Before:
    """A memory of which these slots (B, S) hold a token."""
    return Before(memory, real, real.sum(1))


def repeated(rows: State, times: int) -> State:
    """Each row (B, …) so many times, one behind the other: (B * times, …)."""
    return tuple(part[:, None].expand(-1, times, *part.shape[1:]).flatten(0, 1).contiguous() for part in rows)


class Slots(NamedTuple):
    """Where what is kept of texts comes from, the slots of a memory and those of a state behind it side by side."""

    order: Tensor  # (B, P) which of them
    real: Tensor  # (B, P) whether it holds a token
    goes_on: Tensor  # (B,) whether the text has not ended


class Causal(Protocol):
    """A causal encoder with incremental decoding.

    `kept` is the shape (M, W) of what it keeps: as an input and an output of the graph that is (B, C, M, W), C slots, a
    slot for each token, or for all of them one.
    """

    dim: int
    kept: tuple[int, int]

    def unpacked(self, kept: Tensor) -> State:
        """(B, C, M, W) as its memory; C = 0: nothing was read."""
        ...

    def packed(self, before: Before, state: State, slots: Slots) -> Tensor:
        """What `unpacked` takes, of a memory and a state after steps; 0 where a slot, or a text, is of no use."""
        ...

    def read(self, x: Tensor, mask: Tensor, before: Before) -> tuple[Tensor, State]:
        """x (B, n, D) of n more tokens to x (B, n, D'), and the memory with these tokens behind it."""
        ...

    def room(self, before: Before, longest: int) -> State:
        """The state, of B rows, before the first of at most so many steps."""
        ...

    def step(self, x: Tensor, t: Tensor, before: Before, state: State) -> tuple[Tensor, State]:
        """x (B, D) of the token at step t (B,) to x (B, D') and the state after."""
        ...


class AttendingLayer(Protocol):
    """A layer of self-attention, its two halves apart."""

    def project_qkv(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, n, D) to queries (B, H, n, d), which are scaled, keys and values (B, G, n, d), G groups of heads.

        Of x (B, D), a token of each text, the same without n.
        """
        ...

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        """x (B, n, D) and what its tokens found (B, n, H d) to x (B, n, D), or the same without n."""
        ...


class Attending(nn.Module):
    """Layers of self-attention of which no token sees a later one; what they keep are keys and values.

    A subclass has `layers` (each an `AttendingLayer`), and may do something before the first and after the last.
    """

    layers: nn.ModuleList
    groups: int  # G, of keys and values
    head_dim: int  # d

    @property
    def kept(self) -> tuple[int, int]:
        return 2 * len(self.layers), self.groups * self.head_dim

    def enter(self, x: Tensor, places: Tensor) -> Tensor:  # (B, n, D), (B, n) -> (B, n, D')
        """What the first layer reads of tokens at these places of their texts."""
        return x

    def leave(self, x: Tensor) -> Tensor:  # (B, n, D') -> (B, n, D')
        """What is made of the last layer's x."""
        return x

    def unpacked(self, kept: Tensor) -> State:  # (B, C, 2 L, G d) -> 2 L times (B, G, C, d)
        split = kept.unflatten(3, (self.groups, self.head_dim)).permute(2, 0, 3, 1, 4)
        return tuple(split[i].contiguous() for i in range(2 * len(self.layers)))

    def packed(self, before: Before, state: State, slots: Slots) -> Tensor:
        each = [torch.cat(parts, 2) for parts in zip(before.memory, state, strict=True)]  # (B, G, S + N, d)
        rows = torch.stack([one.transpose(1, 2).flatten(2) for one in each], 2)  # (B, S + N, 2 L, G d)
        first = torch.arange(rows.shape[0], device=rows.device)[:, None] * rows.shape[1]
        found = F.embedding(first + slots.order, rows.flatten(0, 1).flatten(1)).unflatten(2, rows.shape[2:])
        return torch.where(slots.real[..., None, None], found, 0.0)

    def read(self, x: Tensor, mask: Tensor, before: Before) -> tuple[Tensor, State]:
        t = torch.arange(x.shape[1], device=x.device)
        places = before.length[:, None] + t  # (B, n)
        own = (t <= t[:, None]) & mask[:, None]  # (B, n, n)
        old = before.real[:, None] & (t[:, None] >= 0)  # (B, n, C)
        bias = _bias(torch.cat([old, own], 2))[:, None, None]  # (B, 1, 1, n, C + n)
        memory: list[Tensor] = []
        x = self.enter(x, places)
        for i, layer in enumerate(self._layers):
            queries, keys, values = layer.project_qkv(x, places)
            keys = torch.cat([before.memory[2 * i], keys], 2)
            values = torch.cat([before.memory[2 * i + 1], values], 2)
            memory += [keys, values]
            asked = queries.unflatten(1, (self.groups, -1))  # (B, G, H / G, n, d)
            weights = (asked @ keys[:, :, None].transpose(3, 4) + bias).softmax(4)
            found = (weights @ values[:, :, None]).flatten(1, 2)  # (B, H, n, d)
            x = layer.output(x, found.transpose(1, 2).flatten(2))
        return self.leave(x), tuple(memory)

    def room(self, before: Before, longest: int) -> State:
        return tuple(part.new_zeros(part.shape[0], self.groups, longest, self.head_dim) for part in before.memory)

    def step(self, x: Tensor, t: Tensor, before: Before, state: State) -> tuple[Tensor, State]:
        places, N = before.length + t, state[0].shape[2]  # (B,)
        seen = torch.cat([before.real, torch.arange(N, device=x.device) <= t[:, None]], 1)
        bias = _bias(seen)[:, None, None]  # (B, 1, 1, S + N)
        slots = places_of(t, self.groups)
        x = self.enter(x, places)
        after: list[Tensor] = []
        for i, layer in enumerate(self._layers):
            queries, keys, values = layer.project_qkv(x, places)
            keys, values = put(state[2 * i], keys, slots), put(state[2 * i + 1], values, slots)
            after += [keys, values]
            asked = queries.unflatten(1, (self.groups, -1))  # (B, G, H / G, d)
            old, shared = before.memory[2 * i], before.memory[2 * i + 1]
            scores = torch.cat([asked @ old.transpose(2, 3), asked @ keys.transpose(2, 3)], 3) + bias
            weights = scores.softmax(3)
            S = old.shape[2]
            found = weights[..., :S] @ shared + weights[..., S:] @ values  # (B, G, H / G, d)
            x = layer.output(x, found.flatten(1))
        return self.leave(x), tuple(after)

    @property
    def _layers(self) -> Sequence[AttendingLayer]:
        layers: Any = list(self.layers)
        return layers


def _bias(seen: Tensor) -> Tensor:
    """What is added to scores: as good as nothing is left of those that are not to be seen."""
    return torch.where(seen, 0.0, LOG_ZERO)


def places_of(t: Tensor, groups: int) -> State:
    """Where in a cache (B, G, N, d) rows for the tokens at t (B,) stand, as `put` asks for it."""
    rows = torch.arange(t.shape[0], device=t.device)[:, None].expand(-1, groups)
    return rows, torch.arange(groups, device=t.device).expand_as(rows), t[:, None].expand_as(rows)


def put(cache: Tensor, new: Tensor, places: State) -> Tensor:
    """The cache (B, G, N, d) with new rows (B, G, d) at these places; it is copied once, whole.

    A loop's state has no other shape than its own here: in onnxruntime that would be another copy.
    """
    return cache.index_put(places, new)
