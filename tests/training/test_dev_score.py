"""`train.metric`: the dev score that it names chooses the weights; one that is not there is told before training."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_pipelines import QUIET, begin_run, write_jsonl, write_seq2seq

from seqpipe.config.loader import load_config
from seqpipe.config.run_layout import HISTORY
from seqpipe.console import Console
from seqpipe.errors import ConfigError, UsageError
from seqpipe.runs.train import train_run
from seqpipe.training.datasets import Batches, examples, load_records
from seqpipe.training.network import Network

TRAIN = {"epochs": 4, "batch_tokens": 48, "threads": 1}


pytestmark = pytest.mark.usefixtures("folder")


def perplexity(network: Network, batches: Batches) -> float:
    """By the head's scores of the true texts, one record at a time."""
    total, tokens = 0.0, 0
    for i in range(len(batches.data)):
        batch = batches([i])
        total -= float(network.score(batch, {"tokens": batch["target_ids"][:, None]}).sum())
        tokens += int(batch["target_mask"].sum())
    return math.exp(total / tokens)


def loss(network: Network, batches: Batches) -> float:
    """The mean over the records."""
    return sum(float(network.loss(batches(rows))) * len(rows) for rows in batches.order(0)) / len(batches.data)


@pytest.mark.parametrize(("metric", "expected"), [("perplexity", perplexity), ("loss", loss), ("wer", None)])
def test_the_weights_of_the_least_perplexity_loss_or_word_error_rate_are_kept(
    tmp_path: Path, metric: str, expected: Callable[[Network, Batches], float] | None
) -> None:
    changes = {"train": {**TRAIN, "metric": metric, "optimizer": {"use": "adamw", "lr": 0.05}}}
    config = load_config(write_seq2seq(tmp_path, changes))
    for name in ("train", "dev") if metric == "wer" else ():
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": x, "reversed": f"{x} is it"} for x in "abcdefgh" * 4])
    run = begin_run(config)
    network = train_run(run, QUIET).network
    rows = [json.loads(line) for line in (run.checkpoints / HISTORY).read_text().splitlines()]
    scores = [row["dev"][metric] for row in rows]
    assert [row["best"] for row in rows] == [
        score < min(scores[:i], default=math.inf) for i, score in enumerate(scores)
    ]
    assert min(scores) < max(scores)
    (best,) = run.checkpoints.glob("best-*")
    assert best.stem == f"best-{scores.index(min(scores)) + 1:04}"
    if expected:
        data = examples(config, network.artifacts, load_records(config.data.reader, config.data.dev))
        with torch.no_grad():
            batches = Batches(network.artifacts, data, 48, None, 1)
            assert min(scores) == pytest.approx(expected(network, batches), rel=1e-4)


def test_an_unknown_score_is_an_error_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begin_run(load_config(write_seq2seq(tmp_path, {"train": {**TRAIN, "metric": "blue"}})))
    with pytest.raises(UsageError, match="there is no dev score 'blue'; did you mean 'bleu'"):
        train_run(run, Console())
    assert not (run.checkpoints / HISTORY).exists()
    assert "training" not in capsys.readouterr().err


def test_without_dev_there_is_no_score_to_choose_by(tmp_path: Path) -> None:
    file = write_seq2seq(tmp_path, {"train": {**TRAIN, "metric": "bleu"}})
    with pytest.raises(ConfigError, match=r"train.metric: it needs the dev score; write data.dev, or delete metric"):
        load_config(file, ["data.dev=null"])
    config = load_config(file)
    config = replace(config, data=replace(config.data, dev=None))
    with pytest.raises(UsageError, match=r"train.metric: it needs data.dev, which is missing"):
        train_run(begin_run(config), QUIET)
