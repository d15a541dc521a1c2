"""The cache of incremental decoding: which outputs of one run of a graph are which inputs of the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

PAST_BATCH, PAST_LENGTH, PAST_STATE = "past_batch_size", "past_length", "past_state"  # axes of the inputs


@dataclass(frozen=True)
class CacheEntry:
    """One tensor of the cache: (B, C) token ids, or (B, C, …) numbers of an encoder.

    Args:
        input: The graph's input; without it nothing was read before, C = 0.
        output: The graph's output that the next run takes as this input.
        slot: The shape behind (B, C); () of token ids.
        grows: Whether C counts the tokens that were read; else C is 1, for all of them.
    """

    input: str
    output: str
    slot: tuple[int, ...] = ()
    grows: bool = True

    @property
    def dtype(self) -> str:
        return "float32" if self.slot else "int64"

    @property
    def axes(self) -> tuple[str | int, ...]:
        return (PAST_BATCH, PAST_LENGTH if self.grows else PAST_STATE, *self.slot)

    def zeros(self, rows: int, slots: int) -> np.ndarray:
        """The input with so many rows and slots."""
        return np.zeros((rows, slots, *self.slot), self.dtype)

    def manifest(self) -> dict[str, Any]:
        return {
            "input": self.input,
            "output": self.output,
            "axes": list(self.axes),
            "dtype": self.dtype,
            "grows": self.grows,
        }


def cache_from(manifest: Sequence[Mapping[str, Any]]) -> tuple[CacheEntry, ...]:
    """The cache that a bundle states; KeyError, TypeError or ValueError for what is none."""
    entries = []
    for stated in manifest:
        slot = tuple(stated["axes"][2:])
        entry = CacheEntry(str(stated["input"]), str(stated["output"]), slot, stated["grows"] is True)
        if entry.manifest() != {key: stated[key] for key in entry.manifest()}:
            raise ValueError(f"cache: {stated!r}")
        entries.append(entry)
    return tuple(entries)


def next_inputs(cache: Iterable[CacheEntry], outputs: Mapping[str, T]) -> dict[str, T]:
    """The cache inputs of the next run, of the outputs of one."""
    return {entry.input: outputs[entry.output] for entry in cache}
