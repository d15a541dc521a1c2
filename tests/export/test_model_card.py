"""The model card says what its author states, and what was measured for each value of a field of the records."""

import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import QUIET, fail_with, seqpipe, succeed, write_jsonl, write_language_model, write_yaml

from seqpipe import Pipeline, Run
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError
from seqpipe.evaluation import scores
from seqpipe.evaluation.scores import group_scores
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.runs.run_folder import load_trained, open_run
from seqpipe.runtime import bundle
from seqpipe.training.evaluation import predictor

USE = "Moods of short English texts.\nNot for decisions about people."
LIMITS = "Written by a script; it has three dialects."
CARD = {"intended_use": USE, "limits": LIMITS, "by": "dialect"}
WORDS = {"bad": ("awful", "sad"), "good": ("lovely", "glad")}
DIALECTS = ["north"] * 40 + ["south | west"] * 24 + ["east"] * 5  # those of a held-out set
ROW = re.compile(r"^\| (\S.*?) \| (\d+) \| ([0-9.]+) \|", re.MULTILINE)


def records(dialects: list[str], seed: int, wrong: str = "") -> list[dict[str, Any]]:
    """Texts with the label of their word; every third one of the dialect `wrong` has the other label."""
    dice, rows = random.Random(seed), []
    for number, dialect in enumerate(dialects):
        label = dice.choice(("bad", "good"))
        text = f"a {dice.choice(WORDS[label])} {dice.choice('xyz')} day"
        if dialect == wrong and number % 3 == 0:
            label = "good" if label == "bad" else "bad"
        rows.append({"text": text, "label": label, "dialect": dialect})
    return rows


