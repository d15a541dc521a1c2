from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from seqpipe.nn.search import BOS, EOS, NEVER, PAD, State, beam_search, best

LONGEST, V = 4, 6  # tokens 4 and 5 may be written, and 1; never [PAD] and [BOS]


class Table:
    """A decoder whose next token depends on the row, the last token and how many were written; it counts its steps."""

    def __init__(self, rows: int, seed: int = 0):
        logits = torch.randn(rows, LONGEST + 20, V, V, generator=torch.Generator().manual_seed(seed)) * 2
        logits[..., [PAD, BOS]] = NEVER
        self.log_p, self.steps = logits.double().log_softmax(3), 0

    def start(self, rows: list[int]) -> State:
        return (torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.steps += 1
        row, t = state
        return self.log_p[row, t, tokens], (row, t + 1)

    def everything(self, row: int, alpha: float) -> list[tuple[tuple[int, ...], float]]:
        """All finished sequences of at most LONGEST tokens, and unfinished ones of that length, ranked."""
        found = []
        for length in range(1, LONGEST + 1):
            for tokens in product((1, 4, 5, EOS), repeat=length):
                if EOS in tokens[:-1] or (tokens[-1] != EOS and length < LONGEST):
                    continue
                pairs = zip((BOS, *tokens), tokens, strict=False)
                found.append((tokens, sum(self.log_p[row, t, a, b].item() for t, (a, b) in enumerate(pairs))))
        return sorted(found, key=lambda one: -one[1] / ((5 + len(one[0])) / 6) ** alpha)


def written(tokens: Tensor) -> list[tuple[int, ...]]:
    """Rows without their padding."""
    rows = tokens.reshape(-1, tokens.shape[-1]).tolist()
    return [tuple(row[: row.index(EOS) + 1]) if EOS in row else tuple(row) for row in rows]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_there_are_prefixes_finds_the_best_of_all(alpha: float) -> None:
    table = Table(3)
    tokens, scores = beam_search(
        table, table.start([0, 1, 2]), beams=300, n_best=5, longest=LONGEST, length_penalty=torch.tensor(alpha)
    )
    for row in range(3):
        expected = table.everything(row, alpha)[:5]
        assert written(tokens[row]) == [sequence for sequence, _ in expected]
        assert scores[row].tolist() == pytest.approx([score for _, score in expected], abs=1e-5)


def test_the_length_penalty_changes_what_is_best() -> None:
    table = Table(20)
    lengths = []
    for alpha in (0.0, 2.0):
        tokens, _ = beam_search(
            table, table.start(list(range(20))), beams=300, n_best=1, longest=LONGEST, length_penalty=alpha
        )
        lengths.append(np.mean([len(sequence) for sequence in written(tokens)]))
    assert lengths[1] > lengths[0] + 0.3


def test_one_beam_takes_the_likeliest_token_at_each_step() -> None:
    table, tokens, score = Table(1), [BOS], 0.0
    while tokens[-1] != EOS and len(tokens) <= 20:
        log_p = table.log_p[0, len(tokens) - 1, tokens[-1]]
        tokens.append(int(log_p.argmax()))
        score += log_p.max().item()
    found, scores = beam_search(table, table.start([0]), beams=1, n_best=1, longest=20)
    assert written(found) == [tuple(tokens[1:])]
    assert scores.item() == pytest.approx(score, abs=1e-5)
    assert not found[0, 0, len(tokens) - 1 :].any()


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_neighbours_never_change_a_row(beams: int) -> None:
    table, rows = Table(8), list(range(8))
    together, scores = beam_search(table, table.start(rows), beams=beams, n_best=beams, longest=20)
    for row in rows:
        alone, score = beam_search(table, table.start([row]), beams=beams, n_best=beams, longest=20)
        assert torch.equal(alone[0], together[row])
        assert torch.allclose(score[0], scores[row])


def test_a_wider_beam_finds_what_a_narrow_one_misses() -> None:
    table, rows = Table(40), list(range(40))
    narrow = beam_search(table, table.start(rows), beams=1, n_best=1, longest=LONGEST)[1]
    wide = beam_search(table, table.start(rows), beams=300, n_best=1, longest=LONGEST)[1]
    assert (wide > narrow + 0.01).any()
    assert (wide > narrow - 1e-5).all()


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0])
def test_stopping_early_never_changes_an_answer(alpha: float) -> None:
    table, rows = Table(60), list(range(60))
    late = beam_search(table, table.start(rows), beams=4, n_best=4, longest=20, length_penalty=alpha)
    for row, n_best in product(rows, (1, 2)):
        early = beam_search(table, table.start([row]), beams=4, n_best=n_best, longest=20, length_penalty=alpha)
        assert torch.equal(early[0][0], late[0][row, :n_best])
        assert torch.allclose(early[1][0], late[1][row, :n_best])


def test_search_stops_once_nothing_can_catch_up() -> None:
    table = Table(1)
    table.log_p[:, :, :, :] = torch.tensor([NEVER, -8.0, NEVER, -0.001, -8.0, -8.0])
    beam_search(table, table.start([0]), beams=3, n_best=1, longest=20)
    assert table.steps == 1


def test_sequences_that_do_not_exist_are_marked() -> None:
    table = Table(2)
    tokens, scores = beam_search(table, table.start([0, 1]), beams=9, n_best=9, longest=1)
    assert (scores[:, :4] > -100).all()  # 1, 3, 4 and 5 can be written
    assert (scores[:, 6:] == NEVER).all()
    assert not tokens[scores == NEVER].any()


def test_more_answers_than_beams_are_as_many_as_there_are_beams() -> None:
    table = Table(2)
    tokens, scores = beam_search(table, table.start([0, 1]), beams=2, n_best=7, longest=5)
    assert tokens.shape == (2, 2, 5)
    assert scores.shape == (2, 2)


def test_of_equal_values_the_first_is_best() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 0.0]])
    assert best(values, 4)[1].tolist() == [[1, 2, 4, 0]]
    assert best(values, 3, largest=False)[1].tolist() == [[3, 5, 0]]
