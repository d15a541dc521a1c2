"""Two texts of a record read as one: tokens, segments, limits, and the way to a bundle's answers."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factory import QUIET, labelling, seqpipe, write_jsonl
from pretrained import checkpoint

from seqpipe import load as open_bundle
from seqpipe.config.loader import load, resolved
from seqpipe.config.signature import construct
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.kinds.text import Segments
from seqpipe.features.sources import TextSource
from seqpipe.pipeline.check import check_export
from seqpipe.runtime.manifest import unseal
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import Words

COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black"}


def facts(count: int, seed: int) -> list[dict[str, Any]]:
    """What is asked for and what is said, and whether that is right."""
    dice, made = random.Random(seed), []
    for i in range(count):
        thing, said = dice.choice(list(COLOURS)), dice.choice(list(COLOURS.values()))
        said = COLOURS[thing] if i % 2 else said
        label = "right" if said == COLOURS[thing] else "wrong"
        made.append({"text": f"what is {thing} like", "said": f"it is {said}", "label": label})
    return made


def pairing(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """Data and the YAML of a tiny classifier of pairs."""
    content: dict[str, Any] = {
        "name": "facts",
        "tokenizer": {"use": "words", "field": ["text", "said"]},
        "embedding": {"use": "lookup", "dim": 12},
        "encoder": {"use": "lstm", "hidden": 32},
        "head": {"use": "label", "pool": "state"},
        "train": {"epochs": 20, "batch_tokens": 128, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
    }
    path = labelling(folder, content | (changes or {}))
    for name, count, seed in (("train", 160, 1), ("dev", 30, 2), ("test", 40, 3)):
        write_jsonl(folder / f"{name}.jsonl", facts(count, seed))
    return path


def test_a_pair_is_one_row_with_a_separator_and_offsets_into_both_texts_and_a_line_feed() -> None:
    featurizer = TextSource(Words().train(["Ada met Bob ."]), {"segments": Segments()}, ["a", "b"])
    pairs = [{"a": "Ada met", "b": " Bob ."}, {"a": "", "b": "met"}, {"a": "Ada", "b": ""}, {"a": "", "b": " "}]
    docs = featurizer.docs(pairs)
    ids = featurizer.tokenizer.get_vocab()
    assert [doc.ids for doc in docs] == [
        [ids["Ada"], ids["met"], 3, ids["Bob"], ids["."]],
        [3, ids["met"]],
        [ids["Ada"], 3],
        [],
    ]
    assert [doc.second for doc in docs] == [3, 1, 2, 0]
    assert [docs[0].text[a:b] for a, b in docs[0].offsets] == docs[0].words == ["Ada", "met", "\n", "Bob", "."]
    arrays = featurizer.collate(docs)
    assert arrays["segments"].tolist() == [[1, 1, 1, 2, 2], [1, 2, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
    assert np.array_equal(arrays["mask"], arrays["segments"] > 0)
    assert feature_from(Segments().manifest()) == Segments()


def test_words_of_pieces_keep_their_places_in_both_texts() -> None:
    tokenizer = construct(WordPiece, max_size=40, min_count=1).train(["unhappy people", "happy"])
    (doc,) = TextSource(tokenizer, {}, ["a", "b"]).docs([{"a": "unhappy", "b": "people happy"}])
    assert [doc.text[a:b] for a, b in doc.word_offsets] == ["unhappy", "\n", "people", "happy"]
    assert doc.starts is not None
    assert [doc.offsets[i][0] for i in doc.starts] == [a for a, _ in doc.word_offsets]


def test_a_classifier_of_pairs_goes_all_the_way(tmp_path: Path) -> None:
    path = pairing(tmp_path)
    done = seqpipe("run", path, "--device", "cpu", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["scores"]["test"]["accuracy"] > 0.9
    folder = tmp_path / "runs" / "facts" / "bundle"
    assert unseal((folder / "bundle.json").read_bytes(), "it")["field"] == ["text", "said"]
    assert seqpipe("verify", folder, "--device", "cpu").code == 0

    model, pair = open_bundle(folder, "cpu"), {"text": "what is snow like", "said": "it is white"}
    assert model(pair)["label"] == "right"
    assert model({**pair, "said": "it is black"})["label"] == "wrong"
    assert model({"text": "", "said": ""}) == {"label": None, "score": 0.0}
    with pytest.raises(UsageError, match=r"'text' and 'said'.*this bundle reads pairs"):
        model("what is snow like")
    with pytest.raises(DataError, match="no field 'said'; the record has: text"):
        model({"text": "what is snow like"})

    def answers(stdin: str, *options: str) -> list[Any]:
        done = seqpipe("predict", folder, "--device", "cpu", *options, stdin=stdin.encode())
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    lines = "what is snow like\tit is white\nwhat is snow like\tit is black\n"
    assert [answer["label"] for answer in answers(lines)] == ["right", "wrong"]
    assert answers(json.dumps(pair), "--format", "jsonl")[0]["answer"]["label"] == "right"
    for stdin, options, told in (
        ("what is snow like\n", (), ":1: this bundle reads pairs, but this is one text; write text<TAB>said"),
        ('"what"\n', ("--format", "jsonl"), "must be an object with `text` and `said`"),
    ):
        done = seqpipe("predict", folder, "--device", "cpu", *options, stdin=stdin.encode())
        assert done.code == 3
        assert told in done.err

    wrong = tmp_path / "wrong.jsonl"
    bad = write_jsonl(tmp_path / "bad.jsonl", [{**pair, "label": "wrong"}])
    assert seqpipe("evaluate", folder, "--data", bad, "--errors", wrong, "--device", "cpu").code == 0
    assert {key: json.loads(wrong.read_text())[key] for key in pair} == pair


def test_the_resolved_file_reads_the_same_pair(tmp_path: Path) -> None:
    config = load(pairing(tmp_path))
    again = tmp_path / "again.yaml"
    again.write_text(dump(resolved(config, tmp_path)))
    assert config.inputs[0].tokenizer.pairs
    assert load(again) == config


def test_what_explains_a_pair_points_into_both_texts(tmp_path: Path) -> None:
    looking = {"head": {"use": "label", "pool": "attention"}, "export": {"explain": True}}
    path = pairing(tmp_path, looking)
    assert seqpipe("run", path, "train.epochs=1", "--device", "cpu", folder=tmp_path).code == 0
    folder = tmp_path / "runs" / "facts" / "bundle"
    done = seqpipe("explain", folder, "what is snow like\tit is white", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    places = told["attentions"]["head.attention"]["places"]
    shown = [told["text"][a:b] for a, b in places]
    assert shown == ["what", "is", "snow", "like", "\n", "it", "is", "white"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"head": "crf"}, "a pair of texts has no words to tag; make the tokenizer read one field"),
        ({"tokenizer": {"use": "words", "field": ["text"]}}, "should be text that is not empty or a list of 2"),
        ({"encoder": {"use": "bag"}, "head": {"use": "label", "pool": "state"}, "tokenizer": "words"}, ""),
        ({"encoder": "cnn"}, "pool: no encoder returns a state; choose mean, max, first, last or attention"),
    ],
)
def test_what_does_not_fit_a_pair_or_a_state_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = pairing(tmp_path, changes)
    if not told:
        check_export(load(path), QUIET)
        return
    with pytest.raises(ConfigError) as caught:
        check_export(load(path), QUIET)
    assert told in str(caught.value)
    assert "moods.yaml:" in str(caught.value)


def test_a_first_text_that_leaves_no_room_for_the_second_is_told_before_training(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "made", "bert", [record["text"] for record in facts(20, 1)])
    piece = {"use": "pretrained", "checkpoint": str(made)}
    changes = {"tokenizer": piece | {"field": ["text", "said"]}, "embedding": [], "encoder": piece | {"first": 9}}
    path = pairing(tmp_path, changes)
    lines = facts(160, 1)
    lines[-1]["text"] = "what " * 10
    write_jsonl(tmp_path / "train.jsonl", lines)
    done = seqpipe("train", path, "train.epochs=1", "--device", "cpu", folder=tmp_path)
    assert done.code == 3
    assert "train.jsonl:160: the first text has 10 tokens, and at most 9 leave room for the second; shorten" in done.err
    assert "epoch" not in done.err

    write_jsonl(tmp_path / "train.jsonl", facts(160, 1))
    assert seqpipe("run", path, "train.epochs=1", "--device", "cpu", folder=tmp_path).code == 0
    model = open_bundle(tmp_path / "runs" / "facts" / "bundle", "cpu")
    assert model.manifest.limits.first_tokens == 9
    assert model({"text": "snow", "said": "it is white " * 40})["label"] in ("right", "wrong")
    with pytest.raises(DataError, match="record 1: the first text has 10 tokens"):
        model({"text": "what " * 10, "said": "it is white"})


def test_a_tokenizer_learns_from_both_texts(tmp_path: Path) -> None:
    config = load(pairing(tmp_path))
    vocabulary = fit_artifacts(config, facts(40, 1)).vocabulary
    assert {"snow", "white"} <= {*vocabulary}
