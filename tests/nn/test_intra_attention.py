"""Attention to what was written against NumPy step by step, and against itself."""

from __future__ import annotations

import numpy as np
import torch
from exported import elsewhere
from torch import Tensor

from seqpipe.nn.attention import IntraDecoderAttention

H = 5
Array = np.ndarray


def built() -> IntraDecoderAttention:
    torch.manual_seed(0)
    return IntraDecoderAttention(H)


def found(weight: Array, states: Array, itself: bool = False) -> Array:
    """What each of the states (N, H) of one text finds in those before it, as Paulus et al. 2018 have it."""
    contexts = [np.zeros(H)]
    for t in range(1, len(states)):
        seen = states[: t + itself]
        e = np.exp([states[t] @ weight @ one for one in seen])
        contexts.append(sum(share * one for share, one in zip(e / e.sum(), seen, strict=True)))
    return np.stack(contexts)


def stepped(written: IntraDecoderAttention, h: Tensor, longest: int, order: list[int] | None = None) -> Tensor:
    kept, made = written.start(h, longest), []
    for t in range(h.shape[1]):
        context, kept = written.step(h[:, t], kept)
        made.append(context)
        assert [part.shape for part in kept] == [(len(h), longest, H), (len(h),)]
        assert kept[1].tolist() == [t + 1] * len(h)
        if order is not None:
            kept = tuple(part[order] for part in kept)
    return torch.stack(made, 1)


def test_every_state_finds_what_the_paper_says_at_once_and_step_by_step() -> None:
    written, h = built(), 2 * torch.randn(3, 7, H)
    weight = written.query.weight.detach().double().numpy().T
    expected = np.stack([found(weight, row) for row in h.double().numpy()])
    wrong = np.stack([found(weight, row, itself=True) for row in h.double().numpy()])
    with torch.no_grad():
        for made in (written(h), stepped(written, h, 7), stepped(written, h, 20)):
            assert np.abs(made.numpy() - expected).max() < 1e-5
            assert np.abs(made.numpy() - wrong).max() > 0.1  # one that saw itself would be found out
            assert not made[:, 0].any()


def test_what_was_kept_follows_its_row_when_search_reorders() -> None:
    written, h = built(), torch.randn(3, 4, H)
    order = [2, 2, 0]
    with torch.no_grad():
        made = stepped(written, h, 6, order)
        ancestors = [list(range(3))]
        for _ in range(3):  # who each row comes from, step by step
            ancestors = [[one[i] for i in order] for one in ancestors] + [list(range(3))]
        for row in range(3):
            line = torch.stack([h[ancestors[t][row], t] for t in range(4)])
            assert torch.allclose(written(line[None])[0, -1], made[row, -1], atol=1e-6)


def test_what_comes_later_changes_nothing_before() -> None:
    written, h = built(), torch.randn(2, 6, H)
    other = h.clone()
    other[:, 4] += 1
    with torch.no_grad():
        before, after = written(h), written(other)
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(2).all()


def test_all_it_keeps_is_made_where_the_states_are() -> None:
    written, h = built(), torch.randn(2, 3, H)
    with elsewhere():
        assert written(h).device.type == "cpu"
        assert stepped(written, h, 4).device.type == "cpu"
