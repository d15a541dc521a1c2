from pathlib import Path

import numpy as np
import pytest
from encoder_equations import assert_rows, outputs
from numpy_cells import Array

from seqpipe_plugins.encoders.cnn import CNN


def expected(encoder: CNN, row: Array, activation: str) -> Array:
    """The paper's equation for each window of a text (T, D): (T, D')."""
    maps = []
    for convolution, w in zip(encoder.convolutions, encoder.widths, strict=True):
        weight, bias = (p.detach().double().numpy() for p in convolution.parameters())  # (F, D, w), (F,)
        zeros = np.zeros((w, row.shape[1]))
        padded = np.concatenate([zeros, row, zeros])
        windows = [padded[t + w - (w - 1) // 2 :][:w] for t in range(len(row))]
        maps.append([[(filter_.T * window).sum() for filter_ in weight] + bias for window in windows])
    x = np.concatenate(maps, 1)
    return np.tanh(x) if activation == "tanh" else np.maximum(x, 0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("widths", [[1], [2], [2, 3, 5], [2, 7]])
def test_windows_follow_the_equation_with_zeros_around(widths: list[int], activation: str, tmp_path: Path) -> None:
    encoder = CNN(5, filters=4, widths=widths, activation=activation)  # type: ignore[arg-type]
    in_graph = widths == [2, 3, 5] and activation == "relu"
    for x, mask, output in outputs(encoder, tmp_path if in_graph else None):
        assert output["x"].shape[2] == encoder.dim
        assert_rows(output["x"], x, mask, lambda row: expected(encoder, row, activation))
