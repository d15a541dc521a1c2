"""Shared code of the readers of objects: texts with spans, words with tags, or either alone, under any keys."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqpipe.plugin import (
    DataError,
    Offsets,
    StatedSpan,
    did_you_mean,
    fitting_offsets,
    locate_answer,
    stated_span,
    with_paths,
)

from . import DEFAULT_TAGS, FileFields, Lenient, Record, TagSpec, field_name

MOST_SPANS = 20_000  # that are read to recognise what offsets count


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """The options that readers of objects share.

    Args:
        text: Key of the text; null if there is none, for example with two texts.
        label: Key that becomes the field `label`; null if the keys already have the right names.
        labels: Key that becomes the field `labels`: a list of labels, which a record without labels may lack.
        words: Key of the words of a pre-split text.
        tags: Key of the tags.
        spans: Key of the spans; a span may also be a list [start, end, label].
        joiner: Text between two words; "" for Chinese characters.
        files: Keys that name files, such as pictures, relative to the folder of the data file.
        offsets: What the offsets of spans count: characters (code points, the end exclusive), UTF-16 units, bytes of
            UTF-8, characters with inclusive ends, or characters from 1. `data.offsets` sets it.
    """

    text: str | None = "text"
    label: str | None = None
    labels: str | None = None
    words: str = "words"
    tags: str = "tags"
    spans: str = "spans"
    joiner: str = " "
    files: list[str] = field(default_factory=list)
    offsets: Offsets = "characters"


class SpanError(DataError):
    """The offsets of a span do not fit its text."""


class SpansReader(Lenient, ABC):
    """A reader of texts with spans or answers, whose offsets count what `offsets` says."""

    offsets: Offsets = "characters"
    stated: set[tuple[str, StatedSpan]] | None = None  # spans are collected here, and not checked
    empty_message = "there is no record in this file; give one with at least one example"

    @abstractmethod
    def items(self, path: Path) -> Iterator[Record]:
        """The records of a file; SpanError for the first span that does not fit its text."""

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file, one at a time; DataError names file, line and fix."""
        try:
            yield from self.not_empty(self.items(path), path)
        except SpanError as error:
            offsets, message = self.fitting_offsets(path)
            if offsets == self.offsets:
                raise DataError(f"{error} ({message}; `bad_rows: skip` leaves such texts out)") from error
            key = "data.reader.offsets" if offsets == "characters" else "data.offsets"
            raise DataError(f"{path}: {message}; set {key}: {offsets} (the first: {error})") from error

    def fitting_offsets(self, path: Path) -> tuple[Offsets, str]:
        """Return what the offsets in a file count, and a message with the number of spans that fit."""
        reader = copy.copy(self)
        reader.stated, reader.left_out = set(), []
        for _ in reader.items(path):
            if len(reader.stated) >= MOST_SPANS:
                break
        return fitting_offsets(reader.stated, self.offsets)

    def spans_of(self, items: Iterable[Any], text: str, where: str) -> list[Record]:
        """The spans of a text, in its order, of stated spans or items that state one; DataError begins with `where`."""
        spans = []
        for number, item in enumerate(items, 1):
            place = f"{where}: span {number}"
            span = item if isinstance(item, StatedSpan) else stated_span(item)
            if span is None:
                fix = 'write {"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
                raise DataError(f"{place} is {describe_value(item)}; {fix}")
            for key, offset in (("start", span.start), ("end", span.end)):
                if not isinstance(offset, int) or isinstance(offset, bool):
                    raise DataError(f"{place} has {describe_value(offset)} as `{key}`; it must be a whole number")
            if self.stated is not None:
                self.stated.add((text, replace(span, labels=())))
                continue
            start, end = span.place(text, self.offsets)
            if not 0 <= start < end <= len(text):
                utf_16, utf_8 = (len(text.encode(codec, "surrogatepass")) for codec in ("utf-16-le", "utf-8"))
                sizes = f"{len(text)} code points ({utf_16 // 2} UTF-16 units, {utf_8} UTF-8 bytes)"
                problem = f"{span.start} to {span.end} is empty or not within the text's {sizes}"
                raise SpanError(f"{place}: {problem}; correct the offsets")
            if span.text is not None and not span.covers(text, start, end):
                problem = f"{start} to {end} is {text[start:end]!r}, not {span.text!r}"
                raise SpanError(f"{place}: {problem}; offsets must count code points")
            for label in span.labels:
                if not isinstance(label, str) or not label:
                    fix = "write a string with something in it"
                    raise DataError(f"{place} has {describe_value(label)} as `label`; {fix}")
                spans.append({"start": start, "end": end, "label": label})
        return sorted(spans, key=lambda span: (span["start"], span["end"]))

    def answers_of(self, answers: Sequence[tuple[str, int]], passage: str, where: str) -> Record:
        """The answers in a passage, their starts in code points; SpanError if one is not where it starts."""
        starts = []
        for text, start in answers:
            if self.stated is not None:
                self.stated.add((passage, StatedSpan(start, None, text=text)))
            else:
                start, _ = StatedSpan(start, start).place(passage, self.offsets)
                try:
                    locate_answer((text, start), passage, where)
                except DataError as error:
                    raise SpanError(str(error)) from error
            starts.append(start)
        return {"text": [text for text, _ in answers], "answer_start": starts}


