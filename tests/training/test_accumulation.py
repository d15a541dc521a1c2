"""A step of accumulated batches is the step of one batch: of every head, of any lengths, in the last window too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from factory import QUIET
from test_contracts import OFFERS, STAGES, made
from torch import nn

from seqpipe.config.contract import declaration
from seqpipe.config.loader import Config
from seqpipe.config.schema import SGD
from seqpipe.testing.bench import Bench, perturb
from seqpipe.testing.report import Subject
from seqpipe.training.datasets import Batch
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.trainer import Trainer

SAMPLING = {"scheduled_sampling", "hard_attention"}  # options with which a head draws numbers in its loss
HEADS = [
    (use, i)
    for (kind, use), some in STAGES.items()
    for i, options in enumerate(some)
    if kind == "head" and SAMPLING.isdisjoint(options)
]


@pytest.fixture(autouse=True)
def one_thread_and_float32_afterwards() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)


class Rows:
    """Batches of some rows of one batch, in the same order in every epoch."""

    stateful, epoch_examples = False, None
    data: ClassVar[list[Any]] = []

    def __init__(self, batch: Batch, order: Sequence[Sequence[int]]):
        self.batch, self._order = batch, order

    def order(self, epoch: int) -> Sequence[Sequence[int]]:
        return self._order

    def __call__(self, rows: Sequence[int]) -> Batch:
        size = len(self.batch["mask"])
        return {name: tensor[rows] if len(tensor) == size else tensor for name, tensor in self.batch.items()}


def train(
    pipeline: Pipeline, config: Config, batches: Any, folder: Path, evaluate: Any = None, **settings: Any
) -> Trainer:
    config = replace(config, train=config.train.model_copy(update=settings))
    trainer = Trainer(pipeline, config, batches, evaluate, folder, QUIET)
    trainer.train()
    return trainer


def greatest_difference(first: nn.Module, second: nn.Module) -> float:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())


@pytest.mark.parametrize(("use", "number"), HEADS)
def test_accumulated_batches_train_every_head_as_one_batch_does(
    use: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, head = {**made(STAGES["head", use][number], tmp_path)}, OFFERS["head", use].load()
    if "dropout" in inspect.signature(head).parameters:
        options["dropout"] = 0.0
    bench = Bench(Subject("head", head, options), tmp_path)
    if declaration(bench.config.head[0], "batch_dependent"):
        return
    batch = bench.pipeline().eval().corrupt(bench.batch())  # as a whole: its random numbers depend on the shape
    batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    monkeypatch.setattr(Pipeline, "corrupt", lambda pipeline, batch: batch)
    pipelines = [perturb(bench.pipeline()).double() for _ in range(3)]
    torch.set_default_dtype(torch.float64)
    trained = []
    for order, accumulate in (([[0, 1, 2, 3, 4], [5, 6, 7]], 1), ([[4], [1, 0], [3, 2], [6], [7, 5]], 3)):
        pipeline = pipelines.pop()
        folder = tmp_path / str(accumulate)
        settings = {"epochs": 2, "accumulate": accumulate, "clip": 0.5, "average": 0.5, "optimizer": SGD(lr=0.1)}
        trainer = train(pipeline, bench.config, Rows(batch, order), folder, **settings)
        assert trainer.progress.step == 4
        trained.append(trainer)
    one, several = trained
    rounding = 1e-6 if use == "copy-seq2seq" else 1e-9  # whose loss is in part in float32, whatever its weights are in
    assert greatest_difference(one.pipeline, several.pipeline) < rounding
    assert greatest_difference(one.pipeline, pipelines.pop()) > 1e-4
    for first, second in zip(one.progress.history, several.progress.history, strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=rounding)
        assert second["gradients"] == pytest.approx(first["gradients"], rel=1e-6)
        assert second["lr"] == first["lr"]
    assert several.progress.first_loss == pytest.approx(one.progress.first_loss, rel=rounding)
