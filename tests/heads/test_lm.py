"""Language models against `transformers` with the same weights, against NumPy, and against themselves."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forged
import numpy as np
import pytest
import torch
import transformers
from factory import seqpipe
from pretrained import decoder

from seqpipe import load as open_bundle
from seqpipe.config.loader import Config, load
from seqpipe.config.yaml import dump
from seqpipe.console import Console
from seqpipe.errors import BundleError, ConfigError, DataError, ParityError, PluginError, UsageError
from seqpipe.export.exporter import bundle_files, bundle_manifest, export
from seqpipe.export.graph import to_onnx
from seqpipe.export.parity.decisions import DecisionParity
from seqpipe.export.parity.gate import compare_runs
from seqpipe.features.document import Arrays
from seqpipe.nn.recurrent import Recurrent
from seqpipe.runtime import bundle, graph_check, session
from seqpipe.runtime.decode_options import random_numbers
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.manifest import next_inputs
from seqpipe.runtime.model import Model
from seqpipe.runtime.session import GraphSession
from seqpipe.runtime.text_scores import ScoredText, text_scores
from seqpipe.training.datasets import read
from seqpipe.training.evaluation import option_table, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WRITTEN = 20  # tokens behind a prompt
HEAD = {"use": "lm", "packed": False}
MOODS = (("bad", "grim"), ("good", "bright"))


def words() -> list[str]:
    return TALES.read_text(encoding="utf-8").split()[:6000]


def prompts(count: int) -> list[str]:
    """Texts of 1 to 8 words."""
    random, every = np.random.default_rng(0), words()
    return [" ".join(every[20 * i : 20 * i + int(random.integers(1, 9))]) for i in range(count)]


def yaml(folder: Path, **changes: Any) -> Path:
    text = folder / "text.txt"
    text.write_text(" ".join(words()[:2000]), encoding="utf-8")
    content: dict[str, Any] = {
        "name": "lm",
        "data": {"reader": "text", "train": str(text), "dev": str(text)},
        "tokenizer": "chars",
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "transformer", "causal": True, "heads": 2, "positions": "learned", "longest": 24},
        "head": {"use": "lm", "context": 24},
        "train": {"epochs": 1, "epoch_steps": 3, "batch_size": 4, "threads": 1},
    }
    path = folder / "lm.yaml"
    path.write_text(dump(content | changes), encoding="utf-8")
    return path


def built(path: Path) -> tuple[Config, Pipeline]:
    config = load(path)
    torch.manual_seed(0)
    return config, Pipeline(config, fit_artifacts(config, read(config.data.reader, config.data.train, 200))).eval()


def untorn(text: str) -> str:
    """The text up to its last whole character: an untrained model writes any bytes."""
    return text.rstrip("\ufffd")


class Peer:
    """A checkpoint as `transformers` runs it, and as we do."""

    def __init__(self, folder: Path, family: str):
        self.folder = decoder(folder / family, family, [" ".join(words())])
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(self.folder).eval()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(self.folder)
        stage = {"checkpoint": str(self.folder)}
        self.config, self.pipeline = built(
            yaml(
                folder,
                tokenizer={"use": "pretrained", **stage},
                embedding=[],
                encoder={"use": "pretrained-decoder", **stage},
            )
        )
        self.ours = predictor(self.pipeline, self.config)

    def texts(self, given: Sequence[str], **options: Any) -> list[str]:
        answers = self.ours.stream([{"text": text} for text in given], **options)
        return [untorn(answer["generated_text"]) for answer in answers]

    def theirs(self, text: str, **options: Any) -> tuple[str, list[int]]:
        """What `transformers` writes behind a prompt."""
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        ends = options.pop("eos_token_id", [0])
        made = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=WRITTEN,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=ends,
            **options,
        )[0, ids.shape[1] :].tolist()
        written = made[: made.index(0)] if 0 in made else made
        return untorn(self.tokenizer.decode(ids[0].tolist() + written)), written


def test_a_caller_may_ask_for_as_many_tokens_as_a_table_has_positions(tmp_path: Path) -> None:
    encoder = {"use": "transformer", "causal": True, "heads": 2, "positions": "learned", "longest": 150}
    config, pipeline = built(yaml(tmp_path, encoder=encoder))
    stated = bundle_manifest(pipeline, config, option_table(*config.head), {})
    assert stated.options["max_length"]["maximum"] == stated.limits.tokens == 150 - pipeline.head.adds_bos


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return Peer(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return Peer(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture(scope="module")
def files(gpt2: Peer) -> dict[str, bytes]:
    graph = to_onnx(gpt2.pipeline, option_table(*gpt2.config.head), gpt2.config.export.opset)
    weights = sum(p.numel() for p in gpt2.pipeline.parameters())
    assert len(graph) < 4 * weights + 500_000  # they stand in it once
    return bundle_files(gpt2.pipeline, graph)


@pytest.fixture(scope="module")
def exported(gpt2: Peer, files: dict[str, bytes]) -> Model:
    manifest = bundle_manifest(gpt2.pipeline, gpt2.config, option_table(*gpt2.config.head), {})
    return Model(bundle.BundleContent(gpt2.config.file, manifest, files), "cpu", 1)


def test_a_text_is_generated_on_all_cores_if_the_loop_reads_many_weights(
    exported: Model,
    files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened_sessions: list[int],
) -> None:
    bundle.write(tmp_path / "bundle", files, exported.manifest)
    count, looped = graph_check.product_sizes(files["model.onnx"])
    monkeypatch.setattr(session, "LARGE", count + 1)
    text = prompts(3)[2]
    for least, threads in ((looped + 1, [1]), (looped, [1, 2])):
        opened_sessions.clear()
        monkeypatch.setattr(session, "LARGE_LOOP", least)
        model = open_bundle(tmp_path / "bundle", "cpu", threads=2)
        assert model(text, max_length=WRITTEN) == exported(text, max_length=WRITTEN)
        assert [*model.stream(text, max_length=WRITTEN)] == [*exported.stream(text, max_length=WRITTEN)]
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
def test_a_cache_that_the_graph_has_not_is_refused(
    exported: Model,
    files: dict[str, bytes],
    change: Callable[[list[dict[str, Any]]], object],
    message: str,
    tmp_path: Path,
) -> None:
    content = forged.plain(exported.manifest)
    change(content["cache"])
    with pytest.raises(BundleError, match=message):
        open_bundle(forged.write(tmp_path / "lm", files, content), "cpu", 1)


def test_greedy_texts_of_a_ragged_batch_are_those_of_transformers(peer: Peer) -> None:
    given = prompts(200)
    expected = [peer.theirs(text) for text in given]
    assert peer.texts(given, max_length=WRITTEN) == [text for text, _ in expected]
    assert len({token for _, tokens in expected for token in tokens}) >= 30


def test_beam_search_finds_what_that_of_transformers_finds(peer: Peer) -> None:
    given = prompts(60)
    search = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"}
    assert peer.texts(given, max_length=WRITTEN, beams=4) == [peer.theirs(text, **search)[0] for text in given]


def test_a_lost_position_would_be_seen(gpt2: Peer) -> None:
    positions = gpt2.pipeline.encoder[0].positions
    assert isinstance(positions, torch.Tensor)
    kept = positions.detach().clone()
    with torch.no_grad():
        positions.copy_(kept.roll(1, 0))
    given = prompts(5)
    try:
        assert gpt2.texts(given, max_length=WRITTEN) != [gpt2.theirs(text)[0] for text in given]
    finally:
        with torch.no_grad():
            positions.copy_(kept)


def test_what_was_written_is_made_less_likely_as_transformers_does(gpt2: Peer) -> None:
    given = prompts(30)
    expected = [gpt2.theirs(text, repetition_penalty=1.5)[0] for text in given]
    assert gpt2.texts(given, max_length=WRITTEN, repetition_penalty=1.5) == expected


def test_a_text_has_its_least_length(gpt2: Peer) -> None:
    given = prompts(30)
    expected = [gpt2.theirs(text, min_new_tokens=6)[0] for text in given]
    assert gpt2.texts(given, max_length=WRITTEN, min_length=6) == expected


def test_a_text_ends_before_a_stop_text(gpt2: Peer) -> None:
    given, stops = prompts(30), ("e", "a k")
    continuations = [(text, gpt2.theirs(text)[0].removeprefix(text)) for text in given]
    for stop in stops:
        expected = [untorn(text + continuation.partition(stop)[0]) for text, continuation in continuations]
        assert gpt2.texts(given, max_length=WRITTEN, stop=stop) == expected
    assert any(stop in continuation for stop in stops for _, continuation in continuations)


def test_the_graph_writes_what_pytorch_writes(gpt2: Peer, exported: Model) -> None:
    given = prompts(40)
    options: list[dict[str, Any]] = [{}, {"beams": 3, "n_best": 2}, {"seed": 3, "temperature": 1.3, "top_p": 0.9}]
    for chosen in options:
        ours = list(gpt2.ours.stream([{"text": text} for text in given], max_length=WRITTEN, **chosen))
        theirs = exported(given, max_length=WRITTEN, **chosen)
        for one, other in zip(ours, theirs, strict=True):
            pairs = zip(
                one if isinstance(one, list) else [one], other if isinstance(other, list) else [other], strict=True
            )
            assert all(a["generated_text"] == b["generated_text"] for a, b in pairs)


def test_sampled_tokens_are_those_of_numpy_with_the_same_numbers(gpt2: Peer, exported: Model) -> None:
    """Temperature, then the likeliest k, then the fewest with a share of p, then inverse CDF, in float64."""
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
    featurizer, seen = gpt2.pipeline.artifacts.featurizer, 0
    for text in prompts(12):
        (doc,) = featurizer.docs([{"text": text}])
        numbers = random_numbers(7, doc, 1, WRITTEN)[0].astype(np.float64)
        ids = gpt2.tokenizer(text)["input_ids"]
        written = reference(gpt2.model, ids, numbers, **settings)
        drawn = exported(text, seed=7, max_length=WRITTEN, **settings)["generated_text"]
        assert untorn(drawn) == untorn(gpt2.tokenizer.decode(ids + written))
        seen += len(written)
    assert seen > 100


def reference(
    model: Any, ids: list[int], numbers: np.ndarray, temperature: float, top_k: int, top_p: float
) -> list[int]:
    written: list[int] = []
    for number in numbers:
        with torch.no_grad():
            logits = model(torch.tensor([ids + written])).logits[0, -1].double().numpy()
        order = np.argsort(-logits, kind="stable")[:top_k]
        p = np.exp((logits[order] - logits[order[0]]) / temperature)
        p /= p.sum()
        kept = p[: np.searchsorted(np.cumsum(p), top_p) + 1]
        token = int(order[min(np.searchsorted(np.cumsum(kept), number * kept.sum(), side="right"), len(kept) - 1)])
        if token == 0:
            break
        written.append(token)
    return written


@pytest.mark.parametrize("options", [{}, {"seed": 5}, {"repetition_penalty": 1.4}, {"stop": "e", "min_length": 9}])
def test_a_text_in_pieces_is_the_whole_text(exported: Model, options: dict[str, Any]) -> None:
    for text in prompts(6):
        pieces = list(exported.stream(text, max_length=WRITTEN, **options))
        assert text + "".join(pieces) == exported(text, max_length=WRITTEN, **options)["generated_text"]
    assert len(pieces) > 1 or options


def test_an_imported_cache_continues_a_ragged_batch_like_the_whole_texts(exported: Model) -> None:
    featurizer, short = exported.predictor.featurizer, {"max_length": np.zeros(5, np.int64)}
    docs = featurizer.docs([{"text": text} for text in ("Nele", "Rosa the owl lived on a green hill", "One morning")])
    first = exported.graph.run_with_cache(featurizer.collate(docs) | short)
    assert (first["tokens"] > 3).all()  # none has ended
    last = {"ids": first["tokens"][:, 0, -1:], "mask": np.ones((3, 1), bool)}
    second = exported.run(last | next_inputs(exported.graph.cache, first) | short)
    longer = [
        type(doc)(doc.text, [], [], [*doc.ids, *tokens])
        for doc, tokens in zip(docs, first["tokens"][:, 0].tolist(), strict=True)
    ]
    anew = exported.run(featurizer.collate(longer) | short)
    assert (second["tokens"] == anew["tokens"]).all()
    assert np.abs(second["scores"] - anew["scores"]).max() < 1e-4


def test_perplexity_is_that_of_the_tokens_one_by_one(gpt2: Peer) -> None:
    text = " ".join(words()[:60])
    found = evaluate(gpt2.ours, [{"text": text}])[""]
    ids = gpt2.tokenizer(text)["input_ids"]
    losses: list[float] = []
    for start in range(0, len(ids) - 1, 24):
        window = torch.tensor([ids[start : start + 25]])
        with torch.no_grad():
            log_p = gpt2.model(window).logits.log_softmax(2)[0, :-1]
        losses += (-log_p.gather(1, window[0, 1:, None])[:, 0]).tolist()
    assert len(losses) == len(ids) - 1
    assert abs(found["loss"] - np.mean(losses)) < 1e-4
    assert abs(found["bits_per_character"] - np.sum(losses) / np.log(2) / len(text)) < 1e-4


def test_the_log_probability_of_a_text_is_that_of_transformers(peer: Peer) -> None:
    texts = prompts(12)
    found = [score.log_p for score in text_scores(peer.ours, [ScoredText({"text": text}) for text in texts])]
    for text, log_p in zip(texts, found, strict=True):
        ids = torch.tensor([[0, *peer.tokenizer(text)["input_ids"]]])  # behind the end of another text
        with torch.no_grad():
            expected = peer.model(ids).logits[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None]).sum()
        assert log_p == pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize("use", ["rnn", "gru", "lstm"])
def test_a_recurrent_model_writes_what_its_states_over_the_whole_text_say(tmp_path: Path, use: str) -> None:
    encoder = {"use": use, "hidden": 16, "layers": 2, "direction": "forward"}
    config, pipeline = built(yaml(tmp_path, encoder=encoder))
    assert_greedy(config, pipeline, ["Rosa", "N", "One morning"])


@pytest.mark.parametrize("changes", [{"peephole": True}, {"coupled": True, "bias": False}])
def test_a_cell_of_ours_writes_so_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    encoder = {"use": "lstm", "hidden": 16, "layers": 1, "direction": "forward", **changes}
    config, pipeline = built(yaml(tmp_path, encoder=encoder))
    assert_greedy(config, pipeline, ["Rosa", "N"])


def test_encoders_on_top_of_each_other_write_so_too(tmp_path: Path) -> None:
    causal = {"use": "transformer", "causal": True, "heads": 2, "norm": "post"}
    encoder = [{"use": "gru", "hidden": 16, "direction": "forward"}, causal]
    config, pipeline = built(yaml(tmp_path, encoder=encoder, head={"use": "lm", "packed": False}))
    assert_greedy(config, pipeline, ["Rosa", "", "One morning"])


def assert_greedy(config: Config, pipeline: Pipeline, given: Sequence[str]) -> None:
    """Each token is the likeliest one, by the stages' own `forward` over all before it."""
    head: Any = pipeline.head
    artifacts = pipeline.artifacts
    answers = predictor(pipeline, config).stream([{"text": text} for text in given], max_length=12)
    for text, answer in zip(given, answers, strict=True):
        (doc,) = artifacts.featurizer.docs([{"text": text}])
        ids = [2, *doc.ids] if head.adds_bos else list(doc.ids)
        written: list[int] = []
        while len(written) < 12:
            whole = torch.tensor([ids + written])
            with torch.no_grad():
                names = pipeline({"ids": whole, "mask": whole > 0})
                logits = head.logits(names["x"][:, -1], names["table"])[0]
            logits[1] = -torch.inf
            token = int(logits.argmax())
            if token == 3:
                break
            written.append(token)
        assert answer["generated_text"] == text + artifacts.tasks[0].kind.decode(written, doc)


