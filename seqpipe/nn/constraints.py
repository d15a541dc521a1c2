"""What a search may write: a forced prefix, banned tokens, lengths, no repeated n-grams."""

from __future__ import annotations

import torch
from torch import Tensor

from seqpipe.nn.constants import EOS, PAD
from seqpipe.nn.search_options import SearchOptions
from seqpipe.nn.selection import is_any, stretched


class Constraints:
    """Constraints of a search on B rows of K beams.

    Args:
        options: Of the search.
        rows: B.
        device: Of the decoder's state.
        lengths: How many tokens a row's sequences have, (B,), [EOS] not included; -1 where that is open.
        stop: Tokens that end a sequence as [EOS] does, (1 or B, E) int64, [PAD] where there are fewer.
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
        forbidden = none if options.forbidden is None else options.forbidden
        exact = torch.full((rows,), -1, dtype=torch.int64, device=device) if lengths is None else lengths + 0
        self.exact, self.least = exact, torch.maximum(exact, torch.zeros_like(exact) + options.min_length)  # (B,) each
        self.ngram = options.no_repeat_ngram_size
        listed = torch.full((), prefix.shape[1] + forbidden.shape[1], device=device) > 0
        repeats = torch.zeros((), device=device) + self.ngram
        self.none = ~listed & (repeats == 0) & (self.least <= 0).all() & (exact < 0).all()  # () nothing constrains
        self.prefix = stretched(torch.cat([prefix, prefix.new_full((prefix.shape[0], 1), PAD)], 1), 0, rows)  # (B, P')
        self.forbidden = stretched(forbidden, 0, rows)  # (B, F)
        self.ends = None if stop is None else with_token(EOS, stop, rows, device)  # (B, 1 + E)

    def ends_sequence(self, tokens: Tensor) -> Tensor:  # (B, M) -> (B, M)
        return tokens == EOS if self.ends is None else is_any(tokens, self.ends)

    def banned(self, t: Tensor, written: Tensor, sequences: Tensor, repeats: Tensor) -> Tensor:
        """Tokens (B K, N + E' + F) that may not come at step t; where there is none, [PAD], which never may.

        Args:
            t: ().
            written: (N,) the places before t.
            sequences: (B, K, N).
            repeats: (B, K, N) how many tokens right before each place are the last ones written.
        """
        again = (self.ngram > 0) & (repeats >= self.ngram - 1) & written
        repeated = torch.where(again, sequences, PAD).flatten(0, 1)
        ends = torch.full_like(self.exact[:, None], EOS) if self.ends is None else self.ends
        ends = torch.where((t < self.least)[:, None], ends, PAD)
        listed = torch.cat([ends, self.forbidden], 1)[:, None].expand(-1, sequences.shape[1], -1).flatten(0, 1)
        return torch.cat([repeated, listed], 1)

    def forced(self, t: Tensor, beams: int) -> Tensor:
        """The tokens (B K, 1) that must come at step t, [PAD] where any may."""
        tokens = self.prefix.index_select(1, t[None].clamp(max=self.prefix.shape[1] - 1))  # (B, 1)
        return torch.where(self.exact[:, None] == t, EOS, tokens).expand(-1, beams).reshape(-1, 1)


def with_token(token: int, tokens: Tensor | None, rows: int, device: torch.device) -> Tensor:
    """A token before those of each row, (1 or B, F) or none: (B, 1 + F)."""
    first = torch.full((rows, 1), token, device=device)
    return first if tokens is None else torch.cat([first, stretched(tokens, 0, rows)], 1)
