"""A step costs what its batch costs: gradients, optimisers and averages touch only the rows of tables that it reads."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_pipelines import QUIET, build_parts, load_tagger
from torch import nn

from seqpipe.training import optim
from seqpipe.training.optim import OPTIMIZERS, WeightAverage, coalesce_gradients
from seqpipe.training.trainer import Trainer

NGRAMS = ("embedding={use: ngrams, dim: 6, words: 1, chars: [2, 3]}", "train.schedule={use: constant}")


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of any size have sparse gradients."""
    monkeypatch.setattr(optim, "DENSE_ROWS", 0)


@pytest.mark.parametrize("most", [0.1, 100.0])
def test_gradients_are_clipped_as_the_library_clips_dense_ones(most: float) -> None:
    clipped = []
    for sparse in (True, False):
        torch.manual_seed(1)
        table, linear = nn.EmbeddingBag(9, 4, mode="sum", sparse=sparse), nn.Linear(4, 3)
        parameters = [*table.parameters(), *linear.parameters()]
        linear(table(torch.tensor([[1, 2, 2], [5, 1, 7]]))).square().sum().backward()
        if sparse:
            coalesce_gradients(parameters)
            optim.clip_gradients(parameters, most)
        else:
            nn.utils.clip_grad_norm_(parameters, most)
        clipped.append([p.grad.to_dense() for p in parameters])
    for ours, theirs in zip(*clipped, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("embedding", [(), NGRAMS])
def test_gradient_norms_are_of_stages_or_layers(tmp_path: Path, small_tables: None, embedding: tuple[str, ...]) -> None:
    config = load_tagger(tmp_path, *embedding, "encoder={use: lstm, hidden: 4, layers: 2}")
    pipeline, batches = build_parts(config)
    optim.make_optimizer(pipeline, config)
    assert optim.gradient_norms(pipeline.stages) == {}
    pipeline.loss(batches(batches.order(0)[0])).backward()
    assert any(p.grad.is_sparse for p in pipeline.parameters() if p.grad is not None)
    coalesce_gradients(pipeline.parameters())
    norms = optim.gradient_norms(pipeline.stages)
    for module, norm in ((pipeline, math.hypot(*norms.values())), (pipeline.head, norms["head"])):
        expected = [float(p.grad.to_dense().norm()) for p in module.parameters() if p.grad is not None]
        assert norm == pytest.approx(math.hypot(*expected), rel=1e-5)
    assert {"encoder.layers.0", "encoder.layers.1", "head"} < norms.keys()
    assert optim.mean_norms([{"a": 1.0}, {"a": 3.0, "b": 1.0}]) == {"a": 2.0, "b": 0.5}


@pytest.mark.parametrize(
    ("optimizer", "sparse"),
    [
        ("{use: sgd, lr: 0.5}", True),
        ("{use: sgd, lr: 0.5, momentum: 0.9}", False),
        ("{use: sgd, lr: 0.5, weight_decay: 0.1}", False),
        ("{use: adam, lr: 0.01}", True),
        ("{use: adam, lr: 0.01, weight_decay: 0.1}", False),
        ("{use: adamw, lr: 0.01, weight_decay: 0.1}", True),
    ],
)
@pytest.mark.parametrize("embedding", [("embedding={use: lookup, dim: 6}",), NGRAMS])
def test_a_step_moves_the_rows_of_its_batch_alone_unless_every_row_has_a_gradient(
    tmp_path: Path, small_tables: None, embedding: tuple[str, ...], optimizer: str, sparse: bool
) -> None:
    config = load_tagger(tmp_path, *embedding, f"train.optimizer={optimizer}")
    pipeline, batches = build_parts(config)
    trainer = Trainer(pipeline, config, batches, None, tmp_path, QUIET)
    table = next(module for module in pipeline.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    before, gradients = table.weight.detach().clone(), []
    table.weight.register_post_accumulate_grad_hook(lambda weight: gradients.append(weight.grad))
    trainer.train_batch(batches([0, 1]))
    assert gradients[0].is_sparse == sparse
    gradient = gradients[0].to_dense()
    moved = (table.weight.detach() != before).any(1)
    if sparse:
        assert torch.equal(moved, gradient.any(1))
        assert 0 < int(moved.sum()) < len(moved) - 1
    if optimizer == "{use: sgd, lr: 0.5}":
        assert torch.allclose(table.weight.detach(), before - 0.5 * gradient)


def test_a_tied_table_has_a_dense_gradient_and_the_optimizer_of_the_library() -> None:
    table = nn.Embedding(9, 4, sparse=True)
    steps = OPTIMIZERS["adamw"](table.parameters(), lr=0.1, fused=True)
    theirs = nn.Parameter(table.weight.detach().clone())
    library = torch.optim.AdamW([theirs], lr=0.1)
    for ids in (torch.tensor([1, 2]), torch.tensor([2, 5])):
        (table(ids) @ table.weight.T).square().sum().backward()
        (theirs[ids] @ theirs.T).square().sum().backward()
        assert not table.weight.grad.is_sparse  # type: ignore[union-attr]
        for optimizer in (steps, library):
            optimizer.step()
            optimizer.zero_grad()
    assert torch.allclose(table.weight, theirs, atol=1e-6)


def test_adam_of_rows_is_adam_without_first_moment_whose_other_rows_decay_once_they_have_a_gradient() -> None:
    torch.manual_seed(1)
    table = nn.Embedding(12, 3, sparse=True)
    dense = nn.Parameter(table.weight.detach().clone())
    ours = OPTIMIZERS["adamw"](table.parameters(), lr=0.05, weight_decay=0.1, betas=(0.9, 0.99), fused=True)
    theirs = torch.optim.AdamW([dense], lr=0.05, weight_decay=0.1, betas=(0.0, 0.99))
    for step in range(40):
        ids = torch.randint(12, (4,)) if step else torch.tensor([0, 3, 3, 7])
        scale = torch.randn(4, 3)
        (table(ids) * scale).sum().backward()
        dense.grad = table.weight.grad.to_dense()  # type: ignore[union-attr]
        coalesce_gradients(table.parameters())
        ours.step()
        ours.zero_grad()
        theirs.step()
        assert torch.allclose(table.weight[ids], dense[ids], rtol=1e-4, atol=1e-6), step


def test_the_average_of_rows_is_that_of_all_weights_at_each_step() -> None:
    torch.manual_seed(1)
    module = nn.ModuleDict({"table": nn.Embedding(12, 3, sparse=True), "linear": nn.Linear(3, 2)})
    steps = OPTIMIZERS["sgd"](module.parameters(), lr=0.01, fused=True)
    average = WeightAverage(module, 0.9)
    expected = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for step in range(1, 31):
        rows = torch.randint(12, (2,))
        read = module["table"].weight if step == 20 else module["table"](rows)  # a dense gradient once
        module["linear"](read).square().sum().backward()
        coalesce_gradients(module.parameters())
        average.before_step()
        steps.step()
        average.update(step)
        steps.zero_grad()
        decay = min(0.9, (1 + step) / (10 + step))
        for name, parameter in module.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * parameter.detach()
        if step % 10 == 0:
            trained = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
            with average.apply():
                for name, parameter in module.named_parameters():
                    assert torch.allclose(parameter, expected[name], rtol=1e-5, atol=1e-6), name
                assert not torch.equal(module["table"].weight, trained["table.weight"])  # type: ignore[arg-type]
            assert all(torch.equal(parameter, trained[name]) for name, parameter in module.named_parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_skipped_while_the_tensor_is_true(name: str) -> None:
    table, output = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)
    weights = [*table.parameters(), *output.parameters()]
    optimizer = OPTIMIZERS[name](weights, lr=0.1, fused=True)
    for is_skipped in (True, True, False):
        optimizer.zero_grad()
        output(table(torch.tensor([1, 2]))).square().sum().backward()
        coalesce_gradients(weights)
        before = [weight.detach().clone() for weight in weights]
        optim.skip_steps(optimizer, torch.tensor(is_skipped))
        optimizer.step()
        assert {*map(torch.equal, weights, before)} == {is_skipped}


def test_an_optimizer_steps_as_the_library_does_without_its_compiler() -> None:
    script = """
import sys
import torch
from seqpipe.training.optim import OPTIMIZERS

def train(optimizer):
    weights = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    steps = optimizer([weights], lr=0.1)
    for _ in range(3):
        steps.zero_grad()
        weights.square().sum().backward()
        steps.step()
    assert steps.state_dict()["param_groups"]
    return weights

ours = {name: train(optimizer) for name, optimizer in OPTIMIZERS.items()}
assert "torch._dynamo" not in sys.modules
for name, library in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
    assert torch.equal(ours[name], train(library)), name
assert "torch._dynamo" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
