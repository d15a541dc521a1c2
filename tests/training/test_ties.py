"""What tells a tie from an error: how far the model's scores of PyTorch's decision and of the graph's are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from seqpipe.answers.classification import LabelTask
from seqpipe.answers.extractive_span import ExtractiveSpanTask
from seqpipe.answers.tagging import SpansTask
from seqpipe.answers.text import TextTask
from seqpipe.training.pipeline import score_gap

LOG_P = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).log_softmax(1)  # of 6 tokens at 9 places


def of_text(decision: Mapping[str, Tensor]) -> Tensor:
    """The log-probability of the first text, place by place."""
    tokens = decision["tokens"][:, 0]
    return LOG_P[: tokens.shape[1]].gather(1, tokens.T).sum(0)


def text(*tokens: int, rows: int = 1) -> dict[str, Tensor]:
    return {"tokens": torch.tensor([[[*tokens]]] * rows), "scores": torch.zeros(rows, 1)}


def test_texts_are_as_near_as_their_first_choices_that_differ_or_as_their_scores() -> None:
    first, second = text(1, 2, 3, 4), text(1, 5, 1, 1)
    gap_of_first = abs(LOG_P[1, 2] - LOG_P[1, 5]).item()
    whole = abs(of_text(first) - of_text(second)).item()
    assert score_gap(TextTask.choices, True, of_text, first, second).item() == pytest.approx(min(gap_of_first, whole))
    assert gap_of_first != pytest.approx(whole)
    near = text(1, 2, 3, 5)  # behind a choice that differs greatly another may make up for it: beams choose so
    assert score_gap(TextTask.choices, True, of_text, first, near).item() == pytest.approx(
        abs(LOG_P[3, 4] - LOG_P[3, 5]).item()
    )


def test_each_row_has_a_place_of_its_own_where_it_differs() -> None:
    first = {"tokens": torch.tensor([[[1, 2, 3]], [[1, 2, 3]], [[1, 2, 3]]])}
    second = {"tokens": torch.tensor([[[1, 2, 3]], [[1, 4, 3]], [[5, 2, 3]]])}
    expected = [0.0, abs(LOG_P[1, 2] - LOG_P[1, 4]), abs(LOG_P[0, 1] - LOG_P[0, 5])]
    assert score_gap(TextTask.choices, True, of_text, first, second).tolist() == pytest.approx(
        [float(gap) for gap in expected]
    )


def test_of_several_texts_the_first_that_differ_are_compared_not_the_best() -> None:
    first = {"tokens": torch.tensor([[[1, 2], [3, 4], [5, 1]]])}
    second = {"tokens": torch.tensor([[[1, 2], [3, 1], [5, 1]]])}
    gap = score_gap(TextTask.choices, True, of_text, first, second).item()
    assert gap == pytest.approx(abs(LOG_P[1, 4] - LOG_P[1, 1]).item())
    assert gap > 1e-4


def test_the_second_best_path_of_tags_is_judged_by_its_own_score() -> None:
    tags = torch.tensor([[0, 1, 2]])

    def score(decision: Mapping[str, Tensor]) -> Tensor:
        return decision["tags"].sum(1).float()

    first = {"tags": tags, "paths": torch.tensor([[[0, 1, 2], [2, 2, 2]]])}
    second = {"tags": tags, "paths": torch.tensor([[[0, 1, 2], [2, 2, 0]]])}
    assert score_gap(SpansTask.choices, False, score, first, second).item() == 2
    assert score_gap(SpansTask.choices, False, score, first, first).item() == 0


def test_an_answer_span_is_its_start_and_its_end_at_one_rank() -> None:
    def score(decision: Mapping[str, Tensor]) -> Tensor:
        return (10 * decision["starts"][:, 0] + decision["ends"][:, 0]).float()

    first = {"starts": torch.tensor([[1, 3]]), "ends": torch.tensor([[2, 4]])}
    second = {"starts": torch.tensor([[1, 3]]), "ends": torch.tensor([[2, 6]])}
    assert score_gap(ExtractiveSpanTask.choices, False, score, first, second).item() == 2


def test_what_has_no_score_is_never_a_tie_and_what_is_kept_is_no_decision() -> None:
    first = {"label": torch.tensor([1, 1]), "noted": torch.tensor([0, 0]), "present.ids": torch.tensor([[1], [2]])}
    second = first | {"noted": torch.tensor([0, 5]), "present.ids": torch.tensor([[1], [3]])}

    def score(decision: Mapping[str, Tensor]) -> Tensor:
        return torch.zeros(2)

    assert score_gap(LabelTask.choices, False, score, first, second).tolist() == [0.0, math.inf]
    assert score_gap(TextTask.choices, True, of_text, text(1, rows=2) | first, text(1, rows=2) | second).tolist() == [
        0.0,
        math.inf,
    ]
