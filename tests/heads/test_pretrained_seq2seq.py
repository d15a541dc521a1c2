"""T5, BART, mBART and Marian checkpoints against `transformers` with the same weights: generated texts and losses."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import numpy_helper
from tiny_checkpoints import bart, change_json, checkpoint, decoder, marian, mbart, t5
from tiny_pipelines import QUIET, seqpipe, succeed, untrained, write_jsonl, write_yaml
from torch.nn.utils.rnn import pad_sequence

from seqpipe.api.model import Model
from seqpipe.config.loader import load_config
from seqpipe.errors import SeqpipeError
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import to_onnx
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
from seqpipe.nn import encoder_decoder as layers
from seqpipe.nn import pretrained_seq2seq as family
from seqpipe.nn.layers import EOS_ID, PAD_ID
from seqpipe.runs.check import check_export
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.training.datasets import Batch, collate, examples
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.network import Network
from seqpipe.training.optim import make_optimizer
from seqpipe_plugins.heads.pretrained_seq2seq import PretrainedSeq2SeqHead

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:8000]
TEXT = [" ".join(WORDS)]
MAX_TOKENS = 20  # of a generated text, the end included
BEAMS = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"}


def backwards(text: str) -> str:
    """The text with each word spelt from its end: the second language."""
    return " ".join(word[::-1] for word in text.split())


MAKERS: dict[str, Callable[[Path], Path]] = {
    "t5-1.0": lambda folder: t5(folder, "1.0", TEXT),
    "t5-1.1": lambda folder: t5(folder, "1.1", TEXT),
    "bart": lambda folder: bart(folder, TEXT, seed=4),
    "mbart": lambda folder: mbart(folder, TEXT),
    "mbart-50": lambda folder: mbart(folder, TEXT, version="50"),
    "marian": lambda folder: marian(folder, TEXT, [backwards(TEXT[0])]),
    "marian-apart": lambda folder: marian(folder, TEXT, [backwards(TEXT[0])], apart=True, seed=4),
}
EXPORTED = ("t5-1.0", "t5-1.1", "bart")  # at every commit; the other graphs are made behind the marker `long`


def in_graph(*names: str) -> Any:
    marks = [pytest.mark.long, pytest.mark.timeout(300)]
    return pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EXPORTED else marks) for n in names])


def texts(count: int, longest: int = 15) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(WORDS[31 * i : 31 * i + int(random.integers(1, longest + 1))]) for i in range(count)]


def records(count: int) -> list[dict[str, str]]:
    return [{"text": text, "target": backwards(text)} for text in texts(count)]


def yaml(folder: Path, checkpoint: Path, **changes: Any) -> Path:
    write_jsonl(folder / "train.jsonl", records(24))
    stage = {"checkpoint": str(checkpoint)}
    target = {"use": "pretrained", "side": "target", **stage} if checkpoint.name.startswith("marian") else "same"
    encoder = {"use": "pretrained-seq2seq", **stage}
    stages = {"encoder": encoder, "head": encoder | {"target_tokenizer": target}}
    for place in stages.keys() & changes.keys():
        change = changes.pop(place)
        stages[place] = change if "use" in change else stages[place] | change
    content: dict[str, Any] = {
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "train.jsonl", "test": "train.jsonl"},
        "tokenizer": {"use": "pretrained", **stage},
        "train": {"epochs": 1, "batch_size": 6, "threads": 1, "optimizer": {"use": "adamw", "lr": 0.001}},
    }
    return write_yaml(folder, "seq2seq", **{**content, **stages, **changes})


def build(folder: Path, checkpoint: Path, **changes: Any) -> Network:
    network: Network = untrained(load_config(yaml(folder, checkpoint, **changes)), 20)
    return network


class Peer:
    """A checkpoint as `transformers` runs it, and as we do, in PyTorch and as a graph.

    Theirs may generate what ours never does, padding, the beginning and rows that no token has; they are made unlikely.
    """

    def __init__(self, folder: Path, name: str):
        self.folder, self.longest = MAKERS[name](folder / name), 30 if name.startswith("t5") else 15
        self.model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(self.folder).eval()
        self.network = build(folder, self.folder)
        self.config = load_config(folder / "seq2seq.yaml")
        self.pipeline = TrainedPipeline(self.network, self.config)
        self.ids = pretrained_tokenizer(self.folder, "target").ids
        generation = self.generation = self.model.generation_config
        banned = torch.full((self.model.lm_head.out_features,), -1e4)
        banned[[i for i in self.ids if i >= 0]] = 0.0
        banned[[i for i in (generation.bos_token_id, generation.pad_token_id) if i is not None]] = -1e4
        self.model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + banned)
        self.start = [generation.decoder_start_token_id]  # tokens before a text
        self.start += [] if generation.forced_bos_token_id is None else [generation.forced_bos_token_id]

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def graph(self) -> bytes:
        return to_onnx(self.pipeline)

    @cached_property
    def exported(self) -> Model:
        manifest, files = bundle_manifest(self.pipeline), bundle_files(self.pipeline, self.graph)
        return Model(bundle.BundleContent(self.config.file, manifest, files), "cpu", 1)

    def texts(self, count: int) -> list[str]:
        return texts(count, self.longest)

    def batch(self, rows: Sequence[dict[str, str]]) -> Batch:
        return collate(self.network.artifacts, examples(self.config, self.network.artifacts, rows))

    def batches(self, sources: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
        """Ragged batches of the texts, in their order."""
        for first in range(0, len(sources), 25):
            batch = self.batch([{"text": text, "target": "a"} for text in sources[first : first + 25]])
            yield {name: batch[name] for name in ("ids", "mask")}

    def in_graph(self, sources: Sequence[str], **options: Any) -> list[list[int]]:
        """The tokens of the checkpoint that the graph generates, the end not included."""
        inputs = option_arrays(self.exported.manifest.options, {"max_length": MAX_TOKENS, **options})
        feeds = ({name: array.numpy() for name, array in batch.items()} for batch in self.batches(sources))
        return [tokens for feed in feeds for tokens in self.tokens(self.exported.run(feed | inputs)["tokens"])]

    @torch.no_grad()
    def in_pytorch(self, sources: Sequence[str], network: Network | None = None, **options: Any) -> list[list[int]]:
        options = {"max_length": MAX_TOKENS, **options}
        batches = [(network or self.network).decide(batch, options) for batch in self.batches(sources)]
        return [tokens for decision in batches for tokens in self.tokens(decision["tokens"].numpy())]

    def tokens(self, ids: np.ndarray) -> list[list[int]]:
        return [[self.ids[i] for i in row if i not in (PAD_ID, EOS_ID)] for row in ids[:, 0].tolist()]

    def expected(self, sources: Sequence[str], **options: Any) -> list[list[int]]:
        """The tokens that `generate` of `transformers` returns."""
        expected, ids, pad = list[list[int]](), self.source_ids(sources), self.generation.pad_token_id
        settings = {"max_length": MAX_TOKENS + len(self.start), "do_sample": False, **options}
        for first in range(0, len(ids), 50):
            rows = [row[0] for row in ids[first : first + 50]]
            batch = pad_sequence(rows, batch_first=True, padding_value=pad)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            tokens = self.model.generate(batch, attention_mask=mask, **settings)[:, len(self.start) :].tolist()
            expected += [[token for token in row if token not in (self.generation.eos_token_id, pad)] for row in tokens]
        return expected

    def source_ids(self, sources: Sequence[str]) -> list[torch.Tensor]:
        if (self.folder / "tokenizer.json").exists():
            return [self.tokenizer(text, return_tensors="pt")["input_ids"] for text in sources]
        tokenizer, ids, _ = pretrained_tokenizer(self.folder)  # Marian's own needs `sentencepiece`
        encoded = [[ids[i] for i in tokenizer.encode(text).ids] for text in sources]
        return [torch.tensor([[*tokens, self.model.config.eos_token_id]]) for tokens in encoded]

    @torch.no_grad()
    def log_p(self, text: str, generated: Sequence[int]) -> list[float]:
        """The log-probability in theirs of each token and, but for a text of the greatest length, the end."""
        tokens = [*generated, *([self.generation.eos_token_id] if len(generated) < MAX_TOKENS - 1 else [])]
        fed = torch.tensor([[*self.start, *tokens[:-1]]])
        logits = self.model(self.source_ids([text])[0], decoder_input_ids=fed).logits
        log_p = logits[0, len(self.start) - 1 :].log_softmax(1)
        return log_p.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()

    def margin(self, text: str, ours: Sequence[int], generated: Sequence[int], beams: int) -> float:
        """The difference of the scores of two texts, or with one beam of the first tokens that differ."""
        scores, expected = self.log_p(text, ours), self.log_p(text, generated)
        if beams > 1:
            return abs(sum(scores) - sum(expected))
        pairs = enumerate(zip(ours, generated, strict=False))
        first = next((i for i, pair in pairs if pair[0] != pair[1]), min(len(ours), len(generated)))
        return abs(scores[first] - expected[first])


Peers = Callable[[str], Peer]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Peers:
    return lru_cache(lambda name: Peer(tmp_path_factory.mktemp(name), name))


@pytest.mark.parametrize("name", MAKERS)
def test_greedy_tokens_in_pytorch_are_those_of_generate(peers: Peers, name: str) -> None:
    sources = peers(name).texts(40)
    expected = peers(name).expected(sources)
    assert peers(name).in_pytorch(sources) == expected
    assert len({token for tokens in expected for token in tokens}) >= 30
    assert len({*map(tuple, expected)}) > 30


@in_graph(*MAKERS)
def test_the_graph_finds_what_generate_finds(peers: Peers, name: str) -> None:
    sources = peers(name).texts(15)
    greedy, best = peers(name).expected(sources), peers(name).expected(sources, **BEAMS)
    assert peers(name).in_graph(sources) == greedy
    assert peers(name).in_graph(sources, beams=4) == best
    assert greedy != best


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("beams", [1, 4])
def test_200_texts_are_those_of_generate_but_for_ties(
    peers: Peers, name: str, beams: int, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, sources = peers(name), peers(name).texts(200)
    ours = peer.in_graph(sources, beams=beams)
    expected = peer.expected(sources, **(BEAMS if beams > 1 else {}))
    differ = [i for i in range(200) if ours[i] != expected[i]]
    distinct = len({token for tokens in expected for token in tokens})
    margins = [peer.margin(sources[i], ours[i], expected[i], beams) for i in differ]
    with capsys.disabled():
        print(f"\n{name}, beams {beams}: {200 - len(differ)} of 200 equal, {distinct} different tokens")
        for i, margin in zip(differ, margins, strict=True):
            print(f"  text {i}: margin {margin:.1e}: {ours[i]} for {expected[i]}")
    assert all(margin < 1e-4 for margin in margins)
    assert len(differ) <= 2
    assert distinct >= 30


ATTENTION, SELF_ATTEND = layers.BiasedAttention.forward, layers.EncoderDecoderLayer.self_attend
STEP, READ = layers.Stack.step, PretrainedSeq2SeqHead.read


def read_without_the_end(self: Any, sources: Any) -> Any:
    return READ(self, [sources[0] | {"around": torch.zeros_like(sources[0]["around"])}])


def step_without_a_cache(self: Any, x: torch.Tensor, state: Any, *rest: Any) -> Any:
    after, longer, weights = STEP(self, x, state, *rest)
    return after, state if state[0].shape[2] else longer, weights


def reversed_keys(self: Any, x: torch.Tensor, memory: Any, bias: Any) -> Any:
    return SELF_ATTEND(self, x, memory._replace(keys=memory.keys.flip(3)), bias)


FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "positions": ("bart", family.BartStack, "enter", lambda self, x, places: self.embedding_norm(self.scale * x)),
    "distances": ("t5-1.0", family.Distances, "forward", lambda self, d: self.weight.new_zeros(4, *d.shape)),
    "scale": ("bart", layers.BiasedAttention, "forward", lambda self, x, *rest: ATTENTION(self, x * self.scale, *rest)),
    "T5's scale": (
        "t5-1.1",
        layers.BiasedAttention,
        "forward",
        lambda self, x, *rest: ATTENTION(self, x * 8**-0.5, *rest),
    ),
    "norm": ("bart", layers.EncoderDecoderLayer, "before", lambda self, number, x: self.norms[number](x)),
    "keys": ("bart", layers.EncoderDecoderLayer, "self_attend", reversed_keys),
    "cache": ("t5-1.1", layers.Stack, "step", step_without_a_cache),
    "the end of a source": ("t5-1.0", PretrainedSeq2SeqHead, "read", read_without_the_end),
    "the end of a text": ("bart", PretrainedSeq2SeqHead, "_most", staticmethod(lambda length, limit: length + 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(peers: Peers, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *patch = FAULTS[fault]
    sources = peers(name).texts(12)
    expected = peers(name).expected(sources)
    assert peers(name).in_pytorch(sources) == expected
    monkeypatch.setattr(*patch)
    assert peers(name).in_pytorch(sources) != expected


@pytest.mark.parametrize("name", ["t5-1.0", "t5-1.1", "bart", "mbart", "mbart-50"])
def test_the_loss_is_that_of_transformers_without_what_stands_before_a_text(peers: Peers, name: str) -> None:
    peer, rows = peers(name), records(5)
    batch, start, pad = peer.batch(rows), peer.start, peer.generation.pad_token_id
    sources = peer.tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    plain = [peer.tokenizer(row["target"], add_special_tokens=False)["input_ids"] for row in rows]
    longest = max(map(len, plain))
    fed = torch.tensor([[*start, *ids, *[pad] * (longest - len(ids))] for ids in plain])
    end = peer.generation.eos_token_id
    labels = torch.tensor([[*ids, end, *[-100] * (longest - len(ids))] for ids in plain])
    with torch.no_grad():
        logits = peer.model(**sources, decoder_input_ids=fed).logits[:, len(start) - 1 :]
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        assert torch.allclose(peer.network.loss(batch), expected, atol=1e-4)
    assert batch["target_mask"].sum() == (labels >= 0).sum()


@in_graph("t5-1.0", "t5-1.1", "bart", "marian")
def test_the_weights_stand_in_the_graph_once(peers: Peers, name: str) -> None:
    peer = peers(name)
    arrays = [numpy_helper.to_array(one) for one in onnx.load_from_string(peer.graph).graph.initializer]
    table = peer.network.encoder[0].words.weight
    tables = 1 if peer.network.heads[0].output is None else 2
    assert sum(array.size == table.numel() for array in arrays) == tables
    weights = sum(parameter.numel() for parameter in peer.network.parameters())
    biases = 0 if name.startswith("t5") else 3 * len(table)  # of the logits
    assert sum(array.size for array in arrays if array.dtype == np.float32) < weights + biases + 500
    expected = sum(parameter.numel() for parameter in peer.model.parameters())
    assert weights - expected == (len(table) - peer.model.config.vocab_size) * table.shape[1] * tables


def test_a_checkpoint_is_fine_tuned_and_its_loss_falls(peers: Peers) -> None:
    peer = peers("marian")
    network, batch = build(peer.config.file.parent, peer.folder).train(), peer.batch(records(6))
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.005), []
    for _ in range(60):
        loss = network.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.4 * losses[0]
    assert not torch.equal(network.encoder[0].words.weight, peer.network.encoder[0].words.weight)


@pytest.mark.parametrize("name", ["bart", "t5-1.0"])
def test_search_options_work_in_the_graph_as_in_pytorch(peers: Peers, name: str) -> None:
    peer, sources = peers(name), peers(name).texts(6)
    for options in ({"beams": 3, "length_penalty": 1.0, "min_length": 5}, {"no_repeat_ngram_size": 2}):
        assert peer.in_graph(sources, **options) == peer.in_pytorch(sources, **options)
    alternatives = peer.exported(sources, max_length=MAX_TOKENS, beams=4, n_best=3, prefix="the")
    assert [len(answers) for answers in alternatives] == [3] * 6
    assert all(answer["generated_text"].startswith("the") for answers in alternatives for answer in answers)


def test_a_text_is_no_longer_than_there_are_positions(peers: Peers) -> None:
    peer, sources = peers("bart"), peers("bart").texts(6)
    assert peer.in_graph(sources, max_length=100) == peer.in_graph(sources, max_length=64)


@pytest.mark.parametrize("name", ["t5-1.0", "t5-1.1"])
def test_sentinels_of_t5_stand_for_themselves_in_a_text(peers: Peers, name: str) -> None:
    artifacts, tokenize = peers(name).network.artifacts, peers(name).tokenizer.tokenize
    (doc,) = artifacts.featurizer.docs([{"text": "Rosa <extra_id_0> owl<extra_id_1> . </s> [EOS]"}])
    tokens = [artifacts.vocabulary[i] for i in doc.ids]
    assert tokens[:3] == tokenize("Rosa <extra_id_0>") + tokenize("owl")[:1]
    assert tokens.count("<extra_id_1>") == 1
    assert not {"[PAD]", "[BOS]", "[EOS]"} & {*tokens}


def test_lower_layers_of_the_encoder_learn_slower(peers: Peers, tmp_path: Path) -> None:
    network = build(tmp_path, peers("t5-1.0").folder, encoder={"layer_decay": 0.5, "lr": 0.01})
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = make_optimizer(network, load_config(tmp_path / "seq2seq.yaml")).param_groups
    rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    assert rates["encoder.0.stack.layers.1.attentions.0.query.weight"] == 0.01
    assert rates["encoder.0.stack.layers.0.attentions.0.query.weight"] == 0.005
    assert rates["encoder.0.words.weight"] == 0.0025


@in_graph("t5-1.0", "marian")
def test_a_checkpoint_becomes_a_bundle_and_another_run_starts_from_it(peers: Peers, name: str, tmp_path: Path) -> None:
    path = yaml(tmp_path, peers(name).folder)
    done = succeed("run", path, "--device", "cpu", folder=tmp_path)
    folder = tmp_path / "runs" / "seq2seq" / "bundle"
    assert seqpipe("verify", folder, "--device", "cpu").code == 0
    answered = seqpipe("predict", folder, "--option", "max_length=5", stdin=b"Rosa the owl\n\nA fox .\n")
    assert (answered.code, len(answered.out.splitlines())) == (0, 3), answered.err
    init = {"init": "runs/seq2seq"}
    done = succeed("train", yaml(tmp_path, peers(name).folder, name="more", encoder=init, head=init), folder=tmp_path)
    assert "head: starts from runs/seq2seq" in done.err + done.out


@pytest.mark.parametrize(("start", "name"), [("decoder_start", "mbart"), ("forced_bos", "mbart-50")])
def test_both_languages_are_chosen_by_options(peers: Peers, start: str, name: str, tmp_path: Path) -> None:
    peer, sources = peers(name), texts(8)
    network = build(tmp_path, peer.folder, encoder={"language": "de_DE"}, head={"language": "cs_CZ"})
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(peer.folder, src_lang="de_DE")
    settings = {f"{start}_token_id": tokenizer.convert_tokens_to_ids("cs_CZ"), "do_sample": False}
    expected = []
    for text in sources:
        ids, first = tokenizer(text, return_tensors="pt")["input_ids"], len(peer.start)
        tokens = peer.model.generate(ids, max_length=MAX_TOKENS + first, **settings)[0]
        expected.append([token for token in tokens[first:].tolist() if token != 2])
    assert peer.in_pytorch(sources, network) == expected
    assert expected != peer.expected(sources)


LACKING = {
    "mbart": ("xx_XX", r"has no 'xx_XX'; it has ar_AR, cs_CZ, de_DE"),
    "bart": ("de_DE", "has no special tokens for languages; leave `language` out"),
    "t5-1.0": ("de_DE", "has no special tokens for languages; leave `language` out"),
}


@pytest.mark.parametrize("place", ["encoder", "head"])
@pytest.mark.parametrize("name", LACKING)
def test_a_language_that_the_checkpoint_lacks_is_refused(peers: Peers, place: str, name: str, tmp_path: Path) -> None:
    language, message = LACKING[name]
    with pytest.raises(SeqpipeError, match=message):
        build(tmp_path, peers(name).folder, **{place: {"language": language}})


def test_a_language_is_needed_where_the_checkpoint_names_none(tmp_path: Path) -> None:
    folder = mbart(tmp_path / "mbart", [" ".join(WORDS[:500])])
    change_json(folder / "generation_config.json", decoder_start_token_id=None)
    change_json(folder / "config.json", decoder_start_token_id=None)
    with pytest.raises(SeqpipeError, match="set the head's `language`"):
        build(tmp_path, folder)
    assert build(tmp_path, folder, head={"language": "ro_RO"}).heads[0].first_token > 3


def test_a_text_of_more_tokens_than_positions_is_refused(peers: Peers, tmp_path: Path) -> None:
    peer, long = peers("bart"), " ".join(WORDS[:100])
    path = yaml(tmp_path, peer.folder)
    write_jsonl(tmp_path / "train.jsonl", [{"text": long, "target": "a"}] * 3)
    with pytest.raises(SeqpipeError, match=r"tokens exceed the limit of 62; split the text"):
        check_export(load_config(path), QUIET)
    assert peer.exported([{"text": " ".join(WORDS[:4])}])[0]["generated_text"]
    with pytest.raises(SeqpipeError, match=r"record 1: .* tokens exceed the limit of 62; split"):
        peer.exported(long)
    with pytest.raises(SeqpipeError, match="the limit of the checkpoint is 63, including the end token; shorten"):
        peer.network.loss(peer.batch([{"text": "owl", "target": long}]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, text = tmp_path_factory.mktemp("checkpoints"), [" ".join(WORDS[:400])]
    made = {"gpt2": decoder(folder / "gpt2", "gpt2", text), "bert": checkpoint(folder / "bert", "bert", text)}
    made["marian"] = marian(folder / "marian", text, [backwards(text[0])])
    return made | {name: t5(folder / name, "1.0", text, d_model=width) for name, width in (("t5", 32), ("wide", 16))}


VECTOR = {"use": "vector", "target": "target"}
T5_ENCODER = {"encoder": {"use": "pretrained", "checkpoint": "t5"}, "head": VECTOR}
T5_DECODER = {"encoder": {"use": "pretrained-decoder", "checkpoint": "t5"}, "head": {"use": "lm"}}
RECURRENT = {"embedding": {"use": "lookup", "dim": 8}, "encoder": {"use": "gru", "hidden": 16}}
NO_BERT = "bert is not supported by pretrained-seq2seq .*; the encoder pretrained takes BERT"
NO_TARGET = r"of the head target_tokenizer: \{use: pretrained, .* side: target\}"
MISFITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "T5 as encoder": ("t5", T5_ENCODER, "t5 has an encoder and a decoder; .* pretrained-seq2seq, an encoder and"),
    "T5 as decoder": ("t5", T5_DECODER, "t5 is not supported by pretrained-decoder .* head, T5"),
    "GPT-2": ("gpt2", {"head": VECTOR}, "gpt2 is not supported by pretrained-seq2seq"),
    "BERT": ("bert", {"head": VECTOR}, NO_BERT),
    "characters": ("t5", {"head": {"target_tokenizer": "chars"}}, "are not those of .* head target_tokenizer: same"),
    "the source's tokens": ("marian", {"head": {"target_tokenizer": "same"}}, NO_TARGET),
    "another width": ("t5", {"head": {"checkpoint": "wide"}}, r"reads 16 numbers a token, not 32; put the encoder \{"),
    "head of a GPT-2": ("t5", {"head": {"checkpoint": "gpt2"}}, "the tokens are not those of"),
    "no encoder of the checkpoint": ("t5", RECURRENT, "returns no `table`; put the encoder"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_refused(folders: dict[str, Path], tmp_path: Path, case: str) -> None:
    name, changes, message = MISFITS[case]
    for place, change in changes.items():
        if "checkpoint" in change:
            changes = changes | {place: change | {"checkpoint": str(folders[change["checkpoint"]])}}
    with pytest.raises(SeqpipeError, match=message):
        check_export(load_config(yaml(tmp_path, folders[name], **changes)), QUIET)
