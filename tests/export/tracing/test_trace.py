"""A program traced once for export answers as PyTorch does, whatever it does to tensors, types, sizes and loops."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_graphs import ExportedGraph, export, ragged_mask
from torch import Tensor, nn

from seqpipe.export.tracing.conversion import onnx_model
from seqpipe.export.tracing.onnx_registry import onnx_registry
from seqpipe.export.tracing.recorder import UntraceableError, trace_module
from seqpipe.nn.loops import State, run_if, scan, while_loop

AXES = {"x": ("t", "b"), "n": ("b",)}
SHAPES = [(1, 1), (1, 4), (5, 2), (9, 3)]


def example(length: int, rows: int) -> dict[str, Tensor]:
    return {"x": torch.rand(length, rows) + 0.1, "n": torch.arange(rows) % 3 + 1}


class Called(nn.Module):
    def __init__(self, call: Callable[..., tuple[Tensor, ...]]):
        super().__init__()
        self.call = call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.call(*inputs)


def graph_of(path: Path, call: Callable[..., Mapping[str, Tensor]], module: nn.Module | None = None) -> ExportedGraph:
    return export(path / "graph.onnx", module or nn.Identity(), call, AXES, **example(4, 3))


def assert_same(
    graph: ExportedGraph,
    call: Callable[..., Mapping[str, Tensor]],
    *inputs: Mapping[str, Tensor],
    tolerance: float = 1e-6,
) -> None:
    """The graph answers as the function does, on shapes that the exporter never saw."""
    for feed in inputs or [example(*shape) for shape in SHAPES]:
        with torch.no_grad():
            expected = call(**feed)
        outputs = graph(**feed)
        for name, tensor in expected.items():
            assert outputs[name].dtype == tensor.numpy().dtype, name
            np.testing.assert_allclose(outputs[name], tensor.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def is_traced(call: Callable[..., Mapping[str, Tensor]]) -> bool:
    """Return True if the tracer records the function, and does not leave it to `torch.export`."""
    try:
        trace_module(
            Called(lambda x, n: (*call(x, n).values(),)), example(4, 3), [{0: "t", 1: "b"}, {0: "b"}], onnx_registry(18)
        )
    except UntraceableError:
        return False
    return True


def mixed(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """Operators whose arguments have several types."""
    flags = n > 1
    return {
        "added": x + n,
        "scaled": n * 0.5,
        "divided": n / 2,
        "whole": n // 2 + flags,
        "power": n**2,
        "chosen": torch.where(flags, x, 0),
        "mean": (x * flags).sum(0) / n,
        "joined": torch.cat([x[0], n]),
        "compared": (x > n).sum(0),
    }


def sized(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """Sizes that are computed from other sizes, outside of a loop and inside."""
    T, B = x.shape
    half = torch.arange(T // 2 + 1)
    wide = torch.zeros(2 * T + B, B)

    def step(state: State, rows: State) -> tuple[State, State]:
        longest = torch.full((T + B,), 1.0).sum()
        return (state[0] + rows[0] / T + longest,), (state[0][:, None].expand(-1, T // 2 + 2).sum(1),)

    (total,), (rows,) = scan(step, (torch.zeros_like(x[0]),), (x,))
    return {"half": half, "wide": wide + T, "total": total, "rows": rows, "count": torch.full((), x.numel())}


def in_place(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """Writes into tensors that nobody else sees."""
    y = x * 2
    y += 1
    y.mul_(n)
    mask = n > 1
    z = torch.zeros_like(x)
    z.masked_fill_(mask, 3.0).add_(y)
    count = n + 0
    count -= 1
    flags = n > 1
    flags |= x.sum(0) > 1
    return {"y": y, "z": z, "count": count, "flags": flags}


def nested(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """A scan in a scan, both of which read the input."""

    def inner(state: State, rows: State) -> tuple[State, State]:
        return (state[0] + rows[0] * x.sum(),), (state[0] * 1,)

    def outer(state: State, rows: State) -> tuple[State, State]:
        (last,), (made,) = scan(inner, (state[0],), (x,), reverse=True)
        return (last / x.shape[0] + rows[0],), (made.sum(0) + n,)

    (last,), (made,) = scan(outer, (torch.zeros_like(x[0]),), (x[:2],))
    return {"last": last, "made": made}


def loops_in_loops(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """A scan and a while_loop in a while_loop, and a while_loop in a scan."""

    def add(state: State, rows: State) -> tuple[State, State]:
        return (state[0] * 0.5 + rows[0],), (state[0] + 0,)

    def scanning(i: Tensor, y: Tensor) -> State:
        (last,), (rows,) = scan(add, (y,), (x,))
        return i + 1, last + rows.sum(0)

    def repeating(i: Tensor, y: Tensor) -> State:
        _, z = while_loop(lambda j, z: j < i + 1, lambda j, z: (j + 1, z + x[0]), (i * 0, y))
        return i + 1, z

    def stepping(state: State, rows: State) -> tuple[State, State]:
        _, z = while_loop(lambda j, z: j < 3, lambda j, z: (j + 1, z + rows[0]), (torch.tensor(0), state[0]))
        return (z,), (z * 2,)

    start = (torch.tensor(0), x[0] * 1)
    return {
        "scanned": while_loop(lambda i, y: i < 3, scanning, start)[1],
        "repeated": while_loop(lambda i, y: i < 3, repeating, start)[1],
        "stepped": scan(stepping, (x[0],), (x,))[1][0],
    }


def passed_on(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """A loop that hands on what it was given, twice, and what it reads from outside."""
    first = x[0] * 1
    kept, twice, again, _ = while_loop(
        lambda a, b, c, t: t < 3, lambda a, b, c, t: (a, a, first, t + 1), (first, first, x[0], torch.tensor(0))
    )
    return {"kept": kept, "twice": twice, "again": again}


def shrinking(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """A beam search in small: columns leave after as many steps as n says; two beams of each begin as one; all grow."""
    beam = torch.arange(2.0)

    def step(t: Tensor, columns: Tensor, n: Tensor, beams: Tensor, rows: Tensor, sums: Tensor) -> State:
        beams = (beams[:, :, None] + beam).flatten(1)[:, :2]  # (b, 1 or 2) -> (b, 2)
        new = x.index_select(1, columns).sum(0)[:, None].expand(-1, 2).reshape(-1, 1) + beams.flatten()[:, None]
        rows = torch.cat([rows.unflatten(0, (n.shape[0], -1))[:, :1].expand(-1, 2, -1).flatten(0, 1), new], 1)
        sums = sums.index_put((columns,), rows.sum(1).unflatten(0, (n.shape[0], 2)).sum(1) * rows.shape[1])
        stay = (n > t + 1).nonzero()[:, 0]
        rows = rows.unflatten(0, (n.shape[0], 2)).index_select(0, stay).flatten(0, 1)
        return t + 1, columns.index_select(0, stay), n.index_select(0, stay), beams.index_select(0, stay), rows, sums

    columns, sums = torch.arange(x.shape[1]), torch.zeros_like(x[0])
    start = (torch.tensor(0), columns, n, sums[:, None], torch.zeros(x.shape[1], 0), sums)
    last = while_loop(lambda t, columns, *rest: torch.full((), columns.shape[0]) > 0, step, start)
    return {"steps": last[0], "beams": last[3].sum(0), "rows": last[4].sum(0), "sums": last[5]}


def filling(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """A loop that fills two axes of size 0 at different rates, in the step of one whose state grows by the result."""

    def fill(t: Tensor, slow: Tensor, fast: Tensor) -> State:
        return t + 1, torch.cat([slow, x[:1] + t]), torch.cat([fast, x[:1] * t, x[:1]])

    def grow(t: Tensor, rows: Tensor) -> State:
        _, slow, fast = while_loop(lambda t, slow, fast: t < 2, fill, (t * 0, x[:0], x[:0]))
        return t + 1, torch.cat([rows, slow, fast * t])

    return {"rows": while_loop(lambda t, rows: t < 3, grow, (torch.tensor(0), x * n))[1]}


def conditional(x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """A loop within a condition, which changes axes, and a condition within a loop."""
    total = x.sum(0)

    def doubled() -> State:
        count, twice = while_loop(lambda i, y: y.sum() < 99, lambda i, y: (i + 1, y + total), (torch.tensor(0), total))
        return torch.cat([x, x * n]), twice + count, n + x.shape[0]

    rows, twice, sizes = run_if(x.sum() > 4, doubled, (x, total, n))

    def step(i: Tensor, y: Tensor) -> State:
        return i + 1, *run_if(i > n.sum() - 3, lambda: (y * i,), (y,))

    _, y = while_loop(lambda i, y: i < 4, step, (torch.tensor(0), total))
    return {"rows": rows + rows.shape[0], "twice": twice, "sizes": sizes, "y": y}


@pytest.mark.parametrize(
    "call", [mixed, sized, in_place, nested, loops_in_loops, passed_on, shrinking, filling, conditional]
)
def test_what_was_traced_once_answers_as_pytorch_at_any_shape(
    tmp_path: Path, call: Callable[..., Mapping[str, Tensor]]
) -> None:
    assert is_traced(call)
    assert_same(graph_of(tmp_path, call), call)


def test_a_nested_loop_that_fills_a_cache_is_traced_once() -> None:
    traced: list[str] = []

    def fill(t: Tensor, cache: Tensor) -> State:
        traced.append("inner")
        return t + 1, torch.cat([cache, torch.ones(1)])

    def grow(t: Tensor, rows: Tensor) -> State:
        traced.append("outer")
        return t + 1, torch.cat([rows, while_loop(lambda t, cache: t < 2, fill, (t * 0, torch.ones(0)))[1]])

    def call(x: Tensor, n: Tensor) -> dict[str, Tensor]:
        return {"rows": while_loop(lambda t, rows: t < 3, grow, (torch.tensor(0), x[0]))[1]}

    assert is_traced(call)
    assert traced == ["outer", "outer", "inner"]


def test_a_write_into_a_view_is_left_to_torch_export(tmp_path: Path) -> None:
    def into_a_view(x: Tensor, n: Tensor) -> dict[str, Tensor]:
        y = x + 1
        y[0] = n.float()
        return {"y": y}

    assert not is_traced(into_a_view)
    assert_same(graph_of(tmp_path, into_a_view), into_a_view)


def test_sizes_are_computed_outside_of_a_loop(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, sized)
    (scan_node,) = [node for node in graph.model.graph.node if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in scan_node.attribute if attribute.name == "body"]
    assert "Shape" not in {node.op_type for node in body.node}


def test_weights_that_two_loops_read_stand_in_the_model_once_and_without_values() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.tied = self.linear.weight
            self.__dict__["parts"] = [self.linear.bias]  # a list of its own, as nn.LSTM has one

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            def step(state: State, rows: State) -> tuple[State, State]:
                return (self.linear(state[0]) + rows[0],), (nn.functional.linear(state[0], self.tied, self.parts[0]),)

            (first,), (rows,) = scan(step, (x[0],), (x,))
            (last,), _ = scan(step, (first,), (rows,))
            return (last,)

    with torch.no_grad():
        model = onnx_model(Twice().eval(), {"x": torch.rand(4, 2, 3)}, [{0: "t", 1: "b"}], ["y"], 18)
    weights = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) and not tensor.raw_data}
    assert {name: list(tensor.dims) for name, tensor in weights.items()} == {"tied": [3, 3], "linear.bias": [3]}


def test_free_axes_of_the_same_size_in_the_example_stay_apart(tmp_path: Path) -> None:
    def call(x: Tensor, n: Tensor) -> dict[str, Tensor]:
        return {"y": x.sum(0) + n}

    graph = export(tmp_path / "graph.onnx", nn.Identity(), call, AXES, **example(3, 3))
    assert_same(graph, call)


class Fine(nn.Module):
    """Layers that the page on export calls fine, and a few more of PyTorch."""

    def __init__(self, dim: int = 8):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True), 2)
        self.convolution = nn.Conv1d(dim, dim, 3, padding="same")
        self.batch_norm, self.group_norm = nn.BatchNorm1d(dim), nn.GroupNorm(2, dim)
        self.lstm = nn.LSTM(dim, 4, batch_first=True, bidirectional=True)
        self.bilinear = nn.Bilinear(dim, dim, 3)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        wide = self.convolution(x.transpose(1, 2))
        attended = nn.functional.scaled_dot_product_attention(*[x[:, None]] * 3, attn_mask=mask[:, None, None])
        return {
            "attention": self.attention(x, x, x, key_padding_mask=~mask)[0],
            "encoder": torch.where(mask[..., None], self.encoder(x, src_key_padding_mask=~mask), 0.0),
            "batch_norm": self.batch_norm(wide),
            "group_norm": self.group_norm(wide),
            "lstm": self.lstm(x)[0],
            "bilinear": self.bilinear(x, x),
            "scaled_dot_product": attended,
            "glu": nn.functional.glu(x),
            "einsum": torch.einsum("btd,bsd->bts", x, x),
            "cumsum": x.cumsum(1),
            "flip": x.flip(1),
            "topk": x.topk(3, -1).values,
            "argmax": x.argmax(-1),
            "sorted": x.sort(1).values,
            "mean": x.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True),
            "last": x[torch.arange(x.shape[0]), mask.sum(1) - 1],
            "triangle": torch.tril(torch.ones(x.shape[1], x.shape[1])) @ x,
        }


def test_layers_of_pytorch_export_as_the_page_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fine = Fine().eval()
    axes = {"x": ("b", "t", ""), "mask": ("b", "t")}
    graph = export(tmp_path / "graph.onnx", fine, fine, axes, x=torch.rand(3, 5, 8), mask=ragged_mask(5, 2, 3))
    masks = [ragged_mask(*lengths) for lengths in ([1], [2, 7], [3, 1, 2, 3])]
    assert_same(graph, fine, *({"x": torch.randn(*mask.shape, 8), "mask": mask} for mask in masks), tolerance=1e-5)


def fixed(x: Tensor) -> Tensor:
    return torch.stack([x[t] for t in range(x.shape[0])]).sum(0)


def looks(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x


def changes_type(x: Tensor) -> Tensor:
    return while_loop(lambda y: y.sum() < 9, lambda y: (y.double(),), (x,))[0]


def changes_axes(x: Tensor) -> Tensor:
    return while_loop(lambda y: y.sum() < 9, lambda y: (y.sum(0),), (x,))[0]


def scans_to_another_size(x: Tensor) -> Tensor:
    return scan(lambda state, rows: ((torch.cat([state[0], rows[0]]),), rows), (x[0],), (x,))[0][0]


def grows_unevenly(x: Tensor) -> Tensor:
    def step(y: Tensor, z: Tensor) -> State:
        return torch.cat([y, x[0]]), torch.cat([x[0], x[0], z[:0]])

    return while_loop(lambda y, z: y.sum() < 9, step, (x[0], x[0]))[0]


def forgets(x: Tensor) -> Tensor:
    return while_loop(lambda y, z: y.sum() < 9, lambda y, z: (y * 2,), (x, x))[0]


UNTRACEABLE = [
    (fixed, "axis 't' is specialized to 4"),
    (looks, "data-dependent"),
    (changes_type, "dtype and number of axes of its state: tensor 0 was .* torch.float32, is .* torch.float64"),
    (changes_axes, r"tensor 0 was \(s\d+, 6\) torch.float32, is \(6,\)"),
    (scans_to_another_size, "keep the shapes of its state: axis 0 of tensor 0 changes"),
    (grows_unevenly, "axis 0 of tensor 1 of a loop's state does not change like others of its first size"),
    (forgets, "must return its 2 tensors of state, not 1"),
    (torch.special.bessel_j0, "bessel_j0"),  # an operator without a translation
]


@pytest.mark.parametrize(("call", "message"), UNTRACEABLE)
def test_a_function_that_cannot_be_a_graph_is_refused_in_words(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(Exception, match=message), torch.no_grad():
        onnx_model(Called(lambda x: (call(x),)), {"x": torch.rand(4, 6)}, [{0: "t"}], ["y"], 18)


def test_under_somebody_elses_torch_export_a_loop_is_pytorchs_own() -> None:
    def step(state: State, rows: State) -> tuple[State, State]:
        return (state[0] + rows[0],), (state[0] * 2,)

    module = Called(lambda x: scan(step, (torch.zeros_like(x[0]),), (x,))[0][0])  # type: ignore[arg-type, return-value]
    with torch.no_grad():
        program = torch.export.export(module, (torch.rand(4, 3),), dynamic_shapes=(({0: torch.export.Dim.DYNAMIC},),))
        assert "scan" in str(program.graph)
        x = torch.rand(7, 3)
        assert torch.allclose(program.module()(x), x.sum(0))


def test_the_sizes_of_a_product_are_read_in_an_order_that_no_hash_seed_changes() -> None:
    axes = {axis: f"axis{axis}" for axis in range(6)}
    module = Called(lambda x: (x.new_zeros(x.numel()),))
    traced = trace_module(module, {"x": torch.rand(2, 3, 4, 5, 6, 7)}, [axes], onnx_registry(18))
    nodes = traced.frame.graph.nodes
    sizes = [str(node.meta["val"]) for node in nodes if node.target is torch.ops.aten.sym_size.int]
    assert len(sizes) == len(axes)
    assert sizes == sorted(sizes)