def write(folder: Path, **changes: Any) -> Path:
    """The YAML of a small classifier, and its data."""
    write_jsonl(folder / "train.jsonl", records(DIALECTS, 1))
    write_jsonl(folder / "dev.jsonl", records(["north", "east"] * 12, 2))
    write_jsonl(folder / "test.jsonl", records(DIALECTS, 3, wrong="south | west"))
    content = {
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 8},
        "head": {"use": "label", "pool": "mean"},
        "train": {"epochs": 4, "batch_tokens": 64, "optimizer": {"use": "adamw", "lr": 0.05}, "threads": 1},
        "card": CARD,
    }
    return write_yaml(folder, "moods", **content | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose YAML has the key `card`."""
    folder = tmp_path_factory.mktemp("card")
    return run_all(load_config(write(folder)), QUIET, RunOptions("cpu", runs=folder / "runs")).folder


def accuracies(run: Path, field: str) -> dict[str, tuple[int, float]]:
    """The number of records and the accuracy of each value of a field, counted from the stored answers."""
    right = defaultdict(list)
    for row in Run(run).answers:
        right[row["record"][field]].append(row["answer"]["label"] == row["record"]["label"])
    return {value: (len(flags), sum(flags) / len(flags)) for value, flags in right.items()}


def test_a_card_has_what_its_author_states_and_the_scores_of_each_group(trained: Path) -> None:
    card, counted = (trained / "bundle/README.md").read_text(), accuracies(trained, "dialect")
    assert f"## Intended use and limits\n\n{USE}\n\n{LIMITS}\n\n- An input has at most" in card
    assert "To be filled in" not in card
    table = card.partition("## Scores by `dialect`")[2].partition("\n## ")[0]
    assert "\ntest:\n\n| dialect | records | accuracy |\n|---|---|---|\n" in table
    shown = {value: (int(count), float(percent) / 100) for value, count, percent in ROW.findall(table)}
    assert shown == {
        name.replace("|", "&#124;"): (count, pytest.approx(share, abs=5e-5))
        for name, (count, share) in counted.items()
        if count >= scores.MIN_GROUP_RECORDS
    }
    assert counted["north"][1] > counted["south | west"][1] + 0.2  # as the wrong labels have it
    assert "\ntest: left out 1 value, of 5 records in all; a value has a score if it has 20 records or more" in table


def test_scores_by_group_are_in_the_manifest_too(trained: Path) -> None:
    groups: Any = bundle.read(trained / "bundle").manifest.groups
    counted = accuracies(trained, "dialect")
    assert groups["field"] == "dialect"
    assert groups["sets"]["test"]["left_out"] == {"values": 1, "records": 5}
    for value, row in groups["sets"]["test"]["values"].items():
        assert (row["records"], row["scores"]["accuracy"]) == counted[value]


def test_another_export_of_a_run_changes_its_card_without_training_and_repeats_byte_by_byte(
    trained: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        changes = ("--set", "card.by=label", "--set", "card.limits=null")
        succeed("export", trained, "-o", tmp_path / name, *changes, "--quiet")
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]
    card = files[0]["README.md"].decode()
    assert f"{USE}\n\n> **To be filled in by the author:** the source and the language of its data" in card
    table = card.partition("## Scores by `label`")[2]
    shown = {value: int(count) for value, count, _ in ROW.findall(table.partition("\n## ")[0])}
    assert shown == {value: count for value, (count, _) in accuracies(trained, "label").items()}
    refused = seqpipe("export", trained, "-o", tmp_path / "three", "--set", "train.epochs=3")
    assert (
        refused.code,
        "only keys of `export` and `card`, as export.opset, change after training" in refused.err,
    ) == (2, True)


def test_a_card_without_the_key_asks_its_author(tmp_path: Path, trained: Path) -> None:
    changes = [word for key in CARD for word in ("--set", f"card.{key}=null")]
    succeed("export", trained, "-o", tmp_path / "plain", *changes, "--quiet")
    card = (tmp_path / "plain/README.md").read_text()
    assert (card.count("To be filled in by the author"), "Scores by" in card) == (2, False)
    assert "groups" not in json.loads((tmp_path / "plain/bundle.json").read_text())


def test_of_many_values_the_most_frequent_are_scored_and_the_others_counted(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = predictor(load_trained(open_run(trained, QUIET)).network)
    rows = [*Run(trained).answers]
    for number, row in enumerate(rows):
        row["record"] = row["record"] | {"id": number, "half": number < 40}
    monkeypatch.setattr(scores, "MAX_GROUPS", 1)
    assert group_scores(model, rows, "id")["sets"]["test"] == {
        "values": {},
        "left_out": {"values": len(rows), "records": len(rows)},
    }
    halves = group_scores(model, rows, "half")["sets"]["test"]
    assert ({*halves["values"]}, halves["values"]["True"]["records"]) == ({"True"}, 40)
    assert halves["left_out"] == {"values": 1, "records": len(rows) - 40}


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_field_that_a_record_lacks_is_refused_before_training(tmp_path: Path, command: str) -> None:
    path = write(tmp_path)
    message = r"test\.jsonl:1: no field 'dialct', which card\.by names; did you mean 'dialect'\?; name a field of all"
    done = fail_with(3, "card.by", command, path, "card.by=dialct", folder=tmp_path)
    assert re.search(message, done.err)
    assert "epoch" not in done.err
    lines = (tmp_path / "test.jsonl").read_text().splitlines()
    lines[7] = json.dumps({"text": "a sad x day", "label": "bad"})
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    done = fail_with(3, "card.by", command, path, folder=tmp_path)
    assert re.search(r"test\.jsonl:8: no field 'dialect', which card\.by names; name a field of all", done.err)


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ({"intended_us": "x"}, "card.intended_us: 'card' has no such key; did you mean 'intended_use'?"),
        ({"by": ["dialect"]}, "card.by: should be "),
        ({"limits": 3}, "card.limits: should be "),
        ({"intended_use": ""}, "card.intended_use: should be "),
        ("for everybody", "card: should be a mapping of keys"),
    ],
)
def test_mistakes_in_the_card_are_named_with_their_key(tmp_path: Path, card: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, card=card))
    assert problem in str(caught.value)


def test_a_key_of_the_card_at_the_top_is_placed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"intended_use: no such key; did you mean 'card\.intended_use'\?"):
        load_config(write(tmp_path, intended_use="x"))


def test_scores_by_group_need_a_set_with_stored_answers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"card\.by: no set has scores; write data\.test, or delete the key"):
        load_config(write(tmp_path), ["data.dev=null", "data.test=null"])
    language_model = write_language_model(tmp_path, "abc " * 50, card={"by": "topic"})
    with pytest.raises(
        ConfigError, match=r"card\.by: a run keeps no answers of a language model; use seqpipe evaluate --by"
    ):
        load_config(language_model)


@pytest.mark.nightly("seqpipe/runs/full_run.py", "seqpipe/config/loader.py")
def test_the_final_run_of_a_cross_validation_leaves_out_what_it_has_no_set_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, data={"reader": "jsonl", "train": "train.jsonl", "dev": 0.2, "test": 0.3})
    Pipeline(path, ["train.epochs=1"]).run_folds(2, final=True, device="cpu")
    assert "## Scores by `dialect`" in Path("runs/moods-fold1/bundle/README.md").read_text()
    assert "Scores by" not in Path("runs/moods/bundle/README.md").read_text()
