"""The key-value cache of causal encoders: continue a text without reading its tokens twice.

An encoder of which no token sees a later one can be run incrementally. It offers the five methods of `Causal`; layers
of self-attention get them from `Attending`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.loops import State
from seqpipe.nn.search import NEVER


class PrefixCache(NamedTuple):
    """The cache of an encoder for texts that were read: its memory, and which slots of it hold a token."""

    memory: State  # of B rows
    real: Tensor  # (B, S) bool
    length: Tensor  # (B,) how many tokens each text has so far

    def repeated(self, times: int) -> PrefixCache:
        """The same with each row so many times, one behind the other."""
        memory, (real, length) = repeated(self.memory, times), repeated((self.real, self.length), times)
        return PrefixCache(memory, real, length)


def prefix_cache(memory: State, real: Tensor) -> PrefixCache:
    """A memory of which these slots (B, S) hold a token."""
    return PrefixCache(memory, real, real.sum(1))


def repeated(rows: State, times: int) -> State:
    """Each row (B, …) so many times, one behind the other: (B * times, …)."""
    return tuple(part[:, None].expand(-1, times, *part.shape[1:]).flatten(0, 1).contiguous() for part in rows)


class CacheSlots(NamedTuple):
    """Where the slots of an exported cache come from: those of a memory and, behind them, those of a state."""

    order: Tensor  # (B, P) which of them
    real: Tensor  # (B, P) whether it holds a token
    unfinished: Tensor  # (B,) whether the text has not ended


class Causal(Protocol):
    """A causal encoder with incremental decoding.

    `cache_shape` is (M, W), the shape of a slot: the cache is an input and an output (B, C, M, W) of the graph, with C
    slots, one for each token or one for all of them.
    """

    dim: int
    cache_shape: tuple[int, int]

    def import_cache(self, cache: Tensor) -> State:
        """The cache (B, C, M, W) as its memory; C = 0: nothing was read."""
        ...

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        """What `import_cache` takes, of a memory and a state after steps; 0 where a slot, or a text, is of no use."""
        ...

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        """x (B, n, D) of n more tokens to x (B, n, D'), and the memory with these tokens behind it."""
        ...

    def init_cache(self, prefix: PrefixCache, max_length: int) -> State:
        """The state, of B rows, before the first of at most so many steps."""
        ...

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        """x (B, D) of the token at step t (B,) to x (B, D') and the state after."""
        ...


class AttendingLayer(Protocol):
    """A layer of self-attention, its two halves apart."""

    def asked(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, n, D) to queries (B, H, n, d), which are scaled, keys and values (B, G, n, d), G groups of heads.

        Of x (B, D), a token of each text, the same without n.
        """
        ...

    def told(self, x: Tensor, context: Tensor) -> Tensor:
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
    def cache_shape(self) -> tuple[int, int]:
        return 2 * len(self.layers), self.groups * self.head_dim

    def enter(self, x: Tensor, places: Tensor) -> Tensor:  # (B, n, D), (B, n) -> (B, n, D')
        """What the first layer reads of tokens at these places of their texts."""
        return x

    def leave(self, x: Tensor) -> Tensor:  # (B, n, D') -> (B, n, D')
        """What is made of the last layer's x."""
        return x

    def import_cache(self, cache: Tensor) -> State:  # (B, C, 2 L, G d) -> 2 L times (B, G, C, d)
        split = cache.unflatten(3, (self.groups, self.head_dim)).permute(2, 0, 3, 1, 4)
        return tuple(split[i].contiguous() for i in range(2 * len(self.layers)))

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        each = [torch.cat(parts, 2) for parts in zip(prefix.memory, state, strict=True)]  # (B, G, S + N, d)
        rows = torch.stack([one.transpose(1, 2).flatten(2) for one in each], 2)  # (B, S + N, 2 L, G d)
        first = torch.arange(rows.shape[0], device=rows.device)[:, None] * rows.shape[1]
        found = F.embedding(first + slots.order, rows.flatten(0, 1).flatten(1)).unflatten(2, rows.shape[2:])
        return torch.where(slots.real[..., None, None], found, 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        t = torch.arange(x.shape[1], device=x.device)
        places = prefix.length[:, None] + t  # (B, n)
        own = (t <= t[:, None]) & mask[:, None]  # (B, n, n)
        old = prefix.real[:, None] & (t[:, None] >= 0)  # (B, n, C)
        bias = _bias(torch.cat([old, own], 2))[:, None, None]  # (B, 1, 1, n, C + n)
        memory: list[Tensor] = []
        x = self.enter(x, places)
        for i, layer in enumerate(self._layers):
            queries, keys, values = layer.asked(x, places)
            keys = torch.cat([prefix.memory[2 * i], keys], 2)
            values = torch.cat([prefix.memory[2 * i + 1], values], 2)
            memory += [keys, values]
            asked = queries.unflatten(1, (self.groups, -1))  # (B, G, H / G, n, d)
            weights = (asked @ keys[:, :, None].transpose(3, 4) + bias).softmax(4)
            found = (weights @ values[:, :, None]).flatten(1, 2)  # (B, H, n, d)
            x = layer.told(x, found.transpose(1, 2).flatten(2))
        return self.leave(x), tuple(memory)

    def init_cache(self, prefix: PrefixCache, max_length: int) -> State:
        return tuple(part.new_zeros(part.shape[0], self.groups, max_length, self.head_dim) for part in prefix.memory)

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        places, N = prefix.length + t, state[0].shape[2]  # (B,)
        seen = torch.cat([prefix.real, torch.arange(N, device=x.device) <= t[:, None]], 1)
        bias = _bias(seen)[:, None, None]  # (B, 1, 1, S + N)
        slots = places_of(t, self.groups)
        x = self.enter(x, places)
        after: list[Tensor] = []
        for i, layer in enumerate(self._layers):
            queries, keys, values = layer.asked(x, places)
            keys, values = put(state[2 * i], keys, slots), put(state[2 * i + 1], values, slots)
            after += [keys, values]
            asked = queries.unflatten(1, (self.groups, -1))  # (B, G, H / G, d)
            old, shared = prefix.memory[2 * i], prefix.memory[2 * i + 1]
            scores = torch.cat([asked @ old.transpose(2, 3), asked @ keys.transpose(2, 3)], 3) + bias
            weights = scores.softmax(3)
            S = old.shape[2]
            found = weights[..., :S] @ shared + weights[..., S:] @ values  # (B, G, H / G, d)
            x = layer.told(x, found.flatten(1))
        return self.leave(x), tuple(after)

    @property
    def _layers(self) -> Sequence[AttendingLayer]:
        layers: Any = list(self.layers)
        return layers


def _bias(seen: Tensor) -> Tensor:
    """What is added to scores: as good as nothing is left of those that are not to be seen."""
    return torch.where(seen, 0.0, NEVER)


def places_of(t: Tensor, groups: int) -> State:
    """Where in a cache (B, G, N, d) rows for the tokens at t (B,) stand, as `put` asks for it."""
    rows = torch.arange(t.shape[0], device=t.device)[:, None].expand(-1, groups)
    return rows, torch.arange(groups, device=t.device).expand_as(rows), t[:, None].expand_as(rows)


def put(cache: Tensor, new: Tensor, places: State) -> Tensor:
    """The cache (B, G, N, d) with new rows (B, G, d) at these places; it is copied once, whole.

    A loop's state has no other shape than its own here: in onnxruntime that would be another copy.
    """
    return cache.index_put(places, new)
