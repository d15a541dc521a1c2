"""BART, mBART and Marian checkpoints against `generate` of `transformers` with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from factory import QUIET, seqpipe, write_jsonl
from onnx import numpy_helper
from pretrained import bart, marian, mbart, rewrite

from seqpipe.commands.trial_export import check_export
from seqpipe.config.loader import load
from seqpipe.config.yaml_text import dump
from seqpipe.errors import SeqpipeError
from seqpipe.export.graph import to_onnx
from seqpipe.export.manifest import bundle_files, bundle_manifest
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
from seqpipe.nn import bart as family
from seqpipe.nn import encoder_decoder as layers
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.runtime.model import Model
from seqpipe.training.datasets import collate, examples, read
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.predictor import option_table

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:8000]
WRITTEN = 20  # tokens at most, the end included
MAKERS: dict[str, Callable[[Path], Path]] = {
    "bart": lambda folder: bart(folder, [" ".join(WORDS)]),
    "mbart": lambda folder: mbart(folder, [" ".join(WORDS)]),
    "mbart-50": lambda folder: mbart(folder, [" ".join(WORDS)], version="50"),
    "marian": lambda folder: marian(folder, [" ".join(WORDS)], [backwards(" ".join(WORDS))]),
    "marian-apart": lambda folder: marian(folder, [" ".join(WORDS)], [backwards(" ".join(WORDS))], apart=True),
}


def backwards(text: str) -> str:
    """The text with each word spelt from its end: the second language."""
    return " ".join(word[::-1] for word in text.split())


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(WORDS[31 * i : 31 * i + int(random.integers(1, 16))]) for i in range(count)]


def yaml(folder: Path, checkpoint: Path, **changes: Any) -> Path:
    rows = [{"text": text, "target": backwards(text)} for text in texts(24)]
    write_jsonl(folder / "train.jsonl", rows)
    stage = {"checkpoint": str(checkpoint)}
    encoder, head = ({"use": "pretrained-seq2seq", **stage, **changes.pop(kind, {})} for kind in ("encoder", "head"))
    target = {"use": "pretrained", "side": "target", **stage} if checkpoint.name.startswith("marian") else "same"
    content: dict[str, Any] = {
        "name": "seq2seq",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "train.jsonl", "test": "train.jsonl"},
        "tokenizer": {"use": "pretrained", **stage},
        "encoder": encoder,
        "head": {"target_tokenizer": target, **head},
        "train": {"epochs": 1, "batch_size": 6, "threads": 1, "optimizer": {"use": "adamw", "lr": 0.001}},
    }
    path = folder / "seq2seq.yaml"
    path.write_text(dump(content | changes), encoding="utf-8")
    return path


def built(folder: Path, checkpoint: Path, **changes: Any) -> Pipeline:
    config = load(yaml(folder, checkpoint, **changes))
    return Pipeline(config, fit_artifacts(config, read(config.data.reader, config.data.train, 20))).eval()


class Peer:
    """A checkpoint as `transformers` runs it, and as we do, as a graph.

    Theirs may write what ours never does, padding, the beginning and rows that no token has; they are made unlikely.
    """

    def __init__(self, folder: Path, name: str):
        self.folder = MAKERS[name](folder / name)
        self.model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(self.folder).eval()
        self.pipeline = built(folder, self.folder)
        self.config = load(folder / "seq2seq.yaml")
        options = option_table(*self.config.head)
        self.graph = to_onnx(self.pipeline, options, self.config.export.opset)
        self.options = bundle_manifest(self.pipeline, self.config, options, {})
        files = bundle_files(self.pipeline, self.graph)
        self.exported = Model(bundle.Bundle(self.config.file, self.options, files), "cpu", 1)
        self.ids = pretrained_tokenizer(self.folder, "target").ids
        generation = self.model.generation_config
        never = torch.full((self.model.lm_head.out_features,), -1e4)
        never[[i for i in self.ids if i >= 0]] = 0.0
        never[[i for i in (generation.bos_token_id, generation.pad_token_id) if i is not None]] = -1e4
        self.model.lm_head.register_forward_hook(lambda module, given, made: made + never)
        self.never = never

    def ours(self, given: Sequence[str], **options: Any) -> list[list[int]]:
        """The tokens of the checkpoint that the graph writes, the end not included."""
        rows = [{"text": text, "target": "a"} for text in given]
        written: list[list[int]] = []
        for first in range(0, len(rows), 25):
            batch = collate(
                self.pipeline.artifacts,
                examples(self.config, self.pipeline.artifacts, rows[first : first + 25]),
            )
            feeds = {name: batch[name].numpy() for name in ("ids", "mask")}
            values = {"max_length": WRITTEN, **options}
            made = self.exported.run(feeds | option_arrays(self.options["options"], values))["tokens"]
            written += [[self.ids[i] for i in row if i not in (0, 3)] for row in made[:, 0].tolist()]
        return written

    def theirs(self, given: Sequence[str], **options: Any) -> list[list[int]]:
        generation, made = self.model.generation_config, []
        begun = 1 if generation.forced_bos_token_id is None else 2
        special = {generation.eos_token_id, generation.pad_token_id}
        for ids in self.source_ids(given):
            settings = {"max_length": WRITTEN + begun, "do_sample": False, **options}
            tokens = self.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, begun:].tolist()
            made.append([token for token in tokens if token not in special])
        return made

    def source_ids(self, given: Sequence[str]) -> list[torch.Tensor]:
        if (self.folder / "tokenizer.json").exists():
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
            return [tokenizer(text, return_tensors="pt")["input_ids"] for text in given]
        tokenizer, ids, _ = pretrained_tokenizer(self.folder)  # Marian's own needs `sentencepiece`
        encoded = [[ids[i] for i in tokenizer.encode(text).ids] for text in given]
        return [torch.tensor([[*tokens, self.model.config.eos_token_id]]) for tokens in encoded]


BEAMS = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"}


@pytest.fixture(scope="module", params=[*MAKERS])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return Peer(tmp_path_factory.mktemp("seq2seq"), request.param)


def test_greedy_tokens_of_a_ragged_batch_are_those_of_generate(peer: Peer) -> None:
    given = texts(40)
    expected = peer.theirs(given)
    assert peer.ours(given) == expected
    assert len({token for tokens in expected for token in tokens}) >= 30
    assert len({*map(tuple, expected)}) > 20


def test_beam_search_finds_what_generate_finds(peer: Peer) -> None:
    given = texts(20)
    expected = peer.theirs(given, **BEAMS)
    assert peer.ours(given, beams=4) == expected
    assert expected != peer.theirs(given)
