"""Minimal pairs and alternatives: texts of which one is right, read from a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqpipe.answers.types import Part
from seqpipe.errors import DataError
from seqpipe.features.document import Record, field_names
from seqpipe.features.vocabulary import MASK
from seqpipe.runtime.text_scores import ScoredText

GOOD, BAD, ALTERNATIVES, ANSWER, TEXT = "sentence_good", "sentence_bad", "alternatives", "answer", "text"
_EXAMPLE = f'{{"{GOOD}": "The cats sleep.", "{BAD}": "The cats sleeps."}}'
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Item:
    """Texts of which one is right: a minimal pair, or a context with each of several alternatives.

    Args:
        record: As the file has it, with `where`.
        texts: Without blanks being added or removed.
        parts: Where the alternative stands in each text; empty where the whole texts are compared.
        answer: The position of the right one.
    """

    record: Record
    texts: tuple[str, ...]
    parts: tuple[Part, ...]
    answer: int

    def scored(self, field: str) -> Iterator[ScoredText]:
        """Each text as a record whose text stands in this field."""
        for i, text in enumerate(self.texts):
            yield ScoredText({**self.record, field: text, "words": None}, self.parts[i] if self.parts else None)


def read_items(path: Path) -> Iterator[Item]:
    """The items of a file of JSON lines, or of a table with a header if its name ends in .csv or .tsv.

    Raises:
        DataError: names file and line of what is none, or that the file has none.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8; convert it: iconv -f latin1 -t utf-8") from error
    records = _table(text, path) if path.suffix.lower() in _DELIMITERS else _json_lines(text, path)
    empty = True
    for where, record in records:
        empty = False
        yield item_of({**record, "where": where})
    if empty:
        raise DataError(f"{path}: there are no pairs in this file; write one a line, such as {_EXAMPLE}")


def _json_lines(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: this is not JSON ({error}); write one object a line, {_EXAMPLE}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: must be an object such as {_EXAMPLE}, not {type(record).__name__}")
        yield where, record


def _table(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=_DELIMITERS[path.suffix.lower()])
    for row in rows:
        yield f"{path}:{rows.line_num}", {name: value for name, value in row.items() if name and value is not None}


def item_of(record: Record) -> Item:
    """What a record asks; DataError if it is neither a pair nor a list of alternatives with its answer."""
    if ALTERNATIVES in record:
        return _alternatives(record)
    if GOOD not in record or BAD not in record:
        raise DataError.at(
            record, f"needs {GOOD!r} and {BAD!r}, or {ALTERNATIVES!r} and {ANSWER!r}; it has: {field_names(record)}"
        )
    texts = _texts(record, [record[GOOD], record[BAD]], f"{GOOD!r} and {BAD!r}")
    if texts[0] == texts[1]:
        raise DataError.at(record, f"{GOOD!r} and {BAD!r} are the same text {texts[0]!r}; a pair has two")
    return Item(record, texts, (), 0)


def _alternatives(record: Record) -> Item:
    """Alternatives that stand where the text has [MASK], else behind the text; whole texts where there is none."""
    values, answer, text = record[ALTERNATIVES], record.get(ANSWER), record.get(TEXT, "")
    if not isinstance(values, list):
        raise DataError.at(record, f"{ALTERNATIVES!r} must be a list of texts, not {type(values).__name__}")
    alternatives = _texts(record, values, f"{ALTERNATIVES!r}")
    if len({*alternatives}) < max(2, len(alternatives)):
        raise DataError.at(record, f"{ALTERNATIVES!r} must be two or more texts that differ, not {values!r}")
    if type(answer) is not int or not 0 <= answer < len(alternatives):
        most = len(alternatives) - 1
        raise DataError.at(record, f"{ANSWER!r} must be the position of the right one, 0 to {most}, not {answer!r}")
    if not isinstance(text, str) or text.count(MASK) > 1:
        raise DataError.at(record, f"{TEXT!r} must be a text with {MASK} at most once, not {text!r}")
    if not text:
        return Item(record, alternatives, (), answer)
    before, _, after = text.partition(MASK)
    parts = tuple((len(before), len(before) + len(alternative)) for alternative in alternatives)
    return Item(record, tuple(f"{before}{alternative}{after}" for alternative in alternatives), parts, answer)


def _texts(record: Record, values: Sequence[Any], what: str) -> tuple[str, ...]:
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise DataError.at(record, f"{what} must be texts that are not empty, not {values!r}")
    return tuple(values)
