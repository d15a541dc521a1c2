"""Heads: x to a loss and a decision, one file per component; here the shared code of heads over texts and tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn import calibration
from seqpipe.nn.attention import AttentionPool, AttentionScore
from seqpipe.nn.crf import Gazetteer
from seqpipe.nn.layers import MASKED_LOGIT, TokenWindows
from seqpipe.plugin import FeatureSize, Ngrams, Probability, UsageError, did_you_mean, read_names, token_counts
from seqpipe.plugin import tagging_schemes as schemes

ClassWeights = dict[str, PositiveFloat] | Literal["balanced"]
SHOWN_LABELS = 10  # labels in a message
Scheme = Literal["BIOES", "IOB2", "BMES", "none"]

Pooling = Literal["mean", "max", "first", "last", "attention", "state"]


class Pool(nn.Module):
    """Pooling of a text's vectors into one vector.

    - `mean`: their mean (Iyyer et al. 2015).
    - `max`: the greatest number of each place (Collobert et al. 2011).
    - `first`, `last`: that vector alone; the last of a forward recurrent encoder has seen the whole text.
    - `attention`: their mean by weights that a learned query gives (Yang et al. 2016).
    - `state`: what the encoder gives for the whole text: a recurrent one its last state (Cho et al. 2014), a
      pretrained one the vector of its first special token (Devlin et al. 2019).

    Args:
        dim: Width of a vector.
        how: The pooling, one of these.
        score: The score function of the learned query and a vector, as in `seqpipe.nn.attention.Attention`.
    """

    def __init__(self, dim: int, how: Pooling, score: AttentionScore):
        super().__init__()
        self.how = how
        self.attention = AttentionPool(dim, score=score) if how == "attention" else None

    def forward(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, T, D), (B, T), (B, D) -> the vector (B, D), and weights (B, T) as `attention` if there are any."""
        if self.how == "state":
            if state is None or state.shape[1] != x.shape[2]:
                problem = "no encoder returns a state" if state is None else "the state has another width than x"
                raise UsageError(f"pool: {problem}; choose mean, max, first, last or attention")
            return state, {}
        if self.attention is not None:
            pooled, weights = self.attention(x, mask)
            return pooled, {"attention": weights}
        if self.how == "first":
            return x[:, 0], {}
        if self.how == "last":
            last = mask.sum(1)[:, None, None] - 1  # (B, 1, 1)
            return x.gather(1, last.expand(-1, -1, x.shape[2]))[:, 0], {}
        if self.how == "max":
            return torch.where(mask[..., None], x, MASKED_LOGIT).amax(1), {}
        return torch.where(mask[..., None], x, 0.0).sum(1) / mask.sum(1, keepdim=True), {}

    def pool_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector of each text so far (B, D) from more tokens (B, T, D), maybe none, and the previous state.

        The state (B, 1, D + 1) is the vector so far, and how many tokens it is of.
        """
        before, read, n = state[:, 0, :-1], state[:, 0, -1:], mask.sum(1, keepdim=True)  # (B, D), (B, 1) twice
        first = torch.arange(mask.shape[1], device=x.device) == 0
        chunk, _ = self(x, mask | ((n == 0) & first))  # for a row without tokens the unused vector of padding
        # A mean or a maximum over a text follows from those of its parts, so a stream needs only the vector so far and
        # a count, for texts of any length.
        joined = {
            "mean": (before * read + chunk * n) / (read + n).clamp(min=1),
            "max": before.maximum(chunk),
            "first": before,
            "last": chunk,
        }[self.how]
        pooled = torch.where(n == 0, before, torch.where(read == 0, chunk, joined))
        return pooled, torch.cat([pooled, read + n], 1)[:, None]


class PooledHead(nn.Module):
    """A head over the pooled text: a linear layer, after a layer with ReLU if it has hidden units.

    Args:
        dim: Width of a token's vector.
        outputs: Width of the output; None: the output is the pooled vector.
        pool: See `Pool`.
        score: See `Pool`.
        hidden: Units of the layer between the pooled vector and the output; None: no such layer.
        dropout: Dropout probability of the pooled vector and of the hidden layer.
    """

    def __init__(
        self, dim: int, outputs: int | None, *, pool: Pooling, score: AttentionScore, hidden: int | None, dropout: float
    ):
        super().__init__()
        if score != "additive" and pool != "attention":
            raise UsageError(f"score: pool: {pool} has no attention weights; set pool: attention, or delete score")
        self.state_shape = 1, dim + 1
        self.pool, self.dropout = Pool(dim, pool, score), nn.Dropout(dropout)
        self.hidden = nn.Linear(dim, hidden) if hidden else None
        self.output = nn.Linear(hidden or dim, outputs) if outputs else nn.Identity()

    @staticmethod
    def reads_token(options: Mapping[str, Any]) -> str:
        return options["pool"] if options["pool"] in ("first", "last") else ""

    @staticmethod
    def explains(options: Mapping[str, Any]) -> dict[str, str]:
        return {"attention": "words"} if options.get("pool") == "attention" else {}

    @staticmethod
    def streaming_problem(options: Mapping[str, Any]) -> str:
        pool = options["pool"]
        if pool == "state":
            return "a state is of the whole text; set pool: last, which is the same of an encoder that reads forward"
        return "it weighs all tokens of a text at once; set pool: last, mean or max" if pool == "attention" else ""

    @abstractmethod
    def decide(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Return the decision about each text from x (B, T, D), mask (B, T) and the encoder's state (B, D)."""

    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the decision about each text so far from more tokens and the previous state: see `Pool.pool_chunk`."""
        pooled, after = self.pool.pool_chunk(x, mask, state)
        alone = self.decide(pooled[:, None], torch.ones_like(mask[:, :1]))  # every pooling of one vector is that vector
        return {**alone, "state": after}

    def read(
        self, x: Tensor, mask: Tensor, state: Tensor | None, learning: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, T, D), (B, T), (B, D) -> the output (B, outputs), and attention weights, if any."""
        pooled, attention = self.pool(x, mask, state)
        if self.hidden is not None:
            pooled = self.hidden(self.dropout(pooled) if learning else pooled).relu()
        return self.output(self.dropout(pooled) if learning else pooled), attention


