"""The summary of a data file that all readings look at: its lines, and all ways to cut it into records."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError
from seqpipe.files import open_file
from seqpipe.init.evidence import Fact, Frame, Request, each, equal_numbers
from seqpipe.init.fields import DATE, FEATURES, MEDIA, MEDIA_FILE, NOTICE, NUMBER, Field, count_words, spread
from seqpipe.init.names import ALL_NAMES
from seqpipe.init.summary import FilePieces, load_json, reader_of, size_of

ROWS = 10_000  # records that are examined, evenly spread over the file
GRID_LINES = 40_000  # lines of words in columns that are examined
EXAMINED_LINES = 5_000
LONGEST_CELL = 10_000_000
TABLE_SIGNS = {"\t": "tsv", "|": "csv", ";": "csv", ",": "csv"}  # the rarer in texts first
SIGN_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
LONG_SIGNS = ("|||", "::", "+++$+++", "@", "__eou__", "<sep>", "[SEP]")  # no reader has them, and they are named
COMMENT_MARKS = ("##", "#", "%%", "//", ";;;")
DOCUMENT = "-DOCSTART-"
HEADER_BITS, UNSURE_BITS = 5.0, 3.0  # from which on the first row has names; so near to it is a doubt
UNUSED_SIGN = Fact("a sign in every line is not used")
_QUOTED = re.compile(r'"([^"]|"")*"')
MAX_WIDTH = 16  # columns of words and tags
_FORMS = {"jsonl": "JSON Lines", "json": "a JSON list of objects", "parquet": "a Parquet or Arrow table"}
_FORMS["datasets"] = "a folder of datasets"


class DataFile:
    """A data file in UTF-8: its text, of a large one that of pieces from all over it, and its frames."""

    def __init__(self, path: Path, request: Request):
        self.path, self.request = path, request
        self.is_folder = path.is_dir()

    @property
    def shell(self) -> str:
        """The path, as a shell reads it."""
        return shlex.quote(str(self.path))

    @cached_property
    def start(self) -> bytes:
        """The first bytes, unpacked."""
        if self.is_folder:
            return b""
        with open_file(self.path) as file:
            return file.read(1_000_000)

    @cached_property
    def is_binary_table(self) -> bool:
        """True for Parquet and Arrow."""
        return self.start.startswith(b"PAR1") or self.path.suffix in (".arrow", ".feather")

    @cached_property
    def text(self) -> str:
        """The text without the byte order mark; pieces of a large file, which end with a line."""
        if self.is_folder or self.is_binary_table:
            return ""
        return "".join(FilePieces(self.path, re.compile(rb"\n")).lines()).removeprefix("\ufeff")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.replace("\r\n", "\n").split("\n") if "\n" in self.text else self.text.split("\r")

    @cached_property
    def filled(self) -> list[str]:
        return [line for line in self.lines if line.strip()]

    @cached_property
    def is_whole(self) -> bool:
        return size_of(self.path) <= len(self.text.encode("utf-8", "replace")) + 3

    @cached_property
    def json(self) -> tuple[Any, str] | None:
        """The value in the file, or those of its lines, and the reader; None if it is not JSON."""
        start = self.text.lstrip()[:1]
        if not start or start not in "{[":
            return None
        value = None
        if len(self.filled) < 2 or not isinstance(_value_of(self.filled[0]), dict):
            value = load_json(self.path)
        if value is not None:
            return value, "json"
        lines = spread(self.filled, ROWS)
        rows = [row for row in map(_value_of, lines) if row is not None]
        return (rows, "jsonl") if rows and len(lines) <= 1.1 * len(rows) else None

    @cached_property
    def comment(self) -> str | None:
        """The mark of comments, lines of another form than the rest."""
        for mark in COMMENT_MARKS:
            number = sum(self.is_comment(line, mark) for line in self.lines)
            if number and 2 * number < len(self.filled):
                return mark
        return None

    @cached_property
    def shape(self) -> tuple[str | None, int, set[str]]:
        """The separator of cells, the usual number of cells, and marks that open nearly every block of lines."""
        head = self.filled[:500]
        separator = "\t" if sum("\t" in line for line in head) > 0.6 * len(head) else None
        pairs = zip(self.lines, ["", *self.lines], strict=False)
        first = Counter(line.split(separator)[0] for line, before in pairs if line.strip() and not before.strip())
        width = Counter(len(line.split(separator)) for line in head).most_common(1)
        marks = {mark for mark, number in first.items() if number > 0.9 * first.total() > 3 and mark[:1] in {*"#%"}}
        return separator, width[0][0] if width else 0, marks

    def is_comment(self, line: str, mark: str) -> bool:
        """Return whether a line begins with the mark, and is not the mark as a word with its tag."""
        separator, width, marks = self.shape
        cells = line.split(separator)
        return line.startswith(mark) and (mark in marks or cells[0] != mark or len(cells) != width)

    @cached_property
    def sign(self) -> str | None:
        """The sign that stands equally often in every line: a cut that ignores it does not explain it."""
        lines = self.filled[:1_000]
        for sign in (*TABLE_SIGNS, *LONG_SIGNS):
            numbers = Counter(line.count(sign) for line in lines)
            ((number, most),) = numbers.most_common(1) or [(0, 0)]
            if number and len(numbers) < 12 and most > 0.97 * len(lines):
                return sign
        return None

    def describe(self) -> str:
        """Return what the lines are, for messages."""
        widths = Counter(len(line.split()) for line in self.filled[:EXAMINED_LINES])
        ((width, number),) = widths.most_common(1) or [(0, 0)]
        return f"most of its lines have {width} word{'' if width == 1 else 's'} ({number:,} of {widths.total():,})"

    @cached_property
    def frames(self) -> list[Frame]:
        """All ways to cut the file into records."""
        if self.is_folder or self.is_binary_table:
            return self._rows_of_reader()
        if self.json:
            return self._objects()
        return [*self._tables(), *self._grids()] if self.text.strip() else []

    def _tables(self) -> Iterator[Frame]:
        """Yield tables by each sign: every row has as many cells."""
        for sign in TABLE_SIGNS:
            if self.text.count(sign) < 0.5 * min(len(self.filled), 50):
                continue
            quotes = [cell for line in self.filled for cell in line.split(sign) if '"' in cell]
            is_quoted = sign in ",;" or (bool(quotes) and all(map(_QUOTED.fullmatch, quotes)))
            if frame := self._table(sign, is_quoted):
                yield frame

    def _table(self, sign: str, quoted: bool) -> Frame | None:
        try:
            rows = [row for row in read_rows(self.path, sign, quoted) if any(map(str.strip, row))]
        except csv.Error:
            return None
        with_blank = sum(any(cell[:1] == " " for cell in row[1:]) for row in rows)
        if sign == "," and ".csv" not in self.path.suffixes and with_blank > len(rows) / 2:
            return None  # a blank follows most commas of a text
        if sign == "\t" and self.comment:
            rows = [row for row in rows if not row[0].startswith(self.comment)]
        widths = Counter(map(len, rows[1:] or rows))
        ((width, even),) = widths.most_common(1) or [(0, 0)]
        if width < 2 or len(rows) < 2 or even < (0.7 if width > 3 else 0.9) * widths.total():
            return None
        first, sample = rows[0], [row for row in spread(rows[1:], ROWS) if len(row) == width]
        is_named, bits = self._names(first, sample) if len(first) == width else (False, None)
        uneven, compared = widths.total() - even, min(len(rows), 200)
        failing = min(uneven, compared * uneven // len(rows))
        facts = {Fact("every row has as many cells", (sign,)): each(compared, equal_numbers(width - 1), failing)}
        if self.sign in TABLE_SIGNS and self.sign != sign:
            facts[UNUSED_SIGN] = -25.0
        if is_named:
            twice = [cell for cell in first if cell.strip() and first.count(cell) > 1]
            if twice:
                fix = "names must differ, or be left out by `--header no`"
                raise DataError(f"{self.path}:1: two columns are named {twice[0]!r}; {fix}")
            facts[Fact("the first row has names")] = min(40.0, max(0.0, bits or 0.0))
        elif len(first) == width:
            sample = [first, *sample]
        if not sample:
            return None
        columns = enumerate(zip(*sample, strict=True), 1)
        titles = first if is_named else [str(number) for number in range(1, width + 1)]
        fields = [Field(titles[i - 1], cells, i, is_named) for i, cells in columns if titles[i - 1].strip()]
        options: dict[str, Any] = {"delimiter": sign} if sign in ";|" else {}
        if (sign == "\t") == quoted:
            options["quote"] = '"' if quoted else None
        names = f"named {', '.join(field.name for field in fields)}" if is_named else "without names"
        saw = f"{SIGN_NAMES[sign]}-separated, {len(fields)} columns {names}"
        if len(fields) < width:
            saw += f", and {width - len(fields)} without a name"
        first_width = 0 if len(first) == width else len(first)
        return Frame(TABLE_SIGNS[sign], fields, facts, options, is_named, bits, None, uneven, first_width, saw)

    def _names(self, first: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[bool, float | None]:
        """Return whether the first row has the names of the columns, and the bits for it; None if it was asked for."""
        if self.request.header is not None:
            return self.request.header, None
        requested = {self.request.target, *self.request.texts} & {cell for cell in first if not cell.isdigit()}
        bits = header_bits(first, rows)
        return bool(requested) or bits > HEADER_BITS, None if requested else bits

    def _grids(self) -> Iterator[Frame]:
        """Yield words in columns by tabs and by blanks: sentences end with an empty line, or not."""
        for separator in ("\t", None):
            if separator and "\t" not in self.text:
                continue
            groups: list[list[list[str]]] = [[]]
            for line in self.lines[:GRID_LINES]:
                if not line.strip() or line.startswith(DOCUMENT):
                    groups.append([])
                elif not (self.comment and self.is_comment(line, self.comment)):
                    groups[-1].append(line.rstrip().split(separator) if separator else line.split())
            rows = [row for group in groups for row in group]
            ((width, even),) = Counter(map(len, rows)).most_common(1) or [(0, 0)]
            if len(rows) < 4 or not 2 <= width <= MAX_WIDTH or even < 0.93 * len(rows):
                continue
            sample = [row for row in rows[1:3_000] if len(row) == width]
            is_named = len(rows[0]) == width and header_bits(rows[0], sample) > HEADER_BITS
            bits = each(min(len(rows), 200), equal_numbers(width - 1), min(200, len(rows) - even))
            facts = {Fact("every row has as many cells", (separator or " ",)): bits}
            fitting = [[row for row in group if len(row) == width] for group in groups]
            if is_named:
                next(group for group in fitting if group).pop(0)
            sizes = [len(group) for group in fitting if group]
            columns = list(zip(*itertools.chain.from_iterable(fitting), strict=True))
            if separator is None and self.sign:
                facts[UNUSED_SIGN] = -25.0
            if len(sizes) > 1 and max(sizes) > 1:
                facts[Fact("empty lines end sentences")] = each(min(len(sizes), 30), 2)
            titles = rows[0] if is_named else [str(number) for number in range(1, width + 1)]
            if len({*titles}) == width and columns:
                fields = [Field(titles[i], columns[i], i + 1, is_named) for i in range(width)]
                options = {"separator": "tab"} if separator else {}
                yield Frame("conll", fields, facts, options, is_named, None, sizes, len(rows) - even)

    @cached_property
    def record_lists(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """The lists of objects in a JSON file with their dotted keys, the longest first."""
        if not self.json:
            return []
        return sorted(_lists_of_objects(self.json[0]), key=lambda item: -len(item[1]))

    def _objects(self) -> list[Frame]:
        """Return the objects of JSON: keys are fields, those within objects by dotted names."""
        if not self.json or not self.record_lists or len(self.record_lists[0][1]) < 2:
            return []
        key, items = self.record_lists[0]
        return [_frame_of_objects(spread(items, ROWS), self.json[1], {"list": key} if key else {})]

    def _rows_of_reader(self) -> list[Frame]:
        """Return the rows of a Parquet or Arrow table, or of a folder of them."""
        use = "parquet" if self.is_binary_table else "datasets"
        if self.is_folder and not any(self.path.glob("*.arrow")):
            return []
        every = 1 + (0 if self.is_folder else self.path.stat().st_size // 20_000_000)
        rows = itertools.islice(reader_of(use, {"text": None}).read(self.path), None, None, every)
        objects = [{("where" if k == "source_where" else k): v for k, v in row.items() if k != "where"} for row in rows]
        return [_frame_of_objects(spread(objects, ROWS), use, {})]


def _frame_of_objects(rows: Sequence[dict[str, Any]], use: str, options: dict[str, Any]) -> Frame:
    whole = _keys_of_data(rows)
    flat = [flatten(row, whole) for row in rows]
    keys = list(dict.fromkeys(key for row in flat for key in row))
    fields = [Field(key, [row.get(key) for row in flat]) for key in keys[:80]]
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    saw = f"{_FORMS[use]} with the key{'s' if len(keys) > 1 else ''} {', '.join(keys[:8])}{more}"
    return Frame(use, fields, {Fact("records of one form"): each(min(len(rows), 30), 1)}, options, saw=saw)


def read_rows(path: Path, sign: str, quoted: bool) -> Iterator[list[str]]:
    """Yield the rows of a table; csv.Error if it cannot be read so."""
    csv.field_size_limit(LONGEST_CELL)
    with open_file(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", "replace", newline="") as file:
        yield from csv.reader(file, delimiter=sign, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)


def flatten(row: dict[str, Any], whole: set[str], before: str = "", depth: int = 0) -> dict[str, Any]:
    """Return an object with the values within its objects under dotted names; those of the keys `whole` stay."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and value and depth < 3 and len(value) <= 12 and key not in whole:
            flat |= flatten(value, whole, f"{before}{key}.", depth + 1)
        else:
            flat[f"{before}{key}"] = value
    return flat


