"""Answer kind structured: fields that the head describes, such as a dependency tree or relations between words.

A field holds one value for the text, one for each word, or one for each ordered pair of words; a value is a label, the
position of a word, a number, or a span of words. The description is data, so a bundle states new shapes without code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import (
    EACH_WORD,
    WHOLE_TEXT,
    Answer,
    Array,
    Choice,
    Counts,
    HeadAnswer,
    HeadInfo,
    MakeTargets,
    Metric,
    Target,
    float32_number,
    present,
    probability,
)
from seqpipe.answers.metrics.structured import FieldCounter, StructureCounter
from seqpipe.answers.regression import number_of
from seqpipe.answers.tagging import label_ids, word_places
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.vocabulary import Vocabulary

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
        return Array(f"({', '.join(axes)}{',' if len(axes) == 1 else ''})", "float32", "", required=False)

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


class Structured(HeadAnswer):
    """`{"words": [{"word", "start", "end", "head": 2, "relation": "nsubj"}, …], "mood": "pos", "relations": […]}`.

    `words` holds the fields of words; a position counts words from 0, or is None. A field of pairs is a list of
    `{"from", "to", "label", "score"}`, positions of words, without pairs of the outside label. A field may have
    `<name>_score` beside it, a probability. Spans are `{"text", "start", "end"}`, or None.
    """

    kind = "structured"
    settings = {"fields": {}}
    has_labels = True

    def __init__(self, fields: Sequence[Field]):
        self.fields = tuple(fields)
        self.decided = _arrays(self.fields)
        self.metrics = _metrics(self.fields)
        self.choices = (Choice(tuple(field.name for field in self.fields if field.type != NUMBER)),)
        self.is_numeric = any(field.type == NUMBER for field in self.fields)
        self._has_words = any(field.per != TEXT or field.type in (POSITION, SPAN) for field in self.fields)

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        fields_from(settings["fields"])

    @classmethod
    def declared_decided(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        return _arrays(fields_from(settings["fields"]))

    @classmethod
    def declared_targets(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        return {field.name: field.array for field in fields_from(settings["fields"])}

    @classmethod
    def declared_metrics(cls, settings: Mapping[str, Any]) -> Mapping[str, Metric]:
        return _metrics(fields_from(settings["fields"]))

    @classmethod
    def declared_subject(cls, settings: Mapping[str, Any]) -> str:
        return EACH_WORD if Structured(fields_from(settings["fields"]))._has_words else WHOLE_TEXT

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        if head.target is not None:
            names = ", ".join(field.target for field in fields_from(head.settings["fields"]))
            return f"its fields name their targets ({names}); delete `target`"
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """`<field>/<label>` of every label, those of an older run first."""
        counts: Counter[str] = Counter()
        for field in fields_from(head.settings["fields"]):
            if field.type == LABEL:
                counts.update({f"{field.name}/{label}": 0 for label in field.labels})
                counts.update(f"{field.name}/{label}" for record in records for label in _labels_of(field, record))
                if not any(name.startswith(f"{field.name}/") for name in counts):
                    raise DataError(f"no training record has a label in the field {field.target!r}")
        labels = [*head.old_labels]
        for field in fields_from(head.settings["fields"]):
            first = [f"{field.name}/{label}" for label in field.labels]
            names = sorted(name for name in counts if name.startswith(f"{field.name}/") and name not in first)
            labels += [name for name in (*first, *names) if name not in head.old_labels]
        return Vocabulary(labels, [counts[label] for label in labels])

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Structured:
        fields = []
        for field in fields_from(head.settings["fields"]):
            prefix = f"{field.name}/"
            names = tuple(label.removeprefix(prefix) for label in labels if label.startswith(prefix))
            fields.append(Field(field.name, field.per, field.type, field.target, names))
        return cls(fields)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Structured:
        return cls(
            [
                checked(
                    Field(field["name"], field["per"], field["type"], field["target"], tuple(field.get("labels", ())))
                )
                for field in manifest["fields"]
            ]
        )

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": None, "fields": [field.manifest() for field in self.fields]}

    def wired_labels(self, labels: Vocabulary) -> dict[str, Vocabulary]:
        """The labels of each label field, by its name, with their counts."""
        counts = dict(zip(labels, labels.counts or (), strict=False))
        return {
            field.name: Vocabulary(field.labels, [counts.get(f"{field.name}/{label}", 0) for label in field.labels])
            for field in self.fields
            if field.type == LABEL
        }

    def target_maker(self, settings: Mapping[str, Any], misaligned: str) -> MakeTargets:
        return lambda record, doc: {field.name: _target(field, record, doc) for field in self.fields}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        return [self._answer(doc, {name: array[i] for name, array in decision.items()}) for i, doc in enumerate(docs)]

    def _answer(self, doc: Doc, decision: Arrays) -> dict[str, Any]:
        T, answer = len(doc.word_offsets), dict[str, Any]()
        if self._has_words:
            places = doc.word_offsets
            answer["words"] = [{"word": doc.text[a:b], "start": a, "end": b} for a, b in places]
        for field in self.fields:
            values, scores = decision[field.name], decision.get(field.name + SCORES)
            if field.per == TEXT:
                answer[field.name] = _value(field, values, doc)
                if scores is not None:
                    answer[f"{field.name}_score"] = probability(scores)
            elif field.per == WORD:
                for i, word in enumerate(answer["words"]):
                    word[field.name] = _value(field, values[i], doc)
                    if scores is not None:
                        word[f"{field.name}_score"] = probability(scores[i])
            else:
                answer[field.name] = _pairs(field, values[:T, :T], scores, doc)
        return answer

    def empty(self, several: bool) -> Answer:
        """No word, no label, no number."""
        answer: dict[str, Any] = {"words": []} if self._has_words else {}
        for field in self.fields:
            if field.per != WORD:
                answer[field.name] = [] if field.per == PAIR else None
        return [answer] if several else answer

    def is_invalid(self, name: str, array: np.ndarray, docs: Sequence[Doc]) -> np.ndarray:
        invalid = ~np.isfinite(array)
        field = next(field for field in self.fields if name in (field.name, field.name + SCORES))
        if field.per != TEXT:  # what follows a text means nothing
            real = np.arange(array.shape[1]) < np.array([[len(doc.word_offsets)] for doc in docs])  # (B, T)
            invalid &= real if field.per == WORD else real[:, :, None] & real[:, None]
        return invalid

    def gold(self, record: Record) -> dict[str, Any]:
        """Each field's value; words by their (start, end), so that texts that were split alike match."""
        places = word_places(record) if self._has_words else []
        return {field.name: _gold(field, record, places) for field in self.fields}

    def predicted(self, answer: Answer) -> dict[str, Any]:
        words = answer.get("words", [])
        places = [(word["start"], word["end"]) for word in words]
        values_of: dict[str, Any] = {}
        for field in self.fields:
            if field.per == TEXT:
                values_of[field.name] = _comparable(field, answer[field.name], places)
            elif field.per == WORD:
                values = [_comparable(field, word[field.name], places) for word in words]
                values_of[field.name] = dict(zip(places, values, strict=True))
            else:
                key = LABEL if field.type == LABEL else "value"
                values_of[field.name] = {
                    (places[pair["from"]], places[pair["to"]]): pair[key] for pair in answer[field.name]
                }
        return values_of

    def counter(self) -> Counts:
        return StructureCounter(self.fields)

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """The fields that are wrong; of words and pairs those that are."""
        wrong: dict[str, Any] = {}
        for field in self.fields:
            expected, got = gold[field.name], predicted[field.name]
            if expected == got:
                continue
            if field.per == TEXT:
                wrong[field.name] = {"expected": expected, "got": got}
            else:
                wrong[field.name] = {
                    "missed": [[key, value] for key, value in expected.items() if got.get(key) != value],
                    "wrong": [[key, value] for key, value in got.items() if expected.get(key) != value],
                }
        return wrong


