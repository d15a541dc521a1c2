"""A pipeline for Python does what the commands do, returns it typed, prints nothing, and raises the same errors."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import LEAN, begin_run, seqpipe, tagging, tiny, write_jsonl

from seqpipe import (
    Bundle,
    BundleError,
    ConfigError,
    DataError,
    Pipeline,
    Run,
    SeqpipeError,
    UsageError,
)
from seqpipe.config.run_layout import HISTORY
from seqpipe.config.yaml import parse
from seqpipe.console import Console, Progress
from seqpipe.files import Rows
from seqpipe.runtime.evaluate import score_answers

SHORT = (*LEAN, "train.epochs=2")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    torch.set_num_threads(1)
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, list[Progress]]]:
    """A run made from Python, in whose folder the tests stand, and what was reported of it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("python")
    reports: list[Progress] = []
    with contextlib.chdir(folder):
        yield Pipeline(tagging(folder), SHORT).run(device="cpu", progress=reports.append), reports


def test_a_run_is_what_the_command_makes_of_the_same_yaml(finished: tuple[Run, list[Progress]], tmp_path: Path) -> None:
    run, reports = finished
    command = seqpipe("run", tagging(tmp_path), *SHORT, "--device", "cpu", "--json", folder=tmp_path)
    assert command.code == 0
    printed = json.loads(command.out)
    assert run.scores == printed["scores"]
    assert run.outcome == printed["training"]
    assert (
        (printed["run"], printed["bundle"])
        == (str(run.folder), str(run.bundle.path))
        == ("runs/tiny", "runs/tiny/bundle")
    )
    lines = [report.text for report in reports if report.kind in ("message", "warning", "result")]

    def without_times(text: str, folder: Path) -> list[str]:
        return [line.partition("(")[0] for line in text.replace(f"{folder}/", "").splitlines()]

    assert without_times("\n".join(lines), Path.cwd()) == without_times(command.err, tmp_path)


def test_a_run_says_what_was_trained(finished: tuple[Run, list[Progress]]) -> None:
    run, _ = finished
    first, second = run.history
    assert (first["epoch"], second["epoch"], second["step"]) == (1, 2, 2 * first["step"])
    assert second["loss"] < first["loss"]
    assert set(first["dev"]) >= {"f1", "precision", "recall"}
    assert set(first["train"]) >= {"f1", "precision", "recall"}
    assert all(first["gradients"][stage] > 0 for stage in ("embedding", "encoder.layers.0", "head"))
    assert run.outcome["epochs"] == 2
    opened = Run("runs/tiny")
    assert (opened.scores, opened.history, opened.config.name) == (run.scores, run.history, "tiny")


def test_a_run_keeps_the_answers_that_its_scores_are_computed_from(finished: tuple[Run, list[Progress]]) -> None:
    run, _ = finished
    predictor = run.bundle.load("cpu").predictor
    for name, scores in (run.scores or {}).items():
        pairs = [(row["record"], row["answer"]) for row in run.answers if row["set"] == name]
        assert score_answers(predictor, pairs)[""] == scores


def test_a_run_is_perturbed_as_its_bundle_is(finished: tuple[Run, list[Progress]]) -> None:
    run, _ = finished
    records, model = [row["record"] for row in run.answers], run.bundle.load("cpu")
    assert run.robustness(records, perturb=["case"]) == model.robustness(records, ["case"])
    assert run.swap(records, [("Rome", "Oslo")]) == model.swap(records, [("Rome", "Oslo")])


