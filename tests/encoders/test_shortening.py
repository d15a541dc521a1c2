"""The encoders `pyramid` and `subsample`: fewer rows than they read, step by step from the encoder_equations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_equations import AXES, arrays, noisy
from exported_graphs import export, meta_device, ragged_mask
from numpy_cells import Array, layer, lstm
from torch import nn

from seqpipe_plugins.encoders.conv import Subsample
from seqpipe_plugins.encoders.lstm import Pyramid

LENGTHS = [(9, 4, 7), (1,), (2, 16, 1, 5), (8, 3)]


def expected_of_pyramid(encoder: Pyramid, row: Array) -> dict[str, Array]:
    last = row
    for rnn in encoder.layers:
        if len(row) % 2:
            row = np.concatenate([row, np.zeros_like(row[:1])])
        pairs = np.stack([np.concatenate([row[t], row[t + 1]]) for t in range(0, len(row), 2)])
        ways = layer(lstm, rnn, pairs, "both")
        row, last = np.concatenate([way[0] for way in ways], 1), np.concatenate([way[1] for way in ways])
    return {"x": row, "state": last}


def expected_of_subsample(encoder: Subsample, row: Array) -> dict[str, Array]:
    maps = row[None]  # (1, T, F)
    for convolution in encoder.layers:
        W, b = (p.detach().double().numpy() for p in convolution.parameters())  # (C', C, 3, 3)
        _, T, F = maps.shape
        wide = np.zeros((len(maps), T + 2, F + 2))
        wide[:, 1:-1, 1:-1] = maps
        places = [[wide[:, t : t + 3, f : f + 3] for f in range(0, F, 2)] for t in range(0, T, 2)]
        sums = np.array([[(W * place).sum((1, 2, 3)) + b for place in line] for line in places])  # (T', F', C')
        maps = np.maximum(sums, 0).transpose(2, 0, 1)
    W, b = (p.detach().double().numpy() for p in encoder.output.parameters())
    return {"x": maps.transpose(1, 0, 2).reshape(maps.shape[1], -1) @ W.T + b}


CASES: list[tuple[nn.Module, Any, int]] = [
    (Pyramid(5, hidden=4, layers=2), expected_of_pyramid, 2),
    (Pyramid(5, hidden=3, layers=1), expected_of_pyramid, 1),
    (Subsample(5, hidden=6, filters=3), expected_of_subsample, 2),
    (Subsample(5, hidden=4, layers=3, filters=2), expected_of_subsample, 3),
]


@pytest.mark.parametrize(("encoder", "expected", "halvings"), CASES)
def test_both_follow_the_equations(encoder: nn.Module, expected: Any, halvings: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    mask = ragged_mask(9, 4, 7)
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, AXES, x=noisy(mask), mask=mask)
    for lengths in LENGTHS:
        mask = ragged_mask(*lengths)
        feed = {"x": noisy(mask), "mask": mask}
        x = feed["x"].double().numpy()
        for output in (graph(**feed), arrays(encoder(**feed))):
            shorter = [-(-n // 2**halvings) for n in lengths]
            assert output["mask"].tolist() == ragged_mask(*shorter).tolist()
            assert output["x"].shape == (*output["mask"].shape, encoder.dim)
            assert not output["x"][~output["mask"]].any()
            for b, (length, count) in enumerate(zip(lengths, shorter, strict=True)):
                values = expected(encoder, x[b, :length])
                assert np.abs(output["x"][b, :count] - values["x"]).max() < 1e-5
                if "state" in values:
                    assert np.abs(output["state"][b] - values["state"]).max() < 1e-5


@pytest.mark.parametrize(("encoder", "expected", "halvings"), CASES)
def test_an_empty_sound_has_no_rows_and_the_device_is_kept(encoder: nn.Module, expected: Any, halvings: int) -> None:
    output = encoder(torch.randn(2, 3, 5), torch.tensor([[True] * 3, [False] * 3]))
    assert not output["mask"][1].any()
    assert torch.isfinite(output["x"]).all()
    with meta_device():
        encoder(torch.randn(2, 3, 5, device="cpu"), torch.ones(2, 3, dtype=torch.bool, device="cpu"))
