"""A Transformer encoder, bidirectional or causal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.nn.attention import Attention, attention_mask, fused_attention, needs_weights
from seqpipe.nn.incremental import KVCacheEncoder
from seqpipe.nn.layers import Modules, PositionOption, ResidualLayer, feed_forward, position_embeddings
from seqpipe.plugin import Probability

Norm = Literal["pre", "post"]


class Transformer(KVCacheEncoder):
    """The encoder of a Transformer (Vaswani et al. 2017): layers of self-attention and feed-forward networks.

    Head i computes softmax(Q_i K_i^T / √d) V_i, where Q, K and V are linear layers of x and d is D' / `heads`; a(x) is
    a linear layer over all heads, and f(x) = W2 g(W1 x + b1) + b2. A layer with normalisation after the residual
    connection (`post`, as in the paper) computes y = LN(x + a(x)), then LN(y + f(y)); with normalisation before the
    sublayers (`pre`; Xiong et al. 2020) y = x + a(LN(x)), then y + f(LN(y)), and a final LN at the top, which needs no
    warm-up. x (B, T, D) becomes (B, T, D'). Padding has weight 0 and output 0.

    With position embeddings the input of the first layer is √D' x + p(t): p(t)[2i] = sin(t / 10000^(2i / D')), p(t)[2i
    + 1] the cosine, or a learned table, whose last vector all later tokens have. Without them the order of the tokens
    has no effect, unless `causal`. `attention` (B, heads, T, T) has the weights of the top layer, with queries in rows,
    and 0 in the padding. In training and dev scores, which need no weights, it is empty.

    Args:
        hidden: Width D'; null: that of x. If they differ, a linear layer projects x first.
        layers: Number of layers.
        heads: Number of attention heads of a layer; a divisor of the width.
        feedforward: Units of the feed-forward network; null: four times the width.
        positions: Position embeddings: sinusoidal, learned, or none.
        longest: Number of learned position vectors.
        scale: Whether x is multiplied by √D' before positions are added; false if x already has unit variance.
        norm: Whether layer normalisation comes before each sublayer (pre) or after the residual connection (post).
        activation: The function g.
        causal: Whether a token attends only to itself and to earlier tokens.
        dropout: Dropout probability of x, the weights, g, a(x) and f(x).
        attention_dropout: Dropout probability of the weights; null: `dropout`. With 0, the fused kernel of PyTorch
            computes the attention of long texts in about half the time on a CPU.
    """

    length_cost: ClassVar = "quadratic"
    returns: ClassVar = ("x", "attention")
    explains: ClassVar = {"attention": "pairs"}
    layers: Modules[TransformerLayer]

    def __init__(
        self,
        dim: int,
        *,
        hidden: PositiveInt | None = None,
        layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        feedforward: PositiveInt | None = None,
        positions: PositionOption = "sinusoidal",
        longest: PositiveInt = 512,
        scale: bool = True,
        norm: Norm = "pre",
        activation: Literal["relu", "gelu"] = "relu",
        causal: bool = False,
        dropout: Probability = 0.1,
        attention_dropout: Probability | None = None,
    ):
        super().__init__()
        self.dim = width = hidden or dim
        weights_dropout = dropout if attention_dropout is None else attention_dropout
        self.causal, self.scale = causal, width**0.5 if scale else 1.0
        self.groups, self.head_dim = heads, width // heads
        self.input = nn.Identity() if width == dim else nn.Linear(dim, width)
        self.positions = position_embeddings(positions, width, longest)
        self.dropout = nn.Dropout(dropout)
        inner = feedforward or 4 * width
        self.layers = Modules(
            TransformerLayer(width, heads, inner, norm, activation, dropout, weights_dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return "" if options["causal"] else "causal: true"

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a text; None: no limit."""
        return self.positions.longest if self.positions is not None and self.positions.table is not None else None

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D'), (B, H, T, T)
        places = torch.arange(x.shape[1], device=x.device)[None]
        x = self.dropout(self.enter(torch.where(mask[..., None], x, 0.0), places))
        if not needs_weights():
            for layer in self.layers:
                x = layer.fused_forward(x, places, mask, self.causal)
            return {"x": torch.where(mask[..., None], self.leave(x), 0.0), "attention": x[:, :0, :0, None]}
        weights, seen = x, attention_mask(mask, self.causal)
        for layer in self.layers:
            x, weights = layer(x, mask, seen)
        x = torch.where(mask[..., None], self.leave(x), 0.0)
        return {"x": x, "attention": torch.where(mask[:, None, :, None], weights, 0.0)}

    def enter(self, x: Tensor, places: Tensor) -> Tensor:
        x = self.input(x)
        return x if self.positions is None else self.scale * x + self.positions.at(places)

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x)


class TransformerLayer(ResidualLayer):
    """One layer: (B, T, D) to the same shape, and the attention weights (B, H, T, T)."""

    def __init__(
        self, dim: int, heads: int, inner: int, norm: Norm, activation: str, dropout: float, attention_dropout: float
    ):
        super().__init__()
        self.pre_norm, self.attention_dropout = norm == "pre", attention_dropout
        self.attention = Attention(dim, dim, score="multi-head", heads=heads, dropout=attention_dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.feedforward = feed_forward(dim, inner, activation, dropout)

    def forward(self, x: Tensor, mask: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        read = self.before(0, x)
        context, weights = self.attention.attend(read, self.attention.project(read, mask), seen)
        return self._feed_forward(self.after(0, x, context)), weights

    def fused_forward(self, x: Tensor, places: Tensor, mask: Tensor, causal: bool) -> Tensor:
        """Run the layer with PyTorch's fused kernel, which returns no weights."""
        dropout = self.attention_dropout if self.training else 0.0
        context = fused_attention(*self.project_qkv(x, places), mask, causal=causal, dropout=dropout)
        return self.output(x, context.transpose(1, 2).flatten(2))

    def project_qkv(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.project_qkv(self.before(0, x))

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        return self._feed_forward(self.after(0, x, self.attention.output(context)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.after(1, x, self.feedforward(self.before(1, x)))
