"""Text classification, with one label or any number of labels per text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn import calibration
from seqpipe.nn.attention import AttentionScore
from seqpipe.nn.layers import MASKED_LOGIT
from seqpipe.plugin import DataError, Probability, UsageError, token_counts
from seqpipe_plugins.heads import ClassWeights, PooledHead, Pooling, label_weights
from seqpipe_plugins.heads.vector import contrastive_loss

Threshold = Annotated[float, Field(gt=0, lt=1)] | Literal["dev", "per_label"]
FEW = 10  # dev texts with a label, at least, for a threshold of its own


class LabelHead(PooledHead):
    """Text classification: the tokens are pooled into one vector h, followed by logistic regression.

    Single label: p = softmax(W h + b), and the answer is the most probable label; or, of two labels, `positive` if its
    probability reaches the threshold. Multi-label (`multi`): p = sigmoid(W h + b), and the answer is all labels whose
    probability reaches the threshold. With `hidden`, h is replaced by relu(V h + c).

    Out-of-scope detection (Larson et al. 2019): the softmax is over all labels except `out_of_scope`; if the
    probability p of the most probable label is below the threshold, the answer is `out_of_scope`, with the score 1 - p.
    Training texts with that label are used only with `exposure` (outlier exposure, Hendrycks et al. 2019: their p
    should be uniform). On dev they are used to choose the threshold.

    With few labels (`contrastive`), the stages before the head learn from pairs of texts instead (SetFit, Tunstall et
    al. 2022): each text of a batch stands beside another one of its label, drawn anew in each epoch, and h is trained
    by the supervised contrastive loss of the head `vector` (Khosla et al. 2020). The linear layer learns from h at the
    same time, without a gradient to h.

    After each epoch, dev data determines the temperature T in softmax(z / T) or sigmoid(z / T) with the maximum
    likelihood (Guo et al. 2017), then the threshold: that with the best accuracy for `out_of_scope`, with the best F1
    for `positive`, and for `multi` one threshold for all labels with the best micro F1 (Lipton et al. 2014), or one
    `per_label` with the best F1 of that label, hence the best macro F1; a label of fewer than 10 dev texts, to which a
    threshold would overfit (Fan and Lin 2007), gets the threshold for all.

    Args:
        multi: Multi-label classification: a text has any number of labels; the record's field is then `labels`, a list.
        pool: Pooling of the token vectors: their mean or maximum, the first or the last, their mean weighted by
            attention; or `state`, the vector that the encoder returns for the whole text.
        score: Attention score of a token (see `seqpipe.nn.attention.Attention`).
        hidden: Number of units of a hidden layer between the pooled vector and the output; null: no hidden layer.
        dropout: Dropout probability of the pooled vector and of the hidden layer.
        label_smoothing: The share of the target probability that is spread over all labels (Szegedy et al. 2016).
        class_weights: Weight of each label in the loss, such as {rare: 5.0}, by default 1; or balanced: N / (number of
            labels * number of texts with the label).
        contrastive: Temperature τ of the contrastive loss; a lower value gives hard negatives more weight; null: the
            stages before the head learn from the labels.
        threshold: Minimum probability of `positive` and of the labels of `multi`; below it the answer is
            `out_of_scope`; dev: chosen on dev data; per_label: one for each label of `multi`, chosen on dev data;
            null: 0.5 with `multi`.
        positive: The label, of two, that the threshold applies to.
        out_of_scope: The label of out-of-scope texts.
        exposure: Weight of an out-of-scope training text in the loss.
        calibrate: Whether scores are calibrated by a temperature that is fitted on dev data.
    """

    weights: Tensor
    allowed: Tensor
    temperature: Tensor
    threshold: Tensor
    errors: Tensor
    rows: ClassVar = {
        "output.weight": ("labels",),
        "output.bias": ("labels",),
        "temperature": None,  # as in the options, or chosen on dev
        "threshold": None,
        "errors": None,
    }

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        *,
        multi: bool = False,
        pool: Pooling = "max",
        score: AttentionScore = "additive",
        hidden: PositiveInt | None = None,
        dropout: Probability = 0.0,
        label_smoothing: Probability = 0.0,
        class_weights: ClassWeights | None = None,
        contrastive: PositiveFloat | None = None,
        threshold: Threshold | None = None,
        positive: str | None = None,
        out_of_scope: str | None = None,
        exposure: NonNegativeFloat = 0.0,
        calibrate: bool = False,
    ):
        super().__init__(dim, len(labels), pool=pool, score=score, hidden=hidden, dropout=dropout)
        chosen = {
            "multi": multi,
            "label_smoothing": label_smoothing,
            "threshold": threshold,
            "contrastive": contrastive,
        }
        _refuse(chosen | {"positive": positive, "out_of_scope": out_of_scope, "exposure": exposure}, labels)
        self.multi, self.label_smoothing, self.contrastive = multi, label_smoothing, contrastive
        self.choose_threshold, self.choose_temperature = isinstance(threshold, str), calibrate
        self.threshold_labels = tuple(labels) if threshold == "per_label" else ()
        self.positive = None if positive is None else labels.index(positive)
        self.outside = None if out_of_scope is None else labels.index(out_of_scope)
        allowed = torch.tensor([label != out_of_scope for label in labels])
        if isinstance(class_weights, dict) and out_of_scope in class_weights:
            raise UsageError(f"label.class_weights: {out_of_scope!r} is out of scope; its weight is `exposure`")
        self.uniform_loss = math.log(2 ** len(labels) if multi else allowed.sum())
        counts = token_counts(labels)
        in_scope = counts and [0 if label == out_of_scope else n for label, n in zip(labels, counts, strict=True)]
        weights = label_weights(labels, in_scope, class_weights)
        self.register_buffer("allowed", allowed, persistent=False)  # (L,) the labels of the softmax
        self.register_buffer("weights", torch.where(allowed, weights, exposure), persistent=False)  # (L,)
        self.register_buffer("temperature", torch.ones(()))
        shape = (len(labels),) if self.threshold_labels else ()
        self.register_buffer("threshold", torch.full(shape, threshold if isinstance(threshold, float) else 0.5))
        self.register_buffer("errors", torch.zeros(2))  # of calibration on dev, before and after

    @staticmethod
    def answer(options: Mapping[str, Any]) -> str:
        return "labels" if options.get("multi") else "label"

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        return {} if options["multi"] else {"out_of_scope": options["out_of_scope"]}

    @staticmethod
    def needs_dev(options: Mapping[str, Any]) -> str:
        chooses = isinstance(options.get("threshold"), str)
        return "threshold" if chooses else "calibrate" if options.get("calibrate") else ""

    @staticmethod
    def batch_dependent(options: Mapping[str, Any]) -> bool:
        return options["contrastive"] is not None

    @staticmethod
    def label_pairs(options: Mapping[str, Any]) -> bool:
        return options["contrastive"] is not None

    def loss(self, x: Tensor, mask: Tensor, label: Tensor, state: Tensor | None = None) -> Tensor:  # -> ()
        """Return the mean negative log-likelihood of a text, weighted by its label: weight 2 counts as two texts.

        x (B, T, D), mask (B, T), label (B,), state (B, D). With `multi` label is (B, L): it is the sum over all labels,
        and the weights count where a text has the label. In training with `contrastive` the contrastive loss is added,
        and no other gradient reaches x.
        """
        contrast: Tensor | float = 0.0
        if self.contrastive is not None:
            h, _ = self.pool(x, mask, state)  # (B, D)
            if self.training:
                contrast = contrastive_loss(h, label, self.contrastive)
            state = h.detach()
            x, mask = state[:, None], torch.ones_like(mask[:, :1])  # every pooling of one vector is that vector
        logits, _ = self._logits(x, mask, state, learning=True)
        if self.multi:
            bce = F.binary_cross_entropy_with_logits(logits, label, reduction="none", pos_weight=self.weights)
            return bce.sum(1).mean()
        log_p = logits.log_softmax(1)
        right = -log_p.gather(1, label[:, None])[:, 0]  # (B,)
        even = -torch.where(self.allowed, log_p, 0.0).sum(1) / self.allowed.sum()
        share = torch.where(self.allowed[label], self.label_smoothing, 1.0)  # an out-of-scope text has no right label
        error = (1 - share) * right + share * even
        return (self.weights[label] * error).mean() + contrast

    def distribution(self, x: Tensor, mask: Tensor, state: Tensor | None = None, *, temperature: float) -> Tensor:
        """Return the log-probability of each label (B, L); with `multi` those of having it and not (B, 2, L)."""
        z = self._logits(x, mask, state, learning=True)[0] / temperature
        return torch.stack([F.logsigmoid(z), F.logsigmoid(-z)], 1) if self.multi else z.log_softmax(1)

    def decide(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Return the label (B,) or the labels (B, L), and the probability of each (B, L)."""
        logits, attention = self._logits(x, mask, state)
        if self.multi:
            p = (logits / self.temperature).sigmoid()
            return {"labels": (p >= self.threshold).long(), "scores": p, **attention}
        p = (logits / self.temperature).softmax(1)
        best, label = p.max(1)  # (B,)
        if self.positive is not None:
            label = torch.where(p[:, self.positive] >= self.threshold, self.positive, 1 - self.positive)
        if self.outside is not None:
            refused = best < self.threshold
            label = torch.where(refused, self.outside, label)
            p = torch.where(refused[:, None], torch.where(self.allowed, p * best[:, None], 1 - best[:, None]), p)
        return {"label": label, "scores": p, **attention}

    def margin(
        self,
        x: Tensor,
        mask: Tensor,
        state: Tensor | None = None,
        label: Tensor | None = None,
        other_label: Tensor | None = None,
        labels: Tensor | None = None,
        other_labels: Tensor | None = None,
    ) -> Tensor:  # -> (B,)
        """Return the margin between two answers: in probability for a threshold, in log-probability for a label."""
        z = self._logits(x, mask, state)[0] / self.temperature
        if labels is not None and other_labels is not None:
            return torch.where(labels != other_labels, (z.sigmoid() - self.threshold).abs(), 0.0).amax(1)
        assert label is not None
        assert other_label is not None
        p, rows = z.softmax(1), torch.arange(len(z), device=z.device)
        if self.positive is not None:
            return (p[:, self.positive] - self.threshold).abs()
        gap = (z[rows, label] - z[rows, other_label]).abs()
        if self.outside is None:
            return gap
        refused = (label == self.outside) | (other_label == self.outside)
        return torch.where(refused, (p.amax(1) - self.threshold).abs(), gap)

    def evidence(self, x: Tensor, mask: Tensor, label: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Return the rows for calibration: logits (B, L), and the gold labels."""
        return {"logits": self._logits(x, mask, state)[0], "label": label}

    def calibrate(self, evidence: Mapping[str, Tensor]) -> None:
        """Choose the temperature, then the threshold, if the options ask for it."""
        z, right = (evidence[name].detach().cpu() for name in ("logits", "label"))
        known = torch.ones(len(z), dtype=torch.bool) if self.multi else self.allowed.cpu()[right]
        if self.choose_temperature:
            fit = calibration.sigmoid_temperature if self.multi else calibration.softmax_temperature
            before = self._calibration_error(z[known], right[known])
            self.temperature.fill_(fit(z[known], right[known]))
            self.errors.copy_(torch.tensor([before, self._calibration_error(z[known], right[known])]))
        if self.choose_threshold:
            self.threshold.copy_(self._best_threshold(z / self.temperature.cpu(), right))

    def calibration(self) -> dict[str, Any]:
        """Return the temperature and the threshold chosen on dev."""
        chosen: dict[str, Any] = {}
        if self.choose_temperature:
            before, after = self.errors.tolist()
            chosen = {"temperature": self.temperature.item(), "ece_before": before, "ece_after": after}
        if self.threshold_labels:
            return chosen | {"threshold": dict(zip(self.threshold_labels, self.threshold.tolist(), strict=True))}
        return chosen | ({"threshold": self.threshold.item()} if self.choose_threshold else {})

    def _logits(
        self, x: Tensor, mask: Tensor, state: Tensor | None, learning: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:  # (B, L)
        z, attention = self.read(x, mask, state, learning)
        return torch.where(self.allowed, z, MASKED_LOGIT), attention

    def _calibration_error(self, z: Tensor, right: Tensor) -> float:
        z = z / self.temperature.cpu()
        if self.multi:
            return calibration.calibration_error(z.sigmoid().flatten(), right.flatten() > 0)
        best, label = z.softmax(1).max(1)
        return calibration.calibration_error(best, label == right)

    def _best_threshold(self, z: Tensor, right: Tensor) -> Tensor:  # () or (L,)
        if self.outside is not None:
            outside = right == self.outside
            if not outside.any():
                fix = "add some, or set a number"
                raise DataError(f"label.threshold: no dev text has the label of out_of_scope to choose it by; {fix}")
            best, label = z.softmax(1).max(1)
            return torch.tensor(calibration.refusal_threshold(best, label == right, outside))
        if self.positive is not None:
            chosen = calibration.f1_threshold(z.softmax(1)[:, self.positive], right == self.positive)
        else:
            chosen = calibration.f1_threshold(z.sigmoid().flatten(), right.flatten() > 0)
        if chosen is None:
            raise DataError("label.threshold: no dev text has a label to choose it by; add some, or set a number")
        if not self.threshold_labels:
            return torch.tensor(chosen)
        columns = zip(z.sigmoid().unbind(1), (right > 0).unbind(1), strict=True)
        return torch.tensor([calibration.f1_threshold(p, has) if has.sum() >= FEW else chosen for p, has in columns])


def _refuse(options: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Raise UsageError for options that exclude each other or do not match these labels."""
    set_options = {name: value for name, value in options.items() if value not in (None, 0.0, False)}
    outside, positive = options["out_of_scope"], options["positive"]
    if options["threshold"] == "per_label" and not options["multi"]:
        raise UsageError("label.threshold: per_label is for any number of labels per text; set multi, or write dev")
    if options["multi"]:
        for name in ("label_smoothing", "positive", "out_of_scope", "contrastive"):
            if name in set_options:
                raise UsageError(f"label.{name}: it is for one label per text; delete it or multi")
    elif "threshold" in set_options and positive is None and outside is None:
        fix = "name its label (positive, of two labels, or out_of_scope), or set multi"
        raise UsageError(f"label.threshold: the answer is the likeliest of several labels; {fix}")
    if positive is not None and outside is not None:
        raise UsageError("label.positive: out_of_scope has the threshold; delete one of the two")
    for name in ("positive", "out_of_scope"):
        if name in set_options and "threshold" not in set_options:
            raise UsageError(f"label.{name}: it needs a threshold; add one, such as threshold: dev")
    if "contrastive" in set_options and outside is not None:
        raise UsageError("label.contrastive: texts of out_of_scope are not alike; delete one of the two")
    if "exposure" in set_options and outside is None:
        raise UsageError("label.exposure: it is for texts of out_of_scope; set out_of_scope, or delete it")
    if positive is not None and (len(labels) != 2 or positive not in labels):
        listed = f"{', '.join(map(repr, labels[:5]))}{', …' if len(labels) > 5 else ''}"
        raise UsageError(f"label.positive: it must be one of two labels; the training data has {listed}")
    if list(labels) == [outside]:
        raise UsageError(f"label.out_of_scope: every training text has the label {outside!r}; add others")
