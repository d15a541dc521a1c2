"""Incremental decoding and streams: caches of keys, values and states, and the stages that read them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import pad

from seqpipe.answers.text import PAST, PRESENT
from seqpipe.config.contract import member
from seqpipe.config.signature import call
from seqpipe.nn.layers import BOS_ID, LOG_ZERO, PAD_ID
from seqpipe.nn.loops import State
from seqpipe.nn.search import repeat_axis
from seqpipe.runtime.manifest import CacheEntry

# The key-value cache of causal encoders: continue a text without reading its tokens twice.
#
# A causal encoder, in which no token depends on a later one, can be run incrementally. It has the five methods of
# `IncrementalEncoder`; self-attention layers inherit them from `KVCacheEncoder`.


class PrefixCache(NamedTuple):
    """The cache of an encoder for the texts read so far: its memory, and the mask of its slots."""

    memory: State  # of B rows
    real: Tensor  # (B, S) bool
    length: Tensor  # (B,) number of tokens of each text so far

    def repeated(self, times: int) -> PrefixCache:
        """Repeat each row consecutively."""
        memory, (real, length) = repeated(self.memory, times), repeated((self.real, self.length), times)
        return PrefixCache(memory, real, length)


def prefix_cache(memory: State, real: Tensor) -> PrefixCache:
    """Return the cache of a memory with this mask of slots (B, S)."""
    return PrefixCache(memory, real, real.sum(1))


def repeated(rows: State, times: int) -> State:
    """Repeat each row (B, …) consecutively: (B * times, …)."""
    return tuple(part[:, None].expand(-1, times, *part.shape[1:]).flatten(0, 1).contiguous() for part in rows)


class CacheSlots(NamedTuple):
    """Sources of the slots of an exported cache: the slots of a memory, followed by those of a state."""

    order: Tensor  # (B, P) the source slot of each slot
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
        ...

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        """Return the cache for `import_cache` from a memory and a state; 0 in unused slots and finished texts."""
        ...

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        """Map x (B, n, D) of n more tokens to x (B, n, D'); return also the memory extended by these tokens."""
        ...

    def init_cache(self, prefix: PrefixCache, max_length: int) -> State:
        """Return the initial state of B rows for at most this many steps."""
        ...

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        """Map x (B, D) of the token at step t (B,) to x (B, D'); return also the next state."""
        ...


class KVCacheLayer(Protocol):
    """A layer of self-attention, its two halves apart."""

    def project_qkv(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map x (B, n, D) to scaled queries (B, H, n, d), keys and values (B, G, n, d), for G groups of heads.

        For x (B, D), one token per text, the results have no n.
        """
        ...

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        """Map x (B, n, D) and its context (B, n, H d) to x (B, n, D), or the same without n."""
        ...


class KVCacheEncoder(nn.Module):
    """Layers of causal self-attention with a cache of keys and values.

    A subclass has `layers` (each a `KVCacheLayer`), and may override `enter` and `leave`.
    """

    cache_per_token: ClassVar = True
    layers: nn.ModuleList
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
    """Return the bias of attention scores: 0 at visible positions, else LOG_ZERO."""
    return torch.where(seen, 0.0, LOG_ZERO)


def places_of(t: Tensor, groups: int) -> State:
    """Return the indices, for `put`, of the rows of tokens t (B,) in a cache (B, G, N, d)."""
    rows = torch.arange(t.shape[0], device=t.device)[:, None].expand(-1, groups)
    return rows, torch.arange(groups, device=t.device).expand_as(rows), t[:, None].expand_as(rows)


def put(cache: Tensor, new: Tensor, places: State) -> Tensor:
    """Return the cache (B, G, N, d) with new rows (B, G, d) at these positions; it is copied once.

    The cache is not reshaped, since onnxruntime would copy it once more.
    """
    return cache.index_put(places, new.type_as(cache))  # autocast makes it bfloat16


# Incremental decoding: run the stages before a language-model head one token at a time.

IDS = "ids"  # the tokens in a cache
LOGIT_WEIGHTS = ("table", "table_bias")  # outputs of embeddings for tied logits


class TokenPrefix(NamedTuple):
    """Texts of which all tokens except the last have been read."""

    x: Tensor  # (B, M, D) of the tokens that were read now, M = n - 1, at least 1
    ids: Tensor  # (B, M + 1) these tokens, and the last of the longest row
    inside: Tensor  # (B, M) which of them are real, but for each row's last
    last: Tensor  # (B,) the last token
    caches: tuple[PrefixCache, ...]  # of each encoder
    past_ids: Tensor  # (B, C) the tokens that were read before, [PAD] behind them

    @property
    def length(self) -> Tensor:  # (B,)
        """Number of tokens of each text before the last one."""
        return self.caches[0].length


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
        self.embedding: list[tuple[Any, list[str]]] = [
            (module, [*_requested(module.forward, {*names, "ids", "mask", "places"})]) for module in embedding
        ] or [(encoder[0].embed, ["ids"])]
        requested = dict.fromkeys(name for _, wanted in self.embedding for name in wanted)
        self.features = [name for name in requested if name in names and name not in ("ids", "mask")]
        self.logit_weights: dict[str, Tensor] = {}  # LOGIT_WEIGHTS of the embeddings, once they ran

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a text, the minimum over the encoders; None: no limit."""
        limits = (member(encoder, "max_length") for encoder in self.encoder)
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    def prefill(self, ids: Tensor, mask: Tensor) -> TokenPrefix:
        """Reads more tokens (B, n) after those of `past.ids`, except the last of each row."""
        B = ids.shape[0]
        held = torch.zeros_like(ids[:, :0])
        if PAST + IDS in self.names:
            held = repeat_axis(self.names[PAST + IDS], 0, B)
        if self.adds_bos:
            new = (held != PAD_ID).sum(1, keepdim=True) == 0  # (B, 1) rows of which nothing was read yet
            ids = torch.where(new, pad(ids, (1, 0), value=BOS_ID), pad(ids, (0, 1)))
            mask = torch.where(new, pad(mask.long(), (1, 0), value=1), pad(mask.long(), (0, 1))) > 0
        count = mask.sum(1, keepdim=True)  # (B, 1)
        width = torch.sym_max(ids.shape[1] - 1, 1)  # a graph's reshapes take no axis of 0
        ids = pad(ids, (0, 1))[:, : width + 1]
        inside = torch.arange(width, device=ids.device) < count - 1
        old = held != PAD_ID
        features = {name: self.names[name] for name in self.features}
        x, self.logit_weights = self._embedded(ids[:, :-1], inside, old.sum(1, keepdim=True), features)
        caches = []
        for number, encoder in enumerate(self.encoder):
            cache = self.names.get(f"{PAST}{number}")
            if cache is None:
                cache = x.new_zeros(1, 0, *encoder.cache_shape)
            # An encoder may ask for features beside its cache, for example to compute initial states.
            names = {**self.names, "cache": repeat_axis(cache, 0, B)}
            memory = encoder.import_cache(**{name: names[name] for name in _requested(encoder.import_cache, names)})
            x, memory = encoder.prefill(x, inside, prefix_cache(memory, old))
            caches.append(prefix_cache(tuple(part.clone() for part in memory), torch.cat([old, inside], 1)))
        return TokenPrefix(x, ids, inside, ids.gather(1, count - 1)[:, 0], tuple(caches), held)

    def repeated(self, prefix: TokenPrefix, times: int) -> TokenPrefix:
        """Repeat each text consecutively, for several continuations."""
        return prefix._replace(caches=tuple(cache.repeated(times) for cache in prefix.caches))

    def start(self, prefix: TokenPrefix, max_length: int) -> State:
        """Return the initial state of B rows for at most this many steps."""
        features = [self.names[name] for name in self.features]
        pairs = zip(self.encoder, prefix.caches, strict=True)
        states = [encoder.init_cache(cache, max_length) for encoder, cache in pairs]
        return (torch.zeros_like(prefix.last), *features, *(part for state in states for part in state))

    def step(self, tokens: Tensor, prefix: TokenPrefix, state: State) -> tuple[Tensor, State]:
        """Return x (B, D) of one more token (B,) of each text, and the next state."""
        t, *rest = state
        n = len(self.features)
        features = dict(zip(self.features, rest[:n], strict=True))
        here = tokens[:, None] >= 0
        x = self._embedded(tokens[:, None], here, (prefix.length + t)[:, None], features)[0][:, 0]
        after: list[Tensor] = []
        rest = rest[n:]
        for encoder, cache in zip(self.encoder, prefix.caches, strict=True):
            size = len(cache.memory)
            x, encoder_state = encoder.step(x, t, cache, tuple(rest[:size]))
            after, rest = [*after, *encoder_state], rest[size:]
        return x, (t + 1, *features.values(), *after)

    def export_cache(
        self, prefix: TokenPrefix, written: Tensor, steps: Tensor, ended: Tensor, state: State
    ) -> dict[str, Tensor]:
        """The cache `present.…` that a later call takes as `past.…`: of B rows that were given so many steps (B,).

        `written` (B, N) holds the tokens written; at the first step the last token read was given, then these. `ended`
        (B,) says which texts have ended.
        """
        C, n = prefix.past_ids.shape[1], prefix.inside.shape[1]
        read = torch.cat([prefix.last[:, None], written], 1)[:, :-1]  # (B, N)
        ids = torch.cat([prefix.past_ids, prefix.ids[:, :n], read], 1)
        held, new = (prefix.past_ids != PAD_ID).sum(1, keepdim=True), prefix.inside.sum(1, keepdim=True)
        # Each row has its tokens in three padded parts: those of `past.ids`, those just read, and those generated.
        # `order` has the present position of each token of the new cache, in which all padding follows the row's last
        # token.
        p = torch.arange(ids.shape[1], device=ids.device)
        order = torch.where(p < held, p, torch.where(p < held + new, p - held + C, p - held - new + C + n))
        order = order.clamp(max=ids.shape[1] - 1)  # (B, C + n + N)
        real = p < held + new + steps[:, None]
        slots = CacheSlots(order, real, ~ended)
        caches = {PRESENT + IDS: torch.where(real, ids.gather(1, order), PAD_ID)}
        rest = state[1 + len(self.features) :]
        for number, (encoder, cache) in enumerate(zip(self.encoder, prefix.caches, strict=True)):
            size = len(cache.memory)
            caches[f"{PRESENT}{number}"] = encoder.export_cache(cache, rest[:size], slots)
            rest = rest[size:]
        return caches

    def _embedded(
        self, ids: Tensor, mask: Tensor, places: Tensor, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        names = {**features, "ids": ids, "mask": mask, "places": places + torch.arange(ids.shape[1], device=ids.device)}
        vectors: list[Tensor] = []
        logit_weights: dict[str, Tensor] = {}
        for module, wanted in self.embedding:
            outputs = module(**{name: names[name] for name in wanted})
            if isinstance(outputs, dict):
                logit_weights |= {name: tensor for name, tensor in outputs.items() if name in LOGIT_WEIGHTS}
                outputs = outputs["x"]
            vectors.append(outputs)
        return torch.cat(vectors, 2) if len(vectors) > 1 else vectors[0], logit_weights


def cache_entries(encoder: Sequence[Any]) -> tuple[CacheEntry, ...]:
    """Return the cache entries of these encoders: the token ids, and each encoder's values for them."""
    tensors = [
        CacheEntry.of(f"{PAST}{n}", f"{PRESENT}{n}", tuple(stage.cache_shape), member(stage, "cache_per_token"))
        for n, stage in enumerate(encoder)
    ]
    return (CacheEntry.of(PAST + IDS, PRESENT + IDS), *tensors)


def _requested(method: Callable[..., Any], available: Collection[str]) -> Iterator[str]:
    """Return the names passed to a method: all its parameters except optional ones that are not available."""
    for name, parameter in inspect.signature(method).parameters.items():
        if name in available or parameter.default is parameter.empty:
            yield name


# Streaming: run causal stages over the next chunk of each text, with the cache of the earlier chunks.

LENGTH, HEAD = "length", "head"  # the number of tokens read and the state of the head in a cache


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
    read = _last(names[PAST + LENGTH], B)  # (B,) how many tokens were read before
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
    state = torch.where((read > 0)[:, None, None], _last(names[PAST + HEAD], B), 0.0)
    present[PRESENT + LENGTH] = (read + names["mask"].sum(1))[:, None]
    return Chunk(torch.where(mask[..., None], x, 0.0), mask, state, present)


def stage_entries(encoder: Sequence[Any]) -> tuple[CacheEntry, ...]:
    """Return the cache entries of these stages: the number of tokens read, and each encoder's values for them."""
    tensors = [
        CacheEntry.of(f"{PAST}{n}", f"{PRESENT}{n}", tuple(stage.cache_shape), member(stage, "cache_per_token"))
        for n, stage in enumerate(encoder)
        if not member(stage, "tokenwise")
    ]
    return CacheEntry.of(PAST + LENGTH, PRESENT + LENGTH, grows=False), *tensors


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
    return x, encoder.export_cache(prefix, encoder.init_cache(prefix, 0), slots)


def _last(cache: Tensor, rows: int) -> Tensor:
    """Return the last slot (B, …) of a cache (B, C, …), 0 without slots."""
    zeros = (0, 0) * (cache.dim() - 2)
    return repeat_axis(pad(cache, (*zeros, 1, 0))[:, -1], 0, rows)
