"""Gradients before a step: clipped like the library's, and sparse where only the rows of a batch move."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from factory import parts, tiny
from torch import nn

from seqpipe.training.optim import clip_gradients, gradient_norms, make_optimizer, mean_norms

NGRAMS = ("embedding={use: ngrams, dim: 6, words: 1, chars: [2, 3]}", "train.schedule={use: constant}")


@pytest.mark.parametrize("most", [0.1, 100.0])
def test_gradients_are_clipped_as_the_library_clips_dense_ones(most: float) -> None:
    clipped = []
    for sparse in (True, False):
        torch.manual_seed(1)
        table, linear = nn.EmbeddingBag(9, 4, mode="sum", sparse=sparse), nn.Linear(4, 3)
        parameters = [*table.parameters(), *linear.parameters()]
        linear(table(torch.tensor([[1, 2, 2], [5, 1, 7]]))).square().sum().backward()
        if sparse:
            clip_gradients(parameters, most)
        else:
            nn.utils.clip_grad_norm_(parameters, most)
        clipped.append([p.grad.to_dense() for p in parameters if p.grad is not None])
    assert len(clipped[0]) == 3
    for ours, theirs in zip(*clipped, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("embedding", [(), NGRAMS])
def test_gradient_norms_are_those_of_each_stage_and_layer(tmp_path: Path, embedding: tuple[str, ...]) -> None:
    config = tiny(tmp_path, *embedding, "encoder={use: lstm, hidden: 4, layers: 2}")
    pipeline, batches = parts(config)
    assert gradient_norms(pipeline.stages) == {}
    pipeline.loss(batches(batches.order(0)[0])).backward()
    norms = gradient_norms(pipeline.stages)
    expected = [parameter.grad.to_dense().norm() for parameter in pipeline.parameters() if parameter.grad is not None]
    assert math.hypot(*norms.values()) == pytest.approx(float(torch.stack(expected).norm()), rel=1e-5)
    assert {"encoder.layers.0", "encoder.layers.1", "head"} < norms.keys()
    head = [parameter.grad for parameter in pipeline.head.parameters()]
    assert norms["head"] == pytest.approx(math.sqrt(sum(float((grad**2).sum()) for grad in head)), rel=1e-5)
    assert mean_norms([{"a": 1.0}, {"a": 3.0, "b": 1.0}]) == {"a": 2.0, "b": 0.5}


@pytest.mark.parametrize(
    ("optimizer", "sparse"),
    [
        ("{use: sgd, lr: 0.5}", True),
        ("{use: sgd, lr: 0.5, momentum: 0.9}", False),
        ("{use: sgd, lr: 0.5, weight_decay: 0.1}", False),
        ("{use: adamw, lr: 0.01}", False),
    ],
)
def test_a_step_of_plain_sgd_moves_the_rows_of_its_batch_alone(tmp_path: Path, optimizer: str, sparse: bool) -> None:
    config = tiny(tmp_path, *NGRAMS, f"train.optimizer={optimizer}")
    pipeline, batches = parts(config)
    steps = make_optimizer(pipeline, config)
    table = next(module for module in pipeline.modules() if isinstance(module, nn.EmbeddingBag))
    pipeline.train().loss(batches([0, 1])).backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse == sparse
    before, gradient = table.weight.detach().clone(), table.weight.grad.to_dense()
    clip_gradients(pipeline.parameters(), 1e9)
    steps.step()
    assert gradient.any()
    if sparse:
        assert torch.allclose(table.weight.detach(), before - 0.5 * gradient)


def test_an_optimizer_steps_as_the_library_does_without_its_compiler() -> None:
    script = """
import sys
import torch
from seqpipe.training.optim import OPTIMIZERS

weights = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
ours = {name: torch.nn.Parameter(weights.detach().clone()) for name in OPTIMIZERS}
for name, optimizer in OPTIMIZERS.items():
    steps = optimizer([ours[name]], lr=0.1)
    for _ in range(3):
        steps.zero_grad()
        ours[name].square().sum().backward()
        steps.step()
    assert steps.state_dict()["param_groups"]
assert "torch._dynamo" not in sys.modules
for name, library in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
    theirs = torch.nn.Parameter(weights.detach().clone())
    steps = library([theirs], lr=0.1)
    for _ in range(3):
        steps.zero_grad()
        theirs.square().sum().backward()
        steps.step()
    assert torch.equal(ours[name], theirs), name
assert "torch._dynamo" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
