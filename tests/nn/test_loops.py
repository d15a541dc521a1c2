from pathlib import Path

import numpy as np
import pytest
import torch
from exported_graphs import ExportedGraph, export
from torch import Tensor, nn

from seqpipe.nn.loops import State, scan, while_loop


def sums(x: Tensor) -> dict[str, Tensor]:
    """Running sums of x (T, B) from either end, and how often the total doubles before it reaches 100."""

    def add(state: State, rows: State) -> tuple[State, State]:
        return (state[0] + rows[0], state[1]), (state[0], state[1])  # carries one tensor on, and hands both out

    start = (torch.zeros_like(x[0]), x[0])
    (total, _), (before, first) = scan(add, start, (x,))
    _, (behind, _) = scan(add, start, (x,), reverse=True)

    def double(count: Tensor, now: Tensor, once: Tensor) -> State:
        return count + 1, now + now, once

    count, *_ = while_loop(lambda n, now, once: (now < 100).any() & (n < 50), double, (torch.tensor(0), total, x[0]))
    return {"before": before, "behind": behind, "first": first, "count": count}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ExportedGraph:
    path: Path = tmp_path_factory.mktemp("loops") / "loops.onnx"
    return export(path, nn.Identity(), sums, {"x": ("t", "b")}, x=torch.rand(4, 3))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (9, 2)])
def test_a_loop_gives_the_same_in_python_and_in_the_graph(graph: ExportedGraph, shape: tuple[int, int]) -> None:
    x = torch.rand(shape) + 0.1
    made, expected = graph(x=x), sums(x)
    assert {"Scan", "Loop"} <= set(graph.operators)
    assert all(np.array_equal(made[name], expected[name].numpy()) for name in expected)


def test_rows_stand_where_they_were_made_in_either_direction() -> None:
    x = torch.rand(6, 2)
    made = sums(x)
    assert torch.allclose(made["before"], x.cumsum(0) - x)
    assert torch.allclose(made["behind"], x.flip(0).cumsum(0).flip(0) - x, atol=1e-6)
    assert int(made["count"]) == int(torch.log2(100 / x.sum(0).min()).ceil())


def test_gradients_flow_through_a_scan() -> None:
    x = torch.rand(5, 2, requires_grad=True)
    sums(x)["before"].sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [4, 3, 2, 1, 0]


def test_a_loop_that_is_over_before_it_begins_leaves_its_state(graph: ExportedGraph) -> None:
    assert int(graph(x=torch.full((2, 2), 500.0))["count"]) == 0
