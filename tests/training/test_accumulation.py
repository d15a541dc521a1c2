"""A step of accumulated batches is the step of one batch: of every head, of any lengths, in the last window too."""

import contextlib
import functools
import inspect
import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gallery import write_pipeline
from test_contracts import OFFERS, STAGES, made
from tiny_pipelines import QUIET, BatchCallback, build_parts, load_tagger, plugins, train_run, write_classifier
from torch import Tensor, nn

from seqpipe.config.contract import declaration
from seqpipe.config.loader import Config, load_config
from seqpipe.config.schema import SGD
from seqpipe.console import Console
from seqpipe.errors import UsageError
from seqpipe.runs import run_folder
from seqpipe.runs import train as training
from seqpipe.testing.bench import Bench, perturb
from seqpipe.testing.report import Subject
from seqpipe.training import checkpoint
from seqpipe.training.datasets import Batch
from seqpipe.training.network import Network
from seqpipe.training.trainer import Trainer

SAMPLING = {"scheduled_sampling", "hard_attention"}  # options with which a head draws numbers in its loss
HEADS = [
    (use, i)
    for (kind, use), some in STAGES.items()
    for i, options in enumerate(some[:2] if use != "label" else some)
    if kind == "head" and SAMPLING.isdisjoint(options)
]


@pytest.fixture(autouse=True)
def in_tmp_path_and_float32_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
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
    network: Network, config: Config, batches: Any, folder: Path, evaluate: Any = None, **settings: Any
) -> Trainer:
    config = replace(config, train=config.train.model_copy(update=settings))
    trainer = Trainer(network, config, batches, evaluate, folder, QUIET)
    trainer.train()
    return trainer


def greatest_difference(first: nn.Module, second: nn.Module) -> float:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())


@pytest.mark.parametrize(("use", "number"), HEADS)
def test_heads_train_as_with_one_batch(use: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, head = {**made(STAGES["head", use][number], tmp_path)}, OFFERS["head", use].load()
    if "dropout" in inspect.signature(head).parameters:
        options["dropout"] = 0.0
    bench = Bench(Subject("head", head, options), tmp_path)
    if declaration(bench.config.head[0], "batch_dependent"):
        return
    batch = bench.network().eval().corrupt(bench.batch())  # as a whole: its random numbers depend on the shape
    batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    monkeypatch.setattr(Network, "corrupt", lambda network, batch: batch)
    pipelines = [perturb(bench.network()).double() for _ in range(3)]
    torch.set_default_dtype(torch.float64)
    trained = []
    for order, accumulate in (([[0, 1, 2, 3, 4], [5, 6, 7]], 1), ([[4], [1, 0], [3, 2], [6], [7, 5]], 3)):
        network = pipelines.pop()
        folder = tmp_path / str(accumulate)
        settings = {"epochs": 2, "accumulate": accumulate, "clip": 0.5, "average": 0.5, "optimizer": SGD(lr=0.1)}
        trainer = train(network, bench.config, Rows(batch, order), folder, **settings)
        assert trainer.progress.step == 4
        trained.append(trainer)
    whole, several = trained
    assert greatest_difference(whole.network, several.network) < 1e-9
    assert greatest_difference(whole.network, pipelines.pop()) > 1e-4
    for first, second in zip(whole.progress.history, several.progress.history, strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-9)
        assert second["gradients"] == pytest.approx(first["gradients"], rel=1e-6)
        assert second["lr"] == first["lr"]
    assert several.progress.first_loss == pytest.approx(whole.progress.first_loss, rel=1e-9)


# Whole runs on texts of very different lengths.

LABEL = {"use": "label", "pool": "mean"}
RUNS: dict[str, Any] = {
    "label": LABEL,
    "crf": {"use": "crf", "dropout": 0.0},
    "two-heads": [{"name": "spans", "use": "crf", "dropout": 0.0}, {"name": "topics", **LABEL, "weight": 0.5}],
    "teacher": LABEL,
}
WAYS = ("full", 100, 1), ("windows", 5, 9), ("short", 7, 100)  # name, batch size, accumulate: an epoch is one step


def mixed(folder: Path, head: Any) -> Path:
    """The YAML of a pipeline, and data: texts of 1 word, and of 20 to 40 words."""

    def records(count: int, seed: int) -> list[dict[str, Any]]:
        dice = random.Random(seed)
        lengths = [1 if i % 2 else dice.randint(20, 40) for i in range(count)]
        tags = [dice.choices(["B-x", "B-y", "O"], k=length) for length in lengths]
        words = [[f"{tag[-1]}{dice.choice('abc')}" for tag in row] for row in tags]
        return [{"words": w, "tags": t, "label": t[0][-1]} for w, t in zip(words, tags, strict=True)]

    train = {"epochs": 3, "batch_tokens": 100_000, "optimizer": {"use": "sgd", "lr": 0.5}, "threads": 1}
    stages = {"tokenizer": "words", "encoder": {"use": "lstm", "hidden": 8}, "head": head}
    # dev is one batch: its loss is a mean over texts of those of batches
    return write_pipeline(folder, records, "mixed", (42, 5, 1), train=train, **stages)


def history(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"runs/{name}/checkpoints/metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("head", "dtype", "rounding"),
    [*((head, torch.float64, 1e-9) for head in RUNS), *((head, torch.float32, 1e-5) for head in ("label", "crf"))],
)
def test_texts_of_any_lengths_give_the_same_dev_loss_however_they_are_accumulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, dtype: torch.dtype, rounding: float
) -> None:
    yaml, teacher = mixed(tmp_path, RUNS[head]), []
    if head == "teacher":
        train_run(load_config(yaml, ["name=teacher", "train.seed=2"]))
        teacher = ["train.teacher={path: runs/teacher, weight: 0.75}"]
    build = Network.__init__
    monkeypatch.setattr(Network, "__init__", lambda self, *given: (build(self, *given), self.to(dtype))[0])
    torch.set_default_dtype(dtype)
    for name, size, accumulate in WAYS:
        settings = [f"name={name}", f"train.batch_size={size}", f"train.accumulate={accumulate}", *teacher]
        train_run(load_config(yaml, settings))
    for rows in zip(*(history(name) for name, _, _ in WAYS), strict=True):
        assert {row["step"] for row in rows} == {rows[0]["epoch"]}
        for losses in ([row["dev"]["loss"] for row in rows], [row["loss"] for row in rows]):
            assert max(losses) - min(losses) < rounding
    assert abs(history("full")[0]["dev"]["loss"] - history("full")[-1]["dev"]["loss"]) > 1e-3


