"""Incremental decoding: run the stages before a language-model head one token at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from seqpipe.answers.generation import PAST, PRESENT
from seqpipe.config.contract import member
from seqpipe.nn.constants import BOS, PAD
from seqpipe.nn.kv_cache import CacheSlots, PrefixCache, prefix_cache
from seqpipe.nn.loops import State
from seqpipe.nn.selection import stretched
from seqpipe.runtime.cache_entries import CacheEntry

IDS = "ids"  # of a cache, the tokens themselves
LOGIT_WEIGHTS = ("table", "table_bias")  # what embeddings return beside x, for tied logits


class Prefix(NamedTuple):
    """Texts of which all tokens but the last were read."""

    x: Tensor  # (B, M, D) of the tokens that were read now, M = n - 1, at least 1
    ids: Tensor  # (B, M + 1) these tokens, and the last of the longest row
    inside: Tensor  # (B, M) which of them are real, but for each row's last
    last: Tensor  # (B,) the last token
    caches: tuple[PrefixCache, ...]  # of each encoder
    past_ids: Tensor  # (B, C) the tokens that were read before, [PAD] behind them

    @property
    def length(self) -> Tensor:  # (B,)
        """How many tokens each text has before the last one."""
        return self.caches[0].length


class IncrementalStages:
    """Embeddings and causal encoders, a token at a time.

    Args:
        embedding: Each makes its x of a token by itself; of several it is concatenated. Without any the first encoder
            has a method `embed`.
        encoder: As `seqpipe.nn.kv_cache.IncrementalEncoder`, one on top of the other, at least one.
        names: The features, and the cache of an earlier call, `past.ids` (B, C) and `past.0` (B, C', M, W) …
        adds_bos: Whether [BOS] stands before a text.
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
        """The most tokens of a text: the least that an encoder can read; None: no limit."""
        limits = (member(encoder, "max_length") for encoder in self.encoder)
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    def prefill(self, ids: Tensor, mask: Tensor) -> Prefix:
        """Reads more tokens (B, n), behind those of `past.ids`, but for the last of each row."""
        B = ids.shape[0]
        held = torch.zeros_like(ids[:, :0])
        if PAST + IDS in self.names:
            held = stretched(self.names[PAST + IDS], 0, B)
        if self.adds_bos:
            new = (held != PAD).sum(1, keepdim=True) == 0  # (B, 1) rows of which nothing was read yet
            ids = torch.where(new, pad(ids, (1, 0), value=BOS), pad(ids, (0, 1)))
            mask = torch.where(new, pad(mask.long(), (1, 0), value=1), pad(mask.long(), (0, 1))) > 0
        count = mask.sum(1, keepdim=True)  # (B, 1)
        width = torch.sym_max(ids.shape[1] - 1, 1)  # a graph's reshapes take no axis of 0
        ids = pad(ids, (0, 1))[:, : width + 1]
        inside = torch.arange(width, device=ids.device) < count - 1
        old = held != PAD
        features = {name: self.names[name] for name in self.features}
        x, self.logit_weights = self._embedded(ids[:, :-1], inside, old.sum(1, keepdim=True), features)
        caches = []
        for number, encoder in enumerate(self.encoder):
            cache = self.names.get(f"{PAST}{number}")
            if cache is None:
                cache = x.new_zeros(1, 0, *encoder.cache_shape)
            memory = self._import_cache(encoder, stretched(cache, 0, B))
            x, memory = encoder.prefill(x, inside, prefix_cache(memory, old))
            caches.append(prefix_cache(tuple(part.clone() for part in memory), torch.cat([old, inside], 1)))
        return Prefix(x, ids, inside, ids.gather(1, count - 1)[:, 0], tuple(caches), held)

    def repeated(self, prefix: Prefix, times: int) -> Prefix:
        """The same texts, each so many times, to be continued in as many ways."""
        return prefix._replace(caches=tuple(cache.repeated(times) for cache in prefix.caches))

    def start(self, prefix: Prefix, max_length: int) -> State:
        """The state, of B rows, before the first of at most so many steps."""
        features = [self.names[name] for name in self.features]
        pairs = zip(self.encoder, prefix.caches, strict=True)
        states = [encoder.init_cache(cache, max_length) for encoder, cache in pairs]
        return (torch.zeros_like(prefix.last), *features, *(part for state in states for part in state))

    def step(self, tokens: Tensor, prefix: Prefix, state: State) -> tuple[Tensor, State]:
        """x (B, D) of one more token (B,) of each text, and the state after."""
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
        self, prefix: Prefix, written: Tensor, steps: Tensor, ended: Tensor, state: State
    ) -> dict[str, Tensor]:
        """The cache `present.…` that a later call takes as `past.…`: of B rows that were given so many steps (B,).

        `written` (B, N) holds the tokens written; at the first step the last token read was given, then these. `ended`
        (B,) says which texts have ended.
        """
        C, n = prefix.past_ids.shape[1], prefix.inside.shape[1]
        read = torch.cat([prefix.last[:, None], written], 1)[:, :-1]  # (B, N)
        ids = torch.cat([prefix.past_ids, prefix.ids[:, :n], read], 1)
        held, new = (prefix.past_ids != PAD).sum(1, keepdim=True), prefix.inside.sum(1, keepdim=True)
        p = torch.arange(ids.shape[1], device=ids.device)
        order = torch.where(p < held, p, torch.where(p < held + new, p - held + C, p - held - new + C + n))
        order = order.clamp(max=ids.shape[1] - 1)  # (B, C + n + N)
        real = p < held + new + steps[:, None]
        slots = CacheSlots(order, real, ~ended)
        caches = {PRESENT + IDS: torch.where(real, ids.gather(1, order), PAD)}
        rest = state[1 + len(self.features) :]
        for number, (encoder, cache) in enumerate(zip(self.encoder, prefix.caches, strict=True)):
            size = len(cache.memory)
            caches[f"{PRESENT}{number}"] = encoder.export_cache(cache, rest[:size], slots)
            rest = rest[size:]
        return caches

    def _import_cache(self, encoder: Any, cache: Tensor) -> State:
        """The cache as the memory of an encoder, which may ask for features, such as one that gives initial states."""
        names: dict[str, Tensor] = {**self.names, "cache": cache}
        memory: State = encoder.import_cache(**{n: names[n] for n in _requested(encoder.import_cache, names)})
        return memory

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
    """The cache of these encoders: the token ids, and what each encoder has computed of them."""
    tensors = [
        CacheEntry(f"{PAST}{n}", f"{PRESENT}{n}", tuple(stage.cache_shape), member(stage, "cache_per_token"))
        for n, stage in enumerate(encoder)
    ]
    return (CacheEntry(PAST + IDS, PRESENT + IDS), *tensors)


def _requested(method: Callable[..., Any], available: Collection[str]) -> Iterator[str]:
    """The names that a method gets: all its parameters but those with a default that are not available."""
    for name, parameter in inspect.signature(method).parameters.items():
        if name in available or parameter.default is parameter.empty:
            yield name
