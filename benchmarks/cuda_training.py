"""Training on a GPU: tokens/s, waits for it, kernels and its busy share by step, memory, and batches made ahead or not.

    python benchmarks/cuda_training.py                       # on CUDA
    python benchmarks/cuda_training.py --device cpu --dry    # seconds, with little data; nothing is recorded

Each pipeline trains for one epoch of `--steps` batches, twice: with batches made ahead and without. Waits and
kernels of whole steps, with an optimizer that is not fused, and waits of a report are counted on a pretended device
(stage_waits.py); on CUDA the kernels and synchronisations of another epoch are profiled.
`--batch-tokens` sets the tokens of a batch, `--set` other keys of the YAMLs, as `train.precision=bf16`.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import ROOT, Table, parser
from stage_waits import DEVICE, DeviceTensor, HostWaits, move_module
from torch.profiler import ProfilerActivity, profile

from seqpipe.config.loader import Config, load_config
from seqpipe.console import Console, Tick
from seqpipe.training import optim
from seqpipe.training.data_forms import data_form
from seqpipe.training.datasets import Batches, Windows
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network
from seqpipe.training.tiny_bert import checkpoint_texts, tiny_bert
from seqpipe.training.trainer import REPORT_BATCHES, Trainer

PIPELINES = ("ner", "intent-bert", "dates", "gpt")
DRY_RECORDS, DRY_STEPS = 60, 7
PIECES = 1000  # of the tokenizer of the checkpoint that intent-bert starts from
WAITING_STEPS = 5  # steps whose waits are counted
WARM_UP = 3  # steps that are not measured: kernels are chosen and memory is allocated in them
COLUMNS = ("pipeline", "tokens/s", "batches not ahead", "waits a step", "waits a report", "kernels a step, counted")
COLUMNS_OF_CUDA = ("kernels a step", "synchronisations a step", "GPU busy", "memory, MB")


class AtSteps(Console):
    """A quiet console that calls a function after each batch, with the number of batches."""

    def __init__(self, at_step: Callable[[int], None]):
        super().__init__(-1)
        self.at_step = at_step

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        def tick(done: int, note: str = "") -> None:
            self.at_step(done)

        yield tick


@dataclass(frozen=True)
class Subject:
    """One pipeline, its data and its device."""

    config: Config
    network: Network
    batches: Batches | Windows
    device: str

    @property
    def steps(self) -> int:
        return len(self.batches.order(0))

    def tokens(self) -> int:
        """The tokens of the measured steps."""
        return sum(int(self.batches(rows)["mask"].sum()) for rows in self.batches.order(0)[WARM_UP:])

    def train(self, at_step: Callable[[int], None], ahead: bool = True) -> None:
        with tempfile.TemporaryDirectory() as folder:
            console = AtSteps(at_step)
            trainer = Trainer(self.network, self.config, self.batches, None, Path(folder), console, self.device)
            trainer.report_batches = REPORT_BATCHES  # on the CPU too
            if not ahead:
                trainer.prefetcher.pins, trainer.prefetcher.processes = False, 0
            trainer.train()

    def seconds(self, ahead: bool) -> float:
        """The seconds of the measured steps."""
        times: dict[int, float] = {}

        def at_step(done: int) -> None:
            if done in (WARM_UP, self.steps):
                if self.device != "cpu":
                    torch.cuda.synchronize()
                times[done] = time.perf_counter()

        self.train(at_step, ahead)
        return times[self.steps] - times[WARM_UP]

    def waits(self) -> tuple[HostWaits, HostWaits]:
        """The waits of steps, and of a report after them, on the pretended device of `stage_waits`.

        Its optimizer is not the fused one, which has no operators for that device.
        """
        network = Network(self.config, self.network.artifacts).train()
        move_module(network)
        unfused = {name: without_fused_kernels(cls) for name, cls in optim.OPTIMIZERS.items()}
        steps, report = HostWaits(), HostWaits()
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(optim, "OPTIMIZERS", unfused):
            with HostWaits():
                trainer = Trainer(network, self.config, self.batches, None, Path(folder), Console(-1), DEVICE)
            vars(trainer)["_autocast"] = contextlib.nullcontext  # it knows no such device
            trainer.report_batches = WAITING_STEPS + 1
            for rows in self.batches.order(0)[:WAITING_STEPS]:
                batch = {name: DeviceTensor(tensor) for name, tensor in self.batches(rows).items()}
                with steps:
                    trainer.train_batch(batch)
            with report:
                trainer._report()
        return steps, report

    def profiled(self) -> profile:
        """The profile of the measured steps."""
        profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

        def at_step(done: int) -> None:
            if done == WARM_UP:
                profiler.start()
            elif done == self.steps:
                profiler.stop()

        self.train(at_step)
        return profiler


def without_fused_kernels(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """An optimizer of one operator after the other; it ignores `found_inf`, as the library's does without a GPU."""

    class Unfused(cls):  # type: ignore[valid-type, misc]
        def __init__(self, parameters: Any, fused: bool, **options: Any):
            super().__init__(parameters, foreach=False, **options)

        def step(self) -> None:
            vars(self).pop("found_inf", None)
            super().step()

    return Unfused


