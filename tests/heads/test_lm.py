"""Language models against `transformers` with the same weights, against NumPy, and against themselves."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_bundles
import transformers
from gallery import gallery
from tiny_checkpoints import decoder
from tiny_pipelines import QUIET, fail_with, seqpipe, succeed, untrained, write_jsonl, write_language_model

from seqpipe import load as open_bundle
from seqpipe.answers.text import prompt_records
from seqpipe.api.model import Model
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import BundleError, ConfigError, DataError, ParityError, PluginError, UsageError
from seqpipe.evaluation.scores import score_records
from seqpipe.export.exporter import bundle_files, bundle_manifest, export_bundle
from seqpipe.export.graph import to_onnx
from seqpipe.export.parity.decisions import DecisionParity
from seqpipe.export.parity.gate import compare_runs
from seqpipe.features.document import Arrays
from seqpipe.runtime import bundle, graph_check, session
from seqpipe.runtime.decode_options import option_arrays, random_numbers
from seqpipe.runtime.manifest import next_inputs
from seqpipe.runtime.session import GraphSession
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe.training.network import Network

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:6000]
MAX_TOKENS = 20  # behind a prompt
LSTM = {"use": "lstm", "hidden": 16, "direction": "forward"}
GRU = {**LSTM, "use": "gru"}
CAUSAL = {"use": "transformer", "causal": True, "heads": 2}
UNPACKED, STATEFUL = {"use": "lm", "packed": False}, {"use": "lm", "stateful": True}


def prompts(count: int) -> list[str]:
    """Texts of 1 to 8 words."""
    random = np.random.default_rng(0)
    return [" ".join(WORDS[20 * i : 20 * i + int(random.integers(1, 9))]) for i in range(count)]


def yaml(folder: Path, **changes: Any) -> Path:
    encoder = {**CAUSAL, "positions": "learned", "longest": 24}
    return write_language_model(folder, " ".join(WORDS[:2000]), **{"encoder": encoder, **changes})


def build(path: Path) -> tuple[Config, Network]:
    config = load_config(path)
    return config, untrained(config, 200, 0)


def whole(text: str) -> str:
    """The text up to its last whole character: an untrained model generates any bytes."""
    return text.rstrip("\ufffd")


class Peer:
    """A checkpoint as `transformers` runs it, and as we do, in PyTorch and as a graph."""

    def __init__(self, folder: Path, family: str):
        self.folder = decoder(folder / family, family, [" ".join(WORDS)])
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(self.folder).eval()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(self.folder)
        stage = {"checkpoint": str(self.folder)}
        encoder = {"use": "pretrained-decoder", **stage}
        tokenizer = {"use": "pretrained", **stage}
        self.config, self.network = build(yaml(folder, tokenizer=tokenizer, embedding=[], encoder=encoder))
        self.pipeline = TrainedPipeline(self.network, self.config)
        self.featurizer = self.network.artifacts.featurizer
        self.ours = predictor(self.network)

    @cached_property
    def files(self) -> dict[str, bytes]:
        return bundle_files(self.pipeline, to_onnx(self.pipeline))

    @cached_property
    def exported(self) -> Model:
        content = bundle.BundleContent(self.config.file, bundle_manifest(self.pipeline), self.files)
        return Model(content, "cpu", 1)

    def texts(self, sources: Sequence[str], **options: Any) -> list[str]:
        answers = self.ours.stream([{"text": text} for text in sources], **options)
        return [whole(answer["generated_text"]) for answer in answers]

    def expected(self, text: str, **options: Any) -> tuple[str, list[int]]:
        """The text that `transformers` generates, and its tokens behind the prompt."""
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": [0], **options}
        tokens = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, **settings)[
            0, ids.shape[1] :
        ].tolist()
        tokens = tokens[: tokens.index(0)] if 0 in tokens else tokens
        return whole(self.tokenizer.decode(ids[0].tolist() + tokens)), tokens


Peers = Callable[[str], Peer]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Peers:
    return lru_cache(lambda family: Peer(tmp_path_factory.mktemp(family), family))


@pytest.fixture(scope="module")
def gpt2(peers: Peers) -> Peer:
    return peers("gpt2")


@pytest.fixture(scope="module")
def exported(gpt2: Peer) -> Model:
    return gpt2.exported


SEARCHES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {  # number of texts, our options, those of `generate`
    "greedy": (120, {}, {}),
    "beams": (60, {"beams": 4}, {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"}),
    "repetition": (30, {"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    "least length": (30, {"min_length": 6}, {"min_new_tokens": 6}),
}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("search", SEARCHES)
def test_texts_of_a_ragged_batch_are_those_of_transformers(peers: Peers, family: str, search: str) -> None:
    count, options, settings = SEARCHES[search]
    expected = [peers(family).expected(text, **settings) for text in prompts(count)]
    assert peers(family).texts(prompts(count), max_length=MAX_TOKENS, **options) == [text for text, _ in expected]
    assert len({token for _, tokens in expected for token in tokens}) >= 30


def test_a_lost_position_would_be_seen(gpt2: Peer) -> None:
    positions = gpt2.network.encoder[0].positions
    with torch.no_grad():
        positions.copy_(positions.roll(1, 0))
        wrong = gpt2.texts(prompts(5), max_length=MAX_TOKENS)
        positions.copy_(positions.roll(-1, 0))
    assert wrong != [gpt2.expected(text)[0] for text in prompts(5)]


def test_a_text_ends_before_a_stop_text(gpt2: Peer) -> None:
    stops = ("e", "a k")
    continuations = [(text, gpt2.expected(text)[0].removeprefix(text)) for text in prompts(30)]
    for stop in stops:
        expected = [whole(text + continuation.partition(stop)[0]) for text, continuation in continuations]
        assert gpt2.texts(prompts(30), max_length=MAX_TOKENS, stop=stop) == expected
    assert any(stop in continuation for stop in stops for _, continuation in continuations)


def test_the_weights_stand_in_the_graph_once(gpt2: Peer) -> None:
    weights = sum(p.numel() for p in gpt2.network.parameters())
    assert len(gpt2.files["model.onnx"]) < 4 * weights + 500_000


@pytest.mark.parametrize("options", [{}, {"beams": 3, "n_best": 2}, {"seed": 3, "temperature": 1.3, "top_p": 0.9}])
def test_the_graph_writes_what_pytorch_writes(gpt2: Peer, exported: Model, options: dict[str, Any]) -> None:
    options = {"max_length": MAX_TOKENS, **options}
    in_pytorch = gpt2.ours.stream([{"text": text} for text in prompts(40)], **options)
    for expected, answer in zip(in_pytorch, exported(prompts(40), **options), strict=True):
        pairs = zip(expected, answer, strict=True) if "n_best" in options else [(expected, answer)]
        assert all(a["generated_text"] == b["generated_text"] for a, b in pairs)


@torch.no_grad()
def test_sampled_tokens_are_those_of_numpy_with_the_same_numbers(gpt2: Peer, exported: Model) -> None:
    """Temperature, then the likeliest k, then the fewest with a share of p, then inverse CDF, in float64."""
    settings: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
    count = 0
    for text in prompts(12):
        (doc,) = gpt2.featurizer.docs([{"text": text}])
        ids, tokens = gpt2.tokenizer(text)["input_ids"], list[int]()
        for number in random_numbers(7, doc, 1, MAX_TOKENS)[0].astype(np.float64):
            logits = gpt2.model(torch.tensor([ids + tokens])).logits[0, -1].double().numpy()
            order = np.argsort(-logits, kind="stable")[: settings["top_k"]]
            p = np.exp((logits[order] - logits[order[0]]) / settings["temperature"])
            p /= p.sum()
            kept = p[: np.searchsorted(np.cumsum(p), settings["top_p"]) + 1]
            place = min(np.searchsorted(np.cumsum(kept), number * kept.sum(), side="right"), len(kept) - 1)
            if order[place] == 0:
                break
            tokens.append(int(order[place]))
        answer = exported(text, seed=7, max_length=MAX_TOKENS, **settings)
        assert whole(answer["generated_text"]) == whole(gpt2.tokenizer.decode(ids + tokens))
        count += len(tokens)
    assert count > 100


@pytest.mark.parametrize("options", [{}, {"seed": 5}, {"repetition_penalty": 1.4}, {"stop": "e", "min_length": 9}])
def test_a_streamed_text_is_the_whole_text(exported: Model, options: dict[str, Any]) -> None:
    for text in prompts(6):
        chunks = list(exported.stream(text, max_length=MAX_TOKENS, **options))
        assert text + "".join(chunks) == exported(text, max_length=MAX_TOKENS, **options)["generated_text"]
    assert len(chunks) > 1 or options


def test_an_imported_cache_continues_a_ragged_batch_like_the_whole_texts(exported: Model) -> None:
    featurizer, short = exported.predictor.featurizer, {"max_length": np.zeros(5, np.int64)}
    docs = featurizer.docs([{"text": text} for text in ("Nele", "Rosa the owl lived on a green hill", "One morning")])
    first = exported.graph.run_with_cache(featurizer.collate(docs) | short)
    assert (first["tokens"] > 3).all()  # none has ended
    last = {"ids": first["tokens"][:, 0, -1:], "mask": np.ones((3, 1), bool)}
    second = exported.run(last | next_inputs(exported.graph.cache, first) | short)
    pairs = zip(docs, first["tokens"][:, 0].tolist(), strict=True)
    longer = [type(doc)(doc.text, [], [], [*doc.ids, *tokens]) for doc, tokens in pairs]
    expected = exported.run(featurizer.collate(longer) | short)
    assert (second["tokens"] == expected["tokens"]).all()
    assert np.abs(second["scores"] - expected["scores"]).max() < 1e-4


@torch.no_grad()
def test_perplexity_is_that_of_the_tokens_one_by_one(gpt2: Peer) -> None:
    text, losses = " ".join(WORDS[:60]), list[float]()
    scores = score_records(gpt2.ours, [{"text": text}])[""]
    ids = gpt2.tokenizer(text)["input_ids"]
    for start in range(0, len(ids) - 1, 24):
        window = torch.tensor([ids[start : start + 25]])
        log_p = gpt2.model(window).logits.log_softmax(2)[0, :-1]
        losses += (-log_p.gather(1, window[0, 1:, None])[:, 0]).tolist()
    assert len(losses) == len(ids) - 1
    assert abs(scores["loss"] - np.mean(losses)) < 1e-4
    assert abs(scores["bits_per_character"] - np.sum(losses) / np.log(2) / len(text)) < 1e-4


STACKS: dict[str, Any] = {
    **{use: {"use": use, "hidden": 16, "layers": 2, "direction": "forward"} for use in ("rnn", "gru", "lstm")},
    "peephole": {**LSTM, "layers": 1, "peephole": True},
    "coupled": {**LSTM, "layers": 1, "coupled": True, "bias": False},
    "transformer on GRU": [GRU, {**CAUSAL, "norm": "post"}],
}


@pytest.mark.parametrize("stack", STACKS)
def test_each_token_is_the_likeliest_by_the_states_over_all_before_it(tmp_path: Path, stack: str) -> None:
    is_packed = isinstance(STACKS[stack], dict)
    head = {"use": "lm", "context": 24} if is_packed else UNPACKED
    _, network = build(yaml(tmp_path, encoder=STACKS[stack], head=head))
    artifacts = network.artifacts
    texts = ["Rosa", "N" if is_packed else "", "One morning"]
    answers = predictor(network).stream([{"text": text} for text in texts], max_length=12)
    for text, answer in zip(texts, answers, strict=True):
        (doc,) = artifacts.featurizer.docs([{"text": text}])
        tokens, first = list[int](), [] if is_packed else [2]
        while len(tokens) < 12:
            ids = torch.tensor([[*first, *doc.ids, *tokens]])
            with torch.no_grad():
                names = network({"ids": ids, "mask": ids > 0})
                logits = network.head.logits(names["x"][:, -1], names["table"])[0]
            logits[1] = -torch.inf
            token = int(logits.argmax())
            if token == 3:
                break
            tokens.append(token)
        assert answer["generated_text"] == text + artifacts.tasks[0].kind.decode(tokens, doc)


# Export


def test_a_text_is_generated_on_all_cores_if_the_loop_reads_many_weights(
    exported: Model, gpt2: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened_sessions: list[int]
) -> None:
    bundle.write_bundle(tmp_path / "bundle", gpt2.files, exported.manifest)
    count, looped = graph_check.product_sizes(gpt2.files["model.onnx"])
    monkeypatch.setattr(session, "LARGE_MODEL_WEIGHTS", count + 1)
    text = prompts(3)[2]
    for least, threads in ((looped + 1, [1]), (looped, [1, 2])):
        opened_sessions.clear()
        monkeypatch.setattr(session, "LARGE_LOOP", least)
        model = open_bundle(tmp_path / "bundle", "cpu", threads=2)
        assert model(text, max_length=MAX_TOKENS) == exported(text, max_length=MAX_TOKENS)
        assert [*model.stream(text, max_length=MAX_TOKENS)] == [*exported.stream(text, max_length=MAX_TOKENS)]
        assert opened_sessions == threads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cache: cache.clear(), "lacks or misstates cache, which the answer kind generation needs"),
        (lambda cache: cache.pop(), "disagree about past.0"),
        (lambda cache: cache[1].update(input="kept.0"), "disagree about kept.0, past.0"),
        (lambda cache: cache[1].update(output="future.0"), "disagree about future.0"),
        (lambda cache: cache[1].update(output="tokens"), "disagree about tokens"),
        (lambda cache: cache[1].update(dtype="int64"), "cache.2: the dtype int64 does not match its axes"),
    ],
)
def test_a_cache_that_the_graph_has_not_is_refused(gpt2: Peer, change: Any, message: str, tmp_path: Path) -> None:
    content = toy_bundles.manifest_content(gpt2.exported.manifest)
    change(content["cache"])
    with pytest.raises(BundleError, match=message):
        open_bundle(toy_bundles.write_bundle(tmp_path / "lm", gpt2.files, content), "cpu", 1)


def test_a_caller_may_ask_for_as_many_tokens_as_a_table_has_positions(tmp_path: Path) -> None:
    config, network = build(yaml(tmp_path, encoder={**CAUSAL, "positions": "learned", "longest": 150}))
    manifest = bundle_manifest(TrainedPipeline(network, config))
    assert manifest.options["max_length"]["maximum"] == manifest.limits.tokens == 150 - network.head.adds_bos


def test_a_graph_that_forgets_its_past_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, network = build(yaml(tmp_path, encoder=LSTM))
    pipeline = TrainedPipeline(network, config)
    records = [{"text": text, "record_continues": False} for text in prompts(8)]
    run_all = GraphSession.run_all

    def forget(self: GraphSession, feeds: Arrays) -> Arrays:
        return run_all(self, {name: array for name, array in feeds.items() if not name.startswith("past.")})

    monkeypatch.setattr(GraphSession, "run_all", forget)
    with pytest.raises(ParityError, match="decisions differ"):
        export_bundle(pipeline, records, tmp_path / "bundle", QUIET)
    assert not (tmp_path / "bundle").exists()
    options = {name: option for name, option in pipeline.options.items() if name != "min_length"}
    with pytest.raises(PluginError, match="LM continues texts without the decode option 'min_length'; add it"):
        compare_runs(DecisionParity(network, dict, dict, options), [])


# Prompts and options that are refused


def test_prompts_that_are_too_long_or_empty_are_refused(gpt2: Peer, exported: Model) -> None:
    with pytest.raises(DataError, match=r"record 1: \d+ tokens exceed the limit of 64; "):
        gpt2.texts([" ".join(WORDS[:80])])
    with pytest.raises(DataError, match="record 2: empty prompt: this model needs at least one token"):
        gpt2.texts(["Rosa", ""])
    with pytest.raises(UsageError, match="leave beams out"):
        exported.stream("Rosa", beams=3)


def test_64_prompts_of_a_long_text_are_compared(gpt2: Peer) -> None:
    text = " ".join(WORDS)
    prompts = prompt_records([{"text": text}], gpt2.featurizer.docs, "text", 24)
    assert len(prompts) == 64
    assert all(prompt["text"] in text for prompt in prompts)


def test_a_text_stops_where_the_context_is_full(gpt2: Peer) -> None:
    (doc,) = gpt2.featurizer.docs([{"text": " ".join(WORDS[:25])}])
    assert 30 < len(doc) < 64
    options = option_arrays(gpt2.ours.options, {}) | {"max_length": np.zeros(100)}
    tokens = gpt2.ours.run(gpt2.featurizer.collate([doc]) | options)["tokens"]
    assert (tokens > 0).sum() <= 65 - len(doc)


def test_a_minimum_length_that_the_context_has_no_room_for_is_refused(gpt2: Peer) -> None:
    text = " ".join(WORDS[:25])
    (doc,) = gpt2.featurizer.docs([{"text": text}])
    room = 65 - len(doc)  # the last token is written and never read
    short = gpt2.exported("a", max_length=64, min_length=room + 1)  # after a shorter prompt there is room
    assert len(short["generated_text"]) > 1
    gpt2.exported(text, max_length=100, min_length=room)
    message = rf"min_length: {room + 1} tokens do not fit: after a prompt of {len(doc)} the context has {room}; "
    with pytest.raises(DataError, match=message):
        gpt2.exported(text, max_length=100, min_length=room + 1)
    with pytest.raises(DataError, match=rf"record 2: {message}"):
        gpt2.exported(["a", text], max_length=100, min_length=room + 1)


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"encoder": "transformer"}, "generates token by token, and this encoder is not causal, .*; set causal: true"),
    ({"encoder": "lstm"}, "and this encoder is not causal, .*; set direction: forward"),
    ({"encoder": "cnn"}, "and this encoder is not causal, .*; choose"),
    ({"embedding": ["lookup", "positions"]}, "this embedding reads whole texts only.*; choose lookup"),
    ({"embedding": ["lookup", "char-cnn"]}, "this embedding reads more of a token than its.*; choose lookup"),
    ({"encoder": {"use": "lstm", "directions": "forward"}}, "no such option"),
    ({"encoder": GRU, "head": {**UNPACKED, "stateful": True}}, "initial state: set packed: true, or stateful: false"),
    ({"encoder": CAUSAL, "head": STATEFUL}, "it has no state for stateful training; choose lstm, gru or rnn, or set"),
    ({"embedding": {"use": "lookup", "dim": 8, "column": "mood"}}, "packed texts are cut anywhere: set packed: false"),
    ({"head": {"use": "lm", "carry": True}}, r"head\.carry: 'lm' has no such option; it is now called 'stateful'$"),
]


@pytest.mark.parametrize(("changes", "message"), MISFITS)
def test_a_yaml_whose_parts_do_not_fit_has_one_problem(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(yaml(tmp_path, **changes))
    assert len(caught.value.problems) == 1


def test_widths_that_cannot_be_tied_are_refused_by_check(tmp_path: Path) -> None:
    done = seqpipe("check", yaml(tmp_path, encoder={**LSTM, "hidden": 8}), folder=tmp_path)
    assert (done.code, "make them equal, or set tie: false" in done.err) == (2, True)


# Commands


def test_a_bundle_streams_what_it_predicts_and_is_scored_without_decoding() -> None:
    example, lines = gallery("generation"), b"a lovely\na sad\n"
    answered = seqpipe("predict", example.bundle, "--option", "max_length=9", stdin=lines)
    streamed = seqpipe("predict", example.bundle, "--stream", "--option", "max_length=9", stdin=lines)
    texts = [json.loads(line)["generated_text"] for line in answered.out.splitlines()]
    assert streamed.out == "".join(f"{text}\n" for text in texts)
    data = ("--data", example.folder / "test.jsonl")
    scored = seqpipe("evaluate", example.bundle, *data, "--json")
    assert json.loads(scored.out)["test.jsonl"] == pytest.approx(example.scores)
    fail_with(2, "beams: perplexity needs no decoding", "evaluate", example.bundle, *data, "--beams", "2")


MOODS = (("bad", "grim"), ("good", "bright"))


def test_a_column_determines_how_a_text_continues(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "moods.jsonl", [{"text": f"the day was {word}.", "mood": mood} for mood, word in MOODS] * 30)
    data = {"reader": "jsonl", "train": "moods.jsonl", "dev": "moods.jsonl"}
    embedding = {"use": "lookup", "dim": 16, "column": "mood"}
    train = {"epochs": 12, "batch_size": 8, "threads": 1, "optimizer": {"use": "adamw", "lr": 0.02}}
    path = yaml(tmp_path, data=data, embedding=embedding, encoder=GRU, head=UNPACKED, train=train)
    succeed("run", path, folder=tmp_path)
    run, moods = tmp_path / "runs" / "lm", tmp_path / "moods.jsonl"
    lines = "".join(json.dumps({"mood": mood, "text": "the day was "}) + "\n" for mood, _ in MOODS)
    answered = seqpipe("predict", run / "bundle", "--format", "jsonl", "--option", "beams=3", stdin=lines.encode())
    texts = [json.loads(line)["answer"]["generated_text"] for line in answered.out.splitlines()]
    assert texts == [f"the day was {word}." for _, word in MOODS], answered.err
    assert seqpipe("predict", run / "bundle", "--stream", stdin=b"bad\tthe day was \n").out == "the day was grim.\n"
    scored = seqpipe("evaluate", run / "bundle", "--data", moods, "--json", "--by", "mood")
    scores = json.loads(scored.out)["moods.jsonl"]
    assert max(score["perplexity"] for score in scores.values()) < 1.2
    refused = seqpipe("predict", run / "bundle", stdin=b"angry\tthe day was \n")
    message = "field 'mood' is 'angry'; use a value of the training data: 'bad', 'good'"
    assert (refused.code, message in refused.err) == (3, True)
    without = seqpipe("predict", run / "bundle", stdin=b"the day was \n")
    assert "this is one text; write mood<TAB>text" in without.err
    shutil.copytree(run / "bundle", tmp_path / "shipped")
    flags = ("--data", moods, "--by", "mood", "--json", "--resamples", "100")
    (test,) = json.loads(seqpipe("compare", run, "shipped", *flags, folder=tmp_path).out)["tests"]
    assert {row["name"]: row["second"] for row in test["scores"]} == pytest.approx(scores[""])
    assert {row["name"] for row in test["groups"]} == {f"mood={mood}" for mood, _ in MOODS}
    assert (test["scores"][0]["p"], test["changes"], test["records"]) == (1.0, {}, 60)
    fail_with(2, "no test set; name a file with --data", "compare", run, "shipped", folder=tmp_path)
