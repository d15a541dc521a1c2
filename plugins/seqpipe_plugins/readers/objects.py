"""Shared code of the readers of objects: texts with spans, words with tags, or either alone, under any keys."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqpipe.plugin import DataError, OffsetEvidence, Offsets, StatedSpan, did_you_mean, stated_span, to_characters

from . import IllFormed, Lenient, Record, SchemeOption, TagError, Tagging, field_name

MOST_SPANS = 20_000  # that are read to recognise what offsets count


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """The options that readers of objects share.

    Args:
        text: Key of the text; null if there is none, for example with two texts.
        label: Key that becomes the field `label`; null if the keys already have the right names.
        labels: Key that becomes the field `labels`: a list of labels.
        words: Key of the words of a pre-split text.
        tags: Key of the tags.
        spans: Key of the spans; a span may also be a list [start, end, label].
        scheme: Tagging scheme; IO for entities without B- and I-, none for plain tags, such as parts of speech.
        ill_formed: Whether ill-formed tags are an error, or repaired like in conlleval.
        tag_format: Spelling of the tag that begins an entity PER, such as B_PER, PER-B or b-PER.
        outside: Tag of words outside of entities.
        joiner: Text between two words; "" for Chinese characters.
        offsets: What the offsets of spans count: characters (code points, the end exclusive), UTF-16 units, bytes of
            UTF-8, characters with inclusive ends, or characters from 1. `data.offsets` sets it.
    """

    text: str | None = "text"
    label: str | None = None
    labels: str | None = None
    words: str = "words"
    tags: str = "tags"
    spans: str = "spans"
    scheme: SchemeOption = "IOB2"
    ill_formed: IllFormed = "error"
    tag_format: str = "B-PER"
    outside: str = "O"
    joiner: str = " "
    offsets: Offsets = "characters"


class SpanError(DataError):
    """The offsets of a span do not fit its text."""


class Spans(Lenient, ABC):
    """A reader of texts with spans, whose offsets count what `offsets` says."""

    offsets: Offsets = "characters"
    evidence: OffsetEvidence | None = None  # where spans are counted, and not checked

    @abstractmethod
    def items(self, path: Path) -> Iterator[Record]:
        """The records of a file; SpanError for the first span that does not fit its text."""

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file, one at a time; DataError names file, line and fix."""
        try:
            yield from self.items(path)
        except SpanError as error:
            evidence = self.offset_evidence(path)
            if self.offsets != "characters" and not evidence.wrong:
                fix = f"all {evidence.spans:,} spans fit with data.reader.offsets: characters"
                raise DataError(f"{error} ({fix})") from error
            if not evidence.message:
                fix = (
                    f"{evidence.wrong:,} of {evidence.spans:,} spans do not fit; `bad_rows: skip` leaves such texts out"
                )
                raise DataError(f"{error} ({fix})") from error
            fix = f"set data.offsets: {evidence.convention}"
            raise DataError(f"{path}: {evidence.message}; {fix} (the first: {error})") from error

    def offset_evidence(self, path: Path) -> OffsetEvidence:
        """The spans of a file counted by the conventions that fit them, as they stand."""
        reader = copy.copy(self)
        reader.offsets, reader.evidence, reader.left_out = "characters", OffsetEvidence(), []
        for _ in reader.items(path):
            if reader.evidence.spans >= MOST_SPANS:
                break
        return reader.evidence

    def spans_of(self, items: Iterable[StatedSpan], text: str, where: str) -> list[Record]:
        """The spans of a text, in its order; DataError begins with `where`."""
        spans = []
        for number, item in enumerate(items, 1):
            place = f"{where}: span {number}"
            for key, offset in (("start", item.start), ("end", item.end)):
                if not isinstance(offset, int) or isinstance(offset, bool):
                    raise DataError(f"{place} has {kind_of(offset)} as `{key}`; it must be a whole number")
            if self.evidence is not None:
                self.evidence.add(text, item.start, item.end, item.text)
                continue
            start, end = to_characters(text, item.start, item.end, self.offsets)
            if not 0 <= start < end <= len(text):
                size = f"the text's {len(text)} code points"
                problem = f"{item.start} to {item.end} is empty or not within {size}{_unit(end, text)}"
                raise SpanError(f"{place}: {problem}; correct the offsets")
            stated, there = item.text, text[start:end]
            if stated is not None and "".join(stated.split()).casefold() != "".join(there.split()).casefold():
                fix = "offsets must count code points"
                raise SpanError(f"{place}: {start} to {end} is {there!r}, not {stated!r}; {fix}")
            for label in item.labels:
                if not isinstance(label, str) or not label:
                    raise DataError(
                        f"{place} has {kind_of(label)} as `label`; it must be a string with something in it"
                    )
                spans.append({"start": start, "end": end, "label": label})
        return sorted(spans, key=lambda span: (span["start"], span["end"]))


