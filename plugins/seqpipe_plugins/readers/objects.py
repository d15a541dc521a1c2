"""Shared code of the readers of objects: texts with spans, words with tags, or either alone, under any keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seqpipe.plugin import DataError, did_you_mean

from . import IllFormed, Record, SchemeOption, TagError, Tagging, free

_LABEL_KEYS = ("label", "entity_group", "entity", "type")


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


class Objects:
    """Makes records of objects."""

    fields = ("text", "words", "tags", "spans", "where")

    def __init__(self, *, objects: ObjectOptions):
        self.text, self.words, self.tags, self.spans = objects.text, objects.words, objects.tags, objects.spans
        renamed = (("label", objects.label), ("labels", objects.labels))
        self.renamed = {key: field for field, key in renamed if key is not None}
        self.tagging = Tagging(objects.scheme, objects.ill_formed, objects.tag_format, objects.outside)
        self.joiner = objects.joiner

    def record(self, item: dict[str, Any], where: str) -> Record:
        """The record of an object; DataError begins with `where` and names the fix."""
        item = self._fields(item, where)
        if self.text is None:
            return {"source_where" if key == "where" else key: value for key, value in item.items()}
        used = {self.words, self.tags} if self.words in item else {self.text, self.spans}
        record = self._from_words(item, where) if self.words in item else self._from_text(item, where)
        if isinstance(item.get("labels"), list) and "labels" not in used:
            _check_labels(item["labels"], where)
        return {**record, **{free(key): value for key, value in item.items() if key not in used}}

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
        spans = [_span(span, text, f"{where}: span {i}") for i, span in enumerate(item[self.spans], 1)]
        return {"text": text, "spans": sorted(spans, key=lambda span: (span["start"], span["end"]))}


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


def _span(item: object, text: str, where: str) -> Record:
    if isinstance(item, list) and len(item) == 3:
        item = dict(zip(("start", "end", "label"), item, strict=True))
    if not isinstance(item, dict):
        raise DataError(f'{where} is {kind_of(item)}; write {{"start": 0, "end": 5, "label": "PER"}} or [0, 5, "PER"]')
    start, end = _offset(item, "start", where), _offset(item, "end", where)
    label = next((item[key] for key in _LABEL_KEYS if key in item), None)
    if not isinstance(label, str) or not label:
        raise DataError(f"{where} has {kind_of(label)} as `label`; it must be a string with something in it")
    if not 0 <= start < end <= len(text):
        size = f"the text's {len(text)} code points"
        raise DataError(
            f"{where}: {start} to {end} is empty or not within {size}{_unit(end, text)}; correct the offsets"
        )
    for key in ("text", "word"):
        stated, there = item.get(key), text[start:end]
        if isinstance(stated, str) and "".join(stated.split()).casefold() != "".join(there.split()).casefold():
            raise DataError(f"{where}: {start} to {end} is {there!r}, not {stated!r}; offsets must count code points")
    return {"start": start, "end": end, "label": label}


def _offset(span: dict[str, Any], key: str, where: str) -> int:
    offset = span.get(key)
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise DataError(f"{where} has {kind_of(offset)} as `{key}`; it must be a whole number")
    return offset


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
