"""Heads of tags and spans read several sources: the first is tagged, the others stand beside each of its words."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import QUIET, seqpipe, write_jsonl
from independent import Bundle, same

import seqpipe as package
from seqpipe.config.loader import Config, load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError
from seqpipe.nn.multi_source_attention import join_sources
from seqpipe.pipeline.full_run import run_all
from seqpipe.runtime.model import Model
from seqpipe.training.fit import fit_artifacts

WORDS, TAGS = ("bank", "gift", "rat", "chef", "mode", "kind"), {"de": "NOUN", "en": "VERB"}
TEXT = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 8}}
LANGUAGE = {"field": "language", "tokenizer": "words", "embedding": {"use": "lookup", "dim": 4}}
USER = {"field": "user", "embedding": {"use": "linear", "dim": 4}}


def sentences(count: int, seed: int) -> list[tuple[str, list[str]]]:
    dice = random.Random(seed)
    return [(dice.choice(("de", "en")), dice.choices(WORDS, k=dice.randint(1, 6))) for _ in range(count)]


def pipeline(folder: Path, **changes: Any) -> Config:
    """Words whose tag is that of their language, and those of some users that are names."""
    for name, count, seed in (("train", 200, 1), ("dev", 30, 2), ("test", 80, 3)):
        content = sentences(count, seed)
        blocks = ["".join([f"# language = {of}\n", *(f"{w}\t{TAGS[of]}\n" for w in words)]) for of, words in content]
        (folder / f"{name}.conll").write_text("\n".join(blocks))
        rows = [(words, [1.0, 0.2] if of == "de" else [0.0, 0.9]) for of, words in content]
        tags = [["B-X" if user[0] and word < "h" else "O" for word in words] for words, user in rows]
        lines = [{"tokens": words, "tags": line, "user": user} for (words, user), line in zip(rows, tags, strict=True)]
        write_jsonl(folder / f"{name}.jsonl", lines)
    suffix = "jsonl" if "user" in (changes.get("inputs") or {}) else "conll"
    reader = {"use": "jsonl", "words": "tokens"} if suffix == "jsonl" else {"use": "conll", "scheme": "none"}
    content_of_yaml: dict[str, Any] = {
        "name": "tagger",
        "data": {"reader": reader, "train": f"train.{suffix}", "dev": f"dev.{suffix}", "test": f"test.{suffix}"},
        "inputs": {"text": {**TEXT, "encoder": {"use": "lstm", "hidden": 6}}, "language": LANGUAGE},
        "head": {"use": "crf", "scheme": "none"},
        "train": {"epochs": 4, "batch_tokens": 128, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
        **changes,
    }
    path = folder / "tagger.yaml"
    path.write_text(dump({key: value for key, value in content_of_yaml.items() if value is not None}))
    return load(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose export compared onnxruntime with PyTorch."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sources")
    with contextlib.chdir(folder):
        assert (run_all(pipeline(folder), QUIET, "cpu").scores or {})["test"]["accuracy"] == 1.0
    return folder / "runs" / "tagger" / "bundle"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return package.load(folder)


def tags(answer: Any) -> list[str]:
    return [word["entity"] for word in answer]


def test_a_joined_vector_is_the_positions_own_and_those_of_the_other_sources() -> None:
    x, mask = torch.arange(12.0).view(2, 3, 2), torch.tensor([[True, True, True], [True, False, False]])
    means = {"x": torch.tensor([[[1.0], [3.0]], [[5.0], [9.0]]]), "mask": torch.tensor([[True, True], [True, False]])}
    state = {
        "x": torch.zeros(2, 1, 2),
        "mask": torch.ones(2, 1, dtype=torch.bool),
        "state": torch.tensor([[7.0, 8], [6, 4]]),
    }
    first = {"x": x, "mask": mask, "other_x": -x, "window": mask.long()}
    joined = join_sources([first, means, state])
    for name in ("x", "other_x"):
        assert joined[name][0].tolist() == [[*row, 2.0, 7.0, 8.0] for row in first[name][0].tolist()]
        assert joined[name][1].tolist() == [[*row, 5.0, 6.0, 4.0] for row in first[name][1].tolist()]
    assert joined["mask"] is mask
    assert joined["window"] is first["window"]


def test_a_tag_depends_on_the_second_input(model: Model) -> None:
    for language, tag in TAGS.items():
        answer = model({"text": "gift  rat", "language": language})
        assert tags(answer) == [tag, tag]
        assert [(word["word"], word["start"], word["end"]) for word in answer] == [("gift", 0, 4), ("rat", 6, 9)]
    best, second = model({"words": ["gift"], "language": "en"}, n_best=2)
    assert (tags(best["tags"]), tags(second["tags"])) == (["VERB"], ["NOUN"])
    assert model({"text": "", "language": "en"}) == []


def test_without_the_second_input_it_is_chance(tmp_path: Path) -> None:
    config = pipeline(tmp_path, inputs=None, **TEXT, encoder={"use": "lstm", "hidden": 6})
    assert seqpipe("train", config.file, "--device", "cpu", folder=tmp_path).code == 0
    scored = seqpipe("evaluate", "runs/tagger", "--device", "cpu", "--json", folder=tmp_path)
    assert 0.35 < json.loads(scored.out)["test"]["accuracy"] < 0.65


def test_predict_reads_tabs_json_and_conll(folder: Path) -> None:
    lines = seqpipe("predict", folder, stdin=b"gift rat\tde\nkind\ten\n").out.splitlines()
    assert [tags(json.loads(line)) for line in lines] == [["NOUN", "NOUN"], ["VERB"]]
    line = json.dumps({"words": ["gift"], "language": "de"}).encode()
    assert tags(json.loads(seqpipe("predict", folder, "--format", "jsonl", stdin=line).out)["answer"]) == ["NOUN"]
    assert seqpipe("predict", folder, "--format", "conll", stdin=b"# language = en\ngift\n").out.split() == [
        "gift",
        "VERB",
    ]
    alone = seqpipe("predict", folder, stdin=b"gift\n")
    assert (alone.code, "write text<TAB>language" in alone.err) == (3, True)


def test_it_is_verified_and_a_second_runtime_answers_the_same(folder: Path, model: Model) -> None:
    assert seqpipe("verify", folder, "--device", "cpu").code == 0
    records = [{"text": " ".join(words), "language": language} for language, words in sentences(40, 9)]
    theirs = Bundle(folder).batch(records)
    assert len({str(answer) for answer in theirs}) > 20
    assert same(theirs, [model(record) for record in records])


def test_spans_beside_numbers_and_several_heads_export(tmp_path: Path) -> None:
    heads = [{"use": "tags", "name": "a", "scheme": "IOB2"}, {"use": "crf", "name": "b"}]
    pieces = {**TEXT, "tokenizer": {"use": "bpe", "max_size": 60}, "encoder": {"use": "words"}}
    config = pipeline(tmp_path, inputs={"text": pieces, "user": USER}, head=heads)
    done = seqpipe("check", config.file, "--json", folder=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["decisions"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": {"user": USER, "text": TEXT}},
            "it answers for the words of the first input, and 'user' is not a text",
        ),
        (
            {"inputs": {"text": TEXT, "language": {**LANGUAGE, "embedding": None}}},
            "and 'language' has none; add an emb",
        ),
        ({"head": ["crf", "label"]}, "head 'label' of seqpipe-nlp: it supports one input"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pipeline(tmp_path, **changes)


def test_the_first_input_needs_words(tmp_path: Path) -> None:
    config = pipeline(tmp_path, inputs={"text": {**TEXT, "tokenizer": "bpe"}, "language": LANGUAGE})
    records = [{"text": "gift", "words": ["gift"], "language": "de", "tags": ["NOUN"]}]
    with pytest.raises(ConfigError, match="a tag belongs to a whole word; add"):
        fit_artifacts(config, records)


def test_a_record_without_the_second_input_is_refused(model: Model) -> None:
    with pytest.raises(DataError, match="no field 'language'; the record has: text; rename"):
        model({"text": "gift"})
