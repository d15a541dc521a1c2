"""From the roles of columns or keys to the reader's options, and to a summary of all records of the file."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError
from seqpipe.init.datafile import DataFile
from seqpipe.init.evidence import Frame, Reading
from seqpipe.init.fields import Field
from seqpipe.init.names import DEV_SPLITS, TEST_SPLITS
from seqpipe.init.summary import MOST_LEFT_OUT, DataSummary, spread_records

WRITTEN_TEXTS = 2_000  # texts to write, on which tokenizers are compared
LIST_FIX = 'write them as JSON, `{"text": …, "labels": ["a", "b"]}` on each line'
_DECIMALS = re.compile(r"([.,])(\d+)\D*$")  # the last sign of an amount, and the digits after it
_SOUND = re.compile(r".*\.(wav|mp3|flac|ogg|m4a|opus)|(UklGR|SUQz|T2dnUw|ZkxhQ).*", re.I | re.DOTALL)
_RESERVED = {"text", "words", "tags", "spans", "where"}  # fields of records with a meaning of their own


def summarise_fields(file: DataFile, reading: Reading) -> DataSummary:
    """Return the summary of a table or of JSON objects; DataError if what is learned cannot be read."""
    frame = reading.frame
    assert frame is not None
    summary, names = summary_of_roles(reading), _names_of_fields(reading)
    _refuse_unreadable(file, reading)
    _set_target(summary, reading, names)
    for item in reading.of("split"):
        _set_split(summary, item, names[item.name])
    summary.fields = ["text", *(_field_name(names[item.name]) for item in reading.of("text_pair"))]
    for item in reading.of("media"):
        first = item.filled[0]
        summary.options["text"] = None
        if not item.is_a("media"):
            summary.options["files"] = [names[item.name]]
            if len({re.sub(r"#\d+$", "", cell) for cell in item.filled}) < item.size:
                summary.group = names[item.name]
            if path := _path_of_files(file, item):
                summary.options["path"], first = path, path.replace("{}", first)
        summary.media = "sound" if _SOUND.fullmatch(first) else "picture"
        summary.fields = [names[item.name]]
    summary.options |= reading.options
    if frame.use in ("csv", "tsv") and file.request.header is None and frame.header_bits is not None:
        _doubt_header(summary, frame)
    summary.left_out = []
    _count(summary, file, reading)
    return summary


def summary_of_roles(reading: Reading) -> DataSummary:
    """Return an empty summary, with the reader's options that name the columns or keys of the roles."""
    frame, names = reading.frame, _names_of_fields(reading)
    assert frame is not None
    assert reading.learns is not None
    summary = DataSummary(frame.use, dict(frame.options), label_kind=reading.learns, saw=frame.saw)
    if not frame.header:
        summary.options["columns"] = [names.get(item.name, "_") for item in frame.fields]
    for role in ("text", "label", "words", "tags", "spans", "sentence"):
        for item in reading.of(role)[:1]:
            option = "words" if role == "text" and item.is_a("lists of texts", "lists of labels") else role
            has_default = frame.is_json or role not in ("words", "tags", "sentence")
            if names[item.name] != option or not has_default:
                summary.options[option] = names[item.name]
    return summary


def _names_of_fields(reading: Reading) -> dict[str, str]:
    """Return the names of the record's fields by those of the file's."""
    if reading.frame and reading.frame.header:
        return {item.name: item.name for item in reading.frame.fields}
    names = {"score": "label", "media": "file"}
    return {name: names.get(role, role) for name, role in reading.roles.items()}


