"""The recurrent encoders, which share all but their cell: one line for each kind of cell."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy_cells
import onnx
import onnxruntime
import pytest
import torch
from encoder_equations import AXES, MASKS, arrays, distance, noisy
from exported_graphs import ExportedGraph, export, ragged_mask
from torch import Tensor, nn

from seqpipe.config.signature import construct
from seqpipe.errors import UsageError
from seqpipe.nn.recurrent import Recurrent
from seqpipe_plugins.encoders.gru import GRU
from seqpipe_plugins.encoders.lstm import LSTM
from seqpipe_plugins.encoders.nested_lstm import NestedLSTM
from seqpipe_plugins.encoders.rnn import RNN


def enlarge(encoder: nn.Module, factor: float = 4) -> None:
    """Enlarge the weights: gates far from a half, and states of deep memories, in which a mistake shows."""
    with torch.no_grad():
        for weight in encoder.parameters():
            weight *= factor


class Cell(NamedTuple):
    encoder: type[Recurrent]
    options: dict[str, Any]
    step: numpy_cells.Step
    operator: str

    def build(self, sizes: dict[str, int] | None = None, **options: Any) -> Recurrent:
        encoder = construct(self.encoder, 5, sizes or {}, hidden=6, layers=2, **self.options, **options)
        if self.encoder is NestedLSTM:
            enlarge(encoder)
        if self in VARIANTS:
            enlarge(encoder, 2)
        return encoder


CELLS = [
    Cell(RNN, {}, numpy_cells.elman_tanh, "RNN"),
    Cell(RNN, {"activation": "relu"}, numpy_cells.elman_relu, "RNN"),
    Cell(GRU, {}, numpy_cells.gru_reset_after, "GRU"),
    Cell(GRU, {"reset": "before"}, numpy_cells.gru_reset_before, "GRU"),
    Cell(LSTM, {}, numpy_cells.lstm, "LSTM"),
    Cell(LSTM, {"peephole": True}, numpy_cells.peephole, "LSTM"),
    Cell(LSTM, {"coupled": True}, numpy_cells.coupled, "LSTM"),
    Cell(LSTM, {"peephole": True, "coupled": True}, numpy_cells.coupled_peephole, "LSTM"),
    Cell(NestedLSTM, {}, numpy_cells.nested_lstm, "Scan"),
    Cell(NestedLSTM, {"depth": 3}, numpy_cells.nested_lstm_of_depth_3, "Scan"),
]
SCANS = [
    Cell(GRU, {"reset": "before", "scan": True}, numpy_cells.gru_reset_before, "Scan"),
    Cell(LSTM, {"peephole": True, "scan": True}, numpy_cells.peephole, "Scan"),
    Cell(LSTM, {"coupled": True, "scan": True}, numpy_cells.coupled, "Scan"),
]
PEEPHOLE, FULL_PEEPHOLE = {"peephole": True}, {"peephole": "full"}
VARIANTS = [  # of Greff et al. (2017): each part left out, and full gate recurrence; and full peepholes
    Cell(LSTM, {"input_gate": False, **PEEPHOLE}, numpy_cells.lstm_variant(without=("i",)), "Scan"),
    Cell(LSTM, {"forget_gate": False, **PEEPHOLE}, numpy_cells.lstm_variant(without=("f",)), "Scan"),
    Cell(LSTM, {"output_gate": False, **PEEPHOLE}, numpy_cells.lstm_variant(without=("o",)), "Scan"),
    Cell(LSTM, {"input_activation": False, **PEEPHOLE}, numpy_cells.lstm_variant(without=("g",)), "Scan"),
    Cell(LSTM, {"output_activation": False, **PEEPHOLE}, numpy_cells.lstm_variant(without=("h",)), "Scan"),
    Cell(LSTM, {"full_gate_recurrence": True, **PEEPHOLE}, numpy_cells.lstm_variant(full=True), "Scan"),
    Cell(
        LSTM,
        {"full_gate_recurrence": True, "coupled": True, **PEEPHOLE},
        numpy_cells.lstm_variant(full=True, coupled=True),
        "Scan",
    ),
    Cell(
        LSTM, {"output_gate": False, "output_activation": False}, numpy_cells.lstm_variant(without=("o", "h")), "Scan"
    ),
    Cell(LSTM, FULL_PEEPHOLE, numpy_cells.full_peephole, "Scan"),
    Cell(LSTM, {"coupled": True, **FULL_PEEPHOLE}, numpy_cells.coupled_peephole, "Scan"),
    Cell(LSTM, {"input_gate": False, **FULL_PEEPHOLE}, numpy_cells.lstm_variant(without=("i",)), "Scan"),
]
BACKWARD = {"direction": "backward", "bias": False}
EXPORTED = [
    *((cell, options) for cell in (*CELLS[:5], CELLS[8]) for options in ({}, BACKWARD)),
    (CELLS[0], {"merge": "mean"}),
    (CELLS[2], {"direction": "forward"}),
    (CELLS[4], {"merge": "sum"}),
    (CELLS[5], {"direction": "forward"}),
    (CELLS[6], BACKWARD),
    (CELLS[7], {}),
    (CELLS[9], {"direction": "forward"}),
    (SCANS[0], {}),
    (SCANS[1], BACKWARD),
    (SCANS[2], {"direction": "forward"}),
    *((cell, {}) for cell in VARIANTS[:9]),
    (VARIANTS[9], BACKWARD),
]


class Exported(NamedTuple):
    cell: Cell
    options: dict[str, Any]
    encoder: Recurrent
    graph: ExportedGraph
    path: Path


@pytest.fixture(
    scope="module",
    params=EXPORTED,
    ids=[f"{c.step.__name__}-{c.operator}-{'-'.join(map(str, o.values()))}" for c, o in EXPORTED],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(1)
    cell, options = request.param
    encoder, path = cell.build(**options), tmp_path_factory.mktemp("encoder") / "encoder.onnx"
    graph = export(path, encoder, encoder.forward, AXES, x=torch.randn(3, 7, 5), mask=ragged_mask(7, 2, 4))
    return Exported(cell, options, encoder, graph, path)


@pytest.mark.parametrize("mask", MASKS)
def test_the_graph_and_pytorch_follow_the_equations_with_nan_in_the_padding(exported: Exported, mask: Tensor) -> None:
    cell, options, encoder, graph, _ = exported
    x = noisy(mask)
    output = graph(x=x, mask=mask)
    assert tuple(output) == tuple(encoder.returns)
    assert distance(output, cell.step, encoder, (x, mask), options) < 1e-5
    assert distance(arrays(encoder(x, mask)), cell.step, encoder, (x, mask), options) < 1e-5


def test_the_graph_has_one_node_a_layer_whose_weights_are_constants(exported: Exported, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(exported.path), options)
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    constants = {i.name for i in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == exported.cell.operator]
    assert len(nodes) == 2
    assert not {"Scan", "Loop", "RNN", "GRU", "LSTM"} - {exported.cell.operator} & {node.op_type for node in graph.node}
    if exported.cell.operator == "Scan":
        return
    peepholes = [name for node in nodes for name in node.input[7:] if name]
    assert len(peepholes) == (2 if exported.cell.options.get("peephole") else 0)
    assert {*peepholes} <= constants
    weights = 2 if exported.options.get("bias") is False else 3
    assert all({*node.input[1:4]} - {""} <= constants for node in nodes)
    assert all(len([name for name in node.input[1:4] if name]) == weights for node in nodes)
    assert all(node.input[4] for node in nodes)  # the lengths


def test_a_graph_that_is_told_other_lengths_answers_differently(exported: Exported) -> None:
    cell, options, encoder, graph, _ = exported
    x, mask = torch.randn(2, 6, 5), ragged_mask(6, 3)
    output = graph(x=x, mask=torch.ones_like(mask))
    assert distance(output, cell.step, encoder, (x, mask), options) > 1e-3


WAYS = [("forward", "concat"), ("backward", "concat"), ("both", "concat"), ("both", "sum"), ("both", "mean")]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("direction", "merge"), WAYS)
@pytest.mark.parametrize("cell", [*CELLS, *VARIANTS])
def test_an_encoder_follows_the_equations_with_every_option(cell: Cell, direction: str, merge: str, bias: bool) -> None:
    options = {"direction": direction, "merge": merge}
    encoder, x, mask = cell.build(bias=bias, **options).eval(), torch.randn(3, 6, 5), ragged_mask(4, 6, 1)
    output = encoder(x, mask)
    assert encoder.dim == output["x"].shape[2] == (12 if (direction, merge) == ("both", "concat") else 6)
    assert distance(arrays(output), cell.step, encoder, (x, mask), options) < 1e-5
    assert any("bias" in name for name, _ in encoder.named_parameters()) == bias
    output["x"].square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


@pytest.mark.parametrize("cell", VARIANTS)
def test_token_by_token_a_variant_gives_the_same(cell: Cell) -> None:
    encoder, x, mask = cell.build(direction="forward").eval(), torch.randn(3, 6, 5), ragged_mask(6, 6, 6)
    state: Any = tuple(torch.zeros(3, 6) for _ in range(encoder.cache_shape[0]))
    steps = []
    for t in range(6):
        step, state = encoder.step(x[:, t], torch.tensor(t), None, state)  # type: ignore[arg-type]
        steps.append(step)
    torch.testing.assert_close(torch.stack(steps, 1), encoder(x, mask)["x"], atol=1e-6, rtol=0)


NO_GATES = {"input_gate": False, "forget_gate": False, "output_gate": False}


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        (LSTM, {"scan": True}, "scan: it is for peephole or coupled"),
        (GRU, {"scan": True}, "scan: it is for reset: before"),
        (LSTM, {"coupled": True, "input_gate": False}, "lstm.coupled"),
        (LSTM, {"coupled": True, "forget_gate": False}, "lstm.coupled"),
        (LSTM, {"scan": True, "output_gate": False}, "lstm.scan"),
        (LSTM, {"scan": True, **FULL_PEEPHOLE}, "lstm.scan: .*full peepholes imply it; delete it"),
        (LSTM, {"peephole": True, **NO_GATES}, "lstm.peephole"),
        (LSTM, {**FULL_PEEPHOLE, **NO_GATES}, "lstm.peephole"),
        (LSTM, {"full_gate_recurrence": True, **NO_GATES}, "lstm.full_gate_recurrence"),
    ],
)
def test_options_that_contradict_each_other_are_refused(encoder: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        construct(encoder, 5, {}, **options)


@pytest.mark.parametrize(
    "encoder",
    [
        construct(LSTM, 5, {}, hidden=6, peephole=True),
        construct(LSTM, 5, {}, hidden=6, peephole="full"),
        construct(NestedLSTM, 5, {}, hidden=6, depth=1),
    ],
)
def test_without_what_makes_it_a_variant_it_is_the_library_s_lstm(encoder: Recurrent) -> None:
    library, x, mask = nn.LSTM(5, 6, batch_first=True, bidirectional=True), torch.randn(2, 7, 5), ragged_mask(7, 7)
    weights = dict(encoder.layers[0].named_parameters())
    for name, weight in library.named_parameters():
        weights[name].data.copy_(weight.data)
    for name, weight in encoder.named_parameters():
        if "weight_ch" in name:
            assert (encoder(x, mask)["x"] - library(x)[0]).abs().max() > 1e-3
            weight.data.zero_()
    assert torch.allclose(encoder(x, mask)["x"], library(x)[0], atol=1e-6)


def test_full_peepholes_with_a_diagonal_matrix_are_elementwise_ones_and_with_another_they_are_not() -> None:
    elementwise, full = (construct(LSTM, 5, {}, hidden=6, peephole=peephole) for peephole in (True, "full"))
    x, mask = torch.randn(2, 7, 5), ragged_mask(7, 3)
    weights = elementwise.state_dict()
    connections = {name: part for name, part in weights.items() if "weight_ch" in name}
    matrices = {name: torch.cat([vector.diag() for vector in part.split(6)]) for name, part in connections.items()}
    full.load_state_dict(weights | matrices)
    expected = elementwise(x, mask)["x"]
    assert torch.allclose(full(x, mask)["x"], expected, atol=1e-6)
    for name, matrix in matrices.items():
        matrices[name] = matrix.roll(1, 1)  # each unit reads its neighbour's cell
    full.load_state_dict(weights | matrices)
    assert (full(x, mask)["x"] - expected).abs().max() > 1e-3


@pytest.mark.parametrize("cell", CELLS)
def test_locked_dropout_silences_columns_of_what_a_layer_reads_in_the_whole_row(cell: Cell) -> None:
    encoder = construct(cell.encoder, 40, {}, hidden=6, **cell.options, locked_dropout=0.5)
    x, mask = torch.randn(3, 9, 40, requires_grad=True), ragged_mask(9, 5, 2)
    (slope,) = torch.autograd.grad(encoder(x, mask)["x"].square().sum(), x)
    silent = (slope == 0)[:, :2].all(1)  # (B, D) a column that nothing depends on
    assert 0.3 < silent.float().mean() < 0.7
    assert not (slope[mask.unsqueeze(2) & ~silent[:, None]] == 0).any() or cell.step is numpy_cells.elman_relu
    assert not slope[(mask.unsqueeze(2) & silent[:, None])].any()
    assert not torch.equal(silent[0], silent[1])
    assert torch.equal(encoder.eval()(x, mask)["x"], encoder(x, mask)["x"])


def test_dropout_is_for_several_layers() -> None:
    with pytest.raises(UsageError, match="dropout: it is between two layers, and layers is 1"):
        construct(LSTM, 5, {}, hidden=6, dropout=0.5)
    encoder, x, mask = construct(LSTM, 5, {}, hidden=6, layers=2, dropout=0.5), torch.randn(2, 4, 5), ragged_mask(4, 2)
    assert not torch.equal(encoder(x, mask)["x"], encoder(x, mask)["x"])


@pytest.mark.parametrize(
    ("encoder", "options", "kept"),
    [
        (LSTM, {}, {0: -1, 1: 1}),
        (LSTM, {"coupled": True}, {0: -1}),
        (LSTM, {"input_gate": False}, {0: 1}),
        (GRU, {}, {1: 1}),
        (GRU, {"reset": "before"}, {1: 1}),
    ],
)
def test_gates_start_with_the_times_to_remember(encoder: Any, options: dict[str, Any], kept: dict[int, int]) -> None:
    made = construct(encoder, 5, {}, hidden=500, longest_dependency=100, **options)
    for suffix in ("", "_reverse"):
        bias = getattr(made.layers[0], f"bias_ih_l0{suffix}") + getattr(made.layers[0], f"bias_hh_l0{suffix}")
        blocks = bias.detach().unflatten(0, (-1, 500))
        for block, sign in kept.items():
            times = (sign * blocks[block]).exp()
            assert times.min() >= 1
            assert times.max() <= 99.001
            assert abs(times.mean() - 50) < 5  # uniform, with a standard deviation of 28.3 / sqrt(500)
        assert all(block.abs().max() < 0.1 for number, block in enumerate(blocks) if number not in kept)
    if len(kept) == 2:
        assert torch.equal(blocks[0], -blocks[1])
    with pytest.raises(UsageError, match="longest_dependency: it initialises the biases"):
        construct(encoder, 5, {}, hidden=6, longest_dependency=10, bias=False, **options)
