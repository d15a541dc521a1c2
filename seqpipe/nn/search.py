"""Greedy search, beam search and sampling over any decoder, their options and constraints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol, cast

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.layers import BOS_ID, EOS_ID, LOG_ZERO, PAD_ID
from seqpipe.nn.loops import State, while_loop
from seqpipe.types import Automaton, Size, Tokens, Trie, TryWith, Uniform

__all__ = ["BeamOptions", "Decoder", "Found", "GenerationOptions", "RowsDecoder", "SearchOptions", "beam_search"]
__all__ += ["generate", "is_among", "prepend_token", "repeat_axis", "rows_at", "top_n", "with_arcs"]

# Decode options of heads that search for sequences: types, bounds and the only defaults.


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Beam search, greedy with one beam.

    In a graph sizes are symbolic, and all other options tensors.

    Args:
        beams: Beam size, the number of sequences kept at each step; 1 is greedy search. K in the shapes.
        n_best: Number of answers, at most as many as beams.
        max_length: Maximum number of tokens, including the end. N in the shapes; a sequence of N may lack its [EOS].
        length_penalty: Above 0 favours longer answers. α: sequences of l tokens are ranked by score / ((5 + l) / 6)^α
            (Wu et al. 2016).
    """

    beams: Size = 1
    n_best: Size = 1
    max_length: Annotated[Size, TryWith(max_length=8)] = 100
    length_penalty: Annotated[NonNegativeFloat, TryWith(min_length=6)] = 0.0


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(BeamOptions):
    """Beam search, or sampling if uniform samples are given.

    Args:
        min_length: Minimum number of tokens before the end.
        early_stopping: Stop as soon as as many sequences are finished as there are beams.
        forbidden: Texts that are never generated. Arcs of an automaton over tokens, (1 or B, A, 3) int64, see
            `PieceAutomaton`.
        allowed: The only texts that are generated, each as a whole. Arcs of a trie over tokens, (1 or B, A, 3) int64,
            see `PieceAutomaton` (De Cao et al. 2021).
        uniform: Random numbers for sampling. A number in [0, 1) for each token of each beam, (1 or B, 1 or K, N');
            sequences have at most N' tokens. N' = 0, or None: beam search.
        temperature: With a seed: the lower, the more probable are probable tokens; 0 takes the most probable one.
            Probabilities are raised to the power of 1 / temperature.
        top_k: With a seed: sample from the k most probable tokens. See Fan et al. (2018).
        top_p: With a seed: of these, sample from the fewest tokens with this total probability. See Holtzman et al.
            (2020).
        token_scores: Whether the log-probability of each token of an answer is returned too.
    """

    min_length: Annotated[NonNegativeInt, TryWith(min_length=2), TryWith(max_length=100, min_length=99)] = 0
    early_stopping: Annotated[bool, TryWith(length_penalty=4.0)] = False
    forbidden: Automaton = None
    allowed: Trie = None
    uniform: Uniform = None
    temperature: Annotated[NonNegativeFloat, TryWith(seed=7)] = 1.0
    top_k: Annotated[Size, TryWith(seed=7)] = 50
    top_p: Annotated[float, Field(gt=0, le=1), TryWith(seed=7)] = 1.0
    token_scores: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchOptions(GenerationOptions):
    """All options of `seqpipe.nn.search.beam_search`.

    Args:
        coverage_penalty: Above 0 favours answers that attend to all of the input. β: β Σ log min(1, attention to a
            source token), summed over the source tokens, is added to the rank of a sequence (Wu et al. 2016); without
            effect if the decoder has no attention.
        no_repeat_ngram_size: No sequence of this many tokens occurs twice; 0: any may. See Paulus et al. (2018).
        prefix: Text that every answer begins with. Tokens (1 or B, P) int64, padded with [PAD].
    """

    coverage_penalty: Annotated[NonNegativeFloat, TryWith(min_length=6)] = 0.0
    no_repeat_ngram_size: Annotated[NonNegativeInt, TryWith(min_length=6)] = 0
    prefix: Tokens = None

    @classmethod
    def of(cls, options: BeamOptions, **others: Any) -> SearchOptions:
        """Return these options of beam search, with others added or in their place."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(BeamOptions)} | others)


# Selecting rows and candidates in graphs of any size: top-k with ordered ties, gathering, sampling.


class Sampler:
    """Sampling by given uniform samples, with temperature, top-k and top-p; B rows of K beams.

    A token's candidates divide the interval from 0 to 1 by their probabilities, the likeliest first; the uniform sample
    selects one of them. Steps of loops read sizes from its tensors: closed-over numbers would be fixed in export.
    """

    def __init__(self, options: GenerationOptions, rows: int, device: torch.device):
        uniform = torch.zeros(1, 1, 0, device=device) if options.uniform is None else options.uniform
        steps, longest = uniform.shape[2], torch.full((), options.max_length, device=device)
        self.active = torch.full((), steps, device=device) > 0  # ()
        sampled_longest = torch.full((), torch.sym_min(options.max_length, steps), device=device)
        self.limit = torch.where(self.active, sampled_longest, longest)  # () maximum number of tokens of a sequence
        self.uniform = repeat_axis(repeat_axis(F.pad(uniform, (0, 1)), 0, rows), 1, options.beams)  # (B, K, N' + 1)
        self.temperature = torch.zeros((), device=device) + options.temperature  # one made in a loop does not export
        self.top_k, self.top_p = torch.full((), options.top_k, device=device), options.top_p
        self.needed = options.top_k * torch.sym_min(steps, 1)  # number of candidates

    def choose(self, log_p: Tensor, t: Tensor) -> Tensor:
        """Choose one of the candidates (B K, C), sorted from best to worst, at step t; return its rank (B K, 1)."""
        uniform = self.uniform.index_select(2, t[None].clamp(max=self.uniform.shape[2] - 1)).flatten(0, 1)  # (B K, 1)
        rank = torch.arange(log_p.shape[1], device=log_p.device)
        scaled = (log_p - log_p[:, :1]) / torch.where(self.temperature > 0, self.temperature, 1.0)
        p = torch.where(rank < self.top_k, scaled, LOG_ZERO).softmax(1)
        before = p.cumsum(1) - p
        keep = (before < self.top_p) & (p > 0) | (rank == 0)
        total = torch.where(keep, p, 0.0).cumsum(1)
        chosen = (total <= uniform * total[:, -1:]).sum(1, keepdim=True).minimum(keep.sum(1, keepdim=True) - 1)
        return torch.where(self.temperature > 0, chosen, 0)


def is_among(tokens: Tensor, of: Tensor) -> Tensor:  # (B, M), (B, E) -> (B, M)
    """Return the mask of tokens that occur in `of` in their row; `of` is not empty and [PAD] in it matches nothing."""
    return ((tokens[..., None] == of[:, None]) & (of[:, None] != PAD_ID)).any(2)


def repeat_axis(rows: Tensor, axis: int, size: int) -> Tensor:
    """Repeat an axis of size 1 to this size; in export, `expand` would treat the two sizes as equal."""
    return rows.index_select(axis, torch.arange(size, device=rows.device).clamp(max=rows.shape[axis] - 1))


def repeated(rows: State, times: int) -> State:
    """Repeat each row (B, …) consecutively: (B * times, …)."""
    places = torch.arange(rows[0].shape[0], device=rows[0].device)[:, None].expand(-1, times).flatten()
    return tuple(part.index_select(0, places) for part in rows)


def rows_at(rows: Tensor, places: Tensor) -> Tensor:  # (B, M, N), (B, m) -> (B, m, N)
    """Return the rows at these positions."""
    first = torch.arange(rows.shape[0], device=rows.device)[:, None] * rows.shape[1]
    return F.embedding(first + places, rows.reshape(-1, rows.shape[2]))  # `gather` would need a place for each number


def top_n(values: Tensor, n: int, largest: bool = True) -> tuple[Tensor, Tensor]:  # (R, M) -> (R, n), (R, n)
    """Return the n largest (or smallest) of each row, best first, and their positions; ties go to the first."""
    top, places = values.topk(n, 1, largest)
    if torch.compiler.is_exporting() or not n:
        return top, places  # onnxruntime has this order; eager `topk` breaks ties arbitrarily
    edge = top[:, -1:]
    equal = int(((values >= edge) if largest else (values <= edge)).sum(1).max())
    if equal > n:  # equal values were left out
        places = values.topk(equal, 1, largest).indices
    places = places.sort(1).values
    ordered, order = values.gather(1, places).sort(dim=1, descending=largest, stable=True)
    return ordered[:, :n], places.gather(1, order)[:, :n]


# Constraints of a search: an automaton over tokens, a forced prefix, lengths, no repeated n-grams.


def with_arcs(arcs: Tensor | None, more: Sequence[tuple[int, int, int]], device: torch.device) -> Tensor:
    """Return the arcs of a `PieceAutomaton` (1 or B, A, 3), followed by more."""
    added = torch.tensor([more], device=device)
    return added if arcs is None else torch.cat([arcs, added.expand(arcs.shape[0], -1, -1)], 1)


class PieceAutomaton:
    """A finite automaton over tokens, which determines the permitted next tokens of each beam.

    An arc (state, token, next state) applies in its state, one with state -1 in any. The next state is the greatest of
    the arcs that apply to the token, 0 without one; -1 bans the token. A text begins in the state of the first arc, 0
    for -1. Where there are arcs of allowed texts, a token is banned too if none of them applies to it.

    Args:
        forbidden: Arcs (1 or B, A', 3) int64; None or A' = 0: nothing is banned.
        allowed: Arcs of allowed texts, which come first, (1 or B, A'', 3) int64; None or A'' = 0: any text.
        rows: B.
        device: Device of the decoder's state.
    """

    def __init__(self, forbidden: Tensor | None, allowed: Tensor | None, rows: int, device: torch.device):
        none = torch.zeros(1, 0, 3, dtype=torch.int64, device=device)
        first = repeat_axis(none if allowed is None else allowed, 0, rows)
        # `amax` needs at least one arc; that of [PAD] has no effect.
        arcs = torch.cat([first, repeat_axis(with_arcs(forbidden, [(-1, PAD_ID, 0)], device), 0, rows)], 1)
        # Steps close over these: values that do not depend on the step are computed once, outside of the loop.
        self.state, self.token, self.next = (part[..., 0][:, None] for part in arcs.split(1, 2))
        self.is_any = self.state < 0  # (B, 1, A)
        self.forbidden = torch.where(self.next < 0, self.token, PAD_ID)  # (B, 1, A)
        count = torch.full((), first.shape[1], device=device)
        self.is_trie = count > 0  # ()
        is_first = torch.arange(arcs.shape[1], device=device) < count
        self.allowed = torch.where(is_first, self.token, PAD_ID)  # (B, 1, A)

    def start(self, beams: Tensor) -> Tensor:  # (B, K) -> (B, K)
        """Return the states before the first token, in the shape of `beams`."""
        return self.state[..., 0].clamp(min=0) + beams * 0

    def holding(self, states: Tensor) -> Tensor:  # (B, K) -> (B, K, A)
        """Return the mask of arcs that apply in the states of the beams."""
        return (self.state == states[..., None]) | self.is_any

    def permit(self, log_p: Tensor, holding: Tensor, banned: Tensor) -> Tensor:  # (B K, V), (B, K, A), (B K, E)
        """Return the log-probabilities (B K, V), of these tokens and of those that the arcs ban about LOG_ZERO."""
        allowed = torch.where(holding, self.allowed, PAD_ID).flatten(0, 1)  # (B K, A)
        # More than the LOG_ZERO of [PAD], so that no beam without an allowed continuation reads padding.
        among = torch.where(self.is_trie, 0.75 * LOG_ZERO, log_p).scatter(1, allowed, log_p.gather(1, allowed))
        forbidden = torch.where(holding, self.forbidden, PAD_ID).flatten(0, 1)
        return among.scatter(1, torch.cat([banned, forbidden], 1), LOG_ZERO)

    def after(self, holding: Tensor, tokens: Tensor) -> Tensor:  # (B, K, A), (B, K) -> (B, K)
        """Return the states after these tokens."""
        return torch.where(holding & (self.token == tokens[..., None]), self.next, 0).amax(2)


class Constraints:
    """Constraints of a search on B rows of K beams.

    Args:
        options: Options of the search.
        rows: B.
        device: Device of the decoder's state.
        lengths: Number of tokens of a row's sequences, (B,), without [EOS]; -1: any.
        stop: Tokens that end a sequence like [EOS], (1 or B, E) int64, padded with [PAD].
    """

    def __init__(
        self,
        options: SearchOptions,
        rows: int,
        device: torch.device,
        lengths: Tensor | None = None,
        stop: Tensor | None = None,
    ):
        none = torch.zeros(1, 0, dtype=torch.int64, device=device)
        prefix = none if options.prefix is None else options.prefix
        arcs = sum(0 if part is None else part.shape[1] for part in (options.forbidden, options.allowed))
        exact = torch.full((rows,), -1, dtype=torch.int64, device=device) if lengths is None else lengths + 0
        self.exact, self.least = exact, torch.maximum(exact, torch.zeros_like(exact) + options.min_length)  # (B,) each
        self.ngram = options.no_repeat_ngram_size
        listed = torch.full((), prefix.shape[1] + arcs, device=device) > 0
        repeats = torch.zeros((), device=device) + self.ngram
        self.none = ~listed & (repeats == 0) & (self.least <= 0).all() & (exact < 0).all()  # () without constraints
        padded = torch.cat([prefix, prefix.new_full((prefix.shape[0], 1), PAD_ID)], 1)
        self.prefix = repeat_axis(padded, 0, rows)  # (B, P')
        self.automaton = PieceAutomaton(options.forbidden, options.allowed, rows, device)
        self.ends = None if stop is None else prepend_token(EOS_ID, stop, rows, device)  # (B, 1 + E)

    def banned(self, t: Tensor, written: Tensor, sequences: Tensor, repeats: Tensor) -> Tensor:
        """Return the banned tokens (B K, N + E') at step t, padded with [PAD], which is always banned.

        Args:
            t: ().
            written: (N,) mask of the places before t.
            sequences: (B, K, N).
            repeats: (B, K, N) number of tokens right before each place that equal the last ones.
        """
        again = (self.ngram > 0) & (repeats >= self.ngram - 1) & written
        repeated = torch.where(again, sequences, PAD_ID).flatten(0, 1)
        ends = torch.full_like(self.exact[:, None], EOS_ID) if self.ends is None else self.ends
        ends = torch.where((t < self.least)[:, None], ends, PAD_ID)
        return torch.cat([repeated, ends[:, None].expand(-1, sequences.shape[1], -1).flatten(0, 1)], 1)

    def forced(self, t: Tensor, beams: int) -> Tensor:
        """Return the forced tokens (B K, 1) at step t, [PAD] where any is permitted."""
        tokens = self.prefix.index_select(1, t[None].clamp(max=self.prefix.shape[1] - 1))  # (B, 1)
        return torch.where(self.exact[:, None] == t, EOS_ID, tokens).expand(-1, beams).reshape(-1, 1)


def prepend_token(token: int, tokens: Tensor | None, rows: int, device: torch.device) -> Tensor:
    """Prepend a token to those of each row, (1 or B, F) or None: (B, 1 + F)."""
    first = torch.full((rows, 1), token, device=device)
    return first if tokens is None else torch.cat([first, repeat_axis(tokens, 0, rows)], 1)


# Greedy search, beam search and sampling.


class Decoder(Protocol):
    """A model that generates text token by token.

    `step` takes the last tokens, (R,), and a state, and returns the log-probabilities of the next tokens (R, V), the
    next state, and the attention to the source (B, K, S), S the length of `mask` (B, S), or None. R = B * K: the K
    beams of a row are adjacent. A state is a tuple of tensors with R rows, of which other axes may grow (see `loops`):
    search repeats and reorders rows. [PAD] and [BOS] must be practically impossible.
    """

    @property
    def mask(self) -> Tensor | None: ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]: ...


class RowsDecoder(NamedTuple):
    """A `Decoder` of a function, `run(rows, tokens, state)` returns what `step` does; finished rows leave the batch.

    All tensors of `rows`, in nested tuples, have B rows, except parameters: what all beams of a row share.
    """

    run: Callable[[Any, Tensor, State], tuple[Tensor, State, Tensor | None]]
    rows: Any
    mask: Tensor | None

    @property
    def source(self) -> State:
        """The tensors of all rows."""
        tensors = {id(tensor): tensor for tensor in _tensors(self.rows) if not isinstance(tensor, nn.Parameter)}
        return tuple(tensors.values())

    def with_source(self, source: State) -> RowsDecoder:
        """Return the decoder on a choice of the rows, from these tensors."""
        new = dict(zip(map(id, self.source), source, strict=True))
        return self._replace(rows=_replace_tensors(self.rows, lambda tensor: new.get(id(tensor), tensor)))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        return self.run(self.rows, tokens, state)


def _replace_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return nested tuples with the results of a function in place of tensors."""
    if isinstance(value, tuple):
        parts = [_replace_tensors(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> State:
    """Return the tensors of nested tuples."""
    if isinstance(value, tuple):
        return tuple(tensor for part in value for tensor in _tensors(part))
    return (value,) if isinstance(value, Tensor) else ()


def _nested_loop(loop_condition: Callable[..., Tensor], step: Callable[..., Any], state: Any) -> Any:
    """Run a `while_loop` with a state of nested tuples."""

    def nested(tensors: State) -> Any:
        parts = iter(tensors)
        return _replace_tensors(state, lambda _: next(parts))

    def flat_step(*now: Tensor) -> State:
        return _tensors(step(*nested(now)))

    return nested(while_loop(lambda *now: loop_condition(*nested(now)), flat_step, _tensors(state)))


def beam_search(
    decoder: Decoder,
    start: State,
    options: SearchOptions,
    *,
    first_tokens: Tensor | None = None,
    row_limits: Tensor | None = None,
    lengths: Tensor | None = None,
    stop: Tensor | None = None,
) -> Found:
    """Beam search, greedy with one beam; or, with uniform samples, K sequences sampled from the model.

    At each step the 2 K best continuations of the K beams of a row are candidates. Those among the first K that end are
    merged with the best K finished ones; the K best of the others continue (like in fairseq and `transformers`). A row
    is done when no beam can exceed its n best finished ones, and does not change afterwards: its answer does not depend
    on other rows. A single beam never continues after an end, which is greedy search. With uniform samples each beam is
    a separate sequence (see `Sampler`).

    Args:
        decoder: See Decoder. With a `RowsDecoder`, searches without penalties and constraints have a loop of their own,
            which begins with one beam, and which finished rows leave: it is faster, but the export takes longer.
        start: The state before the first token, B rows.
        options: See SearchOptions.
        first_tokens: The token before the first of each row, (B,); None: [BOS].
        row_limits: Maximum number of tokens of each row's sequences, (B,), if less than `max_length`; 0: no tokens.
        lengths: Number of tokens of a row's sequences, (B,), without [EOS]; -1: any.
        stop: Tokens that end a sequence like [EOS], (1 or B, E) int64, padded with [PAD].

    Returns:
        The n best sequences, best first. Missing ones are [PAD] and LOG_ZERO.
    """
    constraints = Constraints(options, start[0].shape[0], start[0].device, lengths, stop)
    search = _Search(decoder, options, constraints, start[0], row_limits)
    finished = search.run(start, first_tokens)
    n = torch.sym_min(options.n_best, options.beams)
    exists = (finished.ranks > LOG_ZERO)[:, :n]
    tokens = torch.where(exists[..., None], finished.sequences[:, :n], PAD_ID)
    parts = (tokens, cast(Tensor, finished.token_log_p)[:, :n])
    written, gains = (part.index_select(2, search.wanted) for part in parts)
    token_log_p = torch.where(written == PAD_ID, 0.0, gains)
    return Found(tokens, torch.where(exists, finished.scores[:, :n], LOG_ZERO), token_log_p)


class Found(NamedTuple):
    """The n best sequences of B rows, best first, of at most N tokens; log-probabilities are without penalties."""

    tokens: Tensor  # (B, n, N) [PAD] after the end
    scores: Tensor  # (B, n) their log-probabilities
    token_log_p: Tensor  # (B, n, N) those of their tokens, 0 after the end; (B, n, 0) without this option


class Finished(NamedTuple):
    """The best finished sequences of B rows, the best first."""

    sequences: Tensor  # (B, K, N)
    scores: Tensor  # (B, K)
    ranks: Tensor  # (B, K)
    token_log_p: Tensor | None = None  # (B, K, N'), N' = N or 1; None in the fast loop, which never returns them


class Beams(NamedTuple):
    """State of a beam search: B rows of K beams, at most N tokens."""

    t: Tensor  # () the number of the step
    tokens: Tensor  # (B, K) the last of each beam
    scores: Tensor  # (B, K)
    done: Tensor  # (B,) finished rows
    sequences: Tensor  # (B, K, N) of the beams
    finished: Finished
    token_log_p: Tensor | None = None  # (B, K, N') of the beams

    def at(self, rows: Tensor) -> Beams:
        """Return the beams of these rows, beside the finished sequences of all rows."""
        tokens, scores, done, sequences = _select((self.tokens, self.scores, self.done, self.sequences), rows)
        return self._replace(tokens=tokens, scores=scores, done=done, sequences=sequences)


class Continuations(NamedTuple):
    """Continuations of the beams, (B, 2 K) each, the best first."""

    scores: Tensor
    tokens: Tensor
    parents: Tensor  # the beam that each continues
    ranks: Tensor
    gains: Tensor | None = None  # log-probabilities of the tokens


class _Search:
    """The steps of a search. They read sizes from its tensors: closed-over numbers would be fixed in export."""

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
        is_scored = torch.full((), False, device=device) | options.token_scores
        # () whether the fast loop may run
        self.is_plain = ~self.sampler.active & constraints.none & no_coverage & ~is_scored
        # Positions of the tokens whose log-probabilities are kept, all or the first, and of those that are returned.
        self.scored = self.times.index_select(0, (is_scored | (self.times == 0)).nonzero()[:, 0])  # (N')
        self.wanted = (is_scored & (self.times >= 0)).nonzero()[:, 0]  # (N) or (0)

    def run(self, start: State, first_tokens: Tensor | None) -> Finished:
        zeros = torch.zeros_like(self.first_beam + self.rank)  # (B, K) int64
        K, empty, floats = zeros.shape[1], zeros[..., None] + 0 * self.times, zeros.to(torch.get_default_dtype())
        mask = self.decoder.mask
        beams = Beams(
            t=self.times.new_zeros(()),
            tokens=zeros + (BOS_ID if first_tokens is None else first_tokens[:, None]),
            scores=torch.where(self.sampler.active, floats, self._only_first(K) + floats),
            done=zeros[:, 0] > 0 if self.row_limits is None else self.row_limits[:, 0] <= 0,
            sequences=empty,
            finished=Finished(empty, floats + LOG_ZERO, floats + 2 * LOG_ZERO),
        )
        if isinstance(self.decoder, RowsDecoder):
            beams = self._run_fast(self.decoder, beams, start)
        unscored = floats[..., None] + 0.0 * self.scored
        beams = beams._replace(finished=beams.finished._replace(token_log_p=unscored), token_log_p=unscored.clone())
        covered = torch.zeros(*zeros.shape, 1 if mask is None else mask.shape[1], device=zeros.device)  # (B, K, S)
        state = (beams, self.constraints.automaton.start(zeros), empty.clone(), covered, repeated(start, K))
        beams, *_ = _nested_loop(self._loop_condition, self._step, state)
        return beams.finished

    def _loop_condition(self, beams: Beams, *rest: Any) -> Tensor:
        return (beams.t < self.sampler.limit) & ~beams.done.all()

    def _run_fast(self, decoder: RowsDecoder, beams: Beams, start: State) -> Beams:
        """Search without penalties, constraints and sampling; return the beams, all done, with finished sequences.

        Its steps have half the operators. Each row begins with one beam, and leaves the batch when it is done.
        """
        rows = (~beams.done & self.is_plain).nonzero()[:, 0]
        first = beams._replace(tokens=beams.tokens[:, :1], scores=beams.scores[:, :1], sequences=beams.sequences[:, :1])

        def loop_condition(rows: Tensor, beams: Beams, *rest: Any) -> Tensor:
            return (beams.t < self.sampler.limit) & (torch.full((), rows.shape[0], device=rows.device) > 0)

        state = (rows, first.at(rows), _select(decoder.source, rows), _select(start, rows))
        _, last, *_ = _nested_loop(loop_condition, partial(self._fast_step, decoder), state)
        return beams._replace(done=beams.done | self.is_plain, finished=last.finished)

    def _fast_step(
        self, decoder: RowsDecoder, rows: Tensor, beams: Beams, source: State, decoder_state: State
    ) -> tuple[Any, ...]:
        """Run a step for the beams of these rows (B',); the finished sequences are those of all rows."""
        log_p, decoder_state, _ = decoder.with_source(source).step(beams.tokens.flatten(), decoder_state)  # (B' K, V)
        gains, best_tokens = top_n(log_p, torch.sym_min(self.twice.shape[0], log_p.shape[1]))  # (B' K, C)
        total = (beams.scores.reshape(-1, 1) + gains).reshape(rows.shape[0], -1)  # (B', K C)
        # The first steps may have fewer than 2 K continuations, and continue with fewer than K beams.
        _, places = top_n(total, torch.sym_min(self.twice.shape[0], total.shape[1]))
        scores, tokens, parents = _take(total, best_tokens, places)
        candidates = Continuations(scores, tokens, parents, scores / self.penalties.index_select(0, beams.t[None]))
        k, finished = beams.tokens.shape[1], beams.finished
        beams = beams._replace(finished=Finished(*_select(finished[:3], rows)))
        beams, parents = self._advance(beams, candidates, rows=rows)
        stay = (~beams.done).nonzero()[:, 0]
        places = stay[:, None] * k + parents.index_select(0, stay)
        pairs = zip(finished[:3], beams.finished[:3], strict=True)
        ended = Finished(*(old.index_put((rows,), new) for old, new in pairs))
        beams = beams.at(stay)._replace(finished=ended)
        return rows.index_select(0, stay), beams, _select(source, stay), _select(decoder_state, places)

    def _step(
        self, beams: Beams, states: Tensor, repeats: Tensor, covered: Tensor, decoder_state: State
    ) -> tuple[Any, ...]:
        """Run a step with any options.

        Beside the beams it has the states of the automaton (B, K), `repeats` (B, K, N) and `covered` (B, K, S).
        """
        t, K, written = beams.t, beams.tokens.shape[1], self.times < beams.t
        free, decoder_state, attention = self.decoder.step(beams.tokens.flatten(), decoder_state)  # (B K, V)
        if attention is not None:
            covered = covered + attention
        holding = self.constraints.automaton.holding(states)
        banned = self.constraints.banned(t, written, beams.sequences, repeats)
        log_p = self.constraints.automaton.permit(free, holding, banned)
        gains, tokens = top_n(log_p, torch.sym_min(self.candidates.shape[0], log_p.shape[1]))  # (B K, C)
        forced = self.constraints.forced(t, K)  # (B K, 1)
        gains = torch.where(forced > 0, free.gather(1, forced) + self._only_first(gains.shape[1]), gains)
        tokens = torch.where(forced > 0, forced, tokens)
        candidates = self._continuations(beams, gains, tokens, covered)
        beams, parents = self._advance(beams, candidates, self.sampler.active)
        # For each place, the number of tokens right before it that equal the last ones: 1 more than before if the new
        # token is there too. As a state it costs one comparison per place, for any length of n-grams.
        same = (beams.sequences == beams.tokens[..., None]) & written
        repeats = torch.where(same, rows_at(repeats, parents) + 1, 0)
        repeats = torch.cat([torch.zeros_like(repeats[..., :1]), repeats[..., :-1]], 2)  # right before each place
        states = self.constraints.automaton.after(rows_at(holding, parents), beams.tokens)
        return beams, states, repeats, rows_at(covered, parents), _select(decoder_state, self.first_beam + parents)

    def _advance(
        self, beams: Beams, candidates: Continuations, sampled: Tensor | None = None, rows: Tensor | None = None
    ) -> tuple[Beams, Tensor]:
        """Return the beams of all rows or of these after a step, and the beam (B, K) that each of them continues."""
        t, K, (scores, tokens, parents, ranks, gains) = beams.t, self.rank.shape[0], candidates
        stop, row_limits = self.constraints.ends, self.row_limits
        if rows is not None:
            stop, row_limits = (part if part is None else part.index_select(0, rows) for part in (stop, row_limits))
        n = scores.shape[1]
        # A step at the limit ends every sequence, so that cut sequences are ranked among the finished ones.
        ends = (tokens == EOS_ID if stop is None else is_among(tokens, stop)) | (t + 1 >= self.sampler.limit)
        if row_limits is not None:
            ends = ends | (t + 1 >= row_limits)
        # Of 2 K candidates at most K end in a step where each beam has one end token, so K are left to continue. An end
        # counts only among the first K: after them, K better candidates exist.
        counts = ends & (self.twice[:n] < K) & (scores > LOG_ZERO / 2)
        if rows is None:  # else rows that are done have left
            counts = counts & ~beams.done[:, None]
        sequences = torch.where(self.times == t, tokens[..., None], rows_at(beams.sequences, parents))  # (B, 2 K, N)
        new_ranks = torch.where(counts, ranks, 2 * LOG_ZERO)
        finished_ranks, places = top_n(torch.cat([beams.finished.ranks, new_ranks], 1), K)
        token_log_p = finished_token_log_p = None
        if gains is not None and beams.token_log_p is not None and beams.finished.token_log_p is not None:
            before = rows_at(beams.token_log_p, parents)
            is_now = torch.arange(before.shape[2], device=t.device) == t  # (N')
            token_log_p = torch.where(is_now, gains[..., None], before)  # (B, 2 K, N')
            finished_token_log_p = rows_at(torch.cat([beams.finished.token_log_p, token_log_p], 1), places)
        finished = Finished(
            rows_at(torch.cat([beams.finished.sequences, sequences], 1), places),
            torch.cat([beams.finished.scores, scores], 1).gather(1, places),
            finished_ranks,
            finished_token_log_p,
        )

        # Beams continue with the best candidates that do not end. If fewer than K are left, ended ones fill the places
        # at 2 * LOG_ZERO, which no sequence can recover from.
        _, chosen = top_n(torch.where(ends, 4 * LOG_ZERO, ranks), torch.sym_min(K, n))
        if sampled is not None:
            chosen = torch.where(sampled, self.rank, chosen)
        scores = torch.where(ends, 2 * LOG_ZERO, scores).gather(1, chosen)
        tokens, parents, sequences = tokens.gather(1, chosen), parents.gather(1, chosen), rows_at(sequences, chosen)
        token_log_p = None if token_log_p is None else rows_at(token_log_p, chosen)

        # More tokens add log-probabilities of at most 0, so a beam can only gain by the length penalty: at best it ends
        # at the greatest length with its present score. A row is done when even that would change nothing.
        within_reach = (scores / self.penalties[-1:]).amax(1)
        greedy = ~self.several_beams if sampled is None else ~self.several_beams & ~sampled
        full = (finished_ranks.amin(1) > LOG_ZERO) & (greedy | self.early_stopping)
        done = (finished_ranks.index_select(1, self.last_rank)[:, 0] >= within_reach) | full
        done = done if rows is not None else beams.done | done
        return Beams(t + 1, tokens, scores, done, sequences, finished, token_log_p), parents

    def _continuations(self, beams: Beams, gains: Tensor, tokens: Tensor, covered: Tensor) -> Continuations:
        """Return the 2 K best continuations, or the K sampled ones."""
        B, K = beams.scores.shape
        penalty = self.penalties.index_select(0, beams.t[None])
        total = beams.scores[:, :, None] + gains.unflatten(0, beams.scores.shape)
        ranks = total / penalty + self._coverage(covered)[..., None]
        _, places = top_n(ranks.flatten(1), self.twice.shape[0])
        ranked = (*_take(total.flatten(1), tokens, places), gains.reshape(B, -1).gather(1, places))
        # Each sampled sequence continues its own beam; these are the first K candidates, and the other K are
        # impossible. Both are computed and one is selected: whether a graph samples is an input, and a step has no
        # branches.
        place = self.sampler.choose(gains, beams.t)  # (B K, 1)
        gain = gains.gather(1, place).reshape(B, K)
        scores = beams.scores + gain
        sampled = (
            torch.cat([scores, torch.full_like(scores, 2 * LOG_ZERO)], 1),
            tokens.gather(1, place).reshape(B, K).repeat(1, 2),
            torch.cat([self.rank, self.rank]).expand(B, -1),
            gain.repeat(1, 2),
        )
        scores, tokens, parents, gains = (
            torch.where(self.sampler.active, *both) for both in zip(sampled, ranked, strict=True)
        )
        ranks = scores / penalty + self._coverage(covered).gather(1, parents)
        return Continuations(scores, tokens, parents, ranks, gains)

    def _coverage(self, covered: Tensor) -> Tensor:  # (B, K, S) -> (B, K)
        if self.decoder.mask is None:
            return torch.zeros_like(covered[..., 0])
        logs = covered.clamp(1e-6, 1.0).log()
        return self.coverage_penalty * torch.where(self.decoder.mask[:, None], logs, 0.0).sum(2)

    def _only_first(self, n: int) -> Tensor:
        return torch.where(torch.arange(n, device=self.times.device) == 0, 0.0, LOG_ZERO)[None]  # (1, n)


def _select(state: State, places: Tensor) -> State:  # (…) the places of rows or beams
    return tuple(part.index_select(0, places.flatten()) for part in state)


def _take(total: Tensor, tokens: Tensor, places: Tensor) -> State:  # (B, K C), (B K, C), (B, 2 K)
    """Return scores, last tokens and beams of the candidates at these places, (B, 2 K) each."""
    chosen = tokens.reshape(total.shape[0], -1).gather(1, places)
    return total.gather(1, places), chosen, places // tokens.shape[1]


# Generation of long texts without beam search: greedily, or by sampling.

STEPS_PER_EXTENSION = 32  # after which the memory is extended by the state


class Continuation(Decoder, Protocol):
    """A model after texts of R rows, which generates more of them.

    `memory` is what it keeps of the texts, and `at` returns the model with another memory. `start` returns the state of
    the decoder, which is of the tokens after the texts; `extended` returns the memory with these tokens.
    """

    @property
    def memory(self) -> State: ...

    def at(self, memory: State) -> Continuation: ...

    def start(self) -> State: ...

    def extended(self, state: State) -> State: ...


class Generated(NamedTuple):
    """Texts (B, K, N), [PAD] after their end, their log-probabilities (B, K), and the memory of all but the last token.

    Tokens of the memory after the end of their text are [PAD]. `token_log_p`, as of `Found`, is that of each token.
    """

    tokens: Tensor
    scores: Tensor
    token_log_p: Tensor
    memory: State  # of B K rows


def generate(
    model: Continuation,
    first: Tensor,
    options: GenerationOptions,
    *,
    row_limits: Tensor,
    stop: Tensor | None = None,
) -> Generated:
    """Generate K texts a row, `beams` of the options, without beam search, so that no state is reordered.

    Each token is the likeliest or, with uniform samples, a sampled one; the first one is of the log-probabilities
    `first` (B, V). The model's state, which grows, is copied in each step. So it begins again after
    `STEPS_PER_EXTENSION` steps, when the memory is extended by it. The other arguments are those of `beam_search`.
    """
    return _Generation(model, first, options, row_limits, stop).run(first)


class Texts(NamedTuple):
    """State of a generation: B rows of K texts."""

    t: Tensor  # () the number of the step
    tokens: Tensor  # (B, K) the last of each text
    scores: Tensor  # (B, K)
    done: Tensor  # (B, K)
    states: Tensor  # (B, K) of the automaton
    sequences: Tensor  # (B, K, n) the tokens of the last n steps
    token_log_p: Tensor  # (B, K, n) their log-probabilities


class _Generation:
    """The steps of a generation. They read sizes from its tensors, as those of a search."""

    def __init__(
        self, model: Continuation, first: Tensor, options: GenerationOptions, row_limits: Tensor, stop: Tensor | None
    ):
        device, B = first.device, first.shape[0]
        self.model, self.min_length, self.sampler = model, options.min_length, Sampler(options, B, device)
        self.times = torch.arange(options.max_length, device=device)
        is_scored = torch.full((), False, device=device) | options.token_scores
        self.wanted = (is_scored & (self.times >= 0)).nonzero()[:, 0]  # (N) or (0)
        self.limits = row_limits.minimum(self.sampler.limit)[:, None]  # (B, 1)
        ends = prepend_token(EOS_ID, stop, B, device)  # (B, 1 + E)
        self.automaton = PieceAutomaton(options.forbidden, options.allowed, B, device)
        # One, or those to sample from. The tracer takes no size for 0, so that `sampler.needed` is `top_k` in a graph.
        self.candidates = ((torch.arange(options.top_k, device=device) == 0) | self.sampler.active).nonzero()
        self.zeros = (self.limits + torch.arange(options.beams, device=device)) * 0  # (B, K)
        self.rows = torch.arange(B * self.zeros.shape[1], device=device)
        # [PAD], of texts that have ended, may be an end.
        self.is_end = torch.zeros_like(first).scatter(1, ends, 1.0) > 0  # (B, V)
        always = torch.where(self.automaton.is_any, self.automaton.forbidden, PAD_ID)[:, 0]  # (B, A) in any state
        self.early, self.late = (
            torch.cat([part, always], 1)[:, None].expand(-1, self.zeros.shape[1], -1).flatten(0, 1)
            for part in (ends, ends * 0 + PAD_ID)
        )  # (B K, 1 + E + A) banned tokens
        self.banned = torch.full_like(self.early, LOG_ZERO, dtype=first.dtype)
        # () 0: the likeliest token that is not banned
        self.constrained = (self.sampler.active | ~self.automaton.is_any.all()).long()

    def run(self, first: Tensor) -> Generated:
        zeros, t = self.zeros, self.times.new_zeros(())
        scores, done = zeros.to(torch.get_default_dtype()), zeros + self.limits <= 0
        none = zeros[..., None][..., :0]
        texts = Texts(t, zeros, scores, done, self.automaton.start(zeros), none, scores[..., None][..., :0])
        texts = self._choose(repeated((first,), zeros.shape[1])[0], texts)
        texts, memory = _nested_loop(self._loop_condition, self._extend, (texts, self.model.memory))
        places = self.times.clamp(max=texts.sequences.shape[2])
        tokens, token_log_p = (
            F.pad(part, (0, 1)).index_select(2, places) for part in (texts.sequences, texts.token_log_p)
        )
        return Generated(tokens, texts.scores, token_log_p.index_select(2, self.wanted), memory)

    def _loop_condition(self, texts: Texts, state: State) -> Tensor:
        return texts.done.sum() < texts.done.numel()

    def _extend(self, texts: Texts, memory: State) -> tuple[Texts, State]:
        """Run `STEPS_PER_EXTENSION` steps, then extend the memory."""
        model, end = self.model.at(memory), texts.t + STEPS_PER_EXTENSION

        def loop_condition(texts: Texts, state: State) -> Tensor:
            return (texts.t < end) & self._loop_condition(texts, state)

        def step(texts: Texts, state: State) -> tuple[Texts, State]:
            log_p, state, _ = model.step(texts.tokens.flatten(), state)
            return self._choose(log_p, texts), state

        empty = texts._replace(sequences=texts.sequences[..., :0], token_log_p=texts.token_log_p[..., :0])
        last, state = _nested_loop(loop_condition, step, (empty, model.start()))
        sequences = torch.cat([texts.sequences, last.sequences], 2)
        token_log_p = torch.cat([texts.token_log_p, last.token_log_p], 2)
        return last._replace(sequences=sequences, token_log_p=token_log_p), model.extended(state)

    def _choose(self, free: Tensor, texts: Texts) -> Texts:  # (B K, V)
        """Return the texts with one more token each."""
        t, _, scores, done, states, sequences, token_log_p = texts
        log_p = free.scatter(1, torch.where(t < self.min_length, self.early, self.late), self.banned)
        state = (self.constrained, log_p.argmax(1, keepdim=True), states)
        # This loop takes one step or none.
        _, chosen, states = while_loop(lambda left, *rest: left > 0, partial(self._constrain, log_p, t), state)
        tokens, gain = torch.where(done, PAD_ID, chosen.view_as(scores)), free.gather(1, chosen).view_as(scores)
        sequences, gain = torch.cat([sequences, tokens[..., None]], 2), torch.where(done, 0.0, gain)
        token_log_p = torch.cat([token_log_p, gain[..., None]], 2)
        done_next = done | self.is_end.gather(1, tokens) | (t + 1 >= self.limits)
        return Texts(t + 1, tokens, scores + gain, done_next, states, sequences, token_log_p)

    def _constrain(self, log_p: Tensor, t: Tensor, left: Tensor, chosen: Tensor, states: Tensor) -> State:
        # What is computed from the loop's state stays in the loop.
        holding = self.automaton.holding(states)
        permitted = self.automaton.permit(log_p.index_select(0, self.rows * left), holding, chosen * 0 + PAD_ID)
        gains, best_tokens = top_n(permitted, torch.sym_min(self.candidates.shape[0], permitted.shape[1]))  # (B K, C)
        chosen = best_tokens.gather(1, torch.where(self.sampler.active, self.sampler.choose(gains, t * left), 0))
        return left - 1, chosen, self.automaton.after(holding, chosen.view_as(states))
