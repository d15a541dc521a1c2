"""A head and records in, what it learns of each out: labels, tags of words, and texts to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.base import Kind
from seqpipe.answers.classification import label_of, label_set_of
from seqpipe.answers.extractive_span import second_text
from seqpipe.answers.generation import Continuation
from seqpipe.answers.metrics.squad import gold_answers, placed
from seqpipe.answers.pointers import Pointers, learnable
from seqpipe.answers.regression import number_of
from seqpipe.answers.text import Text, references
from seqpipe.config.contract import ANSWERS, answer_kind, is_self_supervised
from seqpipe.config.loader import Component
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record, place_of
from seqpipe.features.vocabulary import EOS, SPECIALS, Vocabulary, clean

Target = list[int] | int | float | tuple[float, ...]  # a number for each token, one for the record, a row for it
Targets = dict[str, Target]  # by name
Make = Callable[[Record, Doc], Targets | None]  # nothing of a record that is to be skipped


_END = SPECIALS.index(EOS)


class UnseenLabelError(DataError):
    """A record has a label that no training record has."""


def targets(head: Component, labels: Sequence[str], kind: Kind, misaligned: str) -> Make:
    """The function that makes what a head learns from a record; it raises UnseenLabelError for a label not in `labels`.

    Args:
        head: The head.
        labels: What its answers are made of; none for text.
        kind: What it answers with.
        misaligned: What to do with a span that cuts a word, and an answer that cuts a token: `error`, `widen`, `skip`.
    """
    target = head.frame.get("target")
    if isinstance(kind, Continuation):
        return _continuation
    if is_self_supervised(head):
        return lambda record, doc: {}
    if isinstance(kind, Text):
        return _text_target(kind, target or "target", head.options.get("equal_length") is True)
    if kind.kind == "span":
        return _answer_target(target or "answers", misaligned, bool(head.options.get("no_answer")))
    if isinstance(kind, Pointers):
        return _pointer_target(head, kind)
    scheme, ids = head.options.get("scheme", "none"), _Ids({label: i for i, label in enumerate(labels)})

    def label(record: Record, doc: Doc) -> Targets:
        return {"label": ids[label_of(record, target or "label")]}

    def several(record: Record, doc: Doc) -> Targets:
        found = {ids[label] for label in label_set_of(record, target or "labels")}
        return {"label": tuple(float(i in found) for i in range(len(labels)))}

    def score(record: Record, doc: Doc) -> Targets:
        return {"score": number_of(record, target or "score")}

    def tags(record: Record, doc: Doc) -> Targets:
        if scheme == "none":
            return {"tags": [ids[tag] for tag in present(record, target or "tags")]}
        spans = _word_spans(record, doc, target, misaligned)
        try:
            return {"tags": [ids[tag] for tag in schemes.to_tags(spans, len(doc.word_offsets), scheme)]}
        except ValueError as error:
            raise DataError(
                f"{record.get('where', 'record')}: {error} (in words); correct or remove one of the spans"
            ) from error

    made = {"label": label, "vector": label, "labels": several, "score": score}
    return made.get(kind.kind, tags)


class _Ids(dict[str, int]):
    def __missing__(self, label: str) -> int:
        raise UnseenLabelError(f"no training record has the label {label!r}")


def _text_target(kind: Text, field: str, equal: bool) -> Make:
    def text(record: Record, doc: Doc) -> Targets:
        ids = kind.encode(target_text(record, field), doc, place_of(record))
        first = doc.parts[0] if doc.parts else doc
        if equal and len(ids) not in (len(first), len(first.word_offsets)):
            told = f"the text has {len(ids)} tokens and its source {len(first)}; with equal_length they have as many"
            cure = "correct the record, or leave equal_length out"
            raise DataError(f"{record.get('where', 'record')}: {told}: {cure}")
        return {"target_ids": [*ids, _END], "target_mask": [1] * (len(ids) + 1)}

    return text


def _continuation(record: Record, doc: Doc) -> Targets:
    """Every token of a text; of two texts those of the second."""
    given = doc.second or 0
    return {"target_ids": [*doc.ids, _END], "target_mask": [0] * given + [1] * (len(doc) + 1 - given)}


def _pointer_target(head: Component, answer: Pointers) -> Make:
    def pointers(record: Record, doc: Doc) -> Targets:
        found = learnable(record, answer.target, len(answer.places(doc)), head.options)
        return {"pointers": found, "pointers_mask": [1] * len(found)}

    return pointers


def _answer_target(field: str, misaligned: str, may_lack: bool) -> Make:
    def answer(record: Record, doc: Doc) -> Targets | None:
        where, gold = record.get("where", "record"), gold_answers(record, field)
        if not gold and not may_lack:
            cure = "set the head's option no_answer: true, or leave the record out"
            raise DataError(f"{where}: the question has no answer; {cure}")
        at, passage = second_text(doc)
        places = [placed(one, passage, where) for one in gold]
        found = [place for one in places if (place := _tokens(doc, at, one, where, misaligned)) is not None]
        if gold and not found:
            return None
        first, last = found[0] if found else (-1, -1)
        return {"start": first, "end": last}

    return answer


def _tokens(doc: Doc, at: int, place: tuple[int, int], where: str, misaligned: str) -> tuple[int, int] | None:
    """First and last token of a stretch of the second text; one that cuts a token is an error, widened, or skipped."""
    start, end = place[0] + at, place[1] + at
    inside = [i for i in range(doc.second or 0, len(doc)) if doc.offsets[i][0] < end and doc.offsets[i][1] > start]
    exact = inside and (doc.offsets[inside[0]][0], doc.offsets[inside[-1]][1]) == (start, end)
    if not exact and misaligned == "error":
        tokens = [doc.text[slice(*doc.offsets[i])] for i in inside]
        cure = "set data.misaligned to widen or skip, or use another tokenizer"
        raise DataError(f"{where}: answer {doc.text[start:end][:40]!r} cuts a token of {tokens}; {cure}")
    return (inside[0], inside[-1]) if exact or (inside and misaligned == "widen") else None


def _word_spans(record: Record, doc: Doc, target: str | None, misaligned: str) -> list[schemes.Span]:
    """The record's spans over words; a character span that cuts a word is an error, widened, or skipped as told."""
    tags = record.get(target or "tags")
    if tags is not None:
        return schemes.spans(tags)
    found, words = [], doc.word_offsets
    for span in present(record, target or "spans"):
        inside = [i for i, (a, b) in enumerate(words) if a < span["end"] and b > span["start"]]
        exact = inside and words[inside[0]][0] == span["start"] and words[inside[-1]][1] == span["end"]
        if not exact and misaligned == "error":
            cut = doc.text[span["start"] : span["end"]]
            raise DataError(
                f"{record.get('where', 'record')}: span {cut!r} ({span['label']}) cuts a word of "
                f"{[doc.text[slice(*words[i])] for i in inside]}; set data.misaligned to widen or skip, "
                "or use another tokenizer"
            )
        if exact or (inside and misaligned == "widen"):
            found.append((span["label"], inside[0], inside[-1] + 1))
    return found


