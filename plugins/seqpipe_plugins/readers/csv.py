"""Readers of tables of text: comma-separated and tab-separated values, one row a record."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from seqpipe.plugin import LONGEST_LINE, DataError, UsageError, with_paths

from . import (
    DEFAULT_TAGS,
    RESERVED_FIELDS,
    FileFields,
    FileReader,
    Record,
    TagSpec,
    check_names,
    count_columns,
    no_column,
    number_lines,
    parse_number,
)

_UNIT = re.compile(r"[^-+.,0-9]")  # signs of amounts that are no part of the number
_NUMPY_ITEM = re.compile(r"'((?:[^'\\]|\\.)*)'|\"([^\"]*)\"")
Row = dict[str, Any]  # cells, and paths of files, by the names of their columns
_FLAGS = {**dict.fromkeys(("1", "1.0", "true", "yes"), True), **dict.fromkeys(("0", "0.0", "false", "no", ""), False)}


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options that readers of tables share.

    Args:
        text: Column of the text; null if there is none, for example with two texts.
        label: Column that becomes the field `label`; null if the columns already have the right names.
        labels: Column that becomes the field `labels`: several labels, separated by `separator`, or none.
        separator: Separator of several labels in one cell.
        indicators: Columns of 0 and 1, or false and true, one for each label; the names of those with 1 become the
            field `labels`.
        words: Column of the words, separated by blanks; it replaces `text`.
        tags: Column of a tag for each word.
        sentence: Column of a file with one word and its tag in each row: a sentence begins where its cell is neither
            empty nor equal to the one before.
        lists: Whether the cells of words, tags and labels are lists as Python or JSON writes them.
        numbers: Numeric columns.
        decimal: Decimal sign of amounts such as €1,234.50 or 12,5 %, whose other signs are left out; null: the columns
            have plain numbers.
        files: Columns that name files, such as pictures, relative to the folder of the data file.
        path: Path of a file, in which {} is the cell of the column, such as wavs/{}.wav; a number after # at its end,
            which counts the texts of a file, is left out. null: the cells are paths.
        columns: Names of all columns, in order, for a file without a header line; _ skips a column.
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    text: str | None = "text"
    label: str | None = None
    labels: str | None = None
    separator: str = "|"
    indicators: list[str] = field(default_factory=list)
    words: str | None = None
    tags: str | None = None
    sentence: str | None = None
    lists: bool = False
    numbers: list[str] = field(default_factory=list)
    decimal: Literal["point", "comma"] | None = None
    files: list[str] = field(default_factory=list)
    path: str | None = None
    columns: list[str] | None = None
    encoding: str = "utf-8"


def _items(cell: str, place: str) -> list[str]:
    """Return the items of a list that Python, JSON or numpy wrote; DataError for another cell."""
    try:
        items = ast.literal_eval(cell.strip() or "[]")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        items = None
    if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
        # Python joins strings without commas between them, as numpy writes lists: the items are read one by one.
        return [a or b for a, b in _NUMPY_ITEM.findall(cell)] if len(items) == 1 else list(items)
    raise DataError(f"{place} is not a list of strings: {cell[:40]!r}; write one such as ['a', 'b']")


class Csv(FileReader, FileFields):
    """Reads comma-separated values (RFC 4180): one record a row, one field for each named column.

    The first line names the columns, unless `columns` does. A quoted cell may contain commas, quotes and line breaks.

    Args:
        delimiter: Separator of cells: one character, or "tab".
        quote: Quote character; null: quotes have no meaning.
    """

    fields = ("text", "where")
    use = "csv"

    def __init__(
        self, *, table: TableOptions, tagging: TagSpec = DEFAULT_TAGS, delimiter: str = ",", quote: str | None = '"'
    ):
        super().__init__(encoding=table.encoding)
        self.separator, self.numbers, self.columns = table.separator, table.numbers, table.columns
        self.lists, self.decimal = table.lists, table.decimal
        self.delimiter, self.quote = "\t" if delimiter == "tab" else delimiter, quote
        self.tagging, self.indicators, self.file_fields = tagging, table.indicators, table.files
        self.path = table.path
        if self.path is not None and (not self.file_fields or self.path.count("{}") != 1):
            fix = "name the column in `files`, and write {} once, as in 'wavs/{}.wav'"
            raise UsageError(f"{self.use}.path: {self.path!r} is no path of files; {fix}")
        text = None if table.words else table.text
        roles = {"text": text, "label": table.label, "labels": table.labels, "words": table.words, "tags": table.tags}
        self.roles = {role: column for role, column in roles.items() if column}
        if table.labels and table.indicators:
            raise UsageError(f"{self.use}.indicators: the labels are those of `labels` already; give one of the two")
        if table.tags and not table.words:
            raise UsageError(f"{self.use}.tags: tags belong to words; name the column of the `words` too")
        self.sentence = table.sentence
        if table.sentence and not table.tags:
            fix = "name the columns `words` and `tags` too"
            raise UsageError(f"{self.use}.sentence: it divides words with tags; {fix}")
        for option, value, usual in (
            ("delimiter", self.delimiter, "',', ';' or tab"),
            ("quote", quote or '"', "'\"', or null for none"),
        ):
            if len(value) != 1 or value in "\r\n":
                raise UsageError(f"{self.use}.{option}: {value!r} must be one character, such as {usual}")
        if not self.separator:
            raise UsageError(f"{self.use}.separator: an empty string separates nothing; write one such as '|'")
        columns = (("indicators", self.indicators), ("numbers", self.numbers), ("files", self.file_fields))
        divides = [("sentence", table.sentence)] if table.sentence else []
        self.wanted = [
            *self.roles.items(),
            *divides,
            *((option, column) for option, names in columns for column in names),
        ]
        self.used = {*self.roles.values(), *self.indicators, "", "_"}
        if self.columns is not None:
            check_names(self.columns, UsageError, f"{self.use}.columns")
            for option, column in self.wanted:
                if column not in self.columns:
                    raise UsageError(f"{self.use}.{option}: {no_column(column, self.columns)}")

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        rows = self.rows(lines, name)
        for row, where in self._sentences(rows, self.sentence) if self.sentence else rows:
            yield from self.read_item(self._record, row, where)

    def _sentences(self, rows: Iterable[tuple[Row, str]], column: str) -> Iterator[tuple[Row, str]]:
        """Join the rows of a sentence, with one word each, to a row with all words and one with all tags."""
        before, cells, where = "", dict[str, list[str]](), ""
        for row, place in rows:
            if cells and row[column] not in ("", before):
                yield {name: " ".join(values) for name, values in cells.items()}, where
                cells = {}
            before = row[column] or before
            if not cells:
                cells, where = {self.roles[role]: [] for role in ("words", "tags")}, place
            for name, values in cells.items():
                values.append("".join(row[name].split()))
        if cells:
            yield {name: " ".join(values) for name, values in cells.items()}, where

    def rows(self, lines: Iterable[str], name: str) -> Iterator[tuple[Row, str]]:
        """Yield the cells of each row by the names of their columns, and its place."""
        names = self.columns
        for number, cells in self._cells(lines, name):
            where = f"{name}:{number}"
            if names is None:
                check_names(cells, DataError, where)
                for option, column in self.wanted:
                    if column not in cells:
                        fix = (
                            f"set `{option}`, or name the columns of a file without a first line of names in `columns`"
                        )
                        raise DataError(f"{where}: {no_column(column, cells)}; {fix}")
                names = cells
            elif len(cells) == len(names):
                named = dict(zip(names, cells, strict=True))
                if self.path:
                    for column in self.file_fields:
                        named[column] = self.path.replace("{}", re.sub(r"#\d+$", "", named[column]))
                try:
                    row = with_paths(named, self.file_fields, where)
                except DataError as error:
                    self.leave_out(error)
                else:
                    yield row, where
            else:
                fix = (
                    f"quote a text that contains {self.delimiter!r}"
                    if self.quote
                    else "look at `delimiter` and `quote`"
                )
                fix += ", or leave such rows out (`data.bad_rows: skip`, `seqpipe predict --on-error skip`)"
                listed = f"{len(names)} have names: {', '.join(names)}"
                self.leave_out(DataError(f"{where}: {count_columns(len(cells))} in this line, but {listed}; {fix}"))

    def _cells(self, lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the cells of each row that has any, with its first line: a quoted cell may have several lines."""
        csv.field_size_limit(LONGEST_LINE)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        source = (f"{line}\n" for _, line in number_lines(lines, name, in_quotes=True))
        rows = csv.reader(source, delimiter=self.delimiter, quotechar=self.quote, quoting=quoting, strict=True)
        first = 1
        try:
            for cells in rows:
                if cells:
                    yield first, cells
                first = rows.line_num + 1
        except csv.Error as error:
            if "new-line" in str(error):
                fix = "end lines with LF or CRLF, for instance with `tr '\\r' '\\n'`, or quote the cell"
                raise DataError(f"{name}:{first}: this line contains a carriage return; {fix}") from error
            fix = f"write {self.quote * 2} for a {self.quote} within a quoted cell, or set `quote: null`"  # type: ignore[operator]
            problem = f"this row cannot be read ({error})"
            if rows.line_num > first:
                problem += "; a quote opens in it and is not closed as it should be"
            raise DataError(f"{name}:{first}: {problem}; {fix}") from error

    def _record(self, row: Row, where: str) -> Record:
        record: Record = {role: row[column] for role, column in self.roles.items()}
        if "label" in record and not record["label"].strip():
            column = self.roles["label"]
            raise DataError(f"{where}: the label in column {column!r} is empty; write one, or remove the row")
        for role in ("words", "tags", "labels"):
            if self.lists and role in record:
                record[role] = _items(record[role], f"{where}: the cell in column {self.roles[role]!r}")
        if "words" in record:
            words = record["words"] if self.lists else record["words"].split()
            record = {"text": " ".join(words), **record, "words": words}
            if not record["words"]:
                raise DataError(f"{where}: there is no word in column {self.roles['words']!r}; remove the row")
        if "tags" in record:
            hint = f" in {self.roles['tags']!r}"
            tags = record["tags"] if self.lists else record["tags"].split()
            record["tags"] = self.tagging.of_words(record["words"], tags, where, hint)
        if self.indicators:
            flags = {column: _FLAGS.get(row[column].strip().lower()) for column in self.indicators}
            for column in flags:
                if flags[column] is None:
                    problem = f"{row[column]!r} in column {column!r} is neither 0 nor 1"
                    raise DataError(f"{where}: {problem}; correct it, or remove the column from `indicators`")
            record["labels"] = [column for column, is_set in flags.items() if is_set]
        elif "labels" in record and not self.lists:
            cell = record["labels"]
            labels = record["labels"] = [label.strip() for label in cell.split(self.separator)] if cell.strip() else []
            if "" in labels or len({*labels}) < len(labels):
                problem = f"of the labels {cell!r} one {'is empty' if '' in labels else 'is given twice'}"
                raise DataError(f"{where}: {problem}; write each once, or look at `separator`")
        values: dict[str, Any] = dict(row)
        for column in self.numbers:
            place = f"{where}: {row[column]!r} in column {column!r}"
            cell = row[column]
            if self.decimal:
                cell = _UNIT.sub("", cell.replace("." if self.decimal == "comma" else ",", "")).replace(",", ".")
            values[column] = parse_number(cell, place, "remove the column from `numbers`")
        reserved = {*record, *(RESERVED_FIELDS if "text" in record else ("where",))}
        others = ((column, value) for column, value in values.items() if column not in self.used)
        return record | {f"source_{key}" if key in reserved else key: value for key, value in others}


class Tsv(Csv):
    """Reads tab-separated values: one record a line, one field for each named column.

    The first line names the columns, unless `columns` does. Quotes are part of the text, unless `quote` is set.

    Args:
        delimiter: Separator of cells: one character, or "tab".
        quote: Quote character; null: quotes have no meaning.
    """

    use = "tsv"

    def __init__(
        self, *, table: TableOptions, tagging: TagSpec = DEFAULT_TAGS, delimiter: str = "tab", quote: str | None = None
    ):
        super().__init__(table=table, tagging=tagging, delimiter=delimiter, quote=quote)
