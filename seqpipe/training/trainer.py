"""A pipeline and its examples in, trained weights out, on pytorch-lightning; stopped anywhere, it resumes bit-equal.

Everything random is a function of (seed, epoch) or (seed, step), and the position is two integers, so a checkpoint
holds the whole state. `last.ckpt` is the only commit point: it names the best weights, which are written before it.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from seqpipe.answers.metrics.table import shown
from seqpipe.config.contract import is_stateful, member
from seqpipe.config.head_answers import metric_types
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import BEST, LAST
from seqpipe.config.schema import Train
from seqpipe.console import Console, Tick
from seqpipe.errors import EnvError, InterruptedRunError, TrainingError
from seqpipe.files import finite, make_folder, remove_torn, write
from seqpipe.runtime.evaluate import deciding, goodness
from seqpipe.training import checkpoint
from seqpipe.training.datasets import Batch
from seqpipe.training.pipeline import Pipeline

METRICS = "metrics.jsonl"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
Evaluate = Callable[[Callable[[], None]], Mapping[str, Any]]  # dev scores; the callback is to be called now and then


class Ordered(Protocol):
    """Batches in an order that is a function of the epoch alone."""

    def order(self, epoch: int) -> list[list[int]]: ...
    def __call__(self, rows: Sequence[int]) -> Batch: ...


@dataclass
class Progress:
    """Where training stands; with the weights and the optimiser it is the whole state."""

    epoch: int = 0
    position: int = 0  # batches done in this epoch
    step: int = 0  # optimiser steps in all
    best: float | None = None
    best_epoch: int = 0
    best_file: str = ""
    best_sha256: str = ""
    plateau: int = 0  # epochs since the rate was lowered or the metric rose
    factor: float = 1.0  # of the learning rate, lowered on plateaus
    loss: float = 0.0  # summed over this epoch's batches
    seconds: float = 0.0  # spent in this epoch
    done: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class Training(lightning.LightningModule):
    """One training run over Lightning's loop, with its own position, schedule, averaging, stopping and checkpoints."""

    def __init__(
        self,
        pipeline: Pipeline,
        config: Config,
        batches: Ordered,
        evaluate: Evaluate | None,
        folder: Path,
        console: Console,
        device: str = "cpu",
    ):
        super().__init__()
        self.automatic_optimization = False
        self.pipeline, self.config, self.batches, self.folder, self.console = pipeline, config, batches, folder, console
        self._evaluate = evaluate
        self.progress = Progress()
        self.average: dict[str, Tensor] = {}
        self.signal: int | None = None
        self.tick: Tick | None = None
        self._optimizer = make_optimizer(pipeline, config)
        self._scaler = torch.amp.GradScaler(device.partition(":")[0], enabled=config.train.precision == "fp16")
        self._order = batches.order(0)
        self._clock = time.monotonic()

    # -- Lightning's hooks, in the order of a run

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer

    def on_fit_start(self) -> None:
        self.average = {name: tensor.to(self.device) for name, tensor in self.average.items()}

    def on_train_start(self) -> None:
        for number in SIGNALS:  # Lightning has put its own before ours; it would end without a checkpoint
            signal.signal(number, self.heed)
        self._save_if_signalled()

    def train_dataloader(self) -> DataLoader[Batch]:
        self._order = self.batches.order(self.progress.epoch)
        rest: Any = self._order[self.progress.position :]
        return DataLoader(rest, batch_size=None, collate_fn=self.batches)

    def on_train_epoch_start(self) -> None:
        self._clock = time.monotonic()

    def training_step(self, batch: Batch, index: int) -> None:
        at, settings = self.progress, self.config.train
        torch.manual_seed(settings.seed * 1_000_003 + at.epoch * 100_003 + at.position)
        self._set_rates()
        if is_stateful(self.config.head[0]) and not at.position:
            self.pipeline.set_stateful(len(batch["ids"]))
        with self._autocast():
            loss = self.pipeline.loss(batch)
            if not torch.isfinite(loss):
                raise self._diverged(f"the loss became {loss.item()}", at.step + 1, self.pipeline.not_finite(batch))
        self.manual_backward(self._scaler.scale(loss / settings.accumulate))
        at.position += 1
        at.loss += loss.item()
        last = at.position == len(self._order)
        if at.position % settings.accumulate == 0 or last:
            self._step()
            if at.step % settings.checkpoint_steps == 0 and not last:
                self.save()
            self._save_if_signalled()
        if self.tick:
            self.tick(at.position, f"epoch {at.epoch + 1}/{settings.epochs}, loss {at.loss / at.position:.4f}")

    def on_train_epoch_end(self) -> None:
        self.finish_epoch()
        self.stop_if_signalled()
        if self.progress.done:
            self.trainer.should_stop = True

    # -- one step, one epoch

    def _autocast(self) -> torch.autocast:
        """What a loss is computed under: products of matrices in `train.precision`, the rest as PyTorch sees fit."""
        dtype = DTYPES[self.config.train.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not torch.float32)

    def _set_rates(self) -> None:
        share = (self.progress.epoch + self.progress.position / len(self._order)) / self.config.train.epochs
        factor = rate_factor(self.config.train, share) * self.progress.factor
        for group in self._optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor

    def _step(self) -> None:
        settings = self.config.train
        self._scaler.unscale_(self._optimizer)
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(self.pipeline.parameters(), settings.clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        if settings.average:
            decay = min(settings.average, (1 + self.progress.step) / (10 + self.progress.step))
            with torch.no_grad():
                for name, parameter in self.pipeline.named_parameters():
                    self.average[name].lerp_(parameter, 1 - decay)

    def _diverged(self, what: str, step: int, detail: str) -> TrainingError:
        cure = "lower train.optimizer.lr, or set train.clip"
        if self.config.train.precision == "fp16":
            cure = f"set train.precision: bf16, whose numbers may be greater, {cure}"
        return TrainingError(f"{what} in epoch {self.progress.epoch + 1}, step {step}; {cure} ({detail})")

    def _check_finite(self) -> None:
        """TrainingError if the epoch's last step left NaN or infinity in the weights, or in what they make of a batch.

        Steps before it need no check: the loss of the next step shows.
        """
        step = self.progress.step
        for name, parameter in self.pipeline.named_parameters():
            if not torch.isfinite(parameter).all():
                raise self._diverged("the weights became NaN or infinite", step, f"the first: {name}")
        device = next(self.pipeline.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self.batches(self._order[-1]).items()}
        was_training = self.pipeline.training
        self.pipeline.eval()
        with torch.no_grad(), self._autocast():
            loss = self.pipeline.loss(batch)
            if not torch.isfinite(loss):
                what = f"the weights diverged: their loss is {loss.item()} after the last step"
                raise self._diverged(what, step, self.pipeline.not_finite(batch))
        self.pipeline.train(was_training)

    def finish_epoch(self) -> None:
        """Dev scores, the best weights so far, early stopping, and a checkpoint before and after."""
        at, settings = self.progress, self.config.train
        at.seconds += time.monotonic() - self._clock
        self.save()
        row: dict[str, Any] = {"epoch": at.epoch + 1, "step": at.step, "loss": at.loss / max(1, len(self._order))}
        scores = {}
        with self._shipped_weights():
            self._check_finite()
            if self._evaluate:
                scores = dict(self._evaluate(self.stop_if_signalled))
                row |= {"dev": {key: value for key, value in scores.items() if key != "labels"}}
            metric = goodness(scores, settings.metric, metric_types(self.config.head)) if scores else -row["loss"]
            better = not self._evaluate or (math.isfinite(metric) and (at.best is None or metric > at.best))
            if better:
                at.best, at.best_epoch, at.plateau = float(metric), at.epoch, 0
                self._save_best()
        row |= {"lr": self._optimizer.param_groups[0]["lr"], "seconds": round(at.seconds, 2), "best": better}
        at.history.append(row)
        if not better:
            at.plateau += 1
            if settings.schedule.use == "plateau" and at.plateau % settings.schedule.patience == 0:
                at.factor *= settings.schedule.factor
        at.epoch, at.position, at.loss, at.seconds = at.epoch + 1, 0, 0.0, 0.0
        waited = at.epoch - 1 - at.best_epoch
        at.done = at.epoch >= settings.epochs or bool(
            settings.patience and self._evaluate and waited >= settings.patience
        )
        self.save()
        self._write_history()
        self._report(row)

    def _write_history(self) -> None:
        write(self.folder / METRICS, "".join(json.dumps(finite(row)) + "\n" for row in self.progress.history))

    def _report(self, row: Mapping[str, Any]) -> None:
        scores, dev = row.get("dev", {}), ""
        if scores:
            name, value = deciding(scores, self.config.train.metric)
            dev = f", dev {name} {shown(name, value, metric_types(self.config.head))}{' *' if row['best'] else ''}"
        total = self.config.train.epochs
        self.console.say(f"  epoch {row['epoch']:>3}/{total}: loss {row['loss']:.4f}{dev} ({row['seconds']:.1f} s)")

    # -- state

    @contextmanager
    def _shipped_weights(self) -> Iterator[None]:
        """The averaged weights in place of the trained ones, where averaging is on."""
        kept = {name: p.detach().clone() for name, p in self.pipeline.named_parameters()} if self.average else {}
        with torch.no_grad():
            for name, parameter in self.pipeline.named_parameters() if kept else ():
                parameter.copy_(self.average[name])
            try:
                yield
            finally:
                for name, parameter in self.pipeline.named_parameters() if kept else ():
                    parameter.copy_(kept[name])

    def _save_best(self) -> None:
        at = self.progress
        at.best_file = f"best-{at.epoch + 1:04d}.safetensors"
        at.best_sha256 = checkpoint.save_weights(self.folder / at.best_file, self.pipeline.state_dict())

    def save(self) -> None:
        """Writes last.ckpt, then removes best weights it no longer names."""
        state = {
            "progress": asdict(self.progress),
            "weights": self.pipeline.state_dict(),
            "average": self.average,
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "carried_states": self.pipeline.carried_states,
        }
        checkpoint.save(self.folder / LAST, state)
        for old in self.folder.glob(BEST):
            if old.name != self.progress.best_file:
                old.unlink()

    def restore(self) -> bool:
        """Goes back to last.ckpt; False if there is none."""
        if self.config.train.average:
            self.average = {name: p.detach().clone() for name, p in self.pipeline.named_parameters()}
        remove_torn(self.folder)
        if not (self.folder / LAST).exists():
            return False
        state = checkpoint.load(self.folder / LAST)
        self.progress = Progress(**state["progress"])
        self.pipeline.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self.average = state["average"]
        self.pipeline.carried_states = state["carried_states"]
        self._order = self.batches.order(self.progress.epoch)
        self._write_history()  # a process that was killed as it ended an epoch may not have come to it
        return True

    def heed(self, number: int, frame: object = None) -> None:
        """A signal ends training after the step in hand; a second one ends the process at once."""
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal = number

    def _save_if_signalled(self) -> None:
        if self.signal is not None and self.progress.position % self.config.train.accumulate == 0:
            self.save()
            self.stop_if_signalled()

    def stop_if_signalled(self) -> None:
        """Raises InterruptedRunError if a signal came; what last.ckpt holds is what the next run resumes from."""
        if self.signal is not None:
            name, epoch = signal.Signals(self.signal).name, self.progress.epoch + 1
            raise InterruptedRunError(
                self.signal,
                f"{name}: stopped in epoch {epoch}, state saved in {self.folder}; run the same command to resume",
            )


def train(
    pipeline: Pipeline,
    config: Config,
    batches: Ordered,
    evaluate: Evaluate | None,
    folder: Path,
    console: Console,
    device: str = "cpu",
) -> Progress:
    """Trains to the end, from last.ckpt in the folder if there is one, and loads the best weights into the pipeline."""
    make_folder(folder)
    pipeline.train()  # what a checkpoint was made of comes in evaluation
    training = Training(pipeline, config, batches, evaluate, folder, console, device)
    if training.restore() and not training.progress.done:
        at = training.progress
        console.say(f"  resuming from epoch {at.epoch + 1}, batch {at.position}")
    with _signals(training):
        if training.progress.position and training.progress.position == len(training._order):
            pipeline.to(device)
            training.finish_epoch()
        if not training.progress.done:
            with console.progress("training", len(training._order)) as training.tick:
                _trainer(device).fit(training)
        training.stop_if_signalled()
    at = training.progress
    if not at.best_file:
        raise TrainingError(
            f"the dev score was NaN or infinite in each of {at.epoch} epochs, so no weights are the best; "
            "name another score as train.metric, or correct data.dev"
        )
    pipeline.load_state_dict(checkpoint.load_weights(folder / at.best_file, at.best_sha256))
    pipeline.cpu().eval()
    return at


def check_precision(precision: str, device: str) -> None:
    """EnvError where a device cannot train in `train.precision`, with what it can."""
    kind = device.partition(":")[0]
    if precision == "fp16" and kind == "cpu":
        raise EnvError("train.precision: fp16 is for a GPU (--device cuda); on a processor take bf16 or fp32")
    if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise EnvError(f"train.precision: {torch.cuda.get_device_name(device)} has no bf16; take fp16 or fp32")


def make_optimizer(pipeline: Pipeline, config: Config) -> torch.optim.Optimizer:
    """The optimiser of the YAML: a group of parameters for each learning rate, `lr` times `learning_rate_factor`."""
    settings = config.train.optimizer
    groups: dict[float, list[Tensor]] = {}
    for stage, module in pipeline.stages:
        lr, factor = stage.frame.get("lr") or settings.lr, member(module, "learning_rate_factor")
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                groups.setdefault(lr * factor(name), []).append(parameter)
    parameters = [{"params": group, "lr": lr, "base_lr": lr} for lr, group in groups.items() if group]
    if not parameters:
        raise TrainingError("every stage is frozen; there is nothing to train")
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    return kinds[settings.use](parameters, fused=True, **settings.model_dump(exclude={"use"}))


def rate_factor(settings: Train, share: float) -> float:
    """What the learning rate is multiplied by when this share of training is done: warm-up, then the schedule."""
    schedule = settings.schedule
    if share < schedule.warmup_ratio:
        return max(share, 1e-4) / schedule.warmup_ratio
    rest = (share - schedule.warmup_ratio) / (1 - schedule.warmup_ratio)
    if schedule.use == "linear":
        return 1 - rest * (1 - schedule.final_ratio)
    if schedule.use == "cosine":
        return schedule.final_ratio + (1 - schedule.final_ratio) * (1 + math.cos(math.pi * rest)) / 2
    return 1.0


@contextmanager
def _signals(training: Training) -> Iterator[None]:
    """SIGINT and SIGTERM are the training's while it lasts."""
    kept = {number: signal.signal(number, training.heed) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _trainer(device: str) -> lightning.Trainer:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    name, _, index = device.partition(":")
    return lightning.Trainer(
        accelerator="gpu" if name == "cuda" else "cpu",
        devices=[int(index or 0)] if name == "cuda" else 1,
        max_epochs=-1,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
