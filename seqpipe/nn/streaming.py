"""Streaming: run causal stages over the next piece of each text, with the cache of the pieces before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from seqpipe.answers.generation import PAST, PRESENT
from seqpipe.config.contract import member
from seqpipe.config.signature import call
from seqpipe.nn.kv_cache import CacheSlots, PrefixCache
from seqpipe.nn.selection import stretched
from seqpipe.runtime.cache_entries import CacheEntry

LENGTH, HEAD = "length", "head"  # of a cache, how many tokens were read, and the state of the head


class Piece(NamedTuple):
    """The next tokens of texts, as a head reads them."""

    x: Tensor  # (B, T, D), 0 in the padding
    mask: Tensor  # (B, T); a row may have no token
    state: Tensor  # (B, M, W) what the head returned for the tokens before, 0 where nothing was read
    cache: dict[str, Tensor]  # `present.…` of the stages before the head


def read_piece(embedding: Sequence[nn.Module], encoder: Sequence[Any], names: Mapping[str, Tensor]) -> Piece:
    """Run embeddings and causal encoders over more tokens of each text.

    Args:
        embedding: Each makes its x of a token by itself; of several it is concatenated. Without any the first encoder
            has a method `embed`.
        encoder: As `seqpipe.nn.kv_cache.IncrementalEncoder`, or `tokenwise`; one on top of the other.
        names: Features of the tokens, `ids` and `mask` (B, T) among them, and the cache: `past.length` (B, C),
            `past.0` (B, C', M, W) …, `past.head` (B, C, M, W). Of 1 row it holds for all, of C = 0 nothing was read.
    """
    mask, present = names["mask"], dict[str, Tensor]()
    B = mask.shape[0]
    read = _last(names[PAST + LENGTH], B)  # (B,) how many tokens were read before
    x = _embedded(embedding, encoder, names)
    for number, stage in enumerate(encoder):
        x = torch.where(mask[..., None], x, 0.0)
        if member(stage, "tokenwise"):
            outputs = call(stage.forward, {**names, "x": x, "mask": mask})
            outputs = outputs if isinstance(outputs, dict) else {"x": outputs}
            x, mask = outputs["x"], outputs.get("mask", mask)
        else:
            cache = stretched(names[f"{PAST}{number}"], 0, B)
            x, present[f"{PRESENT}{number}"] = _encoded(stage, x, mask, {**names, "cache": cache}, read)
    state = torch.where((read > 0)[:, None, None], _last(names[PAST + HEAD], B), 0.0)
    present[PRESENT + LENGTH] = (read + names["mask"].sum(1))[:, None]
    return Piece(torch.where(mask[..., None], x, 0.0), mask, state, present)


def streaming_entries(encoder: Sequence[Any], head: Any) -> tuple[CacheEntry, ...]:
    """The cache of these stages and a head."""
    return *stage_entries(encoder), CacheEntry(PAST + HEAD, PRESENT + HEAD, tuple(head.state_shape), grows=False)


def stage_entries(encoder: Sequence[Any]) -> tuple[CacheEntry, ...]:
    """The cache of these stages: how many tokens were read, and what each encoder has computed of them."""
    tensors = [
        CacheEntry(f"{PAST}{n}", f"{PRESENT}{n}", tuple(stage.cache_shape), member(stage, "cache_per_token"))
        for n, stage in enumerate(encoder)
        if not member(stage, "tokenwise")
    ]
    return CacheEntry(PAST + LENGTH, PRESENT + LENGTH, grows=False), *tensors


def _embedded(embedding: Sequence[nn.Module], encoder: Sequence[Any], names: Mapping[str, Tensor]) -> Tensor:
    outputs = [call(module.forward, names) for module in embedding] or [encoder[0].embed(names["ids"])]
    vectors = [output["x"] if isinstance(output, dict) else output for output in outputs]
    return torch.cat(vectors, 2) if len(vectors) > 1 else vectors[0]


def _encoded(encoder: Any, x: Tensor, mask: Tensor, names: Mapping[str, Tensor], read: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, T, D) of more tokens to x (B, T, D'), and the cache (B, C, M, W) with these tokens."""
    cache = names["cache"]
    C, T = cache.shape[1], mask.shape[1]
    memory = call(encoder.import_cache, names)
    if not member(encoder, "cache_per_token"):  # a row of which nothing was read starts as one without a slot does
        fresh = call(encoder.import_cache, {**names, "cache": cache[:, :0]})
        pairs = zip(memory, fresh, strict=True)
        memory = tuple(torch.where(_aligned(read > 0, old), old, new) for old, new in pairs)
    old = torch.arange(C, device=x.device) < read[:, None]  # (B, C)
    x, memory = encoder.prefill(x, mask, PrefixCache(memory, old, read))
    count = read + mask.sum(1)
    prefix = PrefixCache(tuple(part.clone() for part in memory), torch.cat([old, mask], 1), count)
    p = torch.arange(C + T, device=x.device)
    order = torch.where(p < read[:, None], p, p - read[:, None] + C).clamp(max=C + T - 1)  # (B, C + T)
    slots = CacheSlots(order, p < count[:, None], read >= 0)
    return x, encoder.export_cache(prefix, encoder.init_cache(prefix, 0), slots)


def _last(cache: Tensor, rows: int) -> Tensor:
    """The last slot (B, …) of a cache (B, C, …), 0 where it has none."""
    zeros = (0, 0) * (cache.dim() - 2)
    return stretched(pad(cache, (*zeros, 1, 0))[:, -1], 0, rows)


def _aligned(rows: Tensor, like: Tensor) -> Tensor:  # (B,) -> (B, 1, …)
    return rows.reshape(-1, *[1] * (like.dim() - 1))
