"""Cross-validation, further epochs of a finished run, and more data for a trained run."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pipelines import SMALL_TAGGER, fail_with, seqpipe, succeed, write_conll, write_jsonl, write_tagger

from seqpipe import Pipeline, Run, UsageError, compare, list_runs
from seqpipe.console import Progress
from seqpipe.training import checkpoint
from seqpipe.training.data_forms import data_form

SETTINGS = (*SMALL_TAGGER, "train.epochs=4", "data.dev=0.25", "data.test=0.2", "train.schedule={use: linear}")
LR = 0.02
Crossed = tuple[Run, list[str]]


def run_with_lines(work: Callable[..., Run], *arguments: Any, **options: Any) -> Crossed:
    lines: list[str] = []
    return work(*arguments, device="cpu", progress=lambda report: lines.append(report.text), **options), lines


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crossed]:
    """A cross-validation with the final model, in whose folder the tests stand, and what was reported of it."""
    folder = tmp_path_factory.mktemp("folds")
    with contextlib.chdir(folder):
        yield run_with_lines(Pipeline(write_tagger(folder), SETTINGS).run_folds, 2, final=True)


def texts(run: Run, role: str) -> set[str]:
    data = run.config.data
    path = {"train": data.train, "dev": data.dev, **data.tests}[role]
    assert path is not None
    return {record["text"] for record in data_form(run.config).read(path)}


def stop_at(batch: int, name: str = "") -> Callable[[Progress], None]:
    """A progress function that ends the training of a run at a batch, counted from 1."""
    training = [""]

    def progress(report: Progress) -> None:
        training.append(report.text if report.text.startswith("training ") else training[-1])
        if (report.kind, report.text, report.done) == ("step", "training", batch) and name in training[-1]:
            raise KeyboardInterrupt

    return progress


def test_each_record_is_answered_by_the_run_that_was_not_trained_on_it(crossed: Crossed) -> None:
    run, lines = crossed
    assert [path.name for path in run.folds] == ["tiny-fold1", "tiny-fold2"]
    answers, records = run.answers, data_form(Pipeline("tiny.yaml").config).read(Path("train.conll").absolute())
    assert [row["record"] for row in answers] == list(records)
    for number, folder in enumerate(run.folds, 1):
        of_fold = Run(folder)
        tested = [row for row in answers if row["fold"] == number]
        assert [row | {"fold": number} for row in of_fold.answers] == tested
        assert not {row["record"]["text"] for row in tested} & (texts(of_fold, "train") | texts(of_fold, "dev"))
        assert not texts(of_fold, "train") & texts(of_fold, "dev")
    assert any("data.test is not used: the test set of each run is its fold of data.train" in line for line in lines)
    assert any("== fold 2 of 2" in line for line in lines)


def test_scores_of_a_cross_validation_are_those_of_all_answers_with_mean_and_deviation(crossed: Crossed) -> None:
    scores, folds = crossed[0].scores or {}, [(Run(path).scores or {})["test"] for path in crossed[0].folds]
    correct, gold, predicted = (sum(fold[key] for fold in folds) for key in ("correct", "gold", "predicted"))
    assert correct > 5
    assert scores["test"]["f1"] == pytest.approx(2 * correct / (gold + predicted))
    f1 = [fold["f1"] for fold in folds]
    assert f1[0] != f1[1]
    mean, deviation = np.mean(f1), np.std(f1, ddof=1)
    assert scores["test (mean)"]["f1"] == pytest.approx(mean)
    assert scores["test (deviation)"]["f1"] == pytest.approx(deviation)
    report = "\n".join(crossed[1])
    assert f"test f1: {100 * mean:.2f} ± {100 * deviation:.2f} over 2 folds" in report
    assert f"all 36 answers of the folds: f1 {100 * scores['test']['f1']:.2f}" in report


def test_the_final_model_is_trained_on_all_data(crossed: Crossed) -> None:
    final = Run("runs/tiny")
    assert (final.config.data.dev, dict(final.config.data.tests)) == (None, {})
    assert len(texts(final, "train")) == len({row["record"]["text"] for row in crossed[0].answers})
    epochs = median_low(Run(path).outcome["best_epoch"] for path in crossed[0].folds)
    assert final.outcome["epochs"] == epochs
    assert any(f"== all data, {epochs} epochs" in line for line in crossed[1])
    assert final.bundle.load()("Ada flew to Oslo .") is not None


def test_a_cross_validation_has_no_model_of_its_own(crossed: Crossed) -> None:
    with pytest.raises(UsageError, match=r"tiny-folds: has the answers of 2 runs, and no bundle; use that of"):
        _ = crossed[0].bundle
    fail_with(2, "name one of them, such as runs/tiny-fold1", "evaluate", "runs/tiny-folds")
    assert evaluated("runs/tiny-fold2/bundle") == (Run("runs/tiny-fold2").scores or {})["test"]["f1"]


def evaluated(bundle: str) -> Any:
    return json.loads(seqpipe("evaluate", bundle, "--json").out)["test"]["f1"]


def test_a_cross_validation_is_listed_as_finished_and_compared_by_its_answers(crossed: Crossed) -> None:
    rows = {row["name"]: row for row in list_runs("runs")}
    row, f1 = rows["tiny-folds"], (crossed[0].scores or {})["test"]["f1"]
    assert (row["state"], row["bundle_bytes"], row["problem"]) == ("finished", None, None)
    assert (row["metric"], row["score"], row["model"]) == ("f1", f1, rows["tiny"]["model"])
    answers = Path(shutil.copytree("runs/tiny-folds", "compared/other")) / "answers.jsonl"
    write_jsonl(answers, [json.loads(line) | {"answer": []} for line in answers.read_text().splitlines()])
    comparison = compare(crossed[0], "compared/other", speed=False)
    (test,) = comparison.tests
    assert (test.records, test.scores[0].first, test.scores[0].second) == (36, f1, 0.0)
    assert [*comparison.cost] == [*comparison.settings] == []


def test_an_interrupted_cross_validation_continues_with_its_fold(crossed: Crossed, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        pipeline = Pipeline(write_tagger(tmp_path), SETTINGS)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run_folds(2, device="cpu", progress=stop_at(3, "tiny-fold2"))
        assert not Path("runs/tiny-folds").exists()
        run, lines = run_with_lines(pipeline.run_folds, 2)
        assert "runs/tiny-fold1 is finished and nothing changed: nothing to do (--fresh trains again)" in lines
        assert (run.scores, len(run.answers)) == (crossed[0].scores, len(crossed[0].answers))
        shutil.copytree("runs/tiny-fold1", "runs/tiny")  # the final model would have the folder of an earlier run
        with pytest.raises(UsageError, match=r"runs/tiny was made from other inputs:\n(.*\n)*.*data\.fold: \[1, 2\]"):
            pipeline.run_folds(2, final=True, device="cpu", fresh=False)
        with pytest.raises(UsageError, match="folds must be at least 2, got 1"):
            pipeline.run_folds(1)


# Further epochs


def weights(folder: str) -> dict[str, torch.Tensor]:
    return checkpoint.load_best(Path(folder) / "checkpoints")


def test_further_epochs_follow_the_schedule_of_all_epochs_and_resume(crossed: Crossed) -> None:
    before, longer = Run("runs/tiny-fold1").history, Pipeline("runs/tiny-fold1/pipeline.yaml")
    best_epoch = Run("runs/tiny-fold1").outcome["best_epoch"]
    shutil.copytree("runs/tiny-fold1", "elsewhere/tiny-fold1")
    finished, lines = run_with_lines(longer.run, more=2, runs="elsewhere")
    assert finished.history[:4] == before
    steps = before[0]["step"]
    shares = [1 - (epoch * steps - 1) / (total * steps) for epoch, total in [(3, 4), (4, 4), (5, 6), (6, 6)]]
    assert [row["lr"] for row in finished.history[2:]] == pytest.approx([LR * share for share in shares])
    schedule = "the learning rate follows the schedule linear of 6 epochs"
    assert f"training continues after epoch 4, to epoch 6: {schedule}" in lines
    assert f"  it was {LR * shares[1]:.3g} at the end of epoch 4, and is {LR * 2 / 6:.3g} now" in lines
    assert (finished.config.train.epochs, finished.outcome["epochs"]) == (6, 6)
    assert finished.outcome["best_epoch"] >= best_epoch

    with pytest.raises(KeyboardInterrupt):  # the same, interrupted
        longer.run(more=2, device="cpu", progress=stop_at(4 * steps + 3))
    with pytest.raises(UsageError, match=r"tiny-fold1 was interrupted; finish it first: .* --more 2"):
        longer.run(more=3, device="cpu")
    assert longer.run(more=2, device="cpu").scores == finished.scores
    for name, tensor in weights("elsewhere/tiny-fold1").items():
        assert torch.equal(tensor, weights("runs/tiny-fold1")[name]), name

    def stop_before_export(report: Progress) -> None:
        if "comparing onnxruntime with PyTorch" in report.text:
            raise KeyboardInterrupt

    for _ in range(2):  # the bundle before them is not taken for theirs, and no more epochs are trained
        with pytest.raises(KeyboardInterrupt):
            Pipeline("runs/tiny-fold2/pipeline.yaml").run(more=1, device="cpu", progress=stop_before_export)
    resumed = Pipeline("runs/tiny-fold2/pipeline.yaml").run(device="cpu")
    assert (resumed.outcome["epochs"], evaluated("runs/tiny-fold2/bundle")) == (5, (resumed.scores or {})["test"]["f1"])

    with pytest.raises(UsageError, match=r"train\.epochs: 6 -> 4\n`--more` has trained it longer: set train.epochs=6"):
        Pipeline("runs/tiny-fold1/pipeline.yaml", ["train.epochs=4"]).run(device="cpu")
    assert Pipeline("runs/tiny-fold1/pipeline.yaml").run(device="cpu").outcome["epochs"] == 6


def test_further_epochs_need_a_finished_run(crossed: Crossed) -> None:
    with pytest.raises(UsageError, match=r"runs/gone is not trained yet; train it first: seqpipe run tiny\.yaml"):
        Pipeline("tiny.yaml", ["name=gone"]).run(more=1)
    assert not Path("runs/gone").exists()
    part = Pipeline("tiny.yaml", [*SETTINGS, "name=part"])
    with pytest.raises(KeyboardInterrupt):
        part.train(device="cpu", progress=stop_at(9))
    with pytest.raises(UsageError, match=r"runs/part is not finished; finish it first: seqpipe run tiny\.yaml"):
        part.run(more=1, device="cpu")
    with pytest.raises(UsageError, match=r"encoder\.hidden: 6 -> 7"):
        Pipeline("runs/tiny-fold2/pipeline.yaml", ["encoder.hidden=7"]).run(more=1)
    with pytest.raises(UsageError, match="it continues a run, so it excludes `fresh`"):
        part.run(more=1, fresh=True)


# More data


def test_more_data_continues_from_the_finished_run_in_a_run_that_names_it(crossed: Crossed) -> None:
    write_conll(Path("new.conll"), 20, 7)
    parent = Pipeline("tiny.yaml", [*SETTINGS, "name=old", "train.epochs=1"]).train(device="cpu")
    longer = Pipeline("runs/old/pipeline.yaml", ["train.epochs=1", "train.optimizer.lr=1e-12"])
    child, lines = run_with_lines(longer.run, data_add="new.conll")
    assert (child.folder, child.parent, parent.parent) == (Path("runs/old-2"), Path("runs/old"), None)
    assert {row["name"]: row["parent"] for row in list_runs("runs")}.items() >= {"old": None, "old-2": "old"}.items()
    assert "  encoder: starts from runs/old" in lines
    encoder = {name: tensor for name, tensor in weights("runs/old").items() if name.startswith("encoder.")}
    assert encoder
    for name, tensor in encoder.items():
        assert torch.allclose(tensor, weights("runs/old-2")[name], atol=1e-9), name
    new = {record["text"] for record in data_form(child.config).read(Path("new.conll").absolute())}
    assert (new | texts(parent, "train")) <= texts(child, "train") | texts(child, "dev") | texts(child, "test")
    assert not texts(child, "test") & texts(parent, "train")  # the split stays
    assert longer.run(data_add="new.conll", device="cpu").folder == child.folder
    assert evaluated("runs/old-2/bundle") == (child.scores or {})["test"]["f1"]


def test_more_data_needs_a_finished_run_and_may_name_the_new_one(crossed: Crossed) -> None:
    Path("gone.yaml").write_text(Path("tiny.yaml").read_text().replace("name: tiny", "name: gone"))
    with pytest.raises(UsageError, match=r"runs/gone is not a finished run; run gone\.yaml first"):
        Pipeline("gone.yaml").run(data_add="dev.conll")
    fold = Pipeline("runs/tiny-fold2/pipeline.yaml", {"name": "grown"})
    with pytest.raises(UsageError, match=r"data\.add\.0: no such file '.*absent\.conll'"):
        fold.run(data_add=Path("absent.conll"))
    with pytest.raises(UsageError, match=r"data_add: .*train\.conll is in data\.train already; name a file of other"):
        fold.run(data_add=["dev.conll", "train.conll"])
    twice = ("--data-add", "dev.conll", "--data-add", "dev.conll")
    fail_with(2, "dev.conll is named twice", "run", "runs/tiny-fold2/pipeline.yaml", *twice)
    with pytest.raises(KeyboardInterrupt):
        fold.run(data_add="dev.conll", device="cpu", progress=stop_at(1))
    assert Run("runs/grown").parent == Path("runs/tiny-fold2")


def test_a_group_of_the_data_is_in_one_fold_of_a_pipeline(tmp_path: Path) -> None:
    records = [{"text": f"text {i}", "target": i, "doc": f"doc {i // 4}"} for i in range(40)]
    write_jsonl(tmp_path / "train.jsonl", records)
    keys = {"reader": "jsonl", "train": "train.jsonl", "dev": 0.25, "group": "doc"}
    tested: list[str] = []
    for number in (1, 2):
        config = Pipeline(write_tagger(tmp_path, {"data": keys}), {"data.fold": [number, 2]}).config
        paths: list[Any] = [config.data.train, config.data.dev, config.data.tests["test"]]
        train, dev, test = ({record["doc"] for record in data_form(config).read(path)} for path in paths)
        assert len(train | dev | test) == len(train) + len(dev) + len(test)
        tested += test
    assert sorted(tested) == [f"doc {i}" for i in range(10)]


def test_folds_by_the_command_give_their_runs_and_scores(tmp_path: Path) -> None:
    options = ("train.epochs=1", "data.dev=0.25", "--folds", "2", "--json", "-q")
    result = json.loads(succeed("run", write_tagger(tmp_path), *SMALL_TAGGER, *options, folder=tmp_path).out)
    assert [Path(path).name for path in result["folds"]] == ["tiny-fold1", "tiny-fold2"]
    assert 0 <= result["scores"]["test"]["f1"] <= 1
