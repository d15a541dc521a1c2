"""How near a model was to taking one decision for another one about the same texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from seqpipe.answers.generation import PRESENT

Decision = Mapping[str, Tensor]
Score = Callable[[Decision], Tensor]  # a head's log-probability (B,) of the first answer of a decision

_RANKED = {"text": ("tokens",), "pointers": ("pointers",), "span": ("starts", "ends")}  # (B, n, …), the best first
STEPWISE = ("text", "pointers")  # answer kinds that are made step by step: a choice changes all behind it
_TAGGED = ("tags", "spans")


def decided(decision: Decision) -> list[str]:
    """The outputs that say what was decided."""
    return [name for name in decision if not (decision[name].is_floating_point() or name.startswith(PRESENT))]


def same_rows(first: Decision, second: Decision) -> Tensor:
    """Of which rows, (B,), everything decided is equal."""
    every = torch.ones(len(next(iter(first.values()))), dtype=torch.bool)
    return torch.stack([every, *(_same(first[name], second[name]) for name in decided(first))]).all(0)


def score_gap(kind: str, score: Score, first: Decision, second: Decision) -> Tensor:
    """How far, (B,), the scores of two decisions differ, at the first rank at which the decisions do.

    Of answers that are decided step by step it is the difference of the first choices that differ, if that is less:
    behind it all may be different. Infinite where something differs that has no score.

    Args:
        kind: The head's answer kind.
        score: The head's.
        first: A decision.
        second: Another one about the same texts.
    """
    gaps = torch.zeros(len(next(iter(first.values()))))
    scored: set[str] = set()
    for names, mine, theirs in _alternatives(kind, first, second):
        differ = ~same_rows(mine, theirs)
        scored |= names
        if not differ.any():
            continue
        gap = (score(mine) - score(theirs)).abs()
        if kind in STEPWISE:
            gap = torch.minimum(gap, _of_first_choice(score, mine, theirs))
        gaps = torch.where(differ, torch.maximum(gaps, gap), gaps)
    for name in {*decided(first)} - scored:
        gaps = torch.where(_same(first[name], second[name]), gaps, math.inf)
    return gaps


def _alternatives(kind: str, first: Decision, second: Decision) -> Iterator[tuple[set[str], Decision, Decision]]:
    """Names of outputs, and what `score` takes of both: of ranked answers those of the first rank that differs."""
    if names := _RANKED.get(kind, ()):
        yield {*names}, *_first_rank(names, first, second)
    elif kind in _TAGGED:
        yield {"tags"}, {"tags": first["tags"]}, {"tags": second["tags"]}
        if "paths" in first:
            mine, theirs = _first_rank(("paths",), first, second)
            yield {"paths"}, {"tags": mine["paths"][:, 0]}, {"tags": theirs["paths"][:, 0]}
    elif kind in first:
        yield {kind}, {kind: first[kind]}, {kind: second[kind]}


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
