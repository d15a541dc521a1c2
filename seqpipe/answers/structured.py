"""Answer kind structured: a label, position, number, span or text per token, pair or text, which a head describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.answer_types import Position as Offset
from seqpipe.answers.answer_types import Probability, StructuredAnswers, TextSpan
from seqpipe.answers.base import HeadAnswer, float32_number, probability
from seqpipe.answers.classification import number_of
from seqpipe.answers.metrics.numbers import FieldCounter, StructureCounter
from seqpipe.answers.schemas import typed_dict
from seqpipe.answers.tagging import label_ids, word_places
from seqpipe.answers.task import HeadInfo, HeadTask, present, required_field
from seqpipe.answers.types import (
    EACH_WORD,
    WHOLE_TEXT,
    Array,
    Choice,
    Counts,
    MakeTargets,
    Metric,
    SpanRules,
    Target,
    Targets,
)
from seqpipe.errors import DataError, attempts
from seqpipe.features.document import Arrays, Doc, Record, word_offsets_of
from seqpipe.features.vocabulary import Vocabulary

# Fields of structured answers: their description, their values in records, in `loss` and in decisions.

TEXT, WORD, PAIR = PER = ("text", "word", "pair")
LABEL, POSITION, NUMBER, SPAN = TYPES = ("label", "position", "number", "span")
SCORES_SUFFIX = "_scores"  # suffix of the optional output with a field's probabilities
_SHAPES = {TEXT: "(B,)", WORD: "(B, T)", PAIR: "(B, T, T)"}
_SPAN_SHAPES = {TEXT: "(B, 2)", WORD: "(B, T, 2)"}
_TAKEN = ("words", "word", "start", "end", "ids", "mask", "x")  # names in answers and in batches
_ENDINGS = ("_score", SCORES_SUFFIX, "_mask")
_FIELDS_FORM = 'such as {"head": {"per": "word", "type": "position"}}'


@dataclass(frozen=True)
class Field:
    """One field of an answer."""

    name: str  # of the graph's output, of the target of `loss`, and of the key in an answer
    per: str  # `text`, `word`, or `pair` of words
    type: str  # `label`, `position` of a word, `number`, or `span` of words
    target: str  # the record field with the reference
    labels: tuple[str, ...] = ()  # of a label field; for pairs the first means that a pair has no relation

    @property
    def array(self) -> Array:
        """Its output and its target."""
        shapes = _SPAN_SHAPES if self.type == SPAN else _SHAPES
        sums = "" if self.per == TEXT else "T"
        return Array(shapes[self.per], "float32" if self.type == NUMBER else "int64", sums=sums)

    @property
    def pair_key(self) -> str:
        """Key of a value of a pair of words."""
        return LABEL if self.type == LABEL else "value"

    @property
    def scores(self) -> Array:
        return Array(_SHAPES[self.per], "float32", "probability", required=False)

    @property
    def value_type(self) -> Any:
        """Type of a value."""
        if self.type == LABEL:
            return Literal[self.labels]
        if self.type == SPAN:
            return TextSpan | None
        return float if self.type == NUMBER else Offset | None

    def manifest(self) -> dict[str, Any]:
        stated = {"name": self.name, "per": self.per, "type": self.type, "target": self.target}
        return {**stated, "labels": list(self.labels)} if self.type == LABEL else stated


def fields_from(stated: Any) -> tuple[Field, ...]:
    """Return the fields that a head describes; ValueError for an invalid field.

    Args:
        stated: By name: `per`, `type`, optionally `target` (default: the name) and, for labels of pairs, `outside`,
            the label of pairs without a relation.
    """
    if not isinstance(stated, Mapping) or not stated:
        raise ValueError(f"fields: a structured answer has at least one, {_FIELDS_FORM}")
    fields = []
    for name, keys in stated.items():
        if not isinstance(keys, Mapping) or keys.keys() - {"per", "type", "target", "outside"}:
            raise ValueError(f"fields.{name}: {keys!r} is not a field; write per and type, {_FIELDS_FORM}")
        outside = (str(keys["outside"]),) if "outside" in keys else ()
        fields.append(
            validate_field(Field(name, keys.get("per", ""), keys.get("type", ""), keys.get("target", name), outside))
        )
        if (fields[-1].per, fields[-1].type) == (PAIR, LABEL) and not outside:
            raise ValueError(f"fields.{name}: labels of pairs need `outside`, the label of all other pairs")
    return tuple(fields)


def manifest_fields(manifest: Any) -> tuple[Field, ...]:
    """Return the fields that a manifest lists; KeyError, TypeError or ValueError for an invalid list."""
    fields = [
        validate_field(
            Field(stated["name"], stated["per"], stated["type"], stated["target"], tuple(stated.get("labels", ())))
        )
        for stated in manifest
    ]
    if not fields or len({field.name for field in fields}) < len(fields):
        raise ValueError("fields: a structured answer has at least one, with distinct names")
    for field in fields:
        if (field.type == LABEL) != bool(field.labels):
            raise ValueError(f"fields.{field.name}: a field has labels if, and only if, its type is label")
    return tuple(fields)


def validate_field(field: Field) -> Field:
    """Return the field; ValueError if no answer can have it."""
    texts: tuple[Any, ...] = (field.name, field.target, *field.labels)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"fields: {text!r} is not a text: name, target and labels are texts")
    if not field.name.isidentifier() or field.name in _TAKEN or field.name.endswith(_ENDINGS):
        fix = f"use letters, digits and _, not {', '.join(_TAKEN)}, and no ending {', '.join(_ENDINGS)}"
        raise ValueError(f"fields: {field.name!r} is not a valid name; {fix}")
    if len({*field.labels}) < len(field.labels):
        raise ValueError(f"fields.{field.name}: a label occurs twice in {', '.join(field.labels)}")
    if field.per not in PER or field.type not in TYPES:
        message = f"per is one of {', '.join(PER)}, and type one of {', '.join(TYPES)}"
        raise ValueError(f"fields.{field.name}: {field.per!r} and {field.type!r}: {message}")
    if field.per == PAIR and field.type not in (LABEL, NUMBER):
        raise ValueError(f"fields.{field.name}: a pair of words has a label or a number, not a {field.type}")
    return field


def answer_value(field: Field, value: np.ndarray, doc: Doc) -> Any:
    """Return the value of an answer from a number of the graph; ValueError for an invalid one."""
    words = doc.word_offsets
    if field.type == NUMBER:
        return float32_number(float(value))
    if field.type == SPAN:
        first, last = (int(at) for at in value)
        if first < 0:
            return None
        if not first <= last < len(words):
            raise ValueError(f"{field.name}: {first} to {last} is not a span of {len(words)} words")
        start, end = words[first][0], words[last][1]
        return {"text": doc.text[start:end], "start": start, "end": end}
    number, most = int(value), len(field.labels) if field.type == LABEL else len(words)
    if not (0 if field.type == LABEL else -1) <= number < most:
        raise ValueError(f"{field.name}: {number} is not below {most}")
    if field.type == LABEL:
        return field.labels[number]
    return None if number < 0 else number


def target_of(
    field: Field, record: Record, doc: Doc, words: Sequence[tuple[int, int]], rules: SpanRules
) -> Target | None:
    """Return the target of a record with these words for `loss`; None to skip the record."""
    ids = {label: i for i, label in enumerate(field.labels)}
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
        numbers = []  # first and last word
        for span in values:
            inside: tuple[int, int] | None = (-1, -1)
            if span is not None:
                problem = f"span {doc.text[slice(*span)]!r} cuts a word"
                inside = rules.align(words, span, doc, record, problem)
            numbers.append(inside and [*inside])
        # Every span is aligned, though one skipped span skips the record, since the rules count all spans.
        if None in numbers:
            return None
    else:
        numbers = values
    return numbers[0] if field.per == TEXT else numbers


def _values(field: Field, record: Record, words: int) -> list[Any]:
    """Return the values of a record: one for the text, or one for each word."""
    if field.per == TEXT:
        may_be_null = field.type in (POSITION, SPAN)
        value = required_field(record, field.target) if may_be_null else present(record, field.target)
        return [_record_value(field, record, value, words)]
    values = _value_list(field, record)
    if len(values) != words:
        message = f"field {field.target!r} has {len(values)} values for {words} words; give one for each"
        raise DataError.at(record, message)
    return [_record_value(field, record, value, words) for value in values]


def _value_list(field: Field, record: Record) -> Sequence[Any]:
    """Return the values of words or pairs in a record; DataError if they are not a list."""
    values = present(record, field.target)
    if not isinstance(values, list | tuple):
        message = f"field {field.target!r} must be a list with the values of {field.per}s, not {type(values).__name__}"
        raise DataError.at(record, message)
    return values


def _record_value(field: Field, record: Record, value: Any, words: int) -> Any:
    """Return a value of a record; DataError for one of another type."""
    if field.type == LABEL:
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise DataError.at(record, f"field {field.target!r}: {value!r} is not a label (text or whole number)")
        return str(value)
    if field.type == NUMBER:
        return number_of({**record, field.target: value}, field.target)
    if value is None or value == -1:
        return None
    if field.type == POSITION:
        if type(value) is not int or not 0 <= value < words:
            message = f"{value!r} is not a position of {words} words, which count from 0 (none: null)"
            raise DataError.at(record, f"field {field.target!r}: {message}")
        return value
    start, end = (value.get("start"), value.get("end")) if isinstance(value, Mapping) else (None, None)
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        message = f'{value!r} is not a span, such as {{"start": 0, "end": 5}}'
        raise DataError.at(record, f"field {field.target!r}: {message}")
    return (start, end)


def _record_pairs(field: Field, record: Record, words: int) -> list[dict[str, Any]]:
    """Return the pairs of a record: `from`, `to` and `value`; DataError for an invalid one."""
    key, pairs, known = field.pair_key, list[dict[str, Any]](), set[tuple[int, int]]()
    for pair in _value_list(field, record):
        if not isinstance(pair, Mapping) or not {"from", "to", key} <= pair.keys():
            raise DataError.at(
                record, f'field {field.target!r}: {pair!r} is not a pair; write {{"from", "to", "{key}"}}'
            )
        ends = (pair["from"], pair["to"])
        if not all(type(at) is int and 0 <= at < words for at in ends):
            raise DataError.at(record, f"field {field.target!r}: {ends} are not positions of {words} words, from 0")
        if ends in known:
            raise DataError.at(record, f"field {field.target!r} has the pair {ends} twice; delete one of the two")
        known.add(ends)
        pairs.append({"from": ends[0], "to": ends[1], "value": _record_value(field, record, pair[key], words)})
    return pairs


def field_labels(field: Field, record: Record) -> list[str]:
    """Return the labels of a record's field."""
    if field.per == PAIR:
        words = len(record.get("words") or ()) or 1 << 31
        return [pair["value"] for pair in _record_pairs(field, record, words)]
    values = _value_list(field, record) if field.per == WORD else [present(record, field.target)]
    return [_record_value(field, record, label, 0) for label in values]


