"""The key-value cache of causal encoders: continue a text without reading its tokens twice.

A causal encoder, in which no token depends on a later one, can be run incrementally. It has the five methods of
`IncrementalEncoder`; layers of self-attention inherit them from `KVCacheEncoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.constants import LOG_ZERO
from seqpipe.nn.loops import State


class PrefixCache(NamedTuple):
    """The cache of an encoder for texts that were read: its memory, and the mask of its slots."""

    memory: State  # of B rows
    real: Tensor  # (B, S) bool
    length: Tensor  # (B,) how many tokens each text has so far

    def repeated(self, times: int) -> PrefixCache:
        """The same with each row so many times, one behind the other."""
        memory, (real, length) = repeated(self.memory, times), repeated((self.real, self.length), times)
        return PrefixCache(memory, real, length)


def prefix_cache(memory: State, real: Tensor) -> PrefixCache:
    """The cache of a memory with this mask of slots (B, S)."""
    return PrefixCache(memory, real, real.sum(1))


def repeated(rows: State, times: int) -> State:
    """Each row (B, …) so many times, one behind the other: (B * times, …)."""
    return tuple(part[:, None].expand(-1, times, *part.shape[1:]).flatten(0, 1).contiguous() for part in rows)


class CacheSlots(NamedTuple):
    """Where the slots of an exported cache come from: those of a memory and, behind them, those of a state."""

    order: Tensor  # (B, P) which of them
    real: Tensor  # (B, P) whether it holds a token
    unfinished: Tensor  # (B,) whether the text has not ended


class IncrementalEncoder(Protocol):
    """A causal encoder with incremental decoding.

    `cache_shape` is (M, W), the shape of a slot: the cache is an input and an output (B, C, M, W) of the graph, with C
    slots: one for each token with `cache_per_token`, else one for all of them.
    """

    dim: int
    cache_shape: tuple[int, int]
    cache_per_token: bool

    def import_cache(self, cache: Tensor) -> State:
        """The cache (B, C, M, W) as its memory; C = 0: nothing was read."""
        ...

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        """The cache for `import_cache`, of a memory and a state after steps; 0 in unused slots and finished texts."""
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


class KVCacheLayer(Protocol):
    """A layer of self-attention, its two halves apart."""

    def project_qkv(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, n, D) to queries (B, H, n, d), which are scaled, keys and values (B, G, n, d), G groups of heads.

        Of x (B, D), a token of each text, the same without n.
        """
        ...

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        """x (B, n, D) and its context (B, n, H d) to x (B, n, D), or the same without n."""
        ...


class KVCacheEncoder(nn.Module):
    """Layers of causal self-attention with a cache of keys and values.

    A subclass has `layers` (each an `KVCacheLayer`), and may do something before the first and after the last.
    """

    cache_per_token: ClassVar = True
    layers: nn.ModuleList
    groups: int  # G, of keys and values
    head_dim: int  # d

    @property
    def cache_shape(self) -> tuple[int, int]:
        return 2 * len(self.layers), self.groups * self.head_dim

    def enter(self, x: Tensor, places: Tensor) -> Tensor:  # (B, n, D), (B, n) -> (B, n, D')
        """The input of the first layer, of tokens at these positions of their texts."""
        return x

    def leave(self, x: Tensor) -> Tensor:  # (B, n, D') -> (B, n, D')
        """The output, of the last layer's x."""
        return x

    def import_cache(self, cache: Tensor) -> State:  # (B, C, 2 L, G d) -> 2 L times (B, G, C, d)
        split = cache.unflatten(3, (self.groups, self.head_dim)).permute(2, 0, 3, 1, 4)
        return tuple(split[i].contiguous() for i in range(2 * len(self.layers)))

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        each = [torch.cat(parts, 2) for parts in zip(prefix.memory, state, strict=True)]  # (B, G, S + N, d)
        rows = torch.stack([part.transpose(1, 2).flatten(2) for part in each], 2)  # (B, S + N, 2 L, G d)
        first = torch.arange(rows.shape[0], device=rows.device)[:, None] * rows.shape[1]
        exported = F.embedding(first + slots.order, rows.flatten(0, 1).flatten(1)).unflatten(2, rows.shape[2:])
        return torch.where(slots.real[..., None, None], exported, 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        t = torch.arange(x.shape[1], device=x.device)
        places = prefix.length[:, None] + t  # (B, n)
        new = (t <= t[:, None]) & mask[:, None]  # (B, n, n)
        old = prefix.real[:, None] & (t[:, None] >= 0)  # (B, n, C)
        bias = _bias(torch.cat([old, new], 2))[:, None, None]  # (B, 1, 1, n, C + n)
        memory: list[Tensor] = []
        x = self.enter(x, places)
        for i, layer in enumerate(self._layers):
            queries, keys, values = layer.project_qkv(x, places)
            keys = torch.cat([prefix.memory[2 * i], keys], 2)
            values = torch.cat([prefix.memory[2 * i + 1], values], 2)
            memory += [keys, values]
            grouped = queries.unflatten(1, (self.groups, -1))  # (B, G, H / G, n, d)
            weights = (grouped @ keys[:, :, None].transpose(3, 4) + bias).softmax(4)
            context = (weights @ values[:, :, None]).flatten(1, 2)  # (B, H, n, d)
            x = layer.output(x, context.transpose(1, 2).flatten(2))
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
            queries, keys, values = layer.project_qkv(x, places)
            keys, values = put(state[2 * i], keys, slots), put(state[2 * i + 1], values, slots)
            after += [keys, values]
            grouped = queries.unflatten(1, (self.groups, -1))  # (B, G, H / G, d)
            old, shared = prefix.memory[2 * i], prefix.memory[2 * i + 1]
            scores = torch.cat([grouped @ old.transpose(2, 3), grouped @ keys.transpose(2, 3)], 3) + bias
            weights = scores.softmax(3)
            S = old.shape[2]
            context = weights[..., :S] @ shared + weights[..., S:] @ values  # (B, G, H / G, d)
            x = layer.output(x, context.flatten(1))
        return self.leave(x), tuple(after)

    @property
    def _layers(self) -> Sequence[KVCacheLayer]:
        layers: Any = list(self.layers)
        return layers


def _bias(seen: Tensor) -> Tensor:
    """The bias of attention scores: 0 where a position is seen, else LOG_ZERO."""
    return torch.where(seen, 0.0, LOG_ZERO)


def places_of(t: Tensor, groups: int) -> State:
    """Where in a cache (B, G, N, d) rows for the tokens at t (B,) stand, as `put` asks for it."""
    rows = torch.arange(t.shape[0], device=t.device)[:, None].expand(-1, groups)
    return rows, torch.arange(groups, device=t.device).expand_as(rows), t[:, None].expand_as(rows)


def put(cache: Tensor, new: Tensor, places: State) -> Tensor:
    """The cache (B, G, N, d) with new rows (B, G, d) at these places; it is copied once, whole.

    A loop's state has no other shape than its own here: in onnxruntime that would be another copy.
    """
    return cache.index_put(places, new.type_as(cache))  # autocast makes it bfloat16
