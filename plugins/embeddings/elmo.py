"""The characters of each word in, the mean of a language model's layers out: vectors that know the sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe_plugins.embeddings.char_cnn import CharCNN, Positive
from seqpipe_plugins.encoders.bilm import BiLM


class ELMo(nn.Module):
    """The mean of the layers of a language model of both directions, by learned weights (Peters et al. 2018).

    x (B, T, 2 H) = γ Σ softmax(w)_j h_j over its layers h_0 … h_L, of which h_0 is what it reads, the vectors of
    `char-cnn`. w and γ are learned with the task behind, which finds out which layers serve it. The language model
    itself comes from a run of the head `bilm` on the encoder `bilm` and the embedding `char-cnn`, by `init`.

    Args:
        dim: As `char-cnn` has it.
        char_dim: As `char-cnn` has it.
        widths: As `char-cnn` has it.
        hidden: H, as the encoder `bilm` has it.
        layers: L, as the encoder `bilm` has it.
        residual: As the encoder `bilm` has it.
        layer_norm: Whether each layer is brought to mean 0 and variance 1 at each token first.
        train: Whether the language model is learned on; otherwise it stays as it is.
        dropout: Dropout probability of x.
    """

    joined_from: ClassVar = {"chars": ("embedding", "char-cnn"), "model": ("encoder", "bilm")}
    features: ClassVar = CharCNN.features
    rows: ClassVar = {"chars.chars.weight": ("chars",), "weights": None, "scale": None}

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        dim: Positive = 50,
        char_dim: Positive = 30,
        widths: Annotated[list[Positive], Field(min_length=1)] = [3],  # noqa: B006 (never changed)
        hidden: Positive = 128,
        layers: Positive = 2,
        residual: bool = True,
        layer_norm: bool = False,
        train: bool = False,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim, self.layer_norm = 2 * hidden, layer_norm
        self.chars = CharCNN(sizes, dim=dim, char_dim=char_dim, widths=widths)
        self.model = BiLM(dim, hidden=hidden, layers=layers, residual=residual)
        for one in (self.chars, self.model):
            one.requires_grad_(train)
        self.weights = nn.Parameter(torch.zeros(1 + layers))
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(dropout)

    def forward(self, chars: Tensor, mask: Tensor) -> Tensor:  # (B, T, C), (B, T) -> (B, T, 2 H)
        layers = self.model(self.chars(chars), mask)["layers"]  # (B, T, 1 + L, 2 H)
        if self.layer_norm:
            layers = F.layer_norm(layers, (self.dim,))
        mean = (self.weights.softmax(0)[:, None] * layers).sum(2)
        x: Tensor = self.dropout(torch.where(mask[..., None], self.scale * mean, 0.0))
        return x
