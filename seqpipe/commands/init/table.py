"""Find out what a table of cells holds: its separator, its columns' names and what can be learned from them."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seqpipe.answers.tagging_schemes import SCHEMES, belongs
from seqpipe.commands.init.choice import find_roles
from seqpipe.commands.init.files import open_bytes
from seqpipe.commands.init.names import has_names
from seqpipe.commands.init.profile import CELLS, NUMBER, Column, profile
from seqpipe.commands.init.roles import Roles, Task
from seqpipe.errors import DataError

SIGNS = {",": "csv", "\t": "tsv", ";": "csv", "|": "csv"}
BLOCK = 10_000  # rows that are looked at together
LONGEST_CELL = 10_000_000
_SIGN_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}


@dataclass(frozen=True)
class Layout:
    """How the cells of a table are written."""

    sign: str
    quoted: bool
    width: int


def find_table(data: Path, lines: Sequence[str], task: Task | None) -> Roles | None:
    """Return what the columns of a table are for, by all of its rows; None if the file is no table.

    Raises:
        DataError: if it is a table from which nothing can be learned without a question, or a row has other columns.
    """
    ending = "tsv" if ".tsv" in data.suffixes else "csv"
    for sign in sorted(SIGNS, key=lambda sign: (SIGNS[sign] != ending, -lines[0].count(sign))):
        layout = _layout(lines, sign, is_named_so=f".{SIGNS[sign]}" in data.suffixes)
        if layout is None:
            continue
        columns = _columns(data, lines, layout)
        if _is_conll(columns):
            if sign == "\t":
                return None
            cure = "write each word, a tab and its tag on a line, and an empty line after each sentence"
            raise DataError(f"{data}: a table with a word and its tag in each row; {cure}")
        is_surely_a_table = sign == "\t" or ".csv" in data.suffixes
        named = has_names(columns)
        if not named:
            for column in columns:
                column.add_first()
        if not _has_words(columns, named, is_surely_a_table):
            continue
        names = f"named {', '.join(column.first for column in columns)}" if named else "without names"
        kind = f"{_SIGN_NAMES[sign]}-separated, {len(columns)} columns {names}"
        options = {"delimiter": sign} if sign in ";|" else {}
        if layout.quoted and sign == "\t":
            options["quote"] = '"'
        roles = find_roles(columns, named, task, f"{data}: {kind}", must=is_surely_a_table)
        if roles:
            return roles.of_table(SIGNS[sign], options, kind)
    return None


def _layout(lines: Sequence[str], sign: str, is_named_so: bool) -> Layout | None:
    """Return how the first lines are cut into cells; None if they are no rows of one width."""
    quoted = sign != "\t" or _is_quoted(lines)
    try:
        rows = list(_reader([line + "\n" for line in lines], Layout(sign, quoted, 0)))
    except csv.Error:
        return None
    while rows and not rows[-1]:
        rows.pop()
    full = [row for row in rows if row]
    if len(full) > 2:
        full.pop()  # it may be cut within a quoted cell
    width, count = Counter(map(len, full)).most_common(1)[0] if full else (0, 0)
    if width < 2 or len(full) < 2 or count < (0.95 if is_named_so or sign == "\t" else 1) * len(full):
        return None
    if sign == "\t" and len(full) < len(rows) - 1 and not _are_sentences([row for row in full if len(row) == width]):
        return None  # empty lines part sentences: a file of a word and its tag a line
    if sign == "," and not is_named_so and _is_prose(full):
        return None
    return Layout(sign, quoted, width)


def _are_sentences(rows: Sequence[Sequence[str]]) -> bool:
    return any(sum(" " in cell for cell in column) > len(column) / 2 for column in zip(*rows, strict=True))


def _is_prose(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a blank follows most commas, as in a text."""
    return sum(any(cell.startswith(" ") for cell in row[1:]) for row in rows) > len(rows) / 2


def _is_quoted(lines: Sequence[str]) -> bool:
    """Return whether quotes around cells are no part of the text: some cells have them, and all quotes are so."""
    cells = [cell for line in lines for cell in line.split("\t") if '"' in cell]
    whole = [cell for cell in cells if len(cell) > 1 and cell[0] == cell[-1] == '"']
    return bool(cells) and len(whole) == len(cells) and all('"' not in cell[1:-1].replace('""', "") for cell in cells)


def _reader(lines: Sequence[str] | io.TextIOBase, layout: Layout) -> Iterator[list[str]]:
    csv.field_size_limit(LONGEST_CELL)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=layout.sign, quoting=quoting)


def _columns(data: Path, lines: Sequence[str], layout: Layout) -> list[Column]:
    """Return the columns by all rows of the file."""
    size = data.stat().st_size * (4 if data.suffix == ".gz" else 1)
    rows = size * len(lines) // max(1, sum(map(len, lines)))
    blocks = _blocks(data, layout)
    first = next(blocks)[0]
    return profile(blocks, first, every=1 + rows // CELLS)


def _blocks(data: Path, layout: Layout) -> Iterator[list[list[str]]]:
    """Yield the first row alone, then blocks of rows; DataError for a row of another width."""
    with io.TextIOWrapper(open_bytes(data), "utf-8-sig", "strict", newline="") as file:
        rows = _reader(file, layout)
        try:
            filled = filter(None, rows)
            yield [next(filled)]
            while block := list(itertools.islice(filled, BLOCK)):
                if {*map(len, block)} != {layout.width}:
                    raise _uneven(data, layout)
                yield block
        except UnicodeDecodeError as error:
            raise _not_utf8(data) from error
        except csv.Error as error:
            raise DataError(f"{data}:{rows.line_num}: this row cannot be read ({error})") from error  # type: ignore[attr-defined]


def _uneven(data: Path, layout: Layout) -> DataError:
    """Return the error for the first row that has other columns than most."""
    with io.TextIOWrapper(open_bytes(data), "utf-8-sig", newline="") as file:
        rows = _reader(file, layout)
        row = next(row for row in rows if row and len(row) != layout.width)
        line = rows.line_num  # type: ignore[attr-defined]
    sign = _SIGN_NAMES[layout.sign]
    cure = f"quote a text that holds a {sign}" if layout.quoted else f"write no {sign} within a text"
    cells = "one cell" if len(row) == 1 else f"{len(row)} cells"
    return DataError(f"{data}:{line}: {cells} in this row, but {layout.width} in the others; {cure}, or remove the row")


def _not_utf8(data: Path) -> DataError:
    with open_bytes(data) as file:
        number = next(number for number, line in enumerate(file, 1) if not _is_utf8(line))
    cure = "convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
    return DataError(f"{data}:{number}: this line is not UTF-8; {cure}")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_conll(columns: Sequence[Column]) -> bool:
    """Return whether a column holds tags such as O and B-city: a file of words without empty lines."""
    return any("O" in column.values and _are_tags(column) for column in columns[1:])


def _are_tags(column: Column) -> bool:
    return len(column.values) > 1 and any(all(belongs(tag, scheme) for tag in column.values) for scheme in SCHEMES)


def _has_words(columns: Sequence[Column], named: bool, is_surely_a_table: bool) -> bool:
    """Return whether a column holds texts: sentences, or different words that are a row each."""
    if any(column.blanks > column.cells / 5 for column in columns):
        return True
    if any(column.is_unspaced and column.characters > 2 * column.cells for column in columns):
        return True
    different = any(column.distinct > 0.9 and not NUMBER.fullmatch(column.first) for column in columns)
    return is_surely_a_table and different and (named or all(column.cells > 1 for column in columns))
