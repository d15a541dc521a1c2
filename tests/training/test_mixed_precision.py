"""Training in bf16: every stage of ours has nearly the loss of fp32, what is learned stays fp32, resuming is exact."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from test_contracts import OFFERS, STAGES, made
from tiny_pipelines import QUIET, BatchCallback, build_parts, load_tagger, train_run
from torch import Tensor, nn

from seqpipe.config.loader import Config
from seqpipe.errors import EnvError, TrainingError
from seqpipe.testing.bench import Bench
from seqpipe.testing.report import Subject
from seqpipe.training import checkpoint
from seqpipe.training.datasets import Batch
from seqpipe.training.network import Network
from seqpipe.training.optim import check_precision
from seqpipe.training.trainer import Trainer

NEAR = 0.02  # of the loss; bf16 has 8 bits
LAYERS = [(*name, i) for name, some in STAGES.items() if name[0] != "tokenizer" for i in range(len(some))]


def loss_of(network: Network, batch: Batch, dtype: torch.dtype) -> Tensor:
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        return network.loss(batch)


@pytest.mark.parametrize(("kind", "use", "number"), LAYERS)
def test_every_stage_of_ours_has_nearly_the_same_loss_in_bf16(kind: str, use: str, number: int, tmp_path: Path) -> None:
    options = made(STAGES[kind, use][number], tmp_path)
    bench = Bench(Subject(kind, OFFERS[kind, use].load(), options), tmp_path)
    network, batch = bench.network().eval(), bench.batch()
    whole, half = (loss_of(network, batch, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(whole.item(), rel=NEAR)
    network.train()
    loss_of(network, batch, torch.bfloat16).backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(grad).all()) and grad.dtype == torch.float32 for grad in gradients)


class Spy(nn.Module):
    """An encoder that remembers what its product of matrices was in."""

    seen: torch.dtype

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.linear = dim, nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.linear(x)
        type(self).seen = product.dtype
        return product


def ended(folder: Path, config: Config, console: Any = QUIET) -> dict[str, Any]:
    """The state of a run at its end."""
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        train_run(config, console)
    return checkpoint.load(next(folder.glob("runs/*/checkpoints/last.ckpt")))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_is_in_this_precision_and_dev_scores_and_weights_in_fp32(tmp_path: Path, precision: str) -> None:
    seen: list[torch.dtype] = []
    sets = ("encoder=spy", "embedding={use: lookup, dim: 8}", f"train.precision={precision}", "train.epochs=1")
    config = load_tagger(tmp_path, *sets, spy=("encoder", Spy))
    state = ended(tmp_path / "run", config, BatchCallback(lambda batch: seen.append(Spy.seen)))
    assert {*seen} == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert Spy.seen == torch.float32  # the last that ran was dev
    assert state["scaler"] == {}
    assert {tensor.dtype for tensor in state["weights"].values()} == {torch.float32}
    moments = [moment for row in state["optimizer"]["state"].values() for moment in row.values() if moment.dim()]
    assert {moment.dtype for moment in moments} == {torch.float32}


def test_matrix_products_of_training_have_their_precision_and_others_that_of_before(tmp_path: Path) -> None:
    precisions: list[str] = []
    console = BatchCallback(lambda batch: precisions.append(torch.get_float32_matmul_precision()))
    torch.set_float32_matmul_precision("high")
    try:
        ended(tmp_path / "run", load_tagger(tmp_path, "train.matmul_precision=medium", "train.epochs=1"), console)
        assert {*precisions} == {"medium"}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_a_device_cannot_do_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_tagger(tmp_path, "train.precision=fp16")
    with pytest.raises(EnvError, match=r"fp16 needs a GPU \(--device cuda\); on a CPU use bf16 or fp32"):
        ended(tmp_path / "run", config)
    assert not list(tmp_path.glob("run/runs/*/checkpoints"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
    with pytest.raises(EnvError, match="an old GPU does not support bf16; use fp16 or fp32"):
        check_precision("bf16", "cuda:0")
    check_precision("bf16", "cpu")
    check_precision("fp16", "cuda:0")


def scaled(folder: Path) -> Trainer:
    """A training in fp16 whose gradients are on the CPU, with a scale of 8 that grows after each step."""
    config = load_tagger(folder, "train.precision=fp16", "train.clip=0.5", "embedding={use: lookup, dim: 8}")
    network, batches = build_parts(config)
    training = Trainer(network, config, batches, None, folder, QUIET)
    training._scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    return training


def test_gradients_are_unscaled_before_they_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = scaled(tmp_path)
    batch = training.batches(training._order[0])
    training._scaler.scale(training.network.loss(batch)).backward()
    norms: list[float] = []

    def clip(parameters: Any, most: float) -> None:
        norms.append(torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm().item())

    plain, _ = build_parts(training.config)
    plain.loss(batch).backward()
    clip(plain.parameters(), 0.5)
    monkeypatch.setattr("seqpipe.training.optim.clip_gradients", clip)
    training._update()
    assert norms[1] == pytest.approx(norms[0])
    assert training._scaler.get_scale() == 16.0


def test_the_scale_of_fp16_is_part_of_the_state(tmp_path: Path) -> None:
    training = scaled(tmp_path)
    for rows in training._order[:3]:
        training._scaler.scale(training.network.loss(training.batches(rows))).backward()
        training._update()
    training.save()
    resumed = scaled(tmp_path)
    assert resumed.restore()
    assert resumed._scaler.get_scale() == training._scaler.get_scale() == 64.0


def test_a_loss_that_fp16_cannot_hold_is_told_with_what_can(tmp_path: Path) -> None:
    training = scaled(tmp_path)
    with torch.no_grad():
        next(training.network.parameters()).fill_(torch.inf)
    training._autocast = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    with pytest.raises(TrainingError, match=r"set train.precision: bf16, which has a greater range, lower train"):
        training.train_batch(training.batches(training._order[0]))
