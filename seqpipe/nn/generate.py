"""A decoder's step and where it starts in, texts out that are written straight ahead: greedy, or drawn at random."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.loops import while_loop
from seqpipe.nn.search import EOS, NEVER, PAD, Decoder, Numbers, State, best, drawn, is_any, stretched


class Walked(NamedTuple):
    """Texts (B, K, N), [PAD] behind their end, their log-probabilities (B, K), and where the decoder stands."""

    tokens: Tensor
    scores: Tensor
    steps: Tensor  # (B, K) how many tokens the decoder was given before the text ended
    state: State  # of B K rows


def walk(
    decoder: Decoder,
    start: State,
    first: Tensor,
    *,
    texts: int,
    max_length: int,
    most: Tensor,
    min_length: int | Tensor = 0,
    forbidden: Tensor | None = None,
    stop: Tensor | None = None,
    uniform: Tensor | None = None,
    temperature: Numbers = 1.0,
    top_k: int = 50,
    top_p: Numbers = 1.0,
) -> Walked:
    """K texts of each row, none of which is ever taken back, so that no state is copied: for long texts.

    Each token is the likeliest one; or, where random numbers are given, the one in whose share of the interval from 0
    to 1 the number falls, the likeliest first. The arguments are those of `seqpipe.nn.search.search`.
    """
    device, B = first.device, first.shape[0]
    times = torch.arange(max_length, device=device)
    given = torch.zeros(1, 1, 0, device=device) if uniform is None else uniform
    draws = torch.full((), given.shape[2], device=device) > 0
    longest = torch.full((), max_length, device=device)
    limit = torch.where(draws, torch.full((), torch.sym_min(max_length, given.shape[2]), device=device), longest)
    numbers = stretched(stretched(F.pad(given, (0, 1)), 0, B), 1, texts)  # (B, K, N' + 1)
    none = torch.zeros(1, 0, dtype=torch.int64, device=device)
    ends = F.pad(stretched(none if stop is None else stop, 0, B), (1, 0), value=EOS)  # (B, 1 + E)
    never = stretched(none if forbidden is None else forbidden, 0, B)  # (B, F)
    count = 1 + torch.sym_max(top_k - 1, 0) * torch.sym_min(given.shape[2], 1)
    candidates = torch.arange(count, device=device)
    heat, most_likely = torch.zeros((), device=device) + temperature, torch.full((), top_k, device=device)
    nothing = (first[:, None] + torch.arange(texts, device=device)) * 0  # (B, K)

    def go_on(t: Tensor, tokens: Tensor, scores: Tensor, done: Tensor, *rest: Tensor) -> Tensor:
        return (t < limit) & ~done.all()

    def step(
        t: Tensor,
        tokens: Tensor,  # (B, K) the last of each text
        scores: Tensor,  # (B, K)
        done: Tensor,  # (B, K)
        written: Tensor,  # (B, K, N)
        steps: Tensor,  # (B, K)
        *state: Tensor,
    ) -> State:
        K = tokens.shape[1]
        free, state, _ = decoder.step(tokens.flatten(), state)  # (B K, V)
        outlawed = torch.cat([torch.where(t < min_length, ends, PAD), never], 1)
        log_p = free.scatter(1, outlawed[:, None].expand(-1, K, -1).flatten(0, 1), NEVER)
        gains, nexts = best(log_p, torch.sym_min(candidates.shape[0], log_p.shape[1]))  # (B K, C)
        u = numbers.index_select(2, t[None].clamp(max=numbers.shape[2] - 1)).flatten(0, 1)  # (B K, 1)
        place = torch.where(draws, drawn(gains, u, heat, most_likely, top_p), 0)
        chosen = nexts.gather(1, place)  # (B K, 1)
        gain, tokens = free.gather(1, chosen).view_as(scores), chosen.view_as(tokens)
        scores = torch.where(done, scores, scores + gain)
        written = torch.where((times == t) & ~done[..., None], tokens[..., None], written)
        ended = is_any(tokens, ends) | (t + 1 >= most[:, None])
        return t + 1, tokens, scores, done | ended, written, torch.where(done, steps, t + 1), *state

    begin = (
        nothing + first[:, None],
        nothing.to(torch.float32),
        nothing + most[:, None] <= 0,
        nothing[..., None] + 0 * times,
        nothing,
    )
    state = tuple(part[:, None].expand(-1, texts, *part.shape[1:]).flatten(0, 1) for part in start)
    _, _, scores, _, written, steps, *after = while_loop(go_on, step, (times.new_zeros(()), *begin, *state))
    return Walked(written, scores, steps, tuple(after))