def gate(folder: Path) -> None:
    """Exports an untrained model as a run does, with the comparison that a run makes."""
    config, pipeline = built(yaml(folder, encoder={"use": "lstm", "hidden": 16, "direction": "forward"}))
    export(
        pipeline,
        config,
        [{"text": text, "record_continues": False} for text in prompts(8)],
        folder / "bundle",
        Console(-1),
    )


def test_a_graph_that_forgets_its_past_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = GraphSession.run_all

    def forgets(self: GraphSession, feeds: Arrays) -> Arrays:
        return right(self, {name: array for name, array in feeds.items() if not name.startswith("past.")})

    monkeypatch.setattr(GraphSession, "run_all", forgets)
    with pytest.raises(ParityError, match="decisions differ"):
        gate(tmp_path)
    assert not (tmp_path / "bundle").exists()


def test_an_encoder_that_keeps_something_else_than_it_reads_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate(tmp_path)
    export_cache = Recurrent.export_cache
    monkeypatch.setattr(Recurrent, "export_cache", lambda self, *rest: 0.5 * export_cache(self, *rest))  # on both sides
    with pytest.raises(ParityError, match="a text in chunks"):
        gate(tmp_path)


def test_a_head_that_continues_texts_needs_the_options_of_their_length(tmp_path: Path) -> None:
    config, pipeline = built(yaml(tmp_path, encoder={"use": "lstm", "hidden": 16, "direction": "forward"}))
    options = {name: option for name, option in option_table(*config.head).items() if name != "min_length"}
    with pytest.raises(PluginError, match="LM continues texts without the decode option 'min_length'; add it"):
        compare_runs(DecisionParity(pipeline, dict, dict, options), [])