# Batches without items, mixed precision, random numbers, former runs and notes.


class Known(nn.Module):
    """Labels texts by the sum of x; the first label counts as unknown, and its texts have no loss."""

    answer = "label"

    def __init__(self, dim: int, labels: Sequence[str]):
        super().__init__()
        self.output = nn.Linear(dim, len(labels))

    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        known, logits = label > 0, self.output((x * mask[..., None]).sum(1))
        return nn.functional.cross_entropy(logits[known], label[known])  # NaN without a known label

    def loss_count(self, label: Tensor) -> Tensor:
        return (label > 0).sum()

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]: ...


@pytest.mark.parametrize("heads", [1, 2])
def test_a_batch_without_items_adds_nothing_even_as_the_first_of_its_step(tmp_path: Path, heads: int) -> None:
    head = [{"name": f"h{i}", "use": "known", "target": "label"} for i in range(heads)]
    config = load_config(write_classifier(tmp_path, {"head": head}), (), plugins(known=("head", Known)))
    torch.set_default_dtype(torch.float64)
    trained = []
    for accumulate in (1, 4):
        network, batches = build_parts(config)
        network.double()
        batch = batches(range(20))
        label = next(tensor for name, tensor in batch.items() if name.endswith("label"))
        unknown, known = ((label == 0).nonzero()[:, 0].tolist(), (label > 0).nonzero()[:, 0].tolist())
        windows = [[unknown[:2], known[:1], unknown[2:3], known[1:6]], [known[6:7], unknown[3:4], known[7:10]]]
        order = windows[0] + windows[1] if accumulate > 1 else [[*itertools.chain(*window)] for window in windows]
        settings = {"epochs": 2, "accumulate": accumulate, "optimizer": SGD(lr=0.5)}
        trained.append(train(network, config, Rows(batch, order), tmp_path / str(accumulate), **settings).network)
    assert greatest_difference(*trained) < 1e-9


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_in_mixed_precision_steps_differ_by_rounding_and_the_scale_counts_steps(tmp_path: Path, precision: str) -> None:
    sets = ("embedding={use: lookup, dim: 8}", "head.dropout=0", "train.clip=0.5")
    config = load_tagger(tmp_path, f"train.precision={precision}", *sets)
    first, several, (before, _) = [], [], build_parts(config)
    for accumulate, trained in ((1, first), (3, several)):
        network, batches = build_parts(config)
        order = [[0, 1, 2, 3, 4, 5], [6, 7]] if accumulate == 1 else [[0], [1, 2, 3], [4, 5], [6], [7]]
        update = {"epochs": 1, "accumulate": accumulate, "optimizer": SGD(lr=1.0)}
        settings = replace(config, train=config.train.model_copy(update=update))
        trainer = Trainer(network, settings, Rows(batches(range(8)), order), None, tmp_path / str(accumulate), QUIET)
        if precision == "fp16":  # which a CPU has no autocast for
            trainer._scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
            trainer._autocast = contextlib.nullcontext  # type: ignore[assignment, method-assign]
        trainer.train()
        trained += [trainer.network, trainer._scaler.get_scale()]
    moved, difference = (
        torch.cat([(a - b).flatten() for a, b in zip(part.parameters(), first[0].parameters(), strict=True)]).norm()
        for part in (before, several[0])
    )
    assert difference < moved * (1e-5 if precision == "fp16" else 0.02)
    assert first[1] == several[1] == (32.0 if precision == "fp16" else 1.0)  # doubled at both steps


