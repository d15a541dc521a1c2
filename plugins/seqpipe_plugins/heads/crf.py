"""Sequence labelling by a conditional random field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import safetensors.torch
import torch
import torchcrf
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from seqpipe.nn import calibration, crf
from seqpipe.nn.layers import LOG_ZERO, MASKED_LOGIT
from seqpipe.plugin import FeatureSize, Probability, Size, UsageError, tagging_schemes
from seqpipe_plugins.heads import SHOWN_LABELS, ClassWeights, Scheme, TaggingHead


class PytorchCRF(TypedDict):
    """A trained `torchcrf.CRF`: its saved parameters, its tags in the order of their numbers, and their scheme."""

    crf: Annotated[Path, Field(description="Its parameters, `crf.state_dict()`, as safetensors.")]
    labels: Annotated[list[str], Field(description="Its tags, in the order of their numbers.")]
    scheme: Annotated[Literal["BIO", Scheme], Field(description="The scheme of its tags; BIO is IOB2.")]


class CRF(TaggingHead):
    """A linear-chain conditional random field over linear emissions (Lafferty et al. 2001; Lample et al. 2016).

    The parameters are those of pytorch-crf's `torchcrf.CRF`, which also initialises them. Transitions that the scheme
    forbids, such as I-X after O, have probability 0 in training and decoding.

    Weights of labels adjust the logits (Menon et al. 2021): in training, log w is subtracted from the emission of each
    first tag of a span, of O, and of plain tags, so that the emissions learn to be greater by log w. The answers are
    those of a field that saw such spans w times as often, whatever their length.

    After each epoch, dev data determines the temperature T, by which emissions and transitions are divided, with the
    maximum likelihood of the sequences (Guo et al. 2017); the best sequence stays the same.

    If a text is read in windows, a span may cross the boundary of two windows only if both windows predict it; the
    answer is the best sequence of tags under this constraint, and probabilities are conditioned on it.

    Args:
        constraints: Whether transitions that the scheme forbids are impossible; otherwise they are only improbable.
        init: The folder of a trained run that its weights are initialised from; or a field trained with pytorch-crf:
            its parameters as safetensors, its tags in the order of their numbers, and their scheme, where BIO is IOB2;
            null: random weights.
    """

    forbidden: Tensor
    adjustment: Tensor
    rows: ClassVar = TaggingHead.rows | {
        "start_transitions": ("labels",),
        "end_transitions": ("labels",),
        "transitions": ("labels", "labels"),
    }

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        sizes: Mapping[str, FeatureSize] | None = None,
        *,
        scheme: Scheme = "BIOES",
        dropout: Probability = 0.0,
        constraints: bool = True,
        class_weights: ClassWeights | None = None,
        calibrate: bool = False,
        gazetteer: Path | None = None,
        init: PytorchCRF | None = None,
    ):
        shared: Any = {"scheme": scheme, "dropout": dropout, "class_weights": class_weights, "calibrate": calibrate}
        super().__init__(dim, labels, sizes, gazetteer=gazetteer, **shared)
        self.labels, self.scheme = labels, scheme
        field = torchcrf.CRF(len(labels))
        self.start_transitions, self.end_transitions = field.start_transitions, field.end_transitions
        self.transitions = field.transitions  # from row to column
        # Forbidden transitions keep their parameter, so that weights match those of pytorch-crf, plus MASKED_LOGIT: no
        # path with one wins, and its share of the partition function is exactly 0 in float32.
        is_free = not (constraints and self.spans)
        legal = [torch.from_numpy(rule) | is_free for rule in tagging_schemes.allowed(labels)]
        forbidden = crf.chain(*(torch.where(rule, 0.0, MASKED_LOGIT) for rule in legal))
        self.register_buffer("forbidden", forbidden, persistent=False)  # (P, P)
        adjustment = self.weights.log() * self.stops.amin(0)  # 0 for the tags that continue a span
        self.register_buffer("adjustment", adjustment, persistent=False)  # (L,)

    def load_init(self, init: PytorchCRF) -> str:
        """Copy the parameters of a field trained with pytorch-crf, by the names of its labels; return its file's name.

        Raises UsageError for a file or labels that do not fit, and if the scheme forbids what the field permits.
        """
        path, labels, field = init["crf"], init["labels"], torchcrf.CRF(len(self.labels)).to(self.transitions.dtype)
        if init["scheme"] not in (self.scheme, "BIO" if self.scheme == "IOB2" else ""):
            raise UsageError(f"init.scheme: it is {init['scheme']}, but the head's is {self.scheme}; both must agree")
        ours, theirs, repeated = {*self.labels}, {*labels}, {tag for tag in labels if labels.count(tag) > 1}
        wrong = {"missing": ours - theirs, "unknown": theirs - ours, "repeated": repeated}
        if listed := [f"{what}: {', '.join(sorted(tags)[:SHOWN_LABELS])}" for what, tags in wrong.items() if tags]:
            raise UsageError(f"init.labels: list the training data's tags in the field's order ({'; '.join(listed)})")
        fix = "save it by safetensors.torch.save_file(crf.state_dict(), FILE)"
        try:
            state = safetensors.torch.load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise UsageError(f"init.crf: {path}: no file of safetensors ({error}); {fix}") from error
        expected = {name: tuple(tensor.shape) for name, tensor in field.state_dict().items()}
        if lacking := expected.keys() - state.keys():
            raise UsageError(f"init.crf: {path} has no {min(lacking)}, but {', '.join(sorted(state))}; {fix}")
        if other := [name for name in expected if expected[name] != tuple(state[name].shape)]:
            shapes = f"{other[0]} of shape {tuple(state[other[0]].shape)}, not {expected[other[0]]}"
            raise UsageError(f"init.crf: {path} has {shapes} of the {len(labels)} labels; list the labels of its field")
        field.load_state_dict({name: state[name] for name in expected})
        order = [labels.index(tag) for tag in self.labels]
        rows = {n: row[order] if row.dim() == 1 else row[order][:, order] for n, row in field.state_dict().items()}
        if not all(row.isfinite().all() for row in rows.values()):
            raise UsageError(f"init.crf: {path} has numbers that are not finite; to forbid a transition, use -10000")
        self.load_state_dict(rows, strict=False)
        steps = crf.chain(self.start_transitions, self.end_transitions, self.transitions)
        if lost := ((self.forbidden < 0) & (steps > MASKED_LOGIT / 2)).nonzero().tolist():
            move = " to ".join([*self.labels, "the boundary"][i] for i in lost[0])
            raise UsageError(f"init: {self.scheme} forbids {move}, which the field permits; write constraints: false")
        return path.name

    @staticmethod
    def streaming_problem(options: Mapping[str, Any]) -> str:
        return "Viterbi decides on the whole text, so that a later word may change an earlier tag; use the head tags"

    def loss(self, x: Tensor, mask: Tensor, tags: Tensor) -> Tensor:  # (B, T, D), (B, T), (B, T) -> ()
        """Return the negative log-likelihood per token (sentences count by length), comparable with `tags`."""
        emissions = self.emissions(self.dropout(x)) - self.adjustment
        log_p = crf.PathLogProbability.apply(crf.bounded(emissions, mask), self._chain(), self._path(mask, tags))
        return -log_p.sum() / mask.sum()

    def distribution(self, x: Tensor, mask: Tensor, *, temperature: float) -> Tensor:  # -> (N, L)
        """Return the log-probability of each tag of a token, summed over all sequences (Wang et al. 2020)."""
        emissions = crf.bounded(self.emissions(self.dropout(x)) / temperature, mask)
        log_p = crf.tag_log_probabilities(emissions, self._chain(temperature))[:, :-1]  # (T, L, B)
        return log_p.permute(2, 0, 1)[mask]

    def evidence(self, x: Tensor, mask: Tensor, tags: Tensor) -> dict[str, Tensor]:
        emissions, temperatures = crf.bounded(self.emissions(x), mask), x.new_tensor(calibration.GRID)
        return {"losses": -crf.log_likelihoods(emissions, self._chain(), self._path(mask, tags), temperatures)}

    def decide(
        self,
        x: Tensor,
        mask: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
        gazetteer: Tensor | None = None,
        *,
        n_best: Size = 1,
    ) -> dict[str, Tensor]:
        """Return the best sequence of tags (Viterbi), their probabilities, and the n best sequences.

        Args:
            n_best: Number of alternative answers, the most probable first.
        """
        logits, chain = self.logits(x, mask, other_x, window, other_window, gazetteer), self._chain(self.temperature)
        if self.gazetteer is None or gazetteer is None:
            decision = crf.decode(crf.bounded(logits, mask), chain, self.span_continues, n_best)
        else:
            decision = self.gazetteer.decode(logits, gazetteer, mask, chain, n_best)
        real = mask.transpose(0, 1)  # (T, B)
        return {
            **decision.outputs(mask),
            "paths": torch.where(real[..., None] & (decision.log_p > LOG_ZERO), decision.paths, 0).permute(1, 2, 0),
            "path_scores": decision.log_p,
        }

    def score(
        self,
        x: Tensor,
        mask: Tensor,
        tags: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
    ) -> Tensor:  # (B,)
        """Return the log-probability of the tags (B, T) without a gazetteer, which changes no difference of two."""
        emissions = crf.bounded(self.logits(x, mask, other_x, window, other_window), mask)
        return crf.PathLogProbability.apply(emissions, self._chain(self.temperature), self._path(mask, tags))

    def _path(self, mask: Tensor, tags: Tensor) -> Tensor:  # -> (T, B)
        # The tag after the labels is the boundary: padding is a path along it without cost, so that texts of different
        # lengths share one recursion.
        return torch.where(mask, tags, len(self.start_transitions)).transpose(0, 1)

    def best_tags(self, logits: Tensor, mask: Tensor) -> Tensor:
        return crf.best_path(crf.bounded(logits, mask), self._chain(self.temperature)).transpose(0, 1)

    def _chain(self, temperature: Tensor | float = 1.0) -> Tensor:  # (P, P)
        # What is forbidden stays so at every temperature.
        steps = crf.chain(self.start_transitions, self.end_transitions, self.transitions)
        return steps / temperature + self.forbidden
