from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from encoders.cells import Step, elman_relu, elman_tanh, gru_after, gru_before, layer, lstm
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqpipe.nn.recurrent import Reset, gru_step, ragged_rnn

Make = Callable[..., nn.RNNBase]
LENGTHS = torch.tensor([6, 1, 4])
RELU = partial(nn.RNN, nonlinearity="relu")
CELLS: list[tuple[Make, Reset, Step]] = [
    (nn.RNN, "after", elman_tanh),
    (RELU, "after", elman_relu),
    (nn.GRU, "after", gru_after),
    (nn.GRU, "before", gru_before),
    (nn.LSTM, "after", lstm),
]


def packed(rnn: nn.RNNBase, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the library makes of packed rows: states (B, T, directions, H) and last ones (B, directions, H)."""
    rows = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    found: Any = rnn(rows)
    states, last = found[0], found[1][0] if rnn.mode == "LSTM" else found[1]
    return pad_packed_sequence(states, batch_first=True)[0].unflatten(2, (-1, rnn.hidden_size)), last.transpose(0, 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize(("make", "reset", "step"), CELLS)
def test_a_ragged_layer_follows_the_equations_step_by_step(
    make: Make, reset: Reset, step: Step, direction: str, bias: bool
) -> None:
    rnn, x = make(3, 4, bias=bias, batch_first=True, bidirectional=direction == "both"), torch.randn(3, 6, 3)
    filled = x.masked_fill(torch.arange(6)[None, :, None] >= LENGTHS[:, None, None], float("nan"))
    found = ragged_rnn(rnn, filled, LENGTHS, backward=direction == "backward", reset=reset)
    states, last = (made.detach().numpy() for made in found)
    for b, n in enumerate(LENGTHS.tolist()):
        expected = layer(step, rnn, x[b, :n].double().numpy(), direction)
        assert states.shape[2] == last.shape[1] == len(expected)
        for d, (each, final, _) in enumerate(expected):
            assert np.abs(states[b, :n, d] - each).max() < 1e-6
            assert np.abs(last[b, d] - final).max() < 1e-6
        assert not states[b, n:].any()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("make", [nn.RNN, RELU, nn.GRU, nn.LSTM])
def test_a_ragged_layer_has_the_values_and_gradients_of_packed_rows(make: Make, bidirectional: bool) -> None:
    rnn, x = make(3, 4, batch_first=True, bidirectional=bidirectional).double(), torch.randn(3, 6, 3).double()
    x.requires_grad_()
    found = []
    for states, last in (ragged_rnn(rnn, x, LENGTHS), packed(rnn, x)):
        leaves = [x, *rnn.parameters()]
        found.append([states, last, *torch.autograd.grad((states**2).sum() + last.sum(), leaves)])
    assert all(torch.allclose(ours, theirs, atol=1e-12) for ours, theirs in zip(*found, strict=True))


def test_the_gradients_of_a_gru_that_resets_before_the_product_are_those_of_small_steps() -> None:
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True).double()
    x = torch.randn(3, 6, 3, dtype=torch.float64, requires_grad=True)
    leaves = (x, *gru.parameters())
    assert torch.autograd.gradcheck(lambda x, *weights: ragged_rnn(gru, x, LENGTHS, reset="before"), leaves)


@pytest.mark.parametrize(("make", "reset"), [cell[:2] for cell in CELLS])
def test_lengths_that_are_ignored_are_seen(make: Make, reset: Reset) -> None:
    rnn, x = make(3, 4, batch_first=True, bidirectional=True), torch.randn(3, 6, 3)
    right = ragged_rnn(rnn, x, LENGTHS, reset=reset)
    wrong = ragged_rnn(rnn, x, torch.full((3,), 6), reset=reset)
    assert (right[0][2, :4] - wrong[0][2, :4]).abs().max() > 1e-3
    assert (right[1][2] - wrong[1][2]).abs().max() > 1e-3


def test_where_the_reset_gate_stands_makes_a_difference() -> None:
    gru, x = nn.GRU(3, 4, batch_first=True), torch.randn(3, 6, 3)
    after, before = (ragged_rnn(gru, x, LENGTHS, reset=reset)[0] for reset in ("after", "before"))
    assert (after - before).abs().max() > 1e-3


def test_steps_of_a_gru_are_the_library_s() -> None:
    gru, x = nn.GRU(3, 4, 2, batch_first=True), torch.randn(5, 7, 3)
    state, outputs = torch.randn(5, 2, 4), []
    expected, last = gru(x, state.transpose(0, 1).contiguous())
    for t in range(7):
        output, state = gru_step(gru, x[:, t], state)
        outputs.append(output)
    assert torch.allclose(torch.stack(outputs, 1), expected, atol=1e-6)
    assert torch.allclose(state.transpose(0, 1), last, atol=1e-6)