def subject(name: str, device: str, steps: int, dry: bool, settings: Sequence[str], folder: Path) -> Subject:
    """A pipeline of the repository, with data for so many steps."""
    sets = ["train.epochs=1", "train.epoch_steps=null", *settings]
    if name == "intent-bert":  # of a checkpoint in this folder
        folder.mkdir()  # a checkpoint has to exist when the YAML is checked
        sets += [f"tokenizer.checkpoint={folder}", f"encoder.checkpoint={folder}"]
    config = load_config(ROOT / "pipelines" / f"{name}.yaml", sets)
    if name == "intent-bert":
        folder.rmdir()
        tiny_bert(folder, checkpoint_texts(config, folder), PIECES)
    form = data_form(config)
    records: Any = form.read(config.data.train)
    if dry:
        records = list(islice(iter(records), DRY_RECORDS))
    artifacts = fit_artifacts(config, records)
    batches = form.load(artifacts, records).batches
    if isinstance(batches, Windows):
        batches = replace(batches, epoch_batches=steps)
    else:
        batches = replace(batches, data=[batches.data[i] for rows in batches.order(0)[:steps] for i in rows])
    torch.manual_seed(1)
    return Subject(config, Network(config, artifacts), batches, device)


def measure(subject: Subject) -> list[str]:
    """The cells of a row."""
    if subject.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    tokens = subject.tokens()
    cells = [f"{tokens / subject.seconds(ahead):,.0f}" for ahead in (True, False)]
    steps, (waits, report) = subject.steps, subject.waits()
    counted = min(steps, WAITING_STEPS)
    cells += [f"{waits.counts.total() / counted:.1f}", str(report.counts.total())]
    cells += [f"{waits.kernels.total() / counted:,.0f}"]
    if subject.device == "cpu":
        return cells
    memory = torch.cuda.max_memory_allocated()
    events = subject.profiled().events() or []
    steps -= WARM_UP
    kernels = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    spans = [event.time_range for event in kernels]
    busy = sum(span.elapsed_us() for span in spans) / (max(s.end for s in spans) - min(s.start for s in spans))
    waiting = sum(event.name.startswith("cuda") and event.name.endswith("Synchronize") for event in events)
    return [*cells, f"{len(kernels) / steps:,.0f}", f"{waiting / steps:.1f}", f"{busy:.0%}", f"{memory / 1e6:,.0f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    flags = parser(__doc__)
    flags.add_argument("pipelines", nargs="*", default=PIPELINES, help=f"default: {' '.join(PIPELINES)}")
    flags.add_argument("--device", default="cuda", help="default: cuda")
    flags.add_argument("--steps", type=int, default=200, help="batches of an epoch; default: 200")
    flags.add_argument("--batch-tokens", type=int, help="default: as in the YAML")
    flags.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another key of the YAMLs")
    flags.add_argument("--dry", action="store_true", help="little data, and nothing is recorded")
    options = flags.parse_args(arguments)
    settings = ["train.batch_tokens=64", "train.batch_size=4"] * options.dry + list(options.set)
    if options.batch_tokens:
        settings += [f"train.batch_tokens={options.batch_tokens}", "train.batch_size=null"]
    columns = COLUMNS if options.device == "cpu" else COLUMNS + COLUMNS_OF_CUDA
    question = " ".join([options.device, *settings])
    gpu = "" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    table = None if options.dry else Table("cuda_training", question, *columns, versions=gpu)
    for name in options.pipelines:
        with tempfile.TemporaryDirectory() as folder:
            steps = DRY_STEPS if options.dry else options.steps
            some = subject(name, options.device, steps, options.dry, settings, Path(folder, "checkpoint"))
            cells = measure(some)
        if table is None:
            print(name, dict(zip(columns[1:], cells, strict=True)), flush=True)
        else:
            table.row(name, *cells)


if __name__ == "__main__":
    main()
