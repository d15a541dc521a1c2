"""Artifacts fitted before training: tokenizers, alphabets, labels; kept in a run and read again unchanged."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import load_tagger, plugins, train_run, write_classifier, write_jsonl, write_seq2seq
from tokenizers import Tokenizer, models
from torch import nn

from seqpipe.answers.text import TargetCensus, Text, TextTask
from seqpipe.answers.types import SpanRules
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import DataError, PluginError, UsageError
from seqpipe.evaluation.analysis import unknown_share
from seqpipe.features.document import Doc
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import load_records
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.words import WordsTokenizer


def artifacts_of(config: Config) -> Artifacts:
    return fit_artifacts(config, load_records(config.data.reader, config.data.train))


def test_labels_are_every_tag_of_the_scheme(tmp_path: Path) -> None:
    artifacts = artifacts_of(load_tagger(tmp_path))
    assert artifacts.tasks[0].labels == ("O", *(f"{p}-{label}" for label in ("LOC", "PER") for p in "BIES"))
    stated = {"kind": "spans", "target": None, "scheme": "BIOES", "log_score": True}
    assert artifacts.kind.manifest() == {**stated, "labels": list(artifacts.tasks[0].labels)}
    assert artifacts_of(load_tagger(tmp_path, "head.scheme=IOB2")).tasks[0].labels == (
        "O",
        "B-LOC",
        "I-LOC",
        "B-PER",
        "I-PER",
    )


def test_plain_tags_are_the_labels_as_they_stand(tmp_path: Path) -> None:
    artifacts = artifacts_of(load_tagger(tmp_path, "head.scheme=none", "data.reader.scheme=none"))
    assert artifacts.tasks[0].labels == ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
    assert artifacts.kind.kind == "tags"


def test_the_vocabulary_counts_lowercased_words_and_the_alphabet_is_of_the_words_as_written(tmp_path: Path) -> None:
    config = load_tagger(tmp_path)
    artifacts = artifacts_of(config)
    assert artifacts.vocabulary[:4] == SPECIALS
    words = [word for record in load_records(config.data.reader, config.data.train) for word in record["words"]]
    counts = Counter(word.lower() for word in words)
    assert artifacts.vocabulary.counts[4:] == [counts[token] for token in artifacts.vocabulary[4:]]
    assert artifacts.featurizer.features["chars"].manifest()["alphabet"] == "".join(sorted({*"".join(words)}))


def test_what_was_saved_is_read_again_as_it_was(tmp_path: Path) -> None:
    for make in (lambda folder: load_tagger(folder), lambda folder: load_config(write_seq2seq(folder))):
        config = make(tmp_path)
        artifacts = artifacts_of(config)
        artifacts.save(tmp_path)
        again = Artifacts.load(tmp_path)
        records = load_records(config.data.reader, config.data.train)
        saved, loaded = (some.featurizer.collate(some.featurizer.docs(records)) for some in (artifacts, again))
        assert all((saved[name] == loaded[name]).all() for name in saved)
        (mine,), (kept,) = artifacts.tasks, again.tasks
        assert (again.counts, kept.answer, kept.labels) == (artifacts.counts, mine.answer, mine.labels)
        assert (kept.target_vocabulary, kept.labels.counts) == (mine.target_vocabulary, mine.labels.counts)


def test_a_target_tokenizer_is_the_same_or_learned_from_the_targets(tmp_path: Path) -> None:
    records = [{"text": "ab", "reversed": "xy"}] * 3
    yaml = write_seq2seq(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", records)
    same = artifacts_of(load_config(yaml))
    assert same.tasks[0].target_vocabulary == same.vocabulary == (*SPECIALS, "a", "b", "x", "y")  # it learns of both
    separate = artifacts_of(load_config(yaml, ["head.target_tokenizer={use: chars}"]))
    assert separate.tasks[0].target_vocabulary == (*SPECIALS, "x", "y")


def test_data_without_what_the_head_learns_names_the_record_and_what_it_has(tmp_path: Path) -> None:
    yaml, chars = write_seq2seq(tmp_path), "head.target_tokenizer={use: chars}"
    with pytest.raises(DataError, match=r"train\.jsonl:1: no field 'answer'; the record has: .*reversed"):
        artifacts_of(load_config(yaml, ["head.target=answer", chars]))
    write_jsonl(tmp_path / "train.jsonl", [{"text": "a", "reversed": 3}])
    with pytest.raises(DataError, match="'reversed' must be a text, or a list of texts any of which is right, not int"):
        artifacts_of(load_config(yaml, [chars]))
    config = load_tagger(tmp_path)
    (tmp_path / "train.conll").write_text("a\tO\nb\tO\n")
    with pytest.raises(DataError, match="has no span"):
        artifacts_of(config)


def test_a_head_that_writes_text_says_that_it_needs_a_target_tokenizer(tmp_path: Path) -> None:
    class Writer(nn.Module):
        answer = "text"

        def __init__(self, dim: int): ...

        def loss(self, x: Any) -> Any: ...

        def decide(self, x: Any) -> Any: ...

    yaml = write_seq2seq(tmp_path, {"head": {"use": "writer", "target": "reversed"}})
    config = load_config(yaml, plugins=plugins(writer=("head", Writer)))
    with pytest.raises(UsageError, match=r"head: 'writer' answers with text; add `target_tokenizer: same`"):
        artifacts_of(config)


def test_a_tokenizer_of_a_plugin_that_breaks_the_rules_is_named(tmp_path: Path) -> None:
    bare = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    for tokenizer, message in (
        (bare, r"the first ids must be those of \[PAD\]"),
        (["a"], "must return a tokenizers.Tokenizer, not"),
    ):

        class Toy:
            def train(self, texts: Any, tokenizer: Any = tokenizer) -> Any:
                return tokenizer

        with pytest.raises(PluginError, match=rf"tokenizer 'toy' of toys: .*{message}"):
            artifacts_of(load_tagger(tmp_path, "tokenizer={use: toy}", toy=("tokenizer", Toy)))


def test_the_share_of_unknown_words_is_counted_by_tokens(tmp_path: Path) -> None:
    artifacts = artifacts_of(load_tagger(tmp_path))
    docs = artifacts.featurizer.docs([{"text": "ada flew to zanzibar"}, {"text": ""}])
    assert unknown_share(docs) == pytest.approx(1 / 4)
    assert unknown_share([]) == 0


def unwritable(task: FittedTask, texts: list[str], longest: int | None) -> list[str]:
    kind: Any = task.kind
    census, doc = TargetCensus(kind, longest), Doc("", [], [], [])
    records, docs = [{"reversed": text} for text in texts], [doc] * len(texts)
    census.add(records, docs, TextTask(kind).target_maker(TextTask.settings, SpanRules())(records, docs))
    return [level + message for level, message in census.messages()]


def test_target_texts_that_change_when_encoded_and_decoded_are_counted_before_training(tmp_path: Path) -> None:
    artifacts = artifacts_of(load_config(write_seq2seq(tmp_path)))
    (task,) = artifacts.tasks
    texts = ["abc def", "abc", "ab, c", "a"]
    task = replace(task, target_tokenizer=WordsTokenizer().train(texts))
    cure = "use the target tokenizer {use: bpe, byte_level: true}, which is lossless"
    assert unwritable(task, [texts[0], texts[3]], 100) == []
    assert unwritable(task, texts, 4) == [
        f"warning: 1 of 4 texts (25.0%) change when encoded and decoded: 'ab, c' as 'ab , c'; {cure}"
    ]
    assert unwritable(task, ["a zoo", "a a a a"], 4) == [
        f"warning: 1 of 2 texts (50.0%) change when encoded and decoded: 'a zoo' as 'a'; {cure}",
        "1 of 2 texts have 4 tokens or more, and are cut for scores; callers may set max_length=5",
    ]
    assert unwritable(task, ["a a a a"], None) == []
    assert unwritable(task, [], 4) == []


@pytest.mark.parametrize(("text", "target"), [("a" * 60, "b"), ("a", "a" * 60)])
def test_a_text_that_the_library_panics_at_is_named_with_its_place(text: str, target: str, tmp_path: Path) -> None:
    file = write_seq2seq(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", [{"text": "ab", "reversed": "ba"}, {"text": text, "reversed": target}])
    words = "{use: words, pattern: '([a-z0-9]+[.-]?)+@[a-z]+|\\w+'}"
    config = load_config(file, [f"tokenizer={words}", f"head.target_tokenizer={words}"])
    with pytest.raises(DataError, match=r"train\.jsonl:2: the tokenizer cannot split 'a{40}'… \(60 characters\)"):
        artifacts_of(config)


@pytest.mark.parametrize("features", ["memory", "mapped"])
@pytest.mark.parametrize("form", ["labels", "targets", "targets without dev", "running text"])
def test_texts_are_tokenized_once(form: str, features: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_texts, written = Counter[str](), Counter[str]()
    make_docs, encode = TextSource._make_docs, Text.encode

    def docs(source: TextSource, records: Any) -> list[Doc]:
        read_texts.update(str(record.get("where")) for record in records)
        return make_docs(source, records)

    def ids(kind: Text, texts: Any, docs: Any, records: Any) -> Any:
        written.update(str(record.get("where")) for record in records)
        return encode(kind, texts, docs, records)

    monkeypatch.setattr(TextSource, "_make_docs", docs)
    monkeypatch.setattr(Text, "encode", ids)
    monkeypatch.setenv("SEQPIPE_FEATURES", features)
    if form == "labels":
        yaml, texts = write_classifier(folder, {"head": "label"}), ("train", "dev")
    elif form == "running text":
        stages = {"head": {"use": "lm", "context": 5}, "encoder": {"use": "gru", "hidden": 8, "direction": "forward"}}
        yaml, texts = write_classifier(folder, stages), ("train",)
    else:
        yaml, texts = write_seq2seq(folder), ("train", "dev")
    config = load_config(yaml, ["data={reader: jsonl, train: train.jsonl}"] if "without" in form else [])
    train_run(config)
    for counter in (read_texts, *([written] if "targets" in form else [])):
        for name in texts if config.data.dev else texts[:1]:
            counts = [count for where, count in counter.items() if f"{name}.jsonl:" in where]
            assert len(counts) == len(load_records(config.data.reader, getattr(config.data, name)))
            assert set(counts) == {1}


def test_texts_without_any_token_are_an_error(tmp_path: Path) -> None:
    file = write_seq2seq(tmp_path, {"tokenizer": "words"})
    write_jsonl(tmp_path / "train.jsonl", [{"text": "  ", "reversed": "a"}] * 3)
    with pytest.raises(DataError, match="the training texts have no tokens: all are blank, or the tokenizer's pattern"):
        artifacts_of(load_config(file, ["head.target_tokenizer={use: chars}"]))