class Objects(Spans):
    """Makes records of objects."""

    fields = ("text", "words", "tags", "spans", "where")

    def __init__(self, *, objects: ObjectOptions):
        self.text, self.words, self.tags, self.spans = objects.text, objects.words, objects.tags, objects.spans
        renamed = (("label", objects.label), ("labels", objects.labels))
        self.renamed = {key: field for field, key in renamed if key is not None}
        self.tagging = Tagging(objects.scheme, objects.ill_formed, objects.tag_format, objects.outside)
        self.joiner, self.offsets = objects.joiner, objects.offsets

    def record(self, item: dict[str, Any], where: str) -> Record:
        """The record of an object; DataError begins with `where` and names the fix."""
        item = self._fields(item, where)
        if self.text is None:
            return {"source_where" if key == "where" else key: value for key, value in item.items()}
        used = {self.words, self.tags} if self.words in item else {self.text, self.spans}
        record = self._from_words(item, where) if self.words in item else self._from_text(item, where)
        if isinstance(item.get("labels"), list) and "labels" not in used:
            _check_labels(item["labels"], where)
        return {**record, **{field_name(key): value for key, value in item.items() if key not in used}}

    def _fields(self, item: dict[str, Any], where: str) -> dict[str, Any]:
        """The values of a line by their names: of what is within objects the dotted one, and `label` as renamed."""
        if any(isinstance(value, dict) for value in item.values()):
            item = item | {name: value for name, value in _within(item) if name not in item}
        for key, field in self.renamed.items():
            if key not in item:
                names = ", ".join(item) or "none"
                fix = f"correct the reader's option `{field}`, or the line"
                raise DataError(f"{where}: `{key}` is no key here{did_you_mean(key, item)} (keys: {names}); {fix}")
            if key != field:
                kept = {f"source_{name}" if name == field else name: value for name, value in item.items()}
                item = {**kept, field: kept.pop(key)}
        if isinstance(item.get("label"), bool):
            item = {**item, "label": "true" if item["label"] else "false"}
        return item

    def _from_words(self, item: dict[str, Any], where: str) -> Record:
        if self.spans in item:
            fix = f"give the words `{self.tags}`, or spans of a `{self.text}` without `{self.words}`"
            raise DataError(
                f"{where}: `{self.spans}` count characters of a text, and this line is split into words; {fix}"
            )
        words = _strings(item[self.words], self.words, where)
        record: Record = {"text": self.joiner.join(words), "words": words}
        if self.tags in item:
            tags = _strings(item[self.tags], self.tags, where)
            if len(tags) != len(words):
                raise DataError(
                    f"{where}: {len(words)} `{self.words}` but {len(tags)} `{self.tags}`; give one tag a word"
                )
            try:
                record["tags"] = self.tagging.to_iob2(tags)
            except TagError as error:
                raise DataError(f"{where}: tag {error.position + 1}: {error}") from error
        return record

    def _from_text(self, item: dict[str, Any], where: str) -> Record:
        if self.text not in item:
            keys = ", ".join(item) or "none"
            hint = did_you_mean(self.text or "", item) or did_you_mean(self.words, item)
            fix = "name them with the reader's options `text` and `words`, or set `text: null` if there are two texts"
            raise DataError(
                f"{where}: neither `{self.text}` nor `{self.words}` is a key here{hint} (keys: {keys}); {fix}"
            )
        text = item[self.text]
        if not isinstance(text, str):
            raise DataError(f"{where}: `{self.text}` is {kind_of(text)}; it must be a string")
        if self.tags in item:
            fix = f"`{self.words}` too, or name another key with the reader's option `tags`"
            raise DataError(f"{where}: `{self.tags}` belong to words, and there are none in this line; give {fix}")
        if self.spans not in item:
            return {"text": text}
        if not isinstance(item[self.spans], list):
            raise DataError(f"{where}: `spans` is {kind_of(item[self.spans])}; it must be a list")
        stated = []
        for i, span in enumerate(item[self.spans], 1):
            read = stated_span(span)
            if read is None:
                fix = 'write {"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
                raise DataError(f"{where}: span {i} is {kind_of(span)}; {fix}")
            stated.append(read)
        return {"text": text, "spans": self.spans_of(stated, text, where)}


def _within(item: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values within the objects of an object, each with its dotted name."""
    for key, value in item.items():
        if isinstance(value, dict):
            yield from _within(value, f"{before}{key}.")
        if before:
            yield f"{before}{key}", value


def _strings(value: object, key: str, where: str) -> list[str]:
    if not isinstance(value, list):
        raise DataError(f"{where}: `{key}` is {kind_of(value)}; it must be a list of strings")
    for i, item in enumerate(value, 1):
        if not isinstance(item, str) or not item:
            kind = "an empty string" if item == "" else kind_of(item)
            raise DataError(f"{where}: item {i} of `{key}` is {kind}; it must be a string with something in it")
    return list(value)


def _check_labels(labels: list[Any], where: str) -> None:
    fix = "if they are the words' tags, set the reader's option `tags: labels`"
    for i, label in enumerate(labels, 1):
        if not isinstance(label, str) or not label:
            kind = "an empty string" if label == "" else kind_of(label)
            raise DataError(f"{where}: item {i} of `labels` is {kind}; write a string with something in it; {fix}")
        if label in labels[: i - 1]:
            raise DataError(f"{where}: `labels` holds {label!r} twice; write each label once; {fix}")


def _unit(end: int, text: str) -> str:
    """A guess at the unit that was counted, where an end lies behind the text's."""
    if len(text) < end <= len(text.encode("utf-16-le", "surrogatepass")) // 2:
        return " (it would be within its UTF-16 units)"
    if len(text) < end <= len(text.encode("utf-8", "surrogatepass")):
        return " (it would be within its UTF-8 bytes)"
    return ""


def kind_of(value: object) -> str:
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "null or missing")
