"""x of a text in, another text out, token by token: the decoder of a pretrained T5, tuned or as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe import Checkpoint
from seqpipe.errors import UsageError
from seqpipe.nn.multi_source_attention import Names
from seqpipe.nn.pretrained import pretrained_seq2seq
from seqpipe.nn.search import State
from seqpipe.nn.seq2seq_head import Source, Writer, shifted
from seqpipe.nn.span_corruption import SpanCorruption
from seqpipe.nn.t5 import FAMILIES, Memory, stack

Share = Annotated[float, Field(ge=0, lt=1)]


class PretrainedSeq2Seq(SpanCorruption, Writer):
    """The decoder of a T5 (Raffel et al. 2020) on its encoder, the encoder `pretrained-seq2seq` of the same checkpoint.

    It looks at the text and its end. Tokens are read by the table of the encoder, which is also what logits are made by
    where the checkpoint ties the two (T5 1.0); one that does not (T5 1.1, Flan-T5, mT5) has rows of its own for that.

    Args:
        checkpoint: A folder that `save_pretrained` wrote, or a name on the hub; the same as the tokenizer's.
        dropout: Dropout probability, everywhere in the decoder; null for the checkpoint's own.
        label_smoothing: The share of a token's probability that is spread over all others (Szegedy et al. 2016).
        spans: Of each text, the share of tokens that is hidden in spans, which it learns to write, as the checkpoint
            did with 0.15: it then needs no target; null: it learns to write the target.
        span_length: The mean length of such a span, in tokens.
    """

    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"output": ("target_vocabulary",)}

    def __init__(
        self,
        dim: int,
        target_vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        dropout: Share | None = None,
        label_smoothing: Share = 0.0,
        spans: Annotated[float, Field(gt=0, lt=1)] | None = None,
        span_length: Annotated[float, Field(ge=1)] = 3.0,
    ):
        super().__init__(target_vocabulary, label_smoothing=label_smoothing)
        self.learn_spans(target_vocabulary, spans, span_length)
        config, state, ids = pretrained_seq2seq(checkpoint, target_vocabulary, FAMILIES)
        self.dim: int = config.d_model
        self.cure = f"put the encoder {{use: pretrained-seq2seq, checkpoint: {checkpoint}}} right before it"
        if dim != self.dim:
            raise UsageError(
                f"pretrained-seq2seq: {checkpoint} reads {self.dim} numbers a token, not {dim}; {self.cure}"
            )
        tied = torch.equal(state["lm_head.weight"], state["shared.weight"])
        self.output = None if tied else nn.Parameter(state["lm_head.weight"][ids])
        self.scale = self.dim**-0.5 if getattr(config, "scale_decoder_outputs", config.tie_word_embeddings) else 1.0
        self.stack = stack(config, state, "decoder", dropout, checkpoint)

    def read(self, sources: Sequence[Names]) -> Source:
        (source,) = sources
        x, mask, table = source["x"], source["mask"], source.get("table")
        if table is None or table.shape != (len(self.never), self.dim):
            raise UsageError(f"pretrained-seq2seq: the encoder before it gives no table of its tokens; {self.cure}")
        x = torch.where(mask[..., None], x, 0.0)
        x, mask = torch.cat([x, source["state"][:, None]], 1), F.pad(mask, (0, 1), value=True)  # the end behind all
        return Source(_Read(self.stack.memories(x), table, mask), mask)

    def start(self, source: Source, sources: Sequence[Names], longest: int) -> State:
        return self.stack.init_cache(sources[0]["x"], longest)

    def step(self, source: Source, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        memories, table, mask = source.parts
        x, state, weights = self.stack.step(F.embedding(tokens, table), state, memories, mask)
        return self._logits(x, source), state, weights

    def given(self, source: Source, ids: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        memories, table, mask = source.parts
        x, weights = self.stack.given(F.embedding(shifted(ids), table), memories, mask)
        return self._logits(x, source), weights

    def _logits(self, x: Tensor, source: Source) -> Tensor:  # (…, D) -> (…, V)
        return F.linear(self.scale * x, source.parts.table if self.output is None else self.output, self.never)


class _Read(NamedTuple):
    """Of a source what each layer makes of it, its real positions, and the vectors that tokens are read as."""

    memories: tuple[Memory, ...]
    table: Tensor  # (V, D)
    mask: Tensor  # (B, S)