def _arrays(fields: Iterable[Field]) -> Mapping[str, Array]:
    arrays = {field.name: field.array for field in fields}
    return arrays | {field.name + SCORES: field.scores for field in fields}


def _metrics(fields: Iterable[Field]) -> Mapping[str, Metric]:
    named = {name: metric for field in fields for name, metric in FieldCounter(field).metrics.items()}
    return {**named, "exact_match": Metric()}


def _value(field: Field, value: np.ndarray, doc: Doc) -> Any:
    """A number of the graph as an answer has it; ValueError for one that means nothing."""
    words = doc.word_offsets
    if field.type == NUMBER:
        return float32_number(float(value))
    if field.type == SPAN:
        first, last = (int(at) for at in value)
        if first < 0:
            return None
        start, end = words[first][0], words[last][1]
        return {"text": doc.text[start:end], "start": start, "end": end}
    number, most = int(value), len(field.labels) if field.type == LABEL else len(words)
    if not (0 if field.type == LABEL else -1) <= number < most:
        raise ValueError(f"{field.name}: {number} is none of {most}")
    if field.type == LABEL:
        return field.labels[number]
    return None if number < 0 else number


def _pairs(field: Field, values: np.ndarray, scores: np.ndarray | None, doc: Doc) -> list[dict[str, Any]]:
    key, chosen = (LABEL, np.argwhere(values != 0)) if field.type == LABEL else ("value", np.argwhere(values != 0))
    pairs = []
    for i, j in chosen.tolist():
        score = {} if scores is None else {"score": probability(scores[i, j])}
        pairs.append({"from": i, "to": j, key: _value(field, values[i, j], doc), **score})
    return pairs


