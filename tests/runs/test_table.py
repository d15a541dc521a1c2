"""Runs beside each other: the table of a folder, and comparisons of runs and bundles, in Python and as commands."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest
from gallery import gallery
from tiny_pipelines import QUIET, seqpipe, succeed

import seqpipe as library
from seqpipe import Bundle, Run, UsageError
from seqpipe.config.run_layout import FEATURES
from seqpipe.runs.full_run import export_run
from seqpipe.runs.table import prune_features
from seqpipe.training.artifacts import Artifacts


def change_answers(run: Path, wrong: int) -> None:
    """Make the stored answers of a run right, but of this many records empty."""
    rows, task = Run(run).answers, Artifacts.load(run).task
    for row in rows:
        spans = task.gold(row["record"])
        wrong -= bool(spans)
        row["answer"] = [{"entity_group": s, "word": "", "start": a, "end": b} for s, a, b in spans if wrong < 0]
    (run / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the runs a, whose answers were made right, and b, a copy with ten wrong ones."""
    folder = gallery("streaming").copy(tmp_path_factory.mktemp("runs")).folder
    with contextlib.chdir(folder):
        Path("runs/tiny").rename("runs/a")
        export_run(Path("runs/a"), Path("runs/a/int8"), ["export={precision: int8}"], QUIET)
        shutil.copytree("runs/a", "runs/b")
        change_answers(Path("runs/a"), 0)
        change_answers(Path("runs/b"), 10)
        text = Path("runs/b/pipeline.yaml").read_text()
        Path("runs/b/pipeline.yaml").write_text(text.replace("dim: 8", "dim: 9"))
        yield folder


def test_runs_are_compared_by_the_answers_that_they_stored(folder: Path) -> None:
    comparison = Run("runs/a").compare("runs/b", speed=False, by="topic")
    (test,) = comparison.tests
    assert (test.first, test.second, test.records) == ("runs/a", "runs/b", 16)
    assert (test.scores[0].name, test.scores[0].first) == ("f1", 1.0)
    assert test.scores[0].second < 0.9
    assert test.sentence.startswith("runs/a is better than runs/b by ")
    assert test.changes == {"fixed": 0, "broken": 10, "changed": 0}
    assert {row.name for row in test.groups} == {"topic=a", "topic=b"}
    assert [*comparison.settings] == [{"key": "embedding.0.dim", "runs/a": 8, "runs/b": 9}]
    size = sum(file.stat().st_size for file in Path("runs/a/bundle").iterdir())
    assert comparison.cost[0] == {"target": "runs/a", "bundle_bytes": size}
    drawn = comparison._repr_html_()  # answers of both beside each other, in a notebook
    assert '<th scope="col">runs/a</th><th scope="col">runs/b</th>' in drawn
    assert all(escape(answer) in drawn for answer in test.examples[0]["answers"])


def test_a_bundle_in_int8_or_outside_of_runs_answers_the_records_itself(folder: Path) -> None:
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


def test_the_command_prints_what_python_returns_and_ends_with_1_if_a_run_is_worse(folder: Path) -> None:
    done = succeed("compare", "runs/a", "runs/b", "runs/a/int8", "--examples", "1")
    tests = library.compare("runs/a", "runs/b", "runs/a/int8", speed=False).tests
    assert len(tests) == 2
    assert all(test.sentence in done.out for test in tests)
    rows = [line.split() for line in done.out.splitlines()]
    for row in [*tests[0].scores, *tests[0].labels]:
        assert [row.name, row.format(row.first), row.format(row.second)] in [cells[:3] for cells in rows]
    assert "  broken: " in done.out
    assert "tokens per second" in done.out
    assert "embedding.0.dim" in done.out
    points = -tests[0].scores[0].gain
    assert points > 5
    for threshold, code in ((points - 1, 1), (points + 1, 0)):
        arguments = ("compare", "runs/a", "runs/b", "--no-speed", "--fail-if-worse", threshold, "--json")
        done = seqpipe(*map(str, arguments))
        assert (done.code, json.loads(done.out)["tests"][0]["scores"][0]["name"]) == (code, "f1")
    assert seqpipe("compare", "runs/b", "runs/a", "--no-speed", "--fail-if-worse", "0").code == 0


