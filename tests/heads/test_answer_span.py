"""The head answer-span against a search through all spans in NumPy, in PyTorch and as a graph."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import ExportedGraph, export, ragged_mask
from torch import Tensor

from seqpipe.errors import UsageError
from seqpipe_plugins.heads.answer_span import AnswerSpan

D = 6
TOKENS: Any = dict.fromkeys(("x", "mask", "segments"), ("b", "t"))
WINDOWS: Any = TOKENS | dict.fromkeys(("other_x", "window", "other_window"), ("b", "t")) | {"state": ("b",)}
SHAPES = [((5, 3), (9, 4), (2, 0)), ((1, 1),), ((3, 0),), ((2, 30), (0, 3)), ((1, 7), (4, 2), (0, 1), (2, 14))]


def build(**options: Any) -> AnswerSpan:
    torch.manual_seed(3)
    head = AnswerSpan(D, **options).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(4)  # sure enough of itself to tell spans apart
    return head


def rows(*texts: tuple[int, int], seed: int = 0, windows: bool = False) -> dict[str, Tensor]:
    """Pairs of so many tokens each, a separator between; in windows of 6 tokens of the second text that share 3."""
    torch.manual_seed(seed)
    mask = ragged_mask(*(first + 1 + second for first, second in texts))
    B, T = mask.shape
    t, firsts = torch.arange(T), torch.tensor([[first + 1] for first, _ in texts])
    segments = torch.where(t < firsts, 1, 2) * mask
    x = torch.where(mask[..., None], torch.randn(B, T, D), torch.nan)
    features = {"x": x, "mask": mask, "segments": segments, "state": torch.randn(B, D)}
    if windows:
        u, last = t - firsts, torch.tensor([[max(0, second - 4) // 3] for _, second in texts])
        window = ((u - 1).clamp(min=0) // 3).minimum(last)
        other = (window + torch.where(u - 3 * window >= 3, 1, -1)).clamp(min=0).minimum(last)
        other = torch.where((u >= 3 * other) & (u < 3 * other + 6), other, window)
        features |= {"window": window, "other_window": other, "other_x": torch.randn(B, T, D)}
    return features


def spans(head: AnswerSpan, given: dict[str, Tensor], b: int, longest: int) -> dict[tuple[int, int], float]:
    """Log-probability of every answer that can be chosen, by enumeration in double precision."""
    weight, bias = (p.detach().double().numpy() for p in (head.tokens.weight, head.tokens.bias))
    n = int(given["mask"][b].sum())
    second = [t for t in range(n) if given["segments"][b, t] == 2]
    logits = given["x"][b, :n].double().numpy() @ weight.T + bias  # (n, 2)
    nothing = np.array([0.0, 0.0])
    if head.nothing is not None:
        nothing = head.nothing.weight.detach().double().numpy() @ given["state"][b].double().numpy()
        nothing = nothing + head.nothing.bias.detach().double().numpy()
    places = [logits[second], *([nothing[None]] if head.nothing is not None or not second else [])]
    total = np.log(np.exp(np.concatenate(places)).sum(0))  # of starts, of ends
    found = {}
    if head.nothing is not None or not second:
        found[-1, -1] = float((nothing - total).sum())
    start, end = (logits - total).T
    if "window" not in given:
        return found | {(s, e): start[s] + end[e] for s in second for e in second if s <= e < s + longest}
    other_start, other_end = (given["other_x"][b, :n].double().numpy() @ weight.T + bias - total).T
    own, other = given["window"][b].tolist(), given["other_window"][b].tolist()
    for s, e in itertools.product(second, second):
        if not s <= e < s + longest:
            continue
        if own[s] == own[e]:
            found[s, e] = start[s] + end[e]
        elif {own[s], other[s]} == {own[e], other[e]}:  # both windows hold both
            found[s, e] = min(start[s] + other_end[e], other_start[s] + end[e])
    return found


def check(head: AnswerSpan, given: dict[str, Tensor], decision: dict[str, Any], n_best: int, longest: int) -> None:
    starts, ends, scores = (np.asarray(decision[name]) for name in ("starts", "ends", "scores"))
    assert starts.shape == ends.shape == scores.shape == (len(given["mask"]), n_best)
    for b in range(len(given["mask"])):
        expected = spans(head, given, b, longest)
        ranked = sorted(expected, key=lambda span: -expected[span])[:n_best]
        got = [(s, e) for s, e, p in zip(starts[b].tolist(), ends[b].tolist(), scores[b], strict=True) if p > -1e8]
        assert got == ranked
        assert np.allclose(scores[b, : len(got)], np.minimum([expected[span] for span in got], 0), atol=1e-4)
        assert (scores[b, len(got) :] <= -1e8).all()
        assert (starts[b, len(got) :] == -1).all()


@pytest.fixture(scope="module", params=[(False, False), (True, False), (True, True)], ids=["plain", "none", "windows"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AnswerSpan, ExportedGraph, bool]:
    no_answer, windows = request.param
    head, example = build(no_answer=no_answer), rows((5, 8), (2, 4), (3, 2), windows=windows)
    given = example if windows else {name: example[name] for name in (*TOKENS, *(["state"] if no_answer else []))}
    path = tmp_path_factory.mktemp("answer") / "answer.onnx"
    return head, export(path, head, head.decide, WINDOWS, **given), windows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_decision_is_that_of_a_search_through_all_spans(
    pair: tuple[AnswerSpan, ExportedGraph, bool], shape: Any
) -> None:
    head, graph, windows = pair
    for seed in range(4):
        given = rows(*shape, seed=seed, windows=windows)
        with torch.no_grad():
            for n_best, longest in ((1, 30), (4, 3), (200, 1)):
                check(head, given, head.decide(**given, n_best=n_best, longest=longest), n_best, longest)
        check(head, given, graph(**{name: given[name] for name in graph.inputs}), 1, 30)


def test_some_spans_cross_a_seam_and_others_may_not() -> None:
    given = rows((2, 14), windows=True)
    window = given["window"][0].tolist()
    permitted = {(window[start], window[end]) for start, end in spans(build(), given, 0, 99)}
    assert {(0, 1), (1, 2)} < permitted
    assert (0, 2) not in permitted


def test_the_loss_is_the_mean_of_what_each_question_costs_worked_out_by_hand() -> None:
    for no_answer in (False, True):
        head, given = build(no_answer=no_answer), rows((3, 5), (1, 6), (2, 4))
        gold = [(5, 7), (-1, -1) if no_answer else (2, 2), (3, 6)]
        start, end = (torch.tensor(column) for column in zip(*gold, strict=True))
        costs = [-spans(head, given, b, 99)[span] for b, span in enumerate(gold)]
        assert head.loss(**given, start=start, end=end).item() == pytest.approx(np.mean(costs), rel=1e-5)


def test_without_state_the_mean_of_x_says_whether_there_is_an_answer() -> None:
    head, given = build(no_answer=True), rows((3, 5), (1, 2))
    x, mask = torch.where(given["mask"][..., None], given["x"], 0.0), given["mask"]
    mean = torch.stack([row[real].mean(0) for row, real in zip(x, mask, strict=True)])
    del given["state"]
    with torch.no_grad():
        alone, expected = head.decide(**given), head.decide(**given, state=mean)
        narrow = head.decide(**given, state=torch.randn(2, D + 1))
    for name in alone:
        assert torch.allclose(alone[name], expected[name])
        assert torch.equal(alone[name], narrow[name])


def test_a_passage_without_tokens_has_no_answer_for_certain() -> None:
    with torch.no_grad():
        for no_answer in (False, True):
            decision = build(no_answer=no_answer).decide(**rows((3, 0), (1, 4)), n_best=2)
            assert (decision["starts"][0].tolist(), decision["ends"][0].tolist()) == ([-1, -1], [-1, -1])
            assert decision["scores"][0].tolist() == [0.0, -1e9]


def test_score_is_the_log_probability_of_any_answer_across_seams_too() -> None:
    head, given = build(no_answer=True), rows((2, 9), windows=True)
    for (start, end), expected in spans(head, given, 0, 99).items():
        with torch.no_grad():
            got = head.score(**given, starts=torch.tensor([[start, 0]]), ends=torch.tensor([[end, 0]]))
        assert got.item() == pytest.approx(expected, abs=1e-4)
    assert head.score(**given, starts=torch.tensor([[6]]), ends=torch.tensor([[5]])).item() < -1e8


def test_behind_an_encoder_that_changes_the_tokens_it_says_what_to_leave_out() -> None:
    given = rows((2, 4))
    with pytest.raises(UsageError, match=r"answer-span: x has 6 rows .* 7 tokens; delete the encoder .*`words`"):
        build().decide(x=given["x"][:, :6], mask=given["mask"][:, :6], segments=given["segments"])
