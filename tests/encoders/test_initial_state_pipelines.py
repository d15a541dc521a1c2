"""Pipelines in which the initial state decides the answer, from the YAML to the bundle, and what is refused."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import fail_with, seqpipe, succeed, write_jsonl, write_language_model, write_yaml

from seqpipe import load as open_bundle
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError

TRAIN = {"epochs": 30, "batch_size": 8, "threads": 1, "optimizer": {"use": "adamw", "lr": 0.03}}


def source(name: str, encoder: dict[str, Any] | None) -> dict[str, Any]:
    stages: dict[str, Any] = {"field": name, "tokenizer": "words", "embedding": {"use": "lookup", "dim": 8}}
    return stages | ({"encoder": {"hidden": 8, **encoder}} if encoder else {})


def yaml(folder: Path, **changes: Any) -> Path:
    """The text says nothing of the label: it is the mood, from which the title starts, and the title's word."""
    every = itertools.product(("bad", "good"), ("no", "yes"), ("red", "blue red", "red blue blue"))
    rows = [{"mood": mood, "title": title, "text": text, "label": f"{mood}-{title}"} for mood, title, text in every]
    write_jsonl(folder / "rows.jsonl", [{**row, "numbers": [0.5, float(i)]} for i, row in enumerate(rows)])
    content: dict[str, Any] = {
        "data": {"reader": "jsonl", "train": "rows.jsonl", "dev": "rows.jsonl"},
        "inputs": {
            "text": source("text", {"use": "lstm", "initial_state": {"source": "title"}}),
            "title": source("title", {"use": "gru", "initial_state": {"column": "mood"}}),
        },
        "head": {"use": "label", "pool": "mean"},
        "train": TRAIN,
    }
    return write_yaml(folder, "states", **content | changes)


def test_a_label_and_another_input_decide_through_initial_states_alone(tmp_path: Path) -> None:
    succeed("run", yaml(tmp_path), folder=tmp_path)
    model = open_bundle(tmp_path / "runs" / "states" / "bundle", "cpu")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [answer["label"] for answer in model(rows)] == [row["label"] for row in rows]
    assert model({"mood": "good", "title": "no", "text": "red blue blue"})["label"] == "good-no"


def test_a_label_decides_what_a_language_model_writes(tmp_path: Path) -> None:
    moods = (("bad", "grim"), ("good", "bright"))
    rows = [{"text": f"so {word}.", "mood": mood} for mood, word in moods]
    write_jsonl(tmp_path / "rows.jsonl", rows * 20)
    encoder = {"use": "lstm", "hidden": 16, "direction": "forward", "initial_state": {"column": "mood"}}
    data, head = {"reader": "jsonl", "train": "rows.jsonl"}, {"use": "lm", "packed": False}
    path = write_language_model(tmp_path, "", data=data, encoder=encoder, head=head, train={**TRAIN, "epochs": 15})
    succeed("run", path, folder=tmp_path)
    bundle = tmp_path / "runs" / "lm" / "bundle"
    lines = [json.dumps({"mood": mood, "text": text}) for text in ("", "so ") for mood, _ in moods]
    answered = seqpipe("predict", bundle, "--format", "jsonl", stdin="\n".join(lines).encode())
    texts = [json.loads(line)["answer"]["generated_text"] for line in answered.out.splitlines()]
    assert texts == ["so grim.", "so bright."] * 2
    streamed = seqpipe("predict", bundle, "--stream", stdin=b"bad\t\ngood\t\ngood\tso \n")
    assert streamed.out == "so grim.\nso bright.\nso bright.\n"


def inputs(text: dict[str, Any], title: dict[str, Any] | None) -> dict[str, Any]:
    return {"inputs": {"text": source("text", text), "title": source("title", title)}}


def starts(option: Any) -> dict[str, Any]:
    return {"use": "gru", "initial_state": option}


NUMBERS = {"text": source("text", starts({"source": "numbers"})), "numbers": {"field": "numbers"}}
SINGLE = {"inputs": None, "tokenizer": "words", "embedding": "lookup", "encoder": starts({"source": "title"})}
PACKED = SINGLE | {"encoder": {**starts({"column": "mood"}), "direction": "forward"}, "head": {"use": "lm"}}
TWO_STARTS = {"encoder": [starts({"source": "title"}), starts({"source": "mood"})]}
THREE = {"text": source("text", None) | TWO_STARTS, "title": source("title", None), "mood": source("mood", None)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (inputs(starts({"source": "titel"}), None), "input 'titel', which does not exist; did you mean 'title'?"),
        (inputs(starts({"source": "text"}), None), "the state of its own source 'text'; name another input"),
        (
            inputs(starts({"source": "title"}), starts({"source": "text"})),
            "the state of 'text', which depends on itself in a cycle",
        ),
        (inputs(starts("zero"), starts({"source": "text"})), "it cannot be the first input; list it later"),
        ({"inputs": NUMBERS}, "the input 'numbers' has no x, and therefore no state; add an embedding to it"),
        (SINGLE, "of another input, 'title', but there is only one input; write inputs: "),
        (inputs(starts("lerned"), None), r"should be 'zero' or 'learned' or {column: FIELD} or {source: NAME}"),
        (inputs(starts({"column": "a", "source": "title"}), None), r"should be 'zero' or 'learned' or {column: FIELD}"),
        (inputs(starts({"source": "title"}), None) | {"head": {"use": "mlm"}}, "it supports one input"),
        ({"inputs": THREE}, "an earlier encoder from that of 'title'; use the same for both"),
        (PACKED, "a column belongs to one text, and packed texts are cut anywhere"),
    ],
)
def test_initial_states_without_a_source_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(yaml(tmp_path, **changes))


def test_a_field_that_no_record_has_is_named(tmp_path: Path) -> None:
    path = yaml(tmp_path, **inputs(starts({"source": "title"}), starts({"column": "tone"})))
    fail_with(3, "no field 'tone'; the record has: text, mood, title, label, numbers", "train", path, folder=tmp_path)
