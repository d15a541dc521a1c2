"""`train.metric`: the dev score that it names chooses the weights; one that is not there is told before training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from factory import QUIET, begin_run, write_jsonl, writing

from seqpipe.config.loader import Config, load
from seqpipe.config.run_layout import HISTORY
from seqpipe.console import Console
from seqpipe.errors import ConfigError, UsageError
from seqpipe.pipeline.training import train_run
from seqpipe.training.datasets import Batches, examples, read
from seqpipe.training.pipeline import Pipeline

TRAIN = {"epochs": 4, "batch_tokens": 48, "threads": 1}


def test_the_weights_of_the_least_perplexity_are_kept_and_it_is_that_of_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    optimizer = {"use": "adamw", "lr": 0.05}
    config = load(writing(tmp_path, {"train": {**TRAIN, "metric": "perplexity", "optimizer": optimizer}}))
    run = begin_run(config)
    pipeline = train_run(run, QUIET)
    rows = [json.loads(line) for line in (run.checkpoints / HISTORY).read_text().splitlines()]
    scores = [row["dev"]["perplexity"] for row in rows]
    least = [min(scores[: i + 1]) for i in range(len(scores))]
    assert [row["best"] for row in rows] == [i == 0 or score < least[i - 1] for i, score in enumerate(scores)]
    assert len({round(score, 3) for score in scores}) == len(scores)
    (best,) = run.checkpoints.glob("best-*")
    assert best.stem == f"best-{scores.index(min(scores)) + 1:04}"
    assert min(scores) == pytest.approx(perplexity(pipeline, config), rel=1e-4)


def test_the_weights_of_the_least_word_error_rate_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"train": {**TRAIN, "metric": "wer", "optimizer": {"use": "adamw", "lr": 0.05}}}
    config = load(writing(tmp_path, changes))
    for name in ("train", "dev"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": x, "reversed": f"{x} is it"} for x in "abcdefgh" * 4])
    run = begin_run(config)
    train_run(run, QUIET)
    rows = [json.loads(line) for line in (run.checkpoints / HISTORY).read_text().splitlines()]
    rates = [row["dev"]["wer"] for row in rows]
    (best,) = run.checkpoints.glob("best-*")
    assert min(rates) < max(rates)
    assert best.stem == f"best-{rates.index(min(rates)) + 1:04}"


def test_the_weights_of_the_least_dev_loss_are_kept_and_it_is_the_mean_over_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(writing(tmp_path, {"train": {**TRAIN, "metric": "loss", "optimizer": {"use": "adamw", "lr": 0.05}}}))
    run = begin_run(config)
    pipeline = train_run(run, QUIET)
    rows = [json.loads(line) for line in (run.checkpoints / HISTORY).read_text().splitlines()]
    losses = [row["dev"]["loss"] for row in rows]
    (best,) = run.checkpoints.glob("best-*")
    assert best.stem == f"best-{losses.index(min(losses)) + 1:04}"
    assert config.data.dev
    data = examples(config, pipeline.artifacts, read(config.data.reader, config.data.dev))
    make = Batches(pipeline.artifacts, data, 48, None, 1)
    with torch.no_grad():
        total = sum(float(pipeline.loss(make(rows))) * len(rows) for rows in make.order(0))
    assert min(losses) == pytest.approx(total / len(data), rel=1e-4)


def perplexity(pipeline: Pipeline, config: Config) -> float:
    """By the head's own scores of the true texts, one record at a time."""
    assert config.data.dev
    data = examples(config, pipeline.artifacts, read(config.data.reader, config.data.dev))
    make, total, tokens = Batches(pipeline.artifacts, data, 48, None, 1), 0.0, 0
    for i in range(len(data)):
        batch = make([i])
        with torch.no_grad():
            total -= float(pipeline.score(batch, {"tokens": batch["target_ids"][:, None]}).sum())
        tokens += int(batch["target_mask"].sum())
    return math.exp(total / tokens)


def test_a_score_that_is_not_there_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(writing(tmp_path, {"train": {**TRAIN, "metric": "blue"}}))
    run = begin_run(config)
    with pytest.raises(UsageError, match="there is no dev score 'blue'; did you mean 'bleu'"):
        train_run(run, Console())
    assert not (run.checkpoints / HISTORY).exists()
    assert "training" not in capsys.readouterr().err


def test_without_dev_there_is_no_score_to_choose_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = writing(tmp_path, {"train": {**TRAIN, "metric": "bleu"}})
    with pytest.raises(ConfigError, match=r"train.metric: it needs the dev score; write data.dev, or delete metric"):
        load(file, ["data.dev=null"])
    config = load(file)
    config = replace(config, data=replace(config.data, dev=None))
    with pytest.raises(UsageError, match=r"train.metric: it needs data.dev, which is missing"):
        train_run(begin_run(config), QUIET)
