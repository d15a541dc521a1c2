"""Toy stages: a sound one of each kind, and stages with planted faults for each check of the kit."""

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe.plugin import Chars, Column
from seqpipe_plugins.heads.mlm import MaskedLM

# The checks by their names: the kit itself takes longer to import than a component's module may.
ROUND_TRIP, UNKNOWN, ACCESS = "options round-trip", "unknown option refused", "no file or network access"
MEMBERS = "members are spelt correctly"
BUILT, SHAPES, PADDING, BATCHES = "it is built", "shapes over a grid", "padding invariance", "batch invariance"
FLOAT64 = "a decision in float64"
SEEDS, GRADIENT = "determinism", "gradient reaches every parameter"
SAVED, RESUMED = "save and load bit-equal", "resume bit-equal"
EXPORT, STANDARD, PARITY = "export with free axes", "standard operators only", "onnxruntime parity on ragged shapes"
TARGETS, DECISION = "targets reach the loss", "decision as its answer kind declares"
CORRUPTION, PARTS = "corruption as declared", "the loss is a mean"
SCORE, METRICS, CHOSEN = "score agrees with decide", "own metrics run", "calibration is saved"


FAULTS: dict[str, tuple[str, type, set[str]]] = {}


class Fault:
    """Base of stages with a planted fault: `FAULTS` has the kind of each, its class, and the checks that catch it."""

    _kind: ClassVar = "encoder"

    def __init_subclass__(cls, caught_by: set[str] | None = None):
        super().__init_subclass__()
        if caught_by:
            FAULTS[cls.__name__] = (cls._kind, cls, caught_by)