def _set_target(summary: DataSummary, reading: Reading, names: dict[str, str]) -> None:
    """Set the options of what is learned, its name and the reason."""
    frame, texts = reading.frame, reading.of("text", "text_pair")
    assert frame is not None
    targets = reading.of("label", "labels", "score", "target")
    if not targets:
        return
    target = targets[0]
    name, row = names[target.name], "row" if target.number else "record"
    if reading.learns == "Labels":
        summary.multi = reading.roles[target.name] == "labels"
        summary.why = f"{target.title} has {target.different:,} values in {frame.size:,} {row}s"
        number = "any number of labels" if summary.multi else "one label each"
        if len(targets) > 1:
            summary.options["indicators"] = [names[item.name] for item in targets]
            listed = ", ".join(summary.options["indicators"])
            summary.why = f"the columns {listed} are 0 or 1: labels, of which a text has any number"
        elif summary.multi and (name != "labels" or target.number or None in target.values):
            summary.options["labels"] = name  # with which a record without labels has none
        if target.is_a("separated labels") and target.parts:
            number = f"several labels each, separated by {target.parts.separator!r}"
            if target.parts.separator != "|":
                summary.options["separator"] = target.parts.separator
        elif target.is_a("lists as text"):
            summary.options["lists"] = True
        summary.notes.append(f"texts with {number}")
    elif reading.learns == "Numbers":
        if target.number:
            summary.options["numbers"] = [name]
        if target.is_a("amounts"):
            sign = summary.options["decimal"] = _decimal_sign(target)
            summary.notes.append(f"the numbers are written as {target.numbers[0]!r}: {sign} is decimal")
        summary.target = _field_name(name)
    elif reading.learns == "Texts":
        summary.target = _field_name(name)
        sources = " and ".join(item.title for item in texts) or reading.of("media")[0].title
        summary.why = f"{target.title} is written from {sources}"
        if len(texts) > 1 and texts[1].is_a("features"):
            summary.why = f"{target.title} is written from {texts[0].title} and the features in {texts[1].title}"
        elif texts and texts[0].is_a("repeated texts"):
            summary.why += ", of which each is in several rows"
        elif texts:
            summary.why += ": both are different texts"


def _path_of_files(file: DataFile, item: Field) -> str | None:
    """Return the path of the files that a field names, with {} for its cell; None if its cells are paths.

    Raises:
        DataError: if the files are not in the folder of the data file, nor in a folder within it.
    """
    folder, cell = file.path.parent, re.sub(r"#\d+$", "", item.filled[0])
    if any((folder / name).is_file() for name in item.filled[:100]):
        return None
    for pattern in (glob.escape(Path(cell).name), f"{glob.escape(Path(cell).name)}.*"):
        for found in sorted(folder.rglob(pattern)):
            path = found.relative_to(folder).as_posix()
            if found.is_file() and cell in path:
                return path.replace(cell, "{}")
    fix = "put the data file into the folder that has them, or that has their folder"
    raise DataError(f"{file.path}: {item.title} names files that are not there, such as {cell}; {fix}")


def _decimal_sign(item: Field) -> str:
    """Return the decimal sign of amounts: the last sign of most, unless three digits follow each."""
    ends = Counter(match[1] for cell in item.numbers if (match := _DECIMALS.search(cell)) and len(match[2]) != 3)
    return "comma" if ends[","] > ends["."] else "point"


def _set_split(summary: DataSummary, item: Field, name: str) -> None:
    """Take the dev and test records from the field that names them."""
    values = {cell: cell.strip().lower() for cell in item.counts}
    summary.split = {"field": _field_name(name)}
    for role, names in (("dev", DEV_SPLITS), ("test", TEST_SPLITS)):
        cells = [cell for cell, value in values.items() if value in names]
        if cells:
            summary.split[role] = cells[0]
    sizes = ", ".join(f"{value} {number:,}" for value, number in item.counts.most_common())
    summary.notes.append(f"{item.title} says which records are dev and test data: {sizes}")


def _field_name(name: str) -> str:
    """Return the name in records of a field of the file that is not the text itself."""
    return f"source_{name}" if name in _RESERVED else name


def _refuse_unreadable(file: DataFile, reading: Reading) -> None:
    """DataError for values that the reader cannot take for what is learned."""
    for item in reading.of("label", "labels", "score"):
        if item.number:
            continue
        if item.is_a("lists as text", "separated labels"):
            form = f"labels separated by {item.parts.separator!r}" if item.parts else "lists written as texts"
            raise DataError(f"{file.path}: {item.title} has {form}; {LIST_FIX}")
        if reading.learns == "Numbers" and any(isinstance(value, str) for value in item.values):
            fix = "write a number without quotes in each object"
            raise DataError(f"{file.path}: {item.name!r} has numbers written as texts; {fix}")
    flags = reading.of("labels")
    if len(flags) > 1 and not flags[0].number:
        keys = ", ".join(f'"{item.name}"' for item in flags)
        labels = f'[[{keys}][] as $k | select(getpath($k / ".") | . == 1 or . == true) | $k]'
        text = reading.of("text")[0].name
        command = f"jq -c '{{text: .{text}, labels: {labels}}}' {file.path} > {file.path.stem}-labels.jsonl"
        listed = ", ".join(item.name for item in flags)
        problem = f"the keys {listed} are 0 or 1, labels of one text"
        raise DataError(f"{file.path}: {problem}; write them as a list: `{command}`")


