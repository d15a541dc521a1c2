"""A pointer-generator: a decoder that may copy words of the source, including unknown words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.attention import Attention, AttentionScore, CoverageAttention, ProjectedKeys
from seqpipe.nn.cells import recurrent_step
from seqpipe.nn.layers import LOG_ZERO, UNK_ID, RealRows
from seqpipe.nn.loops import State, scan
from seqpipe.nn.multi_source_attention import StageOutputs, summarize_sources
from seqpipe.nn.recurrent import TORCH_CELLS, decoder_start_state
from seqpipe.nn.seq2seq_head import DecoderSource, Seq2SeqHead, TargetVocabulary, mask_before_end, shift_right
from seqpipe.plugin import BleuTokenizer, Copy, Probability, UsageError

_LEAST = 1e-30  # the least probability


class _Read(NamedTuple):
    """The projected source, its mask (B, S), and its words as ids of the extended vocabulary (B, S)."""

    projected: ProjectedKeys
    mask: Tensor
    words: Tensor


class _Step(NamedTuple):
    """The parts of the next word's probability, for a step of each row."""

    readout: Tensor  # (R, W)
    weights: Tensor  # (R, S)
    switch: Tensor  # (R,) the logit of generating
    repeated: Tensor  # (R,) the coverage loss


class CopySeq2Seq(Seq2SeqHead):
    """A recurrent decoder that generates words or copies them: a pointer-generator (See, Liu and Manning 2017).

    The input x of a step is the previous token and the previous context (Luong et al. 2015). The decoder attends to the
    source and computes p = σ(w · [c; h; x] + b), the probability of generating, from the context c, the state h and x.
    The probability of the next word is p P(word) + (1 - p) times the sum of the attention weights at all positions of
    that word in the source; P is a softmax over the vocabulary, linear in tanh(U [h; c]). Out-of-vocabulary words of
    the source can be copied: their ids follow those of the V words of the vocabulary.

    With `coverage` the attention depends on its earlier weights (see `CoverageAttention`), and the loss of each token
    includes `coverage_weight` times the sum over the source of min(weight, coverage), which penalises repeated
    attention. [UNK] is a target where a word is neither in the vocabulary nor in the source, but it is never generated.

    Args:
        cell: The recurrent cell.
        hidden: Number of units of each layer.
        embedding_dim: Width of the target token embedding.
        layers: Number of layers.
        attention: Attention score of a state and a source position; must be additive with `coverage`.
        units: Number of units of the scores `additive` and `concat-tanh`.
        positions: Number of source positions of the score `location`, which refuses longer sources.
        coverage: Whether the attention depends on its earlier weights at each source position.
        coverage_weight: λ, the weight of the coverage loss.
        coverage_after: Training step from which the coverage loss is used; See et al. begin at the end of training.
        tie: Whether the output layer shares its weights with the token embedding (Press and Wolf 2017).
        dropout: Dropout probability of the token embedding, between layers and in the readout.
        label_smoothing: The share of the target probability that is spread over all other tokens (Szegedy et al. 2016).
        bleu_tokenize: The tokenizer of the metric BLEU, one of sacrebleu's; null: zh where most letters of the
            references are Chinese or Japanese, else 13a. ja-mecab needs `sacrebleu[ja]`.
    """

    length_cost: ClassVar = "quadratic"
    features: ClassVar = {"copy": Copy()}
    explains: ClassVar = {"attention": "written", "generating": "steps"}
    trained: Tensor
    unwritten: Tensor

    def __init__(
        self,
        dim: int,
        target_vocabulary: Sequence[str],
        *,
        cell: Literal["lstm", "gru"] = "lstm",
        hidden: PositiveInt = 128,
        embedding_dim: PositiveInt = 64,
        layers: PositiveInt = 1,
        attention: AttentionScore = "additive",
        units: PositiveInt = 128,
        positions: PositiveInt = 512,
        coverage: bool = True,
        coverage_weight: NonNegativeFloat = 1.0,
        coverage_after: NonNegativeInt = 0,
        tie: bool = False,
        dropout: Probability = 0.0,
        label_smoothing: Probability = 0.0,
        bleu_tokenize: BleuTokenizer | None = None,
    ):
        super().__init__(target_vocabulary, label_smoothing=label_smoothing)
        self.coverage_weight, self.coverage_after = coverage_weight if coverage else 0.0, coverage_after
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))
        unwritten = torch.zeros(len(target_vocabulary)).index_fill(0, torch.tensor(UNK_ID), LOG_ZERO)
        self.register_buffer("unwritten", unwritten, persistent=False)  # (V,)
        width = embedding_dim if tie else hidden  # of the readout
        self.vocabulary = TargetVocabulary(len(target_vocabulary), embedding_dim, width, tie=tie)
        self.rows = {f"vocabulary.{name}": axes for name, axes in self.vocabulary.rows.items()}
        if coverage and attention != "additive":
            raise UsageError("coverage: it is a part of the score `additive`; choose that, or coverage: false")
        self.attention = (
            CoverageAttention(hidden, dim, units=units)
            if coverage
            else Attention(hidden, dim, score=attention, units=units, positions=positions)
        )
        self.max_tokens = positions if attention == "location" else None
        seen = self.attention.dim
        self.rnn = TORCH_CELLS[cell](embedding_dim + seen, hidden, layers, batch_first=True)
        self.bridge = nn.Linear(dim, (2 if cell == "lstm" else 1) * layers * hidden)
        self.readout = nn.Linear(hidden + seen, width)
        self.switch = nn.Linear(2 * seen + hidden + embedding_dim, 1)
        self.dropout = nn.Dropout(dropout)

    def read(self, sources: Sequence[StageOutputs]) -> DecoderSource:
        names = sources[0]
        mask = names["mask"]
        return DecoderSource(_Read(self.attention.project(names["x"], mask), mask, names["copy"]), mask)

    def start(self, source: DecoderSource, sources: Sequence[StageOutputs], max_length: int) -> State:
        state = summarize_sources(sources)
        context = torch.zeros(state.shape[0], self.attention.dim, device=state.device)
        covered = torch.zeros_like(sources[0]["mask"], dtype=torch.get_default_dtype())
        return (*decoder_start_state(self.bridge, state, self.rnn), context, covered)

    def step(self, source: DecoderSource, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor]:
        state, step = self._advance(source, self.vocabulary(self._known(tokens)), state)
        rows = source.parts.words.shape[0]
        words = source.parts.words[:, None].expand(-1, tokens.unflatten(0, (rows, -1)).shape[1], -1).flatten(0, 1)
        return self._mix(step, words), state, step.weights.unflatten(0, (rows, -1))

    def teacher_forced(self, source: DecoderSource, ids: Tensor, state: State) -> tuple[Tensor, Tensor]:
        step = self._all(source, ids, state)  # (B, N, …)
        words = source.parts.words[:, None].expand(-1, ids.shape[1], -1)
        flat = _Step(*(part.flatten(0, 1) for part in step))
        return self._mix(flat, words.flatten(0, 1)).unflatten(0, ids.shape), step.weights

    def log_p(self, logits: Tensor) -> Tensor:
        return logits + F.pad(self.unwritten, (0, logits.shape[-1] - self.unwritten.shape[0]))

    def loss(self, sources: Sequence[StageOutputs], target_ids: Tensor, target_mask: Tensor) -> Tensor:
        """Return the mean over target tokens (B, N) of -log p given the earlier ones, plus the coverage loss."""
        source = self.read(sources)
        step = self._all(source, target_ids, self.start(source, sources, target_ids.shape[1]))
        rows, exact = RealRows(target_mask), torch.get_default_dtype()
        logits = rows.of(self.vocabulary.logits(step.readout, self.logit_mask)).to(exact)  # (M, V)
        ids = rows.of(target_ids)
        # -log p needs no mixture over the whole extended vocabulary (B, N, V + S): for each target token only its
        # probability of being generated and the weights of its copies count. They are added as logarithms, so that a
        # token with a probability near 0 still has a gradient.
        there = (source.parts.words[:, None] == target_ids[..., None]) & source.parts.mask[:, None]  # (B, N, S)
        copied = rows.of(torch.where(there, step.weights, 0.0).sum(2)).to(exact)  # (M,)
        log_p, switch, V = logits.log_softmax(1), rows.of(step.switch).to(exact), logits.shape[1]
        generated = torch.where(ids < V, log_p.gather(1, ids.clamp(max=V - 1)[:, None])[:, 0], LOG_ZERO)
        right = torch.logaddexp(
            F.logsigmoid(switch) + generated, F.logsigmoid(-switch) + copied.clamp_min(_LEAST).log()
        )
        if self.label_smoothing and self.training:
            real = self.logit_mask == 0
            even = torch.where(real, log_p, 0.0).sum(1) / real.sum()
            right = (1 - self.label_smoothing) * right + self.label_smoothing * even
        missed = -rows.mean(right)
        if self.training:
            self.trained += 1
            if self.coverage_weight:
                weight = self.coverage_weight * (self.trained > self.coverage_after)
                return missed + weight * rows.mean(rows.of(step.repeated))
        return missed

    def explain(self, sources: Sequence[StageOutputs], tokens: Tensor) -> dict[str, Tensor]:
        """Return the attention weights of the first text, (B, N, S), and its generation probabilities, (B, N)."""
        source, ids = self.read(sources), tokens[:, 0]
        step = self._all(source, ids, self.start(source, sources, ids.shape[1]))
        real = mask_before_end(ids)
        return {
            "attention": torch.where(real[..., None], step.weights, 0.0),
            "generating": torch.where(real, step.switch.sigmoid(), 0.0),
        }

    def _known(self, tokens: Tensor) -> Tensor:
        """Replace ids of out-of-vocabulary words by that of [UNK]."""
        return torch.where(tokens < self.unwritten.shape[0], tokens, UNK_ID)

    def _all(self, source: DecoderSource, ids: Tensor, state: State) -> _Step:
        """Run all steps of texts (B, N) with teacher forcing: (B, N, …)."""
        vectors = self.dropout(self.vocabulary(self._known(shift_right(ids)))).transpose(0, 1)  # (N, B, E)
        rows = (vectors.contiguous(),)
        _, step = scan(lambda now, row: self._advance(source, row[0], now), state, rows)
        return _Step(*(part.transpose(0, 1) for part in step))

    def _advance(self, source: DecoderSource, vector: Tensor, state: State) -> tuple[State, _Step]:
        """Run one step: token vectors (R, E) and the state to the next state and the step's outputs."""
        *hidden, context, covered = state
        x = torch.cat([vector, context], 1)
        h, after = recurrent_step(self.rnn, x, tuple(hidden), self.dropout)
        rows = source.parts.words.shape[0]
        queries, (projected, mask, _) = h.unflatten(0, (rows, -1)), source.parts  # (B, K, H)
        if isinstance(self.attention, CoverageAttention):
            covered_rows = covered.unflatten(0, (rows, -1))  # (B, K, S)
            context, weights = self.attention.attend_covered(queries, projected, mask, covered_rows)
        else:
            context, weights = self.attention.attend(queries, projected, mask)
            weights = weights[:, 0]
        context, weights = context.flatten(0, 1), weights.flatten(0, 1)
        readout = self.dropout(torch.tanh(self.readout(torch.cat([h, context], 1))))
        switch = self.switch(torch.cat([context, h, x], 1))[:, 0]
        repeated = torch.minimum(weights, covered).sum(1)
        return (*after, context, covered + weights), _Step(readout, weights, switch, repeated)

    def _mix(self, step: _Step, words: Tensor) -> Tensor:
        """Return the log-probabilities (R, V + S) of the vocabulary's words and of the source's words (R, S)."""
        switch = step.switch[:, None]
        # 1 - sigmoid(s) would be 0 for large s; computed from exp(s), both are exact when they are small.
        generating, copying = 1 / (1 + torch.exp(-switch)), 1 / (1 + torch.exp(switch))
        generated = generating * self.vocabulary.logits(step.readout, self.logit_mask).softmax(1)
        both = torch.cat([generated, torch.zeros_like(step.weights)], 1).scatter_add(1, words, copying * step.weights)
        return torch.where(both > _LEAST, both.clamp_min(_LEAST).log(), LOG_ZERO)