class Objects(SpansReader, FileFields):
    """Makes records of objects."""

    fields = ("text", "words", "tags", "spans", "where")

    def __init__(self, *, objects: ObjectOptions, tagging: TagSpec = DEFAULT_TAGS):
        self.text, self.words, self.tags, self.spans = objects.text, objects.words, objects.tags, objects.spans
        renamed = (("label", objects.label), ("labels", objects.labels))
        self.renamed = {key: field for field, key in renamed if key is not None}
        self.tagging, self.joiner = tagging, objects.joiner
        self.offsets, self.file_fields = objects.offsets, objects.files

    def record(self, item: dict[str, Any], where: str) -> Record:
        """The record of an object; DataError begins with `where` and names the fix."""
        item = with_paths(self._fields(item, where), self.file_fields, where)
        if self.text is None:
            return {"source_where" if key == "where" else key: value for key, value in item.items()}
        used = {self.words, self.tags} if self.words in item else {self.text, self.spans}
        record = self._from_words(item, where) if self.words in item else self._from_text(item, where)
        labels = item.get("labels")
        if isinstance(labels, list) and "labels" not in used:
            fix = "if they are the words' tags, set the reader's option `tags: labels`"
            for i, label in enumerate(_strings(labels, "labels", where, f"; {fix}")):
                if label in labels[:i]:
                    raise DataError(f"{where}: `labels` has {label!r} twice; write each label once; {fix}")
        return {**record, **{field_name(key): value for key, value in item.items() if key not in used}}

    def _fields(self, item: dict[str, Any], where: str) -> dict[str, Any]:
        """The values of a line by their names: of what is within objects the dotted one, and `label` as renamed."""
        item = item | {name: value for name, value in _dotted(item) if name not in item}
        for key, role in self.renamed.items():
            if key not in item and role == "labels":
                item = {**item, "labels": []}  # a record without labels has none
                continue
            if key not in item:
                fix = f"correct the reader's option `{role}`, or the line"
                raise DataError(f"{where}: there is no key `{key}`{_there_are(item, key)}; {fix}")
            if key != role:
                kept = {f"source_{name}" if name == role else name: value for name, value in item.items()}
                item = {**kept, role: kept.pop(key)}
        if isinstance(item.get("label"), bool):
            item = {**item, "label": "true" if item["label"] else "false"}
        return item

    def _from_words(self, item: dict[str, Any], where: str) -> Record:
        if self.spans in item:
            problem = f"`{self.spans}` count characters of a text, and this line is split into words"
            fix = f"give the words `{self.tags}`, or spans of a `{self.text}` without `{self.words}`"
            raise DataError(f"{where}: {problem}; {fix}")
        words = _strings(item[self.words], self.words, where)
        record: Record = {"text": self.joiner.join(words), "words": words}
        if self.tags in item:
            record["tags"] = self.tagging.of_words(words, _strings(item[self.tags], self.tags, where), where)
        return record

    def _from_text(self, item: dict[str, Any], where: str) -> Record:
        if self.text not in item:
            problem = f"neither `{self.text}` nor `{self.words}` is a key here{_there_are(item, self.text, self.words)}"
            fix = "name them with the reader's options `text` and `words`, or set `text: null` if there are two texts"
            raise DataError(f"{where}: {problem}; {fix}")
        text = item[self.text]
        if not isinstance(text, str):
            raise DataError(f"{where}: `{self.text}` is {describe_value(text)}; it must be a string")
        if self.tags in item:
            fix = f"`{self.words}` too, or name another key with the reader's option `tags`"
            raise DataError(f"{where}: `{self.tags}` belong to words, and there are none in this line; give {fix}")
        if self.spans not in item:
            return {"text": text}
        if not isinstance(item[self.spans], list):
            raise DataError(f"{where}: `spans` is {describe_value(item[self.spans])}; it must be a list")
        return {"text": text, "spans": self.spans_of(item[self.spans], text, where)}


def _dotted(item: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values within the objects of an object, each with its dotted name."""
    for key, value in item.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{key}.")
        if before:
            yield f"{before}{key}", value


def _strings(value: object, key: str, where: str, hint: str = "") -> list[str]:
    if not isinstance(value, list):
        raise DataError(f"{where}: `{key}` is {describe_value(value)}; it must be a list of strings")
    for i, item in enumerate(value, 1):
        if not isinstance(item, str) or not item:
            problem = f"item {i} of `{key}` is {describe_value(item)}"
            raise DataError(f"{where}: {problem}; write a string with something in it{hint}")
    return list(value)


def _there_are(item: dict[str, Any], *names: str | None) -> str:
    """The key that is most like one of these names, and all keys."""
    hint = next(filter(None, (did_you_mean(name or "", item) for name in names)), "")
    return f"{hint} (keys: {', '.join(item) or 'none'})"


def describe_value(value: object) -> str:
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "an empty string" if value == "" else names.get(type(value), "null or missing")
