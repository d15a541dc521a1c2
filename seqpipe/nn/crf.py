"""A linear-chain conditional random field: best paths, their probabilities, and its gradient in training.

A conditional random field (Lafferty et al. 2001) over rows of different lengths becomes one over rows of equal length
by one more tag, the boundary: it is the tag before the text, in the padding and after it, and start and end are
transitions from and to it. So no step needs the end of a row. Of the L tags and the boundary (the last), `chain` (P,
P), P = L + 1, has the score of every transition from row to column, and `bounded` (T, P, B) every emission, with time
first and the batch last, which is twice as fast in onnxruntime as tags last.

No number grows with the length: sums are normalised to distributions (Rabiner 1989), best scores are differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.answers.tagging_schemes import parts
from seqpipe.nn.layers import LOG_ZERO, MASKED_LOGIT
from seqpipe.nn.loops import State, scan, while_loop
from seqpipe.nn.search import top_n

__all__ = ["Gazetteer", "PathLogProbability", "best_path", "bounded", "chain", "decode"]
__all__ += ["log_likelihoods", "tag_log_probabilities"]

LEAST = -35.0  # lower bound of emissions relative to the token's best in sums: products of two stay positive
SUMS_PER_BLOCK = 1 << 16  # sums of a score and a transition that are computed at a time
TINY = 1e-37  # replaces values that still underflow


def chain(start: Tensor, end: Tensor, steps: Tensor) -> Tensor:  # (L,), (L,), (L, L) -> (P, P)
    """Return all transitions from row to column, including the boundary's."""
    return torch.cat([torch.cat([steps, end[:, None]], 1), F.pad(start, (0, 1))[None]])


def bounded(emissions: Tensor, mask: Tensor) -> Tensor:  # (B, T, L), (B, T) -> (T, P, B)
    """Return emissions minus the token's largest; the boundary is allowed only in the padding."""
    rows, real = emissions.permute(1, 2, 0), mask.transpose(0, 1)[:, None]  # (T, L, B), (T, 1, B)
    tags = torch.where(real, rows - rows.amax(1, keepdim=True), MASKED_LOGIT)  # ignores padding, even NaN
    return torch.cat([tags, torch.where(real, MASKED_LOGIT, 0.0).to(tags.dtype)], 1)


class Sums(NamedTuple):
    """The forward-backward algorithm's result, (T, P, B) each, for a position and a tag."""

    ahead: Tensor  # the forward sum, without its own emission
    behind: Tensor  # the backward sum, without its own emission
    weights: Tensor  # its exponentiated emission


class PathLogProbability(torch.autograd.Function):
    """Map (T, P, B), (P, P), (T, B) to log P(path | emissions), (B,), with the exact gradient: observed - expected."""

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, chain: Tensor, path: Tensor) -> Tensor:
        weights = _weights(emissions)
        _, (sums,) = scan(_sum_step(chain), (_at_boundary(emissions, 2),), (_both_ways(weights),))
        parts = _apart(sums, weights)
        ctx.save_for_backward(chain, path, *parts)
        return _along(path, parts, chain).log_p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        chain, path, *sums = ctx.saved_tensors
        (grad,), (ahead, behind, weights), P = grads, sums, len(chain)
        expected = ahead * weights * behind
        has = F.one_hot(path, P).transpose(1, 2)  # (T, P, B)
        to_emissions = (has - _shares(expected)) * grad
        edge = _at_boundary(weights, 1)
        left = torch.cat([edge, _shares(ahead * weights)])  # (T + 1, P, B)
        right = torch.cat([_shares(behind * weights), edge])
        # The gradient is the observed minus the expected count (Lafferty et al. 2001): for a pair of tags, the product
        # of the sums on both sides and the weight of the transition, normalised over all pairs at that place.
        moves = chain.exp()
        share = grad / (left * (moves @ right)).sum(1, keepdim=True).clamp(min=TINY)  # (T + 1, 1, B)
        expected_moves = moves * (left @ (right * share).transpose(1, 2)).sum(0)
        around = F.pad(path, (0, 0, 1, 1), value=P - 1)  # (T + 2, B)
        pairs = (around[:-1] * P + around[1:]).flatten()
        has_moves = torch.zeros_like(chain).flatten().index_add(0, pairs, grad.repeat(len(left)))
        return to_emissions, has_moves.view(P, P) - expected_moves, None