class TestBadInput:
    def test_a_prompt_that_is_too_long_is_told_by_the_context(self, gpt2: Peer) -> None:
        with pytest.raises(DataError, match=r"record 1: \d+ tokens exceed the limit of 64; "):
            gpt2.texts([" ".join(words()[:80])])

    def test_a_text_stops_where_the_context_is_full(self, gpt2: Peer) -> None:
        (doc,) = gpt2.pipeline.artifacts.featurizer.docs([{"text": " ".join(words()[:25])}])
        assert 30 < len(doc) < 64
        feeds = gpt2.pipeline.artifacts.featurizer.collate([doc])
        made = gpt2.ours.run(
            feeds | {"max_length": np.zeros(100), "beams": np.zeros(1), "n_best": np.zeros(1)} | rest(gpt2)
        )
        assert (made["tokens"] > 0).sum() <= 65 - len(doc)

    def test_an_empty_prompt_is_refused_where_texts_are_one(self, gpt2: Peer) -> None:
        with pytest.raises(DataError, match="record 2: empty prompt: this model needs at least one token"):
            gpt2.texts(["Rosa", ""])

    def test_a_stop_text_that_is_none(self, gpt2: Peer) -> None:
        with pytest.raises(UsageError, match=r"stop: must be a text or a list of non-empty texts, not \[3\]"):
            gpt2.texts(["Rosa"], stop=[3])

    @pytest.mark.parametrize("option", ["top_p", "top_k"])
    def test_nothing_to_draw_from(self, gpt2: Peer, option: str) -> None:
        with pytest.raises(UsageError, match=f"{option}: 0 is not "):
            gpt2.texts(["Rosa"], seed=1, **{option: 0})

    def test_text_that_is_shorter_than_a_window(self, tmp_path: Path) -> None:
        path = yaml(tmp_path)
        (tmp_path / "text.txt").write_text("short", encoding="utf-8")
        done = seqpipe("train", path, folder=tmp_path)
        assert done.code == 3
        assert "the text has 5 tokens, and a window needs 24 and the next one; give more text" in done.err

    def test_heads_that_do_not_divide_the_width(self, tmp_path: Path) -> None:
        encoder = {"use": "transformer", "causal": True, "heads": 3}
        with pytest.raises(ConfigError, match="heads: 3 heads do not divide the width 16; choose 1, 2, 4, 8, 16"):
            built(yaml(tmp_path, encoder=encoder))

    def test_an_encoder_that_sees_later_tokens(self, tmp_path: Path) -> None:
        for encoder, cure in (
            ("transformer", "set causal: true"),
            ("lstm", "set direction: forward"),
            ("cnn", "choose"),
        ):
            with pytest.raises(
                ConfigError, match=f"generates token by token, and this encoder is not causal, .*; {cure}"
            ):
                load(yaml(tmp_path, encoder=encoder))

    def test_an_embedding_that_needs_more_than_ids(self, tmp_path: Path) -> None:
        for embedding, cure in (
            ("positions", "reads whole texts only"),
            ("char-cnn", "reads more of a token than its"),
        ):
            with pytest.raises(ConfigError, match=f"this embedding {cure}.*; choose lookup"):
                load(yaml(tmp_path, embedding=["lookup", embedding]))

    def test_an_encoder_with_an_unknown_option_is_told_once(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no such option") as caught:
            load(yaml(tmp_path, encoder={"use": "lstm", "directions": "forward"}))
        assert len(caught.value.problems) == 1

    def test_states_that_nobody_carries(self, tmp_path: Path) -> None:
        gru = {"use": "gru", "hidden": 16, "direction": "forward"}
        for encoder, head, told in (
            (gru, {"packed": False}, "start from the initial state: set packed: true, or stateful: false"),
            (
                {"use": "transformer", "causal": True},
                {},
                "it has no state for stateful training; choose lstm, gru or rnn, or set",
            ),
        ):
            with pytest.raises(ConfigError, match=told):
                load(yaml(tmp_path, encoder=encoder, head={"use": "lm", "stateful": True, **head}))

    def test_the_old_name_of_an_option(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"head\.carry: 'lm' has no such option; it is now called 'stateful'$"):
            load(yaml(tmp_path, head={"use": "lm", "carry": True}))

    def test_widths_that_cannot_be_tied(self, tmp_path: Path) -> None:
        encoder = {"use": "lstm", "hidden": 8, "direction": "forward"}
        done = seqpipe("check", yaml(tmp_path, encoder=encoder), folder=tmp_path)
        assert done.code == 2
        assert "make them equal, or set tie: false" in done.err

    def test_several_texts_cannot_come_as_they_are_written(self, exported: Model) -> None:
        with pytest.raises(UsageError, match="leave beams out"):
            exported.stream("Rosa", beams=3)


def rest(peer: Peer) -> dict[str, np.ndarray]:
    """The options of a run but for sizes."""
    from seqpipe.runtime.decode_options import option_arrays

    arrays = option_arrays(peer.ours.options, {})
    return {name: one for name, one in arrays.items() if name not in ("max_length", "beams", "n_best")}


def test_it_goes_from_a_text_to_a_bundle_that_streams(tmp_path: Path) -> None:
    done = seqpipe("run", yaml(tmp_path), folder=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "lm" / "bundle"
    answered = seqpipe("predict", folder, "--option", "max_length=9", stdin=b"Rosa\nOne\n")
    assert answered.code == 0, answered.err
    streamed = seqpipe("predict", folder, "--stream", "--option", "max_length=9", stdin=b"Rosa\nOne\n")
    texts = [answer["generated_text"] for answer in map(json.loads, answered.out.splitlines())]
    assert streamed.out == "".join(f"{text}\n" for text in texts)
    scored = seqpipe("evaluate", folder, "--data", tmp_path / "text.txt", "--json")
    assert scored.code == 0, scored.err
    decoded = seqpipe("evaluate", folder, "--data", tmp_path / "text.txt", "--beams", "2")
    assert (decoded.code, "beams: perplexity needs no decoding" in decoded.err) == (2, True)
    model = open_bundle(folder, "cpu")
    assert [*itertools.islice(model.stream("Rosa"), 1)]


class TestAColumn:
    """A label whose vector is added to that of every token."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("column")
        rows = [{"text": f"the day was {word}.", "mood": mood} for mood, word in MOODS for _ in range(30)]
        (folder / "moods.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        cls.yaml(folder)
        done = seqpipe("run", folder / "lm.yaml", folder=folder)
        assert done.code == 0, done.err
        return folder

    @staticmethod
    def yaml(folder: Path, **changes: Any) -> Path:
        data = {"reader": "jsonl", "train": "moods.jsonl", "dev": "moods.jsonl"}
        embedding = {"use": "lookup", "dim": 16, "column": "mood"}
        train = {"epochs": 12, "batch_size": 8, "threads": 1, "optimizer": {"use": "adamw", "lr": 0.02}}
        return yaml(folder, **{"data": data, "embedding": embedding, "head": HEAD, "train": train} | changes)

    def test_it_says_how_a_text_goes_on(self, folder: Path) -> None:
        bundle = folder / "runs" / "lm" / "bundle"
        lines = "".join(json.dumps({"mood": mood, "text": "the day was "}) + "\n" for mood, _ in MOODS)
        answered = seqpipe("predict", bundle, "--format", "jsonl", "--option", "beams=3", stdin=lines.encode())
        assert answered.code == 0, answered.err
        texts = [json.loads(line)["answer"]["generated_text"] for line in answered.out.splitlines()]
        assert texts == [f"the day was {word}." for _, word in MOODS]
        streamed = seqpipe("predict", bundle, "--stream", stdin=b"bad\tthe day was \n")
        assert streamed.out == "the day was grim.\n"
        scored = seqpipe("evaluate", bundle, "--data", folder / "moods.jsonl", "--json", "--by", "mood")
        assert scored.code == 0, scored.err
        assert max(one["perplexity"] for one in json.loads(scored.out)["moods.jsonl"].values()) < 1.2

    def test_it_is_compared_by_the_perplexity_of_texts(self, folder: Path) -> None:
        run, data = folder / "runs" / "lm", folder / "moods.jsonl"
        with contextlib.chdir(folder):
            shutil.copytree(run / "bundle", "shipped", dirs_exist_ok=True)
            done = seqpipe("compare", run, "shipped", "--data", data, "--by", "mood", "--json", "--resamples", "100")
        assert done.code == 0, done.err
        (test,) = json.loads(done.out)["tests"]
        evaluated = seqpipe("evaluate", "shipped", "--data", data, "--json", folder=folder)
        scores = json.loads(evaluated.out)["moods.jsonl"]
        assert {row["name"]: row["second"] for row in test["scores"]} == pytest.approx(scores)
        assert {row["name"] for row in test["groups"]} == {f"mood={mood}" for mood, _ in MOODS}
        assert (test["scores"][0]["p"], test["changes"], test["records"]) == (1.0, {}, 30 * len(MOODS))
        refused = seqpipe("compare", run, "shipped", folder=folder)
        assert (refused.code, "no test set; name a file with --data" in refused.err) == (2, True)

    def test_another_value_is_refused_by_name(self, folder: Path) -> None:
        bundle = folder / "runs" / "lm" / "bundle"
        done = seqpipe("predict", bundle, stdin=b"angry\tthe day was \n")
        assert done.code == 3
        assert "field 'mood' is 'angry'; use a value of the training data: 'bad', 'good'" in done.err
        alone = seqpipe("predict", bundle, stdin=b"the day was \n")
        assert "this is one text; write mood<TAB>text" in alone.err

    def test_packed_texts_have_none(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="packed texts are cut anywhere: set packed: false"):
            load(self.yaml(tmp_path, head={"use": "lm"}))
