"""What a head reads and a text so far in, the next token out: what all heads that write texts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.config.signature import Size, Tokens, Uniform
from seqpipe.nn.multi_source_attention import Names
from seqpipe.nn.search import BOS, EOS, PAD, State, search

NEVER = -1e4  # the logit of what no text holds


class Source(NamedTuple):
    """What every step reads and no step changes: what attention made of the sources, and their real positions."""

    parts: Any
    mask: Tensor | None  # (B, S), of several sources side by side; None: nothing is attended to


class Writer(nn.Module):
    """A head that writes a text token by token.

    A subclass gives `read`, `start`, `step` and `given`, and by them what the model is. Here is what it learns by and
    how it decides.

    Args:
        target_vocabulary: The tokens that it writes.
        label_smoothing: The share of a token's probability that is spread over all others (Szegedy et al. 2016).
        equal_length: Whether a text has as many tokens as its first source, whatever `max_length` and `min_length` say.
    """

    answer = "text"
    never: Tensor

    def __init__(self, target_vocabulary: Sequence[str], *, label_smoothing: float = 0.0, equal_length: bool = False):
        super().__init__()
        self.label_smoothing, self.equal_length = label_smoothing, equal_length
        never = torch.zeros(len(target_vocabulary)).index_fill(0, torch.tensor([PAD, BOS]), NEVER)
        self.register_buffer("never", never, persistent=False)  # (V,)

    @staticmethod
    def inactive_options(options: Mapping[str, Any]) -> tuple[str, ...]:
        """Decode options that mean nothing: of lengths, where the source says them."""
        return ("max_length", "min_length") if options.get("equal_length") else ()

    def read(self, sources: Sequence[Names]) -> Source:
        """What is made of the sources once for all steps."""
        raise NotImplementedError

    def start(self, source: Source, sources: Sequence[Names], longest: int) -> State:
        """The state before the first of at most `longest` tokens, B rows."""
        raise NotImplementedError

    def step(self, source: Source, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        """As `seqpipe.nn.search.Decoder` has it, but that logits (R, V) may come for log-probabilities."""
        raise NotImplementedError

    def given(self, source: Source, ids: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        """Each token's logits (B, N, V) and attention (B, N, S), given the tokens (B, N) before it."""
        raise NotImplementedError

    def loss(self, sources: Sequence[Names], target_ids: Tensor, target_mask: Tensor) -> Tensor:
        """Mean cross-entropy () of a target token of (B, N), given those before it."""
        source = self.read(sources)
        logits, attention = self.given(source, target_ids, self.start(source, sources, target_ids.shape[1]))
        missed = self._cross_entropy(logits[target_mask], target_ids[target_mask])
        return missed + self.lesson(logits, attention, target_ids, target_mask)

    def log_p(self, logits: Tensor) -> Tensor:
        """The log-probabilities (…, V) by which a text is decided, of the logits of `step` or `given`."""
        return logits.log_softmax(-1)

    def lesson(self, logits: Tensor, attention: Tensor | None, ids: Tensor, mask: Tensor) -> Tensor | float:
        """What a subclass learns by beside the cross-entropy, from what `given` made: added to the loss."""
        return 0.0

    def _cross_entropy(self, logits: Tensor, ids: Tensor) -> Tensor:  # (M, V), (M,) -> ()
        if not (self.label_smoothing and self.training):
            return F.cross_entropy(logits, ids)
        log_p, real = logits.log_softmax(1), self.never == 0
        even = torch.where(real, log_p, 0.0).sum(1) / real.sum()
        return -((1 - self.label_smoothing) * log_p.gather(1, ids[:, None])[:, 0] + self.label_smoothing * even).mean()

    def decide(
        self,
        sources: Sequence[Names],
        *,
        beams: Size = 1,
        n_best: Size = 1,
        max_length: Size = 100,
        min_length: Annotated[int, Field(ge=0)] = 0,
        length_penalty: Annotated[float, Field(ge=0)] = 0.0,
        coverage_penalty: Annotated[float, Field(ge=0)] = 0.0,
        early_stopping: bool = False,
        no_repeat_ngram_size: Annotated[int, Field(ge=0)] = 0,
        prefix: Tokens = None,
        forbidden: Tokens = None,
        uniform: Uniform = None,
        temperature: Annotated[float, Field(ge=0)] = 1.0,
        top_k: Size = 50,
        top_p: Annotated[float, Field(gt=0, le=1)] = 1.0,
    ) -> dict[str, Tensor]:
        """The likeliest texts (B, n_best, max_length), or drawn ones, and their log-probabilities, the best first."""
        source, first = self.read(sources), sources[0]["mask"]
        if self.equal_length:
            max_length = first.shape[1] + 1
        tokens, scores = search(
            _Reading(self, source),
            self.start(source, sources, max_length),
            beams=beams,
            n_best=n_best,
            max_length=max_length,
            min_length=min_length,
            length_penalty=length_penalty,
            coverage_penalty=coverage_penalty,
            early_stopping=early_stopping,
            no_repeat_ngram_size=no_repeat_ngram_size,
            prefix=prefix,
            forbidden=forbidden,
            lengths=first.sum(1) if self.equal_length else None,
            uniform=uniform,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        return {"tokens": tokens, "scores": scores}

    def explain(self, sources: Sequence[Names], tokens: Tensor) -> dict[str, Tensor]:
        """What each token of the first text attended to, (B, N, S), 0 behind its end; nothing without attention."""
        source, ids = self.read(sources), tokens[:, 0]
        _, attention = self.given(source, ids, self.start(source, sources, ids.shape[1]))
        return {} if attention is None else {"attention": torch.where(written(ids)[..., None], attention, 0.0)}

    def score(self, sources: Sequence[Names], tokens: Tensor) -> Tensor:
        """Log-probability (B,) of the first of the given texts (B, n, N), its [EOS] included."""
        log_p, real = self._rated(sources, tokens[:, 0])
        return torch.where(real, log_p.gather(2, tokens[:, 0, :, None])[..., 0], 0.0).sum(1)

    def _rated(self, sources: Sequence[Names], ids: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (B, N, V) behind the tokens before, and which of the tokens are real, [EOS] too, (B, N)."""
        source, ends = self.read(sources), (ids == EOS).long()
        logits, _ = self.given(source, ids, self.start(source, sources, ids.shape[1]))
        return self.log_p(logits), ends.cumsum(1) == ends


class _Reading(NamedTuple):
    """A writer on one batch of sources, as search asks for it."""

    writer: Writer
    source: Source

    @property
    def mask(self) -> Tensor | None:
        return self.source.mask

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        logits, state, attention = self.writer.step(self.source, tokens, state)
        return self.writer.log_p(logits), state, attention


def written(ids: Tensor) -> Tensor:  # (B, N) -> (B, N)
    """Which tokens stand before the end."""
    return ((ids == EOS).long().cumsum(1) == 0) & (ids != PAD)


def shifted(ids: Tensor) -> Tensor:  # (B, N) -> (B, N)
    """The token before each, [BOS] before the first."""
    return F.pad(ids[:, :-1], (1, 0), value=BOS)


class Vocabulary(nn.Module):
    """Token vectors in, and logits of every token out.

    Args:
        size: V, how many tokens there are.
        dim: E, the width of a token's vector.
        readout_dim: The width of what logits are made of.
        tie: Whether one matrix serves both ways (Press and Wolf 2017); the two widths are equal then.
    """

    def __init__(self, size: int, dim: int, readout_dim: int, *, tie: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(size, dim, padding_idx=PAD)
        self.output = None if tie else nn.Linear(readout_dim, size)
        self.bias = nn.Parameter(torch.zeros(size)) if tie else None
        if tie:
            nn.init.normal_(self.embedding.weight, std=dim**-0.5)

    @property
    def rows(self) -> Mapping[str, tuple[str, ...]]:
        """Which of its parameters have a row a token, by name."""
        return {name: ("target_vocabulary",) for name, _ in self.named_parameters()}

    def forward(self, ids: Tensor) -> Tensor:  # (…) -> (…, E)
        vectors: Tensor = self.embedding(ids)
        return vectors

    def logits(self, readout: Tensor, never: Tensor) -> Tensor:  # (…, readout_dim), (V,) -> (…, V)
        if self.output is not None:
            return F.linear(readout, self.output.weight, self.output.bias + never)
        return F.linear(readout, self.embedding.weight, never if self.bias is None else self.bias + never)
