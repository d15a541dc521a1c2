"""A decoder's step and where it starts in, the likeliest sequences of tokens out."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from seqpipe.nn.loops import while_loop

PAD, BOS, EOS = 0, 2, 3  # the same in every vocabulary
NEVER = -1e9  # the score of what cannot be; several of them still add up in float32

State = tuple[Tensor, ...]


class Decoder(Protocol):
    """What writes token by token.

    `step` takes the tokens just written, (R,), and a state, and returns the log-probabilities of the next ones, (R, V),
    and the state after. R = B * K: the K beams of a row stand together. A state is a tuple of tensors with R rows,
    which keep their shapes and dtypes (see `loops`): search repeats and reorders rows, and knows nothing else of them.
    [PAD] and [BOS] should be as good as impossible: a beam that writes [PAD] has not ended.
    """

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


def beam_search(
    decoder: Decoder,
    start: State,
    *,
    beams: int,
    n_best: int,
    longest: int,
    length_penalty: float | Tensor = 0.0,
) -> tuple[Tensor, Tensor]:
    """Beam search; greedy search with one beam.

    A beam that has written [EOS] keeps its score and its place among the others. A row is settled when its n best beams
    have ended and no other can catch up; the search ends when every row is settled. A row's answer depends on no other
    row.

    Args:
        decoder: See Decoder.
        start: The state before the first token, B rows.
        beams: How many sequences are kept at each step, K.
        n_best: How many are returned, at most K.
        longest: The most tokens of a sequence, N, [EOS] included; one that reaches it may lack its [EOS].
        length_penalty: α ≥ 0: sequences of l tokens are ranked by score / ((5 + l) / 6)^α (Wu et al. 2016).

    Returns:
        Tokens (B, n_best, N), the best first, [PAD] after [EOS]; and their log-probabilities (B, n_best). Where there
        are not so many sequences, [PAD] alone and NEVER.
    """
    device = start[0].device
    rank, times = torch.arange(beams, device=device), torch.arange(longest, device=device)
    first_row = (torch.arange(start[0].shape[0], device=device) * beams)[:, None]  # (B, 1)

    def go_on(t: Tensor, tokens: Tensor, scores: Tensor, written: Tensor, *rest: Tensor) -> Tensor:
        return (t < times.shape[0]) & ~rest[2].all()

    def step(
        t: Tensor,
        tokens: Tensor,
        scores: Tensor,
        written: Tensor,
        lengths: Tensor,
        done: Tensor,
        settled: Tensor,
        *state: Tensor,
    ) -> State:
        K = scores.shape[1]
        log_p, state = decoder.step(tokens.flatten(), state)  # (B * K, V)
        gains, nexts = log_p.topk(torch.sym_min(K, log_p.shape[1]), 1)  # the best K of each hold the best K of all
        k = gains.shape[1]
        gains = torch.where(done.reshape(-1, 1), only_first(k), gains)  # an ended beam goes on in one way
        nexts = torch.where(done.reshape(-1, 1), PAD, nexts)
        lengths = lengths + ~done
        total = scores[:, :, None] + gains.reshape(-1, K, k)  # (B, K, k)
        ranking = total / penalty(lengths)[:, :, None]
        ranked, chosen = best(ranking.flatten(1), K)  # (B, K)
        parent = chosen // k
        scores = total.flatten(1).gather(1, chosen)
        tokens = nexts.reshape(-1, K * k).gather(1, chosen)
        done = done.gather(1, parent) | (tokens == EOS)
        lengths = lengths.gather(1, parent)
        written = written.gather(1, parent[..., None].expand(-1, -1, written.shape[2]))
        written = torch.where(times == t, tokens[..., None], written)
        rows = (first_row + parent).flatten()
        state = tuple(part.index_select(0, rows) for part in state)
        wanted = rank < n_best
        least = torch.where(wanted, ranked, 0.0).amin(1)
        hope = torch.where(done, NEVER, scores / penalty(times[-1] + 1)).amax(1)
        settled = (done | ~wanted).all(1) & (least >= hope)
        return t + 1, tokens, scores, written, lengths, done, settled, *state

    def penalty(lengths: Tensor) -> Tensor:
        return ((5 + lengths) / 6) ** length_penalty

    def only_first(n: int) -> Tensor:
        return torch.where(torch.arange(n, device=device) == 0, 0.0, NEVER)[None]  # (1, n)

    scores = only_first(beams) + torch.zeros_like(first_row, dtype=torch.float32)  # (B, K)
    none = torch.zeros_like(scores, dtype=torch.int64)  # (B, K)
    repeated = tuple(part[:, None].expand(-1, beams, *part.shape[1:]).flatten(0, 1) for part in start)
    begin = (none + BOS, scores, none[..., None] + 0 * times, none, none > 0, (none > 0).any(1))
    _, _, scores, written, *_ = while_loop(go_on, step, (times[0], *begin, *repeated))
    n = torch.sym_min(n_best, beams)
    possible = scores > NEVER / 2
    return torch.where(possible[..., None], written, PAD)[:, :n], torch.where(possible, scores, NEVER)[:, :n]


def best(values: Tensor, n: int, largest: bool = True) -> tuple[Tensor, Tensor]:  # (R, M) -> (R, n), (R, n)
    """The n largest (or smallest) of each row, best first, and where they stand; of equal ones the first."""
    if torch.compiler.is_exporting():  # the same order in onnxruntime; eager `topk` takes any of equal ones
        return values.topk(n, 1, largest)
    ordered, places = values.sort(dim=1, descending=largest, stable=True)
    return ordered[:, :n], places[:, :n]
