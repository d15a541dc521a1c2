"""Tags of texts that were read in windows: no span crosses a seam but where the windows agree, told in plain Python."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import ExportedGraph, export, ragged_mask
from torch import Tensor

from seqpipe.answers.tagging_schemes import continues
from seqpipe.nn.layers import TokenWindows
from seqpipe_plugins.heads.crf import CRF
from seqpipe_plugins.heads.tags import TagsHead

LABELS = ("O", "B-a", "I-a")
SPAN_CONTINUES = continues(LABELS)
INSIDE = SPAN_CONTINUES.any(0)
T, D, SEEDS = 10, 6, 12
MASK = ragged_mask(T, 7, 1)
EVERY = {n: np.array(list(itertools.product(range(len(LABELS)), repeat=n))) for n in (T, 7, 1)}
NAMES = ("x", "mask", "other_x", "window", "other_window")
AXES = dict.fromkeys(NAMES, ("b", "t"))
Path_ = tuple[int, ...]


def rows(seed: int, apart: float) -> dict[str, Tensor]:
    """Texts in windows of six tokens that share three; what two windows say of a token is more or less apart."""
    torch.manual_seed(seed)
    B, t, last = len(MASK), torch.arange(T), (MASK.sum(1, keepdim=True) - 4).clamp(min=0) // 3
    own = ((t - 1).clamp(min=0) // 3).minimum(last)
    other = (own + torch.where(t - 3 * own >= 3, 1, -1)).clamp(min=0).minimum(last)
    other = torch.where((t >= 3 * other) & (t < 3 * other + 6), other, own)
    x = torch.randn(B, T, D).double()
    other_x = torch.where((own != other)[..., None], x + apart * torch.randn(B, T, D), x)
    padded = [torch.where(MASK[..., None], one, torch.nan) for one in (x, other_x)]
    return dict(zip(NAMES, (padded[0], MASK, padded[1], own, other), strict=True))


def runs(path: Path_) -> dict[int, tuple[int, Path_]]:
    """The span of each token: its first token, and its tags."""
    begins = [0]
    for t in range(1, len(path)):
        begins.append(begins[-1] if SPAN_CONTINUES[path[t - 1], path[t]] else t)
    return {t: (begin, path[begin : begin + begins.count(begin)]) for t, begin in enumerate(begins)}


def seams(paths: list[Path_], own: list[int], other: list[int]) -> dict[int, set[int]]:
    """At each token behind a seam, the tags that go on with a span and may stand there."""
    found = {}
    for t in (t for t in range(1, len(own)) if own[t] != own[t - 1]):
        (begin, tags), *others = (runs(path)[t] for path in paths)
        held = all({own[i], other[i]} == {own[t - 1], own[t]} for i in range(begin, begin + len(tags)))
        agreed = held and begin < t and all(one == (begin, tags) for one in others)
        found[t] = {paths[0][t]} if agreed else set()
    return found


def ranked(head: Any, given: dict[str, Tensor], b: int) -> tuple[list[tuple[Path_, float]], dict[int, set[int]]]:
    """Every sequence of tags that may stand, with its log-probability, the best first; and what may stand at seams."""
    n = int(given["mask"][b].sum())
    own, other = (given[name][b, :n].tolist() for name in ("window", "other_window"))
    x, other_x = (head.emissions(given[name][b, :n]).detach().numpy() for name in ("x", "other_x"))
    left, right = (np.where((np.sign(np.subtract(other, own)) == side)[:, None], other_x, x) for side in (-1, 1))
    every = EVERY[n]

    def scores(emissions: Any) -> Any:
        made = emissions[np.arange(n), every].sum(1)
        if isinstance(head, TagsHead):
            return made
        chain, around = head._chain().detach().numpy(), np.pad(every, ((0, 0), (1, 1)), constant_values=len(LABELS))
        return made + chain[around[:, :-1], around[:, 1:]].sum(1)

    may = seams([tuple(every[scores(one).argmax()].tolist()) for one in (x, left, right)], own, other)
    kept = np.all(
        [~INSIDE[every[:, t]] | np.isin(every[:, t], [*tags]) for t, tags in may.items()] or [every[:, 0] >= 0], 0
    )
    paths, worth = every[kept], scores(x)[kept]
    log_p = worth - np.logaddexp.reduce(worth)
    order = np.argsort(-log_p, kind="stable")
    return [(tuple(paths[i].tolist()), float(log_p[i])) for i in order], may


def made_head(kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    head: Any = TagsHead(D, LABELS, scheme="IOB2")
    if kind != "tags":
        head = CRF(D, LABELS, scheme="IOB2", constraints=kind == "crf")
    with torch.no_grad():
        head.emissions.weight.mul_(3)
        head.emissions.bias.copy_(torch.tensor([0.0, 1.0, seed % 3 / 2]))  # more spans, and longer
    return head.double()


@pytest.mark.parametrize("kind", ["crf", "crf without constraints", "tags"])
@pytest.mark.parametrize(("apart", "seeds"), [(0.6, 24), (0.0, 12)])
def test_the_answer_is_the_best_in_which_no_span_crosses_without_agreement(kind: str, apart: float, seeds: int) -> None:
    met = {True: 0, False: 0}
    for seed in range(seeds):
        head, given = made_head(kind, seed), rows(seed, apart)
        decision = head.decide(**given)
        log_p = head.score(given["x"], MASK, decision["tags"], *(given[name] for name in NAMES[2:]))
        for b, length in enumerate(MASK.sum(1).tolist()):
            expected, may = ranked(head, given, b)
            assert tuple(decision["tags"][b, :length].tolist()) == expected[0][0]
            assert log_p[b].item() == pytest.approx(expected[0][1], abs=1e-6)
            for tags in may.values():
                met[bool(tags)] += 1
            if kind != "tags":
                best = head.decide(**given, n_best=3)
                paths = [tuple(path) for path in best["paths"][b, :, :length].tolist()]
                legal = [path for path, log_p in expected[:3] if log_p > -1000]
                assert paths[: len(legal)] == legal
                assert best["path_scores"][b, 0].item() == pytest.approx(expected[0][1], abs=1e-6)
    assert min(met.values()) > 2  # seams that a span crosses, and others


def test_what_may_stand_at_a_seam_follows_from_three_readings_whatever_their_tags() -> None:
    random, met = np.random.default_rng(1), {True: 0, False: 0}
    own, other = ([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]], [[0, 0, 1, 1, 0, 0, 2, 1, 1, 2]])
    windows = TokenWindows(torch.tensor(own), torch.tensor(other))
    for _ in range(3000):
        first = random.choice(3, T, p=[0.2, 0.1, 0.7])  # I-a behind O too, as without constraints
        paths = [np.where(random.random(T) < share, random.integers(0, 3, T), first) for share in (0, 0.08, 0.08)]
        may = windows.permitted(
            tuple(torch.from_numpy(path)[None] for path in paths), torch.from_numpy(SPAN_CONTINUES)
        )[0]
        expected = seams([tuple(path.tolist()) for path in paths], own[0], other[0])
        for t in range(T):
            allowed = {tag for tag in range(3) if may[t, tag]}
            assert allowed == (
                {tag for tag in range(3) if not INSIDE[tag]} | expected[t] if t in expected else {0, 1, 2}
            )
        for tags in expected.values():
            met[bool(tags)] += 1
    assert min(met.values()) > 100


@pytest.mark.parametrize("fault", ["one window alone", "longer than both"])
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TokenWindows.permitted

    def permitted(self: TokenWindows, tags: Any, span_continues: Tensor) -> Tensor:
        if fault == "one window alone":
            return right(self, (tags[0], tags[0], tags[0]), span_continues)
        return right(
            TokenWindows(self.window, self.neighbour + 10 * (self.window == self.neighbour)), tags, span_continues
        )

    monkeypatch.setattr(TokenWindows, "permitted", permitted)

    def is_best(seed: int) -> bool:
        head, given = made_head("crf", seed), rows(seed, apart=0.6 if fault == "one window alone" else 0)
        tags = head.decide(**given)["tags"]
        lengths = enumerate(MASK.sum(1).tolist())
        return all(tuple(tags[b, :n].tolist()) == ranked(head, given, b)[0][0][0] for b, n in lengths)

    assert not all(map(is_best, range(24)))


@pytest.fixture(scope="module", params=["crf", "tags"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ExportedGraph]:
    head = made_head(request.param, 1).float()
    example = {name: one.float() if one.is_floating_point() else one for name, one in rows(0, 0.6).items()}
    return head, export(tmp_path_factory.mktemp("seams") / "head.onnx", head, head.decide, AXES, **example)


def test_the_graph_answers_as_pytorch(exported: tuple[Any, ExportedGraph]) -> None:
    head, graph = exported
    for seed in range(SEEDS):
        given = {name: one.float() if one.is_floating_point() else one for name, one in rows(seed, 0.6).items()}
        with torch.no_grad():
            expected = head.decide(**given)
        made = graph(**given)
        assert (made["tags"] == expected["tags"].numpy()).all()
        assert np.allclose(made["scores"], expected["scores"].numpy(), atol=1e-5)