def _keys_of_data(rows: Sequence[dict[str, Any]]) -> set[str]:
    """Return the keys of objects whose own keys are data, such as labels: few objects have the same ones."""
    objects: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for key, value in row.items():
            if isinstance(value, dict):
                objects.setdefault(key, []).append(value)
    whole = set()
    for key, values in objects.items():
        different = {name for value in values for name in value}
        if len(different) > 4 and sum(map(len, values)) < 0.5 * len(different) * len(values):
            whole.add(key)
    return whole


def _value_of(line: str) -> Any:
    """Return the value of a line of JSON; None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _lists_of_objects(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each list of objects with its dotted key."""
    if isinstance(value, list) and value and sum(isinstance(item, dict) for item in value) > 0.9 * len(value):
        yield path, [item for item in value if isinstance(item, dict)]
    elif isinstance(value, dict) and depth < 4:
        for key, part in value.items():
            yield from _lists_of_objects(part, f"{path}.{key}" if path else key, depth + 1)


def header_bits(first: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    """Return the bits by which the first row has names of columns, against the values below each of them."""
    filled = [cell.strip() for cell in first if cell.strip()]
    if not rows:
        return -9.0
    bits, longest = -9.0 * (len({*filled}) < len(filled)), 0.0
    for name, cells in zip(map(str.strip, first), zip(*spread(rows, 1_000), strict=True), strict=True):
        field = Field(name, cells)
        name_bits = _name_bits(name, field, len(rows))
        if name and field.is_a("texts", "repeated texts") and _is_shorter(name, field):
            longest = max(longest, name_bits)  # texts of a row are short together: they count once
        else:
            bits += name_bits
    return bits + longest


def _is_shorter(name: str, field: Field) -> bool:
    """Return whether a cell is shorter than the texts below it, and no sentence."""
    return len(name) < 0.5 * field.characters and count_words(name) < 5 and name[-1] not in ".!?,。！？"


def _name_bits(name: str, field: Field, rows: int) -> float:
    """Return the bits by which a cell is the name of a column with this content, rather than a value of it."""
    if not name:
        return 1.0 if field.size < 0.5 * rows else -1.0
    bits = 8.0 if field.key in ALL_NAMES else 0.0
    if NUMBER.fullmatch(name):
        return bits - 8
    if len(name) > 60 or any(form.fullmatch(name) for form in (MEDIA_FILE, DATE, MEDIA, NOTICE, FEATURES)):
        return bits - 10
    is_value = name in field.counts
    match field.kind:
        case "numbers" | "ratings" | "amounts" | "row numbers" | "dates" | "truth values" | "lists as text":
            bits += 8
        case "addresses or licences" | "files" | "names of texts" | "media":
            bits += 8
        case "few values" | "the same value in every row":
            bits += -4 if is_value else min(8.0, math.log2(field.size / field.different))
        case kind if kind.endswith("texts"):
            alike = sum(len(cell) < 2 * len(name) for cell in field.filled)
            rarity = -math.log2((alike + 0.5) / (field.size + 1))
            bits += min(8.0, rarity) if _is_shorter(name, field) else -4
        case "identifiers":
            bits += -4 if re.search(r"\d", name) else 4
        case _:
            bits -= 3 if is_value else 0
    if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+|[A-Z]+([ _-][A-Z#]+)+", name):
        bits += 3
    return bits
