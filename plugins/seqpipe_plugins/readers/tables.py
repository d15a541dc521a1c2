"""Shared code of `csv` and `tsv`: one row a record, its columns as fields."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seqpipe.plugin import DataError, UsageError, did_you_mean

from . import LONGEST_LINE, FileReader, IllFormed, Record, SchemeOption, TagError, Tagging, free, numbered

_SET, _UNSET = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no", ""}


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options that readers of tables share.

    Args:
        text: Column of the text.
        label: Column that becomes the field `label`; null if the columns already have the right names.
        labels: Column that becomes the field `labels`: several labels, separated by `separator`, or none.
        separator: Separator of several labels in one cell.
        indicators: Columns of 0 and 1, or false and true, one for each label; the names of those with 1 become the
            field `labels`.
        words: Column of the words, parted by blanks; it takes the place of `text`.
        tags: Column of a tag for each word.
        scheme: Tagging scheme; IO for entities without B- and I-, none for plain tags, such as parts of speech.
        ill_formed: Whether ill-formed tags are an error, or repaired like in conlleval.
        tag_format: Spelling of the tag that begins an entity PER, such as B_PER, PER-B or b-PER.
        outside: Tag of words outside of entities.
        numbers: Numeric columns.
        columns: Names of all columns, in order, for a file without a header line; _ skips a column.
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    text: str = "text"
    label: str | None = None
    labels: str | None = None
    separator: str = "|"
    indicators: list[str] = field(default_factory=list)
    words: str | None = None
    tags: str | None = None
    scheme: SchemeOption = "IOB2"
    ill_formed: IllFormed = "error"
    tag_format: str = "B-PER"
    outside: str = "O"
    numbers: list[str] = field(default_factory=list)
    columns: list[str] | None = None
    encoding: str = "utf-8"


class Table(FileReader):
    """Reads a table whose first line, or the option `columns`, names the columns.

    Args:
        table: Options of the reader.
        delimiter: Separator of cells: one character, or "tab".
        quote: Quote character; null: quotes have no meaning.
    """

    fields = ("text", "where")
    use = ""

    def __init__(self, table: TableOptions, delimiter: str, quote: str | None):
        super().__init__(encoding=table.encoding)
        columns, separator = table.columns, table.separator
        self.roles = {"text": "" if table.words else table.text, "label": table.label or ""}
        self.roles |= {"labels": table.labels or "", "words": table.words or "", "tags": table.tags or ""}
        self.tagging = Tagging(table.scheme, table.ill_formed, table.tag_format, table.outside)
        self.indicators = table.indicators
        if table.labels and table.indicators:
            raise UsageError(f"{self.use}.indicators: the labels are those of `labels` already; give one of the two")
        if table.tags and not table.words:
            raise UsageError(f"{self.use}.tags: tags belong to words; name the column of the `words` too")
        self.separator, self.numbers, self.columns = separator, table.numbers, columns
        self.delimiter, self.quote = "\t" if delimiter == "tab" else delimiter, quote
        for option, value, usual in (
            ("delimiter", self.delimiter, "',', ';' or tab"),
            ("quote", quote or '"', "'\"', or null for none"),
        ):
            if len(value) != 1 or value in "\r\n":
                raise UsageError(f"{self.use}.{option}: {value!r} must be one character, such as {usual}")
        if not separator:
            raise UsageError(f"{self.use}.separator: an empty string parts nothing; write one such as '|'")
        if columns is not None:
            self._check_names(columns, UsageError, f"{self.use}.columns")
            for option, column in self._wanted():
                if column not in columns:
                    raise UsageError(f"{self.use}.{option}: no column is named {column!r}{_there_are(column, columns)}")

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        names = self.columns
        for number, cells in self._rows(lines, name):
            where = f"{name}:{number}"
            if names is None:
                names = self._header(cells, where)
            elif len(cells) != len(names):
                fix = f"quote a text that holds {self.delimiter!r}" if self.quote else "look at `delimiter` and `quote`"
                fix += ", or set `bad_rows: skip` under `data:`"
                named = f"{len(names)} have names: {', '.join(names)}"
                self.leave_out(DataError(f"{where}: {_columns(len(cells))} in this line, but {named}; {fix}"))
            else:
                try:
                    record = self._record(dict(zip(names, cells, strict=True)), where)
                except DataError as error:
                    self.leave_out(error)
                else:
                    yield {**record, "where": where}

    def _rows(self, lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
        """The cells of each row that has any, with the line it begins at: a quoted cell may go over several lines."""
        csv.field_size_limit(LONGEST_LINE)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        ended = (f"{line}\n" for _, line in numbered(lines, name, within=True))
        rows = csv.reader(ended, delimiter=self.delimiter, quotechar=self.quote, quoting=quoting, strict=True)
        while True:
            first = rows.line_num + 1
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if "new-line" in str(error):
                    fix = "end lines with LF or CRLF, for instance with `tr '\\r' '\\n'`, or quote the cell"
                    raise DataError(f"{name}:{first}: a carriage return stands within this line; {fix}") from error
                fix = f"write {self.quote * 2} for a {self.quote} within a quoted cell, or set `quote: null`"  # type: ignore[operator]
                problem = f"this row cannot be read ({error})"
                if rows.line_num > first:
                    problem += "; a quote opens in it and is not closed as it should be"
                raise DataError(f"{name}:{first}: {problem}; {fix}") from error
            if cells:
                yield first, cells

    def _header(self, names: list[str], where: str) -> list[str]:
        self._check_names(names, DataError, where)
        for option, column in self._wanted():
            if column not in names:
                fix = f"set `{option}`, or name the columns of a file without a first line of names in `columns`"
                raise DataError(f"{where}: no column is named {column!r}{_there_are(column, names)}; {fix}")
        return names

    def _record(self, row: dict[str, str], where: str) -> Record:
        record: Record = {role: row[column] for role, column in self.roles.items() if column}
        if "label" in record and not record["label"].strip():
            column = self.roles["label"]
            raise DataError(f"{where}: the label in column {column!r} is empty; write one, or remove the row")
        if "words" in record:
            record = {"text": " ".join(record["words"].split())} | record | {"words": record["words"].split()}
            if not record["words"]:
                raise DataError(f"{where}: there is no word in column {self.roles['words']!r}; remove the row")
        if "tags" in record:
            record["tags"] = self._tags(record["words"], record["tags"].split(), where)
        if self.indicators:
            record["labels"] = [column for column in self.indicators if _is_set(row[column], column, where)]
        elif "labels" in record:
            cell = record["labels"]
            cells = cell.split(self.separator) if cell.strip() else []
            labels = record["labels"] = [label.strip() for label in cells]
            if "" in labels or len({*labels}) < len(labels):
                problem = "is empty" if "" in labels else "is given twice"
                raise DataError(
                    f"{where}: of the labels {cell!r} one {problem}; write each once, or look at `separator`"
                )
        values: dict[str, Any] = row | {column: _number(row[column], column, where) for column in self.numbers}
        taken = {*self.roles.values(), *self.indicators}
        others = ((column, value) for column, value in values.items() if column not in {*taken, "", "_"})
        return record | {f"source_{key}" if key in record else free(key): value for key, value in others}

    def _wanted(self) -> list[tuple[str, str]]:
        roles = [(option, column) for option, column in self.roles.items() if column]
        roles += [("indicators", column) for column in self.indicators]
        return roles + [("numbers", column) for column in self.numbers]

    def _tags(self, words: Sequence[str], tags: Sequence[str], where: str) -> list[str]:
        column = self.roles["tags"]
        if len(tags) != len(words):
            raise DataError(f"{where}: {len(tags)} tags for {len(words)} words; give one tag a word in {column!r}")
        try:
            return self.tagging.to_iob2(tags)
        except TagError as error:
            raise DataError(f"{where}: tag {error.position + 1} in {column!r}: {error}") from error

    def _check_names(self, names: Sequence[str], error: type[UsageError | DataError], where: str) -> None:
        twice = sorted({name for name in names if name not in ("", "_") and names.count(name) > 1})
        if twice:
            raise error(f"{where}: two columns are named {twice[0]!r}; names must differ (_ leaves a column out)")


def _number(cell: str, column: str, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {cell!r} in column {column!r} is no number; correct it, or take it off `numbers`")
    return number


def _is_set(cell: str, column: str, where: str) -> bool:
    value = cell.strip().lower()
    if value not in _SET | _UNSET:
        raise DataError(f"{where}: {cell!r} in column {column!r} is no 0 or 1; correct it, or take it off `indicators`")
    return value in _SET


def _there_are(column: str, names: Sequence[str]) -> str:
    return f"{did_you_mean(column, names)} (there is: {', '.join(names)})"


def _columns(number: int) -> str:
    return "one column" if number == 1 else f"{number} columns"