def tag_log_probabilities(emissions: Tensor, chain: Tensor) -> Tensor:  # (T, P, B), (P, P) -> (T, P, B)
    """Return the log-probability of each tag at each position, by the forward-backward algorithm."""
    weights = _weights(emissions)
    _, (sums,) = scan(_sum_step(chain), (_at_boundary(emissions, 2),), (_both_ways(weights),))
    ahead, behind, _ = _apart(sums, weights)
    return _log(_shares(ahead * weights * behind))


def log_likelihoods(emissions: Tensor, chain: Tensor, path: Tensor, temperatures: Tensor) -> Tensor:
    """Return log P(path) with all scores divided by each temperature (G,), (B, G), by the forward algorithm."""
    sharpness = 1 / temperatures[:, None, None]
    moves, weights = (
        (chain * sharpness).exp().transpose(1, 2),
        emissions[:, None] * sharpness,
    )  # (G, P, P), (T, G, P, B)
    belief = _at_boundary(emissions, 1).expand(len(temperatures), -1, -1)  # (G, P, B)
    log_z = torch.zeros_like(belief[:, 0])
    for row in _weights(weights):
        belief = (moves @ belief) * row
        total = belief.sum(1, keepdim=True).clamp(min=TINY)
        belief, log_z = belief / total, log_z + total[:, 0].log()
    log_z = log_z + _log((moves[:, -1:] @ belief)[:, 0])  # (G, B)
    around = F.pad(path, (0, 0, 1, 1), value=len(chain) - 1)
    score = _at(emissions, path).sum(0) + chain[around[:-1], around[1:]].sum(0)  # (B,)
    return (score * sharpness[:, 0] - log_z).transpose(0, 1)


class Decision(NamedTuple):
    """The best paths of each row and their probabilities."""

    path: Tensor  # (T, B)
    tag_p: Tensor  # (T, B) the probability of each of its tags
    opens: Tensor  # (T, B) exp(opens[i] + closes[j]) is the probability that the path's tags stand at i to j ...
    closes: Tensor  # (T, B) ... and the span does not continue after j
    paths: Tensor  # (T, B, n) the n best, the best first
    log_p: Tensor  # (B, n) log-probabilities; LOG_ZERO where there are not so many

    def outputs(self, mask: Tensor) -> dict[str, Tensor]:
        """Return the outputs of a head that tags words, (B, T) each and 0 in the padding."""
        rows = {"tags": self.path, "scores": self.tag_p, "opens": self.opens, "closes": self.closes}
        return {name: torch.where(mask, row.transpose(0, 1), 0) for name, row in rows.items()}


def decode(emissions: Tensor, chain: Tensor, span_continues: Tensor, n: int, same: Tensor | None = None) -> Decision:
    """Return the n best paths of `bounded` emissions.

    `span_continues` (P, P) bool: whether the column's tag continues the span of the row's tag. `same` (P, P) is 1 for
    two states of the same tag, if a tag has several; `tag_p` is then that of all of them. Ties go to the first tag.
    """

    def step(state: State, rows: State) -> tuple[State, State]:
        belief, score = state  # (2, P, B), (P, B)
        both, emission = rows
        (belief,), (sums,) = sum_step((belief,), (both,))
        reached = _reached(score, emission, chain)
        # Only differences between tags matter for the path; without the subtraction, rounding loses them in a long
        # text.
        return (belief, reached - reached.amax(0, keepdim=True)), (sums, reached)

    # One loop over the text does three things: it sums from the left, sums from the right (on the reversed text), and
    # finds the best score of each tag. In a graph each step has an overhead, so one loop costs less than three.
    weights, sum_step = _weights(emissions), _sum_step(chain)
    edge = _at_boundary(emissions, 2)
    _, (sums, scores) = scan(step, (edge, _score_at_boundary(emissions)), (_both_ways(weights), emissions))
    path = _traced(scores, chain)
    sums_apart = _apart(sums, weights)
    along = _along(path, sums_apart, chain)
    tag_p = along.tag_log_p.exp()
    if same is not None:
        tag_p = _at(same @ _shares(sums_apart.ahead * sums_apart.behind * weights), path)
    # A span ends at a tag with the probability of all next tags that do not continue it, including the boundary.
    nexts = torch.cat([_shares(sums_apart.behind * weights)[1:], edge[:1]])  # (T, P, B) probabilities of the next tag
    stops = _log(_at(torch.where(span_continues, 0.0, chain.exp()) @ nexts, path)) - _log(_at(sums_apart.behind, path))
    paths, gaps = _n_best(scores, chain, path, n)
    return Decision(
        path,
        tag_p,
        along.tag_log_p - along.so_far,
        along.so_far + stops,
        paths,
        torch.where(gaps < -MASKED_LOGIT / 2, along.log_p[:, None] - gaps, LOG_ZERO),
    )


