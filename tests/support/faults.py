"""Toy stages: one that is sound of each kind, and for each check of the kit some with the fault that it must catch."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
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


class Sound(nn.Module):
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


class Plain(nn.Module):
    """Looks at each word alone: the trunk of the faults."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        y: Tensor = self.linear(x)
        return y


class Tuples(Plain):
    def __init__(self, dim: int, *, sizes: Any = (1, 2)):
        super().__init__(dim)


class Doubles(Plain):
    def __init__(self, dim: int, *, hidden: Annotated[int, AfterValidator(lambda n: 2 * n)] = 3):
        super().__init__(dim)


class Swallows(Plain):
    def __init__(self, dim: int, **options: Any):
        super().__init__(dim)


class Misspells(Plain):
    explians: ClassVar = {}


class Shortens(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y[:, : max(1, x.shape[1] - 1)]


class InFloat32(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.float()


class Misstates(Plain):
    def __init__(self, dim: int):
        super().__init__(dim)
        self.dim = dim + 1


class SpreadOfOne(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        real = mask[..., None].float()
        n = real.sum(1, keepdim=True)
        x = torch.where(mask[..., None], x, 0.0)
        return y + (x * real).pow(2).sum(1, keepdim=True) / (n - 1)  # no spread of one word


class Doubled(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.double()


class AsksForMore(Plain):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
        return x


class IsNotBuilt(Plain):
    def __init__(self, dim: int):
        raise UsageError("width: 4 is even; write 5")


class Multiplies(Sound):
    def silent(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask[..., None]  # NaN * 0 is NaN


class Leaks(Sound):
    def silent(self, x: Tensor, mask: Tensor) -> Tensor:
        return x


class ReadsAllIds(Plain):
    def __init__(self, dim: int, vocabulary: Sequence[str]):
        super().__init__(dim)
        self.table = nn.Embedding(len(vocabulary), dim)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        y: Tensor = self.linear(x)
        return y + self.table(ids).sum(1, keepdim=True)


class MeanOfBatch(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(torch.where(mask[..., None], x, 0.0))
        return y - y[:, :1].mean(0)


class FromTheEnd(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        left = x.shape[1] - torch.arange(x.shape[1], device=x.device)
        return y + left[None, :, None]


class NumpyInit(Plain):
    def __init__(self, dim: int):
        super().__init__(dim)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(dim, dim))))


class NumpyDropout(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * float(np.random.default_rng().uniform(0.5, 1)) if self.training else y


class DropsInEvaluation(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y + 1e-6 * torch.rand_like(y)  # too little for any other check


class Unused(Plain):
    def __init__(self, dim: int):
        super().__init__(dim)
        self.spare = nn.Linear(dim, dim)


class Detached(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x).detach()
        return y


class NotInTheWeights(Plain):
    shift: Tensor

    def __init__(self, dim: int):
        super().__init__(dim)
        self.register_buffer("shift", torch.randn(dim), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y + self.shift


class Counts(Plain):
    """Trains the harder the longer it has trained, and forgets how long that is."""

    def __init__(self, dim: int):
        super().__init__(dim)
        self.calls = 0

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.calls += self.training
        y: Tensor = self.linear(x)
        return y * (1 + 0.1 * self.calls) if self.training else y


class ReadsFile(Plain):
    def __init__(self, dim: int):
        super().__init__(dim)
        with contextlib.suppress(OSError), open("/etc/passwd", "rb") as file:
            file.read(1)


class ListsFolder(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Any:
        os.listdir(tempfile.gettempdir())
        return super().forward(x, mask)


class WritesFile(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Any:
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        return super().forward(x, mask)


class Connects(Plain):
    def __init__(self, dim: int):
        super().__init__(dim)
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.1)
            connection.connect(("127.0.0.1", 9))


class Starts(Plain):
    def __init__(self, dim: int):
        super().__init__(dim)
        subprocess.run(["true"], check=True)


class Unrolled(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        x = torch.where(mask[..., None], x, 0.0)
        for t in range(x.shape[1]):
            state = torch.tanh(state + self.linear(x[:, t]))
            states.append(state)
        return torch.stack(states, 1)


class MakesNumbers(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y / torch.tensor([float(n) for n in mask.sum(1).tolist()])[:, None, None]


class Custom(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if torch.compiler.is_exporting():
            y = torch.onnx.ops.symbolic("acme::Gelu", (y,), dtype=y.dtype, shape=y.shape, version=1)
        return y


class Rough(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * 1.01 if torch.compiler.is_exporting() else y


class Baked(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        real = torch.where(mask[..., None], y, 0.0)
        return y + (real[:, :5] if torch.compiler.is_exporting() else real).sum(1, keepdim=True)


class SoundWords(nn.Module):
    """Embeds words by their id and their characters."""

    features: ClassVar = {"chars": Chars(longest=8)}

    def __init__(self, vocabulary: Sequence[str], sizes: Mapping[str, int], *, dim: int = 4):
        super().__init__()
        self.dim = dim
        self.words, self.letters = nn.Embedding(len(vocabulary), dim), nn.Embedding(sizes["chars"], dim)

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor) -> Tensor:
        x: Tensor = self.words(ids) + (self.letters(chars) * (chars != 0)[..., None]).sum(2)
        return x


class LeakingWords(SoundWords):
    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor) -> Tensor:
        x = super().forward(ids, chars, mask)
        return x - x.mean(1, keepdim=True)


class CountsLetters(SoundWords):
    """Divides by the longest word of the batch."""

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor) -> Tensor:
        x: Tensor = self.words(ids) + self.letters(chars).mean(2)
        return x


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


class ColumnOfTheFirst(SoundColumn):
    """Takes the value of the first text for all."""

    def forward(self, ids: Tensor, chars: Tensor, mask: Tensor, spoken: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids, chars, mask, spoken[:1])


class SoundLabel(nn.Module):
    """A softmax over labels, with the share of near misses as its own metric."""

    answer = "label"

    def __init__(self, dim: int, labels: Sequence[str]):
        super().__init__()
        self.linear = nn.Linear(dim, len(labels))

    def log_p(self, x: Tensor, mask: Tensor) -> Tensor:
        real = torch.where(mask[..., None], x, 0.0)
        log_p: Tensor = self.linear(real.sum(1) / mask.sum(1, keepdim=True)).log_softmax(1)
        return log_p

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


class LabelsByPadding(SoundLabel):
    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        scores = self.log_p(x, mask).exp()
        return {"label": (scores.argmax(1) + (~mask).any(1).long()) % scores.shape[1], "scores": scores}


class LearnsNothing(SoundLabel):
    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return F.nll_loss(self.log_p(x, mask), torch.zeros_like(label))


class SumsPadding(SoundLabel):
    def log_p(self, x: Tensor, mask: Tensor) -> Tensor:
        log_p: Tensor = self.linear(x.mean(1)).log_softmax(1)
        return log_p


class LossHoldsPadding(SoundLabel):
    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return super().loss(x, mask, label) + 1e-3 * x.square().mean()


class Logits(SoundLabel):
    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        log_p = self.log_p(x, mask)
        return {"label": log_p.argmax(1), "scores": log_p}


class NoScores(SoundLabel):
    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"label": super().decide(x, mask)["label"]}


class ShortInts(SoundLabel):
    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        decision = super().decide(x, mask)
        return {**decision, "label": decision["label"].int()}


class Outside(SoundLabel):
    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        decision = super().decide(x, mask)
        return {**decision, "label": decision["label"] + 3}


class WeighsByLength(SoundLabel):
    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return (mask.sum(1) * F.nll_loss(self.log_p(x, mask), label, reduction="none")).sum() / mask.sum()


class ScoresAsOne(SoundLabel):
    def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return self.log_p(x, mask).amax(1)


class ScoresAsProbability(SoundLabel):
    def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return super().score(x, mask, label).exp()


class ScoresTheBatch(SoundLabel):
    def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return super().score(x, mask, label).sum()


class TakenName(SoundLabel):
    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[str], predicted: Sequence[str]) -> Any:
        return {"accuracy": 1.0}


class NotANumber(SoundLabel):
    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[str], predicted: Sequence[str]) -> Any:
        return {"near": float("nan")}


class FailsOnOne(SoundLabel):
    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[str], predicted: Sequence[str]) -> Any:
        return {"spread": 1 / (len(gold) - 1)}


class Chooses(SoundLabel):
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


class ForgetsItsChoice(Chooses):
    def calibrate(self, evidence: Mapping[str, Tensor]) -> None:
        self.sharpness = 1 - evidence["right"].mean()
        self.told = self.sharpness.item()

    def calibration(self) -> dict[str, Any]:
        return {"sharpness": getattr(self, "told", 1.0)}


class TellsTensors(Chooses):
    def calibration(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness}


class JoinsItsEvidence(Chooses):
    def evidence(self, x: Tensor, mask: Tensor, label: Tensor) -> dict[str, Tensor]:
        return {"right": super().evidence(x, mask, label)["right"].mean(0, keepdim=True)}


class HidesAnew(MaskedLM):
    """Draws in evaluation too, so that no two dev scores are of the same gaps."""

    def corrupt_batch(self, ids: Tensor, mask: Tensor, pieces: Any = None, segments: Any = None) -> dict[str, Tensor]:
        return super().corrupt_batch(ids.roll(int(torch.randint(1, 6, ())), 0), mask, pieces, segments)


class HidesTheSame(MaskedLM):
    def corrupt_batch(self, ids: Tensor, mask: Tensor, pieces: Any = None, segments: Any = None) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return super().corrupt_batch(ids, mask, pieces, segments)


class HidesByThePadding(MaskedLM):
    def corrupt_batch(self, ids: Tensor, mask: Tensor, pieces: Any = None, segments: Any = None) -> dict[str, Tensor]:
        corrupted = super().corrupt_batch(ids, mask, pieces, segments)
        return {**corrupted, "target_ids": corrupted["target_ids"] + ids.sum(1, keepdim=True) % 3}


class GuessesNothing(MaskedLM):
    def loss(
        self,
        x: Tensor,
        mask: Tensor,
        target_ids: Tensor,
        target_mask: Tensor,
        table: Tensor | None = None,
        state: Tensor | None = None,
        follows: Tensor | None = None,
    ) -> Tensor:
        return super().loss(x, mask, torch.full_like(target_ids, 4), target_mask)


SOUND = {"encoder": Sound, "embedding": SoundWords, "head": SoundLabel}
FAULTS: Mapping[str, tuple[str, type, set[str]]] = {
    cls.__name__: (kind, cls, expected)
    for kind, cls, expected in (
        ("head", LabelsByPadding, {BATCHES}),
        ("encoder", Tuples, {ROUND_TRIP}),
        ("encoder", Doubles, {ROUND_TRIP}),
        ("encoder", Swallows, {ROUND_TRIP, UNKNOWN}),
        ("encoder", Misspells, {MEMBERS}),
        ("encoder", Shortens, {SHAPES}),
        ("encoder", Misstates, {SHAPES}),
        ("encoder", InFloat32, {FLOAT64}),
        ("encoder", SpreadOfOne, {SHAPES}),
        ("encoder", Doubled, {SHAPES}),
        ("encoder", AsksForMore, {BUILT}),
        ("encoder", IsNotBuilt, {BUILT}),
        ("encoder", Multiplies, {PADDING, PARITY}),
        ("encoder", Leaks, {PADDING, BATCHES, PARITY}),
        ("encoder", ReadsAllIds, {PADDING, BATCHES, PARITY}),
        ("encoder", MeanOfBatch, {BATCHES, PARITY}),
        ("encoder", FromTheEnd, {BATCHES, PARITY}),
        ("encoder", NumpyInit, {SEEDS}),
        ("encoder", NumpyDropout, {SEEDS}),
        ("encoder", DropsInEvaluation, {SEEDS}),
        ("encoder", Unused, {GRADIENT}),
        ("encoder", Detached, {GRADIENT}),
        ("encoder", NotInTheWeights, {SAVED}),
        ("encoder", Counts, {RESUMED}),
        ("encoder", ReadsFile, {ACCESS}),
        ("encoder", ListsFolder, {ACCESS}),
        ("encoder", WritesFile, {ACCESS}),
        ("encoder", Connects, {ACCESS}),
        ("encoder", Starts, {ACCESS}),
        ("encoder", Unrolled, {EXPORT}),
        ("encoder", MakesNumbers, {EXPORT}),
        ("encoder", Custom, {STANDARD}),
        ("encoder", Rough, {PARITY}),
        ("encoder", Baked, {PARITY}),
        ("embedding", LeakingWords, {PADDING, BATCHES, PARITY}),
        ("embedding", CountsLetters, {BATCHES}),
        ("embedding", ColumnOfTheFirst, {BATCHES, PARITY}),
        ("head", LearnsNothing, {TARGETS}),
        ("head", SumsPadding, {PADDING, BATCHES, PARITY}),
        ("head", LossHoldsPadding, {PADDING}),
        ("head", Logits, {DECISION}),
        ("head", NoScores, {SHAPES}),
        ("head", ShortInts, {DECISION}),
        ("head", Outside, {DECISION}),
        ("head", WeighsByLength, {PARTS}),
        ("head", ScoresAsOne, {SCORE}),
        ("head", ScoresAsProbability, {SCORE}),
        ("head", ScoresTheBatch, {SCORE}),
        ("head", TakenName, {METRICS}),
        ("head", NotANumber, {METRICS}),
        ("head", FailsOnOne, {METRICS}),
        ("head", ForgetsItsChoice, {CHOSEN}),
        ("head", TellsTensors, {CHOSEN}),
        ("head", JoinsItsEvidence, {CHOSEN}),
        ("head", HidesAnew, {PADDING, CORRUPTION}),
        ("head", HidesTheSame, {CORRUPTION}),
        ("head", HidesByThePadding, {PADDING, CORRUPTION}),
        ("head", GuessesNothing, {CORRUPTION}),
    )
}
