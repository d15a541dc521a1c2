"""Statistics of a table's columns, gathered from every row."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from seqpipe.commands.init.scripts import has_unspaced

MANY = 5_000  # distinct values; no more of them are counted
SEVERAL = 20  # different whole numbers; no more may be classes, and so may FEW with a fraction
FEW = 5
CELLS = 40_000  # of each column are looked at one by one, evenly spread over the table
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
NOTICE = re.compile(r"https?://|www\.|\bCC[- ]?(BY|0)\b|Attribution:|[Ll]icen[cs]e|[Cc]opyright|©")
_KEY = re.compile(r"[A-Za-z]*[-_]?\d+|[0-9a-fA-F-]{16,}|[\w./-]+\.\w{2,4}")
_DATE = re.compile(r"\d+[-/.]\d+[-/.]\d+([ T][\d:.]+Z?)?|([A-Z][a-z]{2} ){2}\d+ \d+:.*")
_ENDS = (".", "!", "?", "。", "！", "？")


@dataclass
class Column:
    """What the cells of one column are like.

    Attributes:
        first: The cell of the first row; it is not among the others.
        cells: Number of cells below the first.
        values: How often each value occurs, exact while there are at most MANY.
        many: Whether there are more than MANY values.
        sample: Cells from all over the table.
        characters, blanks: Number of characters, and of spaces among them.
        empty: Number of cells without a character.
        is_ascii: Whether all characters are ASCII.
        is_numeric: Whether every cell is a number.
        counts: Whether the cells count the rows.
        low, high: The smallest and greatest number of a numeric column.
    """

    first: str
    cells: int = 0
    values: Counter[str] = field(default_factory=Counter)
    many: bool = False
    sample: list[str] = field(default_factory=list)
    characters: int = 0
    blanks: int = 0
    empty: int = 0
    is_ascii: bool = True
    is_numeric: bool = True
    counts: bool = True
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, cells: Sequence[str], every: int) -> None:
        """Take account of further cells; every `every`th goes into the sample."""
        joined = "".join(cells)
        self.characters += len(joined)
        self.blanks += joined.count(" ")
        self.is_ascii = self.is_ascii and joined.isascii()
        self.empty += len(cells) - sum(map(bool, map(str.strip, cells)))
        self.sample.extend(cells[::every])
        if not self.many:
            self.values.update(cells)
            self.many = len(self.values) > MANY
        self.is_numeric = self.is_numeric and all(map(NUMBER.fullmatch, cells))
        if self.is_numeric:
            self._add_numbers([float(cell) for cell in cells])
        self.cells += len(cells)

    def add_first(self) -> None:
        """Take account of the first cell too: it names no column."""
        counts = self.counts and bool(NUMBER.fullmatch(self.first)) and float(self.first) == self.low - 1
        values = Counter([self.first])
        values.update(self.values)
        self.add([self.first], 1)
        self.values, self.counts = values, counts

    def _add_numbers(self, numbers: Sequence[float]) -> None:
        if self.counts and self.cells:
            self.counts = numbers[0] == self.high + 1
        steps = itertools.pairwise(numbers)
        self.counts = self.counts and all(after == before + 1 for before, after in steps)
        self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)

    def share(self, matches: Callable[[str], object]) -> float:
        """Return the share of the cells of the sample that match."""
        return sum(bool(matches(cell)) for cell in self.sample) / max(1, len(self.sample))

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
    def is_spaced(self) -> bool:
        """Whether the cells are texts, by blanks or letters that are not ASCII."""
        return self.blanks > 0 or not self.is_ascii

    @property
    def is_unspaced(self) -> bool:
        """Whether most cells are written without spaces, as in Chinese, Japanese and Thai."""
        return self.share(has_unspaced) > 0.5

    @property
    def is_notice(self) -> bool:
        """Whether the cells are licences, attributions or addresses."""
        return self.share(NOTICE.search) > 0.5

    @property
    def is_key(self) -> bool:
        """Whether the cells are names of rows: identifiers, file names or row numbers."""
        if self.is_numeric and self.counts and self.cells > 1:
            return True
        if self.is_numeric:
            return self.distinct > 0.95 and not self.has_fraction
        return self.distinct > 0.5 and not self.is_repeated and self.share(_KEY.fullmatch) > 0.5

    @property
    def is_date(self) -> bool:
        """Whether the cells are dates."""
        return self.share(_DATE.fullmatch) > 0.5

    @property
    def has_fraction(self) -> bool:
        """Whether a number of a numeric column is no whole number."""
        return any(not float(cell).is_integer() for cell in self.sample)

    @property
    def is_measured(self) -> bool:
        """Whether the cells are measured numbers, and no classes: many, or several with a fraction."""
        return self.is_numeric and (self.many or len(self.values) > (FEW if self.has_fraction else SEVERAL))

    @property
    def is_text(self) -> bool:
        """Whether most cells are different texts."""
        few = self.empty > self.cells / 2 or self.distinct <= 0.2
        return not (few or self.is_numeric or self.is_repeated)

    @property
    def is_repeated(self) -> bool:
        """Whether few distinct values repeat, as labels do; names of labels are short."""
        values = [value for value in self.values if value.strip()]
        if self.many or self.empty > self.cells / 10 or not 1 < len(values) <= max(2, self.cells / 2):
            return False
        if sum(value.rstrip().endswith(_ENDS) for value in values) > len(values) / 2:
            return False
        words = sum(value.count(" ") + 1 for value in values) / len(values)
        return words <= 3 or len(values) <= max(2, self.cells / 10)


def profile(rows: Iterable[Sequence[Sequence[str]]], first: Sequence[str], every: int) -> list[Column]:
    """Return the columns of a table whose rows come in blocks."""
    columns = [Column(cell) for cell in first]
    for block in rows:
        for column, cells in zip(columns, zip(*block, strict=True), strict=True):
            column.add(cells, every)
    return columns
