"""The training loop: epochs of optimiser steps, dev scores, early stopping, and checkpoints that resume bit-equal.

All randomness depends on (seed, epoch) or (seed, step), and the position is two integers, so a checkpoint
has the complete state. `last.ckpt` is the only commit point: it names the best weights, which are written before it.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqpipe.answers.metrics.numbers import format_score
from seqpipe.config.contract import metric_types
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import BEST, HISTORY, LAST
from seqpipe.console import PARTS, Console
from seqpipe.errors import EnvError, InterruptedRunError, TrainingError, UsageError
from seqpipe.evaluation.scores import deciding, goodness, is_perfect
from seqpipe.files import make_folder, null_non_finite, remove_partial_files, write
from seqpipe.nn.layers import merged_batch
from seqpipe.training import checkpoint, devices, optim
from seqpipe.training.data_forms import encode_candidates
from seqpipe.training.datasets import Batch, Batches, Windows
from seqpipe.training.evaluation import FINITE, evaluation, first_not_finite
from seqpipe.training.memory import counters, cure, failed_stage, unchanged
from seqpipe.training.network import Network
from seqpipe.training.prefetch import Prefetcher, process_count
from seqpipe.training.progress import Interrupts, TrainingProgress

REPORT_BATCHES = 20  # on a GPU, which training waits for at each report
GRADIENT_STEPS = 4  # steps of an epoch, or a few more, at which the norms of the gradients are measured
# Numbers of items, of which losses are means, for each batch, by the names of the losses; and the rows of each batch
# that `whole_batch` merges, by the number of the call.
Items = dict[str | int, list[Tensor]]
Evaluate = Callable[[Callable[[], None]], Mapping[str, Any]]  # dev scores; must call the callback regularly


@dataclass(eq=False)
class Trainer:
    """One training run: its position, optimiser, weight average and checkpoints."""

    network: Network
    config: Config
    batches: Batches | Windows
    evaluate: Evaluate | None
    folder: Path
    console: Console
    device_name: str = "cpu"
    evaluate_train: Evaluate | None = None  # scores of a sample of the training records

    def __post_init__(self) -> None:
        self.device, self.progress, self.interrupts = torch.device(self.device_name), TrainingProgress(), Interrupts()
        self.processes, self._signal = devices.current_processes(), 0  # a signal that all processes know of
        self.network.to(self.device)
        self._optimizer = optim.make_optimizer(self.network, self.config)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.config.train.precision == "fp16")
        self._average = optim.WeightAverage(self.network, self.config.train.average or 0.0)
        self._order = self.batches.order(0)
        is_cpu = self.device.type == "cpu"
        self.prefetcher = Prefetcher(
            self.batches, self.device, process_count(self.batches, torch.get_num_threads() if is_cpu else 1)
        )
        self.report_batches = 1 if is_cpu else REPORT_BATCHES  # batches from one report to the next
        # Of the batches since the last update, and of those since the last report: position, step and loss on the
        # device; the norms of the gradients since the last report.
        self._group: list[tuple[int, int, Tensor]] = []  # losses are parts of that of the step
        self._losses: list[tuple[int, int, Tensor]] = []
        self._norms: list[dict[str, Tensor]] = []
        self._known, self._items = Items(), Items()  # those that a pass has counted, and those of the step so far
        self._before_step: list[tuple[Tensor, Tensor]] = []  # those of the heads, and their values before the step

    def train(self) -> TrainingProgress:
        """Train to the end, from last.ckpt in the folder if it exists, and load the best weights into the pipeline."""
        make_folder(self.folder)
        self.processes.wait()
        self.network.train()  # modules from a checkpoint are in evaluation mode
        is_resumed, at = self.restore(), self.progress
        if is_resumed and not at.done:
            self.console.say(f"  resuming from epoch {at.epoch + 1}, batch {at.position}")
        with self.interrupts, self.prefetcher, optim.matmul_precision(self.config.train.matmul_precision):
            self._run_epochs()
        if not at.best_file:
            raise TrainingError(
                f"the dev score was NaN or infinite in each of {at.epoch} epochs, so there are no best weights; "
                "set train.metric to another score, or correct data.dev"
            )
        self.network.load_state_dict(checkpoint.load_weights(self.folder / at.best_file, at.best_sha256))
        self.network.cpu().eval()
        return at

    def _run_epochs(self) -> None:
        self._save_if_interrupted()
        at, epochs, note = self.progress, self.config.train.epochs, ""
        with self.console.progress("training", epochs * len(self._order)) as tick:
            while not at.done:
                self._order = self.batches.order(at.epoch)
                best = ""
                if at.history and (dev := at.history[at.best_epoch].get("dev")):
                    name, value = deciding(dev, self.config.train.metric)
                    best = f", best {name} {format_score(name, value, metric_types(self.config.head))}"
                start, tokens = time.monotonic(), 0
                remaining = self._order[at.position :]
                batches = self._counted(self.prefetcher(map(self.processes.batch_share, remaining)))
                for rows in remaining:
                    try:
                        batch = next(batches)
                        self.train_batch(self._on_device(batch))
                    except EnvError:  # a process that makes batches was killed, perhaps by a signal that stops training
                        self._save_if_interrupted()
                        raise
                    except (MemoryError, RuntimeError) as error:
                        raise self._out_of_memory(rows, failed_stage(error)) from error
                    tokens += int(batch["mask"].sum()) if "mask" in batch else 0
                    if not (self._group or self._losses):  # all are in the sum
                        speed = f", {tokens / (time.monotonic() - start):,.0f} tokens/s" if tokens else ""
                        mean = at.loss / self.steps(at.position)
                        note = f"epoch {at.epoch + 1}/{epochs}, loss {mean:.4f}{best}{speed}"
                    tick(at.epoch * len(self._order) + at.position, note)
                at.seconds += time.monotonic() - start
                self.finish_epoch()
                if at.done and at.epoch < epochs:
                    tick(epochs * len(self._order), note)  # the step is complete after fewer epochs too
                self.stop_if_interrupted()

    def _on_device(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    def steps(self, batches: int) -> int:
        """Return the number of steps of this number of batches of an epoch."""
        return math.ceil(batches / self.config.train.accumulate)

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch; those of a step after a pass that counts their items, if one is needed.

        It is for several losses, whose parts depend on all batches of the step, and for heads that read the rows of all
        of them: both show in the items of one batch. The parts of a single loss are relative to the first batch of the
        epoch, which `_update` corrects.
        """
        settings = self.config.train
        if settings.accumulate == 1 or (self._count([self._batch(0)], 0) == 1 and not settings.teacher):
            yield from batches
        while window := [*islice(batches, settings.accumulate)]:
            self._count(window, self.progress.position)
            yield from window

    def _count(self, batches: Sequence[Batch], position: int) -> int:
        """Count the items of batches, with the random numbers of their training; return the number of their names."""
        with unchanged(self.network), torch.no_grad(), self._autocast():
            for place, batch in enumerate(batches, position):
                self._batch_loss(self._on_device(batch), place)
        self._known, self._items = self._items, {}
        return len(self._known)

    def _items_of(self, name: str | int, items: Tensor) -> list[Tensor]:
        """Add the items of a batch to those of the step; return those that were counted before, or else these.

        Of a loss that was not counted before, those of the first batch are what later ones are relative to.
        """
        self._items.setdefault(name, []).append(items)
        if isinstance(name, str) and self.config.train.accumulate > 1:
            self._known.setdefault(name, [items])
        return self._known.get(name) or [items]

    def train_batch(self, batch: Batch) -> None:
        """Add the gradient of a batch; update the weights after `accumulate` batches, or the last of the epoch."""
        at, settings = self.progress, self.config.train
        share = (at.epoch + at.position // settings.accumulate / self.steps(len(self._order))) / settings.epochs
        factor = optim.rate_factor(settings, share) * at.factor
        for group in self._optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        if self.batches.stateful and not at.position:
            self.network.set_stateful(len(batch["ids"]))
        if settings.accumulate > 1 and not self._group:
            # A number of steps counts steps, and rows that `whole_batch` merges are those of the step in each batch.
            merges = any(isinstance(name, int) for name in self._known)
            every = counters(self.network.heads)
            self._before_step = [pair for pair in every if merges or not (pair[0].dim() or pair[0].is_floating_point())]
        for buffer, before in self._before_step:
            buffer.copy_(before)
        with self._autocast():
            loss = self._batch_loss(batch, at.position)
        self._group.append((at.position, at.step + 1, loss.detach()))
        self._scaler.scale(loss).backward()
        at.position += 1
        is_last = at.position == len(self._order)
        if at.position % settings.accumulate == 0 or is_last:
            self._update()
            if at.step % settings.checkpoint_steps == 0 and not is_last:
                self.save()
            self._save_if_interrupted()

    def _batch_loss(self, batch: Batch, position: int) -> Tensor:
        """Return the part of a batch in the loss of a step; of several processes, that of this one's rows, if any."""
        seed = self.config.train.seed * 1_000_003 + self.progress.epoch * 100_003 + position
        seed += self.processes.rank * 1_000_000_007
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes half a millisecond for other devices
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)
        if self.processes.count == self.config.train.accumulate == 1:
            return self.network.loss(batch)
        size, calls = len(self._order[position]), count()
        weight = float(self.processes.rank < size)

        def total(name: str, items: Tensor) -> Tensor:
            return _divisor(self._items_of(name, self.processes.sum(weight * items)))

        with merged_batch(lambda rows: torch.cat(self._items_of(next(calls), self.processes.merge(rows, size)))):
            return weight * self.network.loss(batch, total)

    def _report(self) -> None:
        """Add the losses and norms since the last report to the progress, and wait for the device to read them.

        Raises:
            TrainingError: A loss is NaN or infinite; the error names its step and, from its batch, the stage.
        """
        at, numbers = self.progress, [loss for _, _, loss in self._losses]
        losses = torch.stack(numbers).tolist() if numbers else []
        for (position, step, _), loss in zip(self._losses, losses, strict=True):
            if not math.isfinite(loss):
                batch = self._on_device(self._batch(position))
                with self._autocast():
                    stages = self.processes.gather(first_not_finite(self.network, batch))
                stage = min(stages, key=lambda stage: stage == FINITE)  # of the process whose rows they are
                raise self._diverged(f"the loss became {loss}", step, stage)
            at.loss += loss
            at.first_loss = at.loss if step == 1 else at.first_loss
        at.gradients += [
            dict(zip(norms, torch.stack([*norms.values()]).tolist(), strict=True)) for norms in self._norms
        ]
        self._losses, self._norms = [], []

    def _batch(self, position: int) -> Batch:
        """Return this process's share of a batch of the epoch."""
        return self.batches(self.processes.batch_share(self._order[position]))

    def _out_of_memory(self, rows: Sequence[int], stage: str) -> EnvError:
        if isinstance(self.batches, Windows):
            return EnvError(f"out of memory in {stage}; lower head.context, train.batch_size or train.batch_tokens")
        longest = max((self.batches.data[i] for i in rows), key=lambda example: example.length)
        size = f"a batch of {len(rows)}, of which {longest.where} is the longest, {longest.length:,} tokens"
        fix = "lower train.batch_tokens" if len(rows) > 1 else cure(longest.length // 2)
        return EnvError(f"out of memory in {stage}, in {size}; {fix}")

    def _autocast(self) -> torch.autocast:
        """Return the context of a loss: matrix products in `train.precision`, the rest as PyTorch chooses."""
        dtype = optim.DTYPES[self.config.train.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not torch.float32)

    def _update(self) -> None:
        """One optimiser step; the gradients of several processes are summed before they are clipped."""
        at = self.progress
        optim.coalesce_gradients(self.network.parameters())
        if self.processes.count > 1:
            trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
            losses = torch.stack([loss for _, _, loss in self._group])
            self._signal = self.processes.sum_gradients(trained, losses, self.interrupts.received or 0)
            self._group = [(place, step, loss) for (place, step, _), loss in zip(self._group, losses, strict=True)]
        if self.config.train.accumulate > 1 and len(self._items) == 1:
            ((name, items),) = self._items.items()
            factor = _divisor(self._known[name]) / _divisor(items)
            for values in [*(loss for *_, loss in self._group), *optim.gradient_values(self.network.parameters())]:
                values.mul_(factor)
        self._losses += self._group
        self._group, self._items = [], {}
        if len(self._losses) >= self.report_batches:
            self._report()
        self._scaler.unscale_(self._optimizer)
        if self.steps(at.position) % max(1, self.steps(len(self._order)) // GRADIENT_STEPS) == 0:
            self._norms.append(optim.gradient_norms(self.network.stages))
        if self.config.train.clip:
            optim.clip_gradients(self.network.parameters(), self.config.train.clip)
        self._average.before_step()
        if self._losses and not self._scaler.is_enabled():
            # From a loss that is not finite to its report no step moves the weights: they show which stage it is of.
            losses = torch.stack([loss for _, _, loss in self._losses])
            optim.skip_steps(self._optimizer, ~torch.isfinite(losses).all())
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        at.step += 1
        self._average.update(at.step)

    def _diverged(self, what: str, step: int, detail: str) -> TrainingError:
        """Return the error, after a last row of the history that has it as `diverged`."""
        at = self.progress
        row = {"epoch": at.epoch + 1, "step": at.step, "loss": at.loss / self.steps(at.position), "best": False}
        row |= {"lr": self._optimizer.param_groups[0]["lr"], "seconds": round(at.seconds, 2)}
        self._write_history({**row, "gradients": optim.mean_norms(at.gradients), "diverged": f"{what} ({detail})"})
        fix = "lower train.optimizer.lr, or set train.clip"
        if self.config.train.precision == "fp16":
            fix = f"set train.precision: bf16, which has a greater range, {fix}"
        return TrainingError(f"{what} in epoch {self.progress.epoch + 1}, step {step}; {fix} ({detail})")

    def finish_epoch(self) -> None:
        """Score the dev set, keep the best weights and decide whether to stop; save before and after."""
        at, settings = self.progress, self.config.train
        self.save()
        row: dict[str, Any] = {"epoch": at.epoch + 1, "step": at.step, "loss": at.loss / self.steps(at.position)}
        with self._average.apply():
            # TrainingError if the epoch's last step left NaN or infinity in the weights, or in the loss of a batch.
            # Earlier steps need no check: the loss of the next step reveals it.
            for name, parameter in self.network.named_parameters():
                if not torch.isfinite(parameter).all():
                    raise self._diverged("the weights became NaN or infinite", at.step, f"the first: {name}")
            batch = self._on_device(self._batch(-1))
            with evaluation(self.network), self._autocast():
                loss = self.network.loss(batch)
                if not torch.isfinite(loss):
                    what = f"the weights diverged: their loss is {loss.item()} after the last step"
                    raise self._diverged(what, at.step, first_not_finite(self.network, batch))
            encode_candidates(self.network, self.device)
            for name, evaluate in (("dev", self.evaluate), ("train", self.evaluate_train)):
                if evaluate:
                    row[name] = dict(evaluate(self.stop_if_interrupted))
                    row[name].pop("labels", None)
            scores = row.get("dev", {})
            metrics = metric_types(self.config.head)
            metric = goodness(scores, settings.metric, metrics) if scores else -row["loss"]
            dev_loss, before = scores.get("loss"), at.best
            is_better = not self.evaluate or at.is_better(metric, dev_loss)
            if is_better:
                at.improve(float(metric), dev_loss)
                path, weights = self.folder / at.best_file, self.network.state_dict()
                at.best_sha256 = self.processes.by_first(lambda: checkpoint.save_weights(path, weights))
        row |= {"lr": self._optimizer.param_groups[0]["lr"], "seconds": round(at.seconds, 2), "best": is_better}
        row["gradients"] = optim.mean_norms(at.gradients)
        at.history.append(row)
        if self.evaluate:
            at.begin_patience(metric, is_perfect(scores, settings.metric, metrics))
        at.next_epoch(settings, is_better and metric != before)
        self.save()
        self._write_history()
        dev = ""
        if dev_scores := row.get("dev"):
            name, value = deciding(dev_scores, settings.metric)
            loss_text = "" if dev_loss is None or name == "loss" else f", dev loss {dev_loss:.4f}"
            dev = f"{loss_text}, dev {name} {format_score(name, value, metrics)}{' *' if is_better else ''}"
        epoch, loss_and_dev = f"{row['epoch']:>3}/{settings.epochs}", f"loss {row['loss']:.4f}{dev}"
        tenths = [PARTS * number // settings.epochs for number in (row["epoch"] - 1, row["epoch"])]
        say = self.console.say if row["epoch"] == 1 or tenths[0] < tenths[1] else self.console.detail
        say(f"  epoch {epoch}: {loss_and_dev} ({row['seconds']:.1f} s)")
        on_epoch = self.console.on_epoch
        if on_epoch and self.processes.by_first(lambda: bool(on_epoch(null_non_finite(at.history)))):
            at.done = True
            self.save()

    def _write_history(self, *more: Mapping[str, Any]) -> None:
        rows = [*self.progress.history, *more]
        if self.processes.rank:
            return
        write(self.folder / HISTORY, "".join(json.dumps(null_non_finite(row)) + "\n" for row in rows))

    def save(self) -> None:
        """Write last.ckpt, then remove best weights that it no longer refers to; only the first process does."""
        self._report()
        carried_states = self.network.carried_states
        if self.processes.count > 1:  # each process has those of its rows
            count = len(self._order[0])  # the same in each batch
            carried_states = {place: self.processes.merge(rows, count, 1) for place, rows in carried_states.items()}
        self.processes.by_first(lambda: self._write_checkpoint({"carried_states": carried_states}))

    def _write_checkpoint(self, state: dict[str, Any]) -> None:
        state |= {
            "progress": asdict(self.progress),
            "weights": self.network.state_dict(),
            "average": self._average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "steps_weigh_items": True,
        }
        checkpoint.save(self.folder / LAST, state)
        for old in self.folder.glob(BEST):
            if old.name != self.progress.best_file:
                old.unlink()

    def restore(self) -> bool:
        """Restore the state of last.ckpt; return False without one."""
        if not self.processes.rank:
            remove_partial_files(self.folder)
        if not (self.folder / LAST).exists():
            return False
        state = checkpoint.load(self.folder / LAST)
        self.progress = TrainingProgress(**state["progress"])
        if self.config.train.accumulate > 1 and not (self.progress.done or "steps_weigh_items" in state):
            raise UsageError(f"{self.folder / LAST}: trained by the earlier rule of train.accumulate; run with --fresh")
        self.network.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._average.load_state_dict(state["average"])
        self._order = self.batches.order(self.progress.epoch)
        self.network.carried_states = {
            place: rows[:, list(self.processes.batch_share(range(rows.shape[1])))]
            for place, rows in state["carried_states"].items()
        }
        self._write_history()  # the last epoch is missing if the process was killed at its end
        return True

    def _save_if_interrupted(self) -> None:
        if self.processes.count == 1:
            self._signal = self.interrupts.received or 0
        if self._signal and self.progress.position % self.config.train.accumulate == 0:
            self.save()
            self.stop_if_interrupted()

    def stop_if_interrupted(self) -> None:
        """Raise InterruptedRunError if a signal came; the next run resumes from last.ckpt."""
        if number := self._signal or self.interrupts.received:
            state = f"stopped in epoch {self.progress.epoch + 1}, state saved in {self.folder}"
            message = f"{signal.Signals(number).name}: {state}; run the same command to resume"
            raise InterruptedRunError(number, message)


def _divisor(items: Sequence[Tensor]) -> Tensor:
    """Return the number of items of batches, or 1 if there are none."""
    return torch.stack([*items]).sum(0).clamp(min=1)
