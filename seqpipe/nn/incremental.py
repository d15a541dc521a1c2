"""Incremental decoding: run the stages before a language-model head one token at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from seqpipe.answers.generation import PAST, PRESENT
from seqpipe.nn.kv_cache import Attending, CacheSlots, PrefixCache, prefix_cache
from seqpipe.nn.loops import State
from seqpipe.nn.search import BOS, PAD, stretched
from seqpipe.runtime.cache_entries import CacheEntry

IDS = "ids"  # of a cache, the tokens themselves
TOLD = ("table", "table_bias")  # what embeddings tell a head beside x


class Prefix(NamedTuple):
    """Texts that were read but for their last token: what is known of them, and what stands there."""

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
        encoder: As `seqpipe.nn.kv_cache.Causal`, one on top of the other, at least one.
        names: The features, and the cache of an earlier call, `past.ids` (B, C) and `past.0` (B, C', M, W) …
        adds_bos: Whether [BOS] stands before a text.
    """

    def __init__(
        self, embedding: Sequence[nn.Module], encoder: Sequence[Any], names: Mapping[str, Any], adds_bos: bool
    ):
        self.encoder, self.names, self.adds_bos = encoder, names, adds_bos
        self.embedding: list[tuple[Any, list[str]]] = [
            (one, [*_asked(one.forward, {*names, "ids", "mask", "places"})]) for one in embedding
        ] or [(encoder[0].embed, ["ids"])]
        asked = dict.fromkeys(name for _, wanted in self.embedding for name in wanted)
        self.features = [name for name in asked if name in names and name not in ("ids", "mask")]
        self.told: dict[str, Tensor] = {}  # what the embeddings tell beside x, such as `table`

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
        x, self.told = self._embedded(ids[:, :-1], inside, old.sum(1, keepdim=True), features)
        caches = []
        for number, encoder in enumerate(self.encoder):
            cache = self.names.get(f"{PAST}{number}")
            if cache is None:
                cache = x.new_zeros(1, 0, *encoder.cache_shape)
            memory = encoder.import_cache(stretched(cache, 0, B))
            x, memory = encoder.prefill(x, inside, prefix_cache(memory, old))
            caches.append(prefix_cache(tuple(part.clone() for part in memory), torch.cat([old, inside], 1)))
        return Prefix(x, ids, inside, ids.gather(1, count - 1)[:, 0], tuple(caches), held)

    def repeated(self, prefix: Prefix, times: int) -> Prefix:
        """The same texts, each so many times, to be continued in as many ways."""
        return prefix._replace(caches=tuple(one.repeated(times) for one in prefix.caches))

    def start(self, prefix: Prefix, max_length: int) -> State:
        """The state, of B rows, before the first of at most so many steps."""
        features = [self.names[name] for name in self.features]
        states = [encoder.init_cache(one, max_length) for encoder, one in zip(self.encoder, prefix.caches, strict=True)]
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
        for encoder, one in zip(self.encoder, prefix.caches, strict=True):
            size = len(one.memory)
            x, made = encoder.step(x, t, one, tuple(rest[:size]))
            after, rest = [*after, *made], rest[size:]
        return x, (t + 1, *features.values(), *after)

    def export_cache(
        self, prefix: Prefix, written: Tensor, steps: Tensor, ended: Tensor, state: State
    ) -> dict[str, Tensor]:
        """The cache `present.…` that a later call takes as `past.…`: of B rows that were given so many steps (B,).

        `written` (B, N) holds the tokens written; at the first step the last token read was given, then these. `ended`
        (B,) says which texts have ended.
        """
        C, n = prefix.past_ids.shape[1], prefix.inside.shape[1]
        given = torch.cat([prefix.last[:, None], written], 1)[:, :-1]  # (B, N)
        ids = torch.cat([prefix.past_ids, prefix.ids[:, :n], given], 1)
        held, new = (prefix.past_ids != PAD).sum(1, keepdim=True), prefix.inside.sum(1, keepdim=True)
        p = torch.arange(ids.shape[1], device=ids.device)
        order = torch.where(p < held, p, torch.where(p < held + new, p - held + C, p - held - new + C + n))
        order = order.clamp(max=ids.shape[1] - 1)  # (B, C + n + N)
        real = p < held + new + steps[:, None]
        slots = CacheSlots(order, real, ~ended)
        found = {PRESENT + IDS: torch.where(real, ids.gather(1, order), PAD)}
        rest = state[1 + len(self.features) :]
        for number, (encoder, one) in enumerate(zip(self.encoder, prefix.caches, strict=True)):
            size = len(one.memory)
            found[f"{PRESENT}{number}"] = encoder.export_cache(one, rest[:size], slots)
            rest = rest[size:]
        return found

    def _embedded(
        self, ids: Tensor, mask: Tensor, places: Tensor, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        names = {**features, "ids": ids, "mask": mask, "places": places + torch.arange(ids.shape[1], device=ids.device)}
        found: list[Tensor] = []
        told: dict[str, Tensor] = {}
        for one, wanted in self.embedding:
            made = one(**{name: names[name] for name in wanted})
            if isinstance(made, dict):
                told |= {name: tensor for name, tensor in made.items() if name in TOLD}
                made = made["x"]
            found.append(made)
        return torch.cat(found, 2) if len(found) > 1 else found[0], told


def cache_entries(encoder: Sequence[Any]) -> tuple[CacheEntry, ...]:
    """The cache of these encoders: the token ids, and what each encoder has computed of them."""
    tensors = [
        CacheEntry(f"{PAST}{n}", f"{PRESENT}{n}", tuple(stage.cache_shape), isinstance(stage, Attending))
        for n, stage in enumerate(encoder)
    ]
    return (CacheEntry(PAST + IDS, PRESENT + IDS), *tensors)


def _asked(method: Callable[..., Any], given: Collection[str]) -> Iterator[str]:
    """The names that a method gets: what it asks for, but for what it can do without and nobody gives."""
    for name, parameter in inspect.signature(method).parameters.items():
        if name in given or parameter.default is parameter.empty:
            yield name
