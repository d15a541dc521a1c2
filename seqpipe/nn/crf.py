"""Emissions, transitions and a mask in; a linear-chain CRF's paths, their probabilities and its training gradient out.

A conditional random field (Lafferty et al. 2001) over rows of different lengths becomes one over rows of the same length by one
more tag, the boundary: it stands before, in the padding and after, and start and end are transitions from and to it. So no step
asks where a row ends. Of the L tags and the boundary (the last), `chain` (P, P), P = L + 1, holds the score of every transition
and `bounded` (T, B, P) every emission, time first.

Nothing grows with the length: sums are carried as distributions (Rabiner 1989), best scores as differences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.loops import scan, while_loop
from seqpipe.nn.search import best

FORBIDDEN = -1e4  # a sum of these stays finite in float32, and its exponential is exactly 0
NO_PATH = -1e9


def chain(start: Tensor, end: Tensor, steps: Tensor) -> Tensor:  # (L,), (L,), (L, L) -> (P, P)
    """Every transition from row to column, the boundary's included."""
    from_boundary = F.pad(start, (0, 1))  # (P,)
    return torch.cat([torch.cat([steps, end[:, None]], 1), from_boundary[None]])


def bounded(emissions: Tensor, mask: Tensor) -> Tensor:  # (B, T, L), (B, T) -> (T, B, P)
    """Emissions that allow the boundary, and only it, in the padding."""
    real = mask[..., None]
    allowed = torch.where(real, emissions, FORBIDDEN)  # whatever stands in the padding, NaN too
    return torch.cat([allowed, torch.where(real, FORBIDDEN, 0.0).to(emissions.dtype)], 2).transpose(0, 1).contiguous()


class PathLogProbability(torch.autograd.Function):
    """log P(path | emissions), (B,), with the exact gradient from the forward-backward algorithm: observed less expected counts."""

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, chain: Tensor, path: Tensor) -> Tensor:  # (T, B, P), (P, P), (T, B) -> (B,)
        _, (sums,) = scan(_sums(chain), (_at_boundary(emissions, 2),), (_both_ways(emissions),))
        ahead, behind = _apart(sums)
        ctx.save_for_backward(emissions, chain, path, ahead, behind)
        return _along(path, emissions, chain, ahead, behind)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]  # (B,)
        emissions, chain, path, ahead, behind = ctx.saved_tensors
        P = len(chain)
        expected = (ahead + emissions + behind).softmax(2)  # (T, B, P) each tag's probability
        to_emissions = (F.one_hot(path, P) - expected) * grad[:, None]
        edge = _at_boundary(emissions, 1)  # (1, B, P)
        left = torch.cat([edge, (ahead + emissions).softmax(2)]).flatten(0, 1)  # ((T + 1) * B, P)
        right = torch.cat([(behind + emissions).softmax(2), edge]).flatten(0, 1)
        weights = chain.exp()
        share = grad.repeat(len(emissions) + 1) / ((left @ weights) * right).sum(1).clamp(min=1e-30)  # ((T + 1) * B,)
        expected_steps = weights * (left.T @ (right * share[:, None]))  # (P, P)
        around = F.pad(path, (0, 0, 1, 1), value=P - 1)  # (T + 2, B)
        pairs = (around[:-1] * P + around[1:]).flatten()
        observed = torch.zeros_like(chain).flatten().index_add(0, pairs, grad.repeat(len(emissions) + 1))
        return to_emissions, observed.view(P, P) - expected_steps, None


