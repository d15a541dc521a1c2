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
from seqpipe.init.scripts import has_unspaced
from seqpipe.init.summary import DataSummary, count, reader_of, tag_sentences
from seqpipe.init.tags import choose_scheme, find_tagging

SIGNS = {",": "csv", "\t": "tsv", ";": "csv", "|": "csv"}
ROWS_PER_BLOCK = 10_000  # rows that are added to the columns at once
EXAMINED_CELLS = 40_000  # of each column that are examined one by one, evenly spread over the table
LONGEST_CELL = 10_000_000
UNEVEN = 0.1  # of the rows have another number of cells, at most
_SIGN_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_LANGUAGES = "en de fr es it pt nl ru zh ja ko ar tr pl english german"
_KNOWN = LABELS | SCORES | SOURCES | TARGETS | SECOND | KEYS | TEXTS | {*_LANGUAGES.split()}
_QUOTED = re.compile(r'"([^"]|"")*"')
_CODE = re.compile(r"(\S+ )?\S*\d\S*( \S+)?")  # a number with its unit, a date with its time, an identifier
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")

# Odds that the first row of a table is a record, against names of the columns.
COMPARED_CELLS, RARE_SHARE = 50, 0.1  # cells compared with the first of a column; the share of them that is rare
NAME_ODDS, VALUE_ODDS, NO_TAB_ODDS = 0.01, 30.0, 0.3  # factors: a cell like a name, or not; separators other than tabs
RECORD_ODDS, CERTAIN_ODDS = 0.025, 0.25  # from which odds on the first row is a record, and is one without a doubt


def summarise_table(
    data: Path, lines: list[str], task: ColumnTask | None, target: str | None, texts: Sequence[str], header: bool | None
) -> DataSummary | None:
    """Summarise a table by all of its rows; None if the file is not a table.

    DataError if nothing can be learned from the table, or a row cannot be read. The other arguments are the values of
    `--task`, `--target`, `--text` and `--header`.
    """
    # The separator of the file's extension is tried first, then the most frequent one of the first line.
    ending = "tsv" if ".tsv" in data.suffixes else "csv"
    for sign in sorted(SIGNS, key=lambda sign: (SIGNS[sign] != ending, -lines[0].count(sign))):
        table = _Table(data, lines, sign)
        if not table.is_table():
            continue
        columns = table.columns()
        # Tags such as O and B-city: a file of words, in which empty lines or a column divide sentences.
        taggings = [find_tagging(column.values) for column in columns]
        fitting = [bool(i and t and t.fits and t.tag_format and t.entities) for i, t in enumerate(taggings)]
        if any(fitting):
            if sign == "\t":
                return None
            return _summarise_words(data, sign, columns, fitting.index(True))
        is_surely_table = sign == "\t" or ".csv" in data.suffixes
        requested = {target, *texts} & {column.first for column in columns if not column.first.isdigit()}
        odds = 0.0 if requested else _first_row_odds(columns) * (1 if sign == "\t" else NO_TAB_ODDS)
        is_named = odds < RECORD_ODDS if header is None else header
        for column in columns:
            if is_named:
                column.name = column.short = column.first
            else:
                column.add_first()
        if not _has_words(columns, is_surely_table):
            continue
        named = [column for column in columns if column.name is None or column.name.strip()]
        saw = f"{_SIGN_NAMES[sign]}-separated, {len(columns)} columns without names"
        if is_named:
            names = ", ".join(column.first for column in named)
            saw = f"{_SIGN_NAMES[sign]}-separated, {len(named)} columns named {names}"
            if len(named) < len(columns):
                saw += f", and {len(columns) - len(named)} without a name"
        roles = find_roles(named, task, f"{data}: {saw}", is_surely_table, target, texts)
        if roles:
            options: dict[str, Any] = {"delimiter": sign} if sign in ";|" else {}
            if table.quoted and sign == "\t":
                options["quote"] = '"'
            summary = DataSummary(SIGNS[sign], options, saw=saw)
            if table.uneven:
                error = table.uneven_row()
                summary.bad_rows, summary.left_out = "skip", [str(error)]
                rows = "1 row has" if table.uneven == 1 else f"{table.uneven:,} rows have"
                summary.doubt(f"{rows} other columns than the rest; `bad_rows: skip` omits them; the first: {error}")
            if header is None and NAME_ODDS < odds < CERTAIN_ODDS:
                reading, other, answer = ("names", "a record", "no") if is_named else ("a record", "names", "yes")
                summary.doubt(f"the first row is read as {reading}. To read it as {other}", "--header", answer)
            return roles.summarise(summary, data)
    return None


