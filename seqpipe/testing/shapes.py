"""The checks that a stage can be built, and returns tensors of the stated shapes."""

from __future__ import annotations

import torch

from seqpipe.errors import PluginError
from seqpipe.features.document import Arrays
from seqpipe.testing.bench import Bench, tensors
from seqpipe.testing.options import MEMBERS, ROUND_TRIP
from seqpipe.testing.report import Check, FaultError
from seqpipe.training.pipeline import Pipeline

BUILT, SHAPES = "it is built", "shapes over a grid"
SIZES, LENGTHS = (1, 2, 3), (1, 2, 5, 9)

_BUILT = (
    "By position, a constructor asks only for what the pipeline wires in (dim, vocabulary, sizes, labels …); what it "
    "refuses it refuses with a UsageError that names the cure. Give the kit options that fit its toy pipeline"
)
_SHAPE = (
    "forward returns x (B, T, dim) in float32, or a dict with it and all that `returns` names, for every B and T "
    "from 1; `self.dim` is the width of that x, and T stays as it is, unless `returns` names a new mask, boolean (B, N)"
)


def shape_checks(bench: Bench) -> list[Check]:
    return [
        Check(BUILT, lambda: _build(bench), _BUILT, (ROUND_TRIP, MEMBERS)),
        Check(SHAPES, lambda: _check_shapes(bench), _SHAPE, (BUILT,)),
    ]


def _build(bench: Bench) -> None:
    bench.pipeline()


def _check_shapes(bench: Bench) -> None:
    pipeline = bench.pipeline().eval()
    for rows in SIZES:
        for longest in LENGTHS:
            feeds = bench.feeds([longest, *[max(1, longest - 1)] * (rows - 1)])
            try:
                _check_batch(bench, pipeline, feeds)
            except PluginError as error:
                raise FaultError(f"at B={rows}, T={longest}: {error}", _SHAPE) from error
    pipeline.train()
    for some in ([0], [1, 3, 6], range(len(bench.examples))):
        loss = pipeline.loss(bench.batches(list(some)))
        if loss.shape != () or not loss.is_floating_point() or not bool(torch.isfinite(loss)):
            message = f"the loss of {len(some)} records is {loss.detach()}, no finite number"
            raise FaultError(message, "loss returns a scalar tensor")


@torch.no_grad()
def _check_batch(bench: Bench, pipeline: Pipeline, feeds: Arrays) -> None:
    """Check what the stages return for one batch, and that the head decides."""
    names = pipeline(tensors(feeds))
    x, mask = names.get("x"), names["mask"]
    expected_shape = bench.replaces_mask or mask.shape == feeds["mask"].shape
    if not expected_shape or mask.dim() != 2 or len(mask) != len(feeds["mask"]) or mask.dtype != torch.bool:
        raise FaultError("the mask it returns is no boolean (B, T) of the same T", _SHAPE)
    if x is not None and (x.shape[:2] != mask.shape or x.dtype != torch.float32):
        raise FaultError(f"x is {tuple(x.shape)} {x.dtype}; the mask is {tuple(mask.shape)}", _SHAPE)
    if x is not None and not bool(torch.isfinite(x[mask]).all()):
        raise FaultError(f"x holds {x[mask][~torch.isfinite(x[mask])][0]} where words are", _SHAPE)
    bench.decide(pipeline, feeds)
