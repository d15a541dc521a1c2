"""A decoder's step and where it starts in, the likeliest sequences of tokens out, or sequences drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.loops import while_loop

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # the same in every vocabulary
NEVER = -1e9  # the score of what cannot be; several of them still add up in float32

State = tuple[Tensor, ...]
Numbers = float | Tensor


class Decoder(Protocol):
    """What writes token by token.

    `step` takes the tokens just written, (R,), and a state, and returns the log-probabilities of the next ones (R, V),
    the state after, and the attention to the source (B, K, S), S the length of `mask` (B, S), or None for none.
    R = B * K: the K beams of a row stand together. A state is a tuple of tensors with R rows, which keep their shapes
    and dtypes (see `loops`): search repeats and reorders rows, and knows nothing else of them; what all beams of a row
    share is no part of it. [PAD] and [BOS] must be as good as impossible.
    """

    @property
    def mask(self) -> Tensor | None: ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]: ...


def search(
    decoder: Decoder,
    start: State,
    *,
    beams: int,
    n_best: int,
    max_length: int,
    min_length: int | Tensor = 0,
    length_penalty: Numbers = 0.0,
    coverage_penalty: Numbers = 0.0,
    early_stopping: bool | Tensor = False,
    no_repeat_ngram_size: int | Tensor = 0,
    prefix: Tensor | None = None,
    forbidden: Tensor | None = None,
    lengths: Tensor | None = None,
    plain: bool = True,
    first: Tensor | None = None,
    most: Tensor | None = None,
    stop: Tensor | None = None,
    uniform: Tensor | None = None,
    temperature: Numbers = 1.0,
    top_k: int = 50,
    top_p: Numbers = 1.0,
) -> tuple[Tensor, Tensor]:
    """Beam search, greedy with one beam; or, where random numbers are given, K texts drawn from the model.

    At each step the 2 K best continuations of the K beams of a row are looked at. Those among the first K that end
    are put with the best K ended ones so far; the K best of the others continue (as fairseq and `transformers`
    search). A row is settled when its n best ended ones can no longer be outdone, and nothing changes in it from
    then on: its answer depends on no other row. One beam never continues behind an end: it is greedy search.

    With random numbers each beam writes by itself. Of a token's candidates, the likeliest first, that one is taken in
    whose share of the interval from 0 to 1 the number falls.

    Args:
        decoder: See Decoder.
        start: The state before the first token, B rows.
        beams: How many sequences are kept at each step, K.
        n_best: How many are returned, at most K.
        max_length: The most tokens of a sequence, N, [EOS] included; one that reaches it may lack its [EOS].
        min_length: The least tokens of a sequence, [EOS] not included.
        length_penalty: α ≥ 0: sequences of l tokens are ranked by score / ((5 + l) / 6)^α (Wu et al. 2016).
        coverage_penalty: β ≥ 0: what is added to that rank, β Σ log min(1, attention that a source token got), taken
            over the source tokens (Wu et al. 2016); nothing where the decoder attends to nothing.
        early_stopping: Whether a row is settled as soon as K sequences have ended.
        no_repeat_ngram_size: n > 0: no n tokens in a row are written twice (Paulus et al. 2018).
        prefix: Tokens that every sequence begins with, (1 or B, P) int64, [PAD] behind the shorter ones.
        forbidden: Tokens that are never written, (1 or B, F) int64.
        lengths: How many tokens a row's sequences have, (B,), [EOS] not included; -1 where that is open.
        plain: Whether a graph has a loop of its own for searches that ask for no more than the best continuations: it
            is faster, and the graph takes longer to make.
        first: What stands before the first token of each row, (B,); None: [BOS].
        most: The most tokens of each row's sequences, (B,), where that is less than `max_length`; none: 0.
        stop: Tokens that end a sequence as [EOS] does, (1 or B, E) int64, [PAD] where there are fewer.
        uniform: A number from 0 up to but not 1 for each token of each beam, (1 or B, 1 or K, N'); no sequence gets
            longer than N'. N' = 0: beam search.
        temperature: Of what is drawn from: probabilities to the power of 1 / temperature; 0 takes the likeliest.
        top_k: How many candidates a token has, the likeliest ones (Fan et al. 2018).
        top_p: Of the candidates, the fewest that together have this share of their probability (Holtzman et al. 2020).

    Returns:
        Tokens (B, n_best, N), the best first, [PAD] after [EOS]; and their log-probabilities (B, n_best), whatever the
        penalties and the temperature. Where there are not so many sequences, [PAD] alone and NEVER.
    """
    device, B, K = start[0].device, start[0].shape[0], beams
    times = torch.arange(max_length, device=device)
    numbers = torch.zeros(1, 1, 0, device=device) if uniform is None else uniform
    draws = torch.full((), numbers.shape[2], device=device) > 0
    written_most, drawn_most = (
        torch.full((), n, device=device) for n in (max_length, torch.sym_min(max_length, numbers.shape[2]))
    )
    given = torch.zeros(1, 0, dtype=torch.int64, device=device) if prefix is None else prefix
    never = torch.zeros(1, 0, dtype=torch.int64, device=device) if forbidden is None else forbidden
    exact = torch.full((B,), -1, dtype=torch.int64, device=device) if lengths is None else lengths + 0
    least_length = torch.maximum(exact, torch.zeros_like(exact) + min_length)
    ordered = torch.full((), given.shape[1] + never.shape[1], device=device) > 0
    asked = torch.zeros((), device=device) + no_repeat_ngram_size + coverage_penalty
    candidates = torch.sym_max(2 * K, top_k * torch.sym_min(numbers.shape[2], 1))
    made = _Search(
        decoder=decoder,
        plain=~draws & ~ordered & (asked == 0) & (least_length <= 0).all() & (exact < 0).all(),
        draws=draws,
        several=torch.full((), K, device=device) > 1,
        limit=torch.where(draws, drawn_most, written_most),
        times=times,
        rank=torch.arange(K, device=device),
        twice=torch.arange(2 * K, device=device),
        candidates=torch.arange(candidates, device=device),
        first_row=(torch.arange(B, device=device) * K)[:, None],
        last_counts=torch.full((1,), torch.sym_min(n_best, K) - 1, device=device),
        penalties=((6 + times) / 6) ** length_penalty,
        coverage_penalty=coverage_penalty,
        early_stopping=early_stopping,
        no_repeat_ngram_size=no_repeat_ngram_size,
        given=stretched(F.pad(given, (0, 1), value=PAD), 0, B),
        never=stretched(never, 0, B),
        exact=exact,
        first=None if first is None else first[:, None],
        most=None if most is None else most[:, None],
        ends=None if stop is None else F.pad(stretched(stop, 0, B), (1, 0), value=EOS),
        least_length=least_length,
        numbers=stretched(stretched(F.pad(numbers, (0, 1)), 0, B), 1, K),
        heat=torch.zeros((), device=device) + temperature,  # a tensor made within the loop does not export
        most_likely=torch.full((), top_k, device=device),
        top_p=top_p,
    )
    ended, scores, ranks = made.run(start, plain)
    n = torch.sym_min(n_best, K)
    possible = ranks > NEVER
    return torch.where(possible[..., None], ended, PAD)[:, :n], torch.where(possible, scores, NEVER)[:, :n]


@dataclass(frozen=True)
class _Search:
    """Settings of a search, as its steps read them; B rows of K beams, N tokens at most.

    A step takes sizes from these tensors: numbers closed over would be fixed in export.
    """

    decoder: Decoder
    plain: Tensor  # () whether no option asks for more than the best continuations
    draws: Tensor  # () whether texts are drawn
    several: Tensor  # () whether K > 1
    limit: Tensor  # () the most tokens
    times: Tensor  # (N,) 0, 1, …
    rank: Tensor  # (K,) 0, 1, …
    twice: Tensor  # (2 K,) 0, 1, …
    candidates: Tensor  # as long as there are candidates of a token
    first_row: Tensor  # (B, 1) where a row's beams begin among all
    last_counts: Tensor  # (1,) the place of the last ended sequence that is asked for
    penalties: Tensor  # (N,) of sequences of 1, 2, … tokens
    coverage_penalty: Numbers
    early_stopping: bool | Tensor
    no_repeat_ngram_size: int | Tensor
    given: Tensor  # (B, P + 1) what texts begin with, [PAD] behind it
    never: Tensor  # (B, F)
    exact: Tensor  # (B,) -1 where open
    first: Tensor | None  # (B, 1)
    most: Tensor | None  # (B, 1)
    ends: Tensor | None  # (B, 1 + E) what ends a sequence beside [EOS], and that; None: [EOS] alone
    least_length: Tensor  # (B,)
    numbers: Tensor  # (B, K, N' + 1)
    heat: Tensor  # ()
    most_likely: Tensor  # ()
    top_p: Numbers

    def run(self, start: State, simple: bool) -> State:
        """The sequences (B, K, N) that ended, the best first, their scores (B, K) and ranks (B, K)."""
        none = torch.zeros_like(self.first_row + self.rank)  # (B, K)
        K = none.shape[1]
        zeros, empty = none.to(torch.float32), none[..., None] + 0 * self.times
        scores = torch.where(self.draws, zeros, self._only_first(K) + zeros)
        mask = self.decoder.mask
        covered = torch.zeros(*none.shape, 1 if mask is None else mask.shape[1], device=none.device)
        before = none + (BOS if self.first is None else self.first)
        settled = none[:, 0] > 0 if self.most is None else self.most[:, 0] <= 0
        begin = (before, scores, settled, empty, empty, zeros + NEVER, zeros + 2 * NEVER)
        state = tuple(part[:, None].expand(-1, K, *part.shape[1:]).flatten(0, 1) for part in start)
        now = (self.times.new_zeros(()), *begin, *state)
        if simple:
            now = while_loop(lambda *now: self.plain & self.loop_condition(*now), self.simple_step, now)
        now = while_loop(self.loop_condition, self.step, (*now[:8], empty, covered, *now[8:]))
        return now[5:8]

    def loop_condition(self, t: Tensor, tokens: Tensor, scores: Tensor, settled: Tensor, *rest: Tensor) -> Tensor:
        return (t < self.limit) & ~settled.all()

    def simple_step(
        self,
        t: Tensor,
        tokens: Tensor,  # (B, K) the last of each beam
        scores: Tensor,  # (B, K)
        settled: Tensor,  # (B,)
        written: Tensor,  # (B, K, N)
        ended: Tensor,  # (B, K, N) the best that have ended, the best first
        ended_scores: Tensor,  # (B, K)
        ended_ranks: Tensor,  # (B, K)
        *state: Tensor,
    ) -> State:
        """A step where no option asks for more than the best continuations: with half the operators."""
        log_p, state, _ = self.decoder.step(tokens.flatten(), state)  # (B * K, V)
        gains, nexts = best(log_p, torch.sym_min(self.twice.shape[0], log_p.shape[1]))  # (B * K, C)
        total = scores[:, :, None] + gains.unflatten(0, scores.shape)
        _, chosen = best(total.flatten(1), self.twice.shape[0])
        total, tokens, parent = _taken(total, nexts, chosen)
        found = _Found(total, tokens, parent, total / self.penalties.index_select(0, t[None]))
        after, parent = self._advanced(t, found, settled, written, ended, ended_scores, ended_ranks)
        return t + 1, *after, *self._reordered(state, parent)

    def step(
        self,
        t: Tensor,
        tokens: Tensor,
        scores: Tensor,
        settled: Tensor,
        written: Tensor,
        ended: Tensor,
        ended_scores: Tensor,
        ended_ranks: Tensor,
        repeats: Tensor,  # (B, K, N) how many tokens up to here are the last ones written
        covered: Tensor,  # (B, K, S)
        *state: Tensor,
    ) -> State:
        """A step under any options."""
        free, state, attention = self.decoder.step(tokens.flatten(), state)  # (B * K, V)
        if attention is not None:
            covered = covered + attention
        log_p = free.scatter(1, self._banned(t, written, repeats), NEVER)
        gains, nexts = best(log_p, torch.sym_min(self.candidates.shape[0], log_p.shape[1]))  # (B * K, C)
        forced = self.given.index_select(1, t[None].clamp(max=self.given.shape[1] - 1))  # (B, 1)
        forced = torch.where(self.exact[:, None] == t, EOS, forced)
        forced = forced.expand(-1, scores.shape[1]).reshape(-1, 1)  # (B * K, 1)
        gains = torch.where(forced > 0, free.gather(1, forced) + self._only_first(gains.shape[1]), gains)
        nexts = torch.where(forced > 0, forced, nexts)
        found = self._continuations(t, scores, gains, nexts, covered)
        after, parent = self._advanced(t, found, settled, written, ended, ended_scores, ended_ranks, self.draws)
        tokens, written = after[0], after[3]
        same = (written == tokens[..., None]) & (self.times < t)
        repeats = torch.where(same, F.pad(at(repeats, parent)[..., :-1], (1, 0)) + 1, 0)
        return t + 1, *after, repeats, at(covered, parent), *self._reordered(state, parent)

    def _advanced(
        self,
        t: Tensor,
        found: _Found,
        settled: Tensor,
        written: Tensor,
        ended: Tensor,
        ended_scores: Tensor,
        ended_ranks: Tensor,
        draws: Tensor | None = None,
    ) -> tuple[State, Tensor]:
        """The state from `tokens` to `ended_ranks`, and the beam (B, K) that each beam continues."""
        total, tokens, parent, ranks = found
        ends = (tokens == EOS if self.ends is None else is_any(tokens, self.ends)) | (t + 1 >= self.limit)
        if self.most is not None:
            ends = ends | (t + 1 >= self.most)
        K = written.shape[1]
        counts = ends & (self.twice < K) & ~settled[:, None] & (total > NEVER / 2)
        lines = torch.where(self.times == t, tokens[..., None], at(written, parent))  # (B, 2 K, N)
        ended_ranks, kept = best(torch.cat([ended_ranks, torch.where(counts, ranks, 2 * NEVER)], 1), K)
        ended = at(torch.cat([ended, lines], 1), kept)
        ended_scores = torch.cat([ended_scores, total], 1).gather(1, kept)

        _, chosen = best(torch.where(ends, 4 * NEVER, ranks), K)
        if draws is not None:
            chosen = torch.where(draws, self.rank, chosen)
        scores = torch.where(ends, 2 * NEVER, total).gather(1, chosen)
        tokens, parent, written = tokens.gather(1, chosen), parent.gather(1, chosen), at(lines, chosen)

        hope = (scores / self.penalties[-1:]).amax(1)
        greedy = ~self.several if draws is None else ~self.several & ~draws
        full = (ended_ranks.amin(1) > NEVER) & (greedy | self.early_stopping)
        settled = settled | (ended_ranks.index_select(1, self.last_counts)[:, 0] >= hope) | full
        return (tokens, scores, settled, written, ended, ended_scores, ended_ranks), parent

    def _reordered(self, state: State, parent: Tensor) -> State:
        rows = (self.first_row + parent).flatten()
        return tuple(part.index_select(0, rows) for part in state)

    def _banned(self, t: Tensor, written: Tensor, repeats: Tensor) -> Tensor:
        """Tokens (B * K, N + 1 + F) that may not come now; where there is none, [PAD], which never may."""
        n, K = self.no_repeat_ngram_size, written.shape[1]
        again = (n > 0) & (F.pad(repeats[..., :-1], (1, 0)) >= n - 1) & (self.times < t)
        repeated = torch.where(again, written, PAD).flatten(0, 1)
        ends = torch.full_like(self.first_row, EOS) if self.ends is None else self.ends
        ends = torch.where((t < self.least_length)[:, None], ends, PAD)
        outlawed = torch.cat([ends, self.never], 1)[:, None].expand(-1, K, -1).flatten(0, 1)
        return torch.cat([repeated, outlawed], 1)

    def _continuations(self, t: Tensor, scores: Tensor, gains: Tensor, nexts: Tensor, covered: Tensor) -> _Found:
        """The 2 K best continuations, or the K that are drawn."""
        B, K = scores.shape
        penalty = self.penalties.index_select(0, t[None])
        total = scores[:, :, None] + gains.unflatten(0, scores.shape)
        ranks = total / penalty + self._coverage(covered)[..., None]
        _, chosen = best(ranks.flatten(1), self.twice.shape[0])
        likeliest = _taken(total, nexts, chosen)
        u = self.numbers.index_select(2, t[None].clamp(max=self.numbers.shape[2] - 1)).flatten(0, 1)  # (B * K, 1)
        place = drawn(gains, u, self.heat, self.most_likely, self.top_p)
        drawn_total = scores + gains.gather(1, place).reshape(B, K)
        free = (
            torch.cat([drawn_total, torch.full_like(drawn_total, 2 * NEVER)], 1),
            nexts.gather(1, place).reshape(B, K).repeat(1, 2),
            torch.cat([self.rank, self.rank]).expand(B, -1),
        )
        pairs = zip(free, likeliest, strict=True)
        total, tokens, parent = (torch.where(self.draws, one, other) for one, other in pairs)
        return _Found(total, tokens, parent, total / penalty + self._coverage(covered).gather(1, parent))

    def _coverage(self, covered: Tensor) -> Tensor:  # (B, K, S) -> (B, K)
        if self.decoder.mask is None:
            return torch.zeros_like(covered[..., 0])
        got = covered.clamp(1e-6, 1.0).log()
        return self.coverage_penalty * torch.where(self.decoder.mask[:, None], got, 0.0).sum(2)

    def _only_first(self, n: int) -> Tensor:
        return torch.where(torch.arange(n, device=self.times.device) == 0, 0.0, NEVER)[None]  # (1, n)


class _Found(NamedTuple):
    """Continuations of the beams, (B, 2 K) each, the best first: scores, last tokens, whose they are, and ranks."""

    total: Tensor
    tokens: Tensor
    parent: Tensor
    ranks: Tensor


def _taken(total: Tensor, nexts: Tensor, chosen: Tensor) -> State:  # (B, K, C), (B * K, C), (B, 2 K)
    """Scores, last tokens and beams of the chosen continuations, (B, 2 K) each."""
    tokens = nexts.unflatten(0, total.shape[:2]).flatten(1).gather(1, chosen)
    return total.flatten(1).gather(1, chosen), tokens, chosen // total.shape[2]


def drawn(gains: Tensor, u: Tensor, heat: Tensor, most_likely: Tensor, top_p: Numbers) -> Tensor:
    """Which candidate is taken of each row, (R, 1), by a number (R, 1) of its own.

    Args:
        gains: Log-probabilities of candidates (R, C), the best first.
        u: From 0 up to but not 1.
        heat: The temperature (); 0: the first candidate.
        most_likely: How many candidates count, ().
        top_p: Of these, the fewest that together have this share of their probability.
    """
    place = torch.arange(gains.shape[1], device=gains.device)
    heated = (gains - gains[:, :1]) / torch.where(heat > 0, heat, 1.0)
    p = torch.where(place < most_likely, heated, NEVER).softmax(1)
    before = p.cumsum(1) - p
    keep = (before < top_p) & (p > 0) | (place == 0)
    total = torch.where(keep, p, 0.0).cumsum(1)
    found = (total <= u * total[:, -1:]).sum(1, keepdim=True).minimum(keep.sum(1, keepdim=True) - 1)
    return torch.where(heat > 0, found, 0)


def is_any(tokens: Tensor, of: Tensor) -> Tensor:  # (B, M), (B, E) -> (B, M)
    """Which tokens are among those of their row, of which there is one at least; [PAD] is none."""
    return ((tokens[..., None] == of[:, None]) & (of[:, None] != PAD)).any(2)


def stretched(rows: Tensor, axis: int, size: int) -> Tensor:
    """An axis of this size as it is, one of 1 repeated: `expand` would take the two sizes for one in export."""
    return rows.index_select(axis, torch.arange(size, device=rows.device).clamp(max=rows.shape[axis] - 1))


def at(rows: Tensor, places: Tensor) -> Tensor:  # (B, M, N), (B, m) -> (B, m, N)
    """The rows at these places."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[2]))


def best(values: Tensor, n: int, largest: bool = True) -> tuple[Tensor, Tensor]:  # (R, M) -> (R, n), (R, n)
    """The n largest (or smallest) of each row, best first, and where they stand; of equal ones the first."""
    found, places = values.topk(n, 1, largest)
    if torch.compiler.is_exporting() or not n:
        return found, places  # onnxruntime's is in this order; eager `topk` takes any of equal ones
    edge = found[:, -1:]
    equal = int(((values >= edge) if largest else (values <= edge)).sum(1).max())
    if equal > n:  # some that are left out are as good
        places = values.topk(equal, 1, largest).indices
    places = places.sort(1).values
    ordered, order = values.gather(1, places).sort(dim=1, descending=largest, stable=True)
    return ordered[:, :n], places.gather(1, order)[:, :n]
