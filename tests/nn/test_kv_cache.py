"""A key-value cache of an encoder that inherits nothing of seqpipe, in PyTorch and in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factory import plugins
from torch import Tensor, nn

from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.console import Console
from seqpipe.errors import ParityError
from seqpipe.export.exporter import export
from seqpipe.nn.kv_cache import CacheSlots, PrefixCache
from seqpipe.runtime.model import Model
from seqpipe.testing import check_encoder
from seqpipe.training.datasets import sample
from seqpipe.training.fit import learn
from seqpipe.training.pipeline import Pipeline

State = tuple[Tensor, ...]


class Attention(nn.Module):
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
        empty = self.import_cache(x.new_zeros(x.shape[0], 0, *self.cache_shape))
        none = mask[:, :0]
        x, _ = self.prefill(torch.where(mask[..., None], x, 0.0), mask, PrefixCache(empty, none, none.sum(1)))
        return torch.where(mask[..., None], x, 0.0)

    def import_cache(self, cache: Tensor) -> State:  # (B, C, 2, D) -> (B, C, D) twice
        return cache[:, :, 0].contiguous(), cache[:, :, 1].contiguous()

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        rows = torch.stack([torch.cat(parts, 1) for parts in zip(prefix.memory, state, strict=True)], 2)  # (B, S, 2, D)
        order = slots.order[..., None, None].expand(-1, -1, *rows.shape[2:])
        return torch.where(slots.real[..., None, None], rows.gather(1, order), 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        query, key, value = self.qkv(x).chunk(3, 2)
        t = torch.arange(x.shape[1], device=x.device)
        seen = torch.cat([prefix.real[:, None] & (t[:, None] >= 0), (t <= t[:, None]) & mask[:, None]], 2)
        keys, values = torch.cat([prefix.memory[0], key], 1), torch.cat([prefix.memory[1], value], 1)
        return x + self.attended(query, keys, values, seen), (keys, values)

    def init_cache(self, prefix: PrefixCache, max_length: int) -> State:
        return tuple(part.new_zeros(part.shape[0], max_length, self.dim) for part in prefix.memory)

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        query, key, value = self.qkv(x).chunk(3, 1)
        times = torch.arange(state[0].shape[1], device=x.device)
        here = (times == t[:, None])[..., None]  # (B, N, 1)
        keys, values = torch.where(here, key[:, None], state[0]), torch.where(here, value[:, None], state[1])
        seen = torch.cat([prefix.real, times <= t[:, None]], 1)[:, None]
        everything = (torch.cat(parts, 1) for parts in zip(prefix.memory, (keys, values), strict=True))
        return x + self.attended(query[:, None], *everything, seen)[:, 0], (keys, values)

    def attended(self, query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        scores = query @ keys.transpose(1, 2) * self.dim**-0.5
        return torch.where(seen, scores, -1e9).softmax(2) @ values


class OneSlot(Attention):
    cache_per_token = False


class Forgetful(Attention):
    """It drops the cache of an earlier run."""

    def import_cache(self, cache: Tensor) -> State:
        return tuple(part * 0 for part in super().import_cache(cache))


def pipeline(folder: Path, encoder: type[nn.Module]) -> tuple[Any, Pipeline]:
    text = folder / "text.txt"
    text.write_text("a bad cat sat on a good mat and a good cat sat on a bad mat " * 40, encoding="utf-8")
    content = {
        "name": "lm",
        "data": {"reader": "text", "train": str(text), "dev": str(text)},
        "tokenizer": "chars",
        "embedding": {"use": "lookup", "dim": 12},
        "encoder": ["attention", "attention"],
        "head": {"use": "lm", "context": 24},
        "train": {"epochs": 1, "epoch_steps": 3, "batch_size": 4, "threads": 1},
    }
    path = folder / "lm.yaml"
    path.write_text(dump(content), encoding="utf-8")
    config = load(path, plugins=plugins(attention=("encoder", encoder)))
    torch.manual_seed(1)
    return config, Pipeline(config, learn(config, sample(config, 200))).eval()


def bundled(folder: Path, encoder: type[nn.Module] = Attention) -> Model:
    """Exports an untrained model as a run does, with the comparison that a run makes."""
    config, model = pipeline(folder, encoder)
    records = [{"text": text, "record_continues": False} for text in ("a bad cat", "on a good", "mat")]
    return export(model, config, records, folder / "bundle", Console(-1))


def test_an_encoder_that_inherits_nothing_passes_the_kit() -> None:
    assert not check_encoder(Attention).failed


def test_a_bundle_continues_its_own_texts_with_the_cache(tmp_path: Path) -> None:
    model = bundled(tmp_path)
    whole = model("a good cat", max_length=13, min_length=12)["generated_text"]
    assert len(whole) > len("a good cat")
    assert "a good cat" + "".join(model.stream("a good cat", max_length=13, min_length=12)) == whole
    feeds = model.predictor.featurizer.collate(list(model.predictor.featurizer.docs([{"text": "a good cat"}])))
    cached = model.run_with_cache(feeds | {"max_length": np.zeros(3, np.int64), "min_length": np.array(3)})
    assert cached["present.0"].shape == (1, feeds["ids"].shape[1] + 2, 2, 12)  # the last token has no slot yet


def test_an_encoder_that_drops_its_cache_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="a text in pieces"):
        bundled(tmp_path, Forgetful)


def test_the_kit_refuses_the_wrong_number_of_slots() -> None:
    with pytest.raises(AssertionError, match="cache_per_token"):
        check_encoder(OneSlot)
