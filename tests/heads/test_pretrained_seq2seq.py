"""T5 checkpoints against `transformers` with the same weights: what they write, and what they learn by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from factory import QUIET, seqpipe, write_jsonl
from onnx import numpy_helper
from pretrained import checkpoint, decoder, t5
from torch import Tensor

from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import SeqpipeError
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import to_onnx
from seqpipe.nn import encoder_decoder as layers
from seqpipe.nn import pretrained_seq2seq as family
from seqpipe.nn.loops import State
from seqpipe.pipeline.check import check_export
from seqpipe.runtime import bundle
from seqpipe.runtime.model import Model
from seqpipe.training.datasets import collate, examples, read
from seqpipe.training.evaluation import option_table, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.optim import make_optimizer
from seqpipe.training.pipeline import Pipeline

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:6000]
WRITTEN = 20
VERSIONS = ("1.0", "1.1")


def texts(count: int) -> list[str]:
    """Texts of 1 to 30 words, so that distances are near and far."""
    random = np.random.default_rng(0)
    return [" ".join(WORDS[25 * i : 25 * i + int(random.integers(1, 31))]) for i in range(count)]


def yaml(folder: Path, stage: dict[str, Any], **changes: Any) -> Path:
    rows = [{"text": text, "target": " ".join(text.split()[::-1])} for text in texts(24)]
    write_jsonl(folder / "train.jsonl", rows)
    content: dict[str, Any] = {
        "name": "t5",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "train.jsonl", "test": "train.jsonl"},
        "tokenizer": {"use": "pretrained", **stage},
        "encoder": {"use": "pretrained-seq2seq", **stage},
        "head": {"use": "pretrained-seq2seq", "target_tokenizer": "same", **stage},
        "train": {"epochs": 1, "batch_size": 6, "threads": 1, "optimizer": {"use": "adamw", "lr": 0.001}},
    }
    path = folder / "t5.yaml"
    path.write_text(dump(content | changes), encoding="utf-8")
    return path


class Peer:
    """A checkpoint as `transformers` runs it, and as we do, in PyTorch and as a bundle.

    Theirs may write what ours never does, [PAD] and rows that no token has; they are made as unlikely there.
    """

    def __init__(self, folder: Path, version: str):
        self.folder = t5(folder / "checkpoint", version, [" ".join(WORDS)])
        self.model: Any = transformers.T5ForConditionalGeneration.from_pretrained(self.folder).eval()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(self.folder)
        never = torch.zeros(self.model.config.vocab_size)
        never[[0, *range(len(self.tokenizer), len(never))]] = -1e4
        self.model.lm_head.register_forward_hook(lambda module, given, made: made + never)
        self.config = load(yaml(folder, {"checkpoint": str(self.folder)}))
        self.pipeline = Pipeline(
            self.config, fit_artifacts(self.config, read(self.config.data.reader, self.config.data.train, 20))
        ).eval()
        options = option_table(*self.config.head)
        self.graph = to_onnx(self.pipeline, options, self.config.export.opset)
        manifest = bundle_manifest(self.pipeline, self.config, options, {})
        files = bundle_files(self.pipeline, self.graph)
        self.exported = Model(bundle.BundleContent(self.config.file, manifest, files), "cpu", 1)

    def ours(self, given: Sequence[str], **options: Any) -> list[str]:
        return [answer["generated_text"] for answer in self.exported(given, max_length=WRITTEN, **options)]

    def in_pytorch(self, given: Sequence[str], **options: Any) -> list[str]:
        stream = predictor(self.pipeline, self.config).stream([{"text": text} for text in given], **options)
        return [answer["generated_text"] for answer in stream]

    def theirs(self, given: Sequence[str], **options: Any) -> tuple[list[str], set[int]]:
        made: list[str] = []
        seen: set[int] = set()
        for text in given:
            ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
            settings = {"max_new_tokens": WRITTEN, "do_sample": False, **options}
            tokens = self.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, 1:].tolist()
            tokens = tokens[: tokens.index(1)] if 1 in tokens else tokens
            seen |= {*tokens}
            made.append(self.tokenizer.decode([token for token in tokens if token > 2]))
        return made, seen


@pytest.fixture(scope="module", params=VERSIONS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return Peer(tmp_path_factory.mktemp("t5"), request.param)


def test_greedy_texts_of_a_ragged_batch_are_those_of_transformers(peer: Peer) -> None:
    given = texts(100)
    expected, seen = peer.theirs(given)
    assert peer.ours(given) == expected
    assert len(seen) >= 30
    assert len({*expected}) > 50


def test_beam_search_finds_what_that_of_transformers_finds(peer: Peer) -> None:
    given = texts(30)
    expected, _ = peer.theirs(given, num_beams=4, length_penalty=0.0, early_stopping="never")
    assert peer.ours(given, beams=4) == expected
    assert expected != peer.theirs(given)[0]


@pytest.mark.parametrize("fault", ["distances", "scale", "end", "rows"])
def test_planted_faults_are_seen(peer: Peer, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, head = texts(12), peer.pipeline.heads[0]
    expected, _ = peer.theirs(given)
    assert peer.in_pytorch(given, max_length=WRITTEN) == expected
    if fault == "distances":
        monkeypatch.setattr(
            family.Distances, "forward", lambda self, distance: self.weight.new_zeros(4, *distance.shape)
        )
    elif fault == "scale":
        right = layers.Attention.forward
        monkeypatch.setattr(layers.Attention, "forward", lambda self, x, *rest: right(self, x * 8**-0.5, *rest))
    elif fault == "end":
        read = type(head).read
        blind = lambda self, sources: read(self, [sources[0] | {"around": torch.zeros_like(sources[0]["around"])}])  # noqa: E731
        monkeypatch.setattr(type(head), "read", blind)
    else:
        step = layers.Stack.step

        def forgets(self: Any, x: Tensor, state: State, *rest: Any) -> Any:
            after, longer, weights = step(self, x, state, *rest)
            return after, state if state[0].shape[2] else longer, weights

        monkeypatch.setattr(layers.Stack, "step", forgets)
    assert peer.in_pytorch(given, max_length=WRITTEN) != expected


def test_the_loss_is_that_of_transformers(peer: Peer) -> None:
    rows = [{"text": text, "target": " ".join(text.split()[::-1])} for text in texts(9)]
    batch = collate(peer.pipeline.artifacts, examples(peer.config, peer.pipeline.artifacts, rows))
    given = peer.tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    labels = peer.tokenizer([row["target"] for row in rows], padding=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = peer.model(**given, labels=torch.where(labels > 0, labels, -100)).loss
        assert torch.allclose(peer.pipeline.loss(batch), expected, atol=1e-4)
    assert batch["target_mask"].sum() == (labels > 0).sum()


def test_the_weights_stand_in_the_graph_once(peer: Peer) -> None:
    words = peer.pipeline.encoder[0].words.weight.numel()
    weights = sum(p.numel() for p in peer.pipeline.parameters())
    theirs = sum(p.numel() for p in peer.model.parameters())
    spare = (peer.model.config.vocab_size - len(peer.tokenizer) - 1) * words // len(peer.pipeline.artifacts.vocabulary)
    assert weights == theirs - spare * (1 if peer.pipeline.heads[0].output is None else 2)
    arrays = [numpy_helper.to_array(one) for one in onnx.load_from_string(peer.graph).graph.initializer]
    assert sum(array.size for array in arrays if array.dtype == np.float32) < weights + 500


def test_its_sentinels_stand_for_themselves_in_a_text(peer: Peer) -> None:
    text = "Rosa <extra_id_0> owl<extra_id_1> . </s> [EOS]"
    (doc,) = peer.pipeline.artifacts.featurizer.docs([{"text": text}])
    tokens = [peer.pipeline.artifacts.vocabulary[i] for i in doc.ids]
    assert tokens[:3] == peer.tokenizer.tokenize("Rosa <extra_id_0>") + peer.tokenizer.tokenize("owl")[:1]
    assert tokens.count("<extra_id_1>") == 1
    assert not {"[PAD]", "[BOS]", "[EOS]"} & {*tokens}


def test_search_options_work_in_the_graph_as_in_pytorch(peer: Peer) -> None:
    given = texts(8)
    for chosen in (
        {"beams": 3, "length_penalty": 1.0, "min_length": 5},
        {"no_repeat_ngram_size": 1},
        {"prefix": "the"},
    ):
        assert peer.ours(given, **chosen) == peer.in_pytorch(given, max_length=WRITTEN, **chosen)
    alternatives = peer.exported(given, max_length=WRITTEN, beams=4, n_best=3)
    assert all(len(one) == 3 for one in alternatives)


def test_lower_layers_of_its_encoder_learn_slower(peer: Peer, tmp_path: Path) -> None:
    stage = {"checkpoint": str(peer.folder)}
    encoder = {"use": "pretrained-seq2seq", **stage, "layer_decay": 0.5, "lr": 0.01}
    config = load(yaml(tmp_path, stage, encoder=encoder))
    pipeline = Pipeline(config, fit_artifacts(config, read(config.data.reader, config.data.train, 20)))
    names = {id(parameter): name for name, parameter in pipeline.named_parameters()}
    groups = make_optimizer(pipeline, config).param_groups
    rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    assert rates["encoder.0.stack.layers.1.attentions.0.query.weight"] == 0.01
    assert rates["encoder.0.stack.layers.0.attentions.0.query.weight"] == 0.005
    assert rates["encoder.0.words.weight"] == 0.0025


def test_it_goes_from_a_checkpoint_to_a_bundle_and_starts_another_run(tmp_path: Path) -> None:
    stage = {"checkpoint": str(t5(tmp_path / "t5", "1.0", [" ".join(WORDS)]))}
    path = yaml(tmp_path, stage)
    done = seqpipe("run", path, "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "t5" / "bundle"
    assert seqpipe("verify", folder, "--device", "cpu").code == 0
    answered = seqpipe("predict", folder, "--option", "max_length=5", stdin=b"Rosa the owl\n\nA fox .\n")
    assert answered.code == 0, answered.err
    assert len(answered.out.splitlines()) == 3
    begun = {kind: {"use": "pretrained-seq2seq", "init": "runs/t5", **stage} for kind in ("encoder", "head")}
    begun["head"]["target_tokenizer"] = "same"
    again = yaml(tmp_path, stage, name="more", **begun)
    done = seqpipe("train", again, "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err
    assert "head: starts from runs/t5" in done.err + done.out


class TestBadInput:
    @pytest.fixture(scope="class")
    @classmethod
    def folders(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        place, some = tmp_path_factory.mktemp("checkpoints"), [" ".join(WORDS[:400])]
        made = {"gpt2": decoder(place / "gpt2", "gpt2", some), "bert": checkpoint(place / "bert", "bert", some)}
        return made | {name: t5(place / name, "1.0", some, d_model=width) for name, width in (("t5", 32), ("wide", 16))}

    @pytest.mark.parametrize(
        ("of", "encoder", "head", "told"),
        [
            (
                "t5",
                "pretrained",
                {"use": "vector", "target": "target"},
                "t5 has an encoder and a decoder; .* pretrained-seq2seq, an encoder and",
            ),
            (
                "t5",
                "pretrained-decoder",
                {"use": "lm"},
                "t5 is not supported by pretrained-decoder .* head, T5",
            ),
            (
                "gpt2",
                "pretrained-seq2seq",
                {"use": "vector", "target": "target"},
                "gpt2 is not supported by pretrained-seq2seq",
            ),
            (
                "bert",
                "pretrained-seq2seq",
                {"use": "vector", "target": "target"},
                "bert is not supported by pretrained-seq2seq .*; the encoder pretrained takes BERT",
            ),
        ],
    )
    def test_a_checkpoint_of_another_kind_is_told_where_it_fits(
        self, folders: dict[str, Path], tmp_path: Path, of: str, encoder: str, head: dict[str, Any], told: str
    ) -> None:
        stage = {"checkpoint": str(folders[of])}
        path = yaml(tmp_path, stage, encoder={"use": encoder, **stage}, head=head)
        with pytest.raises(SeqpipeError, match=told):
            check_export(load(path), QUIET)

    @pytest.mark.parametrize(
        ("of", "head", "told"),
        [
            ("t5", {"target_tokenizer": "chars"}, "tokens are not those of .* of the head target_tokenizer: same"),
            ("wide", {}, r"reads 16 numbers a token, not 32; put the encoder \{use: pretrained-seq2seq"),
            ("gpt2", {}, "the tokens are not those of"),
        ],
    )
    def test_a_head_that_does_not_fit_its_encoder(
        self, folders: dict[str, Path], tmp_path: Path, of: str, head: dict[str, Any], told: str
    ) -> None:
        stage = {"checkpoint": str(folders["t5"])}
        own = {"use": "pretrained-seq2seq", "checkpoint": str(folders[of]), "target_tokenizer": "same", **head}
        with pytest.raises(SeqpipeError, match=told):
            check_export(load(yaml(tmp_path, stage, head=own)), QUIET)

    def test_a_head_without_the_encoder_of_its_checkpoint(self, folders: dict[str, Path], tmp_path: Path) -> None:
        stage, gru = {"checkpoint": str(folders["t5"])}, {"use": "gru", "hidden": 16}
        path = yaml(tmp_path, stage, embedding={"use": "lookup", "dim": 8}, encoder=gru)
        with pytest.raises(SeqpipeError, match="returns no `table`; put the encoder"):
            check_export(load(path), QUIET)
