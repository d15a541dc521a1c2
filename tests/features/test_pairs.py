"""Two texts of a record read as one: tokens, segments, limits, and the way to a bundle's answers."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery import train_settings, write_pipeline
from tiny_checkpoints import checkpoint
from tiny_pipelines import QUIET, seqpipe, succeed, write_jsonl

from seqpipe import load as open_bundle
from seqpipe.config.loader import load_config, resolved
from seqpipe.config.signature import construct
from seqpipe.config.yaml import dump
from seqpipe.errors import DataError, UsageError
from seqpipe.features.kinds.text import Segments
from seqpipe.features.sources import TextSource
from seqpipe.runs.check import check_export
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black"}


def facts(count: int, seed: int) -> list[dict[str, Any]]:
    """A question, an answer to it, and whether the answer is right."""
    dice, rows = random.Random(seed), []
    for i in range(count):
        thing, said = dice.choice(list(COLOURS)), dice.choice(list(COLOURS.values()))
        said = COLOURS[thing] if i % 2 else said
        label = "right" if said == COLOURS[thing] else "wrong"
        rows.append({"text": f"what is {thing} like", "said": f"it is {said}", "label": label})
    return rows


def pairing(folder: Path, **changes: Any) -> Path:
    """Data and the YAML of a tiny classifier of pairs."""
    content: dict[str, Any] = {
        "tokenizer": {"use": "words", "field": ["text", "said"]},
        "embedding": {"use": "lookup", "dim": 12},
        "encoder": {"use": "lstm", "hidden": 32},
        "head": {"use": "label", "pool": "state"},
        "train": train_settings(20, 0.01, 128),
    }
    return write_pipeline(folder, facts, "facts", (160, 30, 40), **content | changes)


def test_a_pair_is_one_row_with_a_separator_and_offsets_into_both_texts_and_a_line_feed() -> None:
    featurizer = TextSource(WordsTokenizer().train(["Ada met Bob ."]), {"segments": Segments()}, ["a", "b"])
    pairs = [{"a": "Ada met", "b": " Bob ."}, {"a": "", "b": "met"}, {"a": "Ada", "b": ""}, {"a": "", "b": " "}]
    docs = featurizer.docs(pairs)
    ada, met, bob, dot = featurizer.tokenizer.encode("Ada met Bob .").ids
    assert [doc.ids for doc in docs] == [[ada, met, 3, bob, dot], [3, met], [ada, 3], []]
    assert [doc.second for doc in docs] == [3, 1, 2, 0]
    assert [docs[0].text[a:b] for a, b in docs[0].offsets] == docs[0].words == ["Ada", "met", "\n", "Bob", "."]
    arrays = featurizer.collate(docs)
    assert arrays["segments"].tolist() == [[1, 1, 1, 2, 2], [1, 2, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
    assert np.array_equal(arrays["mask"], arrays["segments"] > 0)


def test_words_of_pieces_keep_their_places_in_both_texts() -> None:
    tokenizer = construct(WordPiece, max_size=40, min_count=1).train(["unhappy people", "happy"])
    (doc,) = TextSource(tokenizer, {}, ["a", "b"]).docs([{"a": "unhappy", "b": "people happy"}])
    assert [doc.text[a:b] for a, b in doc.word_offsets] == ["unhappy", "\n", "people", "happy"]
    assert doc.starts is not None
    assert [doc.offsets[i][0] for i in doc.starts] == [a for a, _ in doc.word_offsets]


def test_a_classifier_of_pairs_is_trained_exported_and_evaluated(tmp_path: Path) -> None:
    result = succeed("run", pairing(tmp_path), "--device", "cpu", "--json", folder=tmp_path)
    assert json.loads(result.out)["scores"]["test"]["accuracy"] > 0.9
    bundle = tmp_path / "runs" / "facts" / "bundle"
    model, pair = open_bundle(bundle, "cpu"), {"text": "what is snow like", "said": "it is white"}
    assert model.manifest.field == ["text", "said"]
    assert model.verify() == []
    assert model(pair)["label"] == "right"
    assert model({**pair, "said": "it is black"})["label"] == "wrong"
    assert model({"text": "", "said": ""}) == {"label": None, "score": 0.0}
    with pytest.raises(UsageError, match=r"'text' and 'said'.*this bundle reads pairs"):
        model("what is snow like")
    with pytest.raises(DataError, match="no field 'said'; the record has: text"):
        model({"text": "what is snow like"})

    lines = "what is snow like\tit is white\nwhat is snow like\tit is black\n"
    for stdin, form, code, expected in (
        (lines, "text", 0, ["right", "wrong"]),
        (json.dumps(pair), "jsonl", 0, ["right"]),
        ("what\n", "text", 3, ":1: this bundle reads pairs, but this is one text; write text<TAB>said"),
        ('"what"\n', "jsonl", 3, "must be an object with `text` and `said`"),
    ):
        result = seqpipe("predict", bundle, "--device", "cpu", "--format", form, stdin=stdin.encode())
        assert result.code == code, result.err
        answers = [json.loads(line) for line in result.out.splitlines()]
        assert expected in result.err if code else [row.get("answer", row)["label"] for row in answers] == expected

    errors = tmp_path / "errors.jsonl"
    test = write_jsonl(tmp_path / "test.jsonl", [{**pair, "label": "wrong"}])
    assert seqpipe("evaluate", bundle, "--data", test, "--errors", errors, "--device", "cpu").code == 0
    assert {key: json.loads(errors.read_text())[key] for key in pair} == pair


def test_the_resolved_file_reads_the_same_pair_and_the_tokenizer_is_trained_on_both_texts(tmp_path: Path) -> None:
    config = load_config(pairing(tmp_path))
    again = tmp_path / "again.yaml"
    again.write_text(dump(resolved(config, tmp_path)))
    assert config.inputs[0].tokenizer.pairs
    assert load_config(again) == config
    assert {"snow", "white"} <= {*fit_artifacts(config, facts(40, 1)).vocabulary}


def test_attention_weights_have_positions_in_both_texts(tmp_path: Path) -> None:
    path = pairing(tmp_path, head={"use": "label", "pool": "attention"}, export={"explain": True}, encoder=[])
    assert seqpipe("run", path, "train.epochs=1", "--device", "cpu", folder=tmp_path).code == 0
    model = open_bundle(tmp_path / "runs" / "facts" / "bundle", "cpu")
    explanation = model.explain({"text": "what is snow like", "said": "it is white"})
    shown = [explanation.text[a:b] for a, b in explanation.attentions[0].places]
    assert shown == ["what", "is", "snow", "like", "\n", "it", "is", "white"]


def test_a_pair_may_be_pooled_by_a_bag_and_its_state_classified(tmp_path: Path) -> None:
    changes = {"encoder": {"use": "bag"}, "head": {"use": "label", "pool": "state"}, "tokenizer": "words"}
    check_export(load_config(pairing(tmp_path, **changes)), QUIET)


def test_a_first_text_that_leaves_no_room_for_the_second_is_refused_before_training(tmp_path: Path) -> None:
    texts = [record["text"] for record in facts(20, 1)]
    use = {"use": "pretrained", "checkpoint": str(checkpoint(tmp_path / "bert", "bert", texts))}
    path = pairing(tmp_path, tokenizer=use | {"field": ["text", "said"]}, embedding=[], encoder=use | {"first": 9})
    long, pair = {"text": "what " * 10, "said": "it is white"}, {"text": "snow", "said": "it is white " * 40}
    write_jsonl(tmp_path / "train.jsonl", [*facts(19, 1), {**long, "label": "wrong"}])
    result = seqpipe("train", path, "train.epochs=1", "--device", "cpu", folder=tmp_path)
    assert result.code == 3
    message = "train.jsonl:20: the first text has 10 tokens, and at most 9 leave room for the second; shorten"
    assert message in result.err
    assert "epoch" not in result.err

    write_jsonl(tmp_path / "train.jsonl", facts(19, 1))
    assert seqpipe("run", path, "train.epochs=1", "--device", "cpu", folder=tmp_path).code == 0
    model = open_bundle(tmp_path / "runs" / "facts" / "bundle", "cpu")
    assert model.manifest.limits.first_tokens == 9
    assert model(pair)["label"] in ("right", "wrong")
    with pytest.raises(DataError, match="record 1: the first text has 10 tokens"):
        model(long)
