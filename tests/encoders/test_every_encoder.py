"""Checks that hold for all encoders and embeddings with code of their own, with their options in a table."""

import pytest
import torch
from exported_graphs import meta_device, ragged_mask
from test_rnn_gru_lstm import CELLS
from torch import Tensor, nn

from seqpipe.config.signature import construct
from seqpipe_plugins.embeddings.char_cnn import CharCNN
from seqpipe_plugins.embeddings.char_lstm import CharLSTM
from seqpipe_plugins.embeddings.positions import Positions
from seqpipe_plugins.encoders.bag import Bag
from seqpipe_plugins.encoders.cnn import CNN
from seqpipe_plugins.encoders.conv import Conv
from seqpipe_plugins.encoders.lstm import LSTM
from seqpipe_plugins.encoders.self_attention import SelfAttention
from seqpipe_plugins.encoders.transformer import Transformer

ENCODERS = [
    *(cell.build() for cell in CELLS),
    Bag(5, pool="max"),
    CNN(5),
    Conv(5, causal=True),
    SelfAttention(5, score="dot", positions="sinusoidal", causal=True),
    Transformer(5, heads=1, positions="learned", causal=True),
]
EMBEDDINGS = [
    (CharCNN({"chars": 12}, dim=6, char_dim=4), torch.ones(2, 3, 4, dtype=torch.int64)),
    (CharLSTM({"chars": 12}, dim=6, char_dim=4), torch.ones(2, 3, 4, dtype=torch.int64)),
    (Positions(dim=4), ragged_mask(4, 2)),
    (Positions(dim=4, positions="learned"), ragged_mask(4, 2)),
]
WITH_DROPOUT = [
    Bag(5, hidden=30, layers=2, dropout=0.5),
    CNN(5, filters=4, widths=[2, 3], dropout=0.5),
    Conv(5, hidden=6, gated=True, dropout=0.5),
    Transformer(5, hidden=6, heads=2, positions="learned", longest=4, dropout=0.2),
    construct(LSTM, 5, {}, hidden=6, layers=2, dropout=0.5),
]
INPUTS = [(encoder, torch.randn(2, 4, 5), ragged_mask(4, 2)) for encoder in ENCODERS]


def x_of(output: Tensor | dict[str, Tensor]) -> Tensor:
    return output["x"] if isinstance(output, dict) else output


@pytest.mark.parametrize("inputs", [*INPUTS, *EMBEDDINGS], ids=lambda inputs: type(inputs[0]).__name__)
def test_every_tensor_is_created_on_the_device_of_the_input(inputs: tuple[nn.Module, *tuple[Tensor, ...]]) -> None:
    component, *tensors = inputs
    with meta_device():
        output = component(*tensors)
    for tensor in output.values() if isinstance(output, dict) else [output]:
        assert tensor.device.type == "cpu"


@pytest.mark.parametrize("encoder", WITH_DROPOUT, ids=lambda encoder: type(encoder).__name__)
def test_dropout_is_for_training_only_and_every_weight_has_a_gradient(encoder: nn.Module) -> None:
    x, mask = torch.randn(4, 6, 5), ragged_mask(6, 4, 5, 3)
    encoder.train()
    assert not torch.equal(x_of(encoder(x, mask)), x_of(encoder(x, mask)))
    output = x_of(encoder(x, mask))
    output.mul(torch.randn(output.shape)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())
    encoder.eval()
    assert torch.equal(x_of(encoder(x, mask)), x_of(encoder(x, mask)))
