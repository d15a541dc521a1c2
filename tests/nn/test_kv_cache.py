"""A key-value cache of an encoder that inherits nothing of seqpipe, in PyTorch and in onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cached_attention import CachedAttention, ForgetfulAttention, OneSlotAttention
from tiny_pipelines import plugins
from torch.nn import Module

from seqpipe import load as open_bundle
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.console import Console
from seqpipe.errors import ParityError
from seqpipe.export.exporter import export
from seqpipe.runtime.model import Model
from seqpipe.testing import check_encoder
from seqpipe.training.datasets import read
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline


def pipeline(folder: Path, encoder: type[Module]) -> tuple[Any, Pipeline]:
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
    return config, Pipeline(config, fit_artifacts(config, read(config.data.reader, config.data.train, 200))).eval()


def bundled(folder: Path, encoder: type[Module] = CachedAttention) -> Model:
    """Exports an untrained model as a run does, with the comparison that a run makes."""
    config, model = pipeline(folder, encoder)
    records = [{"text": text, "record_continues": False} for text in ("a bad cat", "on a good", "mat")]
    return export(model, config, records, folder / "bundle", Console(-1))


def test_an_encoder_that_inherits_nothing_passes_the_kit() -> None:
    assert not check_encoder(CachedAttention).failed


def test_a_bundle_continues_its_own_texts_with_the_cache(writer_bundle: Path) -> None:
    model = open_bundle(writer_bundle, "cpu")
    whole = model("a good cat", max_length=13, min_length=12)["generated_text"]
    assert len(whole) > len("a good cat")
    assert "a good cat" + "".join(model.stream("a good cat", max_length=13, min_length=12)) == whole
    feeds = model.predictor.featurizer.collate(list(model.predictor.featurizer.docs([{"text": "a good cat"}])))
    cached = model.graph.run_with_cache(feeds | {"max_length": np.zeros(3, np.int64), "min_length": np.array(3)})
    assert cached["present.0"].shape == (1, feeds["ids"].shape[1] + 2, 2, 12)  # the last token has no slot yet


def test_an_encoder_that_drops_its_cache_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="a text in chunks"):
        bundled(tmp_path, ForgetfulAttention)


def test_the_kit_refuses_the_wrong_number_of_slots() -> None:
    with pytest.raises(AssertionError, match="cache_per_token"):
        check_encoder(OneSlotAttention)
