"""A recurrent decoder with attention to the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqpipe.nn import multi_source_attention as multi_source
from seqpipe.nn.attention import AttentionScore, GradientEstimator, IntraDecoderAttention, needs_weights
from seqpipe.nn.cells import recurrent_step
from seqpipe.nn.layers import BOS_ID
from seqpipe.nn.loops import State, scan
from seqpipe.nn.recurrent import TORCH_CELLS, decoder_start_state, unroll_decoder
from seqpipe.nn.seq2seq_head import DecoderSource, Seq2SeqHead, TargetVocabulary, shift_right
from seqpipe.plugin import BleuTokenizer, Probability, UsageError


class Seq2Seq(Seq2SeqHead):
    """A recurrent decoder with attention (Bahdanau et al. 2015; Luong et al. 2015).

    The initial state is tanh(W s + b), where s is the encoder's `state` or, without a `state` as wide as x, the mean of
    x; with several sources s concatenates those of all, and each has a separate attention (Libovický and Helcl 2017).
    The input of a step is the previous token and, with `input_feeding`, the previous readout (Luong et al. 2015). The
    readout is tanh(U [h; c]), where h is the state of the top layer and c the context that h attends to; the logits of
    the next token are linear in it. Without attention s gives only the initial state (Sutskever et al. 2014), and the
    readout is h; with `context: every-step` (Cho et al. 2014) the input of a step is [y; s], where y is the vector of
    the previous token, and the readout tanh(U [h; y; s]). With `intra_attention` (Paulus et al. 2018) it is tanh(U [h;
    c; d]), where d is the context from the earlier states of the decoder; with `hard_attention` (Xu et al. 2015) c is
    the vector of one source position.

    In training the previous token is that of the target (teacher forcing). With `scheduled_sampling` (Bengio et al.
    2015) it is so with probability ε, and otherwise sampled from the prediction; after i training steps, with k =
    `sampling_steps`, ε is 1 - i / k (linear), exp(-i / k) or k / (k + exp(i / k)), and at least `sampling_floor`.

    Args:
        cell: The recurrent cell.
        hidden: Number of units of each layer.
        embedding_dim: Width of the target token embedding.
        layers: Number of layers.
        attention: Attention score of a state and a source position; none: no attention.
        units: Number of units of the scores `additive` and `concat-tanh`.
        positions: Number of source positions of the score `location`, which refuses longer sources.
        heads: Number of heads of the score `multi-head`.
        combine: How the contexts of several sources are combined: by concatenation, or by a second attention over them.
        hard_attention: Whether each step attends only to the position with the greatest weight, and how that is
            trained: by the straight-through estimator (Bengio et al. 2013), or by sampling positions (REINFORCE,
            Williams 1992).
        intra_attention: Whether each step also attends to the text generated so far.
        context: Without attention, whether s gives only the initial state (Sutskever et al. 2014), or is an input of
            every step and of its readout too (Cho et al. 2014).
        input_feeding: Whether the previous readout is an input of a step; only with attention.
        tie: Whether the output layer shares its weights with the token embedding (Press and Wolf 2017).
        dropout: Dropout probability of the token embedding, between layers and in the readout.
        scheduled_sampling: How the probability of teacher forcing decreases.
        sampling_steps: k, in training steps; the inverse sigmoid is steepest at k ln k.
        sampling_floor: Minimum probability of teacher forcing.
        label_smoothing: The share of the target probability that is spread over all other tokens (Szegedy et al. 2016).
        equal_length: Whether the generated text has as many tokens as the first source, such as the second line of a
            couplet.
        bleu_tokenize: The tokenizer of the metric BLEU, one of sacrebleu's; null: zh where most letters of the
            references are Chinese or Japanese, else 13a. ja-mecab needs `sacrebleu[ja]`.
    """

    trained: Tensor

    def __init__(
        self,
        sources: Sequence[int],
        target_vocabulary: Sequence[str],
        *,
        cell: Literal["rnn", "lstm", "gru"] = "gru",
        hidden: PositiveInt = 128,
        embedding_dim: PositiveInt = 64,
        layers: PositiveInt = 1,
        attention: AttentionScore | Literal["none"] = "additive",
        units: PositiveInt = 128,
        heads: PositiveInt = 1,
        positions: PositiveInt = 512,
        combine: multi_source.SourceCombination = "concatenation",
        hard_attention: GradientEstimator | Literal["none"] = "none",
        intra_attention: bool = False,
        context: Literal["first-state", "every-step"] = "first-state",
        input_feeding: bool = True,
        tie: bool = False,
        dropout: Probability = 0.0,
        scheduled_sampling: Literal["none", "linear", "exponential", "inverse-sigmoid"] = "none",
        sampling_steps: PositiveInt = 10_000,
        sampling_floor: Annotated[float, Field(ge=0, le=1)] = 0.0,
        label_smoothing: Probability = 0.0,
        equal_length: bool = False,
        bleu_tokenize: BleuTokenizer | None = None,
    ):
        super().__init__(target_vocabulary, label_smoothing=label_smoothing, equal_length=equal_length)
        self.attention: multi_source.SourceAttention | None = None
        if attention != "none":
            if context != "first-state":
                fix = "set attention: none, or context: first-state"
                raise UsageError(f"context: with attention ({attention}) each step has its own context; {fix}")
            options: dict[str, Any] = {"units": units, "heads": heads, "positions": positions}
            self.attention = multi_source.SourceAttention(
                hidden, sources, combine=combine, hard=hard_attention, score=attention, **options
            )
        elif hard_attention != "none":
            fix = "choose an attention, such as additive, or hard_attention: none"
            raise UsageError(f"hard_attention: attention is none; {fix}")
        self.max_tokens = positions if attention == "location" else None
        self.written = IntraDecoderAttention(hidden) if intra_attention else None
        self.reads_context = context == "every-step"
        reads = hidden + (0 if self.attention is None else self.attention.dim) + (hidden if intra_attention else 0)
        reads += embedding_dim + sum(sources) if self.reads_context else 0
        if reads == hidden and tie and hidden != embedding_dim:
            sizes = f"hidden ({hidden}) and embedding_dim ({embedding_dim})"
            raise UsageError(f"tie: without attention it needs {sizes} equal")
        self.sampling, self.sampling_steps, self.sampling_floor = scheduled_sampling, sampling_steps, sampling_floor
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))
        self.feeds = input_feeding and self.attention is not None
        width = embedding_dim if tie else hidden  # of the readout
        self.vocabulary = TargetVocabulary(len(target_vocabulary), embedding_dim, width, tie=tie)
        self.rows = {f"vocabulary.{name}": axes for name, axes in self.vocabulary.rows.items()}
        between = dropout if layers > 1 else 0.0
        read = embedding_dim + (width if self.feeds else sum(sources) if self.reads_context else 0)
        self.rnn = TORCH_CELLS[cell](read, hidden, layers, batch_first=True, dropout=between)
        self.states = 2 if cell == "lstm" else 1
        self.bridge = nn.Linear(sum(sources), self.states * layers * hidden)
        self.readout = None if reads == hidden else nn.Linear(reads, width)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def length_cost(options: Mapping[str, Any]) -> str:
        return "linear" if options.get("attention") == "none" else "quadratic"

    @staticmethod
    def batch_dependent(options: Mapping[str, Any]) -> bool:
        return options.get("hard_attention") == "reinforce"  # its reward is compared with a mean over batches

    @staticmethod
    def explains(options: Mapping[str, Any]) -> dict[str, str]:
        return {} if options.get("attention") == "none" else {"attention": "written"}

    def read(self, sources: Sequence[multi_source.StageOutputs]) -> DecoderSource:
        if self.attention is None:
            return DecoderSource(None, None)
        return DecoderSource(self.attention.project(sources), multi_source.join_masks(sources))

    def start(self, source: DecoderSource, sources: Sequence[multi_source.StageOutputs], max_length: int) -> State:
        state = multi_source.summarize_sources(sources)
        first = decoder_start_state(self.bridge, state, self.rnn)
        if self.written is not None:
            first = (*first, *self.written.start(state, max_length))
        if self.reads_context:
            return (*first, state)
        if self.readout is None or not self.feeds:
            return first
        return (*first, torch.zeros(state.shape[0], self.readout.out_features, device=state.device))

    def step(self, source: DecoderSource, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        readout, state, weights = self._advance(source, self.vocabulary(tokens), state)
        return self.vocabulary.logits(readout, self.logit_mask), state, weights

    def teacher_forced(self, source: DecoderSource, ids: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        if self.training and self.sampling != "none":
            return self._sample(source, ids, state)
        vectors = self.dropout(self.vocabulary(shift_right(ids)))  # (B, N, E)
        if self.feeds:
            _, (readouts, weights) = scan(partial(self._run, source), state, (vectors.transpose(0, 1).contiguous(),))
            return self.vocabulary.logits(readouts.transpose(0, 1), self.logit_mask), weights.transpose(0, 1)
        if self.reads_context:
            vectors = torch.cat([vectors, state[-1][:, None].expand(-1, vectors.shape[1], -1)], 2)
        h = unroll_decoder(self.rnn, vectors, state[: self.states])
        readout, attended = self._attend(source, h, None if self.written is None else self.written(h), vectors)
        return self.vocabulary.logits(readout, self.logit_mask), attended

    def auxiliary_loss(self, logits: Tensor, attention: Tensor | None, ids: Tensor, mask: Tensor) -> Tensor | float:
        drawing = None if self.attention is None else self.attention.drawing
        if not self.training or drawing is None or attention is None:
            return 0.0
        log_p = logits.log_softmax(2).gather(2, ids[..., None])[..., 0]
        return drawing.auxiliary_loss(attention, log_p, mask)

    def _run(self, source: DecoderSource, state: State, rows: State) -> tuple[State, State]:
        readout, after, weights = self._advance(source, rows[0], state)
        return after, (readout, readout if weights is None else weights[:, 0])

    def _sample(self, source: DecoderSource, ids: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        """Run `teacher_forced`, but read the true token or a sampled one at each step."""
        # Scheduled sampling (Bengio et al. 2015): no gradient passes through sampling. The steps run only in training,
        # so a Python loop suffices; the share decreases with the number of batches, which `trained` counts.
        share, tokens, steps = self.teacher_share(self.trained), torch.full_like(ids[:, 0], BOS_ID), []
        self.trained += 1
        for true in ids.unbind(1):
            readout, state, weights = self._advance(source, self.dropout(self.vocabulary(tokens)), state)
            logits = self.vocabulary.logits(readout, self.logit_mask)  # (B, V)
            p = logits.detach().softmax(1)
            # One sample of each row, as `torch.multinomial` computes it, which reads its checks of p on the host.
            drawn = (p / torch.empty_like(p).exponential_()).argmax(1)
            tokens = torch.where(torch.rand(len(true), device=true.device) < share, true, drawn)
            steps.append((logits, None if weights is None else weights[:, 0]))
        all_logits, attention = zip(*steps, strict=True)
        return torch.stack(all_logits, 1), None if source.mask is None else torch.stack(attention, 1)

    def teacher_share(self, i: Tensor) -> Tensor:
        """Return the probability () of reading the true token after i steps of training."""
        k, at = self.sampling_steps, i.double() / self.sampling_steps
        share = {
            "linear": lambda: 1 - at,
            "exponential": lambda: (-at).exp(),
            "inverse-sigmoid": lambda: k / (k + at.clamp(max=700).exp()),
        }
        return share[self.sampling]().clamp(min=self.sampling_floor)

    def _advance(self, source: DecoderSource, vector: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        """Run one step: token vectors (R, E) and the state to the readout, the next state and weights (B, K, S)."""
        x = torch.cat([vector, state[-1]], 1) if self.feeds or self.reads_context else vector
        h, after = recurrent_step(self.rnn, x, state[: self.states], self.dropout)
        rows, intra_context = h.shape[0] if source.mask is None else source.mask.shape[0], None
        if self.written is not None:
            intra_context, kept = self.written.step(h, state[self.states : self.states + 2])
            intra_context, after = intra_context.unflatten(0, (rows, -1)), (*after, *kept)
        # (B, K, …) each
        readout, weights = self._attend(source, h.unflatten(0, (rows, -1)), intra_context, x.unflatten(0, (rows, -1)))
        readout = readout.flatten(0, 1)
        last = (readout,) if self.feeds else state[-1:] if self.reads_context else ()
        return readout, (*after, *last), weights

    def _attend(
        self, source: DecoderSource, h: Tensor, intra: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return readouts (B, N, …) and attention weights (B, N, S) of states (B, N, H), intra-contexts and inputs."""
        vectors, weights = [h], None
        if self.attention is not None and source.mask is not None:
            context, each = self.attention.attend(h, source.parts, weights=needs_weights())
            is_only = each.shape[1] == 1 and not torch.compiler.is_exporting()
            vectors, weights = [h, context], each[:, 0] if is_only else each.mean(1)
        if intra is not None:
            vectors.append(intra)
        if self.reads_context:
            vectors.append(x)
        if self.readout is None:
            return self.dropout(h), weights
        joined = torch.cat(vectors, 2)
        readout = self.readout(joined.flatten(0, 1)).unflatten(0, h.shape[:2])  # a matrix: one Gemm with bias
        return self.dropout(torch.tanh(readout)), weights