def _summarise_words(data: Path, sign: str, columns: Sequence[Column], tags: int) -> DataSummary:
    """Summarise a table of a word and its tag in each row; DataError if no column says where a sentence begins."""
    others = [column for column in columns if column is not columns[tags] and column.first.strip()]
    divides = [column for column in others if column.is_mostly_empty or "sent" in column.first.lower()]
    candidates = [column for column in others if column not in divides]
    words = max(candidates, key=lambda column: column.distinct, default=None)
    if not (words and divides) or columns[tags].first in columns[tags].values:
        fix = "add a column `sentence` with the number of each sentence, or write a word, a tab and a tag on a line"
        raise DataError(f"{data}: a table with a word and its tag in each row, without a column of sentences; {fix}")
    options = {"delimiter": sign} if sign in ";|" else {}
    options |= {"words": words.first, "tags": columns[tags].first, "sentence": divides[0].first}
    summary = DataSummary(SIGNS[sign], options, saw="a table with a word and its tag in each row")
    choose_scheme(summary, tag_sentences(summary, data, most=10_000), columns[tags].values)
    summary.why = f"column {words.first!r} has the words, {columns[tags].first!r} the tags"
    return count(summary, data)


class _Table:
    """A file, read as a table with this separator."""

    def __init__(self, data: Path, lines: Sequence[str], sign: str):
        self.data, self.lines, self.sign = data, lines, sign
        self.width = 0  # cells of most rows
        self.uneven = 0  # rows that have another number of cells
        self.quoted = sign != "\t"  # quotes around a cell do not belong to its text
        if sign == "\t":
            cells = [cell for line in lines for cell in line.split("\t") if '"' in cell]
            self.quoted = bool(cells) and all(map(_QUOTED.fullmatch, cells))

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
            full.pop()  # the last one may be cut within a quoted cell
        body = full[1:] or full  # the names of the columns may be too many or too few
        self.width, most = Counter(map(len, body)).most_common(1)[0] if full else (0, 0)
        has_extension = f".{SIGNS[self.sign]}" in self.data.suffixes
        least = 1 - UNEVEN if has_extension or self.sign == "\t" else 1
        if self.width < 2 or len(full) < 2 or most < least * len(body):
            return False
        if self.sign == "\t" and len(full) < len(rows) - 1:
            # Empty lines separate sentences of a word and its tag on each line, unless a column has sentences.
            cells = zip(*(row for row in full if len(row) == self.width), strict=True)
            return any(sum(" " in cell for cell in column) > len(column) / 2 for column in cells)
        if self.sign == "," and not has_extension:  # a blank follows most commas of a text
            return sum(any(cell.startswith(" ") for cell in row[1:]) for row in full) <= len(full) / 2
        return True

    def columns(self) -> list[Column]:
        """Return the columns, by all rows of the file; DataError if a row has another width, or is not UTF-8."""
        size = self.data.stat().st_size * (4 if self.data.suffix == ".gz" else 1)
        every = 1 + size * len(self.lines) // max(1, sum(map(len, self.lines))) // EXAMINED_CELLS
        with open_file(self.data) as raw, io.TextIOWrapper(raw, "utf-8-sig", "strict", newline="") as file:
            rows = self._reader(file)
            try:
                filled = filter(None, rows)
                columns = [Column(cell, number=number) for number, cell in enumerate(next(filled), 1)]
                while block := list(itertools.islice(filled, ROWS_PER_BLOCK)):
                    if len(columns) != self.width:
                        raise self.uneven_row()
                    even = [row for row in block if len(row) == self.width]
                    self.uneven += len(block) - len(even)
                    if self.uneven > UNEVEN * (columns[0].cells + len(block)) or not even:
                        raise self.uneven_row()
                    for column, cells in zip(columns, zip(*even, strict=True), strict=True):
                        column.add(cells, every)
            except UnicodeDecodeError:
                for _ in reader_of("text", {}).read(self.data):
                    pass  # the reader raises the error, with its line
                raise
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
        fix = f"quote a text that contains a {sign}" if self.quoted else f"write no {sign} within a text"
        cells = "one cell" if len(row) == 1 else f"{len(row)} cells"
        problem = f"{cells} in this row, but {self.width} in the others"
        return DataError(f"{self.data}:{line}: {problem}; {fix}, or remove the row")