def test_a_notebook_shows_a_run_as_its_scores_and_curves_and_rows_as_a_table(
    finished: tuple[Run, list[Progress]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = finished
    shown = run._repr_html_()
    assert f'<td dir="auto">{100 * (run.scores or {})["test"]["f1"]:.2f}</td>' in shown
    losses = [row["loss"] for row in run.history]
    assert f"train from {losses[0]:.3g} to {losses[-1]:.3g}" in shown
    assert "f1 in %</figcaption>" in shown
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = run._repr_html_()
    assert "<svg" not in without
    assert "For curves: pip install &quot;jinja2&gt;=" in without
    assert all(f'<td dir="auto">{row["loss"]:.4g}</td>' in without for row in run.history)
    table = run.answers._repr_html_()
    assert table.count("<tr>") == 1 + len(run.answers)
    rows = Rows({"name": "<b>", "nested": {"a": [1, None]}} for _ in range(30))
    assert "&lt;b&gt;" in rows._repr_html_()
    assert "… and 10 more rows" in rows._repr_html_()


def test_a_run_without_scores_and_one_whose_dev_scores_are_not_finite_are_shown_too(here: Path) -> None:
    run = begin_run(tiny(here))
    assert "<h2>tiny</h2>" in run._repr_html_()
    row = {
        "epoch": 1,
        "step": 6,
        "loss": 0.5,
        "dev": {"f1": None, "loss": None},
        "lr": 0.1,
        "seconds": 1,
        "best": False,
        "gradients": {},
    }
    run.checkpoints.mkdir()
    write_jsonl(run.checkpoints / HISTORY, [row, row | {"epoch": 2}])
    assert "Learning rate" in run._repr_html_()


def test_the_bundle_of_a_run_is_verified_and_loaded(finished: tuple[Run, list[Progress]]) -> None:
    bundle = finished[0].bundle
    assert bundle.manifest.name == "tiny"
    verification = bundle.verify("cpu")
    assert verification == json.loads(seqpipe("verify", bundle.path, "--device", "cpu", "--json").out)
    assert bundle.load("cpu")("Ada flew to Rome .") is not None
    with pytest.raises(BundleError, match="not the bundle that you expect"):
        Bundle(bundle.path, sha256="0" * 64).load("cpu")


def test_each_step_is_reported_from_its_start_to_its_end(finished: tuple[Run, list[Progress]]) -> None:
    run, reports = finished
    training = [report for report in reports if report.text == "training"]
    assert (training[0].kind, training[0].done) == ("step", 0)
    assert [report.kind for report in training].count("end") == 1
    assert training[-1].kind == "end"
    assert max(report.done for report in training) == training[0].total == run.history[-1]["step"]
    assert "loss" in training[-2].note
    assert {report.kind for report in reports} >= {"message", "result", "step", "end"}


def test_nothing_is_printed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(tagging(here), {"embedding": {"use": "lookup", "dim": 8}, "head": "tags", "train.epochs": 1})
    check = pipeline.check()
    pipeline.run(device="cpu")
    assert check.export is not None
    assert (check.export.decisions, check.export.ties, check.needs) == (12, 0, ())
    assert capfd.readouterr() == ("", "")


def test_a_check_has_the_warnings_that_the_command_prints(here: Path) -> None:
    file = tagging(here)
    letters = r"tokenizer={use: words, pattern: '\w'}"
    check = Pipeline(file, [*LEAN, letters]).check()
    assert any("split differently" in warning for warning in check.warnings)
    told = seqpipe("check", file, *LEAN, letters).err
    for warning in check.warnings:
        assert f"warning: {warning}\n" in told


def test_without_its_export_a_pipeline_is_checked_at_once(here: Path) -> None:
    assert Pipeline(tagging(here)).check(export=False).export is None


@pytest.mark.parametrize(
    ("overrides", "kind", "work"),
    [
        ({"train.epochs": 0}, ConfigError, "check"),
        ({"encoder.hiden": 3, "head": "crff"}, ConfigError, "check"),
        ({"data.train": "broken.conll"}, DataError, "check"),
        ({"train.metric": "acuracy"}, UsageError, "check"),
        ({"data.train": "broken.conll"}, DataError, "run"),
    ],
)
def test_an_error_is_the_one_that_the_command_line_shows(
    overrides: dict[str, Any], kind: type[SeqpipeError], work: str, here: Path
) -> None:
    file = tagging(here)
    (here / "broken.conll").write_text("Ada B-PER\nleft\n")
    with pytest.raises(kind) as caught:
        getattr(Pipeline(file, overrides), work)()
    items = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    command = seqpipe(work, file, *items)
    assert command.code == caught.value.exit_code
    assert command.err.startswith(f"{caught.value}\n") or f"\n{caught.value}\n" in command.err


def test_a_mapping_may_take_the_place_of_a_file(here: Path) -> None:
    file = tagging(here)
    content = parse(file.read_bytes(), str(file)).data
    written, given = Pipeline(file, LEAN).config, Pipeline(content, LEAN).config
    assert given == written
    assert Pipeline({key: value for key, value in content.items() if key != "name"}).name == "pipeline"
    content["train"]["epohs"] = content["train"].pop("epochs")
    with pytest.raises(ConfigError, match=r"pipeline: train.epohs: 'train' has no such key; did you mean 'epochs'\?"):
        Pipeline(content)
    with pytest.raises(UsageError, match="a pipeline has plain values only"):
        Pipeline({"name": object()})


def test_an_override_may_be_any_plain_value_or_a_path(here: Path) -> None:
    file = tagging(here)
    vectors = here / "a folder" / "train.conll"
    vectors.parent.mkdir()
    vectors.write_bytes((here / "train.conll").read_bytes())
    changes = {"data.train": vectors, "name": "other", "train.patience": None, "train.clip": 1e-05}
    config = Pipeline(file, changes).config
    assert (config.data.train, config.name, config.train.patience, config.train.clip) == (vectors, "other", None, 1e-05)


def test_an_exception_of_the_callback_ends_the_work_which_goes_on_later(here: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.text == "training" and "epoch 2" in progress.note:
            raise EnoughError

    pipeline = Pipeline(tagging(here), SHORT)
    with pytest.raises(EnoughError):
        pipeline.train(device="cpu", progress=stop)
    run = Run("runs/tiny")
    assert len(run.history) == 1
    with pytest.raises(UsageError, match="has no bundle yet"):
        _ = run.bundle
    reports: list[Progress] = []
    assert len(pipeline.train(device="cpu", progress=reports.append).history) == 2
    assert any("resuming from epoch 2" in report.text for report in reports)


def test_rows_become_a_table_of_pandas_and_of_arrow() -> None:
    for package in ("pandas", "pyarrow"):
        pytest.importorskip(package)
    rows = Rows([{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": 1.5}])
    assert [*rows.to_pandas()["loss"]] == rows.to_arrow()["loss"].to_pylist() == [2.5, 1.5]


def test_a_function_is_called_after_each_epoch_and_may_end_the_training(here: Path) -> None:
    seen: list[Rows] = []

    def is_enough(history: Rows) -> bool:
        seen.append(history)
        return len(history) == 3

    reports: list[Progress] = []
    run = Pipeline(tagging(here), (*LEAN, "train.epochs=9")).run(
        device="cpu", on_epoch=is_enough, progress=reports.append
    )
    assert [len(history) for history in seen] == [1, 2, 3]
    assert seen[-1] == run.history
    assert [row["epoch"] for row in seen[-1]] == [1, 2, 3]
    assert (run.outcome["ended_by"], run.outcome["epochs"], run.outcome["max_epochs"]) == ("callback", 3, 9)
    assert run.outcome_lines()[0].startswith("stopped by on_epoch after 3 epochs: the best dev f1 is ")
    assert run.bundle.verify("cpu")["golden"] > 0
    training = [report for report in reports if report.text == "training" and report.kind == "step"]
    assert training[-1].done == training[-1].total  # a bar is complete, though epochs are missing
    again: list[Rows] = []
    assert Pipeline(here / "tiny.yaml", (*LEAN, "train.epochs=9")).run(on_epoch=again.append).history == run.history
    assert again == []


def test_an_exception_of_the_function_ends_the_work_which_goes_on_with_the_next_epoch(here: Path) -> None:
    pipeline, seen = Pipeline(tagging(here), SHORT), []

    def fail(history: Rows) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pipeline.train(device="cpu", on_epoch=fail)
    assert len(Run("runs/tiny").history) == 1
    pipeline.train(device="cpu", on_epoch=lambda history: seen.append(len(history)))
    assert seen == [2]


def test_a_bar_may_be_asked_for_outside_of_notebooks(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Pipeline(tagging(here), SHORT).train(device="cpu", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "training:" in err  # too short to be drawn twice
    assert "training tiny" not in err


def test_a_pipeline_is_trained_in_a_thread_of_its_own(here: Path) -> None:
    pipeline, results = Pipeline(tagging(here), SHORT), []
    thread = threading.Thread(target=lambda: results.append(pipeline.train(device="cpu", runs=here / "elsewhere")))
    thread.start()
    thread.join()
    assert [len(run.history) for run in results] == [2]
    assert (here / "elsewhere/tiny").is_dir()


def test_a_folder_that_is_no_run_is_refused(here: Path) -> None:
    with pytest.raises(UsageError, match=r"not a run \(no run.json\)"):
        Run(here)


def test_a_console_shows_what_is_reported_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    loud, quiet = Console(1), Console(-1)
    kinds: Counter[str] = Counter()
    for report in (
        Progress("message", "a line"),
        Progress("warning", "warning: a mistake"),
        Progress("detail", "a detail"),
        Progress("result", "test f1 90.0"),
        Progress("step", "training", 0, 10),
        Progress("step", "training", 10, 10, "loss 0.1"),
        Progress("end", "training"),
    ):
        kinds[report.kind] += 1
        loud(report)
        quiet(report)
    assert capsys.readouterr().err == "a line\nwarning: a mistake\na detail\ntest f1 90.0\ntest f1 90.0\n"
    assert len(kinds) == 6