def best_path(emissions: Tensor, chain: Tensor) -> Tensor:
    """Return the best path (T, B) of `bounded` emissions (Viterbi 1967); ties go to the first tag."""

    def step(state: State, rows: State) -> tuple[State, State]:
        reached = _reached(state[0], rows[0], chain)
        return (reached - reached.amax(0, keepdim=True),), (reached,)

    _, (scores,) = scan(step, (_score_at_boundary(emissions),), (emissions,))
    return _traced(scores, chain)


def _reached(score: Tensor, emission: Tensor, chain: Tensor) -> Tensor:  # (P, B), (P, B), (P, P) -> (P, B)
    size = len(chain) * score.shape[1]
    if torch.compiler.is_exporting() or len(chain) * size <= SUMS_PER_BLOCK:
        return (score[:, None] + chain[..., None]).amax(0) + emission
    # With hundreds of tags (P, P, B) is large, and glibc would not use its space again at the next step.
    into = chain.split(max(1, SUMS_PER_BLOCK // size), 1)
    return torch.cat([(score[:, None] + part[..., None]).amax(0) for part in into]) + emission


def _score_at_boundary(emissions: Tensor) -> Tensor:  # (T, P, B) -> (P, B)
    return torch.where(_at_boundary(emissions, 1)[0] > 0, 0.0, MASKED_LOGIT)


def _traced(scores: Tensor, chain: Tensor) -> Tensor:  # (T, P, B), (P, P) -> (T, B)
    """Trace the best path backward from the boundary after the end."""

    def back(state: State, rows: State) -> tuple[State, State]:
        tag = (rows[0] + chain.index_select(1, state[0])).argmax(0)  # (B,)
        return (tag,), (tag,)

    end = torch.full_like(scores[0, 0], len(chain) - 1, dtype=torch.int64)  # (B,) the boundary
    _, (path,) = scan(back, (end,), (scores,), reverse=True)
    return path


def _n_best(scores: Tensor, chain: Tensor, path: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n best paths (T, B, n) and the difference of each from the best one (B, n).

    Backward from the end, each of n partial paths is extended to every tag; its differences from the best extension are
    summed, and the n smallest sums are kept (after Soong and Huang 1991: `scores` is exact, so no better path is ever
    dropped). The first is the best path, with exactly 0. For n = 1 the loop takes no step.
    """
    T, P, _ = scores.shape
    rank, times = torch.arange(n, device=scores.device), torch.arange(T, device=scores.device)
    short = torch.where(rank == 0, 0.0, -LOG_ZERO) + torch.zeros_like(scores[0, 0, :, None])  # (B, n)
    tags = torch.full_like(short, P - 1, dtype=torch.int64)
    several, into = (rank > 0).any(), chain.transpose(0, 1).contiguous()
    parent_of, tag_of = (rank.repeat_interleave(P), times.new_tensor(range(P)).repeat(n))  # (n * P,) path and tag

    def loop_condition(t: Tensor, tags: Tensor, short: Tensor, paths: Tensor) -> Tensor:
        return (t >= 0) & several

    def step(t: Tensor, tags: Tensor, short: Tensor, paths: Tensor) -> State:
        ways = scores.index_select(0, t[None])[0].transpose(0, 1)[:, None] + F.embedding(tags, into)  # (B, n, P)
        missed = short[..., None] + (ways.amax(2, keepdim=True) - ways)
        short, chosen = top_n(missed.flatten(1), short.shape[1], largest=False)  # (B, n)
        tags = tag_of[chosen]
        paths = paths.gather(2, parent_of[chosen][None].expand(T, -1, -1))
        return t - 1, tags, short, torch.where((times == t)[:, None, None], tags[None], paths)

    start = (times[-1], tags, short, path[..., None] + torch.zeros_like(tags)[None])
    _, _, short, paths = while_loop(loop_condition, step, start)
    return paths, short


class _Along(NamedTuple):
    """Log-probabilities of a path."""

    log_p: Tensor  # (B,) its log-probability
    tag_log_p: Tensor  # (T, B) each of its tags'
    so_far: Tensor  # (T, B) that of tags 1 to t, given tag 0


def _along(path: Tensor, sums: Sums, chain: Tensor) -> _Along:
    ahead, behind, weights = sums
    weighted = behind * weights
    path_weighted, whole = _at(weighted, path), weighted.sum(1)  # (T, B)
    tag_log_p = _log(_at(ahead, path)) + _log(path_weighted) - _log((ahead * weighted).sum(1))
    moves = F.embedding(path[:-1] * len(chain) + path[1:], chain.reshape(-1, 1)).squeeze(2)  # (T - 1, B)
    steps = moves + (_log(path_weighted) - _log(whole))[1:] - _log(_at(behind, path))[:-1]
    so_far = F.pad(steps.cumsum(0), (0, 0, 1, 0))  # (T, B)
    return _Along(tag_log_p[0] + so_far[-1], tag_log_p, so_far)


def _sum_step(chain: Tensor) -> Callable[[State, State], tuple[State, State]]:
    """Return one step of the forward and the backward algorithm, each a distribution over the tags (2, P, B)."""
    moves = chain.exp()
    moves = torch.stack([moves.transpose(0, 1), moves])  # (2, P, P)

    def step(state: State, rows: State) -> tuple[State, State]:
        sums = moves @ state[0]
        # On a long text sums would leave the range of float32. Only the ratios between tags are used, so each step
        # normalises them to a distribution; the product of the divisors, the partition function, is never needed (see
        # `_along`).
        belief = sums * rows[0]
        return (belief / belief.sum(1, keepdim=True),), (sums,)

    return step


def _shares(worth: Tensor) -> Tensor:  # (T, P, B) of the whole over the tags
    return worth / worth.sum(1, keepdim=True).clamp(min=TINY)


def _weights(emissions: Tensor) -> Tensor:  # exactly 0 where a tag is impossible
    return torch.where(emissions > MASKED_LOGIT / 2, emissions.clamp(min=LEAST).exp(), 0.0)


def _at_boundary(rows: Tensor, n: int) -> Tensor:  # (T, P, B) -> (n, P, B) all of the probability on the boundary
    return F.pad(torch.zeros_like(rows[:1, 1:]).expand(n, -1, -1), (0, 0, 0, 1), value=1.0)


def _both_ways(rows: Tensor) -> Tensor:  # (T, P, B) -> (T, 2, P, B) forward and backward
    return torch.stack([rows, rows.flip(0)], 1)


def _apart(sums: Tensor, weights: Tensor) -> Sums:  # (T, 2, P, B)
    return Sums(sums[:, 0], sums[:, 1].flip(0), weights)


def _at(rows: Tensor, path: Tensor) -> Tensor:  # (T, P, B), (T, B) -> (T, B)
    return rows.gather(1, path[:, None]).squeeze(1)


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=TINY).log()


# Tag sequences in which every entity of a listed label is a listed name.


class Gazetteer(nn.Module):
    """The states of a field whose paths are the tag sequences in which each entity of a listed label is a listed name.

    A state of a listed label is a tag and the number of words that follow in its entity. A state that begins an entity
    is permitted where a listed name of this length begins; the next states have one word less each, until none is left.
    O and tags of other labels are one state each, permitted everywhere. So each of these sequences is exactly one path,
    and its probability is that among all of them.

    Args:
        tags: The L tags of the head, in the scheme BIOES or IOB2.
        listed: The X labels of the list.
        names: Whether each of V names has each label, (V, X) bool.
        longest: M, the number of words of the longest name.
        span_continues: As in `decode`, (L + 1, L + 1) bool.
    """

    def __init__(self, tags: Sequence[str], listed: Sequence[str], names: Tensor, longest: int, span_continues: Tensor):
        super().__init__()
        self.longest = M = longest
        X, shortest = len(listed), int(any(tag.startswith("E-") for tag in tags))
        # The words that may follow a tag; in IOB2 an entity may end with B or I, in BIOES it ends with E or S.
        rests = {"S": range(1), "B": range(shortest, M), "I": range(shortest, M - 1), "E": range(min(1, M - 1))}
        # A state: its tag, the words that follow, the label, whether an entity begins, and the column of `permitted`.
        states: list[tuple[int, int, int, bool, int]] = []
        for j, (prefix, label) in enumerate(map(parts, tags)):
            x, begins = listed.index(label) if label in listed else -1, prefix not in ("I", "E")
            column = 1 + (0 if begins else M * X) + x
            states += [(j, 0, -1, True, 0)] if x < 0 else [(j, r, x, begins, column + r * X) for r in rests[prefix]]
        states.append((len(tags), 0, -1, True, 0))  # the boundary
        tag, remaining, label_ids, begin, columns = (torch.tensor(part) for part in zip(*states, strict=True))
        follows = (label_ids[:, None] == label_ids) & (remaining[:, None] == remaining + 1) & (label_ids >= 0)  # (P, P)
        forbidden = torch.where(torch.where(begin, remaining[:, None] == 0, follows), 0.0, MASKED_LOGIT)
        self.names, self.tags = nn.Buffer(names.float(), persistent=False), nn.Buffer(tag, persistent=False)
        self.columns, self.forbidden = (nn.Buffer(part, persistent=False) for part in (columns[:-1], forbidden))
        self.continues = nn.Buffer(span_continues[tag][:, tag], persistent=False)
        self.same = nn.Buffer((tag[:, None] == tag).float(), persistent=False)

    def permitted(self, names: Tensor, mask: Tensor) -> Tensor:  # (B, T, K), (B, T) -> (B, T, S) bool
        """Return the permitted states; place k - 1 of `names` has the number of the name of k words that ends there."""
        M, T = self.longest, names.shape[1]
        ends = torch.where(mask[..., None, None], F.embedding(names, self.names), 0.0)  # (B, T, K, X)
        ends = F.pad(ends, (0, 0, 0, M, 0, M - 1))[:, :, :M]  # (B, T + M - 1, M, X)
        begins = [ends[:, r : r + T, r] for r in range(M)]  # a name begins here and ends r words later
        inside = [ends[:, r : r + T, r + 1 :].amax(2) for r in range(M - 1)]  # an earlier one ends r words later
        columns = torch.cat([torch.ones_like(begins[0][..., :1]), *begins, *inside], 2)
        return columns.index_select(2, self.columns) > 0

    def decode(self, logits: Tensor, names: Tensor, mask: Tensor, chain: Tensor | None, n: int) -> Decision:
        """Return the n best of these sequences: see the function `decode`; without `chain` only the list joins tags."""
        states = torch.where(self.permitted(names, mask), logits.index_select(2, self.tags[:-1]), MASKED_LOGIT)
        moves = self.forbidden if chain is None else self.forbidden + chain[self.tags][:, self.tags]  # (P, P)
        decision = decode(bounded(states, mask), moves, self.continues, n, self.same)
        return decision._replace(path=self.tags[decision.path], paths=self.tags[decision.paths])