def label_weights(labels: Sequence[str], counts: Sequence[int] | None, weights: ClassWeights | None) -> Tensor:
    """Return the weight of each class, (L,), by its label; UsageError for a label that no class has."""
    option = "head.class_weights"
    if weights == "balanced":
        if counts is None:
            raise UsageError(f"{option}: the counts of the labels are unknown here; set numbers")
        even = sum(counts) / max(1, sum(count > 0 for count in counts))
        return torch.tensor([even / count if count else 1.0 for count in counts])
    for label in weights or {}:
        if label not in labels:
            known = [*dict.fromkeys(labels)]
            fix = f"name labels of the training data{did_you_mean(label, known)} ({', '.join(known[:SHOWN_LABELS])})"
            raise UsageError(f"{option}: the training data has no label {label!r}; {fix}")
    return torch.tensor([(weights or {}).get(label, 1.0) for label in labels])


class TaggingHead(nn.Module):
    """A head that gives each token a tag: linear emissions, weights of the labels, and a temperature.

    Args:
        scheme: Tagging scheme of the spans; BMES where each token is in a span (word segmentation); none for plain
            tags, such as parts of speech.
        dropout: Dropout probability of x.
        class_weights: Weight of each label of spans, and of O, such as {rare: 5.0}, or of each plain tag; by default 1;
            or balanced: N / (number of labels * number of spans with the label), and 1 for O.
        calibrate: Whether scores are calibrated by a temperature that is fitted on dev data.
        gazetteer: A file with a name, a tab and a label in each line; further labels follow after tabs. An entity of a
            label in the file is then always one of its names. With the scheme none, a word and its tags: a word in the
            file then always has one of them. Case is ignored. Training and `calibrate` do not use the file.
    """

    stops: Tensor
    span_continues: Tensor
    weights: Tensor
    temperature: Tensor
    lexicon: Tensor | None
    rows: ClassVar[dict[str, Any]] = {
        "emissions.weight": ("labels",),
        "emissions.bias": ("labels",),
        "temperature": None,
    }

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        sizes: Mapping[str, FeatureSize] | None = None,
        *,
        scheme: Scheme = "BIOES",
        dropout: Probability = 0.0,
        class_weights: ClassWeights | None = None,
        calibrate: bool = False,
        gazetteer: Path | None = None,
    ):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.emissions = nn.Linear(dim, len(labels))
        self.spans, self.choose_temperature = scheme != "none", calibrate
        span_continues = torch.from_numpy(schemes.continues(labels)) & self.spans
        names = [schemes.parts(tag)[1] or "O" for tag in labels] if self.spans else labels
        weights = label_weights(names, token_counts(labels), class_weights)
        self.register_buffer("stops", 1.0 - span_continues.float(), persistent=False)  # (L, L) by the column
        self.register_buffer("span_continues", F.pad(span_continues, (0, 1, 0, 1)), persistent=False)  # (P, P)
        self.register_buffer("weights", weights, persistent=False)  # (L,)
        self.register_buffer("temperature", torch.ones(()))
        self.gazetteer, lexicon = None, None
        if gazetteer is not None and sizes is not None:
            size, listed = sizes["gazetteer"], sorted({tag for tags in read_names(gazetteer).values() for tag in tags})
            known = [name for name in names if name != "O" or not self.spans]
            if unknown := [f"{label!r}{did_you_mean(label, known)}" for label in listed if label not in known]:
                raise UsageError(f"gazetteer: the training data has no label {unknown[0]}; remove it from {gazetteer}")
            if scheme == "BMES":
                raise UsageError("gazetteer: in BMES every word is in a span, listed or not; use the scheme BIOES")
            has_label = torch.tensor(size.counts).view(len(listed), size).T > 0  # (V, X) by the number of a name
            has_label[0] = not self.spans  # 0 is the number of what is not listed
            if self.spans:
                self.gazetteer = Gazetteer(labels, listed, has_label, size.words, self.span_continues)
            else:
                lexicon = torch.zeros(size, len(labels)).index_fill(0, torch.tensor(0), 1.0)
                lexicon[:, [labels.index(tag) for tag in listed]] = has_label.float()
        self.register_buffer("lexicon", lexicon, persistent=False)  # (V, L) the tags of a listed word

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Ngrams]:
        path = options.get("gazetteer")
        return {} if path is None else {"gazetteer": Ngrams(1, None, names_file=Path(path))}

    @staticmethod
    def answer(options: Mapping[str, Any]) -> str:
        return "tags" if options.get("scheme") == "none" else "spans"

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        return {"scheme": options["scheme"]}

    @staticmethod
    def needs_dev(options: Mapping[str, Any]) -> str:
        return "calibrate" if options.get("calibrate") else ""

    def logits(
        self,
        x: Tensor,
        mask: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
        gazetteer: Tensor | None = None,
    ) -> Tensor:  # (B, T, L)
        """Return the emissions at the temperature, lowered for tags that windows or a list of words do not permit."""
        logits = torch.div(self.emissions(x), self.temperature)
        if self.spans and other_x is not None and window is not None and other_window is not None:
            others, masks = self.emissions(other_x) / self.temperature, torch.cat([mask, mask, mask])
            best = partial(self.best_tags, mask=masks)
            logits = TokenWindows(window, other_window).limited(logits, others, self.span_continues, best)
        if self.lexicon is not None and gazetteer is not None:
            logits = torch.where(F.embedding(gazetteer[:, :, 0], self.lexicon) > 0, logits, MASKED_LOGIT)
        return logits

    def loss_count(self, mask: Tensor) -> Tensor:
        return mask.sum()

    @abstractmethod
    def best_tags(self, logits: Tensor, mask: Tensor) -> Tensor:  # (B, T, L), (B, T) -> (B, T)
        """Return the best tags, and L in the padding."""

    @abstractmethod
    def evidence(self, x: Tensor, mask: Tensor, tags: Tensor) -> dict[str, Tensor]:
        """Return `losses` (B, G): -log P(tags) at each temperature of `calibration.GRID`."""

    def calibrate(self, evidence: Mapping[str, Tensor]) -> None:
        """Choose the temperature."""
        if self.choose_temperature:
            self.temperature.fill_(calibration.grid_temperature(evidence["losses"]))

    def calibration(self) -> dict[str, Any]:
        """Return the temperature chosen on dev."""
        return {"temperature": self.temperature.item()} if self.choose_temperature else {}
