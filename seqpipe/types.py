"""Types of options: bounds that many options share, and markers for how seqpipe reads an option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

SIZE = "size"  # marks a decode option that is the length of an input vector of the graph, so that it stays dynamic
CHECKPOINT = "checkpoint"  # marks an option that is a folder if there is one of that name, else a name on the hub
FOLDER = "folder"  # marks an option that is a folder, not a file
TOKENS = "tokens"  # marks a decode option that is ids of target tokens, (1 or B, n) int64
TEXTS = "texts"  # marks a decode option that is texts which end generation; ids of their pieces, (1 or B, n) int64
AUTOMATON = "automaton"  # marks a decode option that is texts which are never generated; arcs, (1 or B, n, 3) int64
TRIE = "trie"  # marks a decode option that is the only texts which are generated; arcs, (1 or B, n, 3) int64
UNIFORM = "uniform"  # marks a decode option that is random numbers from 0 to below 1, (B, beams, max_length)

Fraction = Annotated[float, Field(ge=0, lt=1)]  # a momentum, a decay, a share of the steps
Probability = Fraction  # of dropout and masking, below 1: at 1 nothing would be left
Size = Annotated[int, Field(ge=1, le=100_000), SIZE]  # a count from 1 to 100,000, which stays dynamic in a graph
if TYPE_CHECKING:
    Automaton = Any
    Tokens = Any  # a tensor or None; readers of signatures have no PyTorch
    Texts = Any
    Trie = Any
    Uniform = Any
else:
    Automaton = Annotated[None, AUTOMATON]  # a decode option: forbidden texts, as arcs of an automaton over pieces
    Tokens = Annotated[None, TOKENS]  # a decode option: ids of target tokens, (1 or B, n) int64
    Texts = Annotated[None, TEXTS]  # a decode option: texts that end generation, as ids of pieces that contain them
    Trie = Annotated[None, TRIE]  # a decode option: allowed texts, as arcs of a trie over pieces
    Uniform = Annotated[None, UNIFORM]  # a decode option: random numbers of a seed, (B, beams, max_length)


@dataclass(frozen=True)
class Means:
    """Metadata of an Annotated type: its description for people."""

    words: str


@dataclass(frozen=True, init=False)
class TryWith:
    """Metadata of a decode option that needs others to have an effect: values for a trial that shows its effect.

    The comparison at export changes each option and expects another decision. `Annotated[float, TryWith(beams=3)]`
    sets `beams` too. Several `TryWith` are alternatives; one that names an option which the head lacks is ignored. The
    option's own name among the values sets the value at which it is tried.
    """

    values: Mapping[str, int | float | bool]

    def __init__(self, **values: int | float | bool):
        object.__setattr__(self, "values", values)


Checkpoint = Annotated[
    str | Path, Means("a folder, or a name on the hub such as org/name or org/name@revision"), CHECKPOINT
]  # a folder of a checkpoint of `transformers`, or its name on the hub
Folder = Annotated[Path | None, Means("a folder or null"), FOLDER]  # a folder of a run, or null
