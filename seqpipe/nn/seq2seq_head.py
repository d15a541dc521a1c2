"""Base class of heads that generate text token by token: loss, search and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.answers.metrics.text import BleuTokenizer as BleuTokenizer
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID, RealRows, logit_mask
from seqpipe.nn.loops import State
from seqpipe.nn.multi_source_attention import StageOutputs
from seqpipe.nn.search import RowsDecoder, SearchOptions, beam_search

__all__ = ["DecoderSource", "Seq2SeqHead", "TargetVocabulary", "mask_before_end", "shift_right"]


class DecoderSource(NamedTuple):
    """The constant input of every step: the projected sources and the mask of their positions.

    All tensors of `parts`, in nested tuples, have B rows, except parameters: search reads the rows that are not done.
    """

    parts: Any
    mask: Tensor | None  # (B, S), concatenated for several sources; None: no attention
    shared: Any = None  # tensors for all rows, such as a table of token vectors


class Seq2SeqHead(nn.Module, ABC):
    """A head that generates text token by token.

    A subclass implements the model: `read`, `start`, `step` and `teacher_forced`. Loss, search and scores are here.

    Args:
        target_vocabulary: The target tokens.
        label_smoothing: The share of a token's probability that is spread over all others (Szegedy et al. 2016).
        equal_length: Whether a text has as many tokens as its first source, regardless of `max_length` and
            `min_length`.
    """

    answer: ClassVar[Any] = "text"  # or a static method of the options
    logit_mask: Tensor  # (V,)

    def __init__(self, target_vocabulary: Sequence[str], *, label_smoothing: float = 0.0, equal_length: bool = False):
        super().__init__()
        self.label_smoothing, self.equal_length = label_smoothing, equal_length
        self.register_buffer("logit_mask", logit_mask(len(target_vocabulary), [PAD_ID, BOS_ID]), persistent=False)

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        return {"equal_length": options.get("equal_length", False), "bleu_tokenize": options.get("bleu_tokenize")}

    @staticmethod
    def inactive_options(options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the inactive decode options: those of lengths and texts, if the source determines the length."""
        return ("max_length", "min_length", "allowed") if options.get("equal_length") else ()

    @abstractmethod
    def read(self, sources: Sequence[StageOutputs]) -> DecoderSource:
        """Project the sources, once for all steps."""

    @abstractmethod
    def start(self, source: DecoderSource, sources: Sequence[StageOutputs], max_length: int) -> State:
        """Return the state before the first of at most `max_length` tokens, B rows."""

    @abstractmethod
    def step(self, source: DecoderSource, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        """Run `seqpipe.nn.search.Decoder.step`, but return logits (R, V) instead of log-probabilities if convenient."""

    @abstractmethod
    def teacher_forced(self, source: DecoderSource, ids: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        """Return each token's logits (B, N, V) and attention (B, N, S), given the tokens (B, N) before it."""

    def loss(self, sources: Sequence[StageOutputs], target_ids: Tensor, target_mask: Tensor) -> Tensor:
        """Return the mean cross-entropy () of a target token of (B, N), given those before it."""
        source = self.read(sources)
        logits, attention = self.teacher_forced(source, target_ids, self.start(source, sources, target_ids.shape[1]))
        rows = RealRows(target_mask)
        real_logits, ids = rows.of(logits), rows.ids(target_ids)  # (M, V), (M,)
        if self.label_smoothing and self.training:
            # Label smoothing (Szegedy et al. 2016) spreads its share evenly over the possible tokens: PyTorch's own
            # would give some of it to [PAD] and [BOS], whose log-probabilities are LOG_ZERO.
            log_p, real = real_logits.log_softmax(1), self.logit_mask == 0
            even = torch.where(real, log_p, 0.0).sum(1) / real.sum()
            gold = log_p.gather(1, ids.clamp(min=0)[:, None])[:, 0]
            missed = -rows.mean((1 - self.label_smoothing) * gold + self.label_smoothing * even)
        else:
            missed = F.cross_entropy(real_logits, ids)
        return missed + self.auxiliary_loss(logits, attention, target_ids, target_mask)

    def loss_count(self, target_mask: Tensor) -> Tensor:
        return target_mask.sum()

    def log_p(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities (…, V) of a search from the logits of `step` or `teacher_forced`."""
        return logits.log_softmax(-1)

    def row_limits(self, sources: Sequence[StageOutputs]) -> Tensor | None:
        """Return the maximum number of generated tokens, (B,), if there is a limit besides `max_length`."""
        return None

    def decided_logits(self, logits: Tensor) -> Tensor:
        """Return the logits (B, N, V) of a search of at most N tokens from those of `teacher_forced`."""
        return logits

    def auxiliary_loss(self, logits: Tensor, attention: Tensor | None, ids: Tensor, mask: Tensor) -> Tensor | float:
        """Return an auxiliary loss from the outputs of `teacher_forced`; it is added to the cross-entropy."""
        return 0.0

    def decide(self, sources: Sequence[StageOutputs], *, options: SearchOptions) -> dict[str, Tensor]:
        """Return the likeliest or sampled texts (B, n_best, max_length) and their log-probabilities, best first.

        With the option `token_scores` also the log-probability of each token, as of `seqpipe.nn.search.Found`.
        """
        source, first = self.read(sources), sources[0]["mask"]
        if self.equal_length:
            options = replace(options, max_length=first.shape[1] + 1)
        start = self.start(source, sources, options.max_length)
        lengths = first.sum(1) if self.equal_length else None

        def step(rows: Any, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
            logits, state, attention = self.step(DecoderSource(rows[0], rows[1], source.shared), tokens, state)
            return self.log_p(logits), state, attention

        decoder, limits = RowsDecoder(step, (source.parts, source.mask), source.mask), self.row_limits(sources)
        return beam_search(decoder, start, options, lengths=lengths, row_limits=limits)._asdict()

    def explain(self, sources: Sequence[StageOutputs], tokens: Tensor) -> dict[str, Tensor]:
        """Return the attention weights of the first text's tokens, (B, N, S), 0 after its end; {} without attention."""
        source, ids = self.read(sources), tokens[:, 0]
        _, attention = self.teacher_forced(source, ids, self.start(source, sources, ids.shape[1]))
        return {} if attention is None else {"attention": torch.where(mask_before_end(ids)[..., None], attention, 0.0)}

    def score(self, sources: Sequence[StageOutputs], tokens: Tensor) -> Tensor:
        """Return the log-probability (B,) of the first of the given texts (B, n, N), including its [EOS]."""
        source, ids = self.read(sources), tokens[:, 0]
        logits, _ = self.teacher_forced(source, ids, self.start(source, sources, ids.shape[1]))
        ends = (ids == EOS_ID).long()
        real = ends.cumsum(1) == ends  # up to and with [EOS]
        log_p = self.log_p(self.decided_logits(logits))
        return torch.where(real, log_p.gather(2, ids[..., None])[..., 0], 0.0).sum(1)


def mask_before_end(ids: Tensor) -> Tensor:  # (B, N) -> (B, N)
    """Return the mask of the tokens before the end."""
    return ((ids == EOS_ID).long().cumsum(1) == 0) & (ids != PAD_ID)


def shift_right(ids: Tensor) -> Tensor:  # (B, N) -> (B, N)
    """Return the token before each, [BOS] before the first."""
    return F.pad(ids[:, :-1], (1, 0), value=BOS_ID)


class TargetVocabulary(nn.Module):
    """Token vectors in, and logits of every token out.

    Args:
        size: V, the number of tokens.
        dim: E, the width of a token's vector.
        readout_dim: The width of the input of the output layer.
        tie: Whether both layers share a matrix (Press and Wolf 2017); then the two widths are equal.
    """

    def __init__(self, size: int, dim: int, readout_dim: int, *, tie: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(size, dim, padding_idx=PAD_ID)
        self.output = None if tie else nn.Linear(readout_dim, size)
        self.bias = nn.Parameter(torch.zeros(size)) if tie else None
        if tie:
            nn.init.normal_(self.embedding.weight, std=dim**-0.5)

    @property
    def rows(self) -> Mapping[str, tuple[str, ...]]:
        """Parameters that have one row per token, by name."""
        return {name: ("target_vocabulary",) for name, _ in self.named_parameters()}

    def forward(self, ids: Tensor) -> Tensor:  # (…) -> (…, E)
        return self.embedding(ids)

    def logits(self, readout: Tensor, logit_mask: Tensor) -> Tensor:  # (…, readout_dim), (V,) -> (…, V)
        if self.output is not None:
            return F.linear(readout, self.output.weight, self.output.bias + logit_mask)
        return F.linear(readout, self.embedding.weight, logit_mask if self.bias is None else self.bias + logit_mask)
