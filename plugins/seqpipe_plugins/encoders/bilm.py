"""A bidirectional language model: two stacks of LSTMs, one over the earlier tokens, one over the later ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.nn.layers import Modules
from seqpipe.nn.loops import State
from seqpipe.nn.recurrent import InitialStateEncoder, InitialStateOption, ragged_rnn
from seqpipe.plugin import Probability


class BiLMEncoder(InitialStateEncoder):
    """Two independent stacks of LSTMs, one from left to right, one from right to left (Peters et al. 2018).

    With the head `bilm` this is a bidirectional language model. Unlike in the encoder `lstm`, no layer combines the
    directions: the states `forwards` (B, T, H) depend only on a token and those before it, and `backwards` (B, T, H) on
    a token and those after it. x (B, T, 2 H) concatenates both. `layers` (B, T, 1 + layers, 2 H) has the outputs of all
    layers, preceded by the input twice; the embedding `elmo` takes their weighted mean.

    Args:
        hidden: H, number of units of each direction; an x of another width is projected by a linear layer first.
        layers: Number of layers.
        residual: Whether all layers except the first have residual connections.
        dropout: Dropout probability of a layer's input.
        initial_state: The states before the first token: zero; learned parameters; or computed from v, which is the
            label in a field of the record ({column: FIELD}) or the state of another input ({source: NAME}), which the
            head then does not read: h(0) = tanh(W v + b), c(0) = W' v + b' (Sutskever et al. 2014; Xu et al. 2015).
    """

    returns: ClassVar = {
        "x": "",
        "forwards": "(B, T, H) float32",
        "backwards": "(B, T, H) float32",
        "layers": "(B, T, L, D) float32",
    }

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        hidden: PositiveInt = 128,
        layers: PositiveInt = 2,
        residual: bool = True,
        dropout: Probability = 0.0,
        initial_state: InitialStateOption = "zero",
    ):
        super().__init__()
        self.dim, self.residual = 2 * hidden, residual
        self.input = nn.Identity() if dim == hidden else nn.Linear(dim, hidden)
        self.ways = Modules(Modules(nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers)) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.add_initial_state(initial_state, sizes, (2 * layers, 1, 2, hidden))

    def forward(
        self, x: Tensor, mask: Tensor, initial_label: Tensor | None = None, source_state: Tensor | None = None
    ) -> dict[str, Tensor]:  # (B, T, D), (B, T), (B, 1), (B, S)
        lengths = mask.sum(1).clamp(min=1)
        x = torch.where(mask[..., None], self.input(torch.where(mask[..., None], x, 0.0)), 0.0)  # (B, T, H)
        starts = self.initial_states(x.shape[0], initial_label, source_state)
        # The stacks share no layer, unlike a bidirectional `nn.LSTM`, whose second layer reads both directions, so that
        # a state would depend on the token that it predicts.
        half = len(starts) // 2
        forward_way, backward_way = self.ways
        both = [
            self._read(forward_way, x, lengths, False, starts[:half]),
            self._read(backward_way, x, lengths, True, starts[half:]),
        ]
        forwards, backwards = (states[-1] for states in both)
        layers = torch.stack([torch.cat(pair, 2) for pair in zip(*both, strict=True)], 2)
        directions = {"forwards": forwards, "backwards": backwards, "layers": layers}
        return {"x": torch.cat([forwards, backwards], 2), **directions}

    def _read(
        self, way: Modules[nn.LSTM], x: Tensor, lengths: Tensor, backward: bool, starts: list[State]
    ) -> list[Tensor]:
        """Return the input of a direction, and the output of each of its layers, (B, T, H) each."""
        layers = [x]
        for depth, (rnn, start) in enumerate(zip(way, starts, strict=True)):
            states = ragged_rnn(rnn, self.dropout(layers[-1]), lengths, backward=backward, start=start)[0][:, :, 0]
            layers.append(states + layers[-1] if self.residual and depth else states)
        return layers
