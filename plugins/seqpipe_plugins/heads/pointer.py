"""A pointer network: the answer is a sequence of positions of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.attention import Attention, Glimpse, ProjectedKeys
from seqpipe.nn.cells import recurrent_step
from seqpipe.nn.layers import EOS_ID, LOG_ZERO, Modules, RealRows
from seqpipe.nn.loops import State, scan
from seqpipe.nn.multi_source_attention import summarize_sources
from seqpipe.nn.recurrent import TORCH_CELLS, decoder_start_state, unroll_decoder
from seqpipe.nn.search import BeamOptions, RowsDecoder, SearchOptions, beam_search, rows_at
from seqpipe.plugin import Metric, Probability, UsageError

from ..geometry import hull_scores, tour_scores

_LATER_PENALTY = 1e-3  # difference of the scores of equal neighbouring positions, so that ties go to the first
FEWEST = {"sequence": 0, "hull": 3, "tour": 1}  # positions of a sequence, without the closing one
_FIRST_POSITION = EOS_ID + 1  # the token of position 0


class Source(NamedTuple):
    """The constant input of every step.

    A slot is what can be chosen: slot 0 is the end, slot i the position i - 1.
    """

    read: Tensor  # (B, 1 + T, D) inputs of a step: the beginning, then the vector of each position
    keys: Tensor  # of all slots, projected for the score
    real: Tensor  # (B, 1 + T) mask of real slots
    glimpsed: tuple[ProjectedKeys, ...]  # of all positions, for each glimpse


class Pointer(nn.Module):
    """A pointer network (Vinyals, Fortunato and Jaitly 2015): the answer is a sequence of positions of the input.

    The initial state of a recurrent decoder is tanh(W s + b), where s is the encoder's `state` or, without a `state` as
    wide as x, the mean of x; the input of each step is the vector of the last position. The state h takes glimpses at
    the positions that can still be chosen (Vinyals, Bengio and Kudlur 2016; Bello et al. 2017): each glimpse adds to h
    the multi-head attention of LN(h), then a feed-forward network of LN(h). The probability of the next position is a
    softmax over the scores of h with these positions, and with a learned vector for the end. The score of position t is
    reduced by t / 1000, so that of two equal positions, such as identical points, the first is chosen.

    Args:
        task: Meaning of the positions, which determines metrics and plots: any sequence, the corners of the convex hull
            of points (at least three if there are three points), or a round trip through points.
        once: Whether each position is chosen at most once.
        every: Whether each position is chosen exactly once: an order, a round trip.
        close: Whether answers and targets are closed: they repeat their first position at the end.
        cell: The recurrent cell.
        hidden: Number of units of each layer.
        layers: Number of layers.
        score: Score of the state h and a position.
        units: Number of units of the score `additive`.
        glimpses: Number of glimpses before each choice.
        heads: Number of heads of a glimpse; a divisor of the units of a layer.
        dropout: Dropout probability of the input of a step, between layers, and of the output of a glimpse.
    """

    length_cost: ClassVar = "quadratic"
    answer = "pointers"
    score_types: ClassVar = {
        **dict.fromkeys(("hull_accuracy", "area_covered", "valid", "optimality"), Metric()),
        "tour_length": Metric(percent=False, more_is_better=False),
    }
    explains: ClassVar = {"attention": "written"}

    def __init__(
        self,
        dim: int,
        *,
        task: Literal["sequence", "hull", "tour"] = "sequence",
        once: bool = True,
        every: bool = False,
        close: bool = False,
        cell: Literal["rnn", "lstm", "gru"] = "lstm",
        hidden: PositiveInt = 128,
        layers: PositiveInt = 1,
        score: Literal["dot", "scaled-dot", "additive", "bilinear"] = "additive",
        units: PositiveInt = 128,
        glimpses: NonNegativeInt = 1,
        heads: PositiveInt = 4,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        if (every or close) and not once:
            raise UsageError(f"{'every' if every else 'close'}: no position is chosen twice; set once: true")
        if task == "hull" and not close:
            raise UsageError("task: the corners of a hull are a closed sequence; set close: true")
        if task == "tour" and not (every and close):
            raise UsageError("task: a tour goes through every point and returns; set every: true and close: true")
        self.once, self.every, self.close = once, every, close
        self.fewest = max(FEWEST[task], int(close))
        self.rnn = TORCH_CELLS[cell](dim, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.bridge = nn.Linear(dim, (2 if cell == "lstm" else 1) * layers * hidden)
        self.begin = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.end = None if every else nn.Parameter(torch.randn(dim) * dim**-0.5)  # the end is a choice
        self.pointing = Attention(hidden, dim, score=score, units=units)
        self.glimpses = Modules(Glimpse(hidden, dim, heads, dropout) for _ in range(glimpses))
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the answer kind: the valid sequences of positions, and the style of their figure."""
        task = options["task"]
        return {
            "distinct": options["once"],
            "complete": options["every"],
            "closed": options["close"],
            "fewest": FEWEST[task],
            "cyclic": task == "hull",
            "needs_points": task != "sequence",
            "figure_style": "polygon" if task == "hull" else "line",
        }

    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Return the scores specific to the tasks `hull` and `tour`."""
        if options["task"] == "sequence":
            return {}
        return (hull_scores if options["task"] == "hull" else tour_scores)(gold, predicted)

    @staticmethod
    def inactive_options(options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the inactive decode options: those of lengths, if no position is chosen twice."""
        return ("max_length",) if options.get("once", True) else ()

    def loss(
        self, x: Tensor, mask: Tensor, pointers: Tensor, pointers_mask: Tensor, state: Tensor | None = None
    ) -> Tensor:
        """Return the mean cross-entropy () of a position of (B, N) and of the end, given those before it."""
        slots, real = self._slots(torch.where(pointers_mask, pointers, -1))
        log_p = self._teacher_forced(x, mask, state, slots)
        rows = RealRows(real)
        return -rows.mean(rows.of(log_p.gather(2, slots[..., None])[..., 0]))

    def loss_count(self, pointers: Tensor, pointers_mask: Tensor) -> Tensor:
        return self._slots(torch.where(pointers_mask, pointers, -1))[1].sum()

    def decide(
        self, x: Tensor, mask: Tensor, state: Tensor | None = None, *, options: BeamOptions
    ) -> dict[str, Tensor]:
        """Return the likeliest sequences (B, n_best, N), -1 after the end, and their log-probabilities, best first."""
        source = self._read(x, mask)
        chosen = torch.zeros_like(source.real, dtype=torch.get_default_dtype())
        max_length = mask.shape[1] + 1 if self.once else options.max_length
        search_options = SearchOptions.of(options, max_length=max_length)
        start = (*self._start(x, mask, state), chosen)
        tokens, scores, _ = beam_search(RowsDecoder(self.step, source, mask), start, search_options)
        pointers = torch.where(tokens >= _FIRST_POSITION, tokens - _FIRST_POSITION, -1)
        if self.close:
            pointers = torch.where(tokens == EOS_ID, pointers[..., :1], pointers)
        return {"pointers": pointers, "scores": scores}

    def explain(self, x: Tensor, mask: Tensor, pointers: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Return the probability of each position at each step of the first sequence, (B, N, T); 0 after its end."""
        first, N = pointers[:, 0], pointers.shape[2]
        slots, _ = self._slots(first)
        p = self._teacher_forced(x, mask, state, slots).exp()[:, :N]  # (B, N, 1 + T)
        p_positions = p[..., 1:]
        if self.close:  # to end is to choose the first position once more
            places = torch.arange(mask.shape[1], device=x.device)
            p_positions = p_positions + p[..., :1] * (first[:, :1, None] == places).to(p.dtype)
        return {"attention": torch.where(first[..., None] >= 0, p_positions, 0.0)}

    def score(self, x: Tensor, mask: Tensor, pointers: Tensor, state: Tensor | None = None) -> Tensor:
        """Return the log-probability (B,) of the first of the given sequences (B, n, N), including its end.

        One that has a position at each of the N places was cut, and has no end.
        """
        slots, real = (rows[:, : pointers.shape[2]] for rows in self._slots(pointers[:, 0]))  # (B, N) each
        log_p = self._teacher_forced(x, mask, state, slots)  # (B, N, 1 + T)
        return torch.where(real, log_p.gather(2, slots[..., None])[..., 0], 0.0).sum(1)

    def _slots(self, pointers: Tensor) -> tuple[Tensor, Tensor]:
        """Return slots (B, N + 1) of positions (B, N), -1 after the last, and the mask up to and including the end."""
        lengths = (pointers >= 0).sum(1, keepdim=True) - int(self.close)  # a closing position is the end
        times = torch.arange(pointers.shape[1] + 1, device=pointers.device)
        return torch.where(times < lengths, F.pad(pointers, (0, 1)) + 1, 0), times <= lengths

    def _read(self, x: Tensor, mask: Tensor) -> Source:
        x = torch.where(mask[..., None], x, 0.0)
        last = torch.zeros_like(self.begin) if self.end is None else self.end
        begin, end = (vector.expand(x.shape[0], 1, -1) for vector in (self.begin, last))
        real = F.pad(mask, (1, 0), value=True)
        keys = self.pointing.project(torch.cat([end, x], 1), real).keys
        glimpsed = tuple(glimpse.attention.project(x, mask) for glimpse in self.glimpses)
        return Source(torch.cat([begin, x], 1), keys, real, glimpsed)

    def _start(self, x: Tensor, mask: Tensor, state: Tensor | None) -> State:
        summary = summarize_sources([{"x": x, "mask": mask, "state": state}])
        return decoder_start_state(self.bridge, summary, self.rnn)

    def _teacher_forced(self, x: Tensor, mask: Tensor, state: Tensor | None, slots: Tensor) -> Tensor:
        """Return the log-probabilities of all slots (B, N, 1 + T), given the slots (B, N) before each."""
        source = self._read(x, mask)
        before = F.pad(slots[:, :-1], (1, 0))  # (B, N) the slot of the end is the input at the beginning
        vectors = self.dropout(rows_at(source.read, before))
        start = self._start(x, mask, state)
        if torch.compiler.is_exporting():
            # The exporter would fix the example's length in an LSTM of PyTorch, so a graph has a Scan.

            def step(now: State, rows: State) -> tuple[State, State]:
                h, after = recurrent_step(self.rnn, rows[0], now)
                return after, (h,)

            _, (states,) = scan(step, start, (vectors.transpose(0, 1),))
            h = states.transpose(0, 1)  # (B, N, H)
        else:
            h = unroll_decoder(self.rnn, vectors, start)
        places = torch.arange(source.real.shape[1], device=x.device)
        chosen = (before[..., None] == places).cumsum(1) > 0  # (B, N, 1 + T)
        return self._log_p(source, h, chosen.to(torch.get_default_dtype()))

    def step(self, source: Source, tokens: Tensor, state: State) -> tuple[Tensor, State, None]:
        """Run one step, see `seqpipe.nn.search.RowsDecoder`."""
        *before, chosen = state
        slots = tokens - EOS_ID  # (R,) of the beginning -1
        rows = source.real.shape[0]
        vectors = rows_at(source.read, slots.clamp(min=0).reshape(rows, -1)).flatten(0, 1)  # (R, D)
        h, after = recurrent_step(self.rnn, vectors, tuple(before))
        places = torch.arange(chosen.shape[1], device=chosen.device)
        chosen = chosen + (slots[:, None] == places).to(chosen.dtype)
        log_p = self._log_p(source, h.unflatten(0, (rows, -1)), chosen.unflatten(0, (rows, -1))).flatten(0, 1)
        return F.pad(log_p, (EOS_ID, 0), value=LOG_ZERO), (*after, chosen), None

    def _log_p(self, source: Source, h: Tensor, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of all slots (B, M, 1 + T) from states (B, M, H) and counts of choices."""
        open_slots = source.real[:, None] & ((chosen == 0) if self.once else (chosen >= 0))
        positions = open_slots[..., 1:]
        for glimpse, projected in zip(self.glimpses, source.glimpsed, strict=True):
            h = glimpse(h, projected, positions)
        # An answer may end once it has enough different positions: all of them, or the minimum of the task, but never
        # more than the text has. LOG_ZERO is applied before the softmax, so that closed slots take no probability, and
        # after it, since a row without open slots would be uniform otherwise.
        there = source.real[:, 1:].sum(1)[:, None]  # (B, 1)
        wanted = there if self.every else there.clamp(max=self.fewest)
        ends = (chosen[..., 1:] > 0).sum(2) >= wanted  # (B, M)
        allowed = torch.cat([ends[..., None], positions], 2)
        places = torch.arange(allowed.shape[2], device=h.device)
        logits = (
            self.pointing.scores(h, source.keys)[:, 0].to(torch.get_default_dtype()) - _LATER_PENALTY * places
        )  # (B, M, 1 + T)
        return torch.where(allowed, torch.where(allowed, logits, LOG_ZERO).log_softmax(2), LOG_ZERO)
