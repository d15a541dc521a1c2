"""The pointer network against every sequence that there is, against NumPy step by step, and as a graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from exported import Graph, elsewhere, export, ragged
from torch import Tensor

from seqpipe.errors import UsageError
from seqpipe.nn.search import BeamOptions
from seqpipe_plugins.heads.pointer import Pointer

D, H = 5, 6
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


def pointer(kind: str, **options: Any) -> Pointer:
    """An untrained head that has opinions."""
    torch.manual_seed(4)
    head = Pointer(D, **{"hidden": H, "units": 7, "heads": 2, **KINDS[kind], **options}).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def sources(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    mask = ragged(*lengths)
    x = torch.where(mask[..., None], torch.randn(*mask.shape, D), torch.nan)
    return {"x": x, "mask": mask, "state": torch.randn(len(mask), D)}


def every_answer(kind: str, n: int, longest: int = 3) -> Iterator[list[int]]:
    """Every sequence that a head may answer with, by the rules as its docstring tells them."""
    if kind == "again":
        for length in range(longest):
            yield from ([*way] for way in itertools.product(range(n), repeat=length))
        return
    least = {"once": 0, "order": n, "hull": min(3, n), "tour": n}[kind]
    for length in range(least, n + 1):
        for way in itertools.permutations(range(n), length):
            yield [*way, way[0]] if kind in ("hull", "tour") else [*way]


def padded(ways: list[list[int]], width: int) -> Tensor:
    return torch.tensor([[*way, *[-1] * (width - len(way))] for way in ways])


@pytest.mark.parametrize("kind", ["once", "order", "hull", "tour"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_all_that_it_can_answer_has_the_probability_1_and_a_wide_search_finds_the_best(kind: str, n: int) -> None:
    head, given = pointer(kind), sources(n)
    ways = list(every_answer(kind, n))
    rows = {name: one.expand(len(ways), *one.shape[1:]) for name, one in given.items()}
    scores = head.score(**rows, pointers=padded(ways, n + 1)[:, None])
    assert scores.exp().sum().item() == pytest.approx(1, abs=1e-4)
    found = head.decide(**given, options=BeamOptions(beams=80, n_best=min(4, len(ways))))
    best = scores.topk(min(4, len(ways)))
    assert torch.allclose(found["scores"][0], best.values, atol=1e-4)
    assert found["pointers"][0].tolist() == padded([ways[i] for i in best.indices.tolist()], n + 1).tolist()


def test_with_repetitions_its_best_answer_is_the_best_of_all_and_the_longest_lack_their_end() -> None:
    head, given = pointer("again"), sources(3)
    ways = list(every_answer("again", 3, 5))
    rows = {name: one.expand(len(ways), *one.shape[1:]) for name, one in given.items()}
    scores = head.score(**rows, pointers=padded(ways, 4)[:, None])
    assert scores.exp().sum().item() == pytest.approx(1, abs=1e-4)
    found = head.decide(**given, options=BeamOptions(beams=80, n_best=3, max_length=4))
    best = scores.topk(3)
    assert torch.allclose(found["scores"][0], best.values, atol=1e-4)
    assert found["pointers"][0].tolist() == padded([ways[i] for i in best.indices.tolist()], 4).tolist()


def test_more_answers_than_there_are_do_not_exist() -> None:
    found = pointer("tour").decide(**sources(2), options=BeamOptions(beams=6, n_best=6))
    assert sorted(found["pointers"][0, :2].tolist()) == [[0, 1, 0], [1, 0, 1]]
    assert (found["pointers"][0, 2:] == -1).all()
    assert (found["scores"][0, 2:] < -1e8).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_decides_is_among_what_it_may_answer(kind: str) -> None:
    lengths = (1, 2, 3, 5, 7, 4, 6)
    found = pointer(kind).decide(**sources(*lengths), options=BeamOptions(beams=3, n_best=2, max_length=9))
    for n, rows, scores in zip(lengths, found["pointers"].tolist(), found["scores"].tolist(), strict=True):
        for row, score in zip(rows, scores, strict=True):
            way = [at for at in row if at >= 0]
            assert row == [*way, *[-1] * (len(row) - len(way))]
            if score < -1e8 or kind == "again":
                assert all(at < n for at in way)
                continue
            inner = way[:-1] if kind in ("hull", "tour") else way
            assert len({*inner}) == len(inner)
            assert kind not in ("hull", "tour") or way[0] == way[-1]
            assert kind not in ("order", "tour") or len(inner) == n
            assert kind != "hull" or len(inner) >= min(3, n)


def test_a_step_is_what_the_docstring_says() -> None:
    """By hand: LSTM, one glimpse of two heads, bilinear score, the lesser score of later positions."""
    head, given = pointer("hull"), sources(4)
    way = [2, 0, 3]
    weights = {name: one.detach().numpy().astype(np.float64) for name, one in head.named_parameters()}
    x, state = given["x"][0].numpy().astype(float), given["state"][0].numpy().astype(float)
    h, c = np.split(np.tanh(weights["bridge.weight"] @ state + weights["bridge.bias"]), 2)
    total, chosen = 0.0, []
    for slot in [*[at + 1 for at in way], 0]:
        read = x[chosen[-1]] if chosen else weights["begin"]
        gates = weights["rnn.weight_ih_l0"] @ read + weights["rnn.bias_ih_l0"]
        gates = gates + weights["rnn.weight_hh_l0"] @ h + weights["rnn.bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        left = [at for at in range(4) if at not in chosen]
        q = h + glimpse(weights, normal(weights, 0, h), x[left])
        made = np.maximum(0, weights["glimpses.0.feedforward.0.weight"] @ normal(weights, 1, q) + bias(weights, 0))
        q = q + weights["glimpses.0.feedforward.3.weight"] @ made + bias(weights, 3)
        slots = [*([0] if len(chosen) >= 3 else []), *(at + 1 for at in left)]
        vectors = np.vstack([weights["end"], x])
        logits = np.array([q @ (weights["pointing.key.weight"] @ vectors[s]) - 0.001 * s for s in slots])
        total += logits[slots.index(slot)] - np.log(np.exp(logits).sum())
        chosen += [slot - 1] if slot else []
    scored = head.score(**given, pointers=torch.tensor([[[*way, way[0]]]]))
    assert scored.item() == pytest.approx(total, abs=1e-4)


def sigmoid(a: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-a)))


def bias(weights: dict[str, np.ndarray], number: int) -> np.ndarray:
    return weights[f"glimpses.0.feedforward.{number}.bias"]


def normal(weights: dict[str, np.ndarray], number: int, h: np.ndarray) -> np.ndarray:
    scaled = (h - h.mean()) / np.sqrt(h.var() + 1e-5)
    return np.asarray(
        scaled * weights[f"glimpses.0.norms.{number}.weight"] + weights[f"glimpses.0.norms.{number}.bias"]
    )


def glimpse(weights: dict[str, np.ndarray], h: np.ndarray, x: np.ndarray) -> np.ndarray:
    of = {name.removeprefix("glimpses.0.attention."): one for name, one in weights.items()}
    query, found = of["query.weight"] @ h + of["query.bias"], []
    keys, values = x @ of["key.weight"].T, x @ of["value.weight"].T + of["value.bias"]
    for head in (slice(0, 3), slice(3, 6)):
        scores = keys[:, head] @ query[head] / np.sqrt(3)
        found.append(np.exp(scores) / np.exp(scores).sum() @ values[:, head])
    return np.asarray(of["output.weight"] @ np.concatenate(found) + of["output.bias"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_decision_are_those_of_teacher_forcing(kind: str) -> None:
    head, given = pointer(kind), sources(5, 3, 1, 7, 2, 2, 6, 4)
    made = head.decide(**given, options=BeamOptions(beams=3, n_best=3, max_length=9))
    for k in range(3):
        real = made["scores"][:, k] > -1e8
        scored = head.score(**given, pointers=made["pointers"][:, k : k + 1])
        assert torch.allclose(scored[real], made["scores"][real, k], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_log_probability_of_positions_and_the_end(kind: str) -> None:
    head, given = pointer(kind), sources(4, 2)
    ways = {"again": [[1, 1, 3], [0]], "once": [[3, 1], [0]], "order": [[3, 1, 0, 2], [1, 0]]}
    closed = {"hull": [[3, 1, 0, 3], [1, 0, 1]], "tour": [[0, 3, 1, 2, 0], [0, 1, 0]]}
    chosen = (ways | closed)[kind]
    target = padded(chosen, max(map(len, chosen)))
    loss = head.loss(**given, pointers=target.clamp(min=0), pointers_mask=target >= 0)
    steps = sum(map(len, chosen)) + (0 if kind in closed else 2)
    expected = -head.score(**given, pointers=torch.nn.functional.pad(target, (0, 1), value=-1)[:, None]).sum() / steps
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_padding_and_who_stands_beside_changes_nothing(kind: str) -> None:
    head, given = pointer(kind), sources(5, 2, 7)
    together = head.decide(**given, options=BeamOptions(beams=3, n_best=2, max_length=8))
    for b, n in enumerate((5, 2, 7)):
        one = {"x": given["x"][b : b + 1, :n], "mask": given["mask"][b : b + 1, :n], "state": given["state"][b : b + 1]}
        alone = head.decide(**one, options=BeamOptions(beams=3, n_best=2, max_length=8))
        width = alone["pointers"].shape[2]
        assert torch.equal(alone["pointers"][0], together["pointers"][b, :, :width])
        assert torch.allclose(alone["scores"][0], together["scores"][b], atol=1e-4)


def test_of_positions_that_are_alike_the_first_is_chosen() -> None:
    head, given = pointer("order"), sources(6)
    same = {**given, "x": given["x"][:, [0, 1, 2, 0, 1, 2]]}
    way = head.decide(**same, options=BeamOptions())["pointers"][0, 0, :6].tolist()
    assert [at for at in way if at < 3] == [at - 3 for at in way if at > 2]
    assert all(way.index(at) < way.index(at + 3) for at in range(3))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_is_how_likely_each_position_was(kind: str) -> None:
    head, given = pointer(kind), sources(5, 3)
    made = head.decide(**given, options=BeamOptions(max_length=7))
    shown = head.explain(**given, pointers=made["pointers"])["attention"]
    assert shown.shape == (2, made["pointers"].shape[2], 5)
    for b in range(2):
        way = [at for at in made["pointers"][b, 0].tolist() if at >= 0]
        assert not shown[b, len(way) :].any()
        assert not shown[b, :, int(given["mask"][b].sum()) :].any()
        assert (shown[b, range(len(way)), way] > 0).all()
    ended = sum((made["pointers"][:, 0] >= 0).sum(1).tolist())
    assert kind not in ("order", "tour") or shown.sum().item() == pytest.approx(ended, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_reaches_every_weight(kind: str) -> None:
    head, given = pointer(kind, dropout=0.1).train(), sources(4, 3)
    target = padded([[3, 1, 0, 2], [1, 0, 2]], 4) if kind not in ("hull", "tour") else None
    target = padded([[3, 1, 0, 2, 3], [1, 0, 2, 1]], 5) if target is None else target
    head.loss(**given, pointers=target.clamp(min=0), pointers_mask=target >= 0).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"once": False, "every": True}, "every: "),
        ({"once": False, "close": True}, "close: "),
        ({"task": "hull"}, "set close: true"),
        ({"task": "tour", "close": True}, "set every: true"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Pointer(D, **options)


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=[pytest.mark.long] if kind in RARELY else []) for kind in KINDS],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pointer, Graph]:
    head, path = pointer(request.param), tmp_path_factory.mktemp("pointer") / "pointer.onnx"
    given = sources(5, 2, 4) | options(4, 3, 7, 0.5)
    return head, export(path, head, lambda **one: decided(head, **one), AXES, **given)


def options(beams: int, n_best: int, most: int, alpha: float = 0.0) -> dict[str, Tensor]:
    sizes = {"beams": torch.zeros(beams), "n_best": torch.zeros(n_best), "max_length": torch.zeros(most)}
    return sizes | {"alpha": torch.tensor(alpha)}


def decided(head: Pointer, alpha: Tensor, **given: Any) -> dict[str, Tensor]:
    sizes = {name: given.pop(name).shape[0] for name in SIZES}
    made = head.decide(**given, options=BeamOptions(**sizes, length_penalty=alpha))
    return made | head.explain(**given, pointers=made["pointers"])


CASES = [
    ((4,), options(1, 1, 4)),
    ((5, 1, 2, *[7] * 27), options(1, 1, 9)),
    ((3, 9, 1, 1), options(5, 5, 12)),
    ((2, 6, 4), options(4, 2, 8, 0.8)),
    ((1, 2), options(30, 25, 6)),
    ((1, 31), options(3, 1, 20)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_graph_points_at_the_same(pair: tuple[Pointer, Graph], case: int) -> None:
    (head, graph), (lengths, chosen) = pair, CASES[case]
    given = sources(*lengths, seed=case) | chosen
    with torch.no_grad():
        expected = decided(head, **given)
    made = graph(**given)
    assert np.array_equal(made["pointers"], expected["pointers"].numpy())
    for name in ("scores", "attention"):
        assert np.allclose(made[name], expected[name].numpy(), rtol=1e-4, atol=1e-4)
    if len(lengths) == 30:  # the answers vary, or the comparison proves nothing
        assert len({tuple(row) for row in made["pointers"][:, 0].tolist()}) > 11


def test_everything_is_made_on_the_device_of_what_is_given() -> None:
    head, given = pointer("tour"), sources(3, 2)
    with elsewhere():
        made = head.decide(**given, options=BeamOptions(beams=2, n_best=2))
        head.score(**given, pointers=made["pointers"])
        head.explain(**given, pointers=made["pointers"])


@pytest.mark.parametrize(
    ("kind", "rule", "broken"),
    [("tour", "once", False), ("tour", "every", False), ("tour", "close", False), ("hull", "fewest", 1)],
)
def test_a_rule_that_is_lost_is_noticed(kind: str, rule: str, broken: Any) -> None:
    head, given, ways = pointer(kind), sources(4), list(every_answer(kind, 4))
    rows = {name: one.expand(len(ways), *one.shape[1:]) for name, one in given.items()}
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()  # all is equally likely
    assert head.score(**rows, pointers=padded(ways, 5)[:, None]).exp().sum() > 0.999
    setattr(head, rule, broken)
    assert head.score(**rows, pointers=padded(ways, 5)[:, None]).exp().sum() < 0.999