def labels_of(head: Component, records: Sequence[Record], old: Sequence[str] = ()) -> Vocabulary:
    """What the head's answers are made of, with how often training has each where an answer has one; none for text.

    Labels of an older run keep their order and stand first, then those of the records that are not among them.
    """
    answer, target, scheme = answer_kind(head), head.frame.get("target"), head.options.get("scheme", "none")
    if not ANSWERS[answer].has_labels or is_self_supervised(head):
        return Vocabulary(())
    if answer in ("tags", "spans"):
        return Vocabulary(_tags(records, answer, scheme, target, old))
    counts = Counter(label for record in records for label in record_labels(head, record))
    if isinstance(outside := head.options.get("out_of_scope"), str):
        counts[outside] += 0  # an answer even where no training text has it
    if not counts:
        raise DataError(f"no training record has a label; is the head's target {target or 'labels'!r} the right field?")
    labels = [*old, *sorted(counts.keys() - {*old})]
    return Vocabulary(labels, [counts[label] for label in labels])


def record_labels(head: Component, record: Record) -> set[str]:
    """The labels of a record, of which there may be one only: what a head that gives labels learns of it."""
    target = head.frame.get("target")
    if answer_kind(head) == "labels":
        return label_set_of(record, target or "labels")
    return {label_of(record, target or "label")}


def _tags(
    records: Sequence[Record], answer: str, scheme: schemes.Scheme, target: str | None, old: Sequence[str]
) -> Sequence[str]:
    if answer == "tags":
        return [*old, *sorted({tag for record in records for tag in present(record, target or "tags")} - {*old})]
    names: set[str] = set()
    for record in records:
        tags = record.get(target or "tags")
        names |= (
            {label for label, *_ in schemes.spans(tags)}
            if tags is not None
            else {span["label"] for span in present(record, target or "spans")}
        )
    if not names:
        raise DataError(
            "the training data holds no span at all; is the tag column right? See the reader's option `tags`"
        )
    return [*old, *(tag for tag in schemes.tag_set(sorted(names), scheme) if tag not in {*old})]


def text_of(record: Record, field: str) -> str:
    """The text of a record's field; DataError if it holds none."""
    text = present(record, field)
    if not isinstance(text, str):
        raise DataError(f"{record.get('where', 'record')}: field {field!r} must be a text, not {type(text).__name__}")
    return clean(text)


def target_text(record: Record, field: str) -> str:
    """The text that a head learns to write, of several references the first; DataError if there is none."""
    present(record, field)
    return references(record, field)[0]


def present(record: Record, field: str) -> Any:
    """What a record's field holds; DataError if it is not there."""
    if record.get(field) is None:
        raise DataError(f"{record.get('where', 'record')}: no field {field!r}; the record has: {', '.join(record)}")
    return record[field]
