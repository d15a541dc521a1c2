"""Strings of language models: stop texts, forbidden texts, whole characters, counts of tokens."""

import copy
import itertools
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gallery import Recipe
from serving import Server
from tiny_pipelines import seqpipe, succeed, tiers, write_yaml

from seqpipe import Model, UsageError, load
from seqpipe.answers.text import GeneratedText, Generation
from seqpipe.features.sources import TextSource
from seqpipe.runtime.opened import same_answer
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.words import WordsTokenizer

WORDS = ["été", "crème", "ñandú", "고양이가", "강아지는", "잔다", "来る", "郎が", "😀", "👍🏽", "🇨🇭", "👩‍💻", "می‌روم"]
PROMPTS = ["고양이가", "😀", "été", "👩‍💻 ", "R"]


@pytest.mark.parametrize(
    ("tokenizer", "word", "text"), [(WordsTokenizer(), "day", " day"), (CharsTokenizer(), "d", "d")]
)
def test_a_continuation_begins_with_the_blank_that_joins_words(tokenizer: Any, word: str, text: str) -> None:
    trained = tokenizer.train(["a good day"])
    (doc,) = TextSource(trained, {}, lossless=True).docs([{"text": "a good"}])
    assert Generation(trained, adds_bos=True, context=9).decode([trained.token_to_id(word)], doc) == text