class Sound(Fault, nn.Module):
    """A convolution over three words, added to each, and the row's mean as `state`."""

    returns: ClassVar = ("x", "state")

    def __init__(self, dim: int, *, dropout: float = 0.1):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = self.silent(x, mask)
        x = x + self.dropout(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return {"x": x, "state": self.silent(x, mask).sum(1) / mask.sum(1, keepdim=True)}

    def silent(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask[..., None], x, 0.0)


class Plain(Fault, nn.Module):
    """A linear layer of each word; faults change what it sets up, or its output."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.linear = nn.Linear(dim, dim)
        self.set_up()

    def set_up(self) -> None: ...

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.output(self.linear(x), x, mask)

    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        return y


def numpy_weights(layer: Plain) -> None:
    with torch.no_grad():
        layer.linear.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(layer.dim, layer.dim))))


FAULTY_SETUPS: Mapping[str, tuple[set[str], Callable[[Plain], Any]]] = {
    "WrongDim": ({SHAPES}, lambda self: setattr(self, "dim", self.dim + 1)),
    "UnusedLayer": ({GRADIENT}, lambda self: setattr(self, "spare", nn.Linear(self.dim, self.dim))),
    "NumpyInit": ({SEEDS}, numpy_weights),
    "ReadsFile": ({ACCESS}, lambda self: Path("/etc/passwd").read_bytes()),
    "StartsProcess": ({ACCESS}, lambda self: subprocess.run(["true"], check=True)),
}
FAULTY_OUTPUTS: Mapping[str, tuple[set[str], Callable[..., Tensor]]] = {
    "Shortens": ({SHAPES}, lambda self, y, x, mask: y[:, : max(1, x.shape[1] - 1)]),
    "InFloat32": ({FLOAT64}, lambda self, y, x, mask: y.float()),
    "InFloat64": ({SHAPES}, lambda self, y, x, mask: y.double()),
    "MeanOfBatch": ({BATCHES, PARITY}, lambda self, y, x, mask: y - y[:, :1].mean(0)),
    "FromTheEnd": ({BATCHES, PARITY}, lambda self, y, x, mask: y + torch.arange(x.shape[1], 0, -1)[None, :, None]),
    "NumpyDropout": ({SEEDS}, lambda self, y, x, mask: y * np.random.default_rng().random() if self.training else y),
    "DropsInEvaluation": (
        {SEEDS},
        lambda self, y, x, mask: y + 1e-6 * torch.rand_like(y),
    ),  # too small for other checks
    "Detached": ({GRADIENT}, lambda self, y, x, mask: y.detach()),
    "TensorOfNumbers": ({EXPORT}, lambda self, y, x, mask: y / torch.tensor(mask.sum(1).tolist())[:, None, None]),
    "RoughGraph": ({PARITY}, lambda self, y, x, mask: y * 1.01 if torch.compiler.is_exporting() else y),
}
for hook, faults in (("set_up", FAULTY_SETUPS), ("output", FAULTY_OUTPUTS)):
    for name, (checks, function) in faults.items():
        type(name, (Plain,), {hook: function}, caught_by=checks)


class TupleOption(Plain, caught_by={ROUND_TRIP}):
    def __init__(self, dim: int, *, sizes: Any = (1, 2)):
        super().__init__(dim)


class DoublesOption(Plain, caught_by={ROUND_TRIP}):
    def __init__(self, dim: int, *, hidden: Annotated[int, AfterValidator(lambda n: 2 * n)] = 3):
        super().__init__(dim)


class AnyOptions(Plain, caught_by={ROUND_TRIP, UNKNOWN}):
    def __init__(self, dim: int, **options: Any):
        super().__init__(dim)


class MisspeltMember(Plain, caught_by={MEMBERS}):
    explians: ClassVar = {}


class DeviationOfOneWord(Plain, caught_by={SHAPES}):
    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[..., None].float()
        n = real.sum(1, keepdim=True)
        x = torch.where(mask[..., None], x, 0.0)
        return y + (x * real).pow(2).sum(1, keepdim=True) / (n - 1)  # no spread of one word


class UnknownInput(Plain, caught_by={BUILT}):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
        return x


class IsNotBuilt(Plain, caught_by={BUILT}):
    def __init__(self, dim: int):
        raise UsageError("width: 4 is even; write 5")


class MultipliesByMask(Sound, caught_by={PADDING, PARITY}):
    def silent(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask[..., None]  # NaN * 0 is NaN


class ReadsPadding(Sound, caught_by={PADDING, BATCHES, PARITY}):
    def silent(self, x: Tensor, mask: Tensor) -> Tensor:
        return x


class ReadsAllIds(Plain, caught_by={PADDING, BATCHES, PARITY}):
    def __init__(self, dim: int, vocabulary: Sequence[str]):
        super().__init__(dim)
        self.table = nn.Embedding(len(vocabulary), dim)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        y = self.linear(x)
        return y + self.table(ids).sum(1, keepdim=True)


class NotInTheWeights(Plain, caught_by={SAVED}):
    shift: Tensor

    def set_up(self) -> None:
        self.register_buffer("shift", torch.randn(self.dim), persistent=False)

    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        return y + self.shift


class CountsCalls(Plain, caught_by={RESUMED}):
    """Trains the harder the longer it has trained, and forgets how long that is."""

    def set_up(self) -> None:
        self.calls = 0

    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        self.calls += self.training
        return y * (1 + 0.1 * self.calls) if self.training else y


class ListsFolder(Plain, caught_by={ACCESS}):
    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        os.listdir(tempfile.gettempdir())
        return y


class WritesFile(Plain, caught_by={ACCESS}):
    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        return y


class Connects(Plain, caught_by={ACCESS}):
    def set_up(self) -> None:
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.1)
            connection.connect(("127.0.0.1", 9))


class Unrolled(Plain, caught_by={EXPORT}):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        x = torch.where(mask[..., None], x, 0.0)
        for t in range(x.shape[1]):
            state = torch.tanh(state + self.linear(x[:, t]))
            states.append(state)
        return torch.stack(states, 1)


class CustomOperator(Plain, caught_by={STANDARD}):
    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            y = torch.onnx.ops.symbolic("acme::Gelu", (y,), dtype=y.dtype, shape=y.shape, version=1)
        return y


class BakedLength(Plain, caught_by={PARITY}):
    def output(self, y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        real = torch.where(mask[..., None], y, 0.0)
        return y + (real[:, :5] if torch.compiler.is_exporting() else real).sum(1, keepdim=True)


class SoundWords(Fault, nn.Module):
    """Embeds words by their id and their characters."""

    _kind = "embedding"
    features: ClassVar = {"chars": Chars(longest=8)}

    def __init__(self, vocabulary: Sequence[str], sizes: Mapping[str, int], *, dim: int = 4):
        super().__init__()
        self.dim = dim
        self.words, self.letters = nn.Embedding(len(vocabulary), dim), nn.Embedding(sizes["chars"], dim)

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor) -> Tensor:
        return self.words(ids) + (self.letters(chars) * (chars != 0)[..., None]).sum(2)


class MeanOfPadding(SoundWords, caught_by={PADDING, BATCHES, PARITY}):
    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor) -> Tensor:
        x = super().forward(ids, chars, mask)
        return x - x.mean(1, keepdim=True)


class LengthOfLongestWord(SoundWords, caught_by={BATCHES}):
    """Divides by the longest word of the batch."""

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor) -> Tensor:
        return self.words(ids) + self.letters(chars).mean(2)


class SoundColumn(SoundWords):
    """Adds to each word a vector of what stands in another field of the record."""

    def __init__(self, vocabulary: Sequence[str], sizes: Mapping[str, int], *, column: str = "dialect"):
        super().__init__(vocabulary, sizes)
        self.values = nn.Embedding(sizes["spoken"], self.dim)

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return {**SoundWords.features, "spoken": Column(options["column"])}

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor, spoken: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids, chars, mask) + self.values(spoken)


class ColumnOfTheFirst(SoundColumn, caught_by={BATCHES, PARITY}):
    """Takes the value of the first text for all."""

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor, spoken: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids, chars, mask, spoken[:1])


class SoundLabel(Fault, nn.Module):
    """A softmax over labels, with the share of near misses as its own metric."""

    _kind = "head"
    answer = "label"

    def __init__(self, dim: int, labels: Sequence[str]):
        super().__init__()
        self.linear = nn.Linear(dim, len(labels))

    def log_p(self, x: Tensor, mask: Tensor) -> Tensor:
        real = torch.where(mask[..., None], x, 0.0)
        return self.linear(real.sum(1) / mask.sum(1, keepdim=True)).log_softmax(1)

    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return F.nll_loss(self.log_p(x, mask), label)

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        scores = self.log_p(x, mask).exp()
        return {"label": scores.argmax(1), "scores": scores}

    def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return self.log_p(x, mask).gather(1, label[:, None])[:, 0]

    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[str], predicted: Sequence[str]) -> Any:
        near = [abs(ord(label) - ord(answer)) <= 1 for label, answer in zip(gold, predicted, strict=True)]
        return {"near": sum(near) / len(near)}


def with_decision(change: Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]]) -> dict[str, Any]:
    """The method `decide` with a change of the sound decision, which may depend on the mask."""
    return {"decide": lambda self, x, mask: change(SoundLabel.decide(self, x, mask), mask)}


def with_loss(change: Callable[..., Tensor]) -> dict[str, Any]:
    """The method `loss` by the log-probabilities, x, the mask and the labels."""
    return {"loss": lambda self, x, mask, label: change(self.log_p(x, mask), x, mask, label)}


def with_score(change: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """The method `score` by the log-probabilities of all labels and of the reference."""
    sound = SoundLabel.score
    return {"score": lambda self, x, mask, label: change(self.log_p(x, mask), sound(self, x, mask, label))}


def with_metrics(metrics: Callable[[Sequence[str]], dict[str, float]]) -> dict[str, Any]:
    """The method `metrics` by the reference labels."""
    return {"metrics": staticmethod(lambda options, gold, predicted: metrics(gold))}


FAULTY_HEADS: Mapping[str, tuple[set[str], dict[str, Any]]] = {
    "LabelsByPadding": (
        {BATCHES},
        with_decision(lambda d, mask: d | {"label": (d["label"] + (~mask).any(1)) % d["scores"].shape[1]}),
    ),
    "Logits": ({DECISION}, with_decision(lambda d, mask: d | {"scores": d["scores"].log()})),
    "NoScores": ({SHAPES}, with_decision(lambda d, mask: {"label": d["label"]})),
    "ShortInts": ({DECISION}, with_decision(lambda d, mask: d | {"label": d["label"].int()})),
    "Outside": ({DECISION}, with_decision(lambda d, mask: d | {"label": d["label"] + 3})),
    "LossOfFirstLabel": ({TARGETS}, with_loss(lambda log_p, x, mask, label: -log_p[:, 0].mean())),
    "LossHoldsPadding": (
        {PADDING},
        with_loss(lambda log_p, x, mask, label: F.nll_loss(log_p, label) + 1e-3 * x.square().mean()),
    ),
    "WeighsByLength": (
        {PARTS},
        with_loss(
            lambda log_p, x, mask, label: (mask.sum(1) * F.nll_loss(log_p, label, reduction="none")).sum() / mask.sum()
        ),
    ),
    "ScoresTheBest": ({SCORE}, with_score(lambda all_labels, reference: all_labels.amax(1))),
    "ScoresAsProbability": ({SCORE}, with_score(lambda all_labels, reference: reference.exp())),
    "ScoresTheBatch": ({SCORE}, with_score(lambda all_labels, reference: reference.sum())),
    "TakenName": ({METRICS}, with_metrics(lambda gold: {"accuracy": 1.0})),
    "NotANumber": ({METRICS}, with_metrics(lambda gold: {"near": float("nan")})),
    "FailsOnOneText": ({METRICS}, with_metrics(lambda gold: {"spread": 1 / (len(gold) - 1)})),
}
for name, (checks, methods) in FAULTY_HEADS.items():
    type(name, (SoundLabel,), methods, caught_by=checks)


class SumsPadding(SoundLabel, caught_by={PADDING, BATCHES, PARITY}):
    def log_p(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x.mean(1)).log_softmax(1)


class CalibratedLabel(SoundLabel):
    """The sharpness of its probabilities is chosen on dev: that of the mean of the logits."""

    sharpness: Tensor

    def __init__(self, dim: int, labels: Sequence[str]):
        super().__init__(dim, labels)
        self.register_buffer("sharpness", torch.ones(()))

    @staticmethod
    def needs_dev(options: Mapping[str, Any]) -> str:
        return "sharpness"

    def log_p(self, x: Tensor, mask: Tensor) -> Tensor:
        return (super().log_p(x, mask) * self.sharpness).log_softmax(1)

    def evidence(self, x: Tensor, mask: Tensor, label: Tensor) -> dict[str, Tensor]:
        return {"right": self.score(x, mask, label)}

    def calibrate(self, evidence: Mapping[str, Tensor]) -> None:
        self.sharpness.copy_(1 - evidence["right"].mean())

    def calibration(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness.item()}


class CalibrationIsNotSaved(CalibratedLabel, caught_by={CHOSEN}):
    def calibrate(self, evidence: Mapping[str, Tensor]) -> None:
        self.sharpness = 1 - evidence["right"].mean()
        self.choice = self.sharpness.item()

    def calibration(self) -> dict[str, Any]:
        return {"sharpness": getattr(self, "choice", 1.0)}


class CalibrationOfTensors(CalibratedLabel, caught_by={CHOSEN}):
    def calibration(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness}


class MeanOfEvidence(CalibratedLabel, caught_by={CHOSEN}):
    def evidence(self, x: Tensor, mask: Tensor, label: Tensor) -> dict[str, Tensor]:
        return {"right": super().evidence(x, mask, label)["right"].mean(0, keepdim=True)}


class FaultyMasking(Fault, MaskedLM):
    _kind = "head"


class MasksAnew(FaultyMasking, caught_by={PADDING, CORRUPTION}):
    """Draws in evaluation too, so that no two dev scores are of the same gaps."""

    def corrupt_batch(self, ids: Tensor, mask: Tensor, pieces: Any = None, segments: Any = None) -> dict[str, Tensor]:
        return super().corrupt_batch(ids.roll(int(torch.randint(1, 6, ())), 0), mask, pieces, segments)


class MasksTheSame(FaultyMasking, caught_by={CORRUPTION}):
    def corrupt_batch(self, ids: Tensor, mask: Tensor, pieces: Any = None, segments: Any = None) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return super().corrupt_batch(ids, mask, pieces, segments)


class MasksByPadding(FaultyMasking, caught_by={PADDING, CORRUPTION}):
    def corrupt_batch(self, ids: Tensor, mask: Tensor, pieces: Any = None, segments: Any = None) -> dict[str, Tensor]:
        corrupted = super().corrupt_batch(ids, mask, pieces, segments)
        return {**corrupted, "target_ids": corrupted["target_ids"] + ids.sum(1, keepdim=True) % 3}


class LossOfOneId(FaultyMasking, caught_by={CORRUPTION}):
    def loss(self, x: Tensor, mask: Tensor, target_ids: Tensor, target_mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().loss(x, mask, torch.full_like(target_ids, 4), target_mask)


SOUND_STAGES = {"encoder": Sound, "embedding": SoundWords, "head": SoundLabel}
