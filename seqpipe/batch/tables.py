"""Rows of files and of data frames as records, and answers as columns of tables."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqpipe.answers.answer_types import Answer
from seqpipe.errors import DataError, EnvError, UsageError, did_you_mean, install_command
from seqpipe.features.document import Record
from seqpipe.features.sources import read_fields
from seqpipe.files import PACKED, file_lines, open_file
from seqpipe.runtime.bundle import reader_from
from seqpipe.runtime.decode_options import field_options, record_keys
from seqpipe.runtime.manifest import Reader

if TYPE_CHECKING:
    from seqpipe.runtime.opened import OpenedBundle

TABLES = ("csv", "tsv", "json", "parquet", "conllu")
OUTPUTS = {".csv": ",", ".tsv": "\t", ".parquet": ""}  # endings of tables that are written, with their delimiter
ENDINGS = {f".{form}": form for form in (*TABLES, "jsonl", "conll")}
ENDINGS |= {".ndjson": "jsonl", ".bio": "conll", ".iob": "conll", ".tab": "tsv"}
_ROWS = {"csv", "tsv", "jsonl", "json", "parquet"}
_ERROR_LINE = re.compile(r'\{"confidence": ([\d.e-]+|null), "where": ("([^"\\]|\\.)*"|null), "answer": ')
_DELIMITERS = (",", ";", "\t", "|")
_KEPT = {"columns", "delimiter", "encoding", "list", "quote"}  # options of the training data that rows are read with
_NO_TEXT = {".docx", ".doc", ".xlsx", ".xls", ".ods", ".odt", ".pdf", ".html", ".htm", ".xml", ".yaml", ".yml", ".pkl"}
_NO_TEXT |= {".arrow", ".feather", ".npy", ".db", ".sqlite", ".pptx", ".rtf", ".spacy", ".bz2", ".xz", ".7z", ".tar"}


def ending(source: Path) -> str:
    """Return the ending of a file's name, without that of its compression."""
    return Path(source.name.removesuffix(source.suffix) if source.suffix in PACKED else source.name).suffix.lower()


def input_form(source: Path, names: Sequence[str], usual: str) -> str:
    """Return the form of a file by its ending, or the usual one if it has none.

    Raises:
        DataError: if it is a table or JSON under another ending, or in a format that is not read.
    """
    form = ENDINGS.get(ending(source))
    if form or not source.is_file():
        return form or usual
    with open_file(source) as file:
        start = file.read(4_000)
    line = next((line.strip() for line in start.decode("utf-8-sig", "replace").splitlines() if line.strip()), "")
    seen = "parquet" if start.startswith(b"PAR1") else ""
    cells = [delimiter for delimiter in _DELIMITERS if {*line.split(delimiter)} & {*names} and delimiter in line]
    if cells:
        seen = "tsv" if cells == ["\t"] else "csv"
    elif line.startswith(("# sent_id", "# text =", "# newdoc")):
        seen = "conllu"
    elif line.startswith(("{", "[")):
        try:
            seen = "jsonl" if isinstance(json.loads(line), dict) else "json"
        except ValueError:
            seen = "json" if line in ("{", "[") else ""
    if ending(source) in _NO_TEXT and not seen:
        fix = f"give text, {', '.join(sorted({*ENDINGS.values()}))}, or name its format with --format"
        raise DataError(f"{source}: is not in a format that is read; {fix}")
    if seen and seen != usual:
        fix = f"give --format {seen} to read it so, or --format {usual}"
        raise DataError(f"{source}: looks like {seen}, but its name does not end so; {fix}")
    return usual


def reader_for(stored: Reader, data: Path | None) -> Reader:
    """Return the reader of a file: that of the training data, or for a table or JSON of another form its own.

    A file that `evaluate --errors` wrote has the fields of records under their names, whatever the training data has.
    """
    if data and data.is_file():
        with open_file(data) as file:
            if _ERROR_LINE.match(file.read(4_000).decode("utf-8", "replace")):
                return Reader(use="jsonl", options={"text": None})
    form = ENDINGS.get(ending(data), stored.use) if data else stored.use
    if form == stored.use or not {form, stored.use} <= _ROWS:
        return stored
    names = {"text", "label", "labels", "files"}
    if form != "parquet":
        names.add("encoding")
    if form in ("csv", "tsv"):
        names.add("numbers")
    return Reader(use=form, options={name: value for name, value in stored.options.items() if name in names})


class Columns:
    """The columns of a table, or the keys of objects, that contain the texts that a model reads.

    Args:
        model: The model.
        names: The columns of its fields, in their order; empty: those of its training data, or of the fields' names.
    """

    def __init__(self, model: OpenedBundle, names: Sequence[str] = ()):
        self.fields = read_fields(model.predictor.featurizer)
        if names and len(names) != len(self.fields):
            raise UsageError(f"--field: this bundle reads {', '.join(self.fields)}; name as many columns")
        text = model.manifest.reader.options.get("text")
        usual = {"text": text if isinstance(text, str) else "text"}
        self.names, self.are_given = [*names] or [usual.get(field, field) for field in self.fields], bool(names)

    def record(self, row: Mapping[str, Any], where: object) -> Record:
        """Return the record of a row; DataError if it has no such column."""
        if isinstance(row.get("words"), list) and not self.are_given:
            return {"words": row["words"], **({"text": row["text"]} if "text" in row else {})}
        record: dict[str, Any] = {}
        for field, name in zip(self.fields, self.names, strict=True):
            column = name if name in row or self.are_given else field
            if column not in row and len(row) == len(self.fields) == 1 and not self.are_given:
                (column,) = row
            if column not in row:
                hint = f"{did_you_mean(name, row)} (there is: {', '.join(row)})"
                raise DataError(f"{where}: no column or key is named {name!r}{hint}; name it with --field")
            record[field] = row[column]
        return record

    def own_options(self, row: Mapping[str, Any], keys: Iterable[str], where: object, form: str) -> Record:
        """Return the decode options in these keys of a row; DataError if a table has no such column."""
        for key in keys:
            if key not in row and form in ("csv", "tsv", "parquet"):
                hint = f"{did_you_mean(key, row)} (there is: {', '.join(row)})"
                raise DataError(f"{where}: no column is named {key!r}{hint}; write --option-field OPTION=COLUMN")
        return {key: row[key] for key in keys if key in row}


