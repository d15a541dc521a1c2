"""Small data, small pipelines, toy components and a way to run commands, shared by tests of the training side."""

import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from seqpipe.commands.app import main
from seqpipe.config.loader import Config, load_config
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.yaml import dump
from seqpipe.console import Console, Tick
from seqpipe.plugin import Metric

PEOPLE = ("Ada", "Bob Ray", "Cho", "Dee Dee Fox", "Eli", "Fay Low")
PLACES = ("Oslo", "Rome", "New York", "Lima")
PATTERNS = (
    "{p} flew to {l} .",
    "in {l} , {p} met {q} .",
    "nobody came .",
    "{p} left",
    "it rains in {l} and in {m} today .",
)
QUIET = Console(-1)
PARTS = ("train", "dev", "test")
Records = Callable[[int, int], list[dict[str, Any]]]  # from their number and a random seed


def tiers(commit: Any, long: Any, seconds: int = 300) -> list[Any]:
    """Two sizes of a test: what runs at every commit, and what runs behind the marker `long`, with its time limit."""
    return [commit, pytest.param(long, marks=[pytest.mark.long, pytest.mark.timeout(seconds)])]


def tagged_sentences(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Words with their IOB2 tags; the same for the same seed."""
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        words: list[str] = []
        tags: list[str] = []
        for part in dice.choice(PATTERNS).split():
            kind = {"{p}": "PER", "{q}": "PER", "{l}": "LOC", "{m}": "LOC"}.get(part)
            new = dice.choice(PEOPLE if kind == "PER" else PLACES).split() if kind else [part]
            words += new
            tags += [f"{'I' if i else 'B'}-{kind}" if kind else "O" for i in range(len(new))]
        rows.append((words, tags))
    return rows


def write_conll(path: Path, count: int, seed: int) -> Path:
    blocks = [
        f"# topic = {'ab'[i % 2]}\n" + "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True))
        for i, (words, tags) in enumerate(tagged_sentences(count, seed))
    ]
    path.write_text("\n".join(blocks))
    return path


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def reversals(count: int, seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    texts = ["".join(dice.choices("abcdef", k=dice.randint(1, 6))) for _ in range(count)]
    return [{"text": text, "reversed": text[::-1]} for text in texts]


def write_tagger(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Writes data and the YAML of a tiny BiLSTM-CRF."""
    for name, count, seed in (("train", 36, 1), ("dev", 12, 2), ("test", 16, 3)):
        write_conll(folder / f"{name}.conll", count, seed)
    content: dict[str, Any] = {
        "data": {"reader": "conll", "train": "train.conll", "dev": "dev.conll", "test": "test.conll"},
        "tokenizer": {"use": "words", "lowercase": True},
        "embedding": [{"use": "lookup", "dim": 8}, {"use": "char-cnn", "dim": 6, "char_dim": 4}],
        "encoder": {"use": "lstm", "hidden": 6},
        "head": {"use": "crf", "scheme": "BIOES"},
        "train": {"epochs": 2, "batch_tokens": 48, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
    }
    return write_yaml(folder, "tiny", **{**content, **(changes or {})})


def write_yaml(folder: Path, name: str, /, **content: Any) -> Path:
    """Write the YAML of a pipeline, which has the name of its file if the content has none; returns its path."""
    path = folder / f"{name}.yaml"
    path.write_text(dump({"name": name, **content}), encoding="utf-8")
    return path


def train_settings(epochs: int, lr: float = 0.02, tokens: int = 48) -> dict[str, Any]:
    """The key `train` of a small pipeline."""
    return {"epochs": epochs, "batch_tokens": tokens, "optimizer": {"use": "adamw", "lr": lr}, "threads": 1}


def write_pipeline(
    folder: Path,
    records: Records,
    name: str,
    counts: Sequence[int] = (60, 12, 12),
    changes: Mapping[str, Any] | None = None,
    **content: Any,
) -> Path:
    """Write the records of the three parts and the YAML of a pipeline that reads them; returns the YAML."""
    for seed, (part, count) in enumerate(zip(PARTS, counts, strict=True), 1):
        write_jsonl(folder / f"{part}.jsonl", records(count, seed))
    data = {"reader": "jsonl"} | {part: f"{part}.jsonl" for part in PARTS} | content.pop("data", {})
    content = {"data": data, "train": train_settings(6), **content}
    if "inputs" not in content:
        content.setdefault("embedding", {"use": "lookup", "dim": 8})
    return write_yaml(folder, name, **{**content, **(changes or {})})


def write_language_model(folder: Path, text: str, **changes: Any) -> Path:
    """Write a text and the YAML of a language model of its characters, which a GRU reads."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    content = {
        "data": {"reader": "text", "train": "text.txt", "dev": "text.txt"},
        "tokenizer": "chars",
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "gru", "hidden": 16, "direction": "forward"},
        "head": {"use": "lm", "context": 24},
        "train": {"epochs": 1, "epoch_steps": 3, "batch_size": 4, "threads": 1},
    }
    return write_yaml(folder, "lm", **content | changes)


def write_seq2seq(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Writes data and the YAML of a tiny pipeline that writes text."""
    head = {"use": "seq2seq", "hidden": 16, "target": "reversed", "target_tokenizer": "same"}
    stages = {"tokenizer": "chars", "encoder": {"use": "lstm", "hidden": 8}, "head": head}
    train = {"epochs": 2, "batch_tokens": 48, "threads": 1}
    return write_pipeline(folder, reversals, "backward", (40, 8, 8), changes, **stages, train=train)


def plugins(**toys: tuple[str, type]) -> Plugins:
    """The built-ins and toy components: a name and, for each, its kind and class."""
    offered = Plugins()
    offered.offers += [Offer(kind, name, "toys", "1.0", cls) for name, (kind, cls) in toys.items()]
    return offered


def load_tagger(folder: Path, *overrides: str, **toys: tuple[str, type]) -> Config:
    """The checked tiny pipeline, with overrides and toy components."""
    return load_config(write_tagger(folder), overrides, plugins(**toys))


class BatchCallback(Console):
    """A quiet console that calls back at every batch of training, counted from 1."""

    def __init__(self, at_batch: Any):
        super().__init__(-1)
        self.at_batch, self.count = at_batch, 0

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        def tick(done: int, note: str = "") -> None:
            self.count += 1
            self.at_batch(self.count)

        yield tick


@dataclass(frozen=True)
class CommandResult:
    """The exit code of a command, and the text it wrote."""

    code: int
    out: str
    err: str


def seqpipe(*arguments: str | Path, stdin: bytes = b"", folder: Path | None = None) -> CommandResult:
    """Runs the command in this process: all of it but the interpreter's start."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    standard_input = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    code: Any = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder or Path.cwd()))
        stack.enter_context(mock.patch.object(sys, "argv", ["seqpipe", *map(str, arguments)]))
        stack.enter_context(mock.patch.object(sys, "stdin", standard_input))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    out.flush()
    return CommandResult(code, out.buffer.getvalue().decode(), err.getvalue())


def succeed(*arguments: str | Path, stdin: bytes = b"", folder: Path | None = None) -> CommandResult:
    """Runs a command in this process that has to end without an error."""
    result = seqpipe(*arguments, stdin=stdin, folder=folder)
    assert result.code == 0, result.err
    return result


def fail_with(
    code: int, message: str, *arguments: str | Path, stdin: bytes = b"", folder: Path | None = None
) -> CommandResult:
    """Runs a command in this process that has to end with this exit code and this message."""
    result = seqpipe(*arguments, stdin=stdin, folder=folder)
    assert (result.code, message in result.err) == (code, True), result.err
    return result


def run_process(*arguments: str | Path, folder: Path, stdin: bytes = b"", **environment: str) -> CommandResult:
    """Runs the command as a process of its own."""
    done = subprocess.run(
        command_line(*arguments), cwd=folder, input=stdin, capture_output=True, env=environ(**environment)
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "seqpipe", *map(str, arguments)]


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def untrained(config: Config, count: int | None = None, seed: int = 1) -> Any:
    """The pipeline at its first weights, fitted to the training records, or to the first `count` of them."""
    import torch

    from seqpipe.training.datasets import load_records
    from seqpipe.training.fit import fit_artifacts
    from seqpipe.training.network import Network

    artifacts = fit_artifacts(config, load_records(config.data.reader, config.data.train, count))
    torch.manual_seed(seed)
    return Network(config, artifacts).eval()


def build_parts(config: Config) -> tuple[Any, Any]:
    """The pipeline at its first weights, and the batches, as a run makes them."""
    import torch

    from seqpipe.training.data_forms import data_form
    from seqpipe.training.network import Network

    form = data_form(config)
    records = form.read(config.data.train)
    data = form.load(form.fit(records), records)
    torch.manual_seed(config.train.seed)
    return Network(config, data.artifacts), data.batches


def begin_run(config: Config, fresh: bool = False) -> Any:
    """The run of a config, begun; nothing holds its lock any more."""
    from seqpipe.runs.run_folder import start_run

    with start_run(config, QUIET, fresh) as run:
        return run


def train_run(config: Config, console: Console = QUIET, device: str = "cpu") -> Any:
    """Begins the run of a config, or goes on with it, and trains it to the end: the pipeline."""
    from seqpipe.runs import run_folder
    from seqpipe.runs import train as training

    with run_folder.start_run(config, QUIET) as started:
        return training.train_run(started, console, device)


SMALL_TAGGER = ("embedding={use: lookup, dim: 8}", "head=tags")  # of the tiny pipeline, what exports in a second or two


def toy_encoders() -> dict[str, tuple[str, type]]:
    """Encoders whose graphs go wrong, each in its own way; `sound` does not."""
    import torch
    from faulty_stages import FAULTS, Plain
    from torch import Tensor

    class Sound(Plain):
        """Adds the mean of the row to each of its places."""

        def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
            real = mask[..., None].float()
            return y + (y * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)

    class NoMask(Plain):
        """Counts the padding in."""

        def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
            return y + y.mean(1, keepdim=True)

    class Fails(Plain):
        """Its graph does not run at another length than the example's."""

        def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
            if not torch.compiler.is_exporting():
                return y
            wrong: Tensor = torch.onnx.ops.symbolic(
                "Add", (y, torch.zeros(1, 5, self.dim)), dtype=y.dtype, shape=y.shape, version=14
            )
            return wrong

    names = {"unrolled": "Unrolled", "batched": "TensorOfNumbers", "baked": "BakedLength", "rough": "RoughGraph"}
    faults = {toy: ("encoder", FAULTS[name][1]) for toy, name in names.items()}
    return {"sound": ("encoder", Sound), "nomask": ("encoder", NoMask), "fails": ("encoder", Fails)} | faults


def labelled_texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with a label that a word of theirs gives away; the same for the same seed."""
    dice = random.Random(seed)
    words = {"bad": ("awful", "sad"), "fine": ("fair", "usual"), "good": ("lovely", "glad")}
    labels = [dice.choice(list(words)) for _ in range(count)]
    return [{"text": f"a {dice.choice(words[label])} {dice.choice('xyz')} day", "label": label} for label in labels]


def write_classifier(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Writes data and the YAML of a tiny pipeline that labels texts, with the toy head `mean`."""
    stages = {"tokenizer": "words", "head": {"use": "mean", "order": ["bad", "fine", "good"]}}
    return write_pipeline(folder, labelled_texts, "moods", changes=changes, **stages, train=train_settings(6, 0.05, 64))


def toy_heads() -> dict[str, tuple[str, type]]:
    """A head that labels texts, with a metric of its own."""
    import torch
    from torch import Tensor, nn

    class Mean(nn.Module):
        """The likeliest label of a linear layer of the mean of x."""

        answer = "label"
        score_types: ClassVar = {"mean_absolute_error": Metric(percent=False, more_is_better=False)}

        def __init__(self, dim: int, labels: Sequence[str], *, order: tuple[str, ...] = ()):
            super().__init__()
            self.output = nn.Linear(dim, len(labels))

        def log_p(self, x: Tensor, mask: Tensor) -> Tensor:
            real = mask[..., None].float()
            return self.output((x * real).sum(1) / real.sum(1)).log_softmax(1)

        def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
            return nn.functional.nll_loss(self.log_p(x, mask), label)

        def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
            log_p = self.log_p(x, mask)
            return {"label": log_p.argmax(1), "scores": log_p.exp()}

        def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
            return torch.gather(self.log_p(x, mask), 1, label[:, None])[:, 0]

        @staticmethod
        def metrics(options: Mapping[str, Any], gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
            places = list(options["order"])
            apart = [abs(places.index(a) - places.index(b)) for a, b in zip(gold, predicted, strict=True)]
            return {"mean_absolute_error": sum(apart) / len(apart)}

    return {"mean": ("head", Mean)}


class ForkedCommand:
    """A command in a process of its own, forked where torch is imported already, that may be told when to be killed.

    Of several at once in a folder each has a `name`.
    """

    server = multiprocessing.get_context("forkserver")

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        kill: tuple[str, float] | None = None,
        name: str = "",
        environment: Mapping[str, str] | None = None,
    ):
        modules = ("seqpipe.runs.full_run", "seqpipe.commands.app", "seqpipe.training.trainer")
        self.server.set_forkserver_preload([*modules, "onnxscript", "torch.onnx.ops"])
        self.told = folder.with_name(f"{folder.name}-told{name}.txt")
        self.told.write_text("")
        self.told.with_suffix(".steps").write_bytes(b"")
        call = (folder, self.told, [*map(str, arguments)], kill, dict(environment or {}))
        self.process = self.server.Process(target=_child, args=call)
        self.process.start()

    def wait_for(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.told.read_text():
            assert time.monotonic() < deadline, self.told.read_text()
            assert self.process.is_alive(), self.told.read_text()
            time.sleep(0.02)

    @property
    def steps(self) -> int:
        """The steps of an optimiser that it has made so far."""
        return self.told.with_suffix(".steps").stat().st_size

    def end(self, seconds: float = 120) -> int:
        """The exit code: negative is the signal that killed it."""
        self.process.join(seconds)
        assert self.process.exitcode is not None
        return self.process.exitcode


def _child(
    folder: Path, log: Path, arguments: list[str], kill: tuple[str, float] | None, environment: dict[str, str]
) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    tempfile.tempdir = None  # it may come from the server's environment
    sys.argv = ["seqpipe", *arguments]
    sys.stderr = log.open("w", buffering=1)
    steps = log.with_suffix(".steps").open("ab", buffering=0)
    at_each_step(lambda: steps.write(b"."))
    if kill:
        kill_at(*kill)
    main()


def at_each_step(do: Callable[[], Any]) -> None:
    """Has this process call back after each step of an optimiser."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: do())


def kill_at(how: str, when: float) -> None:
    """Has this process killed after `when` seconds, or inside its `when`-th write, rename or sync of a file.

    With `training`, the seconds count from its first step; with `limit`, it may write files of at most so many bytes
    instead.
    """

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if how == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(when), int(when)))
        return
    timer = threading.Timer(when, die)
    if how == "seconds":
        timer.start()
        return
    if how == "training":
        at_each_step(lambda: timer.start() if timer.ident is None else None)
        return
    place: Any = os if how == "fsync" else Path
    real, count = getattr(place, how), 0

    def counted(first: Any, *rest: Any) -> Any:
        nonlocal count
        count += 1
        if count == when and how == "write_bytes":
            real(first, rest[0][: len(rest[0]) // 2])
        if count == when:
            die()
        return real(first, *rest)

    setattr(place, how, counted)
