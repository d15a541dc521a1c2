"""Fields of structured answers: their description, their values in records, in `loss` and in decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqpipe.answers.base import float32_number, present, probability
from seqpipe.answers.regression import number_of
from seqpipe.answers.tagging import label_ids
from seqpipe.answers.types import Array, Target
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record

TEXT, WORD, PAIR = PER = ("text", "word", "pair")
LABEL, POSITION, NUMBER, SPAN = TYPES = ("label", "position", "number", "span")
SCORES = "_scores"  # behind a field's name: its probabilities, which a decision may hold
_SHAPES = {TEXT: ("B",), WORD: ("B", "T"), PAIR: ("B", "T", "T")}
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

    def manifest(self) -> dict[str, Any]:
        stated = {"name": self.name, "per": self.per, "type": self.type, "target": self.target}
        return {**stated, "labels": list(self.labels)} if self.type == LABEL else stated


def fields_from(stated: Mapping[str, Mapping[str, Any]]) -> tuple[Field, ...]:
    """The fields that a head describes; ValueError for what is no field.

    Args:
        stated: By name: `per`, `type`, and where they are needed `target` (else the name) and, of labels of pairs,
            `outside`, the label of a pair of which there is nothing to say.
    """
    fields = []
    for name, keys in stated.items():
        if keys.keys() - {"per", "type", "target", "outside"}:
            raise ValueError(f"fields.{name}: {keys!r} is no field; state per and type, {_FORM}")
        outside = (str(keys["outside"]),) if "outside" in keys else ()
        fields.append(
            checked(Field(name, keys.get("per", ""), keys.get("type", ""), keys.get("target", name), outside))
        )
        if (fields[-1].per, fields[-1].type) == (PAIR, LABEL) and not outside:
            raise ValueError(f"fields.{name}: labels of pairs need `outside`, the label of all other pairs")
    if not fields:
        raise ValueError(f"fields: a structured answer has at least one, {_FORM}")
    return tuple(fields)


def checked(field: Field) -> Field:
    """The field; ValueError if no answer can have it."""
    if not field.name.isidentifier() or field.name.endswith(SCORES):
        raise ValueError(f"fields: {field.name!r} is no name of a field; take letters, digits and _ (not {SCORES})")
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
            raise ValueError(f"{field.name}: the span {first} to {last} is none of {len(words)} words")
        start, end = words[first][0], words[last][1]
        return {"text": doc.text[start:end], "start": start, "end": end}
    number, most = int(value), len(field.labels) if field.type == LABEL else len(words)
    if not (0 if field.type == LABEL else -1) <= number < most:
        raise ValueError(f"{field.name}: {number} is none of {most}")
    if field.type == LABEL:
        return field.labels[number]
    return None if number < 0 else number


def answer_pairs(field: Field, values: np.ndarray, scores: np.ndarray | None, doc: Doc) -> list[dict[str, Any]]:
    key, chosen = (LABEL, np.argwhere(values != 0)) if field.type == LABEL else ("value", np.argwhere(values != 0))
    pairs = []
    for i, j in chosen.tolist():
        score = {} if scores is None else {"score": probability(scores[i, j])}
        pairs.append({"from": i, "to": j, key: answer_value(field, values[i, j], doc), **score})
    return pairs


def target_of(field: Field, record: Record, doc: Doc) -> Target:
    """What `loss` gets of a record."""
    words, ids = doc.word_offsets, {label: i for i, label in enumerate(field.labels)}
    if field.per == PAIR:
        rows: list[Any] = [[0] * len(words) for _ in words]
        for pair in _record_pairs(field, record, len(words)):
            value = pair["value"]
            rows[pair["from"]][pair["to"]] = label_ids(ids, [value])[0] if field.type == LABEL else value
        return rows
    if field.per == TEXT:
        value = _record_value(field, record, _text_field(field, record), len(words))
        return _number(field, value, ids, words)
    values = _word_values(field, record, len(words))
    return [_number(field, value, ids, words) for value in values]


def _number(field: Field, value: Any, ids: Mapping[str, int], words: Sequence[tuple[int, int]]) -> Any:
    if field.type == LABEL:
        return label_ids(ids, [value])[0]
    if field.type == POSITION:
        return -1 if value is None else value
    if field.type == SPAN:
        inside = [] if value is None else [i for i, (a, b) in enumerate(words) if a < value[1] and b > value[0]]
        return [inside[0], inside[-1]] if inside else [-1, -1]
    return value


def _text_field(field: Field, record: Record) -> Any:
    """The value of a record for its text: null only where it means that there is no such word or span."""
    may_be_none = field.type in (POSITION, SPAN) and field.target in record
    return record[field.target] if may_be_none else present(record, field.target)


def _word_values(field: Field, record: Record, words: int) -> list[Any]:
    """The values of a record for each word; DataError unless there are as many."""
    values = present(record, field.target)
    if not isinstance(values, list | tuple) or len(values) != words:
        many = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise DataError.at(record, f"field {field.target!r} has {many} values for {words} words; give one for each")
    return [_record_value(field, record, value, words) for value in values]


def _record_value(field: Field, record: Record, value: Any, words: int) -> Any:
    """A value of a record; DataError for one that is none of its type."""
    if field.type == LABEL:
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
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
    if not isinstance(value, Mapping) or not {"start", "end"} <= value.keys():
        message = f'{value!r} is no span, such as {{"start": 0, "end": 5}}'
        raise DataError.at(record, f"field {field.target!r}: {message}")
    return (value["start"], value["end"])


def _record_pairs(field: Field, record: Record, words: int) -> list[dict[str, Any]]:
    """The pairs of a record: `from`, `to` and `value`; DataError for what is none."""
    key, pairs = LABEL if field.type == LABEL else "value", []
    for pair in present(record, field.target):
        if not isinstance(pair, Mapping) or not {"from", "to", key} <= pair.keys():
            raise DataError.at(record, f'field {field.target!r}: {pair!r} is no pair; write {{"from", "to", "{key}"}}')
        ends = [pair["from"], pair["to"]]
        if not all(type(at) is int and 0 <= at < words for at in ends):
            raise DataError.at(record, f"field {field.target!r}: {ends} are no positions of {words} words, from 0 on")
        pairs.append({"from": ends[0], "to": ends[1], "value": _record_value(field, record, pair[key], words)})
    return pairs


def labels_of(field: Field, record: Record) -> list[str]:
    """The labels of a record's field."""
    if field.per == PAIR:
        words = len(record.get("words") or ()) or 1 << 31
        return [pair["value"] for pair in _record_pairs(field, record, words)]
    value = present(record, field.target)
    return [_record_value(field, record, label, 0) for label in (value if field.per == WORD else [value])]


def gold_value(field: Field, record: Record, places: Sequence[tuple[int, int]]) -> Any:
    """A field of the reference, comparable with `predicted`."""
    if field.per == PAIR:
        pairs = _record_pairs(field, record, len(places))
        outside = field.labels[:1] if field.type == LABEL else (0,)
        return {
            (places[pair["from"]], places[pair["to"]]): pair["value"] for pair in pairs if pair["value"] not in outside
        }
    if field.per == TEXT:
        value = _record_value(field, record, _text_field(field, record), len(places))
        return places[value] if field.type == POSITION and value is not None else value
    values = _word_values(field, record, len(places))
    if field.type == POSITION:
        values = [None if value is None else places[value] for value in values]
    return dict(zip(places, values, strict=True))


def comparable(field: Field, value: Any, places: Sequence[tuple[int, int]]) -> Any:
    """A value of an answer as `_gold` has it: words by their places."""
    if value is None or field.type in (LABEL, NUMBER):
        return value
    return places[value] if field.type == POSITION else (value["start"], value["end"])
