"""Runs beside each other: the table of a folder, and comparisons of runs and bundles, in Python and as commands."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import QUIET, seqpipe, tagging

import seqpipe as library
from seqpipe import Bundle, Pipeline, Run, UsageError
from seqpipe.pipeline.full_run import export_run
from seqpipe.training.artifacts import Artifacts

OVERRIDES = ("embedding={use: lookup, dim: 8}", "head=tags", "train.epochs=2")


def change_answers(run: Path, wrong: int) -> None:
    """Make the stored answers of a run right, but of this many records empty."""
    rows, task = Run(run).answers, Artifacts.load(run).task
    for row in rows:
        spans = task.gold(row["record"])
        wrong -= bool(spans)
        row["answer"] = [{"entity_group": s, "word": "", "start": a, "end": b} for s, a, b in spans if wrong < 0]
    (run / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the runs a, whose answers were made right, and b, a copy with ten wrong ones."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    with contextlib.chdir(folder):
        run = Pipeline(tagging(folder), [*OVERRIDES, "name=a"]).run(device="cpu")
        export_run(run.folder, run.folder / "int8", ["export.precision=int8"], QUIET)
        shutil.copytree("runs/a", "runs/b")
        for name, wrong in (("a", 0), ("b", 10)):
            change_answers(Path("runs", name), wrong)
        text = Path("runs/b/pipeline.yaml").read_text()
        Path("runs/b/pipeline.yaml").write_text(text.replace("dim: 8", "dim: 9").replace("name: a", "name: b"))
        yield folder


def test_runs_are_compared_by_the_answers_that_they_stored(here: Path) -> None:
    comparison = Run("runs/a").compare("runs/b", speed=False, by="topic")
    (test,) = comparison.tests
    assert (test.first, test.second, test.records) == ("runs/a", "runs/b", 16)
    assert (test.scores[0].name, test.scores[0].first) == ("f1", 1.0)
    assert test.scores[0].second < 0.9
    assert test.sentence.startswith("runs/a is better than runs/b by ")
    assert test.changes == {"fixed": 0, "broken": 10, "changed": 0}
    assert {row.name for row in test.groups} == {"topic=a", "topic=b"}
    assert [*comparison.settings] == [{"key": "embedding.dim", "runs/a": 8, "runs/b": 9}]
    size = sum(file.stat().st_size for file in Path("runs/a/bundle").iterdir())
    assert comparison.cost[0] == {"target": "runs/a", "bundle_bytes": size}
    drawn = comparison._repr_html_()  # answers of both beside each other, in a notebook
    assert '<th scope="col">runs/a</th><th scope="col">runs/b</th>' in drawn
    assert all(escape(answer) in drawn for answer in test.examples[0]["answers"])


def test_a_bundle_in_int8_or_outside_of_runs_answers_the_records_itself(here: Path) -> None:
    shutil.copytree("runs/a/bundle", "shipped")
    records = [row["record"] for row in Run("runs/a").answers]
    task = Artifacts.load(Path("runs/a")).task
    for target in ("shipped", "runs/a/int8"):
        (test,) = library.compare("runs/a", Bundle(target), speed=False).tests
        answers = Bundle(target).load("cpu")(records)
        right = [task.gold(r) == task.predicted(a) for a, r in zip(answers, records, strict=True)]
        assert test.changes["broken"] == right.count(False) > 0
    (stored,) = library.compare("runs/a", "runs/b/bundle", speed=False).tests
    assert stored.changes["broken"] == library.compare("runs/a", "runs/b", speed=False).tests[0].changes["broken"]
    (same,) = library.compare("runs/a/bundle", "shipped", data="test.conll", speed=False).tests
    assert (same.data, same.records, sum(same.changes.values())) == ("test.conll", 16, 0)


def test_the_command_prints_what_python_returns_and_ends_with_1_if_a_run_is_worse(here: Path) -> None:
    done = seqpipe("compare", "runs/a", "runs/b", "runs/a/int8", "--examples", "1", folder=here)
    assert done.code == 0, done.err
    tests = library.compare("runs/a", "runs/b", "runs/a/int8", speed=False).tests
    assert len(tests) == 2
    assert all(test.sentence in done.out for test in tests)
    assert "  broken: " in done.out
    assert "tokens per second" in done.out
    assert "embedding.dim" in done.out
    points = -tests[0].scores[0].gain
    assert points > 5
    for threshold, code in ((points - 1, 1), (points + 1, 0)):
        arguments = ("compare", "runs/a", "runs/b", "--no-speed", "--fail-if-worse", threshold, "--json")
        done = seqpipe(*map(str, arguments), folder=here)
        assert (done.code, json.loads(done.out)["tests"][0]["scores"][0]["name"]) == (code, "f1")
    assert seqpipe("compare", "runs/b", "runs/a", "--no-speed", "--fail-if-worse", "0", folder=here).code == 0


def test_what_cannot_be_compared_is_refused_with_the_reason(here: Path) -> None:
    with pytest.raises(UsageError, match="name two or more different"):
        library.compare("runs/a", "runs/a")
    with pytest.raises(UsageError, match=r"gone: not a run"):
        library.compare("runs/a", "gone")
    shutil.copytree("runs/b", "runs/fewer")
    lines = Path("runs/b/answers.jsonl").read_text().splitlines(keepends=True)
    Path("runs/fewer/answers.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(
        UsageError, match=r"test: the records or their references differ.*\n1 of 16 records only in runs/a"
    ):
        library.compare("runs/a", "runs/fewer")
    Path("runs/fewer/answers.jsonl").unlink()
    (same,) = library.compare("runs/b/bundle", "runs/fewer", data="test.conll", speed=False).tests
    (answered,) = library.compare("runs/b/bundle", "runs/fewer", speed=False).tests  # by its bundle
    assert (same.changes["broken"], answered.scores[0].second) == (0, same.scores[0].second)
    shutil.rmtree("runs/fewer/bundle")
    with pytest.raises(UsageError, match="runs/fewer: has neither stored answers nor a bundle"):
        library.compare("runs/a", "runs/fewer")
    shutil.rmtree("runs/fewer")


def test_the_table_of_runs_shows_damaged_and_unfinished_ones(here: Path) -> None:
    for name in ("damaged", "half", "broken-bundle"):
        shutil.copytree("runs/a", f"runs/{name}")
    Path("runs/damaged/metrics.json").write_text('{"test"')
    for gone in ("training.json", "metrics.json"):
        Path("runs/half", gone).unlink()
    with Path("runs/broken-bundle/bundle/bundle.json").open("a") as file:
        file.write("?")
    Path("runs/no-run").mkdir()
    rows = {row["name"]: row for row in library.runs("runs", sort="score")}
    states = {name: row["state"] for name, row in rows.items()}
    damaged = dict.fromkeys(("broken-bundle", "damaged"), "damaged")
    assert states == {"a": "finished", "b": "finished", "half": "unfinished", **damaged}
    assert "running or interrupted, after 2 of 2 epochs" in rows["half"]["problem"]
    row: dict[str, Any] = rows["a"]
    scores = Run("runs/a").scores or {}
    assert (row["data"], row["model"], row["metric"], row["score"]) == (
        ("train.conll", "lstm + tags", "f1", scores["test"]["f1"])
    )
    assert row["seconds"] == pytest.approx(sum(epoch["seconds"] for epoch in Run("runs/a").history))
    listed = [row["score"] for row in rows.values()]
    present = [score for score in listed if score is not None]
    assert listed == [*sorted(present, reverse=True), *[None] * (len(listed) - len(present))]
    done = seqpipe("runs", folder=here)
    assert (done.code, done.out.splitlines()[0].split()[:3]) == (0, ["name", "state", "data"])
    assert "metrics.json" in done.out
    assert json.loads(seqpipe("runs", "--json", "--sort", "score", folder=here).out) == [*rows.values()]
    assert seqpipe("runs", "--sort", "size", folder=here).code == 2
    (here / "empty").mkdir()
    assert seqpipe("runs", "empty", folder=here).out == "empty: no runs\n"
    for name in ("damaged", "half", "broken-bundle"):
        shutil.rmtree(f"runs/{name}")
