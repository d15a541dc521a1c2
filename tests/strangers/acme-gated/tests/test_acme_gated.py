import numpy as np
import pytest
import torch
from acme_gated.encoder import GatedConv

from seqpipe.plugin import UsageError, check_encoder


def test_it_keeps_the_contract_of_encoders() -> None:
    check_encoder(GatedConv, hidden=8, width=3, layers=2, dropout=0.1)


def test_it_computes_what_the_paper_says() -> None:
    encoder = GatedConv(4, hidden=3, width=5)
    x = torch.randn(1, 6, 4)
    enter, conv = encoder.enter, encoder.layers[0]
    h = x[0].numpy() @ enter.weight.detach().numpy().T + enter.bias.detach().numpy()  # (T, 3)
    weight, bias = conv.weight.detach().numpy(), conv.bias.detach().numpy()  # (6, 3, 5), (6,)
    padded = np.pad(h, ((2, 2), (0, 0)))
    expected = []
    for t in range(6):  # h_l(X) = (X * W + b) ⊗ σ(X * V + c), and the residual
        both = np.einsum("oiw,wi->o", weight, padded[t : t + 5]) + bias
        expected.append(h[t] + both[:3] / (1 + np.exp(-both[3:])))
    outputs = encoder(x, torch.ones(1, 6).bool())[0].detach().numpy()
    np.testing.assert_allclose(outputs, np.array(expected), atol=1e-5)


def test_an_even_width_is_refused() -> None:
    with pytest.raises(UsageError, match="write 5"):
        GatedConv(4, width=4)
