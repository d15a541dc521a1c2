"""Initial states of the recurrent encoders against NumPy: learned, of a label, and of another source's state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_equations import AXES, arrays, distance, noisy
from exported_graphs import export, ragged_mask
from numpy_cells import Array, lstm, run_direction, weights_of
from test_rnn_gru_lstm import CELLS, SCANS, VARIANTS, Cell
from torch import Tensor, nn

from seqpipe.config.signature import construct
from seqpipe.errors import UsageError
from seqpipe.nn.incremental import CacheSlots, prefix_cache
from seqpipe_plugins.encoders.bilm import BiLMEncoder
from seqpipe_plugins.encoders.gru import GRU

LEARNED, COLUMN, SOURCE = "learned", {"column": "mood"}, {"source": "title"}
EVERY = [*CELLS, *SCANS, VARIANTS[1], VARIANTS[5]]
SIZES = {"initial_label": 3, "source_state": 4}
DIRECTIONS = ["both", "backward", "forward"]
NAMES = {"learned": (), "column": ("initial_label",), "source": ("source_state",)}
EVERY_AXIS = {**AXES, "initial_label": ("b", ""), "source_state": ("b", "")}


def key(option: str | Mapping[str, str]) -> str:
    return option if isinstance(option, str) else next(iter(option))


def build(cell: Cell, option: Any, direction: str) -> Any:
    torch.manual_seed(1)
    encoder: Any = cell.build(SIZES, direction=direction, initial_state=option).eval()
    randomise(encoder.initial)
    return encoder


def randomise(initial: nn.Module) -> None:
    """States as large as those of any token, so that a wrong one shows."""
    for weight in initial.parameters():
        nn.init.normal_(weight)


def inputs(option: str | Mapping[str, str], mask: Tensor) -> dict[str, Tensor]:
    """Names for an encoder, with NaN in the padding; each row has its own label and its own source state."""
    B = len(mask)
    given = {"initial_label": torch.arange(B)[:, None] % 3, "source_state": torch.randn(B, 4)}
    return {"x": noisy(mask), "mask": mask} | {name: given[name] for name in NAMES[key(option)]}


def expected_start(encoder: nn.Module, names: Mapping[str, Tensor], row: int, shape: tuple[int, ...]) -> Array:
    """The initial states (layers, directions, S, H) of a row by the equations: of given states h has a tanh."""
    p = {name: w.detach().double().numpy() for name, w in encoder.named_parameters() if name.startswith("initial.")}
    if "initial.states" in p:
        return p["initial.states"].reshape(shape)
    if "source_state" in names:
        v = names["source_state"][row].double().numpy()
        states = p["initial.linear.weight"] @ v + p["initial.linear.bias"]
    else:
        one_hot = np.eye(3)[int(names["initial_label"][row, 0])]
        states = p["initial.labels.weight"].T @ one_hot
    states = states.reshape(shape)
    states[:, :, 0] = np.tanh(states[:, :, 0])
    return states


def error(output: Mapping[str, Any], cell: Cell, encoder: Any, names: Mapping[str, Tensor], direction: str) -> float:
    """The greatest difference at the tokens from the encoder_equations."""
    shape = (2, 2 if direction == "both" else 1, encoder._states, 6)

    def start(row: int) -> Array:
        return expected_start(encoder, names, row, shape)

    return distance(output, cell.step, encoder, (names["x"], names["mask"]), {"direction": direction}, start)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("option", [LEARNED, COLUMN, SOURCE], ids=key)
@pytest.mark.parametrize("cell", EVERY)
def test_an_encoder_starts_as_the_equations_say_and_trains_its_start(cell: Cell, option: Any, direction: str) -> None:
    encoder, names = build(cell, option, direction), inputs(option, ragged_mask(4, 6, 1, 6))
    output = encoder(**names)
    assert error(arrays(output), cell, encoder, names, direction) < 1e-5
    output["x"].square().sum().backward()
    gradients = [w.grad for name, w in encoder.named_parameters() if name.startswith("initial.")]
    assert gradients
    assert all(gradient is not None and gradient.nan_to_num().any() for gradient in gradients)


def some(cases: list[Any], commit: set[int]) -> list[Any]:
    """Cases with their numbers; those whose numbers are not in `commit` only behind the marker `long`."""
    marks = [() if number in commit else (pytest.mark.long,) for number in range(len(cases))]
    return [pytest.param(number, case, marks=marks[number]) for number, case in enumerate(cases)]


@pytest.mark.parametrize(("number", "cell"), some(EVERY, {0, 3, 4, 7, 14}))
def test_the_graph_starts_as_the_equations_say_at_sizes_it_never_saw(number: int, cell: Cell, tmp_path: Path) -> None:
    option: Any = (SOURCE, COLUMN, LEARNED)[number % 3]
    direction = DIRECTIONS[(number // 2) % 3]
    encoder = build(cell, option, direction)
    names = inputs(option, ragged_mask(7, 2, 4)) | {"x": torch.randn(3, 7, 5)}
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, EVERY_AXIS, **names)
    for mask in (ragged_mask(1), ragged_mask(3, 12, 1, 7, 12)):
        names = inputs(option, mask)
        assert error(graph(**names), cell, encoder, names, direction) < 1e-5
    wrong = {**names, "mask": torch.ones_like(names["mask"]), "x": names["x"].nan_to_num()}
    assert error(graph(**wrong), cell, encoder, names, direction) > 1e-3


@pytest.mark.parametrize(("number", "option"), some([LEARNED, COLUMN, SOURCE], {2}))
def test_both_directions_of_a_bilm_start_as_the_equations_say(number: int, option: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder: Any = BiLMEncoder(5, SIZES, hidden=6, layers=2, initial_state=option).eval()
    randomise(encoder.initial)
    example = inputs(option, ragged_mask(7, 2, 4)) | {"x": torch.randn(3, 7, 5)}
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, EVERY_AXIS, **example)
    names = inputs(option, ragged_mask(3, 9, 1))
    projected = encoder.input(names["x"]).detach().double().numpy()
    for made in (graph(**names), encoder(**names)):
        for row, length in enumerate((3, 9, 1)):
            start = expected_start(encoder, names, row, (2, 2, 2, 6))  # direction, layer, h or c
            for number, name in enumerate(("forwards", "backwards")):
                read = projected[row, :length]
                for depth, rnn in enumerate(encoder.ways[number]):
                    states = run_direction(lstm, weights_of(rnn), read, bool(number), start[number, depth])
                    read = states + read if depth else states
                assert np.abs(np.asarray(made[name][row, :length]) - read).max() < 1e-5


def test_zeros_add_nothing_to_the_model() -> None:
    encoder = construct(GRU, 5, {}, hidden=6)
    assert not [name for name in encoder.state_dict() if "initial" in name]
    assert encoder.initial is None
    learned = construct(GRU, 5, {}, hidden=6, direction="forward", initial_state="learned")
    zero = construct(GRU, 5, {}, hidden=6, direction="forward")
    zero.layers.load_state_dict(learned.layers.state_dict())
    x, mask = torch.randn(2, 4, 5), ragged_mask(4, 3)
    assert torch.equal(learned(x, mask)["x"], zero(x, mask)["x"])  # before training it is 0


def test_a_given_state_that_is_not_there_is_an_error() -> None:
    encoder = construct(GRU, 5, SIZES, hidden=6, initial_state={"column": "mood"})
    with pytest.raises(UsageError, match="initial_state: it is computed from 'initial_label', which is missing"):
        encoder(torch.randn(2, 4, 5), ragged_mask(4, 3))


@pytest.mark.parametrize("option", [LEARNED, COLUMN], ids=key)
@pytest.mark.parametrize("cell", [cell for cell in EVERY if cell.operator != "Scan"])
def test_a_cache_without_tokens_is_the_initial_state(cell: Cell, option: Any) -> None:
    encoder, mask = build(cell, option, "forward"), ragged_mask(6, 6)
    names = inputs(option, mask)
    label = {name: tensor for name, tensor in names.items() if name == "initial_label"}
    whole, before, both = encoder(**names)["x"], mask[:, :0], torch.tensor([True, True])

    def read(cache: Tensor, first: int, last: int, count: Tensor) -> tuple[Tensor, Tensor]:
        """x of the tokens from `first` to `last`, and the cache behind them."""
        memory = prefix_cache(encoder.import_cache(cache, **label), before)
        x, state = encoder.prefill(names["x"][:, first:last], mask[:, first:last] & count[:, None], memory)
        return x, encoder.export_cache(prefix_cache(state, before), CacheSlots(torch.zeros(2, 0), before, both))

    first, cache = read(torch.zeros(2, 0, *encoder.cache_shape), 0, 2, both)
    rest, _ = read(cache, 2, 6, both)
    assert torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-6)
    emptied = cache * torch.tensor([1.0, 0.0])[:, None, None, None]  # of the second row nothing was read yet
    again, _ = read(emptied, 0, 2, both)
    assert torch.allclose(again[1], whole[1, :2], atol=1e-6)
    assert not torch.allclose(again[0], whole[0, :2], atol=1e-3)


def test_stateful_training_starts_from_the_learned_state_and_trains_it() -> None:
    encoder = build(CELLS[4], LEARNED, "forward").train()
    x, mask = torch.randn(2, 9, 5), ragged_mask(9, 9)
    whole = encoder(x, mask)["x"]
    for _ in range(2):  # a second epoch starts from it too
        encoder.set_stateful(2)
        windows = [encoder(part, mask[:, : part.shape[1]])["x"] for part in x.split(4, 1)]
        assert torch.allclose(torch.cat(windows, 1), whole, atol=1e-6)
        assert not encoder.carried_state.requires_grad
    windows[0].sum().backward()
    assert encoder.initial.states.grad.any()
