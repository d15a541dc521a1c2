"""The outcome of training has its cause, its best epoch, and the fix where there is one."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from gallery import several_labels, write_pipeline
from tiny_pipelines import build_parts, labelled_texts, load_tagger, seqpipe

from seqpipe import Run
from seqpipe.answers.types import Metric
from seqpipe.config.loader import load_config
from seqpipe.training.progress import TrainingProgress, outcome_lines, outcome_of, rise_of_loss

METRICS = {"f1": Metric(), "perplexity": Metric(percent=False, more_is_better=False)}


def outcome(
    folder: Path, scores: list[float], *more: str, metric: str = "f1", losses: tuple[float, float] = (0.9, 0.5)
) -> dict[str, Any]:
    """The outcome of a training of at most 5 epochs with patience 2 that had these dev scores, and the last losses."""
    config = load_tagger(folder, "train.epochs=5", "train.patience=2", *more)
    progress, sign = TrainingProgress(first_loss=losses[0]), -1 if metric == "perplexity" else 1
    for score in scores:
        assert not progress.done
        is_better = progress.best is None or sign * score > progress.best
        if is_better:
            progress.improve(sign * score)
        epoch = progress.epoch + 1
        progress.history.append({"epoch": epoch, "step": 1000 * epoch, "loss": losses[1], "dev": {metric: score}})
        progress.begin_patience(sign * score, is_perfect=score == 1)
        progress.next_epoch(config.train, is_better)
    assert progress.done
    return outcome_of(progress, config)


def test_a_stop_by_patience_is_reported_with_the_best_epoch(tmp_path: Path) -> None:
    assert outcome_lines(outcome(tmp_path, [0.25, 0.5, 0.25, 0.5]), METRICS, "seqpipe run a.yaml") == [
        "stopped by patience after 2 evaluations without improvement: the best dev f1 is 50.00, of epoch 2 (step 2,000)"
    ]


@pytest.mark.parametrize(
    ("command", "cure"), [("seqpipe run a.yaml", "seqpipe run a.yaml --more 5"), ("", "set train.epochs=10")]
)
def test_a_score_that_still_improves_is_reported_with_the_cure(tmp_path: Path, command: str, cure: str) -> None:
    assert outcome_lines(outcome(tmp_path, [9.0, 8.0, 7.0, 6.5, 6.25], metric="perplexity"), METRICS, command) == [
        "still improving when it stopped, after all 5 epochs: the best dev perplexity is 6.25, of epoch 5 (step 5,000)",
        f"to train longer: {cure}",
    ]


def test_a_last_epoch_that_is_perfect_or_the_only_one_is_not_still_improving(tmp_path: Path) -> None:
    for scores, more in (([0.2, 0.4, 0.6, 0.8, 1.0], ()), ([0.5], ("train.epochs=1",))):
        ended = outcome(tmp_path, scores, *more)
        assert not ended["still_improving"]
        count, epochs = len(scores), "all 5 epochs" if len(scores) > 1 else "1 epoch"
        best = f"the best dev f1 is {100 * scores[-1]:.2f}, of epoch {count} (step {count},000)"
        assert outcome_lines(ended, METRICS) == [f"ended after {epochs}: {best}"]


def test_a_score_that_never_moved_is_reported_as_such(tmp_path: Path) -> None:
    ended = outcome(tmp_path, [0.0] * 5)
    assert (ended["ended_by"], ended["waited"]) == ("epochs", 0)
    first, cure = outcome_lines(ended, METRICS)
    assert first == "the dev f1 stayed at 0.00 in all 5 epochs"
    assert cure == "the training loss was falling: train longer: set train.epochs=10"
    first, cure = outcome_lines(outcome(tmp_path, [0.0] * 5, losses=(0.7, 0.7)), METRICS)
    assert cure == "nor did the training loss fall: raise or lower train.optimizer.lr, or check the data"


@pytest.mark.parametrize("scores", [[0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3], [0.0] * 5])
def test_a_loss_that_rose_is_reported_with_the_learning_rates_alone(tmp_path: Path, scores: list[float]) -> None:
    rates = ("train.optimizer.lr=0.5", "embedding.0.lr=20")
    lines = outcome_lines(outcome(tmp_path, scores, *rates, losses=(1.0975, 5.7e9)), METRICS, "seqpipe run a.yaml")
    assert lines == [
        "warning: the training loss rose from 1.097 at the first step to 5.7e+09: "
        "the learning rate is too high; divide by ten: embedding.0.lr: 20, train.optimizer.lr: 0.5"
    ]
    small = outcome_lines(outcome(tmp_path, scores, losses=(0.001, 0.5)), METRICS)
    assert "rose" not in " ".join(small)  # such as of a model that begins with trained weights


def test_a_loss_is_measured_by_that_of_a_uniform_guess(tmp_path: Path) -> None:
    ended = outcome(tmp_path, [0.1, 0.2, 0.3, 0.4, 0.5]) | {"uniform_loss": 1.609}
    for losses, has_risen in (
        ([1.6, 0.4, 1.7], False),  # labels that no text tells
        ([1.6, 0.4, 1.9], True),
        ([1.6, 1.9, 1.9], True),
        ([9.0, 1.2, 5.0], False),  # it began with large random weights
    ):
        risen = rise_of_loss(ended | {"losses": losses})
        assert ("above the 1.609 of a uniform guess" in risen) == bool(risen) == has_risen


@pytest.mark.parametrize("head", [{"use": "label", "label_smoothing": 0.1}, {"use": "label", "multi": True}])
def test_a_head_whose_weights_are_zero_has_the_loss_of_a_uniform_guess(tmp_path: Path, head: dict[str, Any]) -> None:
    records = several_labels if "multi" in head else labelled_texts
    pipeline, batches = build_parts(
        load_config(write_pipeline(tmp_path, records, "zeros", tokenizer="words", head=head))
    )
    for weights in pipeline.head.parameters():
        weights.data.zero_()
    pipeline.eval()
    (rows_of_batch, *_) = batches.order(0)
    assert pipeline.loss(batches(rows_of_batch)).item() == pytest.approx(pipeline.head.uniform_loss)


@pytest.mark.parametrize(("rate", "diverges"), [(20.0, True), (2.0, False)])
def test_a_divergence_is_warned_of_and_a_healthy_training_is_not(tmp_path: Path, rate: float, diverges: bool) -> None:
    dice = random.Random(1)
    rows = [{"text": " ".join(dice.choices("abcdefgh", k=20)), "label": str(dice.randrange(5))} for _ in range(120)]
    stages = {
        "tokenizer": "words",
        "embedding": {"use": "ngrams", "dim": 32, "dropout": 0.3, "lr": rate},
        "encoder": {"use": "bag", "pool": "sqrtn"},
        "head": {"use": "label", "pool": "mean"},
        "train": {"epochs": 12, "batch_size": 32, "optimizer": {"use": "sgd", "lr": rate / 20}, "threads": 1},
    }
    write_pipeline(tmp_path, lambda count, seed: rows, "ratings", **stages)
    done = seqpipe("train", "ratings.yaml", "--device", "cpu", folder=tmp_path)
    assert (done.code, "above the 1.609 of a uniform guess" in done.err) == (0, diverges)
    rates = f"the learning rate is too high; divide by ten: embedding.lr: {rate:g}, train.optimizer.lr: {rate / 20:g}"
    assert (rates in done.err) == (rates in Run(tmp_path / "runs" / "ratings").report().html) == diverges


def test_the_highest_loss_is_that_of_an_epoch_after_the_first(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "data.dev=null", "train.epochs=3")
    for losses, highest in (([5.0, 3.0, 4.0], 4.0), ([5.0], 5.0)):
        history = [{"epoch": i, "step": i, "loss": loss} for i, loss in enumerate(losses, 1)]
        ended = outcome_of(TrainingProgress(first_loss=9.0, history=history), config)
        assert ended["losses"] == [9.0, losses[-1], highest]


def test_without_dev_data_the_last_epoch_is_kept_without_a_report(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "data.dev=null", "train.epochs=1")
    progress = TrainingProgress(first_loss=0.75, history=[{"epoch": 1, "step": 3, "loss": 0.5}])
    progress.improve(-0.5)
    progress.next_epoch(config.train, improved=True)
    ended = outcome_of(progress, config)
    assert ended == {"ended_by": "epochs", "epochs": 1, "max_epochs": 1, "losses": [0.75, 0.5, 0.5]} | {
        "best_epoch": 1,
        "best_step": 3,
        "uniform_loss": None,
        "learning_rates": {"train.optimizer.lr": 0.02},
    }
    assert outcome_lines(ended, METRICS) == []


def test_an_outcome_is_json(tmp_path: Path) -> None:
    ended = outcome(tmp_path, [0.25, 0.5, 0.25, math.nan])
    assert json.loads(json.dumps(ended, allow_nan=False)) == ended
