"""Contextual word vectors: the weighted mean of the layers of a bidirectional language model (ELMo)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import Probability
from seqpipe_plugins.embeddings.char_cnn import CharCNN
from seqpipe_plugins.encoders.bilm import BiLMEncoder


class ELMo(nn.Module):
    """A learned weighted mean of the layers of a bidirectional language model (Peters et al. 2018).

    x (B, T, 2 H) = γ Σ softmax(w)_j h_j over the layers h_0 … h_L, where h_0 is the output of `char-cnn`. w and γ are
    trained with the task. The language model is initialised by `init` from a run of the head `bilm` with the encoder
    `bilm` and the embedding `char-cnn`.

    Args:
        dim: See `char-cnn`.
        char_dim: See `char-cnn`.
        widths: See `char-cnn`.
        hidden: H; see the encoder `bilm`.
        layers: L; see the encoder `bilm`.
        residual: See the encoder `bilm`.
        initial_state: See the encoder `bilm`.
        layer_norm: Whether each layer is normalised to mean 0 and variance 1 at each token.
        train: Whether the language model is fine-tuned; otherwise it is frozen.
        dropout: Dropout probability of x.
    """

    joined_from: ClassVar = {"chars": ("embedding", "char-cnn"), "model": ("encoder", "bilm")}
    features: ClassVar = CharCNN.features
    rows: ClassVar = {"chars.chars.weight": ("chars",), "weights": None, "scale": None}

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        dim: PositiveInt = 50,
        char_dim: PositiveInt = 30,
        widths: Annotated[list[PositiveInt], Field(min_length=1)] = [3],  # noqa: B006 (never changed)
        hidden: PositiveInt = 128,
        layers: PositiveInt = 2,
        residual: bool = True,
        initial_state: Literal["zero", "learned"] = "zero",
        layer_norm: bool = False,
        train: bool = False,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim, self.layer_norm = 2 * hidden, layer_norm
        self.chars = CharCNN(sizes, dim=dim, char_dim=char_dim, widths=widths)
        self.model = BiLMEncoder(dim, {}, hidden=hidden, layers=layers, residual=residual, initial_state=initial_state)
        for module in (self.chars, self.model):
            module.requires_grad_(train)
        self.weights = nn.Parameter(torch.zeros(1 + layers))
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(dropout)

    def forward(self, chars: Tensor, mask: Tensor) -> Tensor:  # (B, T, C), (B, T) -> (B, T, 2 H)
        layers = self.model(self.chars(chars), mask)["layers"]  # (B, T, 1 + L, 2 H)
        if self.layer_norm:
            layers = F.layer_norm(layers, (self.dim,))
        mean = (self.weights.softmax(0)[:, None] * layers).sum(2)
        return self.dropout(torch.where(mask[..., None], self.scale * mean, 0.0))
