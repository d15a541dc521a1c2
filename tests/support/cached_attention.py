"""A causal encoder with a KV cache that inherits nothing of seqpipe, and faulty variants of it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.nn.incremental import CacheSlots, PrefixCache

State = tuple[Tensor, ...]


class CachedAttention(nn.Module):
    """One head of causal self-attention: x + softmax(Q K / sqrt(D)) V."""

    cache_per_token = True

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.cache_shape = dim, (2, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        nn.init.normal_(self.qkv.weight)  # what is attended to decides the next token

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return ""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        memory = self.import_cache(x.new_zeros(x.shape[0], 0, *self.cache_shape))
        empty = mask[:, :0]
        x, _ = self.prefill(torch.where(mask[..., None], x, 0.0), mask, PrefixCache(memory, empty, empty.sum(1)))
        return torch.where(mask[..., None], x, 0.0)

    def import_cache(self, cache: Tensor) -> State:  # (B, C, 2, D) -> (B, C, D) twice
        return cache[:, :, 0].contiguous(), cache[:, :, 1].contiguous()

    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        rows = torch.stack(prefix.memory, 2)  # (B, S, 2, D)
        order = slots.order[..., None, None].expand(-1, -1, *rows.shape[2:])
        return torch.where(slots.real[..., None, None], rows.gather(1, order), 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        query, key, value = self.qkv(x).chunk(3, 2)
        t = torch.arange(x.shape[1], device=x.device)
        seen = torch.cat([prefix.real[:, None] & (t[:, None] >= 0), (t <= t[:, None]) & mask[:, None]], 2)
        keys, values = torch.cat([prefix.memory[0], key], 1), torch.cat([prefix.memory[1], value], 1)
        return x + self.attended(query, keys, values, seen), (keys, values)

    def init_cache(self, prefix: PrefixCache) -> State:
        return tuple(part[:, :0] for part in prefix.memory)

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        query, *new = self.qkv(x[:, None]).chunk(3, 2)
        after = tuple(torch.cat(parts, 1) for parts in zip(state, new, strict=True))
        seen = torch.cat([prefix.real, torch.ones_like(after[0][..., 0]) > 0], 1)[:, None]
        everything = (torch.cat(parts, 1) for parts in zip(prefix.memory, after, strict=True))
        return x + self.attended(query, *everything, seen)[:, 0], after

    def extend_memory(self, memory: State, state: State) -> State:
        return tuple(torch.cat(parts, 1) for parts in zip(memory, state, strict=True))

    def attended(self, query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        scores = query @ keys.transpose(1, 2) * self.dim**-0.5
        return torch.where(seen, scores, -1e9).softmax(2) @ values


class OneSlotAttention(CachedAttention):
    cache_per_token = False


class ForgetfulAttention(CachedAttention):
    """Drops the cache of an earlier run."""

    def import_cache(self, cache: Tensor) -> State:
        return tuple(part * 0 for part in super().import_cache(cache))
