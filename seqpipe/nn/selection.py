"""Selecting rows and candidates in graphs of any size: top-k with ordered ties, gathering, sampling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.constants import LOG_ZERO, PAD
from seqpipe.nn.search_options import GenerationOptions


class Sampler:
    """Sampling by given uniform samples, with temperature, top-k and top-p; B rows of K beams.

    A token's candidates divide the interval from 0 to 1 by their probabilities, the likeliest first; the one in whose
    share the uniform sample falls is taken. Steps of loops take sizes from its tensors: a number that they closed over
    would be fixed in export.
    """

    def __init__(self, options: GenerationOptions, rows: int, device: torch.device):
        uniform = torch.zeros(1, 1, 0, device=device) if options.uniform is None else options.uniform
        steps, longest = uniform.shape[2], torch.full((), options.max_length, device=device)
        self.active = torch.full((), steps, device=device) > 0  # ()
        sampled_longest = torch.full((), torch.sym_min(options.max_length, steps), device=device)
        self.limit = torch.where(self.active, sampled_longest, longest)  # () the most tokens of a sequence
        self.uniform = stretched(stretched(F.pad(uniform, (0, 1)), 0, rows), 1, options.beams)  # (B, K, N' + 1)
        self.temperature = torch.zeros((), device=device) + options.temperature  # one made in a loop does not export
        self.top_k, self.top_p = torch.full((), options.top_k, device=device), options.top_p
        self.needed = options.top_k * torch.sym_min(steps, 1)  # how many candidates it chooses from

    def choose(self, log_p: Tensor, t: Tensor) -> Tensor:
        """Which of the candidates (B K, C), the best first, is taken at step t, (B K, 1)."""
        uniform = self.uniform.index_select(2, t[None].clamp(max=self.uniform.shape[2] - 1)).flatten(0, 1)  # (B K, 1)
        rank = torch.arange(log_p.shape[1], device=log_p.device)
        scaled = (log_p - log_p[:, :1]) / torch.where(self.temperature > 0, self.temperature, 1.0)
        p = torch.where(rank < self.top_k, scaled, LOG_ZERO).softmax(1)
        before = p.cumsum(1) - p
        keep = (before < self.top_p) & (p > 0) | (rank == 0)
        total = torch.where(keep, p, 0.0).cumsum(1)
        chosen = (total <= uniform * total[:, -1:]).sum(1, keepdim=True).minimum(keep.sum(1, keepdim=True) - 1)
        return torch.where(self.temperature > 0, chosen, 0)


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
    top, places = values.topk(n, 1, largest)
    if torch.compiler.is_exporting() or not n:
        return top, places  # onnxruntime's is in this order; eager `topk` takes any of equal ones
    edge = top[:, -1:]
    equal = int(((values >= edge) if largest else (values <= edge)).sum(1).max())
    if equal > n:  # some that are left out are as good
        places = values.topk(equal, 1, largest).indices
    places = places.sort(1).values
    ordered, order = values.gather(1, places).sort(dim=1, descending=largest, stable=True)
    return ordered[:, :n], places.gather(1, order)[:, :n]