def decode(emissions: Tensor, chain: Tensor, goes_on: Tensor, n: int) -> tuple[Tensor, ...]:
    """The best paths and what is known about them.

    Args:
        emissions: (T, B, P) of `bounded`.
        chain: (P, P).
        goes_on: (P, P) bool: whether the column's tag goes on with the row's span.
        n: How many paths.

    Returns:
        The best path (T, B); each of its tags' probability (T, B); opens and closes (T, B), where exp(opens[i] + closes[j]) is the
        probability that the path's tags stand at i to j and the span does not go on; the n best paths (T, B, n) and their
        log-probabilities (B, n), NO_PATH where there are not so many.
    """

    def step(state: tuple[Tensor, ...], rows: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        belief, score = state  # (2, B, P), (B, P)
        both, emission = rows
        (belief,), (sums,) = sum_step((belief,), (both,))
        reached, source = (score[:, None] + into).max(2)  # (B, P), the lowest tag of equal ones
        score = (reached + emission).log_softmax(1)
        return (belief, score), (sums, score, source)

    sum_step, into = _sums(chain), chain.transpose(0, 1).contiguous()
    start = (_at_boundary(emissions, 2), torch.where(_at_boundary(emissions, 1)[0] > 0, 0.0, FORBIDDEN))
    _, (sums, scores, sources) = scan(step, start, (_both_ways(emissions), emissions))
    end = (scores[-1] + into[-1]).argmax(1, keepdim=True)  # (B, 1)
    _, (path,) = scan(lambda tag, row: ((row[0].gather(1, tag[0]),), tag), (end,), (sources,), reverse=True)
    path = path[..., 0]  # (T, B)
    ahead, behind = _apart(sums)
    log_p, tag_log_p, so_far = _along(path, emissions, chain, ahead, behind)
    after = torch.cat([(behind + emissions).softmax(2)[1:], _at_boundary(emissions, 1)])  # (T, B, P)
    leaves = (torch.where(goes_on, 0.0, chain.exp())[path] * after).sum(2).clamp(min=1e-30).log()  # (T, B)
    closes = so_far + leaves - behind.gather(2, path[..., None])[..., 0]
    paths, gaps = _n_best(scores, into, path, n)
    path_log_p = torch.where(gaps < -FORBIDDEN / 2, log_p[:, None] - gaps, NO_PATH)
    return path, tag_log_p.exp(), tag_log_p - so_far, closes, paths, path_log_p


def _n_best(scores: Tensor, into: Tensor, path: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n best paths (T, B, n) and by how much each falls short of the best one (B, n).

    From the end backward, each of n partial paths goes to every tag; what that falls short of the best way there adds up, and
    the n smallest sums are kept (after Soong and Huang 1991: `scores` is exact, so nothing good is ever dropped). The first is
    the best path, at exactly 0. For n = 1 there is nothing to do, and no step is made.
    """
    T, _, P = scores.shape
    rank = torch.arange(n)
    times = torch.arange(T)
    short = torch.where(rank == 0, 0.0, -NO_PATH) + torch.zeros_like(scores[0, :, :1])  # (B, n)
    tags = torch.full_like(short, P - 1, dtype=torch.int64)
    several = (rank > 0).any()

    def go_on(t: Tensor, tags: Tensor, short: Tensor, paths: Tensor) -> Tensor:
        return (t >= 0) & several

    def step(t: Tensor, tags: Tensor, short: Tensor, paths: Tensor) -> tuple[Tensor, ...]:
        ways = scores.index_select(0, t[None])[0][:, None] + F.embedding(tags, into)  # (B, n, P)
        missed = short[..., None] + (ways.amax(2, keepdim=True) - ways)
        short, chosen = best(missed.flatten(1), short.shape[1], largest=False)  # (B, n)
        parent, tags = chosen // P, chosen % P
        paths = paths.gather(2, parent[None].expand(T, -1, -1))
        return t - 1, tags, short, torch.where((times == t)[:, None, None], tags[None], paths)

    start = (torch.tensor(0) + T - 1, tags, short, path[..., None] + torch.zeros_like(tags)[None])
    _, _, short, paths = while_loop(go_on, step, start)
    return paths, short


def _sums(chain: Tensor) -> Any:
    """One step of the forward and the backward algorithm at once: (2, B, P) distributions on to the next position."""
    weights = chain.exp()
    weights = torch.stack([weights, weights.transpose(0, 1)])  # (2, P, P)

    def step(state: tuple[Tensor], rows: tuple[Tensor]) -> tuple[tuple[Tensor], tuple[Tensor]]:
        sums = (state[0] @ weights).log()  # (2, B, P) -inf where nothing leads
        return ((sums + rows[0]).softmax(2),), (sums,)

    return step


def _at_boundary(emissions: Tensor, n: int) -> Tensor:  # -> (n, B, P) all of the probability on the boundary
    return F.pad(torch.zeros_like(emissions[:1, :, 1:]).expand(n, -1, -1), (0, 1), value=1.0)


def _both_ways(emissions: Tensor) -> Tensor:  # (T, B, P) -> (T, 2, B, P) forward and backward
    return torch.stack([emissions, emissions.flip(0)], 1)


def _apart(sums: Tensor) -> tuple[Tensor, Tensor]:
    """(T, 2, B, P) to what each tag is worth from the left and from the right, (T, B, P) each, emission not included."""
    sums = sums.clamp(min=FORBIDDEN)
    return sums[:, 0], sums[:, 1].flip(0)


def _along(path: Tensor, emissions: Tensor, chain: Tensor, ahead: Tensor, behind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A path's log-probability (B,); that of each of its tags (T, B); and of tags 1 to t given tag 0 (T, B)."""
    at = path[..., None]  # (T, B, 1)
    tag_log_p = (ahead + emissions + behind).log_softmax(2).gather(2, at)[..., 0]
    given_past = (behind + emissions).log_softmax(2).gather(2, at)[1:, :, 0] + chain[path[:-1], path[1:]]  # (T - 1, B)
    steps = given_past - behind.gather(2, at)[:-1, :, 0]
    so_far = F.pad(steps.cumsum(0), (0, 0, 1, 0))  # (T, B)
    return tag_log_p[0] + so_far[-1], tag_log_p, so_far
