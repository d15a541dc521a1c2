"""The checks of training: gradients, seeds, and weights that are saved, loaded and resumed to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seqpipe.console import Console, Tick
from seqpipe.features.document import Arrays
from seqpipe.testing.bench import RAGGED, Bench
from seqpipe.testing.report import Check, FaultError
from seqpipe.testing.shapes import SHAPES
from seqpipe.training import checkpoint
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.trainer import make_optimizer, train

SEEDS, GRADIENT = "determinism", "gradient reaches every parameter"
SAVED, RESUMED = "save and load bit-equal", "resume bit-equal"

_SEEDS = (
    "Take every random number from torch's own generator (torch.rand, nn.init, nn.Dropout), none from `random` or "
    "NumPy; with self.training False use none, and change nothing in `self`"
)
_GRADIENT = (
    "A parameter that the loss does not use learns nothing: use it, delete it, or requires_grad_(False) if it is "
    "meant to stay. `.detach()`, `.data`, torch.no_grad() and argmax cut the gradient"
)
_SAVED = (
    "What is learned or drawn at random is an nn.Parameter or a register_buffer (persistent); a plain attribute or a "
    "buffer with persistent=False is only for what the constructor makes of its arguments again"
)
_RESUMED = (
    "All that training changes must be in the weights: a counter or an average kept as a plain attribute is lost at "
    "a stop; make it a buffer (self.register_buffer('steps', torch.zeros(())))"
)


def reproducibility_checks(bench: Bench) -> list[Check]:
    return [
        Check(SEEDS, lambda: _check_seeds(bench), _SEEDS, (SHAPES,)),
        Check(GRADIENT, lambda: _check_gradient(bench), _GRADIENT, (SHAPES,)),
        Check(SAVED, lambda: _check_saved(bench), _SAVED, (SHAPES, SEEDS)),
        Check(RESUMED, lambda: _check_resumed(bench), _RESUMED, (SHAPES, SEEDS)),
    ]


def train_steps(bench: Bench, pipeline: Pipeline, steps: int) -> None:
    """Train the pipeline for some steps, each on a few records."""
    pipeline.train()
    optimizer = make_optimizer(pipeline, bench.config)
    for rows in ([1, 3, 6], [0, 2, 4, 5], [7, 8, 9])[:steps]:
        optimizer.zero_grad()
        pipeline.loss(bench.batches(rows)).backward()
        optimizer.step()


def _check_seeds(bench: Bench) -> None:
    """A seed says everything; an answer is the same twice."""
    first, second = bench.pipeline(3), bench.pipeline(3)
    for name, tensor in first.state_dict().items():
        if not torch.equal(tensor, second.state_dict()[name]):
            raise FaultError(f"built twice with the same seed, {name} differs", _SEEDS)
    losses = []
    for pipeline in (first, second):
        torch.manual_seed(4)
        losses.append(pipeline.train().loss(bench.batch()).item())
    if losses[0] != losses[1]:
        raise FaultError(f"with the same seed the loss in training is {losses[0]!r}, then {losses[1]!r}", _SEEDS)
    feeds = bench.feeds(RAGGED)
    decision, *repeated = (bench.decide(first.eval(), feeds) for _ in range(3))
    for again in repeated:
        _check_bit_equal(decision, again, "asked again in evaluation", _SEEDS)


def _check_gradient(bench: Bench) -> None:
    pipeline = bench.pipeline().train()
    for rows in (range(len(bench.examples)), [1, 3, 6], [4, 7, 9]):
        pipeline.loss(bench.batches(list(rows))).backward()
    for name, parameter in bench.module(pipeline).named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any())):
            raise FaultError(f"no gradient reaches {name} {tuple(parameter.shape)}", _GRADIENT)
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise FaultError(f"the gradient of {name} is not finite", _GRADIENT)


def _check_saved(bench: Bench) -> None:
    """Trained a little, saved as a run saves, loaded into a pipeline of another seed: the same answers."""
    pipeline, feeds = bench.pipeline(5), bench.feeds(RAGGED)
    train_steps(bench, pipeline, 3)
    path = bench.folder / "weights.safetensors"
    digest = checkpoint.save_weights(path, pipeline.state_dict())
    loaded = bench.pipeline(6)
    loaded.load_state_dict(checkpoint.load_weights(path, digest))
    first, second = (bench.decide(each.eval(), feeds) for each in (pipeline, loaded))
    _check_bit_equal(first, second, "after its weights were saved and loaded", _SAVED)


def _check_resumed(bench: Bench) -> None:
    """Stopped in the middle and resumed, training ends with the same weights to the bit."""
    whole = _train(bench, "whole", None)
    stop = len(bench.batches.order(0)) + 2
    with contextlib.suppress(_StopError):
        _train(bench, "stopped", stop)
    resumed = _train(bench, "stopped", None)
    for name, tensor in whole.items():
        if not torch.equal(tensor, resumed[name]):
            gap = (tensor.float() - resumed[name].float()).abs().max()
            raise FaultError(f"stopped at batch {stop} and resumed, {name} ends {gap:.2g} off", _RESUMED)


def _train(bench: Bench, name: str, stop: int | None) -> dict[str, Tensor]:
    pipeline = bench.pipeline(bench.config.train.seed)
    train(pipeline, bench.config, bench.batches, None, bench.folder / name, _StoppingConsole(stop))
    return pipeline.state_dict()


@dataclass
class _StoppingConsole(Console):
    """A quiet console that ends training at a batch, as a power cut would."""

    stop: int | None
    volume: int = -1

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        count = 0

        def tick(done: int, note: str = "") -> None:
            nonlocal count
            count += 1
            if count == self.stop:
                raise _StopError

        yield tick


class _StopError(Exception):
    pass


def _check_bit_equal(first: Arrays, second: Arrays, when: str, cure: str) -> None:
    for name, array in first.items():
        is_float = array.dtype.kind == "f"
        if array.shape != second[name].shape or not np.array_equal(array, second[name], equal_nan=is_float):
            raise FaultError(f"{name} differs, {when}", cure)
