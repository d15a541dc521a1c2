"""Incremental decoding and streams: caches of keys, values and states, and the stages that read them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from seqpipe.answers.text import PAST, PRESENT
from seqpipe.config.contract import member
from seqpipe.config.signature import call
from seqpipe.nn.layers import BOS_ID, PAD_ID, Modules, attention_bias
from seqpipe.nn.loops import State, run_if
from seqpipe.nn.search import repeat_axis, repeated, rows_at, top_n
from seqpipe.runtime.manifest import CacheEntry

__all__ = ["IncrementalEncoder", "IncrementalStages", "KVCacheEncoder", "Prompt", "TokenPrefix"]

# The key-value cache of causal encoders: continue a text without reading its tokens twice.
#
# A causal encoder, in which no token depends on a later one, can be run incrementally. It has the five methods of
# `IncrementalEncoder`; self-attention layers inherit them from `KVCacheEncoder`.


class PrefixCache(NamedTuple):
    """The cache of an encoder for the texts read so far: its memory, and the mask of its slots."""

    memory: State  # of B rows
    real: Tensor  # (B, S) bool
    length: Tensor  # (B,) number of tokens of each text so far


def prefix_cache(memory: State, real: Tensor) -> PrefixCache:
    """Return the cache of a memory with this mask of slots (B, S)."""
    return PrefixCache(memory, real, real.sum(1))


class CacheSlots(NamedTuple):
    """Sources of the slots of an exported cache."""

    order: Tensor  # (B, P) the slot of the memory for each slot
    real: Tensor  # (B, P) whether it has a token
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
        """Return the memory of a cache (B, C, M, W); C = 0: nothing was read."""

    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        """Return the cache for `import_cache` from a memory; 0 in unused slots and finished texts."""

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache, rows: Tensor | None = None) -> tuple[Tensor, State]:
        """Map x (B, n, D) of n more tokens to x (B, n, D'); return also the memory extended by these tokens.

        `rows` (B, m), which an encoder may leave out, are the only tokens whose x is read: it returns x (B, m, D').
        """

    def init_cache(self, prefix: PrefixCache) -> State:
        """Return the initial state of B rows, of as many tensors as the memory."""

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        """Map x (B, D) of the token at step t (B,) to x (B, D'); return also the next state, whose axes may grow."""

    def extend_memory(self, memory: State, state: State) -> State:
        """Return the memory extended by the tokens of a state."""


class KVCacheLayer(Protocol):
    """A layer of self-attention, its two halves apart."""

    def project_qkv(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map x (B, n, D) to scaled queries (B, H, n, d), keys and values (B, G, n, d), for G groups of heads.

        For x (B, D), one token per text, n is 1.
        """

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        """Map x (B, n, D) and its context (B, n, H d) to x (B, n, D), or the same without n."""


class KVCacheEncoder(nn.Module):
    """Layers of causal self-attention with a cache of keys and values.

    A subclass has `layers` (each a `KVCacheLayer`), and may override `enter` and `leave`.
    """

    cache_per_token: ClassVar = True
    layers: Modules[KVCacheLayer]
    groups: int  # G, of keys and values
    head_dim: int  # d

    @property
    def cache_shape(self) -> tuple[int, int]:
        return 2 * len(self.layers), self.groups * self.head_dim

    def enter(self, x: Tensor, places: Tensor) -> Tensor:  # (B, n, D), (B, n) -> (B, n, D')
        """Return the input of the first layer for tokens at these positions of their texts."""
        return x

    def leave(self, x: Tensor) -> Tensor:  # (B, n, D') -> (B, n, D')
        """Return the output from the last layer's x."""
        return x

    def import_cache(self, cache: Tensor) -> State:  # (B, C, 2 L, G d) -> 2 L times (B, G, C, d)
        rows = cache.unflatten(3, (self.groups, self.head_dim)).flatten(2, 3).transpose(1, 2)  # (B, 2 L G, C, d)
        return rows.split(self.groups, 1)

    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        rows = torch.cat(prefix.memory, 1).transpose(1, 2).flatten(2)  # (B, S, 2 L G d)
        exported = rows_at(rows, slots.order).unflatten(2, self.cache_shape)
        return torch.where(slots.real[..., None, None], exported, 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache, rows: Tensor | None = None) -> tuple[Tensor, State]:
        t = torch.arange(x.shape[1], device=x.device)
        places = prefix.length[:, None] + t  # (B, n)
        new = (t <= t[:, None]) & mask[:, None]  # (B, n, n)
        old = prefix.real[:, None] & (t[:, None] >= 0)  # (B, n, C)
        bias = attention_bias(torch.cat([old, new], 2))[:, None]  # (B, 1, n, C + n)
        memory: list[Tensor] = []
        x = self.enter(x, places)
        for i, layer in enumerate(self.layers):
            queries, keys, values = layer.project_qkv(x, places)
            keys = torch.cat([prefix.memory[2 * i], keys], 2)
            values = torch.cat([prefix.memory[2 * i + 1], values], 2)
            memory += [keys, values]
            if rows is not None and i == len(self.layers) - 1:  # the other tokens only need keys and values there
                x, bias = rows_at(x, rows), rows_at(bias[:, 0], rows)[:, None]
                queries = queries.gather(2, rows[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[3]))
            if self.groups < queries.shape[1]:  # each group has several heads
                keys, values = (part.repeat_interleave(queries.shape[1] // self.groups, 1) for part in (keys, values))
            context = (queries @ keys.transpose(2, 3) + bias).softmax(3) @ values  # (B, H, n, d)
            x = layer.output(x, context.transpose(1, 2).flatten(2))
        return self.leave(x), tuple(memory)

    def init_cache(self, prefix: PrefixCache) -> State:
        return (prefix.memory[0][:, :, :0],) * len(prefix.memory)

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        places = prefix.length + t  # (B,)
        bias = attention_bias(prefix.real)[:, None, None]  # (B, 1, 1, S)
        x = self.enter(x, places)
        after: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            queries, keys, values = layer.project_qkv(x, places)
            keys, values = torch.cat([state[2 * i], keys], 2), torch.cat([state[2 * i + 1], values], 2)
            after += [keys, values]
            # The memory is not copied in each step, as it would be if it grew.
            old, shared = prefix.memory[2 * i], prefix.memory[2 * i + 1]
            if self.groups < queries.shape[1]:
                queries = queries.reshape(-1, self.groups, queries.shape[1] // self.groups, self.head_dim)
            scores = torch.cat([queries @ old.transpose(2, 3) + bias, queries @ keys.transpose(2, 3)], 3)
            far, near = scores.softmax(3).split([old.shape[2], keys.shape[2]], 3)
            context = far @ shared + near @ values  # (B, G, H / G, d)
            x = layer.output(x, context.flatten(1))
        return self.leave(x), tuple(after)

    def extend_memory(self, memory: State, state: State) -> State:
        return tuple(torch.cat(parts, 2) for parts in zip(memory, state, strict=True))


# Incremental decoding: run the stages before a language-model head one token at a time.

IDS = "ids"  # the tokens in a cache
LOGIT_WEIGHTS = ("table", "table_bias")  # outputs of embeddings for tied logits


class TokenPrefix(NamedTuple):
    """The tokens that were read of R texts, and what the stages keep of them."""

    ids: Tensor  # (R, S) the token of each slot
    real: Tensor  # (R, S) mask of the used slots
    features: State  # the other features of the embeddings
    memories: tuple[State, ...]  # of each encoder

    @property
    def caches(self) -> list[PrefixCache]:
        return [prefix_cache(memory, self.real) for memory in self.memories]

    @property
    def state(self) -> State:
        """All tensors, as the state of a loop."""
        return (self.ids, self.real, *self.features, *itertools.chain(*self.memories))

    def with_state(self, state: State) -> TokenPrefix:
        """Return the texts of another state like this one's."""
        ids, real, *tensors = state
        parts = iter(tensors)
        features, *memories = (tuple(itertools.islice(parts, len(old))) for old in (self.features, *self.memories))
        return TokenPrefix(ids, real, features, tuple(memories))

    def repeated(self, times: int) -> TokenPrefix:
        """Repeat each text consecutively, for several continuations."""
        return self.with_state(repeated(self.state, times))


class Prompt(NamedTuple):
    """Texts after the last tokens that were read of them."""

    x: Tensor  # (B, n, D) of the tokens that were read now, or (B, 1, D) of the last ones
    ids: Tensor  # (B, n) these tokens
    real: Tensor  # (B, n) their mask
    last: Tensor  # (B,) the last token of each text
    last_x: Tensor  # (B, D)
    prefix: TokenPrefix
    before: TokenPrefix  # without the last token, in the same slots


class IncrementalStages:
    """Embeddings and causal encoders, run one token at a time.

    Args:
        embedding: Each computes x per token; several are concatenated. Without embeddings the first encoder
            has a method `embed`.
        encoder: Modules like `seqpipe.nn.incremental.IncrementalEncoder`, one on top of the other, at least one.
        names: The features, and the cache of an earlier call, `past.ids` (B, C) and `past.0` (B, C', M, W) …
        adds_bos: Whether [BOS] precedes a text.
    """

    def __init__(
        self, embedding: Sequence[nn.Module], encoder: Sequence[Any], names: Mapping[str, Any], adds_bos: bool
    ):
        self.encoder, self.names, self.adds_bos = encoder, names, adds_bos
        self.embedding = [module.forward for module in embedding] or [encoder[0].embed]
        requested = dict.fromkeys(name for method in self.embedding for name in inspect.signature(method).parameters)
        self.features = [name for name in requested if name in names and name not in ("ids", "mask")]
        self.logit_weights: dict[str, Tensor] = {}  # LOGIT_WEIGHTS of the embeddings, once they ran

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a text, the minimum over the encoders; None: no limit."""
        limits = (member(encoder, "max_length") for encoder in self.encoder)
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    def prefill(self, ids: Tensor, mask: Tensor, every: Tensor | None = None) -> Prompt:
        """Read more tokens (B, n) after those of `past.ids`.

        Unless `every`, a scalar bool, is true, the top encoder need only compute x of the last token of each text.
        """
        B = ids.shape[0]
        held = torch.zeros_like(ids[:, :0])
        if PAST + IDS in self.names:
            held = repeat_axis(self.names[PAST + IDS], 0, B)
        old = held != PAD_ID
        if self.adds_bos:
            # (B, 1) rows of which nothing was read yet; `any` of an axis of 0 is true in onnxruntime.
            new = old.sum(1, keepdim=True) == 0
            ids = torch.where(new, pad(ids, (1, 0), value=BOS_ID), pad(ids, (0, 1)))
            mask = torch.where(new, pad(mask.long(), (1, 0), value=1), pad(mask.long(), (0, 1))) > 0
        t, count = torch.arange(ids.shape[1], device=ids.device), mask.sum(1, keepdim=True)  # (n,), (B, 1)
        real, earlier, end = t < count, t < count - 1, count - 1
        ids = torch.where(real, ids, PAD_ID)
        features = {name: self.names[name] for name in self.features}
        x, self.logit_weights = self._embedded(ids, real, old.sum(1, keepdim=True), features)
        x = torch.where(real[..., None], x, 0.0)
        memories, before = list[State](), list[State]()
        top, selected = self.encoder[-1], dict[str, Tensor]()  # the rows of x that the top encoder need only return
        if every is not None and member(top, "cache_per_token") and "rows" in inspect.signature(top.prefill).parameters:
            selected["rows"] = run_if(every, lambda: (t + 0 * end,), (end,))[0]  # (B, n) or (B, 1)
        for number, encoder in enumerate(self.encoder):
            cache = self.names.get(f"{PAST}{number}")
            if cache is None:
                cache = x.new_zeros(1, 0, *encoder.cache_shape)
            # An encoder may ask for features beside its cache, for example to compute initial states.
            names = {**self.names, "cache": repeat_axis(cache, 0, B)}
            memory = call(encoder.import_cache, names)
            if member(encoder, "cache_per_token"):
                x, memory = encoder.prefill(x, real, prefix_cache(memory, old), **(selected if encoder is top else {}))
                before.append(tuple(part.clone() for part in memory))  # the last token's slot is not in its mask
            else:
                last_x = rows_at(x, end)[:, 0]
                x, memory = encoder.prefill(x, earlier, prefix_cache(memory, old))
                before.append(tuple(part.clone() for part in memory))
                cache = prefix_cache(before[-1], torch.cat([old, earlier], 1))
                last_x, state = encoder.step(last_x, end[:, 0] * 0, cache, encoder.init_cache(cache))
                x, memory = torch.where((t == end)[..., None], last_x[:, None], x), encoder.extend_memory(memory, state)
            memories.append(tuple(part.clone() for part in memory))
        feature_tensors, all_ids = tuple(features.values()), torch.cat([held, ids], 1)
        prefixes = (
            TokenPrefix(all_ids, torch.cat([old, mask], 1), feature_tensors, tuple(parts))
            for mask, parts in ((real, memories), (earlier, before))
        )
        last_x = rows_at(x, end.clamp(max=x.shape[1] - 1) if selected else end)[:, 0]
        return Prompt(x, ids, real, ids.gather(1, end)[:, 0], last_x, *prefixes)

    def start(self, prefix: TokenPrefix) -> State:
        """Return the initial state: t (R,), the tokens (R, t) read since the prefix, and the states of the encoders."""
        states = (encoder.init_cache(cache) for encoder, cache in zip(self.encoder, prefix.caches, strict=True))
        return (prefix.ids[:, 0] * 0, prefix.ids[:, :0], *itertools.chain(*states))

    def step(self, tokens: Tensor, prefix: TokenPrefix, state: State) -> tuple[Tensor, State]:
        """Return x (R, D) of one more token (R,) of each text, and the next state."""
        t, read, *encoder_states = state
        features, real = dict(zip(self.features, prefix.features, strict=True)), tokens[:, None] >= 0
        x = self._embedded(tokens[:, None], real, (prefix.real.sum(1) + t)[:, None], features)[0][:, 0]
        after: list[Tensor] = []
        parts = iter(encoder_states)
        for encoder, cache in zip(self.encoder, prefix.caches, strict=True):
            x, encoder_state = encoder.step(x, t, cache, tuple(itertools.islice(parts, len(cache.memory))))
            after += encoder_state
        return x, (t + 1, torch.cat([read, tokens[:, None]], 1), *after)

    def extended(self, prefix: TokenPrefix, state: State) -> TokenPrefix:
        """Return the prefix with the tokens of a state; [PAD] among them are unused slots, of texts that had ended."""
        read, parts = state[1], iter(state[2:])
        memories = (
            encoder.extend_memory(memory, tuple(itertools.islice(parts, len(memory))))
            for encoder, memory in zip(self.encoder, prefix.memories, strict=True)
        )
        ids, real = torch.cat([prefix.ids, read], 1), torch.cat([prefix.real, read != PAD_ID], 1)
        return prefix._replace(ids=ids, real=real, memories=tuple(memories))

    def export_cache(self, prefix: TokenPrefix, ended: Tensor, keep: bool | Tensor = True) -> dict[str, Tensor]:
        """The cache `present.…` that a later call takes as `past.…`; without slots unless `keep`.

        `ended` (B,) says which texts have ended. If the prefix has several rows of each text, the first counts.
        """
        B, device = ended.shape[0], ended.device

        def export() -> State:
            rows = torch.arange(B, device=device) * (prefix.ids.shape[0] // B)
            first = prefix.with_state(tuple(part.index_select(0, rows) for part in prefix.state))
            p = torch.arange(first.ids.shape[1], device=device)
            # The padding between the tokens of a row, such as that of its prompt, moves to the row's end.
            _, order = top_n(torch.where(first.real, p, p + p.shape[0]), p.shape[0], largest=False)  # (B, S)
            slots = CacheSlots(order, p < first.real.sum(1, keepdim=True), ~ended)
            ids = torch.where(slots.real, first.ids.gather(1, order), PAD_ID)
            pairs = zip(self.encoder, first.caches, strict=True)
            return ids, *(encoder.export_cache(cache, slots) for encoder, cache in pairs)

        floats = torch.zeros(B, 0, device=device)
        empty = (floats.long(), *(floats[..., None, None].expand(-1, -1, *e.cache_shape) for e in self.encoder))
        caches = run_if(torch.zeros((), dtype=torch.bool, device=device) | keep, export, empty)
        return dict(zip([PRESENT + IDS, *(f"{PRESENT}{n}" for n in range(len(self.encoder)))], caches, strict=True))

    def _embedded(
        self, ids: Tensor, mask: Tensor, places: Tensor, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        names = {**features, "ids": ids, "mask": mask, "places": places + torch.arange(ids.shape[1], device=ids.device)}
        vectors: list[Tensor] = []
        logit_weights: dict[str, Tensor] = {}
        for method in self.embedding:
            outputs = call(method, names)
            if isinstance(outputs, dict):
                logit_weights |= {name: tensor for name, tensor in outputs.items() if name in LOGIT_WEIGHTS}
                outputs = outputs["x"]
            vectors.append(outputs)
        return torch.cat(vectors, 2) if len(vectors) > 1 else vectors[0], logit_weights


def cache_entries(encoder: Sequence[Any]) -> tuple[CacheEntry, ...]:
    """Return the cache entries of these encoders: the token ids, and each encoder's values for them."""
    return CacheEntry.of(PAST + IDS, PRESENT + IDS), *map(_cache_entry, range(len(encoder)), encoder)


def _cache_entry(number: int, encoder: Any) -> CacheEntry:
    shape, grows = tuple(encoder.cache_shape), member(encoder, "cache_per_token")
    return CacheEntry.of(f"{PAST}{number}", f"{PRESENT}{number}", shape, grows)


# Streaming: run causal stages over the next chunk of each text, with the cache of the earlier chunks.

LENGTH_ENTRY, HEAD_ENTRY = "length", "head"  # the number of tokens read and the state of the head in a cache


class Chunk(NamedTuple):
    """The next tokens of streamed texts, as input of a head."""

    x: Tensor  # (B, T, D), 0 in the padding
    mask: Tensor  # (B, T); a row may have no token
    state: Tensor  # (B, M, W) the head's state after the earlier tokens, 0 before the first
    cache: dict[str, Tensor]  # `present.…` of the stages before the head


def read_chunk(embedding: Sequence[nn.Module], encoder: Sequence[Any], names: Mapping[str, Tensor]) -> Chunk:
    """Run embeddings and causal encoders over more tokens of each text.

    Args:
        embedding: Each computes x per token; several are concatenated. Without embeddings the first encoder
            has a method `embed`.
        encoder: Modules like `seqpipe.nn.incremental.IncrementalEncoder`, or `tokenwise`; one on top of the other.
        names: Features of the tokens, `ids` and `mask` (B, T) among them, and the cache: `past.length` (B, C),
            `past.0` (B, C', M, W) …, `past.head` (B, C, M, W). Of 1 row it holds for all, of C = 0 nothing was read.
    """
    mask, present = names["mask"], dict[str, Tensor]()
    B = mask.shape[0]
    read = _last(names[PAST + LENGTH_ENTRY], B)  # (B,) how many tokens were read before
    x = _embedded(embedding, encoder, names)
    for number, stage in enumerate(encoder):
        x = torch.where(mask[..., None], x, 0.0)
        if member(stage, "tokenwise"):
            outputs = call(stage.forward, {**names, "x": x, "mask": mask})
            outputs = outputs if isinstance(outputs, dict) else {"x": outputs}
            x, mask = outputs["x"], outputs.get("mask", mask)
        else:
            cache = repeat_axis(names[f"{PAST}{number}"], 0, B)
            x, present[f"{PRESENT}{number}"] = _encoded(stage, x, mask, {**names, "cache": cache}, read)
    state = torch.where((read > 0)[:, None, None], _last(names[PAST + HEAD_ENTRY], B), 0.0)
    present[PRESENT + LENGTH_ENTRY] = (read + names["mask"].sum(1))[:, None]
    return Chunk(torch.where(mask[..., None], x, 0.0), mask, state, present)


def stage_entries(encoder: Sequence[Any]) -> tuple[CacheEntry, ...]:
    """Return the cache entries of these stages: the number of tokens read, and each encoder's values for them."""
    entries = (_cache_entry(n, stage) for n, stage in enumerate(encoder) if not member(stage, "tokenwise"))
    return CacheEntry.of(PAST + LENGTH_ENTRY, PRESENT + LENGTH_ENTRY, grows=False), *entries


def _embedded(embedding: Sequence[nn.Module], encoder: Sequence[Any], names: Mapping[str, Tensor]) -> Tensor:
    outputs = [call(module.forward, names) for module in embedding] or [encoder[0].embed(names["ids"])]
    vectors = [output["x"] if isinstance(output, dict) else output for output in outputs]
    return torch.cat(vectors, 2) if len(vectors) > 1 else vectors[0]


def _encoded(encoder: Any, x: Tensor, mask: Tensor, names: Mapping[str, Tensor], read: Tensor) -> tuple[Tensor, Tensor]:
    """Map x (B, T, D) of more tokens to x (B, T, D'); return also the cache (B, C, M, W) with these tokens."""
    cache = names["cache"]
    C, T = cache.shape[1], mask.shape[1]
    memory = call(encoder.import_cache, names)
    if not member(encoder, "cache_per_token"):
        # A cache of one slot for the whole text has zeros for a row before its first token, but an encoder may have
        # other initial states, such as learned ones: the row gets the memory of a cache without slots.
        fresh = call(encoder.import_cache, {**names, "cache": cache[:, :0]})
        pairs = zip(memory, fresh, strict=True)
        memory = tuple(torch.where((read > 0).reshape(-1, *[1] * (old.dim() - 1)), old, new) for old, new in pairs)
    old = torch.arange(C, device=x.device) < read[:, None]  # (B, C)
    x, memory = encoder.prefill(x, mask, PrefixCache(memory, old, read))
    count = read + mask.sum(1)
    prefix = PrefixCache(tuple(part.clone() for part in memory), torch.cat([old, mask], 1), count)
    # The new tokens follow the C slots of the longest row; in each row they move up to the row's last slot.
    p = torch.arange(C + T, device=x.device)
    order = torch.where(p < read[:, None], p, p - read[:, None] + C).clamp(max=C + T - 1)  # (B, C + T)
    slots = CacheSlots(order, p < count[:, None], read >= 0)
    return x, encoder.export_cache(prefix, slots)


def _last(cache: Tensor, rows: int) -> Tensor:
    """Return the last slot (B, …) of a cache (B, C, …), 0 without slots."""
    zeros = (0, 0) * (cache.dim() - 2)
    return repeat_axis(pad(cache, (*zeros, 1, 0))[:, -1], 0, rows)