def _doubt_header(summary: DataSummary, frame: Frame) -> None:
    """Doubt whether the first row has names, if the evidence is weak."""
    bits = frame.header_bits or 0.0
    if -4.0 < bits < 8.0:
        reading, other, answer = ("names", "a record", "no") if frame.header else ("a record", "names", "yes")
        summary.doubt(f"the first row is read as {reading}. To read it as {other}", "--header", answer)


def _count(summary: DataSummary, file: DataFile, reading: Reading) -> None:
    """Count records, words and labels of the whole file, as its reader reads them."""
    name = summary.target
    if reading.learns == "Labels":
        name = "labels" if summary.multi else "label"
    values: list[Any] = []  # numbers, or texts to write
    missing, empty = list[str](), list[str]()
    for record in spread_records(summary, file.path):
        summary.records += 1
        for text in map(record.get, summary.fields):
            if isinstance(text, str):
                summary.words += len(text.split())
                summary.characters += len(text)
                summary.scripts.add(text)
        value = record.get(name)
        if summary.multi:
            if not isinstance(value, list | None):
                raise DataError.at(
                    record, f"its labels are {value!r}, no list; write one, empty for a text without labels"
                )
            summary.labels.update(map(str, value or []))
        elif reading.learns == "Continuations":
            continue
        elif reading.learns == "Texts" and isinstance(value, str) and not value.strip():
            empty.append(str(record.get("where")))
        elif value is None or not str(value).strip() or (reading.learns == "Texts" and not isinstance(value, str)):
            missing.append(str(record.get("where")))
        elif reading.learns == "Labels":
            summary.labels[str(value)] += 1
        else:
            values.append(value)
    title = reading.of("label", "labels", "score", "target")
    if missing or len(empty) > MOST_LEFT_OUT * summary.records:
        _refuse_missing(summary, file, title[0], [*missing, *empty])
    if empty:
        records = "1 record has" if len(empty) == 1 else f"{len(empty):,} records have"
        summary.doubt(f"{records} an empty {title[0].title}, such as {empty[0]}; write it, or remove them")
    if reading.learns == "Numbers":
        low, high = min(values), max(values)
        summary.why = f"{title[0].title} has numbers from {low:g} to {high:g}"
        summary.notes.append(f"texts with a number each: {name!r}, {low:g} to {high:g}")
    elif reading.learns == "Texts":
        texts_of = reading.of("text")
        # One word to another, as in spelling and inflection, and texts without blanks, such as dates.
        summary.is_word = bool(texts_of) and texts_of[0].words <= 1.2 and not texts_of[0].is_unspaced
        summary.written = values[:: 1 + len(values) // WRITTEN_TEXTS]
        source = "text" if texts_of else summary.fields[0]
        summary.notes.append(f"texts with a text to write each: {name!r} is learned from {source!r}")
        summary.unspaced = summary.is_word or sum(" " in text for text in values) < summary.records / 2
    summary.unspaced = summary.unspaced or any(text.is_unspaced for text in reading.of("text", "text_pair"))
    summary.doubt_left_out(file.path)
    summary.scale()


def _refuse_missing(summary: DataSummary, file: DataFile, item: Field, places: Sequence[str]) -> None:
    """DataError with the place of the first record that lacks what is learned."""
    if item.number:
        rows = "1 row" if len(places) == 1 else f"{len(places):,} rows"
        fix = "fill it in, or remove the row"
        raise DataError(f"{places[0]}: {item.title} is to be learned and empty in {rows}; {fix}")
    fix = "write one in every object, or leave it out of all"
    raise DataError(f"{places[0]}: no {item.name!r} in this object; {fix}")
