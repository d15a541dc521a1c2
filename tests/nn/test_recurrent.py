"""Recurrent layers over ragged rows against their equations in NumPy and PyTorch's packed rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy_cells
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqpipe.nn.cells import LSTMParts, LSTMVariant
from seqpipe.nn.recurrent import Recurrent, RecurrentOptions, ragged_rnn
from seqpipe_plugins.encoders.gru import ResetBefore
from seqpipe_plugins.encoders.lstm import Variant
from seqpipe_plugins.encoders.nested_lstm import Nested

Make, Step = Callable[..., Any], numpy_cells.Step
LENGTHS = torch.tensor([6, 1, 4])
RELU = partial(nn.RNN, nonlinearity="relu")
STEPPED: list[tuple[Make, Step]] = [
    (ResetBefore, numpy_cells.gru_reset_before),
    (partial(Variant, peephole=True, coupled=False), numpy_cells.peephole),
    (partial(Variant, peephole=False, coupled=True), numpy_cells.coupled),
    (partial(Variant, peephole=True, coupled=True), numpy_cells.coupled_peephole),
    (partial(LSTMVariant, parts=LSTMParts(), peephole="full"), numpy_cells.full_peephole),
    (partial(Nested, depth=2), numpy_cells.nested_lstm),
    (partial(Nested, depth=3), numpy_cells.nested_lstm_of_depth_3),
]
CELLS = [
    (nn.RNN, numpy_cells.elman_tanh),
    (RELU, numpy_cells.elman_relu),
    (nn.GRU, numpy_cells.gru_reset_after),
    (nn.LSTM, numpy_cells.lstm),
]
CELLS += STEPPED


def packed(rnn: nn.RNNBase, x: Tensor) -> tuple[Tensor, Tensor]:
    """The library's outputs for packed rows: states (B, T, directions, H) and last ones (B, directions, H)."""
    rows = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    found: Any = rnn(rows)
    states, last = found[0], found[1][0] if rnn.mode == "LSTM" else found[1]
    return pad_packed_sequence(states, batch_first=True)[0].unflatten(2, (-1, rnn.hidden_size)), last.transpose(0, 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize(("make", "step"), CELLS)
def test_a_ragged_layer_follows_the_equations_step_by_step(make: Make, step: Step, direction: str, bias: bool) -> None:
    rnn, x = make(3, 4, bias=bias, bidirectional=direction == "both"), torch.randn(3, 6, 3)
    if isinstance(rnn, Nested):
        torch._foreach_mul_([weight.data for weight in rnn.parameters()], 4)  # each memory takes a half and a tanh
    filled = x.masked_fill(torch.arange(6)[None, :, None] >= LENGTHS[:, None, None], float("nan"))
    found = ragged_rnn(rnn, filled, LENGTHS, backward=direction == "backward")
    states, last = (made.detach().numpy() for made in found)
    for b, n in enumerate(LENGTHS.tolist()):
        expected = numpy_cells.layer(step, rnn, x[b, :n].double().numpy(), direction)
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


@pytest.mark.parametrize("make", [make for make, _ in STEPPED])
def test_the_gradients_of_a_cell_of_ours_are_those_of_small_steps(make: Make) -> None:
    cell = make(3, 2, bidirectional=True).double()
    x = torch.randn(3, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *weights: ragged_rnn(cell, x, LENGTHS), (x, *cell.parameters()))


@pytest.mark.parametrize("make", [make for make, _ in CELLS])
def test_windows_that_are_carried_on_have_the_states_of_the_whole_row(make: Make) -> None:
    encoder = Recurrent(make, 3, {}, RecurrentOptions(hidden=4, layers=2, direction="forward"))
    x, mask = torch.randn(2, 9, 3), torch.ones(2, 9, dtype=torch.bool)
    whole = encoder(x, mask)["x"]
    encoder.set_stateful(2)
    windows = [encoder(part, mask[:, : part.shape[1]])["x"] for part in x.split(4, 1)]
    assert torch.allclose(torch.cat(windows, 1), whole, atol=1e-6)
    windows[2].sum().backward()
    assert encoder.carried_state is not None
    assert not encoder.carried_state.requires_grad
    encoder.eval()
    assert torch.allclose(encoder(x, mask)["x"], whole, atol=1e-6)
    encoder.train()
    encoder.set_stateful(None)
    assert torch.allclose(encoder(x, mask)["x"], whole, atol=1e-6)
