"""Fields of structured answers: their description, their values in records, in `loss` and in decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqpipe.answers import json_schema
from seqpipe.answers.base import float32_number, present, probability, required_field
from seqpipe.answers.json_schema import Schema, obj, one_of, or_null
from seqpipe.answers.regression import number_of
from seqpipe.answers.span_rules import SpanRules
from seqpipe.answers.tagging import label_ids
from seqpipe.answers.types import Array, Target
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record

TEXT, WORD, PAIR = PER = ("text", "word", "pair")
LABEL, POSITION, NUMBER, SPAN = TYPES = ("label", "position", "number", "span")
SCORES = "_scores"  # behind a field's name: its probabilities, which a decision may hold
_SHAPES = {TEXT: ("B",), WORD: ("B", "T"), PAIR: ("B", "T", "T")}
_TAKEN = ("words", "word", "start", "end", "ids", "mask", "x")  # names in answers and in batches
_ENDINGS = ("_score", SCORES, "_mask")
_FORM = 'such as {"head": {"per": "word", "type": "position"}}'


@dataclass(frozen=True)
class Field:
    """One field of an answer.

    Args:
        name: Of the graph's output, of the target that `loss` gets, and of the key in an answer.
        per: `text`, `word`, or `pair` of words.
        type: `label`, `position` of a word, `number`, or `span` of words.
        target: The record field with the reference.
        labels: Of a label field; of pairs the first one means that there is nothing to say of a pair.
    """

    name: str
    per: str
    type: str
    target: str
    labels: tuple[str, ...] = ()

    @property
    def array(self) -> Array:
        """Its output, and its target."""
        axes = _SHAPES[self.per] + (("2",) if self.type == SPAN else ())
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        return Array(shape, "float32" if self.type == NUMBER else "int64")

    @property
    def scores(self) -> Array:
        axes = _SHAPES[self.per]
        return Array(f"({', '.join(axes)}{',' if len(axes) == 1 else ''})", "float32", "probability", required=False)

    def value_schema(self) -> Schema:
        """The JSON Schema of a value."""
        if self.type == LABEL:
            return one_of(self.labels)
        if self.type == SPAN:
            place = {"start": json_schema.POSITION, "end": json_schema.POSITION}
            return or_null(obj({"text": json_schema.TEXT, **place}))
        return json_schema.NUMBER if self.type == NUMBER else or_null(json_schema.POSITION)

    def manifest(self) -> dict[str, Any]:
        stated = {"name": self.name, "per": self.per, "type": self.type, "target": self.target}
        return {**stated, "labels": list(self.labels)} if self.type == LABEL else stated


def fields_from(stated: Any) -> tuple[Field, ...]:
    """The fields that a head describes; ValueError for what is no field.

    Args:
        stated: By name: `per`, `type`, and where they are needed `target` (else the name) and, of labels of pairs,
            `outside`, the label of a pair of which there is nothing to say.
    """
    if not isinstance(stated, Mapping) or not stated:
        raise ValueError(f"fields: a structured answer has at least one, {_FORM}")
    fields = []
    for name, keys in stated.items():
        if not isinstance(keys, Mapping) or keys.keys() - {"per", "type", "target", "outside"}:
            raise ValueError(f"fields.{name}: {keys!r} is no field; state per and type, {_FORM}")
        outside = (str(keys["outside"]),) if "outside" in keys else ()
        fields.append(
            checked(Field(name, keys.get("per", ""), keys.get("type", ""), keys.get("target", name), outside))
        )
        if (fields[-1].per, fields[-1].type) == (PAIR, LABEL) and not outside:
            raise ValueError(f"fields.{name}: labels of pairs need `outside`, the label of all other pairs")
    return tuple(fields)


def fields_of(manifest: Any) -> tuple[Field, ...]:
    """The fields that a manifest lists; KeyError, TypeError or ValueError for what is no such list."""
    fields = [
        checked(Field(stated["name"], stated["per"], stated["type"], stated["target"], tuple(stated.get("labels", ()))))
        for stated in manifest
    ]
    if not fields or len({field.name for field in fields}) < len(fields):
        raise ValueError("fields: a structured answer has at least one, each with a name of its own")
    for field in fields:
        if (field.type == LABEL) != bool(field.labels):
            raise ValueError(f"fields.{field.name}: a field has labels if its type is label, and only then")
    return tuple(fields)


def checked(field: Field) -> Field:
    """The field; ValueError if no answer can have it."""
    texts: tuple[Any, ...] = (field.name, field.target, *field.labels)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"fields: {text!r} is no text: name, target and labels are texts")
    if not field.name.isidentifier() or field.name in _TAKEN or field.name.endswith(_ENDINGS):
        cure = f"take letters, digits and _, not {', '.join(_TAKEN)}, and no ending {', '.join(_ENDINGS)}"
        raise ValueError(f"fields: {field.name!r} is no name of a field; {cure}")
    if len({*field.labels}) < len(field.labels):
        raise ValueError(f"fields.{field.name}: a label stands twice among {', '.join(field.labels)}")
    if field.per not in PER or field.type not in TYPES:
        message = f"per is one of {', '.join(PER)}, and type one of {', '.join(TYPES)}"
        raise ValueError(f"fields.{field.name}: {field.per!r} and {field.type!r}: {message}")
    if field.per == PAIR and field.type not in (LABEL, NUMBER):
        raise ValueError(f"fields.{field.name}: of a pair of words there is a label or a number, no {field.type}")
    return field


def answer_value(field: Field, value: np.ndarray, doc: Doc) -> Any:
    """A number of the graph as an answer has it; ValueError for one that means nothing."""
    words = doc.word_offsets
    if field.type == NUMBER:
        return float32_number(float(value))
    if field.type == SPAN:
        first, last = (int(at) for at in value)
        if first < 0:
            return None
        if not first <= last < len(words):
            raise ValueError(f"{field.name}: {first} to {last} is no span of {len(words)} words")
        start, end = words[first][0], words[last][1]
        return {"text": doc.text[start:end], "start": start, "end": end}
    number, most = int(value), len(field.labels) if field.type == LABEL else len(words)
    if not (0 if field.type == LABEL else -1) <= number < most:
        raise ValueError(f"{field.name}: {number} is none of {most}")
    if field.type == LABEL:
        return field.labels[number]
    return None if number < 0 else number


def answer_pairs(field: Field, values: np.ndarray, scores: np.ndarray | None, doc: Doc) -> list[dict[str, Any]]:
    """The pairs of words of which there is something to say."""
    key, pairs = LABEL if field.type == LABEL else "value", list[dict[str, Any]]()
    for i, j in np.argwhere(values != 0).tolist():
        score = {} if scores is None else {"score": probability(scores[i, j])}
        pairs.append({"from": i, "to": j, key: answer_value(field, values[i, j], doc), **score})
    return pairs


def target_of(field: Field, record: Record, doc: Doc, rules: SpanRules) -> Target | None:
    """What `loss` gets of a record; None if it is to be skipped."""
    words, ids = doc.word_offsets, {label: i for i, label in enumerate(field.labels)}
    if field.per == PAIR:
        rows: list[Any] = [[0 if field.type == LABEL else 0.0] * len(words) for _ in words]
        for pair in _record_pairs(field, record, len(words)):
            value = pair["value"]
            rows[pair["from"]][pair["to"]] = label_ids(ids, [value])[0] if field.type == LABEL else value
        return rows
    values = _values(field, record, len(words))
    if field.type == LABEL:
        numbers: list[Any] = label_ids(ids, values)
    elif field.type == POSITION:
        numbers = [-1 if value is None else value for value in values]
    elif field.type == SPAN:
        numbers = [_word_span(value, record, doc, rules) for value in values]
        if None in numbers:
            return None
    else:
        numbers = values
    return numbers[0] if field.per == TEXT else numbers


def _word_span(span: tuple[int, int] | None, record: Record, doc: Doc, rules: SpanRules) -> list[int] | None:
    """The first and last word of a span, -1 of none; None if it cuts a word, and such records are to be skipped."""
    if span is None:
        return [-1, -1]
    inside = rules.align(doc.word_offsets, span, doc, record, f"span {doc.text[slice(*span)]!r} cuts a word")
    return None if inside is None else list(inside)


def _values(field: Field, record: Record, words: int) -> list[Any]:
    """The value of a record for the text, alone in a list, or those for each word."""
    if field.per == TEXT:
        may_be_null = field.type in (POSITION, SPAN)
        value = required_field(record, field.target) if may_be_null else present(record, field.target)
        return [_record_value(field, record, value, words)]
    values = _listed(field, record)
    if len(values) != words:
        message = f"field {field.target!r} has {len(values)} values for {words} words; give one for each"
        raise DataError.at(record, message)
    return [_record_value(field, record, value, words) for value in values]


def _listed(field: Field, record: Record) -> Sequence[Any]:
    """The values of words or pairs in a record; DataError if they are no list."""
    values = present(record, field.target)
    if not isinstance(values, list | tuple):
        message = f"field {field.target!r} must be a list with the values of {field.per}s, not {type(values).__name__}"
        raise DataError.at(record, message)
    return values


def _record_value(field: Field, record: Record, value: Any, words: int) -> Any:
    """A value of a record; DataError for one that is none of its type."""
    if field.type == LABEL:
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise DataError.at(record, f"field {field.target!r}: {value!r} is no label, a text or a whole number")
        return str(value)
    if field.type == NUMBER:
        return number_of({**record, field.target: value}, field.target)
    if value is None or value == -1:
        return None
    if field.type == POSITION:
        if type(value) is not int or not 0 <= value < words:
            message = f"{value!r} is no position of one of {words} words, which count from 0 (none: null)"
            raise DataError.at(record, f"field {field.target!r}: {message}")
        return value
    start, end = (value.get("start"), value.get("end")) if isinstance(value, Mapping) else (None, None)
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        message = f'{value!r} is no span, such as {{"start": 0, "end": 5}}'
        raise DataError.at(record, f"field {field.target!r}: {message}")
    return (start, end)


def _record_pairs(field: Field, record: Record, words: int) -> list[dict[str, Any]]:
    """The pairs of a record: `from`, `to` and `value`; DataError for what is none."""
    key, pairs, known = LABEL if field.type == LABEL else "value", list[dict[str, Any]](), set[tuple[int, int]]()
    for pair in _listed(field, record):
        if not isinstance(pair, Mapping) or not {"from", "to", key} <= pair.keys():
            raise DataError.at(record, f'field {field.target!r}: {pair!r} is no pair; write {{"from", "to", "{key}"}}')
        ends = (pair["from"], pair["to"])
        if not all(type(at) is int and 0 <= at < words for at in ends):
            raise DataError.at(record, f"field {field.target!r}: {ends} are no positions of {words} words, from 0 on")
        if ends in known:
            raise DataError.at(record, f"field {field.target!r} states the pair {ends} twice; leave one of the two out")
        known.add(ends)
        pairs.append({"from": ends[0], "to": ends[1], "value": _record_value(field, record, pair[key], words)})
    return pairs


def labels_of(field: Field, record: Record) -> list[str]:
    """The labels of a record's field."""
    if field.per == PAIR:
        words = len(record.get("words") or ()) or 1 << 31
        return [pair["value"] for pair in _record_pairs(field, record, words)]
    values = _listed(field, record) if field.per == WORD else [present(record, field.target)]
    return [_record_value(field, record, label, 0) for label in values]


def gold_value(field: Field, record: Record, places: Sequence[tuple[int, int]]) -> Any:
    """A field of the reference, comparable with `predicted`."""
    if field.per == PAIR:
        pairs = _record_pairs(field, record, len(places))
        outside = field.labels[:1] if field.type == LABEL else (0,)
        return {
            (places[pair["from"]], places[pair["to"]]): pair["value"] for pair in pairs if pair["value"] not in outside
        }
    values = _values(field, record, len(places))
    if field.type == POSITION:
        values = [None if value is None else places[value] for value in values]
    return values[0] if field.per == TEXT else dict(zip(places, values, strict=True))


def comparable(field: Field, value: Any, places: Sequence[tuple[int, int]]) -> Any:
    """A value of an answer as `gold_value` has it: words by their places."""
    if value is None or field.type in (LABEL, NUMBER):
        return value
    return places[value] if field.type == POSITION else (value["start"], value["end"])
