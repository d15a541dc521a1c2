"""Long texts of a decoder, written straight ahead: greedily, or sampled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from seqpipe.nn.constants import EOS, LOG_ZERO, PAD
from seqpipe.nn.constraints import with_token
from seqpipe.nn.loops import State, while_loop
from seqpipe.nn.search import Decoder
from seqpipe.nn.search_options import GenerationOptions
from seqpipe.nn.selection import Sampler, best, is_any, stretched


class Generated(NamedTuple):
    """Texts (B, K, N), [PAD] behind their end, their log-probabilities (B, K), and where the decoder stands."""

    tokens: Tensor
    scores: Tensor
    steps: Tensor  # (B, K) how many tokens the decoder was given before the text ended
    state: State  # of B K rows


def generate(
    decoder: Decoder,
    start: State,
    first_tokens: Tensor,
    options: GenerationOptions,
    *,
    row_limits: Tensor,
    stop: Tensor | None = None,
) -> Generated:
    """Generate K texts a row, `beams` of the options, without beam search, so that no state is copied.

    Each token is the likeliest one or, where uniform samples are given, a sampled one. The arguments are those of
    `seqpipe.nn.search.search`.
    """
    device, B = first_tokens.device, first_tokens.shape[0]
    sampler, times = Sampler(options, B, device), torch.arange(options.max_length, device=device)
    ends = with_token(EOS, stop, B, device)  # (B, 1 + E)
    forbidden = torch.zeros(1, 0, dtype=torch.int64, device=device) if options.forbidden is None else options.forbidden
    forbidden = stretched(forbidden, 0, B)  # (B, F)
    candidates = torch.arange(torch.sym_max(sampler.needed, 1), device=device)
    zeros = (first_tokens[:, None] + torch.arange(options.beams, device=device)) * 0  # (B, K)

    def is_open(t: Tensor, tokens: Tensor, scores: Tensor, done: Tensor, *rest: Tensor) -> Tensor:
        return (t < sampler.limit) & ~done.all()

    def step(
        t: Tensor,
        tokens: Tensor,  # (B, K) the last of each text
        scores: Tensor,  # (B, K)
        done: Tensor,  # (B, K)
        sequences: Tensor,  # (B, K, N)
        steps: Tensor,  # (B, K)
        *state: Tensor,
    ) -> State:
        K = tokens.shape[1]
        free, state, _ = decoder.step(tokens.flatten(), state)  # (B K, V)
        banned = torch.cat([torch.where(t < options.min_length, ends, PAD), forbidden], 1)
        log_p = free.scatter(1, banned[:, None].expand(-1, K, -1).flatten(0, 1), LOG_ZERO)
        gains, best_tokens = best(log_p, torch.sym_min(candidates.shape[0], log_p.shape[1]))  # (B K, C)
        chosen = best_tokens.gather(1, torch.where(sampler.active, sampler.choose(gains, t), 0))  # (B K, 1)
        gain, tokens = free.gather(1, chosen).view_as(scores), chosen.view_as(tokens)
        scores = torch.where(done, scores, scores + gain)
        sequences = torch.where((times == t) & ~done[..., None], tokens[..., None], sequences)
        ended = is_any(tokens, ends) | (t + 1 >= row_limits[:, None])
        return t + 1, tokens, scores, done | ended, sequences, torch.where(done, steps, t + 1), *state

    begin = (
        times.new_zeros(()),
        zeros + first_tokens[:, None],
        zeros.to(torch.float32),
        zeros + row_limits[:, None] <= 0,
        zeros[..., None] + 0 * times,
        zeros,
    )
    state = tuple(part[:, None].expand(-1, options.beams, *part.shape[1:]).flatten(0, 1) for part in start)
    _, _, scores, _, sequences, steps, *after = while_loop(is_open, step, (*begin, *state))
    return Generated(sequences, scores, steps, tuple(after))
