"""The page of a run or a bundle: its numbers, its look in Chromium, its file, and runs without the libraries."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import faults_of_page, table_rows
from factory import labelling, seqpipe, tagging, writing

from seqpipe import Bundle, Run
from seqpipe.answers.metrics.numbers import score_rows
from seqpipe.console import Console
from seqpipe.errors import UsageError, install_command
from seqpipe.pipeline.full_run import write_report

SPANS = {"head": {"use": "tags", "scheme": "BIOES"}, "embedding": {"use": "lookup", "dim": 8}}
CHANGES: Any = {tagging: SPANS, labelling: {"head": "label"}, writing: {}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Runs a tiny pipeline by the command, with a report at its end; returns the folder of the run."""
    finished: dict[Any, Path] = {}

    def run(write: Any) -> Path:
        if write not in finished:
            torch.set_num_threads(1)
            folder = tmp_path_factory.mktemp("reports")
            path = write(folder, CHANGES[write])
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SEQPIPE_REPORT", "on")
                done = seqpipe("run", path, "train.epochs=6", "--device", "cpu", folder=folder)
            assert done.code == 0, done.err
            assert "report.html: where the model is right and wrong" in done.err
            finished[write] = next((folder / "runs").iterdir())
        return finished[write]

    return run


def test_its_numbers_are_those_of_evaluate(runs: Any) -> None:
    folder = runs(tagging)
    scores = json.loads(seqpipe("evaluate", folder, "--device", "cpu", "--json", folder=folder.parents[1]).out)
    rows, metrics = table_rows((folder / "report.html").read_text()), Run(folder).bundle.load().predictor.metric_types
    expected = [row for set_scores in scores.values() for row in score_rows(set_scores, metrics)]
    assert len(expected) > 3
    assert all(row in rows for row in expected)


def test_errors_and_confusion_add_up_to_the_scores(runs: Any) -> None:
    run = Run(runs(tagging))
    scores, wrong, pairs = run.scores["test"], run.errors("test"), run.confusion("test")  # type: ignore[index]
    assert sum(row["count"] for row in pairs if row["kind"] == "right") == scores["correct"]
    assert sum(row["count"] for row in pairs if row["kind"] != "spurious") == scores["gold"]
    assert sum(row["count"] for row in pairs if row["kind"] != "missed") == scores["predicted"]
    assert wrong
    assert all(row["items"] and row["gold"] != row["predicted"] for row in wrong)
    with pytest.raises(UsageError, match="has no answers on 'tset'; its sets are: test"):
        run.errors("tset")


@pytest.mark.chromium
def test_it_opens_in_chromium_and_is_accessible(runs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs(tagging), folder)
    facts = json.loads((folder / "facts.json").read_text())
    facts["warnings"].append("dev: a record is also in " + "/a/very/long/path" * 9)  # breaks on a phone
    (folder / "facts.json").write_text(json.dumps(facts))
    path = Run(folder).report().path
    assert faults_of_page(path) == []
    page = path.read_text()
    assert len(page) < 2_000_000
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    plots = re.findall(r'<svg class="plot" role="img" aria-label="([^"]+)"', page)
    assert {label.partition(":")[0] for label in plots} >= {"Loss", "Gradient norms", "Reliability"}


@pytest.mark.long
@pytest.mark.chromium
@pytest.mark.parametrize("write", [labelling, writing])
def test_other_families_open_in_chromium_too(runs: Any, write: Any) -> None:
    assert faults_of_page(runs(write) / "report.html") == []


def test_a_report_by_field_has_the_scores_of_each_value(runs: Any, tmp_path: Path) -> None:
    folder = runs(tagging)
    output = tmp_path / "by.html"
    done = seqpipe("report", folder, "--by", "topic", "-o", output)
    assert (done.code, done.err) == (0, f"wrote {output}\n")
    arguments = ("evaluate", folder, "--device", "cpu", "--by", "topic", "--json")
    scores = json.loads(seqpipe(*arguments, folder=folder.parents[1]).out)["test"]
    rows, metrics = table_rows(output.read_text()), Run(folder).bundle.load().predictor.metric_types
    for group in ("topic=a", "topic=b"):
        cells = score_rows(scores[group], metrics)[-1][1:]
        assert [group, *cells] in rows


def test_the_report_of_a_bundle_answers_a_data_file(runs: Any, tmp_path: Path) -> None:
    folder = runs(tagging)
    data = folder.parents[1] / "dev.conll"
    report = Bundle(folder / "bundle").report(data, tmp_path / "dev.html")
    assert Path(report).read_text() == report.html
    scores = json.loads(seqpipe("evaluate", folder / "bundle", "--data", data, "--json").out)["dev.conll"]
    metrics = Run(folder).bundle.load().predictor.metric_types
    assert all(row in table_rows(report.html) for row in score_rows(scores, metrics))
    assert report._repr_html_().startswith('<iframe title="Report"')
    wrong = seqpipe("report", folder / "bundle")
    assert wrong.code == 2
    assert "is a bundle: name its data file with --data" in wrong.err


def test_a_run_that_explodes_is_explained(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    path, endless = tagging(tmp_path, SPANS), "{use: sgd, lr: 1e38, momentum: 0.9, weight_decay: 1e10}"
    done = seqpipe("run", path, f"train.optimizer={endless}", "--device", "cpu", folder=tmp_path)
    assert done.code != 0
    assert "lower train.optimizer.lr" in done.err
    run = Run(tmp_path / "runs" / "tiny")
    assert "diverged" in run.history[-1]
    page = run.report().html
    assert "Training explodes: " in page
    assert "Fix: lower train.optimizer.lr, or set train.clip." in page
    done = seqpipe(
        "train", path, "train.optimizer={use: sgd, lr: 1e10}", "name=high", "--device", "cpu", folder=tmp_path
    )
    assert done.code == 0
    assert "the learning rate is too high" in Run(tmp_path / "runs" / "high").report().html


def test_a_run_without_the_libraries_says_how_to_install_them_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("SEQPIPE_REPORT", "on")
    monkeypatch.setattr("seqpipe.pipeline.report.find_spec", lambda name: None)
    done = seqpipe("run", tagging(tmp_path, SPANS), "train.epochs=1", "--device", "cpu", folder=tmp_path)
    assert done.code == 0
    assert f"no report.html: the report needs matplotlib and Jinja2: {install_command('report')}" in done.err
    assert not (tmp_path / "runs/tiny/report.html").exists()
    asked = seqpipe("report", "runs/tiny", folder=tmp_path)
    assert (asked.code, "pip install" in asked.err) == (7, True)


def test_an_error_in_the_report_is_a_warning_that_names_it_and_keeps_the_run(
    runs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def analyse(rows: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setenv("SEQPIPE_REPORT", "on")
    monkeypatch.setattr("seqpipe.pipeline.report.analyse", analyse)
    run = Run(runs(tagging))
    before = (run.folder / "report.html").read_bytes()
    write_report(run, Console())
    assert f"no report.html: ValueError: planted; `seqpipe --debug report {run.folder}`" in " ".join(
        capsys.readouterr().err.split()
    )
    assert (run.folder / "report.html").read_bytes() == before
