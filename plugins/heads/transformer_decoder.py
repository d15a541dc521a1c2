"""The decoder of a Transformer, with a KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqpipe import MARKS, Probability
from seqpipe.nn.attention import Attention, Projected, visible
from seqpipe.nn.feedforward import feed_forward
from seqpipe.nn.loops import State
from seqpipe.nn.multi_source_attention import Combination, Names, Parts, SourceAttention, mask_of_all
from seqpipe.nn.positions import Positions
from seqpipe.nn.seq2seq_head import Seq2SeqHead, Source, Vocabulary, shifted
from seqpipe.nn.span_corruption import SpanCorruption


class TransformerDecoder(SpanCorruption, Seq2SeqHead):
    """The decoder of a Transformer (Vaswani et al. 2017).

    Each layer attends to the tokens written so far, then to the source, and ends with a feed-forward network f(x) = W2
    g(W1 x + b1) + b2. One that normalises after adding (`post`, as in the paper) makes LN(x + a(x)) of each of the
    three; one that does so before (`pre`; Xiong et al. 2020) x + a(LN(x)), and LN once more at the top. A token is read
    as √D e + p(t), e being its vector and p(t) that of its position. In search the keys and values of what is written
    are kept, so that a step reads one token.

    Args:
        hidden: Width D; null: that of the first source's x.
        layers: Layers on top of each other.
        heads: Heads of each attention; they divide the width.
        feedforward: Units of the feed-forward network; null: four times the width.
        positions: What tells a token's place: waves of fixed lengths, learned vectors, or nothing.
        longest: How many positions have a learned vector of their own.
        scale: Whether token vectors are multiplied by √D before positions are added.
        norm: Whether a layer normalises what it reads or what it has added up.
        activation: The function g.
        tie: Whether token vectors are also the rows that logits are made by (Press and Wolf 2017).
        dropout: Dropout probability of the input, the weights, g, a(x) and f(x).
        combine: How the contexts of several sources become one (Libovický and Helcl 2017): W [c_1; c_2; …] + b, or by a
            second attention over them.
        label_smoothing: The share of a token's probability that is spread over all others (Szegedy et al. 2016).
        equal_length: Whether a text has as many tokens as its first source, as a verse has that answers another.
        spans: Of each text, the share of tokens that is hidden in spans, which it learns to write: it then needs no
            target (Raffel et al. 2020 hide 0.15); null: it learns to write the target.
        span_length: The mean length of such a span, in tokens.
    """

    explains: ClassVar = {"attention": "written"}

    def __init__(
        self,
        sources: Sequence[int],
        target_vocabulary: Sequence[str],
        *,
        hidden: PositiveInt | None = None,
        layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        feedforward: PositiveInt | None = None,
        positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        longest: PositiveInt = 512,
        scale: bool = True,
        norm: Literal["pre", "post"] = "pre",
        activation: Literal["relu", "gelu", "silu"] = "relu",
        tie: bool = True,
        combine: Combination = "concatenation",
        dropout: Probability = 0.1,
        label_smoothing: Probability = 0.0,
        equal_length: bool = False,
        spans: Annotated[float, Field(gt=0, lt=1)] | None = None,
        span_length: Annotated[float, Field(ge=1)] = 3.0,
    ):
        super().__init__(target_vocabulary, label_smoothing=label_smoothing, equal_length=equal_length)
        self.learn_spans(target_vocabulary, spans, span_length)
        width = hidden or sources[0]
        self.vocabulary = Vocabulary(len(target_vocabulary), width, width, tie=tie)
        self.rows = {f"vocabulary.{name}": axes for name, axes in self.vocabulary.rows.items()}
        self.scale = width**0.5 if scale else 1.0
        self.positions = (
            None if positions == "none" else Positions(width, learned=positions == "learned", longest=longest)
        )
        self.dropout = nn.Dropout(dropout)
        inner, pre = feedforward or 4 * width, norm == "pre"
        self.layers = nn.ModuleList(
            Layer(width, sources, combine, heads, inner, pre, activation, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width) if pre else nn.Identity()

    @staticmethod
    def special_tokens(options: Mapping[str, Any]) -> tuple[str, ...]:
        return () if options.get("spans") is None else MARKS

    def read(self, sources: Sequence[Names]) -> Source:
        return Source(tuple(layer.source.project(sources) for layer in self._stack), mask_of_all(sources))

    @property
    def _stack(self) -> list[Layer]:
        return cast("list[Layer]", list(self.layers))

    def start(self, source: Source, sources: Sequence[Names], max_length: int) -> State:
        """Of each layer keys (B, H, D / H, N) and values (B, H, N, D / H); and the number of tokens so far, (B,)."""
        x = sources[0]["x"]
        B, heads = x.shape[0], self._stack[0].itself.heads
        each = self.vocabulary.embedding.embedding_dim // heads
        keys = torch.zeros(B, heads, each, max_length, device=x.device)
        caches = (cache for _ in self._stack for cache in (keys, keys.transpose(2, 3).contiguous()))
        return (*caches, torch.zeros(B, dtype=torch.int64, device=x.device))

    def step(self, source: Source, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        *caches, t = state
        x = self._placed(self.vocabulary(tokens)[:, None], t[:, None])  # (R, 1, D)
        times = torch.arange(caches[0].shape[3], device=x.device)
        here, seen = (times == t[:, None]).to(x.dtype), times <= t[:, None]  # (R, N)
        after, weights = [], x
        for number, layer in enumerate(self._stack):
            read = layer.first(x)
            new = layer.itself.project(read, torch.ones_like(read[..., 0], dtype=torch.bool))
            keys = caches[2 * number] + here[:, None, None] * new.keys  # a cache is 0 where nothing was written yet
            values = caches[2 * number + 1] + here[:, None, :, None] * new.values
            after += [keys, values]
            x, weights = layer(x, Projected(keys, values), seen, source.parts[number])
        logits = self.vocabulary.logits(self.norm(x)[:, 0], self.logit_mask)
        return logits, (*after, t + 1), weights.mean(1)

    def teacher_forced(self, source: Source, ids: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        t = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self._placed(self.vocabulary(shifted(ids)), t[None]))
        everything = torch.ones_like(ids, dtype=torch.bool)
        seen, weights = visible(everything, causal=True), x
        for layer, memory in zip(self._stack, source.parts, strict=True):
            projected = layer.itself.project(layer.first(x), everything)
            x, weights = layer(x, projected, seen, memory)
        return self.vocabulary.logits(self.norm(x), self.logit_mask), weights.mean(1)

    def _placed(self, vectors: Tensor, t: Tensor) -> Tensor:  # (B, N, D), (1 or B, N) -> (B, N, D)
        vectors = self.scale * vectors
        return vectors if self.positions is None else vectors + self.positions.at(t)


class Layer(nn.Module):
    """One layer, of projected keys and values: those of its own tokens and those of the sources."""

    def __init__(
        self,
        dim: int,
        sources: Sequence[int],
        combine: Combination,
        heads: int,
        inner: int,
        pre: bool,
        activation: str,
        dropout: float,
    ):
        super().__init__()
        self.pre = pre
        self.itself = Attention(dim, dim, score="multi-head", heads=heads, dropout=dropout)
        self.source = SourceAttention(dim, sources, combine=combine, score="multi-head", heads=heads, dropout=dropout)
        self.merge = nn.Identity() if self.source.dim == dim else nn.Linear(self.source.dim, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.feedforward = feed_forward(dim, inner, activation, dropout)

    def first(self, x: Tensor) -> Tensor:
        """The input of self-attention."""
        return self.norms[0](x) if self.pre else x

    def forward(
        self, x: Tensor, itself: Projected, seen: Tensor, source: Parts
    ) -> tuple[Tensor, Tensor]:  # (R, N, D), …, (R, N) or (R, N, N), … -> (R, N, D), (B, H, K * N, S)
        x = self._added(0, x, self.itself.attend(self.first(x), itself, seen)[0])
        read = self.norms[1](x) if self.pre else x
        rows = read.reshape(source.masks[0].shape[0], -1, read.shape[2])  # (B, K * N, D): a row's beams side by side
        context, weights = self.source.attend(rows, source)
        x = self._added(1, x, self.merge(context).reshape(x.shape))
        return self._added(2, x, self.feedforward(self.norms[2](x) if self.pre else x)), weights

    def _added(self, number: int, x: Tensor, update: Tensor) -> Tensor:
        x = x + self.dropout(update)
        return x if self.pre else self.norms[number](x)
