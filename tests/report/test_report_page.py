"""The page of a run or a bundle: its numbers, its look in Chromium, its file, and runs without the libraries."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from gallery import gallery
from rendered_pages import page_faults, table_rows
from tiny_pipelines import QUIET, fail_with, seqpipe, succeed, write_tagger

from seqpipe import Bundle, Run
from seqpipe.answers.metrics.numbers import score_rows
from seqpipe.console import Console
from seqpipe.errors import UsageError, install_command
from seqpipe.report import plots
from seqpipe.report.collect import write_report

SHORT = {"head": "tags", "embedding": {"use": "lookup", "dim": 8}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a report."""
    run = gallery("streaming").copy(tmp_path_factory.mktemp("reports")).run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQPIPE_REPORT", "on")
        write_report(Run(run), QUIET)
    return run


def evaluated(folder: Path, *options: str | Path) -> Any:
    return json.loads(seqpipe("evaluate", folder, "--device", "cpu", "--json", *options).out)


def rows_of(scores: Any, folder: Path) -> list[list[str]]:
    """The rows of a table of scores."""
    return [[*row] for row in score_rows(scores, Run(folder).bundle.load().predictor.metric_types)]


def test_its_numbers_are_those_of_evaluate(folder: Path) -> None:
    rows = table_rows((folder / "report.html").read_text())
    expected = [row for scores in evaluated(folder).values() for row in rows_of(scores, folder)]
    assert len(expected) > 3
    assert all(row in rows for row in expected)


def test_errors_and_confusion_add_up_to_the_scores(folder: Path) -> None:
    run = Run(folder)
    scores, wrong, pairs = run.scores["test"], run.errors("test"), run.confusion("test")  # type: ignore[index]
    assert sum(row["count"] for row in pairs if row["kind"] == "right") == scores["correct"]
    assert sum(row["count"] for row in pairs if row["kind"] != "spurious") == scores["gold"]
    assert sum(row["count"] for row in pairs if row["kind"] != "missed") == scores["predicted"]
    assert wrong
    assert all(row["items"] and row["gold"] != row["predicted"] for row in wrong)
    with pytest.raises(UsageError, match="has no answers on 'tset'; its sets are: test"):
        run.errors("tset")


@pytest.mark.chromium
def test_it_opens_in_chromium_and_is_accessible(folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(folder, tmp_path / "run"))
    facts = json.loads((run / "facts.json").read_text())
    facts["warnings"].append("dev: a record is also in " + "/a/very/long/path" * 9)  # breaks on a phone
    (run / "facts.json").write_text(json.dumps(facts))
    path = Run(run).report().path
    assert page_faults(path) == []
    page = path.read_text()
    assert len(page) < 2_000_000
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    plots = re.findall(r'<svg class="plot" role="img" aria-label="([^"]+)"', page)
    assert {label.partition(":")[0] for label in plots} >= {"Loss", "Gradient norms", "Reliability"}


@pytest.mark.long
@pytest.mark.chromium
@pytest.mark.parametrize("name", ["label", "text"])
def test_other_families_open_in_chromium_too(name: str, tmp_path: Path) -> None:
    assert page_faults(Run(gallery(name).copy(tmp_path).run).report().path) == []


def test_a_report_by_field_has_the_scores_of_each_value(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "by.html"
    done = seqpipe("report", folder, "--by", "topic", "-o", output)
    assert (done.code, done.err) == (0, f"wrote {output}\n")
    scores, rows = evaluated(folder, "--by", "topic")["test"], table_rows(output.read_text())
    for group in ("topic=a", "topic=b"):
        assert [group, *rows_of(scores[group], folder)[-1][1:]] in rows


def test_the_report_of_a_bundle_answers_a_data_file(folder: Path, tmp_path: Path) -> None:
    data = folder.parents[1] / "dev.conll"
    report = Bundle(folder / "bundle").report(data, tmp_path / "dev.html")
    assert Path(report).read_text() == report.html
    scores = evaluated(folder / "bundle", "--data", data)["dev.conll"]
    assert all(row in table_rows(report.html) for row in rows_of(scores, folder))
    assert report._repr_html_().startswith('<iframe title="Report"')
    fail_with(2, "is a bundle: name its data file with --data", "report", folder / "bundle")


def test_a_run_that_explodes_is_explained(tmp_path: Path) -> None:
    path, endless = write_tagger(tmp_path, SHORT), "{use: sgd, lr: 1e38, momentum: 0.9, weight_decay: 1e10}"
    done = seqpipe("run", path, f"train.optimizer={endless}", "--device", "cpu", folder=tmp_path)
    assert done.code != 0
    assert "lower train.optimizer.lr" in done.err
    run = Run(tmp_path / "runs" / "tiny")
    assert "diverged" in run.history[-1]
    page = run.report().html
    assert "Training explodes: " in page
    assert "Fix: lower train.optimizer.lr, or set train.clip." in page
    high = ("train.optimizer={use: sgd, lr: 1e10}", "name=high", "--device", "cpu")
    assert seqpipe("train", path, *high, folder=tmp_path).code == 0
    assert "the learning rate is too high" in Run(tmp_path / "runs" / "high").report().html


def test_a_run_without_the_libraries_names_their_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_REPORT", "on")
    monkeypatch.setattr("seqpipe.report.collect.find_spec", lambda name: None)
    done = succeed("run", write_tagger(tmp_path, SHORT), "train.epochs=1", "--device", "cpu", folder=tmp_path)
    assert f"no report.html: the report needs matplotlib and Jinja2: {install_command('report')}" in done.err
    assert not (tmp_path / "runs/tiny/report.html").exists()
    fail_with(7, "pip install", "report", "runs/tiny", folder=tmp_path)


def test_an_error_in_the_report_is_a_warning_that_names_it_and_keeps_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def analyse(rows: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setenv("SEQPIPE_REPORT", "on")
    write_report(Run(folder), Console())
    assert "report.html: where the model is right and wrong" in capsys.readouterr().err
    before = (folder / "report.html").read_bytes()
    monkeypatch.setattr("seqpipe.report.collect.analyse", analyse)
    write_report(Run(folder), Console())
    message = f"no report.html: ValueError: planted; `seqpipe --debug report {folder}`"
    assert message in " ".join(capsys.readouterr().err.split())
    assert (folder / "report.html").read_bytes() == before


@pytest.mark.parametrize(("name", "shown"), [("sources", r"<ins>.*</ins>"), ("score", r'aria-label="Numbers')])
def test_errors_of_texts_show_their_words_and_those_of_numbers_a_plot(name: str, shown: str, tmp_path: Path) -> None:
    page = Run(gallery(name).copy(tmp_path).run).report().path.read_text()
    assert re.search(shown, page)


def test_a_diagram_has_the_diagonal_and_a_mark_for_each_point() -> None:
    page = plots.diagonal("calibration", [(0.1, 0.2), (0.5, 0.4), (0.9, 0.95)], "confidence", "accuracy")
    assert "accuracy by confidence, 3 points: 0.10: 0.20; 0.50: 0.40; 0.90: 0.95" in page
    assert page.count("<use ") == 3
    assert page.count("stroke-dasharray") == 1
