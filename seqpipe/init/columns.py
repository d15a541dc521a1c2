"""Statistics of one field of a data file: a column of a table, or a key of JSON objects."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seqpipe.init.scripts import has_unspaced

MAX_COUNTED_VALUES = 5_000  # distinct values; no more of them are counted
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
STRUCTURE = re.compile(r"\w\s?[\[(=]\s?\w")  # a name with its value, as in food[bread] or size=4
_NOTICE = re.compile(r"https?://|www\.|\bCC[- ]?(BY|0)\b|Attribution:|[Ll]icen[cs]e|[Cc]opyright|©")
_KEY = re.compile(r"[A-Za-z]*[-_]?\d+|[0-9a-fA-F-]{16,}|[\w./-]+\.\w{2,4}")
_DATE = re.compile(r"\d+[-/.]\d+[-/.]\d+([ T][\d:.]+Z?)?|([A-Z][a-z]{2} ){2}\d+ \d+:.*")
_ENDS = (".", "!", "?", "。", "！", "？")

# Names that people give to columns and keys, in lower case.
LABELS = {"label", "labels", "intent", "class", "category", "sentiment", "topic", "target", "polarity", "标签", "类别"}
SCORES = {"score", "rating", "stars", "grade", "price", "similarity", "value"}
SOURCES = {"text", "source", "src", "input", "question", "document", "article", "body", "lemma", "文本", "内容"}
TARGETS = {"target", "tgt", "output", "answer", "response", "summary", "translation", "headline", "form", "inflected"}
SECOND = {"text_pair", "sentence2", "hypothesis", "question2", "text2", "text_b", "sentence_b", "context"}
TEXTS = {"sentence", "review", "comment", "utterance", "tweet", "message", "content", "title", "premise", "sentence1"}
KEYS = {"id", "uid", "guid", "index", "idx", "date", "time", "timestamp", "url", "user", "author", "split", "fold"}

Kind = (
    Literal["texts", "repeated texts", "few values", "numbers", "dates", "mostly empty", "other values"]
    | Literal["identifiers or row numbers", "licences or addresses", "the same value in every row"]
)


def value_kind(value: Any) -> str:
    """Return the kind of a JSON value, as error messages name it."""
    if value is None:
        return "missing"
    if isinstance(value, list):
        kinds = {value_kind(item) for item in value}
        return "empty" if not kinds else "mixed list" if len(kinds) > 1 else f"{kinds.pop()}s"
    kinds_of_types = {bool: "truth", int: "number", float: "number", str: "text", dict: "object"}
    return kinds_of_types.get(type(value), "other")


@dataclass(eq=False)
class Column:
    """Statistics of the cells of a column, or of the values of a key."""

    first: str = ""  # cell of the first row of a table, which is not among the other cells
    name: str | None = None
    short: str = ""  # name in messages: the last part of a dotted key, if no other key has it
    number: int = 0  # place in the table, from 1; 0 for a key
    noun: str = "column"  # in messages; "key" for a key
    row: str = "row"  # in messages: what has one cell; "record" for a key
    cells: int = 0
    values: Counter[str] = field(default_factory=Counter)  # counts, exact up to MANY values
    many: bool = False  # there are more than MANY values
    sample: list[str] = field(default_factory=list)  # cells from all over the table
    characters: int = 0
    blanks: int = 0
    empty: int = 0  # cells without a character
    is_ascii: bool = True
    is_numeric: bool = True
    counts: bool = True  # the cells count the rows
    low: float = float("inf")  # the smallest number of a numeric column
    high: float = float("-inf")
    value_kinds: Counter[str] = field(default_factory=Counter)  # of the JSON values
    example: Any = None  # the first value that is not an empty list
    listed: int = 0  # characters of the texts in lists
    kind: Kind = "texts"
    separator: str | None = None  # of the labels in a cell; None if each cell is one label

    def add(self, cells: Sequence[str], every: int) -> None:
        """Add cells; the sample has one of `every` cells."""
        joined = "".join(cells)
        self.characters += len(joined)
        self.blanks += joined.count(" ")
        self.is_ascii = self.is_ascii and joined.isascii()
        self.empty += len(cells) - sum(map(bool, map(str.strip, cells)))
        self.sample.extend(cells[::every])
        if not self.many:
            self.values.update(cells)
            self.many = len(self.values) > MAX_COUNTED_VALUES
        self.is_numeric = self.is_numeric and all(map(NUMBER.fullmatch, cells))
        if self.is_numeric:
            numbers = [float(cell) for cell in cells]
            previous = [self.high] if self.cells else []  # the last number, if the cells count the rows
            steps = itertools.pairwise([*previous, *numbers])
            self.counts = self.counts and all(after == before + 1 for before, after in steps)
            self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)
        self.cells += len(cells)

    def add_first(self) -> None:
        """Add the first cell: it is a value, not the name of the column."""
        # Rows are counted from the first on; the order of the values decides between labels of one frequency.
        counts = self.counts and bool(NUMBER.fullmatch(self.first)) and float(self.first) == self.low - 1
        values = Counter([self.first])
        values.update(self.values)
        self.add([self.first], 1)
        self.values, self.counts = values, counts

    def add_values(self, values: Sequence[Any], every: int) -> None:
        """Add JSON values; a missing one is None."""
        kinds = [value_kind(value) for value in values]
        self.value_kinds.update(kinds)
        if self.example is None or self.example == []:
            self.example = next((value for value in values if value not in (None, [])), self.example)
        self.listed += sum(len("".join(value)) for value, kind in zip(values, kinds, strict=True) if kind == "texts")
        if self.is_scalar:
            cells = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
            self.add(["" if kind == "missing" else cell for cell, kind in zip(cells, kinds, strict=True)], every)

    def share(self, matches: Callable[[str], object]) -> float:
        """Return the share of the cells of the sample that match."""
        return sum(bool(matches(cell)) for cell in self.sample) / max(1, len(self.sample))

    @property
    def key(self) -> str:
        """The name in lower case, to compare with the usual ones."""
        return self.short.strip().lower()

    @property
    def title(self) -> str:
        """The column or key, for messages."""
        return f"{self.noun} {self.number if self.name is None else repr(self.short)}"

    @property
    def option(self) -> str:
        """The column or key, for options of commands."""
        return str(self.number) if self.name is None else self.name

    @property
    def distinct(self) -> float:
        """The share of distinct values among the cells."""
        if self.many:
            return len({*self.sample}) / len(self.sample)
        return len(self.values) / max(1, self.cells)

    @property
    def words(self) -> int:
        """The number of words, about."""
        return self.blanks + self.cells - self.empty

    @property
    def is_scalar(self) -> bool:
        """True if all values are texts, numbers or truth values, or missing."""
        return self.value_kinds.keys() <= {"text", "number", "truth", "missing"}

    def is_list_of(self, kind: str) -> bool:
        """True if all values are lists of this kind, or empty."""
        return self.value_kinds[kind] > 0 and self.value_kinds.keys() <= {kind, "empty", "missing"}

    @property
    def is_spaced(self) -> bool:
        """True if a cell has a blank, or a letter that is not ASCII."""
        return self.blanks > 0 or not self.is_ascii

    @property
    def is_unspaced(self) -> bool:
        """True if most cells are written without spaces, as in Chinese, Japanese and Thai."""
        return self.share(has_unspaced) > 0.5

    @property
    def is_key(self) -> bool:
        """True if the cells are names of rows: identifiers, file names or row numbers."""
        if self.key in KEYS or self.key.endswith(("_id", "-id", " id", ".id")):
            return True
        if self.is_numeric and self.counts and self.cells > 1:
            return True
        if self.is_numeric:
            return self.distinct > 0.95 and not self.has_fraction
        return self.distinct > 0.5 and not self.is_repeated and self.share(_KEY.fullmatch) > 0.5

    @property
    def has_fraction(self) -> bool:
        """True if a numeric column has a number with a fraction."""
        return any(not float(cell).is_integer() for cell in self.sample)

    @property
    def is_measured(self) -> bool:
        """True if the cells are measured numbers, not classes: over 20 different ones, or over 5 with a fraction."""
        return self.is_numeric and (self.many or len(self.values) > (5 if self.has_fraction else 20))

    @property
    def is_text(self) -> bool:
        """True if most cells are different texts."""
        return self.distinct > 0.2 and not (self.is_mostly_empty or self.is_numeric or self.is_repeated)

    @property
    def is_repeated(self) -> bool:
        """True if few distinct values repeat, as labels do; labels are short."""
        values = [value for value in self.values if value.strip()]
        if self.many or self.empty > self.cells / 10 or not 1 < len(values) <= max(2, self.cells / 2):
            return False
        if self.is_structured or sum(value.rstrip().endswith(_ENDS) for value in values) > len(values) / 2:
            return False
        words = sum(value.count(" ") + 1 for value in values) / len(values)
        return words <= 3 or len(values) <= max(2, self.cells / 10)

    @property
    def is_repeated_text(self) -> bool:
        """True if the cells are texts of several words, some of them in many rows, as questions are."""
        if self.is_numeric or self.empty > self.cells / 10 or len(self.values) < 3:
            return False
        # Two blanks in a cell on average are more than names have.
        is_spaced = self.is_structured or self.blanks >= 2 * self.cells
        return is_spaced or (self.is_unspaced and self.characters > 8 * self.cells)

    @property
    def is_structured(self) -> bool:
        """True if most cells contain names with values, as descriptions of data do."""
        cells = self.sample[:1000]
        return sum(map(bool, map(STRUCTURE.search, cells))) > len(cells) / 2

    @property
    def is_mostly_empty(self) -> bool:
        """True if most cells have no character."""
        return self.empty > self.cells / 2

    @property
    def is_binary(self) -> bool:
        """True if the cells are 0 and 1, false and true, or no and yes."""
        indicators = {"0", "1"}, {"0.0", "1.0"}, {"false", "true"}, {"no", "yes"}
        return not self.many and {value.strip().lower() for value in self.values} in indicators

    def classify(self) -> None:
        """Set the kind of the cells, by their statistics and by the name."""
        is_score = self.is_numeric and self.key in SCORES and len(self.values) > 1
        kinds: list[tuple[Kind, bool]] = [
            ("numbers", is_score and self.is_measured),
            ("few values", is_score),
            ("the same value in every row", not self.many and len(self.values) == 1),
            ("mostly empty", self.is_mostly_empty),
            ("licences or addresses", self.share(_NOTICE.search) > 0.5),
            ("dates", self.key not in KEYS and self.share(_DATE.fullmatch) > 0.5),
            ("identifiers or row numbers", self.is_key),
            ("numbers", self.is_measured),
            ("few values", self.is_repeated),
            ("texts", self.is_text),
            ("repeated texts", self.is_repeated_text),
        ]
        self.kind = next((kind for kind, holds in kinds if holds), "other values")


def kinds_of(columns: Sequence[Column]) -> str:
    """Return the kind of each column, for messages."""
    titles = [str(column.number) if column.name is None else repr(column.short) for column in columns]
    return ", ".join(f"{title} {column.kind}" for title, column in zip(titles, columns, strict=True))