def _first_row_odds(columns: Sequence[Column]) -> float:
    """Return the odds that the first row is a record, against the names of the columns; 0 for names that are known.

    Names differ from the cells below them: a text is longer, a code has digits, a label is in other rows too. The
    factor of a column is the share of its cells that are like the first one, which a record seldom has.
    """
    # Spreadsheets write empty names for empty columns, and pandas does for the column of the row numbers.
    columns = [column for column in columns if column.first.strip() or not (column.is_mostly_empty or column.is_key)]
    names = [column.first.strip() for column in columns]
    are_identifiers = all(map(_NAME.fullmatch, names))
    odds, length_odds = 0.0 if all(name.lower() in _KNOWN for name in names) else 1.0, 1.0
    for column, name in zip(columns, names, strict=True):
        cells, size = column.sample[:COMPARED_CELLS], _size(name)
        rare = RARE_SHARE * len(cells)
        is_known = name.lower() in _KNOWN or (are_identifiers and column.share(_NAME.fullmatch) < RARE_SHARE)
        alike = sum((_CODE.fullmatch(cell[:99]) is None) == (_CODE.fullmatch(name) is None) for cell in cells)
        if not name or column.first in column.values or (column.is_numeric and NUMBER.fullmatch(name)):
            odds *= VALUE_ODDS
        elif column.is_numeric or is_known:
            odds *= NAME_ODDS
        elif not column.many and len(column.values) <= column.cells / 2:
            odds *= _rarity([*column.values.values()].count(1), column.cells)
        elif alike < rare:
            odds *= _rarity(alike, len(cells))
        elif name[-1] in ".!。！" or sum(3 < size >= abs(_size(cell) - size) * 2 for cell in cells) > rare:
            odds *= VALUE_ODDS  # a sentence, as long as others; names may end with a question mark
        else:
            # The texts of a record are short together, so that they count once.
            length_odds = min(length_odds, _rarity(sum(_size(cell) < 2 * size for cell in cells), len(cells)))
    return odds * length_odds


def _rarity(alike: int, cells: int) -> float:
    """Return the share of the cells that are alike, at least NAME_ODDS; 1 if it is not small."""
    return max(NAME_ODDS, (alike + 0.5) / (cells + 1)) if alike < RARE_SHARE * cells else 1.0


def _size(cell: str) -> float:
    """Return the number of words, about."""
    return len(cell) / 2 if has_unspaced(cell) else len(cell.split())


def _has_words(columns: Sequence[Column], is_surely_table: bool) -> bool:
    """Return whether a column has texts: sentences, or a different word in each row."""
    for column in columns:
        if column.blanks > column.cells / 5 or (column.is_unspaced and column.characters > 2 * column.cells):
            return True
    different = any(column.distinct > 0.9 and not NUMBER.fullmatch(column.first) for column in columns)
    return is_surely_table and different and all(column.name is not None or column.cells > 1 for column in columns)
