"""Greedy search, beam search and sampling: the best sequences of tokens that a decoder can write."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from seqpipe.nn.constants import BOS, LOG_ZERO, PAD
from seqpipe.nn.constraints import Constraints
from seqpipe.nn.loops import State, while_loop
from seqpipe.nn.search_options import SearchOptions
from seqpipe.nn.selection import Sampler, at, best


class Decoder(Protocol):
    """A model that writes token by token.

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
    options: SearchOptions,
    *,
    first_tokens: Tensor | None = None,
    row_limits: Tensor | None = None,
    lengths: Tensor | None = None,
    stop: Tensor | None = None,
    fast_loop: bool = True,
) -> tuple[Tensor, Tensor]:
    """Beam search, greedy with one beam; or, where uniform samples are given, K sequences sampled from the model.

    At each step the 2 K best continuations of the K beams of a row are candidates. Those among the first K that end
    are put with the best K finished ones so far; the K best of the others continue (as fairseq and `transformers`
    search). A row is done when its n best finished ones can no longer be outdone, and nothing changes in it from
    then on: its answer depends on no other row. One beam never continues behind an end: it is greedy search.
    With uniform samples each beam is a sequence of its own (see `Sampler`).

    Args:
        decoder: See Decoder.
        start: The state before the first token, B rows.
        options: See SearchOptions.
        first_tokens: What stands before the first token of each row, (B,); None: [BOS].
        row_limits: The most tokens of each row's sequences, (B,), where that is less than `max_length`; none: 0.
        lengths: How many tokens a row's sequences have, (B,), [EOS] not included; -1 where that is open.
        stop: Tokens that end a sequence as [EOS] does, (1 or B, E) int64, [PAD] where there are fewer.
        fast_loop: Whether a graph has a second loop, for searches without penalties and constraints: it is faster, and
            the graph takes longer to make.

    Returns:
        Tokens (B, n_best, N), the best first, [PAD] after [EOS]; and their log-probabilities (B, n_best), whatever the
        penalties and the temperature. Where there are not so many sequences, [PAD] alone and LOG_ZERO.
    """
    constraints = Constraints(options, start[0].shape[0], start[0].device, lengths, stop)
    beam_search = _Search(decoder, options, constraints, start[0], row_limits)
    finished, scores, ranks = beam_search.run(start, first_tokens, fast_loop)
    n = torch.sym_min(options.n_best, options.beams)
    exists = ranks > LOG_ZERO
    return torch.where(exists[..., None], finished, PAD)[:, :n], torch.where(exists, scores, LOG_ZERO)[:, :n]


class Beams(NamedTuple):
    """Where a search stands: B rows of K beams, N tokens at most."""

    t: Tensor  # () the number of the step
    tokens: Tensor  # (B, K) the last of each beam
    scores: Tensor  # (B, K)
    done: Tensor  # (B,) rows in which nothing changes any more
    sequences: Tensor  # (B, K, N) of the beams
    finished: Tensor  # (B, K, N) the best finished ones, the best first
    finished_scores: Tensor  # (B, K)
    finished_ranks: Tensor  # (B, K)


class Candidates(NamedTuple):
    """Continuations of the beams, (B, 2 K) each, the best first."""

    scores: Tensor
    tokens: Tensor
    parents: Tensor  # the beam that each continues
    ranks: Tensor


_SIZE = len(Beams._fields)


