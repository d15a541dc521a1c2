from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from nn.exported import Graph, elsewhere, export, ragged
from torch import Tensor

from seqpipe_plugins.encoders.lstm import LSTM

AXES = {"x": ("b", "t"), "mask": ("b", "t")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[LSTM, Graph, Path]:
    torch.manual_seed(1)
    lstm, path = LSTM(5, hidden=6, layers=2), tmp_path_factory.mktemp("lstm") / "lstm.onnx"
    graph = export(path, lstm, lstm.forward, AXES, x=torch.randn(3, 7, 5), mask=ragged(7, 2, 4))
    return lstm, graph, path


@pytest.mark.parametrize("mask", [ragged(1), ragged(9), ragged(2, 1), ragged(3, 12, 1, 7, 12)])
def test_the_graph_gives_the_same_states_whatever_stands_in_the_padding(
    pair: tuple[LSTM, Graph, Path], mask: Tensor
) -> None:
    lstm, graph, _ = pair
    x = torch.randn(*mask.shape, 5)
    made, expected = graph(x=x.masked_fill(~mask[..., None], float("nan")), mask=mask), lstm(x, mask)
    assert tuple(made) == LSTM.returns
    assert np.abs(made["x"] - expected["x"].numpy()).max() < 1e-6
    assert np.abs(made["state"] - expected["state"].numpy()).max() < 1e-6


def test_a_graph_that_is_told_other_lengths_answers_differently(pair: tuple[LSTM, Graph, Path]) -> None:
    lstm, graph, _ = pair
    x, mask = torch.randn(2, 6, 5), ragged(6, 3)
    made, expected = graph(x=x, mask=torch.ones_like(mask)), lstm(x, mask)
    assert np.abs(made["x"] - expected["x"].numpy())[1, :3].max() > 1e-3


def test_onnxruntime_sees_the_reordered_weights_as_constants(pair: tuple[LSTM, Graph, Path], tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(pair[2]), options)
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    constants, nodes = {i.name for i in graph.initializer}, [n for n in graph.node if n.op_type == "LSTM"]
    assert len(nodes) == 2  # one a layer
    assert all(set(node.input[1:4]) <= constants for node in nodes)


def test_neighbours_and_padding_never_change_a_row() -> None:
    lstm, x, mask = LSTM(5, hidden=6, layers=2).eval(), torch.randn(3, 9, 5), ragged(4, 9, 1)
    together = lstm(x, mask)
    for b, n in enumerate(mask.sum(1).tolist()):
        alone = lstm(x[b : b + 1, :n], ragged(n))
        assert torch.allclose(together["x"][b, :n], alone["x"][0], atol=1e-6)
        assert torch.allclose(together["state"][b], alone["state"][0], atol=1e-6)


def test_the_width_is_as_stated_and_every_weight_learns() -> None:
    for bidirectional, dim in ((True, 12), (False, 6)):
        lstm = LSTM(5, hidden=6, layers=2, bidirectional=bidirectional, dropout=0.5)
        made = lstm(torch.randn(2, 4, 5), ragged(4, 2))
        assert lstm.dim == made["x"].shape[2] == made["state"].shape[1] == dim
        made["x"].sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in lstm.parameters())


def test_everything_is_made_where_the_input_is() -> None:
    lstm, x, mask = LSTM(5, hidden=6), torch.randn(2, 4, 5), ragged(4, 2)
    with elsewhere():
        assert lstm(x, mask)["x"].device.type == "cpu"
