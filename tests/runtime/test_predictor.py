"""Predictor around a run: order, batches, memory, documents, decode options; the run is a Python function."""

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqpipe.answers.classification import Label
from seqpipe.answers.tagging import Spans
from seqpipe.answers.text import Generation, Text
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays
from seqpipe.features.sources import TextSource
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.predictor import Predictor, batches, cores, quota
from seqpipe_plugins.tokenizers import SubwordOptions
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TOKENIZER = WordsTokenizer().train(["Bern a b c ."])
BERN = TOKENIZER.token_to_id("Bern")


class Watched:
    """Says that every Bern is a city, and keeps the shapes of the batches it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.threads: set[str] = set()

    def __call__(self, feeds: Arrays) -> Arrays:
        self.shapes.append(feeds["ids"].shape)
        self.threads.add(threading.current_thread().name)
        flat = np.zeros(feeds["ids"].shape, np.float32)
        return {"tags": (feeds["ids"] == BERN).astype(int), "scores": flat, "opens": flat, "closes": flat}


class Overflowing(Watched):
    def __call__(self, feeds: Arrays) -> Arrays:
        raise DataError("NaN")


def predictor(run: Watched | None = None, workers: int = 1, field: str = "text", **options: Any) -> Predictor:
    spans = Spans(["O", "B-city"])
    return Predictor(TextSource(TOKENIZER, {}, field), spans, run or Watched(), options, Limits(tokens=50), workers)


def city_starts(predictor: Predictor, texts: list[str], chunk: int = 1024) -> list[list[int]]:
    """Start offsets of the cities of each text."""
    return [[span["start"] for span in answer] for answer in predictor.stream(({"text": t} for t in texts), chunk)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("chunk", [1, 2, 7, 1024])
def test_answers_come_in_the_order_of_the_texts(chunk: int, workers: int) -> None:
    texts = ["a " * (i * 7 % 11) + "Bern" * (i % 3 != 0) for i in range(100)]
    expected = [[2 * (i * 7 % 11)] if i % 3 else [] for i in range(100)]
    assert city_starts(predictor(workers=workers), texts, chunk) == expected


def test_texts_of_like_length_share_a_run_and_empty_ones_need_none() -> None:
    run = Watched()
    assert city_starts(predictor(run), ["", "a b c", "Bern", " ", "a", "c b Bern"]) == [[], [], [0], [], [], [4]]
    assert run.shapes == [(4, 3)]
    run = Watched()
    assert city_starts(predictor(run), ["", " "]) == [[], []]
    assert run.shapes == []


BLANK = ["", " ", "   ", "\t\n", "\u3000\u00a0", "\u200b", "\ufeff \u200c\u200d", "\u00ad", "\ufe0f", "\u2060\u200e"]
SPLITTERS: dict[str, Any] = {
    "words": WordsTokenizer(),
    "words, every character": WordsTokenizer(pattern=r"[\s\S]"),
    "chars": CharsTokenizer(),
    "bpe": BPE(options=SubwordOptions(max_size=300)),
    "bpe of bytes": BPE(byte_level=True, options=SubwordOptions(max_size=300)),
    "unigram": Unigram(options=SubwordOptions(max_size=60)),
    "wordpiece": WordPiece(options=SubwordOptions(max_size=60)),
}


@pytest.mark.parametrize("name", SPLITTERS)
def test_a_text_in_which_nothing_is_seen_has_no_answer_whatever_splits_it(name: str) -> None:
    tokenizer, run = SPLITTERS[name].train(["Bern a b c .", " \u200b\u00ad"]), Watched()

    def labels(feeds: Arrays) -> Arrays:
        run(feeds)
        return {"label": np.zeros(len(feeds["ids"]), int), "scores": np.ones((len(feeds["ids"]), 1), np.float32)}

    labeller = Predictor(TextSource(tokenizer, {}), Label(["neg"]), labels, {}, Limits(tokens=50))
    empty, answered = labeller.answer({"text": ""}), labeller.answer({"text": "a"})
    assert empty != answered
    run.shapes.clear()
    assert [labeller.answer({"text": text}) for text in BLANK] == [empty] * len(BLANK)
    assert [*labeller.stream([{"text": text} for text in BLANK])] == [empty] * len(BLANK)
    assert labeller.answer_docs(labeller.docs([{"text": " \u200b"}]), labeller.defaults, ["1"]) == [empty]
    assert run.shapes == []
    assert [*labeller.stream([{"text": " a"}, {"text": "\u200bb"}])] == [answered, answered]


def test_a_prompt_of_blanks_is_read_by_a_language_model() -> None:
    tokenizer = CharsTokenizer().train(["a b"])
    kind = Generation(tokenizer, adds_bos=True, context=9)
    writer = Predictor(TextSource(tokenizer, {}, lossless=True), kind, Watched(), {}, Limits(tokens=50))
    assert len(writer.docs([{"text": "  "}])[0]) == 2


def test_batches_hold_every_row_once_longest_first_within_their_limits() -> None:
    lengths = [3, 0, 9, 1, 3, 40, 2, 0, 5] * 20
    batched = list(batches(lengths, rows=8, tokens=24))
    rows = [row for batch in batched for row in batch]
    assert sorted(rows) == [i for i, n in enumerate(lengths) if n]
    assert [lengths[row] for row in rows] == sorted(filter(None, lengths), reverse=True)
    assert all(len(b) <= 8 and (len(b) == 1 or len(b) * lengths[b[0]] <= 24) for b in batched)


def test_few_inputs_are_read_ahead_of_their_answers() -> None:
    taken: list[str] = []

    def texts(count: int) -> Iterator[dict[str, str]]:
        for i in range(count):
            taken.append("a Bern" if i % 2 else "a")
            yield {"text": taken[-1]}

    answers = predictor().stream(texts(1_000), chunk=10)
    for answered in range(1, 101):
        next(answers)
        assert len(taken) <= answered + 20
    taken.clear()
    one_by_one = predictor().stream(texts(2), chunk=1)
    assert (next(one_by_one), len(taken)) == ([], 1)
    assert (len(next(one_by_one)), len(taken)) == (1, 2)
    with pytest.raises(UsageError, match="chunk must be at least 1, got 0"):
        city_starts(predictor(), ["a"], chunk=0)


def test_several_workers_share_the_batches() -> None:
    class Meeting(Watched):
        """Goes on only when two threads have come, each with a batch."""

        two = threading.Barrier(2, timeout=120)

        def __call__(self, feeds: Arrays) -> Arrays:
            self.two.wait()
            return super().__call__(feeds)

    run = Meeting()
    city_starts(predictor(run, workers=2), ["a " * 40] * 64)  # two batches
    assert len(run.threads) == 2
    assert all(name.startswith("seqpipe") for name in run.threads)


def test_too_long_a_text_is_named_and_the_cure_too() -> None:
    long, several = {"text": "a " * 51}, {"text": "a. " * 51}
    with pytest.raises(DataError, match=r"record 3: \d+ tokens exceed the limit of 50; split .*, or ask for documents"):
        list(predictor().stream([{"text": "a"}, {"text": "a"}, several], chunk=2))
    for answer in (predictor().document, lambda record: list(predictor().stream([record]))):
        with pytest.raises(DataError, match=r"51 tokens exceed the limit of 50; split the text; it is one sentence"):
            answer(long)
    with pytest.raises(DataError, match=r"x\.txt:7: 51 tokens"):
        list(predictor().stream([{**long, "where": "x.txt:7"}]))
    assert city_starts(predictor(), ["a " * 50]) == [[]]


def test_a_record_with_too_many_words_is_named_by_its_number() -> None:
    records = [{"words": ["a"]}, {"words": ["a"] * 51}]
    with pytest.raises(DataError, match="record 2: 51 words exceed the limit of 50"):
        predictor().docs(records)
    with pytest.raises(DataError, match="record 12: 51 words exceed the limit of 50"):
        predictor().docs(records, before=10)


@pytest.mark.parametrize(
    "record", [{"text": "a Bern"}, {"text": " "}, {"text": "a " * 51}, {"text": "a", "where": "x:7"}]
)
def test_a_record_alone_is_answered_as_in_a_stream(record: dict[str, str]) -> None:
    def outcome(answer: Callable[[], Any]) -> Any:
        try:
            return answer()
        except DataError as error:
            return str(error)

    answering = predictor(Overflowing() if "where" in record else None)
    alone = outcome(lambda: answering.answer(record))
    assert alone == outcome(lambda: next(answering.stream([record])))
    assert isinstance(alone, str) == (len(record["text"]) > 50 or "where" in record)


def test_memory_is_given_back_when_the_next_text_comes_after_a_huge_one(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[None] = []
    monkeypatch.setattr("seqpipe.runtime.predictor.trim_heap", lambda: freed.append(None))
    monkeypatch.setattr("seqpipe.runtime.predictor.RUN_TOKENS", 40)
    answering, huge, small = predictor(), {"text": "a " * 41}, {"text": "a"}
    counts = []
    for record in (small, huge, small, small):
        answering.answer(record)
        counts.append(len(freed))
    assert counts == [0, 0, 1, 1]
    assert len([*answering.stream([huge, small, small], chunk=1)]) == 3
    assert len(freed) == 2


def test_a_document_is_answered_sentence_by_sentence_with_its_own_offsets() -> None:
    run = Watched()
    text = "a b. Bern c!\n\nBern\nc Bern" + " a" * 48
    answer = predictor(run).document({"text": text})
    assert [text[part["start"] : part["end"]] for part in answer] == ["Bern"] * 3
    assert [part["start"] for part in answer] == [5, 14, 21]
    assert sum(rows for rows, _ in run.shapes) == 4
    # It is the text even where there are words.
    assert predictor().document({"text": "a. Bern", "words": ["Bern"]})[0]["start"] == 3
    assert predictor(field="body").document({"text": "", "body": "a. Bern"})[0]["start"] == 3
    message = "x:1: no field 'text'; the record has: words; rename the field that contains the text to 'text'"
    with pytest.raises(DataError, match=message):
        predictor().document({"words": ["Bern"], "where": "x:1"})


def test_what_has_no_offsets_is_not_split_into_sentences() -> None:
    writer = Predictor(TextSource(TOKENIZER, {}), Text(TOKENIZER), Watched(), {}, Limits(tokens=9))
    with pytest.raises(UsageError, match="documents need a bundle that answers with spans or tags, not 'text'"):
        writer.document({"text": "a"})
    with pytest.raises(UsageError, match="n_best: a document has a single answer; leave it out"):
        predictor(n_best={"type": "size", "default": 1}).document({"text": "a"}, n_best=2)


def test_cores_are_those_of_this_process_and_of_its_container(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= cores() <= len(before)
    for content, expected in (("max 100000\n", math.inf), ("250000 100000\n", 2.5), ("50000 100000\n", 0.5)):
        (tmp_path / "cpu.max").write_text(content)
        assert quota(tmp_path / "cpu.max") == expected
    assert quota(tmp_path / "missing") == math.inf