class _Search:
    """The steps of a search. They take sizes from its tensors: numbers closed over would be fixed in export."""

    def __init__(
        self,
        decoder: Decoder,
        options: SearchOptions,
        constraints: Constraints,
        part: Tensor,  # of the state before the first token, B rows
        row_limits: Tensor | None,
    ):
        B, K, device = part.shape[0], options.beams, part.device
        self.decoder, self.constraints = decoder, constraints
        self.sampler = Sampler(options, B, device)
        self.times = torch.arange(options.max_length, device=device)  # (N,) 0, 1, …
        self.rank, self.twice = torch.arange(K, device=device), torch.arange(2 * K, device=device)
        self.several_beams = torch.full((), K, device=device) > 1
        self.candidates = torch.arange(torch.sym_max(2 * K, self.sampler.needed), device=device)  # (C,)
        self.first_beam = (torch.arange(B, device=device) * K)[:, None]  # (B, 1) the place of a row's first beam
        self.last_rank = torch.full((1,), torch.sym_min(options.n_best, K) - 1, device=device)  # of what is returned
        self.row_limits = None if row_limits is None else row_limits[:, None]
        self.penalties = ((6 + self.times) / 6) ** options.length_penalty  # (N,) of sequences of 1, 2, … tokens
        self.coverage_penalty, self.early_stopping = options.coverage_penalty, options.early_stopping
        no_coverage = (torch.zeros((), device=device) + options.coverage_penalty) == 0
        self.is_plain = ~self.sampler.active & constraints.none & no_coverage  # () whether the fast loop may run

    def run(self, start: State, first_tokens: Tensor | None, fast_loop: bool) -> State:
        """The finished sequences (B, K, N), the best first, their scores (B, K) and ranks (B, K)."""
        zeros = torch.zeros_like(self.first_beam + self.rank)  # (B, K) int64
        K, empty, floats = zeros.shape[1], zeros[..., None] + 0 * self.times, zeros.to(torch.float32)
        mask = self.decoder.mask
        beams = Beams(
            t=self.times.new_zeros(()),
            tokens=zeros + (BOS if first_tokens is None else first_tokens[:, None]),
            scores=torch.where(self.sampler.active, floats, self._only_first(K) + floats),
            done=zeros[:, 0] > 0 if self.row_limits is None else self.row_limits[:, 0] <= 0,
            sequences=empty,
            finished=empty,
            finished_scores=floats + LOG_ZERO,
            finished_ranks=floats + 2 * LOG_ZERO,
        )
        state = tuple(part[:, None].expand(-1, K, *part.shape[1:]).flatten(0, 1) for part in start)
        state = (*beams, *state)
        if fast_loop:
            state = while_loop(lambda *state: self.is_plain & self._loop_condition(*state), self._fast_step, state)
        covered = torch.zeros(*zeros.shape, 1 if mask is None else mask.shape[1], device=zeros.device)  # (B, K, S)
        state = while_loop(self._loop_condition, self._step, (*state[:_SIZE], empty, covered, *state[_SIZE:]))
        return state[_SIZE - 3 : _SIZE]

    def _loop_condition(self, t: Tensor, tokens: Tensor, scores: Tensor, done: Tensor, *rest: Tensor) -> Tensor:
        return (t < self.sampler.limit) & ~done.all()

    def _fast_step(self, *state: Tensor) -> State:
        """A step without penalties, constraints and sampling: with half the operators."""
        beams = Beams(*state[:_SIZE])
        log_p, decoder_state, _ = self.decoder.step(beams.tokens.flatten(), state[_SIZE:])  # (B K, V)
        gains, tokens = best(log_p, torch.sym_min(self.twice.shape[0], log_p.shape[1]))  # (B K, C)
        total = beams.scores[:, :, None] + gains.unflatten(0, beams.scores.shape)
        _, places = best(total.flatten(1), self.twice.shape[0])
        scores, tokens, parents = _taken(total, tokens, places)
        penalty = self.penalties.index_select(0, beams.t[None])
        beams, parents = self._advance(beams, Candidates(scores, tokens, parents, scores / penalty))
        return *beams, *self._reordered(decoder_state, parents)

    def _step(self, *state: Tensor) -> State:
        """A step under any options; beside the beams it has `repeats` (B, K, N) and `covered` (B, K, S)."""
        beams, repeats, covered = Beams(*state[:_SIZE]), *state[_SIZE : _SIZE + 2]
        t, K, written = beams.t, beams.tokens.shape[1], self.times < beams.t
        free, decoder_state, attention = self.decoder.step(beams.tokens.flatten(), state[_SIZE + 2 :])  # (B K, V)
        if attention is not None:
            covered = covered + attention
        log_p = free.scatter(1, self.constraints.banned(t, written, beams.sequences, repeats), LOG_ZERO)
        gains, tokens = best(log_p, torch.sym_min(self.candidates.shape[0], log_p.shape[1]))  # (B K, C)
        forced = self.constraints.forced(t, K)  # (B K, 1)
        gains = torch.where(forced > 0, free.gather(1, forced) + self._only_first(gains.shape[1]), gains)
        tokens = torch.where(forced > 0, forced, tokens)
        candidates = self._continuations(beams, gains, tokens, covered)
        beams, parents = self._advance(beams, candidates, self.sampler.active)
        same = (beams.sequences == beams.tokens[..., None]) & written
        repeats = torch.where(same, at(repeats, parents) + 1, 0)
        repeats = torch.cat([torch.zeros_like(repeats[..., :1]), repeats[..., :-1]], 2)  # right before each place
        return *beams, repeats, at(covered, parents), *self._reordered(decoder_state, parents)

    def _advance(self, beams: Beams, candidates: Candidates, sampled: Tensor | None = None) -> tuple[Beams, Tensor]:
        """The beams after a step, and the beam (B, K) that each of them continues."""
        t, K = beams.t, beams.sequences.shape[1]
        scores, tokens, parents, ranks = candidates
        ends = self.constraints.ends_sequence(tokens) | (t + 1 >= self.sampler.limit)
        if self.row_limits is not None:
            ends = ends | (t + 1 >= self.row_limits)
        counts = ends & (self.twice < K) & ~beams.done[:, None] & (scores > LOG_ZERO / 2)
        sequences = torch.where(self.times == t, tokens[..., None], at(beams.sequences, parents))  # (B, 2 K, N)
        new_ranks = torch.where(counts, ranks, 2 * LOG_ZERO)
        finished_ranks, places = best(torch.cat([beams.finished_ranks, new_ranks], 1), K)
        finished = at(torch.cat([beams.finished, sequences], 1), places)
        finished_scores = torch.cat([beams.finished_scores, scores], 1).gather(1, places)

        _, chosen = best(torch.where(ends, 4 * LOG_ZERO, ranks), K)
        if sampled is not None:
            chosen = torch.where(sampled, self.rank, chosen)
        scores = torch.where(ends, 2 * LOG_ZERO, scores).gather(1, chosen)
        tokens, parents, sequences = tokens.gather(1, chosen), parents.gather(1, chosen), at(sequences, chosen)

        within_reach = (scores / self.penalties[-1:]).amax(1)
        greedy = ~self.several_beams if sampled is None else ~self.several_beams & ~sampled
        full = (finished_ranks.amin(1) > LOG_ZERO) & (greedy | self.early_stopping)
        done = beams.done | (finished_ranks.index_select(1, self.last_rank)[:, 0] >= within_reach) | full
        return Beams(t + 1, tokens, scores, done, sequences, finished, finished_scores, finished_ranks), parents

    def _reordered(self, state: State, parents: Tensor) -> State:
        rows = (self.first_beam + parents).flatten()
        return tuple(part.index_select(0, rows) for part in state)

    def _continuations(self, beams: Beams, gains: Tensor, tokens: Tensor, covered: Tensor) -> Candidates:
        """The 2 K best continuations, or the K that are sampled."""
        B, K = beams.scores.shape
        penalty = self.penalties.index_select(0, beams.t[None])
        total = beams.scores[:, :, None] + gains.unflatten(0, beams.scores.shape)
        ranks = total / penalty + self._coverage(covered)[..., None]
        _, places = best(ranks.flatten(1), self.twice.shape[0])
        ranked = _taken(total, tokens, places)
        place = self.sampler.choose(gains, beams.t)  # (B K, 1)
        scores = beams.scores + gains.gather(1, place).reshape(B, K)
        sampled = (
            torch.cat([scores, torch.full_like(scores, 2 * LOG_ZERO)], 1),
            tokens.gather(1, place).reshape(B, K).repeat(1, 2),
            torch.cat([self.rank, self.rank]).expand(B, -1),
        )
        scores, tokens, parents = (
            torch.where(self.sampler.active, *both) for both in zip(sampled, ranked, strict=True)
        )
        return Candidates(scores, tokens, parents, scores / penalty + self._coverage(covered).gather(1, parents))

    def _coverage(self, covered: Tensor) -> Tensor:  # (B, K, S) -> (B, K)
        if self.decoder.mask is None:
            return torch.zeros_like(covered[..., 0])
        logs = covered.clamp(1e-6, 1.0).log()
        return self.coverage_penalty * torch.where(self.decoder.mask[:, None], logs, 0.0).sum(2)

    def _only_first(self, n: int) -> Tensor:
        return torch.where(torch.arange(n, device=self.times.device) == 0, 0.0, LOG_ZERO)[None]  # (1, n)


def _taken(total: Tensor, tokens: Tensor, places: Tensor) -> State:  # (B, K, C), (B K, C), (B, 2 K)
    """Scores, last tokens and beams of the candidates at these places, (B, 2 K) each."""
    chosen = tokens.unflatten(0, total.shape[:2]).flatten(1).gather(1, places)
    return total.flatten(1).gather(1, places), chosen, places // total.shape[2]