def write_strings(folder: Path) -> Path:
    draw = random.Random(0)
    for name, count in (("train", 150), ("dev", 15)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) + draw.choice([".", "!"]) for _ in range(count)]
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    content = {
        "data": {"reader": {"use": "text", "unit": "line"}, "train": "train.txt", "dev": "dev.txt"},
        "tokenizer": {"use": "bpe", "max_size": 270, "byte_level": True},
        "embedding": {"use": "lookup", "dim": 24},
        "encoder": {"use": "gru", "hidden": 24, "direction": "forward"},
        "head": {"use": "lm", "context": 32},
        "train": {"epochs": 2, "batch_size": 4, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
    }
    return write_yaml(folder, "strings", **content)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a model whose pieces are bytes: nearly every character has several."""
    folder = tmp_path_factory.mktemp("bytes")
    Recipe(write_strings).make(folder)
    return folder / "runs" / "strings" / "bundle"


@pytest.fixture(scope="module")
def model(bundle: Path) -> Model:
    return load(bundle, "cpu", threads=1)


def continued(model: Model, prompt: str, **options: Any) -> str:
    text: str = model(prompt, **options)["generated_text"]
    assert text.startswith(prompt)
    return text[len(prompt) :]


def test_temperature_0_is_the_likeliest_token(model: Model) -> None:
    for prompt in PROMPTS:
        greedy = continued(model, prompt, max_length=30)
        for options in ({}, {"seed": 3}, {"top_p": 0.5}, {"top_k": 4, "seed": 9}):
            assert continued(model, prompt, max_length=30, temperature=0, **options) == greedy
        several = model(prompt, max_length=30, temperature=0, beams=2, n_best=2)
        assert [answer["generated_text"] for answer in several] == [prompt + greedy] * 2
    with pytest.raises(UsageError, match="temperature: it has an effect only with sampling: give seed too"):
        model("R", temperature=0.5)


@pytest.mark.parametrize("drawn", [{"seed": 5}, {"seed": 6, "temperature": 1.5}])
def test_a_text_cut_by_its_length_ends_at_a_whole_character(model: Model, drawn: dict[str, Any]) -> None:
    torn = 0
    for prompt in PROMPTS:
        longest, before = continued(model, prompt, max_length=40, **drawn), ""
        for length in range(1, 40):
            text = model(prompt, max_length=length, **drawn)["generated_text"]
            written = text.removeprefix(prompt)
            # A model may write bytes that are no character; those that go on at the end are one that was cut.
            assert longest.startswith(written)
            streamed = list(model.stream(prompt, max_length=length, **drawn))
            assert prompt + "".join(streamed) == text
            assert (streamed[-1].tokens, streamed[-1].finish_reason) == (text.tokens, text.finish_reason)
            assert text.tokens <= length
            assert (text.finish_reason == "length") == (text.tokens == length)
            torn += written == before
            before = written
    assert torn > 5  # tokens that begin a character and show nothing


def test_a_replacement_character_that_was_written_whole_stays_and_a_text_is_copied_whole(model: Model) -> None:
    kind: Any = model.predictor.kind
    (doc,) = model.predictor.docs([{"text": "R"}])
    (written,) = model.predictor.docs([{"text": "\ufffd"}])
    assert kind.generated_text(list(written.ids), doc) == "\ufffd"
    assert kind.generated_text(list(written.ids)[:-1], doc) == ""
    text = GeneratedText("é", 2, "stop")
    for again in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert (again, again.tokens, again.finish_reason) == ("é", 2, "stop")


STOPS = ["é", " ", ".", "이가", "😀", "\u200d", " 😀", "ère", "\n", "d\u00fa ", "여기 없다"]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("drawn", [{}, {"seed": 1}, {"seed": 2, "min_length": 12}])
def test_a_text_ends_before_the_first_stop_text(model: Model, stop: str, drawn: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        whole = continued(model, prompt, max_length=40, **drawn)
        expected = whole[: whole.find(stop)] if stop in whole else whole
        for given in (stop, [stop], ["여기 없다", stop]):
            text = model(prompt, max_length=40, stop=given, **drawn)["generated_text"]
            assert text == prompt + expected
        assert stop not in whole or text.finish_reason == "stop"
        pieces = list(model.stream(prompt, max_length=40, stop=stop, **drawn))
        assert "".join(pieces) == expected
        assert pieces[-1].finish_reason == text.finish_reason
        assert text.tokens == pieces[-1].tokens <= 40
        assert not any(piece.finish_reason for piece in pieces[:-1])


def occurrences(text: str, part: str, begin: int) -> list[int]:
    """Places of a part that ends behind `begin`."""
    return [i for i in range(len(text)) if text.startswith(part, i) and i + len(part) > begin]


@pytest.mark.parametrize("forbidden", [*STOPS, "고양이가 ", "\u200c", ["é", "è"], ["ème", " ", "가!"]], ids=repr)
@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"beams": 3, "n_best": 3}, {"seed": 2, "temperature": 2.0}])
def test_a_forbidden_text_is_never_written(model: Model, forbidden: Any, options: dict[str, Any]) -> None:
    banned = forbidden if isinstance(forbidden, list) else [forbidden]
    answers = model(PROMPTS, max_length=40, forbidden=forbidden, **options)
    free = model(PROMPTS, max_length=40, **options)
    for prompt, answer, without in zip(PROMPTS, answers, free, strict=True):
        several = answer if isinstance(answer, list) else [answer]
        for alternative in several:
            assert not any(occurrences(alternative["generated_text"], text, len(prompt)) for text in banned)
        first = without[0] if isinstance(without, list) else without
        if not options and not any(occurrences(first["generated_text"], text, len(prompt)) for text in banned):
            # Nothing else changes the likeliest tokens, not even bytes that forbidden characters begin with.
            assert answer["generated_text"] == first["generated_text"]
        if "beams" not in options:
            streamed = "".join(model.stream(prompt, max_length=40, forbidden=forbidden, **options))
            alone = model(prompt, max_length=40, forbidden=forbidden, **options)
            assert prompt + streamed == answer["generated_text"] == alone["generated_text"]


def test_a_forbidden_text_may_begin_in_the_prompt(model: Model) -> None:
    for prompt in PROMPTS[:3]:
        greedy = continued(model, prompt, max_length=20)
        assert not continued(model, prompt, max_length=20, forbidden=prompt[-1] + greedy[:2]).startswith(greedy[:2])
        assert continued(model, prompt, max_length=20, forbidden="x" + greedy[:2]) == greedy


def test_a_plain_run_forbids_nothing(model: Model) -> None:
    (doc,) = model.predictor.docs([{"text": "été"}])
    feeds = model.predictor.featurizer.collate([doc])
    kind: Any = model.predictor.kind
    (row,) = model.run(feeds)["tokens"][0].tolist()
    assert kind.generated_text(row, doc) == continued(model, "été")


def test_stop_texts_of_a_batch_are_those_of_each_text(model: Model) -> None:
    options = {"max_length": 40, "stop": ["é", "가", "!"]}
    assert same_answer(model(PROMPTS, **options), [model(prompt, **options) for prompt in PROMPTS], 1e-5)


def test_the_command_line_takes_texts(bundle: Path, model: Model) -> None:
    options = ["--option", "max_length=30", "--option", "stop=è", "--option", "temperature=0"]
    expected = "고양이가" + continued(model, "고양이가", max_length=30, stop="è")
    done = seqpipe("predict", bundle, *options, "--stream", stdin="고양이가\n".encode())
    assert (done.code, done.out) == (0, expected + "\n")
    assert expected != "고양이가" + continued(model, "고양이가", max_length=30)


def test_the_server_counts_the_tokens_that_were_generated_not_characters(bundle: Path, model: Model) -> None:
    cases: list[dict[str, Any]] = [
        *({"max_tokens": length} for length in (1, 2, 5, 11)),
        {"max_tokens": 30, "stop": "è"},
    ]
    with Server(bundle) as server:
        for case, stream in itertools.product(cases, (False, True)):
            body = {"prompt": "고양이가", "temperature": 0, "stream": stream, **case}
            usage = {"stream_options": {"include_usage": True}} if stream else {}
            reply = server.post("/v1/completions", {"model": "strings", **body, **usage}).body.decode()
            parts = [part.removeprefix("data: ") for part in reply.split("\n\n") if part]
            events = [json.loads(part) for part in parts if part != "[DONE]"]
            choices = [choice for event in events for choice in event["choices"]]
            text = model("고양이가", max_length=case["max_tokens"], stop=case.get("stop"))["generated_text"]
            assert "고양이가" + "".join(choice["text"] for choice in choices) == text
            assert choices[-1]["finish_reason"] == text.finish_reason
            assert events[-1]["usage"]["completion_tokens"] == text.tokens


def random_texts(draw: random.Random, count: int) -> list[str]:
    """Return continuations of which some begin alike, and some are beginnings of others."""
    texts = {" " + " ".join(draw.choices(WORDS, k=draw.randint(1, 3))) for _ in range(count)}
    return sorted(texts | {text.rpartition(" ")[0] for text in texts if text.count(" ") > 1})


WAYS: list[dict[str, Any]] = [{}, {"beams": 3}, {"seed": 1, "temperature": 2.0}, {"seed": 2, "top_k": 3, "top_p": 0.5}]


@pytest.mark.parametrize("sizes", tiers((200, 1, 30), (10_000, 10, 200)), ids=str)
def test_only_allowed_texts_are_generated(sizes: tuple[int, int, int], model: Model) -> None:
    count, prompts, expected = sizes
    draw, outside, different = random.Random(7), 0, set()
    inputs = [prompt + "!" * n for prompt in PROMPTS for n in range(prompts)]
    for i in range(count // len(inputs)):
        allowed = random_texts(draw, draw.choice([1, 2, 5, 30]))
        for prompt, answer in zip(inputs, model(inputs, allowed=allowed, **WAYS[i % len(WAYS)]), strict=True):
            written = answer["generated_text"].removeprefix(prompt)
            outside += written not in allowed or answer["generated_text"].finish_reason != "stop"
            different.add(written)
    assert outside == 0
    assert len(different) > expected


def test_the_likeliest_allowed_texts_are_those_of_all_their_probabilities(model: Model) -> None:
    texts = [" ", " c", " n", " r", "!", ".", "e", "è", "é"]
    ranked = model("été", allowed=texts, beams=20, n_best=20)
    written = [answer["generated_text"].removeprefix("été") for answer in ranked]
    assert sorted(filter(None, written)) == texts
    alone = sorted((model("été", allowed=text)["score"] for text in texts), reverse=True)
    assert [answer["score"] for answer in ranked][: len(texts)] == pytest.approx(alone, rel=1e-3, abs=2e-6)
    assert alone[0] > 3 * alone[4] > 0


def test_a_bundle_may_be_restricted_to_texts(bundle: Path, model: Model, tmp_path: Path) -> None:
    allowed = ["R crème", "R été", "R été crème"]
    (tmp_path / "texts.txt").write_text("\n".join(allowed), encoding="utf-8")
    succeed("candidates", bundle, tmp_path / "texts.txt", "-o", tmp_path / "few", "-q")
    few = load(tmp_path / "few", "cpu")
    for prompt in PROMPTS:
        text = few(prompt)["generated_text"]
        assert text.removeprefix(prompt) in allowed
        assert text == model(prompt, allowed=allowed)["generated_text"] == prompt + "".join(few.stream(prompt))
        assert few(prompt, allowed=["!"])["generated_text"] == prompt + "!"
        assert few(prompt, allowed=None, max_length=9) == model(prompt, max_length=9)
    with pytest.raises(UsageError, match="leave stop out"):
        few("R", stop="t")
    assert few.manifest.options["allowed"]["default"] == allowed
    session = onnxruntime.InferenceSession(tmp_path / "few" / "model.onnx", providers=["CPUExecutionProvider"])
    ids = few.predictor.docs([{"text": "R"}])[0].ids
    written = session.run(["tokens"], {"ids": np.array([ids]), "mask": np.ones((1, len(ids)), bool)})[0]
    kind: Any = few.predictor.kind
    assert kind.tokenizer.decode(written[0, 0][written[0, 0] > 3].tolist()) in allowed  # the graph alone


IMPOSSIBLE_OPTIONS = [
    ({"allowed": [" été"], "forbidden": "é"}, "allowed: an allowed text is written as it is; leave forbidden out"),
    ({"allowed": [" été"], "stop": ["t"]}, "allowed: an allowed text is written as it is; leave stop out"),
    ({"allowed": [" été"], "min_length": 3}, "allowed: an allowed text is written as it is; leave min_length out"),
    ({"forbidden": ["x" * 20_000]}, "forbidden: 20,000 bytes of texts are over the limit of 16,384; give fewer"),
    ({"stop": ["y" * 20_000]}, "stop: 20,000 bytes of texts are over the limit of 16,384; give fewer"),
    (
        {"allowed": [" été"] * 90_000},
        r"allowed: the first [1-3]\d,\d+ of 90,000 texts have 65,\d+ tokens, over",
    ),
    ({"allowed": []}, "allowed: an empty list allows no text; give at least one"),
    ({"allowed": [" été"], "max_length": 3}, r"allowed: ' été' has \d tokens and an end, more than max_length 3"),
]


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE_OPTIONS)
def test_allowed_and_forbidden_texts_that_cannot_be_met_are_refused(
    model: Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        model("R", **options)


@pytest.mark.parametrize("value", ["", [""], [3], 3, {"a": 1}, [["é"]]])
@pytest.mark.parametrize("option", ["stop", "forbidden", "allowed"])
def test_texts_that_are_none(model: Model, option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{option}: must be a text or a list of non-empty texts, not"):
        model("R", **{option: value})
