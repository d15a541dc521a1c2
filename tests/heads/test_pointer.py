"""The pointer network against every sequence that there is, against NumPy step by step, and as a graph."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import generating_heads
import numpy as np
import pytest
import torch
from exported_graphs import ExportedGraph, export, meta_device
from generating_heads import D
from torch import Tensor

from seqpipe.errors import UsageError
from seqpipe.nn.search import BeamOptions
from seqpipe_plugins.heads.pointer import Pointer

AXES: Any = {"x": ("b", "t"), "mask": ("b", "t"), "state": ("b",), "alpha": ()}
SIZES = ("beams", "n_best", "max_length")
AXES |= {name: (f"n_{name}",) for name in SIZES}
KINDS: dict[str, dict[str, Any]] = {
    "once": {"cell": "gru", "glimpses": 2},
    "again": {"once": False, "score": "bilinear", "glimpses": 0},
    "order": {"every": True, "cell": "rnn", "layers": 2},
    "hull": {"task": "hull", "close": True, "score": "bilinear"},
    "tour": {"task": "tour", "every": True, "close": True, "layers": 2, "score": "bilinear"},
}
RARELY = ("once", "order")  # exported
CLOSED = ("hull", "tour")


def pointer(kind: str, **options: Any) -> Pointer:
    """An untrained head that has opinions."""
    torch.manual_seed(4)
    head = Pointer(D, **{"hidden": D, "units": 7, "heads": 2, **KINDS[kind], **options}).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def sources(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    return {name: rows for name, rows in generating_heads.sources(*lengths, seed=seed).items() if name != "copy"}


def every_answer(kind: str, n: int, longest: int = 3) -> Iterator[list[int]]:
    """Every sequence that a head may answer with, by the rules as its docstring tells them."""
    if kind == "again":
        for length in range(longest):
            yield from ([*way] for way in itertools.product(range(n), repeat=length))
        return
    least = {"once": 0, "order": n, "hull": min(3, n), "tour": n}[kind]
    for length in range(least, n + 1):
        for way in itertools.permutations(range(n), length):
            yield [*way, way[0]] if kind in CLOSED else [*way]


def padded(ways: list[list[int]], width: int) -> Tensor:
    return torch.tensor([[*way, *[-1] * (width - len(way))] for way in ways])


def scores_of(head: Pointer, source: dict[str, Tensor], ways: list[list[int]], width: int) -> Tensor:
    """The log-probability of each answer to the one text."""
    rows = {name: one.expand(len(ways), *one.shape[1:]) for name, one in source.items()}
    return head.score(**rows, pointers=padded(ways, width)[:, None])


@pytest.mark.parametrize(("kind", "n"), [*itertools.product(("once", "order", *CLOSED), (1, 2, 4)), ("again", 3)])
def test_all_that_it_can_answer_has_the_probability_1_and_a_wide_search_finds_the_best(kind: str, n: int) -> None:
    head, source = pointer(kind), sources(n)
    ways = list(every_answer(kind, n, longest=5))  # with repetitions the longest lack their end
    scores = scores_of(head, source, ways, n + 1)
    assert scores.exp().sum().item() == pytest.approx(1, abs=1e-4)
    best = scores.topk(min(4, len(ways)))
    search = {"max_length": 4} if kind == "again" else {}
    decision = head.decide(**source, options=BeamOptions(beams=80, n_best=len(best.indices), **search))
    assert torch.allclose(decision["scores"][0], best.values, atol=1e-4)
    assert decision["pointers"][0].tolist() == padded([ways[i] for i in best.indices.tolist()], n + 1).tolist()


def test_more_answers_than_there_are_do_not_exist() -> None:
    decision = pointer("tour").decide(**sources(2), options=BeamOptions(beams=6, n_best=6))
    assert sorted(decision["pointers"][0, :2].tolist()) == [[0, 1, 0], [1, 0, 1]]
    assert (decision["pointers"][0, 2:] == -1).all()
    assert (decision["scores"][0, 2:] < -1e8).all()


def test_a_step_is_what_the_docstring_says() -> None:
    """By hand: LSTM, one glimpse of two heads, bilinear score, the lesser score of later positions."""
    head, source = pointer("hull"), sources(4)
    way = [2, 0, 3]
    w = {name: one.detach().numpy().astype(np.float64) for name, one in head.named_parameters()}
    g = {name.removeprefix("glimpses.0."): one for name, one in w.items() if name.startswith("glimpses.0.")}
    x, state = source["x"][0].numpy().astype(float), source["state"][0].numpy().astype(float)

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-a)))

    def norm(number: int, h: np.ndarray) -> np.ndarray:
        scaled = (h - h.mean()) / np.sqrt(h.var() + 1e-5)
        return np.asarray(scaled * g[f"norms.{number}.weight"] + g[f"norms.{number}.bias"])

    def glimpse(h: np.ndarray, x: np.ndarray) -> np.ndarray:
        query, contexts = g["attention.query.weight"] @ h + g["attention.query.bias"], []
        keys, values = (x @ g[f"attention.{name}.weight"].T for name in ("key", "value"))
        for part in (slice(0, 3), slice(3, 6)):
            scores = keys[:, part] @ query[part] / np.sqrt(3)
            shares = np.exp(scores) / np.exp(scores).sum()
            contexts.append(shares @ (values + g["attention.value.bias"])[:, part])
        return np.asarray(g["attention.output.weight"] @ np.concatenate(contexts) + g["attention.output.bias"])

    h, c = np.split(np.tanh(w["bridge.weight"] @ state + w["bridge.bias"]), 2)
    total, chosen = 0.0, []
    for slot in [*[at + 1 for at in way], 0]:
        step = x[chosen[-1]] if chosen else w["begin"]
        gates = w["rnn.weight_ih_l0"] @ step + w["rnn.bias_ih_l0"] + w["rnn.weight_hh_l0"] @ h + w["rnn.bias_hh_l0"]
        i, f, cell, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(cell)
        h = sigmoid(o) * np.tanh(c)
        left = [at for at in range(4) if at not in chosen]
        q = h + glimpse(norm(0, h), x[left])
        inner = np.maximum(0, g["feedforward.0.weight"] @ norm(1, q) + g["feedforward.0.bias"])
        q = q + g["feedforward.3.weight"] @ inner + g["feedforward.3.bias"]
        slots = [*([0] if len(chosen) >= 3 else []), *(at + 1 for at in left)]
        vectors = np.vstack([w["end"], x])
        logits = np.array([q @ (w["pointing.key.weight"] @ vectors[s]) - 0.001 * s for s in slots])
        total += logits[slots.index(slot)] - np.log(np.exp(logits).sum())
        chosen += [slot - 1] if slot else []
    scored = head.score(**source, pointers=torch.tensor([[[*way, way[0]]]]))
    assert scored.item() == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_decision_are_those_of_teacher_forcing(kind: str) -> None:
    head, source = pointer(kind), sources(5, 3, 1, 7, 2, 2, 6, 4)
    decision = head.decide(**source, options=BeamOptions(beams=3, n_best=3, max_length=9))
    for k in range(3):
        real = decision["scores"][:, k] > -1e8
        scored = head.score(**source, pointers=decision["pointers"][:, k : k + 1])
        assert torch.allclose(scored[real], decision["scores"][real, k], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_log_probability_of_positions_and_the_end(kind: str) -> None:
    head, source = pointer(kind), sources(4, 2)
    ways = {"again": [[1, 1, 3], [0]], "once": [[3, 1], [0]], "order": [[3, 1, 0, 2], [1, 0]]}
    closed = {"hull": [[3, 1, 0, 3], [1, 0, 1]], "tour": [[0, 3, 1, 2, 0], [0, 1, 0]]}
    chosen = (ways | closed)[kind]
    target = padded(chosen, max(map(len, chosen)))
    loss = head.loss(**source, pointers=target.clamp(min=0), pointers_mask=target >= 0)
    steps = sum(map(len, chosen)) + (0 if kind in closed else 2)
    expected = -head.score(**source, pointers=torch.nn.functional.pad(target, (0, 1), value=-1)[:, None]).sum() / steps
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_the_padding_nor_other_rows_change_a_decision(kind: str) -> None:
    head, source, search = pointer(kind), sources(5, 2, 7), BeamOptions(beams=3, n_best=2, max_length=8)
    together = head.decide(**source, options=search)
    for b in range(3):
        alone = head.decide(**generating_heads.rows_of(source, b), options=search)
        assert torch.equal(alone["pointers"][0], together["pointers"][b, :, : alone["pointers"].shape[2]])
        assert torch.allclose(alone["scores"][0], together["scores"][b], atol=1e-4)


def test_of_positions_that_are_alike_the_first_is_chosen() -> None:
    head, source = pointer("order"), sources(6)
    same = {**source, "x": source["x"][:, [0, 1, 2, 0, 1, 2]]}
    way = head.decide(**same, options=BeamOptions())["pointers"][0, 0, :6].tolist()
    assert [at for at in way if at < 3] == [at - 3 for at in way if at > 2]
    assert all(way.index(at) < way.index(at + 3) for at in range(3))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_is_how_likely_each_position_was(kind: str) -> None:
    head, source = pointer(kind), sources(5, 3)
    decision = head.decide(**source, options=BeamOptions(max_length=7))
    shown = head.explain(**source, pointers=decision["pointers"])["attention"]
    assert shown.shape == (2, decision["pointers"].shape[2], 5)
    for b in range(2):
        way = [at for at in decision["pointers"][b, 0].tolist() if at >= 0]
        assert not shown[b, len(way) :].any()
        assert not shown[b, :, int(source["mask"][b].sum()) :].any()
        assert (shown[b, range(len(way)), way] > 0).all()
    ended = sum((decision["pointers"][:, 0] >= 0).sum(1).tolist())
    assert kind not in ("order", "tour") or shown.sum().item() == pytest.approx(ended, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_reaches_every_weight(kind: str) -> None:
    head, source = pointer(kind, dropout=0.1).train(), sources(4, 3)
    target = padded([[3, 1, 0, 2, 3], [1, 0, 2, 1]], 5) if kind in CLOSED else padded([[3, 1, 0, 2], [1, 0, 2]], 4)
    head.loss(**source, pointers=target.clamp(min=0), pointers_mask=target >= 0).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"once": False, "every": True}, "every: "),
        ({"once": False, "close": True}, "close: "),
        ({"task": "hull"}, "set close: true"),
        ({"task": "tour", "close": True}, "set every: true"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pointer(D, **options)


# (lengths, (beams, n_best, max_length), length penalty)
CASES: list[tuple[tuple[int, ...], tuple[int, int, int], float]] = [
    ((4,), (1, 1, 4), 0.0),
    ((5, 1, 2, *[7] * 27), (1, 1, 9), 0.0),
    ((3, 9, 1, 1), (5, 5, 12), 0.0),
    ((2, 6, 4), (4, 2, 8), 0.8),
    ((1, 2), (30, 25, 6), 0.0),
    ((1, 31), (3, 1, 20), 0.0),
]


def inputs(lengths: tuple[int, ...], sizes: tuple[int, int, int], alpha: float, seed: int = 0) -> dict[str, Tensor]:
    search = {name: torch.zeros(size) for name, size in zip(SIZES, sizes, strict=True)}
    return sources(*lengths, seed=seed) | search | {"alpha": torch.tensor(alpha)}


def decide(head: Pointer, alpha: Tensor, **source: Any) -> dict[str, Tensor]:
    sizes = {name: source.pop(name).shape[0] for name in SIZES}
    decision = head.decide(**source, options=BeamOptions(**sizes, length_penalty=alpha))
    return decision | head.explain(**source, pointers=decision["pointers"])


EXPORTED = [pytest.param(kind, marks=[pytest.mark.long] if kind in RARELY else []) for kind in KINDS]


@pytest.fixture(scope="module", params=EXPORTED)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pointer, ExportedGraph]:
    head, path = pointer(request.param), tmp_path_factory.mktemp("pointer") / "pointer.onnx"
    return head, export(path, head, partial(decide, head), AXES, **inputs((5, 2, 4), (4, 3, 7), 0.5))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_graph_points_at_the_same(pair: tuple[Pointer, ExportedGraph], case: int) -> None:
    (head, graph), feeds = pair, inputs(*CASES[case], seed=case)
    with torch.no_grad():
        expected = {name: rows.numpy() for name, rows in decide(head, **feeds).items()}
    decision = graph(**feeds)
    assert np.array_equal(decision["pointers"], expected["pointers"])
    for name in ("scores", "attention"):
        assert np.allclose(decision[name], expected[name], rtol=1e-4, atol=1e-4)
    if case == 1:  # the answers vary, or the comparison proves nothing
        assert len({tuple(row) for row in expected["pointers"][:, 0].tolist()}) > 11


def test_everything_is_made_on_the_device_of_what_is_source() -> None:
    head, source = pointer("tour"), sources(3, 2)
    with meta_device():
        decision = head.decide(**source, options=BeamOptions(beams=2, n_best=2))
        head.score(**source, pointers=decision["pointers"])
        head.explain(**source, pointers=decision["pointers"])


@pytest.mark.parametrize(
    ("kind", "rule", "broken"),
    [("tour", "once", False), ("tour", "every", False), ("tour", "close", False), ("hull", "fewest", 1)],
)
def test_a_rule_that_is_lost_is_noticed(kind: str, rule: str, broken: Any) -> None:
    head, source, ways = pointer(kind), sources(4), list(every_answer(kind, 4))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()  # all is equally likely
    assert scores_of(head, source, ways, 5).exp().sum() > 0.999
    setattr(head, rule, broken)
    assert scores_of(head, source, ways, 5).exp().sum() < 0.999