def _target(field: Field, record: Record, doc: Doc) -> Target:
    """What `loss` gets of a record."""
    words, ids = doc.word_offsets, {label: i for i, label in enumerate(field.labels)}
    if field.per == PAIR:
        rows: list[Any] = [[0] * len(words) for _ in words]
        for pair in _record_pairs(field, record, len(words)):
            value = pair["value"]
            rows[pair["from"]][pair["to"]] = label_ids(ids, [value])[0] if field.type == LABEL else value
        return rows
    if field.per == TEXT:
        value = _record_value(field, record, present(record, field.target), len(words))
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


def _labels_of(field: Field, record: Record) -> list[str]:
    """The labels of a record's field."""
    if field.per == PAIR:
        words = len(record.get("words") or ()) or 1 << 31
        return [pair["value"] for pair in _record_pairs(field, record, words)]
    value = present(record, field.target)
    return [_record_value(field, record, label, 0) for label in (value if field.per == WORD else [value])]


def _gold(field: Field, record: Record, places: Sequence[tuple[int, int]]) -> Any:
    """A field of the reference, comparable with `predicted`."""
    if field.per == PAIR:
        pairs = _record_pairs(field, record, len(places))
        outside = field.labels[:1] if field.type == LABEL else (0,)
        return {
            (places[pair["from"]], places[pair["to"]]): pair["value"] for pair in pairs if pair["value"] not in outside
        }
    if field.per == TEXT:
        value = _record_value(field, record, present(record, field.target), len(places))
        return places[value] if field.type == POSITION and value is not None else value
    values = _word_values(field, record, len(places))
    if field.type == POSITION:
        values = [None if value is None else places[value] for value in values]
    return dict(zip(places, values, strict=True))


def _comparable(field: Field, value: Any, places: Sequence[tuple[int, int]]) -> Any:
    """A value of an answer as `_gold` has it: words by their places."""
    if value is None or field.type in (LABEL, NUMBER):
        return value
    return places[value] if field.type == POSITION else (value["start"], value["end"])
