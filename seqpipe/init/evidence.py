"""Frames of a data file, and the facts that speak for a reading of it, in bits: what each would cost by chance."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seqpipe.init.fields import Field, Kind
from seqpipe.init.summary import DataSummary, LabelKind, Task

CAP = 40.0  # bits of a fact, at most: a constraint is one fact, however many rows repeat it
PAIR_CAP = 20.0  # bits of the similarity of two fields, at most
COMPARED_ROWS = 400  # of two fields, at most
_WORD = re.compile(r"\w+")


class Fact(NamedTuple):
    """A property of some fields; readings that share a fact have it equal."""

    property: str
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.property} ({', '.join(self.fields)})" if self.fields else self.property


Facts = dict[Fact, float]


def fact(name: str, *fields: Field) -> Fact:
    """Return a property of these fields."""
    return Fact(name, tuple(field.name for field in fields))


@dataclass(frozen=True)
class Request:
    """The values of `--task`, `--target`, `--text` and `--header`."""

    task: Task | None = None
    target: str | None = None
    texts: tuple[str, ...] = ()
    header: bool | None = None

    @property
    def is_open(self) -> bool:
        """True if none of them chooses among readings."""
        return not (self.task or self.target or self.texts)

    def names(self, field: Field) -> bool:
        """Return whether a field is the one to learn."""
        return self.target is not None and self.target in (field.name if field.has_name else None, field.option)


@dataclass
class Frame:
    """One way to cut a file into records with fields."""

    use: str  # reader
    fields: list[Field]
    facts: Facts
    options: dict[str, Any] = field(default_factory=dict)  # of the reader
    header: bool = True  # whether the fields have names
    header_bits: float | None = None  # by which the first row has names, rather than values
    groups: list[int] | None = None  # sizes of the sentences, of words in columns
    uneven: int = 0  # records with another number of cells
    first_width: int = 0  # cells of the first row of a table, if it has others than the rest
    saw: str = ""  # for people

    def get(self, *kinds: Kind) -> list[Field]:
        """Return the fields of these kinds."""
        return [field for field in self.fields if field.kind in kinds]

    @property
    def size(self) -> int:
        return max((len(field.values) for field in self.fields), default=0)

    @property
    def is_json(self) -> bool:
        return self.use in ("json", "jsonl", "parquet", "datasets")

    @property
    def jq_items(self) -> str:
        """The filter of jq for the records."""
        return f".{self.options['list']}[]" if "list" in self.options else ".[]" if self.use == "json" else "."

    @property
    def noun(self) -> str:
        return "key" if self.is_json else "column"


@dataclass
class Reading:
    """A reading of a file: the roles of its fields, the facts for it, and how its summary is made."""

    name: str
    learns: LabelKind | None  # None: nothing can be learned, and `fix` says what to do
    roles: dict[str, str] = field(default_factory=dict)  # of fields by their names
    facts: Facts = field(default_factory=dict)
    frame: Frame | None = None
    fix: str = ""
    line: int = 0  # of the fault, if the file has one
    doubt: str = ""  # a reason to ask whether the reading is meant
    unused: dict[str, str] = field(default_factory=dict)  # fields that need no use, and why
    options: dict[str, object] = field(default_factory=dict)  # of the reader
    complete: Callable[[Reading], DataSummary] | None = None  # reads the whole file

    @property
    def bits(self) -> float:
        return sum(self.facts.values())

    @property
    def targets(self) -> frozenset[tuple[str, str]]:
        """The fields that are learned, with their roles."""
        learned = ("label", "labels", "score", "target", "tags", "spans", "answers")
        return frozenset((name, role) for name, role in self.roles.items() if role in learned)

    def of(self, *roles: str) -> list[Field]:
        """Return the fields with one of these roles."""
        fields = self.frame.fields if self.frame else []
        return [field for role in roles for field in fields if self.roles.get(field.name) == role]


def repeats(size: int, different: int) -> float:
    """Return the bits of cells that have few different values."""
    return min(CAP, max(0.0, (size - different) * math.log2(size / different))) if different else 0.0


def each(rows: float, bits: float, failing: float = 0) -> float:
    """Return the bits of rows that pass a test; each costs so many bits by chance, and naming one that fails more."""
    name_bits = math.log2(rows) + 6 if rows > 0 else 0.0
    return min(CAP, max(0.0, rows * bits - failing * name_bits))


def equal_numbers(mean: float) -> float:
    """Return the bits of a row with so many signs as the others, by chance those of a Poisson distribution."""
    return -(mean * math.log2(mean) - mean / math.log(2) - math.lgamma(mean + 1) / math.log(2))


def similar_lengths(first: Field, second: Field) -> float:
    """Return the bits of the correlation of the lengths of two fields: n/2 · -log2(1 - r²)."""
    pairs = [(len(a), len(b)) for a, b in zip(first.cells, second.cells, strict=True) if a.strip() and b.strip()]
    pairs = pairs[:COMPARED_ROWS]
    if len(pairs) < 5:
        return 0.0
    lengths = [[float(size) for size in sizes] for sizes in zip(*pairs, strict=True)]
    if any(min(sizes) == max(sizes) for sizes in lengths):
        return 0.0
    r = statistics.correlation(*lengths)
    return min(PAIR_CAP, -0.5 * len(pairs) * math.log2(max(1e-9, 1 - r * r))) if r > 0 else 0.0


def shared_words(first: Field, second: Field) -> float:
    """Return the bits by which words of a field recur in the other one of their row, more than in that of the next."""
    pairs = zip(first.cells[:COMPARED_ROWS], second.cells[:COMPARED_ROWS], strict=True)
    words = [({*_WORD.findall(a.lower())}, {*_WORD.findall(b.lower())}) for a, b in pairs]
    same = sum(len(a & b) for a, b in words)
    next_row = sum(len(a & b) for (a, _), (_, b) in zip(words, [*words[1:], *words[:1]], strict=True))
    if same <= next_row:
        return 0.0
    return min(PAIR_CAP, (same - next_row) * math.log2((same + 1) / (next_row + 1)) / 2)


def pair_facts(first: Field, second: Field) -> Facts:
    """Return the facts of two texts of a row that belong together; the readings of a pair share them."""
    return {
        Fact("lengths go together"): similar_lengths(first, second),
        Fact("words recur"): shared_words(first, second),
    }


def strongest(facts: Mapping[Fact, float], others: Mapping[Fact, float]) -> Fact | None:
    """Return the fact of most bits that the others lack."""
    own = {fact: bits for fact, bits in facts.items() if bits > others.get(fact, 0.0)}
    return max(own, key=lambda fact: own[fact] - others.get(fact, 0.0), default=None)
