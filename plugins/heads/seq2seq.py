"""The encoder's last state in, a text out, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe import Size
from seqpipe.nn.cells import gru_step
from seqpipe.nn.search import BOS, EOS, PAD, State, beam_search

Positive = Annotated[int, Field(gt=0)]


class Seq2Seq(nn.Module):
    """A gated recurrent decoder that knows the source by its last state alone (Cho et al. 2014; Sutskever et al. 2014).

    Args:
        hidden: Units of each layer.
        embedding_dim: Width of a target token's vector.
        layers: Layers on top of each other.
        dropout: Probability that a number is silenced in training: in token vectors, between layers, before the output.
    """

    answer = "text"
    rows: ClassVar = dict.fromkeys(("embedding.weight", "output.weight", "output.bias"), ("target_vocabulary",))
    never: Tensor

    def __init__(
        self,
        dim: int,
        target_vocabulary: Sequence[str],
        *,
        hidden: Positive = 128,
        embedding_dim: Positive = 64,
        layers: Positive = 1,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        V = len(target_vocabulary)
        self.embedding = nn.Embedding(V, embedding_dim, padding_idx=PAD)
        self.bridge = nn.Linear(dim, layers * hidden)
        self.gru = nn.GRU(embedding_dim, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, V)
        never = torch.zeros(V).index_fill(0, torch.tensor([PAD, BOS]), -1e4)
        self.register_buffer("never", never, persistent=False)  # (V,) what no text holds

    def loss(self, state: Tensor, target_ids: Tensor, target_mask: Tensor) -> Tensor:  # (B, D), (B, N), (B, N) -> ()
        """Mean cross-entropy of a target token, given the true ones before it."""
        return F.cross_entropy(self._given(state, target_ids)[target_mask], target_ids[target_mask])

    def decide(
        self,
        state: Tensor,
        *,
        beams: Size = 1,
        n_best: Size = 1,
        longest: Size = 100,
        length_penalty: Annotated[float, Field(ge=0)] = 0.0,
    ) -> dict[str, Tensor]:
        """The likeliest texts (B, n_best, longest) and their log-probabilities (B, n_best), the best first."""
        tokens, scores = beam_search(
            self, self.start(state), beams=beams, n_best=n_best, longest=longest, length_penalty=length_penalty
        )
        return {"tokens": tokens, "scores": scores}

    def score(self, state: Tensor, tokens: Tensor) -> Tensor:  # (B, D), (B, n, N) -> (B,)
        """Log-probability of the first of the given texts, its [EOS] included."""
        ids = tokens[:, 0]
        ends = (ids == EOS).long()
        real = ends.cumsum(1) == ends  # (B, N) up to the first [EOS]
        log_p = self._given(state, ids).log_softmax(2).gather(2, ids[..., None])[..., 0]
        return torch.where(real, log_p, 0.0).sum(1)

    def start(self, state: Tensor) -> State:  # (B, D) -> (B, layers, H)
        return (torch.tanh(self.bridge(state)).reshape(-1, self.gru.num_layers, self.gru.hidden_size),)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:  # (R,) -> (R, V)
        x, after = gru_step(self.gru, self.embedding(tokens), state[0])
        return (self.output(x) + self.never).log_softmax(1), (after,)

    def _given(self, state: Tensor, ids: Tensor) -> Tensor:  # (B, D), (B, N) -> (B, N, V)
        """Each token's logits, given the tokens before it."""
        before = F.pad(ids[:, :-1], (1, 0), value=BOS)
        (hidden,) = self.start(state)
        x, _ = self.gru(self.dropout(self.embedding(before)), hidden.transpose(0, 1).contiguous())
        logits: Tensor = self.output(self.dropout(x)) + self.never
        return logits
