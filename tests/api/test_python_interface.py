"""A pipeline for Python does what the commands do, returns it typed, prints nothing, and raises the same errors."""

import contextlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import SMALL_TAGGER, begin_run, load_tagger, seqpipe, succeed, write_jsonl, write_tagger

from seqpipe import Bundle, BundleError, ConfigError, DataError, Pipeline, Run, UsageError
from seqpipe.config.run_layout import HISTORY
from seqpipe.config.yaml import parse_tree
from seqpipe.console import Console, Progress, with_relative_paths
from seqpipe.evaluation.scores import score_answers
from seqpipe.files import Rows

Reported = tuple[Run, list[Progress]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    """A run made from Python, in whose folder the tests stand, and what was reported of it."""
    folder, reports = tmp_path_factory.mktemp("python"), list[Progress]()
    with contextlib.chdir(folder):
        yield Pipeline(write_tagger(folder), SMALL_TAGGER).run(device="cpu", progress=reports.append), reports


def test_a_run_is_what_the_command_makes_of_the_same_yaml(finished: Reported, tmp_path: Path) -> None:
    run, reports = finished
    command = succeed("run", write_tagger(tmp_path), *SMALL_TAGGER, "--device", "cpu", "--json", folder=tmp_path)
    printed = json.loads(command.out)
    assert run.scores == printed["scores"]
    assert run.outcome == printed["training"]
    assert (printed["run"], printed["bundle"]) == (str(run.folder), str(run.bundle.path))
    assert (printed["run"], printed["bundle"]) == ("runs/tiny", "runs/tiny/bundle")

    def without_times(text: str, folder: Path) -> list[str]:
        return [line.partition("(")[0] for line in text.replace(f"{folder}/", "").splitlines()]

    lines = "\n".join(report.text for report in reports if report.kind in ("message", "warning", "result"))
    assert without_times(lines, Path.cwd()) == without_times(command.err, tmp_path)


def test_a_run_has_its_history_and_outcome(finished: Reported) -> None:
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


def test_a_run_keeps_the_answers_of_its_scores_and_is_perturbed_as_its_bundle_is(finished: Reported) -> None:
    run, model = finished[0], finished[0].bundle.load("cpu")
    for name, scores in (run.scores or {}).items():
        pairs = [(row["record"], row["answer"]) for row in run.answers if row["set"] == name]
        assert score_answers(model.predictor, pairs)[""] == scores
    records = [row["record"] for row in run.answers]
    assert run.robustness(records, perturb=["case"]) == model.robustness(records, ["case"])
    assert run.swap(records, [("Rome", "Oslo")]) == model.swap(records, [("Rome", "Oslo")])


def test_a_notebook_shows_curves_and_rows_as_a_table(finished: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert all(f'<td dir="auto">{loss:.4g}</td>' in without for loss in losses)
    assert run.answers._repr_html_().count("<tr>") == 1 + len(run.answers)
    rows = Rows({"name": "<b>", "nested": {"a": [1, None]}} for _ in range(30))
    assert "&lt;b&gt;" in rows._repr_html_()
    assert "… and 10 more rows" in rows._repr_html_()


def test_a_run_without_scores_and_one_whose_dev_scores_are_not_finite_are_shown_too(folder: Path) -> None:
    run = Run(begin_run(load_tagger(folder)).folder)
    assert "<h2>tiny</h2>" in run._repr_html_()
    row = {"epoch": 1, "step": 6, "loss": 0.5, "dev": {"f1": None, "loss": None}, "lr": 0.1, "seconds": 1}
    row |= {"best": False, "gradients": {}}
    run.checkpoints.mkdir()
    write_jsonl(run.checkpoints / HISTORY, [row, row | {"epoch": 2}])
    assert "Learning rate" in run._repr_html_()


def test_the_bundle_of_a_run_is_verified_and_loaded(finished: Reported) -> None:
    bundle = finished[0].bundle
    assert bundle.manifest.name == "tiny"
    verification = bundle.verify("cpu")
    assert verification == json.loads(seqpipe("verify", bundle.path, "--device", "cpu", "--json").out)
    assert bundle.load("cpu")("Ada flew to Rome .") is not None
    with pytest.raises(BundleError, match="not the bundle that you expect"):
        Bundle(bundle.path, sha256="0" * 64).load("cpu")


def test_each_step_is_reported_from_its_start_to_its_end(finished: Reported) -> None:
    run, reports = finished
    training = [report for report in reports if report.text == "training"]
    assert (training[0].kind, training[0].done) == ("step", 0)
    assert [report.kind for report in training].count("end") == 1
    assert training[-1].kind == "end"
    steps = [report for report in training if report.kind == "step" and report.done]
    assert [report.done for report in steps] == [*range(1, run.history[-1]["step"] + 1)]
    assert {report.total for report in steps} == {steps[-1].done}
    assert re.fullmatch(r"epoch 1/2, loss [\d.]+, [\d,]+ tokens/s", steps[0].note)
    assert re.fullmatch(r"epoch 2/2, loss [\d.]+, best f1 [\d.]+, [\d,]+ tokens/s", steps[-1].note)
    assert {report.kind for report in reports} >= {"message", "result", "step", "end"}


def test_nothing_is_printed_and_a_mapping_has_overrides(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(
        write_tagger(folder), {"embedding": {"use": "lookup", "dim": 8}, "head": "tags", "train.epochs": 1}
    )
    check = pipeline.check()
    pipeline.run(device="cpu")
    assert check.export is not None
    assert (check.export.decisions, check.export.ties, check.needs) == (12, 0, ())
    assert pipeline.check(export=False).export is None
    assert capfd.readouterr() == ("", "")


def test_a_check_has_the_warnings_that_the_command_prints(folder: Path) -> None:
    overrides = [*SMALL_TAGGER, r"tokenizer={use: words, pattern: '\w'}"]
    warnings = Pipeline(write_tagger(folder), overrides).check().warnings
    assert any("split differently" in warning for warning in warnings)
    printed = seqpipe("check", "tiny.yaml", *overrides).err
    assert all(f"warning: {with_relative_paths(warning)}\n" in printed for warning in warnings)


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
def test_an_error_is_the_one_that_the_command_line_shows(overrides: Any, kind: Any, work: str, folder: Path) -> None:
    file = write_tagger(folder)
    (folder / "broken.conll").write_text("Ada B-PER\nleft\n")
    with pytest.raises(kind) as caught:
        getattr(Pipeline(file, overrides), work)()
    items = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    command = seqpipe(work, file, *items)
    assert command.code == caught.value.exit_code
    message = with_relative_paths(str(caught.value))
    assert command.err.startswith(f"{message}\n") or f"\n{message}\n" in command.err


def test_a_mapping_may_take_the_place_of_a_file(folder: Path) -> None:
    file = write_tagger(folder)
    content = parse_tree(file.read_bytes(), str(file)).data
    assert Pipeline(content, SMALL_TAGGER).config == Pipeline(file, SMALL_TAGGER).config
    assert Pipeline({key: value for key, value in content.items() if key != "name"}).name == "pipeline"
    content["train"]["epohs"] = content["train"].pop("epochs")
    with pytest.raises(ConfigError, match=r"pipeline: train.epohs: 'train' has no such key; did you mean 'epochs'\?"):
        Pipeline(content)
    with pytest.raises(UsageError, match="a pipeline has plain values only"):
        Pipeline({"name": object()})


def test_an_override_may_be_any_plain_value_or_a_path(folder: Path) -> None:
    moved = folder / "a folder" / "train.conll"
    file = write_tagger(folder)
    moved.parent.mkdir()
    (folder / "train.conll").rename(moved)
    changes = {"data.train": moved, "name": "other", "train.patience": None, "train.clip": 1e-05}
    config = Pipeline(file, changes).config
    assert (config.data.train, config.name, config.train.patience, config.train.clip) == (moved, "other", None, 1e-05)


class EnoughError(Exception): ...


def stop_in_epoch_2(progress: Progress) -> None:
    if progress.text == "training" and "epoch 2" in progress.note:
        raise EnoughError


def stop_after_epoch(history: Rows) -> None:
    raise EnoughError


@pytest.mark.parametrize(
    "callback", [{"progress": stop_in_epoch_2}, {"on_epoch": stop_after_epoch}], ids=["progress", "epoch"]
)
def test_an_exception_of_a_callback_ends_the_work_which_goes_on_later(callback: Any, folder: Path) -> None:
    pipeline, reports, lengths = Pipeline(write_tagger(folder), SMALL_TAGGER), list[Progress](), list[int]()
    with pytest.raises(EnoughError):
        pipeline.train(device="cpu", **callback)
    run = Run("runs/tiny")
    assert len(run.history) == 1
    with pytest.raises(UsageError, match="has no bundle yet"):
        _ = run.bundle
    pipeline.train(device="cpu", progress=reports.append, on_epoch=lambda history: lengths.append(len(history)))
    assert lengths == [2]
    assert any("resuming from epoch 2" in report.text for report in reports)


def test_rows_become_a_table_of_pandas_and_of_arrow() -> None:
    for package in ("pandas", "pyarrow"):
        pytest.importorskip(package)
    rows = Rows([{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": 1.5}])
    assert [*rows.to_pandas()["loss"]] == rows.to_arrow()["loss"].to_pylist() == [2.5, 1.5]


def test_a_function_is_called_after_each_epoch_and_may_end_the_training(folder: Path) -> None:
    histories, reports = list[Rows](), list[Progress]()

    def is_enough(history: Rows) -> bool:
        histories.append(history)
        return len(history) == 3

    pipeline = Pipeline(write_tagger(folder), (*SMALL_TAGGER, "train.epochs=9"))
    run = pipeline.run(device="cpu", on_epoch=is_enough, progress=reports.append)
    assert [len(history) for history in histories] == [1, 2, 3]
    assert histories[-1] == run.history
    assert [row["epoch"] for row in run.history] == [1, 2, 3]
    assert (run.outcome["ended_by"], run.outcome["epochs"], run.outcome["max_epochs"]) == ("callback", 3, 9)
    assert run.outcome_lines()[0].startswith("stopped by on_epoch after 3 epochs: the best dev f1 is ")
    assert run.bundle.verify("cpu")["golden"] > 0
    training = [report for report in reports if report.text == "training" and report.kind == "step"]
    assert training[-1].done == training[-1].total  # a bar is complete, though epochs are missing
    assert pipeline.run(on_epoch=histories.append).history == run.history
    assert len(histories) == 3


def test_a_pipeline_trains_in_a_thread_with_a_bar_in_a_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipeline, results = Pipeline(write_tagger(folder), SMALL_TAGGER), list[Run]()
    options: Any = {"device": "cpu", "runs": folder / "elsewhere", "progress": True}
    thread = threading.Thread(target=lambda: results.append(pipeline.train(**options)))
    thread.start()
    thread.join()
    assert [len(run.history) for run in results] == [2]
    assert (folder / "elsewhere/tiny").is_dir()
    out, err = capfd.readouterr()
    assert (out, "training:" in err, "training tiny" in err) == ("", True, False)  # too short to be drawn twice


def test_a_console_shows_the_progress_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    for report in (
        Progress("message", "a line"),
        Progress("warning", "warning: a mistake"),
        Progress("detail", "a detail"),
        Progress("result", "test f1 90.0"),
        Progress("step", "training", 0, 10),
        Progress("step", "training", 10, 10, "loss 0.1"),
        Progress("end", "training"),
    ):
        Console(1)(report)
        Console(-1)(report)
    assert capsys.readouterr().err == "a line\nwarning: a mistake\na detail\ntest f1 90.0\ntest f1 90.0\n"