def read_rows(
    model: OpenedBundle, source: Path, form: str, columns: Columns
) -> Iterator[tuple[Record | DataError, str]]:
    """Yield each row of a table, or the error of one that cannot be read, and its place."""
    stored, is_text = model.manifest.reader, form in ("csv", "tsv")
    options: dict[str, Any] = {"tags": None} if form == "conllu" else {"text": None}
    if stored.use == form:
        options |= {name: value for name, value in stored.options.items() if name in _KEPT}
    if "files" in stored.options and form in _ROWS:
        options["files"] = stored.options["files"]
    lines: Iterator[str] = iter(())
    if is_text:  # the first line tells the delimiter, and whether it names the columns
        lines = file_lines(source, options.get("encoding", "utf-8"))
        first = next(lines, "")
        lines, usual = itertools.chain([first], lines), options.get("delimiter", "," if form == "csv" else "\t")
        signs = [usual.replace("tab", "\t"), *(_DELIMITERS if form == "csv" else ())]
        heads = [next(csv.reader([first.removeprefix("\ufeff")], delimiter=sign), []) for sign in signs]
        wanted = {*columns.names, *columns.fields}
        chosen = next((i for i, head in enumerate(heads) if wanted & {*head}), 0)
        options["delimiter"] = signs[chosen]
        if wanted & {*heads[chosen]} or len(options.get("columns") or ()) != len(heads[chosen]):
            options["columns"] = None
    reader = reader_from(Reader(use=form, options=options))
    rows = reader.rows(lines, str(source)) if is_text else ((row, row.pop("where")) for row in reader.read(source))
    errors = reader.left_out = list[str]()  # of the rows before the one that is yielded
    for row, where in itertools.chain(rows, [(None, "")]):
        yield from ((DataError(error), "") for error in errors)
        errors.clear()
        if row is not None:
            yield row, where


def answer_columns(answer: Answer | DataError) -> dict[str, Any]:
    """Return an answer as cells: its values by `answer.` and their names, or all of it as JSON in `answer`."""
    if isinstance(answer, DataError):
        return {"error": str(answer)}
    if isinstance(answer, dict) and [*answer] == ["error"]:
        return {**answer}
    if isinstance(answer, dict) and all(isinstance(value, (str, int, float, bool)) for value in answer.values()):
        return {f"answer.{name}": value for name, value in answer.items()}
    return {"answer": json.dumps(answer, ensure_ascii=False)}


def write_table(target: Path, part: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to `part`, which replaces `target` when it is whole, as CSV, TSV or Parquet by the ending of that."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    plain = [{name: _cell(row.get(name)) for name in names} for row in rows]
    if delimiter := OUTPUTS[target.suffix.lower()]:
        with part.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, names, delimiter=delimiter, lineterminator="\n")
            table.writeheader()
            table.writerows(plain)
        return
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise EnvError(f"{target}: Parquet needs pyarrow: {install_command('parquet')}, or write .csv") from error
    try:
        columns = pa.Table.from_pylist(plain)
    except pa.ArrowException:  # values of several kinds in a column
        columns = pa.Table.from_pylist(
            [{name: None if cell is None else str(cell) for name, cell in row.items()} for row in plain]
        )
    parquet.write_table(columns, part)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def answer_table(model: OpenedBundle, table: Any, names: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Answer the rows of a data frame of pandas or polars, or of an Arrow table; return it with columns of answers."""
    is_arrow = hasattr(table, "append_column")
    listed = getattr(table, "column_names", None) or list(table.columns)
    option_columns = record_keys(field_options(options.get("option_fields", ()), {}, model.predictor.options)).values()
    columns = Columns(model, names).record({name: name for name in listed}, type(table).__name__)  # by field
    model.refuse_option_keys(dict.fromkeys(listed, ""), {*columns.values(), *option_columns})
    for column in option_columns:
        if column not in listed:
            raise UsageError(f"option_fields: no column is named {column!r} (there is: {', '.join(map(str, listed))})")
    read = {**columns, **{column: column for column in option_columns}}
    values = [table[name].to_pylist() if is_arrow else table[name].to_list() for name in read.values()]
    rows = [dict(zip(read, cells, strict=True)) for cells in zip(*values, strict=True)]
    for number, row in enumerate(rows, 1):
        texts = [row[field] for field in columns]
        if options.get("on_error") != "skip" and not all(isinstance(value, (str, list)) for value in texts):
            raise DataError(f"row {number}: is not a text, but {texts[0]!r}; leave it out, or fill it")
    cells = [answer_columns(answer) for answer in model(iter(rows), **options)]
    new = {name: [row.get(name) for row in cells] for name in dict.fromkeys(name for row in cells for name in row)}
    if is_arrow:
        import pyarrow as pa

        for name, values in new.items():
            table = table.append_column(name, pa.array(values))
        return table
    if hasattr(table, "assign"):
        return table.assign(**new)
    return table.hstack(type(table)(new))
