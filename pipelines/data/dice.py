"""A seed to the same picks on every machine."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Draws made of `Random.random()` alone: Python promises its sequence across versions, but not that of `choice`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        """An integer of 0 .. bound - 1."""
        return int(self._random() * bound)

    def between(self, bound: float) -> float:
        """A number of at least -bound, below bound."""
        return bound * (2 * self._random() - 1)

    def chance(self, share: float) -> bool:
        """True in `share` of the calls."""
        return self._random() < share

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, all equally likely."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in a drawn order."""
        keys = [self._random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def distinct(sizes: Mapping[str, int], make: Callable[[Dice], str], seed: int) -> dict[str, list[str]]:
    """So many texts for each file; none stands twice."""
    dice, seen = Dice(seed), set[str]()
    found: dict[str, list[str]] = {name: [] for name in sizes}
    for name, size in sizes.items():
        while len(found[name]) < size:
            made = make(dice)
            if made not in seen:
                seen.add(made)
                found[name].append(made)
    return found


class Combinations:
    """Draws pairs of words of two lists: of the three quarters that are to be learned from, or of those held out."""

    def __init__(self, dice: Dice, held_out: bool) -> None:
        self.dice, self.held_out = dice, held_out

    def pair(self, first: Sequence[str], second: Sequence[str], every: Sequence[str] = ()) -> tuple[str, str]:
        """A word of each list; `every`: the whole list that the first is a part of."""
        every = every or first
        while True:
            word, other = self.dice.pick(first), self.dice.pick(second)
            if ((every.index(word) + second.index(other)) % 4 == 0) == self.held_out:
                return word, other
