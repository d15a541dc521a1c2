"""BART, mBART and Marian checkpoints against `generate` of `transformers` with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
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
from torch.nn.utils.rnn import pad_sequence

from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import SeqpipeError
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import to_onnx
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
from seqpipe.nn import encoder_decoder as layers
from seqpipe.nn import pretrained_seq2seq as family
from seqpipe.nn.layers import EOS_ID, PAD_ID
from seqpipe.pipeline.check import check_export
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.runtime.model import Model
from seqpipe.training.datasets import collate, examples, read
from seqpipe.training.evaluation import option_table
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline
from seqpipe_plugins.heads import pretrained_seq2seq as head_module

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:8000]
WRITTEN = 20  # tokens at most, the end included
MAKERS: dict[str, Callable[[Path], Path]] = {
    "bart": lambda folder: bart(folder, [" ".join(WORDS)], seed=4),
    "mbart": lambda folder: mbart(folder, [" ".join(WORDS)]),
    "mbart-50": lambda folder: mbart(folder, [" ".join(WORDS)], version="50"),
    "marian": lambda folder: marian(folder, [" ".join(WORDS)], [backwards(" ".join(WORDS))]),
    "marian-apart": lambda folder: marian(folder, [" ".join(WORDS)], [backwards(" ".join(WORDS))], apart=True, seed=4),
}

BEAMS = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"}


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
    """A checkpoint as `transformers` runs it, and as we do, in PyTorch and as a graph.

    Theirs may write what ours never does, padding, the beginning and rows that no token has; they are made unlikely.
    """

    def __init__(self, folder: Path, name: str):
        self.folder = MAKERS[name](folder / name)
        self.model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(self.folder).eval()
        self.pipeline = built(folder, self.folder)
        self.config = load(folder / "seq2seq.yaml")
        self.ids = pretrained_tokenizer(self.folder, "target").ids
        generation = self.model.generation_config
        never = torch.full((self.model.lm_head.out_features,), -1e4)
        never[[i for i in self.ids if i >= 0]] = 0.0
        never[[i for i in (generation.bos_token_id, generation.pad_token_id) if i is not None]] = -1e4
        self.model.lm_head.register_forward_hook(lambda module, given, made: made + never)
        self.begun = 1 if generation.forced_bos_token_id is None else 2  # tokens before a text

    @cached_property
    def graph(self) -> bytes:
        return to_onnx(self.pipeline, option_table(*self.config.head), self.config.export.opset)

    @cached_property
    def exported(self) -> Model:
        manifest = bundle_manifest(self.pipeline, self.config, option_table(*self.config.head), {})
        return Model(
            bundle.BundleContent(self.config.file, manifest, bundle_files(self.pipeline, self.graph)), "cpu", 1
        )

    def batches(self, given: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
        """Ragged batches of the texts, in their order."""
        for first in range(0, len(given), 25):
            rows = [{"text": text, "target": "a"} for text in given[first : first + 25]]
            batch = collate(self.pipeline.artifacts, examples(self.config, self.pipeline.artifacts, rows))
            yield {name: batch[name] for name in ("ids", "mask")}

    def ours(self, given: Sequence[str], **options: Any) -> list[list[int]]:
        """The tokens of the checkpoint that the graph writes, the end not included."""
        inputs = option_arrays(self.exported.manifest.options, {"max_length": WRITTEN, **options})
        feeds = ({name: array.numpy() for name, array in batch.items()} for batch in self.batches(given))
        return [tokens for feed in feeds for tokens in self._tokens(self.exported.run(feed | inputs)["tokens"])]

    def in_pytorch(self, given: Sequence[str], **options: Any) -> list[list[int]]:
        with torch.no_grad():
            made = [
                self.pipeline.decide(batch, {"max_length": WRITTEN, **options})["tokens"].numpy()
                for batch in self.batches(given)
            ]
        return [tokens for array in made for tokens in self._tokens(array)]

    def _tokens(self, made: np.ndarray) -> list[list[int]]:
        return [[self.ids[i] for i in row if i not in (PAD_ID, EOS_ID)] for row in made[:, 0].tolist()]

    def theirs(self, given: Sequence[str], **options: Any) -> list[list[int]]:
        generation, made, ids = self.model.generation_config, list[list[int]](), self.source_ids(given)
        special = {generation.eos_token_id, generation.pad_token_id}
        settings = {"max_length": WRITTEN + self.begun, "do_sample": False, **options}
        for first in range(0, len(ids), 50):
            rows = [row[0] for row in ids[first : first + 50]]
            batch = pad_sequence(rows, batch_first=True, padding_value=generation.pad_token_id)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            tokens = self.model.generate(batch, attention_mask=mask, **settings)[:, self.begun :].tolist()
            made += [[token for token in row if token not in special] for row in tokens]
        return made

    def source_ids(self, given: Sequence[str]) -> list[torch.Tensor]:
        if (self.folder / "tokenizer.json").exists():
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
            return [tokenizer(text, return_tensors="pt")["input_ids"] for text in given]
        tokenizer, ids, _ = pretrained_tokenizer(self.folder)  # Marian's own needs `sentencepiece`
        encoded = [[ids[i] for i in tokenizer.encode(text).ids] for text in given]
        return [torch.tensor([[*tokens, self.model.config.eos_token_id]]) for tokens in encoded]

    def log_p(self, text: str, written: Sequence[int]) -> list[float]:
        """The log-probability that theirs gives to each token and, but for a text of the greatest length, the end."""
        (source,) = self.source_ids([text])
        generation = self.model.generation_config
        start = [generation.decoder_start_token_id]
        start += [] if generation.forced_bos_token_id is None else [generation.forced_bos_token_id]
        tokens = [*written, *([generation.eos_token_id] if len(written) < WRITTEN - 1 else [])]
        with torch.no_grad():
            logits = self.model(source, decoder_input_ids=torch.tensor([[*start, *tokens[:-1]]])).logits
        log_p = logits[0, len(start) - 1 :].log_softmax(1)
        return log_p.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()

    def margin(self, text: str, ours: Sequence[int], theirs: Sequence[int], beams: int) -> float:
        """How far theirs is from taking our text for its own: of the scores, or of the first token that differs."""
        one, other = self.log_p(text, ours), self.log_p(text, theirs)
        if beams > 1:
            return abs(sum(one) - sum(other))
        first = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        first = min(len(ours), len(theirs)) if first is None else first
        return abs(one[first] - other[first])


def in_graph(name: str) -> Any:
    """A checkpoint whose graph is made at every commit if it is the BART, else behind the marker `long`."""
    return pytest.param(name, marks=[] if name == "bart" else [pytest.mark.long, pytest.mark.timeout(300)])


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Peer]:
    made: dict[str, Peer] = {}

    def peer(name: str) -> Peer:
        if name not in made:
            made[name] = Peer(tmp_path_factory.mktemp(name), name)
        return made[name]

    return peer


Peers = Callable[[str], Peer]


@pytest.mark.parametrize("name", MAKERS)
def test_greedy_tokens_in_pytorch_are_those_of_generate(peers: Peers, name: str) -> None:
    given = texts(40)
    expected = peers(name).theirs(given)
    assert peers(name).in_pytorch(given) == expected
    assert len({token for tokens in expected for token in tokens}) >= 30
    assert len({*map(tuple, expected)}) > 30


@pytest.mark.parametrize("name", [*map(in_graph, MAKERS)])
def test_the_graph_finds_what_generate_finds(peers: Peers, name: str) -> None:
    given = texts(15)
    greedy, best = peers(name).theirs(given), peers(name).theirs(given, **BEAMS)
    assert peers(name).ours(given) == greedy
    assert peers(name).ours(given, beams=4) == best
    assert greedy != best


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("beams", [1, 4])
def test_200_texts_are_those_of_generate_but_for_ties(
    peers: Peers, name: str, beams: int, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, given = peers(name), texts(200)
    ours = peer.ours(given, beams=beams)
    theirs = peer.theirs(given, **(BEAMS if beams > 1 else {}))
    differ = [i for i in range(200) if ours[i] != theirs[i]]
    distinct = len({token for tokens in theirs for token in tokens})
    margins = [peer.margin(given[i], ours[i], theirs[i], beams) for i in differ]
    with capsys.disabled():
        print(f"\n{name}, beams {beams}: {200 - len(differ)} of 200 equal, {distinct} different tokens")
        for i, margin in zip(differ, margins, strict=True):
            print(f"  text {i}: margin {margin:.1e}: {ours[i]} for {theirs[i]}")
    assert all(margin < 1e-4 for margin in margins)
    assert len(differ) <= 2
    assert distinct >= 30


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "positions": (family.BartStack, "enter", lambda self, x, places: self.embedding_norm(self.scale * x)),
    "scale": (layers.Attention, "forward", lambda self, x, memory, bias: _unscaled(self, x, memory, bias)),
    "norm": (layers.Layer, "_before", lambda self, x, number: self.norms[number](x)),
    "rows": (layers.Layer, "self_attend", lambda self, x, memory, bias: _reversed(self, x, memory, bias)),
    "end": (head_module.PretrainedSeq2Seq, "_most", staticmethod(lambda length, limit: length + 1)),
}


def _unscaled(attention: Any, x: torch.Tensor, memory: Any, bias: torch.Tensor) -> Any:
    return _ATTENTION(attention, x * attention.scale, memory, bias)


def _reversed(layer: Any, x: torch.Tensor, memory: Any, bias: Any) -> Any:
    return _SELF_ATTEND(layer, x, memory._replace(keys=memory.keys.flip(3)), bias)


_ATTENTION, _SELF_ATTEND = layers.Attention.forward, layers.Layer.self_attend


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(peers: Peers, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = texts(8)
    expected = peers("bart").theirs(given)
    assert peers("bart").in_pytorch(given) == expected
    monkeypatch.setattr(*FAULTS[fault])
    assert peers("bart").in_pytorch(given) != expected


@pytest.mark.parametrize("name", ["bart", "mbart", "mbart-50"])
def test_the_loss_is_that_of_transformers_without_what_stands_before_a_text(peers: Peers, name: str) -> None:
    peer = peers(name)
    rows = [{"text": text, "target": backwards(text)} for text in texts(5)]
    batch = collate(peer.pipeline.artifacts, examples(peer.config, peer.pipeline.artifacts, rows))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(peer.folder)
    given = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    plain = [tokenizer(row["target"], add_special_tokens=False)["input_ids"] for row in rows]
    generation, longest = peer.model.generation_config, max(map(len, plain)) + 1
    start = [generation.decoder_start_token_id, generation.forced_bos_token_id][: peer.begun]
    fed = torch.tensor([[*start, *ids, *[1] * (longest - 1 - len(ids))] for ids in plain])
    labels = torch.tensor([[*ids, 2, *[-100] * (longest - 1 - len(ids))] for ids in plain])
    with torch.no_grad():
        logits = peer.model(**given, decoder_input_ids=fed).logits[:, peer.begun - 1 :]
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        assert torch.allclose(peer.pipeline.loss(batch), expected, atol=1e-4)


@pytest.mark.parametrize("name", [*map(in_graph, ["bart", "marian"])])
def test_the_weights_stand_in_the_graph_once(peers: Peers, name: str) -> None:
    peer = peers(name)
    arrays = [numpy_helper.to_array(one) for one in onnx.load_from_string(peer.graph).graph.initializer]
    table = peer.pipeline.encoder[0].words.weight
    assert sum(array.size == table.numel() for array in arrays) == 1
    weights = sum(parameter.numel() for parameter in peer.pipeline.parameters())
    buffers = 3 * len(table)  # the biases of the logits
    assert sum(array.size for array in arrays if array.dtype == np.float32) < weights + buffers + 500
    kept = sum(parameter.numel() for parameter in peer.model.parameters())
    assert weights - kept == (len(table) - peer.model.config.vocab_size) * table.shape[1]


def test_a_checkpoint_is_fine_tuned_and_its_loss_falls(peers: Peers) -> None:
    peer = peers("marian")
    pipeline = built(peer.config.file.parent, peer.folder).train()
    rows = [{"text": text, "target": backwards(text)} for text in texts(6)]
    batch = collate(pipeline.artifacts, examples(peer.config, pipeline.artifacts, rows))
    optimizer, losses = torch.optim.Adam(pipeline.parameters(), lr=0.005), []
    for _ in range(60):
        loss = pipeline.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.4 * losses[0]
    table = pipeline.encoder[0].words.weight
    assert not torch.equal(table, peer.pipeline.encoder[0].words.weight)


def test_search_options_work_in_the_graph_as_in_pytorch(peers: Peers) -> None:
    peer, given = peers("bart"), texts(6)
    for chosen in ({"beams": 3, "length_penalty": 1.0, "min_length": 5}, {"no_repeat_ngram_size": 2}):
        assert peer.ours(given, **chosen) == peer.in_pytorch(given, **chosen)
    assert peer.ours(given, max_length=100) == peer.ours(given, max_length=64)  # no more than it has positions


class TestLanguages:
    @pytest.mark.parametrize(("version", "name"), [("cc25", "mbart"), ("50", "mbart-50")])
    def test_both_are_chosen_by_options(self, peers: Peers, version: str, name: str, tmp_path: Path) -> None:
        peer, given = peers(name), texts(8)
        changes = {"encoder": {"language": "de_DE"}, "head": {"language": "cs_CZ"}}
        pipeline = built(tmp_path, peer.folder, **changes)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(peer.folder, src_lang="de_DE")
        target = tokenizer.convert_tokens_to_ids("cs_CZ")
        forced = {"forced_bos_token_id": target} if version == "50" else {"decoder_start_token_id": target}
        expected = []
        for text in given:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            made = peer.model.generate(ids, max_length=WRITTEN + peer.begun, do_sample=False, **forced)[0]
            expected.append([token for token in made[peer.begun :].tolist() if token != 2])
        with torch.no_grad():
            ours = [pipeline.decide(batch, {"max_length": WRITTEN})["tokens"] for batch in peer.batches(given)]
        assert peer._tokens(ours[0].numpy()) == expected
        assert expected != peer.theirs(given)

    @pytest.mark.parametrize("place", ["encoder", "head"])
    def test_one_that_the_checkpoint_lacks_is_refused_with_those_it_has(
        self, peers: Peers, place: str, tmp_path: Path
    ) -> None:
        with pytest.raises(SeqpipeError, match=r"has no 'xx_XX'; it has ar_AR, cs_CZ, de_DE"):
            built(tmp_path, peers("mbart").folder, **{place: {"language": "xx_XX"}})

    @pytest.mark.parametrize("place", ["encoder", "head"])
    def test_a_checkpoint_without_languages_takes_none(self, peers: Peers, place: str, tmp_path: Path) -> None:
        with pytest.raises(SeqpipeError, match="has no special tokens for languages; leave `language` out"):
            built(tmp_path, peers("bart").folder, **{place: {"language": "de_DE"}})

    def test_one_is_needed_where_the_checkpoint_does_not_say_what_to_write(self, tmp_path: Path) -> None:
        folder = mbart(tmp_path / "mbart", [" ".join(WORDS[:500])])
        rewrite(folder / "generation_config.json", decoder_start_token_id=None)
        rewrite(folder / "config.json", decoder_start_token_id=None)
        with pytest.raises(SeqpipeError, match="set the head's `language`"):
            built(tmp_path, folder)
        assert built(tmp_path, folder, head={"language": "ro_RO"}).heads[0].first_token > 3


class TestLongTexts:
    def test_one_of_more_tokens_than_positions_is_refused_before_training(self, peers: Peers, tmp_path: Path) -> None:
        path = yaml(tmp_path, peers("bart").folder)
        write_jsonl(tmp_path / "train.jsonl", [{"text": " ".join(WORDS[:100]), "target": "a"}] * 3)
        with pytest.raises(SeqpipeError, match=r"tokens exceed the limit of 62; split the text"):
            check_export(load(path), QUIET)

    def test_and_at_deployment(self, peers: Peers) -> None:
        (answer,) = peers("bart").exported([{"text": " ".join(WORDS[:4])}])
        assert answer["generated_text"]
        with pytest.raises(SeqpipeError, match=r"record 1: .* tokens exceed the limit of 62; split"):
            peers("bart").exported(" ".join(WORDS[:100]))

    def test_a_longer_target_is_refused_in_training(self, peers: Peers) -> None:
        peer = peers("bart")
        rows = [{"text": "owl", "target": " ".join(WORDS[:100])}]
        batch = collate(peer.pipeline.artifacts, examples(peer.config, peer.pipeline.artifacts, rows))
        with pytest.raises(SeqpipeError, match="the limit of the checkpoint is 63, including the end token; shorten"):
            peer.pipeline.loss(batch)


def test_a_marian_needs_the_tokenizer_of_its_target_side(peers: Peers, tmp_path: Path) -> None:
    with pytest.raises(SeqpipeError, match=r"of the head target_tokenizer: \{use: pretrained, .* side: target\}"):
        built(tmp_path, peers("marian").folder, head={"target_tokenizer": "same"})


@pytest.mark.long
@pytest.mark.timeout(300)
def test_it_goes_from_a_checkpoint_to_a_bundle(peers: Peers, tmp_path: Path) -> None:
    done = seqpipe("run", yaml(tmp_path, peers("marian").folder), "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "seq2seq" / "bundle"
    assert seqpipe("verify", folder, "--device", "cpu").code == 0
    answered = seqpipe("predict", folder, "--option", "max_length=5", stdin=b"Rosa the owl\n\nA fox .\n")
    assert answered.code == 0, answered.err
    assert len(answered.out.splitlines()) == 3
