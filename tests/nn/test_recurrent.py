from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqpipe.nn.recurrent import gru_step, ragged_lstm

LENGTHS = torch.tensor([6, 1, 4])


def step_by_step(lstm: nn.LSTM, row: np.ndarray, suffix: str = "") -> np.ndarray:
    """The hidden states of one row (T, H) by the equations, one direction, in float64."""
    p = {name: value.detach().double().numpy() for name, value in lstm.named_parameters()}
    hidden, cell, states = np.zeros(lstm.hidden_size), np.zeros(lstm.hidden_size), []
    for x in row[::-1] if suffix else row:
        gates = p[f"weight_ih_l0{suffix}"] @ x + p[f"bias_ih_l0{suffix}"]
        gates = gates + p[f"weight_hh_l0{suffix}"] @ hidden + p[f"bias_hh_l0{suffix}"]
        i, f, g, o = np.split(gates, 4)
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        hidden = np.tanh(cell) / (1 + np.exp(-o))
        states.append(hidden)
    return np.stack(states[::-1] if suffix else states)


def packed(lstm: nn.LSTM, x: Tensor) -> tuple[Tensor, Tensor]:
    rows = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    states, (last, _) = lstm(rows)
    return pad_packed_sequence(states, batch_first=True)[0], last.transpose(0, 1).flatten(1)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_ragged_lstm_follows_the_equations_step_by_step(bidirectional: bool) -> None:
    lstm, x = nn.LSTM(3, 4, batch_first=True, bidirectional=bidirectional), torch.randn(3, 6, 3)
    states, last = (made.detach().numpy() for made in ragged_lstm(lstm, x, LENGTHS))
    for b, n in enumerate(LENGTHS.tolist()):
        row = x[b, :n].double().numpy()
        expected = np.concatenate([step_by_step(lstm, row, s) for s in ("", "_reverse")[: 1 + bidirectional]], 1)
        assert np.abs(states[b, :n] - expected).max() < 1e-6
        assert not states[b, n:].any()
        assert np.abs(last[b] - np.concatenate([expected[-1, :4], expected[0, 4:]])).max() < 1e-6


def test_a_ragged_lstm_has_the_values_and_gradients_of_packed_rows() -> None:
    lstm, x = nn.LSTM(3, 4, batch_first=True, bidirectional=True).double(), torch.randn(3, 6, 3).double()
    found = []
    for states, last in (ragged_lstm(lstm, x, LENGTHS), packed(lstm, x)):
        found.append([states, last, *torch.autograd.grad((states**2).sum() + last.sum(), list(lstm.parameters()))])
    assert all(torch.allclose(ours, theirs, atol=1e-12) for ours, theirs in zip(*found, strict=True))


def test_lengths_that_are_ignored_are_seen() -> None:
    lstm, x = nn.LSTM(3, 4, batch_first=True, bidirectional=True), torch.randn(3, 6, 3)
    right, wrong = ragged_lstm(lstm, x, LENGTHS), ragged_lstm(lstm, x, torch.full((3,), 6))
    assert (right[0][2, :4] - wrong[0][2, :4]).abs().max() > 1e-3
    assert (right[1][2] - wrong[1][2]).abs().max() > 1e-3


def test_steps_of_a_gru_are_the_library_s() -> None:
    gru, x = nn.GRU(3, 4, 2, batch_first=True), torch.randn(5, 7, 3)
    state, outputs = torch.randn(5, 2, 4), []
    expected, last = gru(x, state.transpose(0, 1).contiguous())
    for t in range(7):
        output, state = gru_step(gru, x[:, t], state)
        outputs.append(output)
    assert torch.allclose(torch.stack(outputs, 1), expected, atol=1e-6)
    assert torch.allclose(state.transpose(0, 1), last, atol=1e-6)
