"""Answer kind structured: fields that the head describes, such as a dependency tree or relations between words.

A field holds one value for the text, one for each word, or one for each ordered pair of words; a value is a label, the
position of a word, a number, or a span of words. The description is data, so a bundle states new shapes without code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import HeadAnswer, probability
from seqpipe.answers.decision_checks import changed_values, mirrored
from seqpipe.answers.json_schema import POSITION as OFFSET
from seqpipe.answers.json_schema import PROBABILITY, Schema, array, obj, or_null
from seqpipe.answers.json_schema import TEXT as ANY_TEXT
from seqpipe.answers.metrics.structured import FieldCounter, StructureCounter
from seqpipe.answers.span_rules import SpanRules
from seqpipe.answers.structured_fields import (
    LABEL,
    NUMBER,
    PAIR,
    POSITION,
    SCORES,
    SPAN,
    TEXT,
    WORD,
    Field,
    answer_pairs,
    answer_value,
    comparable,
    fields_from,
    fields_of,
    gold_value,
    labels_of,
    target_of,
)
from seqpipe.answers.tagging import word_places
from seqpipe.answers.types import (
    EACH_WORD,
    WHOLE_TEXT,
    Answer,
    Array,
    Choice,
    Counts,
    HeadInfo,
    MakeTargets,
    Metric,
    Targets,
)
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.vocabulary import Vocabulary


class Structured(HeadAnswer):
    """`{"words": [{"word", "start", "end", "head": 2, "relation": "nsubj"}, …], "mood": "pos", "relations": […]}`.

    `words` holds the fields of words; a position counts words from 0, or is None. A field of pairs is a list of
    `{"from", "to", "label", "score"}`, positions of words, without pairs of the outside label. A field may have
    `<name>_score` beside it, a probability. Spans are `{"text", "start", "end"}`, or None.
    """

    kind = "structured"
    settings = {"fields": {}}
    has_labels = True
    counts_words = True

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
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        fields = {field.name: field for field in fields_from(settings["fields"])}
        for before in fields_of(old["fields"]):
            field = fields.get(before.name, before)
            if (field.per, field.type) != (before.per, before.type):
                return f"the field {before.name!r} of {where} is of {before.per}s, a {before.type}; state it so"
            if field.per == PAIR and field.labels[:1] != before.labels[:1]:
                return f"{before.labels[0]!r} is `outside` in the field {before.name!r} of {where}; state it so"
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """`<field>/<label>` of every label, those of an older run first."""
        counts: Counter[str] = Counter()
        for field in fields_from(head.settings["fields"]):
            if field.type == LABEL:
                counts.update({f"{field.name}/{label}": 0 for label in field.labels})
                counts.update(f"{field.name}/{label}" for record in records for label in labels_of(field, record))
                if not any(name.startswith(f"{field.name}/") for name in counts):
                    message = f"no training record has a label in the field {field.target!r}"
                    raise DataError(f"{message}; write labels, or state another `target`")
        labels = [*head.old_labels]
        for field in fields_from(head.settings["fields"]):
            first = [f"{field.name}/{label}" for label in field.labels]
            names = sorted(name for name in counts if name.startswith(f"{field.name}/") and name not in first)
            labels += [name for name in (*first, *names) if name not in head.old_labels]
        return Vocabulary(labels, [counts[label] for label in labels])

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "structure", "fields": [field.manifest() for field in self.fields]}

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
        return cls(fields_of(manifest["fields"]))

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

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        def targets(record: Record, doc: Doc) -> Targets | None:
            values = {field.name: target_of(field, record, doc, rules) for field in self.fields}
            known = {name: value for name, value in values.items() if value is not None}
            return known if len(known) == len(values) else None

        return targets

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
                answer[field.name] = answer_value(field, values, doc)
                if scores is not None:
                    answer[f"{field.name}_score"] = probability(scores)
            elif field.per == WORD:
                for i, word in enumerate(answer["words"]):
                    word[field.name] = answer_value(field, values[i], doc)
                    if scores is not None:
                        word[f"{field.name}_score"] = probability(scores[i])
            else:
                answer[field.name] = answer_pairs(field, values[:T, :T], scores, doc)
        return answer

    def part_schema(self) -> Schema:
        """Fields of the text are null in the answer to a text without a word; any field may come with a score."""
        fields = dict[str, Schema]()
        words: dict[str, Schema] = {"word": ANY_TEXT, "start": OFFSET, "end": OFFSET}
        for field in self.fields:
            value, score = field.value_schema(), {f"{field.name}_score": PROBABILITY}
            if field.per == WORD:
                words |= {field.name: value} | score
            elif field.per == TEXT:
                fields |= {field.name: value if field.type in (POSITION, SPAN) else or_null(value)} | score
            else:
                pair = {"from": OFFSET, "to": OFFSET, LABEL if field.type == LABEL else "value": value}
                fields[field.name] = array(obj({**pair, "score": PROBABILITY}, optional=["score"]))
        scores = [f"{field.name}_score" for field in self.fields]
        of_words = {"words": array(obj(words, scores))} if self._has_words else {}
        return obj({**of_words, **fields}, scores)

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
                    value = pair[LABEL] if field.type == LABEL else pair["value"]
                    lines.append(f"{field.name}: {words[pair['from']]} → {words[pair['to']]}: {value}")
        return lines

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
        counts_words = any(field.per != TEXT or field.type == POSITION for field in self.fields)
        places = word_places(record) if counts_words else []
        return {field.name: gold_value(field, record, places) for field in self.fields}

    def predicted(self, answer: Answer) -> dict[str, Any]:
        words = answer.get("words", [])
        places = [(word["start"], word["end"]) for word in words]
        values_of: dict[str, Any] = {}
        for field in self.fields:
            if field.per == TEXT:
                values_of[field.name] = comparable(field, answer[field.name], places)
            elif field.per == WORD:
                values = [comparable(field, word[field.name], places) for word in words]
                values_of[field.name] = dict(zip(places, values, strict=True))
            else:
                key = LABEL if field.type == LABEL else "value"
                values_of[field.name] = {
                    (places[pair["from"]], places[pair["to"]]): pair[key] for pair in answer[field.name]
                }
        return values_of

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        words = len(record["words"])
        values = {
            LABEL: lambda i: f"label {(number + i) % 3}",
            POSITION: lambda i: None if i == number % words else (i + 1) % words,
            NUMBER: lambda i: 0.5 * i - number,
            SPAN: lambda i: None if i % 2 else {"start": 0, "end": len(record["words"][0])},
        }
        fields: dict[str, Any] = {}
        for field in fields_from(settings["fields"]):
            value = values[field.type]
            if field.per == TEXT:
                fields[field.target] = value(number)
            elif field.per == WORD:
                fields[field.target] = [value(i) for i in range(words)]
            else:
                key = LABEL if field.type == LABEL else "value"
                pairs = [(i, (i + number) % words) for i in range(0, words, 2)]
                fields[field.target] = [{"from": i, "to": j, key: value(i)} for i, j in pairs]
        return fields

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        field = next(field for field in self.fields if field.name == name)
        counts = {LABEL: len(field.labels)}
        changed = changed_values(replace(field.array, values=field.type), targets[name], mask, counts)
        return mirrored(targets[name], mask)[..., ::-1] if field.type == SPAN else changed

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        return {**decision, **{name: self.other_target(name, decision, mask) for name in self.choices[0].outputs}}

    def decision_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        if fault := super().decision_fault(decision, features, settings):
            return fault
        mask = features["mask"]
        for field in self.fields:
            values = decision[field.name]
            real = mask if field.per != PAIR else mask[:, :, None] & mask[:, None]
            if field.type == LABEL:
                inside = (values >= 0) & (values < len(field.labels))
            elif field.type == NUMBER:
                inside = np.isfinite(values)
            else:
                lengths = mask.sum(1).reshape(-1, *[1] * (values.ndim - 1))
                inside = (values >= -1) & (values < lengths)
                inside = inside.all(-1) if field.type == SPAN else inside
            if not (inside if field.per == TEXT else inside | ~real).all():
                return f"{field.name} holds a value that is no {field.type}"
        return ""

    def counter(self) -> Counts:
        return StructureCounter(self.fields)

    def answer_labels(self) -> set[Any]:
        return {f"{field.name}/{label}" for field in self.fields for label in field.labels}

    def labels_in(self, gold: Any) -> list[str]:
        labels = {field.name: gold[field.name] for field in self.fields if field.type == LABEL}
        values = {name: value.values() if isinstance(value, dict) else [value] for name, value in labels.items()}
        return [f"{name}/{label}" for name, of_field in values.items() for label in of_field]

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


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value["text"] if isinstance(value, Mapping) else "-" if value is None else value)


def _arrays(fields: Iterable[Field]) -> Mapping[str, Array]:
    arrays = {field.name: field.array for field in fields}
    return arrays | {field.name + SCORES: field.scores for field in fields}


def _metrics(fields: Iterable[Field]) -> Mapping[str, Metric]:
    named = {name: metric for field in fields for name, metric in FieldCounter(field).metrics.items()}
    return {**named, "exact_match": Metric()}
