"""A key-value cache of an encoder that inherits nothing of seqpipe, in PyTorch and in onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cached_attention import CachedAttention, ForgetfulAttention, OneSlotAttention
from tiny_pipelines import plugins, untrained, write_language_model
from torch.nn import Module

from seqpipe import load as open_bundle
from seqpipe.api.model import Model
from seqpipe.config.loader import load_config
from seqpipe.console import Console
from seqpipe.errors import ParityError
from seqpipe.export.exporter import export_bundle
from seqpipe.testing import check_encoder
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.network import Network


def network(folder: Path, encoder: type[Module]) -> tuple[Any, Network]:
    text = "a bad cat sat on a good mat and a good cat sat on a bad mat " * 40
    path = write_language_model(folder, text, encoder=["attention", "attention"])
    config = load_config(path, plugins=plugins(attention=("encoder", encoder)))
    return config, untrained(config, 200)


def bundled(folder: Path, encoder: type[Module] = CachedAttention) -> Model:
    """Exports an untrained model as a run does, with the comparison that a run makes."""
    config, model = network(folder, encoder)
    records = [{"text": text, "record_continues": False} for text in ("a bad cat", "on a good", "mat")]
    return export_bundle(TrainedPipeline(model, config), records, folder / "bundle", Console(-1))


def test_an_encoder_that_inherits_nothing_passes_the_kit() -> None:
    assert not check_encoder(CachedAttention).failed


def test_a_bundle_continues_its_own_texts_with_the_cache(writer_bundle: Path) -> None:
    model = open_bundle(writer_bundle, "cpu")
    whole = model("a good cat", max_length=13, min_length=12)["generated_text"]
    assert len(whole) > len("a good cat")
    assert "a good cat" + "".join(model.stream("a good cat", max_length=13, min_length=12)) == whole
    feeds = model.predictor.featurizer.collate(list(model.predictor.featurizer.docs([{"text": "a good cat"}])))
    cached = model.graph.run_with_cache(feeds | {"max_length": np.zeros(3, np.int64), "min_length": np.array(3)})
    assert cached["present.0"].shape == (1, feeds["ids"].shape[1] + 2, 2, 16)  # the last token has no slot yet


def test_an_encoder_that_drops_its_cache_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="a text in chunks"):
        bundled(tmp_path, ForgetfulAttention)


def test_the_kit_refuses_the_wrong_number_of_slots() -> None:
    with pytest.raises(AssertionError, match="cache_per_token"):
        check_encoder(OneSlotAttention)