def test_the_pass_that_counts_has_the_random_numbers_of_the_step_and_leaves_no_trace(tmp_path: Path) -> None:
    heads = "head=[{name: spans, use: crf, dropout: 0.5}, {name: topics, use: label, target: topic}]"
    config = load_tagger(tmp_path, heads, "train.accumulate=3", "train.epochs=1")
    network, batches = build_parts(config)
    masks: list[Tensor] = []
    network.heads[0].dropout.register_forward_hook(lambda m, _, x: masks.append(x == 0) if m.training else None)
    Trainer(network, config, batches, None, tmp_path / "checkpoints", QUIET).train()
    steps = masks[1:]  # the first is that of the batch that shows what is to be counted
    assert len(steps) == 2 * len(batches.order(0))
    for place in range(0, len(steps), 6):
        window = steps[place : place + 6]
        counted, trained = window[: len(window) // 2], window[len(window) // 2 :]
        assert all(torch.equal(*pair) for pair in zip(counted, trained, strict=True))


def stop(folder: Path, *settings: str) -> tuple[Config, Path]:
    """A training that a former version began, and its checkpoint."""
    config = load_tagger(folder, "train.epochs=2", "train.checkpoint_steps=1", *settings)

    def cut(batch: int) -> None:
        if batch == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, BatchCallback(cut))
    return config, make_former(config)


def make_former(config: Config) -> Path:
    path = Path("runs") / config.name / "checkpoints" / "last.ckpt"
    state = checkpoint.load(path)
    del state["steps_weigh_items"]
    checkpoint.save(path, state)
    return path


def test_an_unfinished_training_by_the_former_rule_is_refused(tmp_path: Path) -> None:
    config, path = stop(tmp_path, "train.accumulate=2")
    for _ in range(2):
        message = r"last\.ckpt: trained by the earlier rule of train\.accumulate; run with --fresh"
        with pytest.raises(UsageError, match=message):
            train_run(config)
    assert "steps_weigh_items" not in checkpoint.load(path)
    with run_folder.start_run(config, QUIET, fresh=True) as run:
        weights = training.train_run(run, QUIET, "cpu").network.state_dict()
    make_former(config)
    for name, tensor in train_run(config).network.state_dict().items():
        assert torch.equal(weights[name], tensor)
    with run_folder.start_run(config, QUIET, more=1) as run:
        training.train_run(run, QUIET, "cpu")
    assert checkpoint.load(path)["progress"]["epoch"] == 3
    train_run(stop(tmp_path, "name=one")[0])  # steps of one batch are as they were


def test_a_head_that_needs_the_whole_batch_gets_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yaml, note = write_classifier(tmp_path, {"head": "vector"}), "  note: head: head 'vector' "
    for accumulate in (1, 2):
        train_run(
            load_config(yaml, ["train.epochs=1", f"name=a{accumulate}", f"train.accumulate={accumulate}"]), Console()
        )
        notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith(note)]
        assert len(notes) == accumulate - 1
    assert notes[0].endswith("needs all texts of a batch, so accumulated batches are not one batch")


def test_buffers_add_up_all_batches_and_count_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_tagger(tmp_path, "head=tags")
    network, batches = build_parts(config)
    network.head.register_buffer("batches", torch.zeros(2))
    network.head.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    loss = type(network.head).loss

    @functools.wraps(loss)
    def count_calls(self: Any, *values: Any) -> Any:
        self.batches[0] += self.training
        self.steps += self.training
        return loss(self, *values)

    monkeypatch.setattr(type(network.head), "loss", count_calls)
    train(network, config, batches, tmp_path / "counts", accumulate=2, epochs=1)
    count = len(batches.order(0))
    assert count > 2
    assert (network.head.batches.tolist(), network.head.steps.item()) == ([count, 0], math.ceil(count / 2))