def test_runs_that_cannot_be_compared_are_refused_with_the_reason(folder: Path) -> None:
    def refuse(second: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            library.compare("runs/a", second)

    refuse("runs/a", "name two or more different")
    refuse("gone", "gone: not a run")
    answers = Path(shutil.copytree("runs/b", "runs/fewer")) / "answers.jsonl"
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[1:]))
    refuse("runs/fewer", r"test: the records or their references differ.*\n1 of 16 records only in runs/a")
    answers.unlink()
    (same,) = library.compare("runs/b/bundle", "runs/fewer", data="test.conll", speed=False).tests
    (answered,) = library.compare("runs/b/bundle", "runs/fewer", speed=False).tests  # by its bundle
    assert (same.changes["broken"], answered.scores[0].second) == (0, same.scores[0].second)
    shutil.rmtree("runs/fewer/bundle")
    refuse("runs/fewer", "runs/fewer: has neither stored answers nor a bundle")
    shutil.rmtree("runs/fewer")


def test_the_table_of_runs_shows_damaged_and_unfinished_ones(folder: Path) -> None:
    for name in ("damaged", "half", "broken-bundle"):
        shutil.copytree("runs/a", f"runs/{name}")
    Path("runs/damaged/metrics.json").write_text('{"test"')
    Path("runs/half/training.json").unlink()
    Path("runs/half/metrics.json").unlink()
    Path("runs/broken-bundle/bundle/bundle.json").write_text("?")
    Path("runs/no-run").mkdir()
    rows = {row["name"]: row for row in library.list_runs("runs", sort="score")}
    states = dict.fromkeys("ab", "finished") | {"half": "unfinished", "damaged": "damaged", "broken-bundle": "damaged"}
    assert {name: row["state"] for name, row in rows.items()} == states
    run, scores = Run("runs/a"), Run("runs/a").scores or {}
    epochs = len(run.history)
    assert f"running or interrupted, after {epochs} of {epochs} epochs" in rows["half"]["problem"]
    columns = [rows["a"][name] for name in ("data", "model", "metric", "score")]
    assert columns == ["train.conll", "lstm + tags", "f1", scores["test"]["f1"]]
    assert rows["a"]["seconds"] == pytest.approx(sum(epoch["seconds"] for epoch in run.history))
    listed = [row["score"] for row in rows.values()]
    present = [score for score in listed if score is not None]
    assert listed == [*sorted(present, reverse=True), *[None] * (len(listed) - len(present))]
    done = seqpipe("runs")
    assert (done.code, done.out.splitlines()[0].split()[:3]) == (0, ["name", "state", "data"])
    assert "metrics.json" in done.out
    assert json.loads(seqpipe("runs", "--json", "--sort", "score").out) == [*rows.values()]
    assert seqpipe("runs", "--sort", "size").code == 2
    (folder / "empty").mkdir()
    assert seqpipe("runs", "empty").out == "empty: no runs\n"
    for name in ("damaged", "half", "broken-bundle"):
        shutil.rmtree(f"runs/{name}")


def test_a_lock_without_features_is_pruned_as_no_bytes(tmp_path: Path) -> None:
    (tmp_path / FEATURES / "both").mkdir(parents=True)
    (tmp_path / FEATURES / "both" / "ids").write_bytes(bytes(7))
    for name in ("both", "alone"):
        (tmp_path / FEATURES / f"{name}.lock").touch()
    assert prune_features(tmp_path) == {"alone": 0, "both": 7}
    assert not any((tmp_path / FEATURES).iterdir())