def gold_value(field: Field, record: Record, places: Sequence[tuple[int, int]]) -> Any:
    """Return a field of the reference, comparable with `predicted`."""
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


def comparable_value(field: Field, value: Any, places: Sequence[tuple[int, int]]) -> Any:
    """Return a value of an answer in the format of `gold_value`: words by their places."""
    if value is None or field.type in (LABEL, NUMBER):
        return value
    return places[value] if field.type == POSITION else (value["start"], value["end"])


# Answer kind structured: fields that the head describes, such as a dependency tree or relations between words.
#
# A field has one value for the text, one for each word, or one for each ordered pair of words; a value is a label,
# the position of a word, a number, or a span of words. The description is data, so new shapes need no code.


class Structured(HeadAnswer[StructuredAnswers]):
    """`{"words": [{"word", "start", "end", "head": 2, "relation": "nsubj"}, …], "mood": "pos", "relations": […]}`.

    `words` has the fields of words; a position counts words from 0, or is None. A field of pairs is a list of
    `{"from", "to", "label", "score"}`, with positions of words, without pairs of the outside label. A field may have
    a probability `<name>_score`. Spans are `{"text", "start", "end"}`, or None.
    """

    kind, keeps_places, measure = "structured", True, "agreement"
    hub_task = "token-classification"

    def __init__(self, fields: Sequence[Field]):
        self.fields = tuple(fields)
        self.decided = _arrays(self.fields)
        self.drawing = {"as": "structure", "fields": [field.manifest() for field in self.fields]}
        self.is_numeric = any(field.type == NUMBER for field in self.fields)
        self.has_words = any(field.per != TEXT or field.type in (POSITION, SPAN) for field in self.fields)
        self.nothing = {"words": []} if self.has_words else {}
        self.nothing |= {field.name: [] if field.per == PAIR else None for field in self.fields if field.per != WORD}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Structured:
        return cls(manifest_fields(manifest["fields"]))

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": None, "fields": [field.manifest() for field in self.fields]}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[StructuredAnswers]:
        return [self._answer(doc, {name: array[i] for name, array in decision.items()}) for i, doc in enumerate(docs)]

    def part_scores(self, docs: Sequence[Doc], decision: Arrays, answer: Any, whole: Arrays) -> np.ndarray:
        """Return the similarity of the answers, written as lines: the ratio of `difflib` in words."""
        words = [" ".join(self.lines(structure)).split() for structure in (answer, *self.answers(docs, decision))]
        return np.array([[SequenceMatcher(None, words[0], structure, False).ratio()] for structure in words[1:]])

    def _answer(self, doc: Doc, decision: Arrays) -> dict[str, Any]:
        T, answer = len(doc.word_offsets), dict[str, Any]()
        if self.has_words:
            places = doc.word_offsets
            answer["words"] = [{"word": doc.text[a:b], "start": a, "end": b} for a, b in places]
        for field in self.fields:
            values, scores = decision[field.name], decision.get(field.name + SCORES_SUFFIX)
            if field.per == TEXT:
                answer[field.name] = answer_value(field, values, doc)
                if scores is not None:
                    answer[f"{field.name}_score"] = probability(scores)
            elif field.per == WORD:
                for i, word in enumerate(answer["words"]):
                    word[field.name] = answer_value(field, values[i], doc)
                    if scores is not None:
                        word[f"{field.name}_score"] = probability(scores[i])
            else:
                pairs = list[dict[str, Any]]()
                for i, j in np.argwhere(values[:T, :T] != 0).tolist():  # the pairs with a relation
                    score = {} if scores is None else {"score": probability(scores[i, j])}
                    pairs.append({"from": i, "to": j, field.pair_key: answer_value(field, values[i, j], doc), **score})
                answer[field.name] = pairs
        return answer

    @property
    def answer_type(self) -> Any:
        """Type of an answer; fields of the text are null for a text without words, and any field may have a score."""
        whole: dict[str, Any] = {}
        word_keys: dict[str, Any] = {"word": str, "start": Offset, "end": Offset}
        for field in self.fields:
            score = {f"{field.name}_score": Probability}
            if field.per == WORD:
                word_keys |= {field.name: field.value_type} | score
            elif field.per == TEXT:
                whole |= {field.name: field.value_type | None} | score
            else:
                pair = {"from": Offset, "to": Offset, field.pair_key: field.value_type, "score": Probability}
                whole[field.name] = list[typed_dict("Pair", pair, ["score"])]  # type: ignore[misc]
        scores = [f"{field.name}_score" for field in self.fields]
        words = {"words": list[typed_dict("Word", word_keys, scores)]} if self.has_words else {}  # type: ignore[misc]
        return typed_dict("Structure", {**words, **whole}, scores)

    def part_lines(self, part: Any) -> list[str]:
        lines = []
        for word in part.get("words", ()):
            values = [f"{key} {_plain(word[key])}" for key in word if key not in ("word", "start", "end")]
            lines.append(f"{word['word']}: {', '.join(values)}" if values else word["word"])
        for field in self.fields:
            if field.per == TEXT:
                lines.append(f"{field.name}: {_plain(part[field.name])}")
            elif field.per == PAIR:
                words = [word["word"] for word in part["words"]]
                for pair in part[field.name]:
                    ends = f"{words[pair['from']]} → {words[pair['to']]}"
                    lines.append(f"{field.name}: {ends}: {pair[field.pair_key]}")
        return lines

    def is_invalid(self, name: str, array: np.ndarray, docs: Sequence[Doc]) -> np.ndarray:
        invalid = ~np.isfinite(array)
        field = next(field for field in self.fields if name in (field.name, field.name + SCORES_SUFFIX))
        if field.per != TEXT:  # values in the padding are arbitrary
            real = np.arange(array.shape[1]) < np.array([[len(doc.word_offsets)] for doc in docs])  # (B, T)
            invalid &= real if field.per == WORD else real[:, :, None] & real[:, None]
        return invalid


