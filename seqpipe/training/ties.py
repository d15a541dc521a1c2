"""How near a model was to taking one decision for another one about the same texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from seqpipe.answers.generation import PRESENT
from seqpipe.answers.types import Choice

Decision = Mapping[str, Tensor]
Score = Callable[[Decision], Tensor]  # a head's log-probability (B,) of the first answer of a decision


def decided(decision: Decision) -> list[str]:
    """The outputs that say what was decided."""
    return [name for name in decision if not (decision[name].is_floating_point() or name.startswith(PRESENT))]


def same_rows(first: Decision, second: Decision) -> Tensor:
    """Of which rows, (B,), everything decided is equal."""
    every = torch.ones(len(next(iter(first.values()))), dtype=torch.bool)
    return torch.stack([every, *(_same(first[name], second[name]) for name in decided(first))]).all(0)


def score_gap(choices: Sequence[Choice], is_stepwise: bool, score: Score, first: Decision, second: Decision) -> Tensor:
    """How far, (B,), the scores of two decisions differ, at the first rank at which the decisions do.

    Of answers that are decided step by step it is the difference of the first choices that differ, if that is less:
    behind it all may be different. Infinite where something differs that has no score.

    Args:
        choices: The outputs that the head's answer kind decides together.
        is_stepwise: Whether it is decided step by step.
        score: The head's.
        first: A decision.
        second: Another one about the same texts.
    """
    gaps = torch.zeros(len(next(iter(first.values()))))
    scored: set[str] = set()
    for names, mine, theirs in _alternatives(choices, first, second):
        differ = ~same_rows(mine, theirs)
        scored |= names
        if not differ.any():
            continue
        gap = (score(mine) - score(theirs)).abs()
        if is_stepwise:
            gap = torch.minimum(gap, _of_first_choice(score, mine, theirs))
        gaps = torch.where(differ, torch.maximum(gaps, gap), gaps)
    for name in {*decided(first)} - scored:
        gaps = torch.where(_same(first[name], second[name]), gaps, math.inf)
    return gaps


def _alternatives(
    choices: Sequence[Choice], first: Decision, second: Decision
) -> Iterator[tuple[set[str], Decision, Decision]]:
    """Names of outputs, and what `score` takes of both: of ranked answers those of the first rank that differs."""
    for choice in choices:
        names = choice.outputs
        if not {*names} <= first.keys():
            continue
        if not choice.ranked:
            yield {*names}, {name: first[name] for name in names}, {name: second[name] for name in names}
            continue
        mine, theirs = _first_rank(names, first, second)
        if choice.scored_as:
            mine, theirs = ({choice.scored_as: part[names[0]][:, 0]} for part in (mine, theirs))
        yield {*names}, mine, theirs


def _first_rank(names: tuple[str, ...], first: Decision, second: Decision) -> tuple[Decision, Decision]:
    """The answers (B, 1, …) of the first rank at which these outputs differ."""
    differ = torch.stack([(first[name] != second[name])[..., None].flatten(2).any(2) for name in names]).any(
        0
    )  # (B, n)
    rank, rows = differ.long().argmax(1), torch.arange(len(differ))

    def chosen(decision: Decision) -> Decision:
        return {name: decision[name][rows, rank][:, None] for name in names}

    return chosen(first), chosen(second)


def _of_first_choice(score: Score, mine: Decision, theirs: Decision) -> Tensor:
    """How far the scores of two sequences (B, 1, N) differ that are cut behind the first place where they differ."""
    ((name, first),) = mine.items()
    second = theirs[name]
    differ = (first != second)[:, 0]
    place = torch.where(differ.any(1), differ.long().argmax(1), -1)
    gaps = torch.full((len(first),), math.inf)
    for cut in [int(at) for at in place.unique() if at >= 0]:
        gap = (score({name: first[:, :, : cut + 1]}) - score({name: second[:, :, : cut + 1]})).abs()
        gaps = torch.where(place == cut, gap, gaps)
    return gaps


def _same(first: Tensor, second: Tensor) -> Tensor:  # (B, …) -> (B,)
    return (first == second).flatten(1).all(1) if first.dim() > 1 else first == second
