"""Tables of cells: their separator and the names of their columns."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from seqpipe.errors import DataError
from seqpipe.files import open_file
from seqpipe.init.columns import KEYS, LABELS, NUMBER, SCORES, SECOND, SOURCES, TARGETS, TEXTS, Column
from seqpipe.init.roles import ColumnTask, find_roles
from seqpipe.init.summary import DataSummary
from seqpipe.init.tags import find_tagging

SIGNS = {",": "csv", "\t": "tsv", ";": "csv", "|": "csv"}
BLOCK = 10_000  # rows that are looked at together
CELLS = 40_000  # of each column are looked at one by one, evenly spread over the table
LONGEST_CELL = 10_000_000
UNEVEN = 0.1  # of the rows may have other columns, at most
_SIGN_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_KNOWN = LABELS | SCORES | SOURCES | TARGETS | SECOND | KEYS | TEXTS
_LANGUAGES = {"en", "de", "fr", "es", "it", "pt", "nl", "ru", "zh", "ja", "ko", "ar", "tr", "pl", "english", "german"}
_BROKEN = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, by surrogateescape
_NAME = re.compile(r"[A-Za-z_][\w .-]{0,39}")
_NAME_ALONE = re.compile(r"[A-Za-z_][\w-]*")


def summarise_table(
    data: Path, lines: Sequence[str], task: ColumnTask | None, target: str | None = None, texts: Sequence[str] = ()
) -> DataSummary | None:
    """Summarise a table by all of its rows; None if the file is no table.

    `task`, `target` and `texts` are what `--task`, `--target` and `--text` ask for.

    Raises:
        DataError: if it is a table from which nothing can be learned without a question, or a row has other columns.
    """
    # The separator that the name promises is tried first, then that which the first line has most of.
    ending = "tsv" if ".tsv" in data.suffixes else "csv"
    for sign in sorted(SIGNS, key=lambda sign: (SIGNS[sign] != ending, -lines[0].count(sign))):
        table = _Table(data, lines, sign)
        if not table.is_table():
            continue
        columns = table.columns()
        # Tags such as O and B-city: a file of words without empty lines.
        taggings = [find_tagging(column.values) for column in columns[1:]]
        if any(tagging and tagging.fits and tagging.tag_format and tagging.entities for tagging in taggings):
            if sign == "\t":
                return None
            fix = "write each word, a tab and its tag on a line, and an empty line after each sentence"
            raise DataError(f"{data}: a table with a word and its tag in each row; {fix}")
        is_surely_a_table = sign == "\t" or ".csv" in data.suffixes
        named = has_names(columns)
        for column in columns:
            if named:
                column.name = column.short = column.first
            else:
                column.add_first()
        if not _has_words(columns, is_surely_a_table):
            continue
        listed = [column.first for column in columns if column.first.strip()]
        names = f"named {', '.join(listed)}" if named else "without names"
        nameless = f", and {len(columns) - len(listed)} without a name" if named and len(listed) < len(columns) else ""
        saw = f"{_SIGN_NAMES[sign]}-separated, {len(listed) if nameless else len(columns)} columns {names}{nameless}"
        roles = find_roles(columns, task, f"{data}: {saw}", is_surely_a_table, target, texts)
        if roles:
            options: dict[str, Any] = {"delimiter": sign} if sign in ";|" else {}
            if table.quoted and sign == "\t":
                options["quote"] = '"'
            summary = DataSummary(SIGNS[sign], options, saw=saw)
            if table.uneven:
                summary.bad_rows, summary.left_out = "skip", [str(table.uneven_row())]
                count = "1 row has" if table.uneven == 1 else f"{table.uneven:,} rows have"
                fix = "`bad_rows: skip` leaves them out"
                summary.doubt(f"{count} other columns than the rest, and {fix}; the first: {table.uneven_row()}")
            return roles.summarise(summary, data)
    return None


class _Table:
    """A file, read as a table with this separator.

    Attributes:
        quoted: Whether quotes around cells are no part of the text.
        width: Number of columns of most rows.
        uneven: Number of rows that have another.
    """

    def __init__(self, data: Path, lines: Sequence[str], sign: str):
        self.data, self.lines, self.sign, self.width, self.uneven = data, lines, sign, 0, 0
        self.quoted = sign != "\t"
        if sign == "\t":
            cells = [cell for line in lines for cell in line.split("\t") if '"' in cell]
            self.quoted = bool(cells) and all(
                len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")
                for cell in cells
            )

    def is_table(self) -> bool:
        """Return whether the first lines are rows of one width, and set it."""
        try:
            rows = list(self._reader([line + "\n" for line in self.lines]))
        except csv.Error:
            return False
        while rows and not rows[-1]:
            rows.pop()
        full = [row for row in rows if row]
        if len(full) > 2:
            full.pop()  # it may be cut within a quoted cell
        body = full[1:] or full  # names of the columns may be too many or too few
        self.width, most = Counter(map(len, body)).most_common(1)[0] if full else (0, 0)
        is_named_so = f".{SIGNS[self.sign]}" in self.data.suffixes
        least = 1 - UNEVEN if is_named_so or self.sign == "\t" else 1
        if self.width < 2 or len(full) < 2 or most < least * len(body):
            return False
        if self.sign == "\t" and len(full) < len(rows) - 1:
            # Empty lines part sentences of a word and its tag a line, unless a column holds sentences.
            cells = zip(*(row for row in full if len(row) == self.width), strict=True)
            return any(sum(" " in cell for cell in column) > len(column) / 2 for column in cells)
        if self.sign == "," and not is_named_so:  # a blank follows most commas of a text
            return sum(any(cell.startswith(" ") for cell in row[1:]) for row in full) <= len(full) / 2
        return True

    def columns(self) -> list[Column]:
        """Return the columns, by all rows of the file.

        Raises:
            DataError: if a row has another width, or is not UTF-8.
        """
        size = self.data.stat().st_size * (4 if self.data.suffix == ".gz" else 1)
        every = 1 + size * len(self.lines) // max(1, sum(map(len, self.lines))) // CELLS
        with open_file(self.data) as raw, io.TextIOWrapper(raw, "utf-8-sig", "strict", newline="") as file:
            rows = self._reader(file)
            try:
                filled = filter(None, rows)
                columns = [Column(cell, number=number) for number, cell in enumerate(next(filled), 1)]
                while block := list(itertools.islice(filled, BLOCK)):
                    if len(columns) != self.width:
                        raise self.uneven_row()
                    even = [row for row in block if len(row) == self.width]
                    self.uneven += len(block) - len(even)
                    if self.uneven > UNEVEN * (columns[0].cells + len(block)) or not even:
                        raise self.uneven_row()
                    for column, cells in zip(columns, zip(*even, strict=True), strict=True):
                        column.add(cells, every)
            except UnicodeDecodeError as error:
                fix = "convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
                with open_file(self.data) as raw:
                    text = enumerate(io.TextIOWrapper(raw, "utf-8", "surrogateescape", newline="\n"), 1)
                    number = next(number for number, line in text if not line.isascii() and _BROKEN.search(line))
                raise DataError(f"{self.data}:{number}: this line is not UTF-8; {fix}") from error
            except csv.Error as error:
                line = rows.line_num  # type: ignore[attr-defined]
                raise DataError(f"{self.data}:{line}: this row cannot be read ({error})") from error
        return columns

    def _reader(self, lines: Sequence[str] | io.TextIOBase) -> Iterator[list[str]]:
        csv.field_size_limit(LONGEST_CELL)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.sign, quoting=quoting)

    def uneven_row(self) -> DataError:
        """Return the error for the first row that has other columns than most, with the line in which it begins."""
        with open_file(self.data) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
            rows = self._reader(file)
            line = 1
            for row in rows:
                if row and len(row) != self.width:
                    break
                line = rows.line_num + 1  # type: ignore[attr-defined]
        sign = _SIGN_NAMES[self.sign]
        if line == 1:
            problem = f"the first line has {len(row)} cells, but the rows have {self.width}"
            return DataError(f"{self.data}:1: {problem}; name every column in it, or leave it out")
        fix = f"quote a text that holds a {sign}" if self.quoted else f"write no {sign} within a text"
        cells = "one cell" if len(row) == 1 else f"{len(row)} cells"
        return DataError(
            f"{self.data}:{line}: {cells} in this row, but {self.width} in the others; {fix}, or remove the row"
        )


def has_names(columns: Sequence[Column]) -> bool:
    """Return whether the first row names the columns: its cells are no values of theirs, and like names."""
    # Spreadsheets write empty names for empty columns, and pandas for the column of the row numbers.
    columns = [column for column in columns if column.first.strip() or not (column.is_mostly_empty or column.is_key)]
    head = [column.first.strip().lower() for column in columns]
    if not head or len({*head}) < len(head) or any(NUMBER.fullmatch(name) for name in head):
        return False
    known = sum(name in _KNOWN for name in head)
    if known == len(head) or {*head} <= _LANGUAGES:
        return True
    if any(column.first in column.values for column in columns if column.first.strip()):
        return False
    if any(column.is_numeric for column in columns):
        return all(len(name.split()) <= 5 for name in head)
    if known:
        return all(len(name.split()) <= 3 for name in head)
    # Names stand out where the cells of a column are none.
    are_like_names = all(_NAME.fullmatch(name) and " " not in name for name in head)
    return are_like_names and any(column.share(_NAME_ALONE.fullmatch) < 0.1 for column in columns)


def _has_words(columns: Sequence[Column], is_surely_a_table: bool) -> bool:
    """Return whether a column holds texts: sentences, or different words that are a row each."""
    if any(column.blanks > column.cells / 5 for column in columns):
        return True
    if any(column.is_unspaced and column.characters > 2 * column.cells for column in columns):
        return True
    different = any(column.distinct > 0.9 and not NUMBER.fullmatch(column.first) for column in columns)
    return is_surely_a_table and different and all(column.name is not None or column.cells > 1 for column in columns)