class StructuredTask(HeadTask[StructuredAnswers, Structured]):
    """Task of the fields of a record that the head describes."""

    kind_type = Structured
    settings = {"fields": {}}
    has_labels = True
    counts_words = True

    def __init__(self, kind: Structured):
        super().__init__(kind)
        self.metrics = _metrics(kind.fields)
        self.choices = (Choice(tuple(field.name for field in kind.fields if field.type != NUMBER)),)

    @classmethod
    def reference_fields(cls, settings: Mapping[str, Any], target: str | None) -> tuple[str, ...]:
        return tuple(field.target for field in fields_from(settings["fields"]))

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        fields_from(settings["fields"])

    @classmethod
    def declared_decided(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        return _arrays(fields_from(settings["fields"]))

    @classmethod
    def declared_targets(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        return {
            field.name: replace(field.array, values="position" if field.type in (POSITION, SPAN) else "")
            for field in fields_from(settings["fields"])
        }

    @classmethod
    def declared_metrics(cls, settings: Mapping[str, Any]) -> Mapping[str, Metric]:
        return _metrics(fields_from(settings["fields"]))

    @classmethod
    def declared_subject(cls, settings: Mapping[str, Any]) -> str:
        return EACH_WORD if Structured(fields_from(settings["fields"])).has_words else WHOLE_TEXT

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        if head.target is not None:
            names = ", ".join(field.target for field in fields_from(head.settings["fields"]))
            return f"its fields name their targets ({names}); delete `target`"
        return ""

    @classmethod
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        fields = {field.name: field for field in fields_from(settings["fields"])}
        for before in manifest_fields(old["fields"]):
            field = fields.get(before.name, before)
            if (field.per, field.type) != (before.per, before.type):
                stated = f"per: {before.per} and type: {before.type}"
                return f"the field {before.name!r} of {where} has {stated}; use the same"
            if field.per == PAIR and field.labels[:1] != before.labels[:1]:
                return f"{before.labels[0]!r} is `outside` in the field {before.name!r} of {where}; use the same"
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """Return `<field>/<label>` of every label, those of an older run first."""
        counts: Counter[str] = Counter()
        for field in fields_from(head.settings["fields"]):
            if field.type == LABEL:
                counts.update({f"{field.name}/{label}": 0 for label in field.labels})
                counts.update(f"{field.name}/{label}" for record in records for label in field_labels(field, record))
                if not any(name.startswith(f"{field.name}/") for name in counts):
                    message = f"no training record has a label in the field {field.target!r}"
                    raise DataError(f"{message}; write labels, or set another `target`")
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
        return Structured(fields)

    def wired_labels(self, labels: Vocabulary) -> dict[str, Vocabulary]:
        """Return the labels of each label field, by its name, with their counts."""
        counts = dict(zip(labels, labels.counts or (), strict=False))
        return {
            field.name: Vocabulary(field.labels, [counts.get(f"{field.name}/{label}", 0) for label in field.labels])
            for field in self.kind.fields
            if field.type == LABEL
        }

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        def targets(record: Record, doc: Doc, words: Sequence[tuple[int, int]]) -> Targets | None:
            values = {field.name: target_of(field, record, doc, words, rules) for field in self.kind.fields}
            known = {name: value for name, value in values.items() if value is not None}
            return known if len(known) == len(values) else None

        return lambda records, docs: attempts(targets, records, docs, word_offsets_of(docs))

    def gold(self, record: Record) -> dict[str, Any]:
        """Return each field's value, with words by their (start, end), so that texts that were split alike match."""
        return self.golds([record])[0]

    def golds(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        counts_words = any(field.per != TEXT or field.type == POSITION for field in self.kind.fields)
        rows = zip(records, word_places(records) if counts_words else [[] for _ in records], strict=True)
        return [{field.name: gold_value(field, *row) for field in self.kind.fields} for row in rows]

    def predicted(self, answer: Any) -> dict[str, Any]:
        words = answer.get("words", [])
        places = [(word["start"], word["end"]) for word in words]
        values_of: dict[str, Any] = {}
        for field in self.kind.fields:
            if field.per == TEXT:
                values_of[field.name] = comparable_value(field, answer[field.name], places)
            elif field.per == WORD:
                values = [comparable_value(field, word[field.name], places) for word in words]
                values_of[field.name] = dict(zip(places, values, strict=True))
            else:
                values_of[field.name] = {
                    (places[pair["from"]], places[pair["to"]]): pair[field.pair_key] for pair in answer[field.name]
                }
        return values_of

    def counter(self) -> Counts:
        return StructureCounter(self.kind.fields)

    def answer_labels(self) -> set[Any]:
        return {f"{field.name}/{label}" for field in self.kind.fields for label in field.labels}

    def labels_in(self, gold: Any) -> list[str]:
        labels = {field.name: gold[field.name] for field in self.kind.fields if field.type == LABEL}
        values = {name: value.values() if isinstance(value, dict) else [value] for name, value in labels.items()}
        return [f"{name}/{label}" for name, field_values in values.items() for label in field_values]

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """Return the wrong fields; for words and pairs only the wrong ones."""
        wrong: dict[str, Any] = {}
        for field in self.kind.fields:
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


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value["text"] if isinstance(value, Mapping) else "-" if value is None else value)


def _arrays(fields: Iterable[Field]) -> Mapping[str, Array]:
    arrays = {field.name: field.array for field in fields}
    return arrays | {field.name + SCORES_SUFFIX: field.scores for field in fields}


def _metrics(fields: Iterable[Field]) -> Mapping[str, Metric]:
    named = {name: metric for field in fields for name, metric in FieldCounter(field).metrics.items()}
    return {**named, "exact_match": Metric()}
