"""The check of a head that corrupts its inputs: reproducible, blind to the padding, and seen by the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from seqpipe.config.contract import declared_corrupted_inputs, has_member
from seqpipe.config.signature import call
from seqpipe.testing.bench import Bench, perturb
from seqpipe.testing.report import Check, FaultError, NotApplicableError
from seqpipe.testing.shapes import SHAPES
from seqpipe.training.datasets import Batch
from seqpipe.training.pipeline import Pipeline

CORRUPTION = "corruption as stated"
_CURE = (
    "`corrupt_batch` returns a dict with every name of `corrupted_inputs`; with self.training it draws from torch's "
    "own generator, else from one with a fixed seed (seqpipe.nn.corruption.Drawn), and it looks at real tokens alone"
)


def corruption_checks(bench: Bench) -> list[Check]:
    """The check, for a head with a `corrupt_batch`."""
    if not has_member(bench.subject.cls, "corrupt_batch"):
        return []
    return [Check(CORRUPTION, lambda: _check_corruption(bench), _CURE, (SHAPES,))]


def _check_corruption(bench: Bench) -> None:
    if not declared_corrupted_inputs(bench.config.head[0]):
        raise NotApplicableError("with these options it changes nothing")
    pipeline, batch = perturb(bench.pipeline()).eval(), bench.batch()
    corrupted, again = (call(pipeline.head.corrupt_batch, batch) for _ in range(2))
    for name, tensor in corrupted.items():
        if not torch.equal(tensor, again[name]):
            raise FaultError(f"in evaluation {name!r} is not the same twice", _CURE)
    _check_loss(pipeline, batch, corrupted)
    _check_padding(pipeline, batch, corrupted)
    _check_seeds(pipeline, batch)


@torch.no_grad()
def _check_loss(pipeline: Pipeline, batch: Batch, corrupted: dict[str, Tensor]) -> None:
    """The loss changes with each name that `corrupt_batch` adds."""
    before = pipeline.loss(batch)
    for name in corrupted.keys() - batch.keys():
        changed = {**batch, **corrupted, name: corrupted[name].flip(0)}
        if torch.equal(call(pipeline.head.loss, pipeline(changed)), before):
            raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds", _CURE)


def _check_padding(pipeline: Pipeline, batch: Batch, corrupted: dict[str, Tensor]) -> None:
    changed = call(pipeline.head.corrupt_batch, {**batch, "ids": torch.where(batch["mask"], batch["ids"], 1)})
    real = corrupted.get("mask", batch["mask"])
    for name, tensor in corrupted.items():
        same = tensor[real] == changed[name][real] if tensor.shape == real.shape else tensor == changed[name]
        if not bool(same.all()):
            raise FaultError(f"{name!r} of real tokens changes with other ids in the padding", _CURE)


def _check_seeds(pipeline: Pipeline, batch: Batch) -> None:
    """In training the same seed gives the same corruption, and another seed another one."""
    pipeline.head.train()
    samples = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        samples.append(call(pipeline.head.corrupt_batch, batch))
    first, same_seed, other_seed = samples
    for name, tensor in first.items():
        if not torch.equal(tensor, same_seed[name]):
            raise FaultError(f"in training {name!r} differs with the same seed", _CURE)
    if all(torch.equal(tensor, other_seed[name]) for name, tensor in first.items()):
        raise FaultError("in training it hides the same whatever the seed", _CURE)
