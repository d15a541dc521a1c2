"""The spans of a text that is read in pieces, each as soon as no later word can continue it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.base import (
    HeadAnswer,
    PieceReader,
    TagPieces,
    present,
    probability,
    required_field,
    with_score,
    without_missing,
)
from seqpipe.answers.metrics.f1 import SpanCounter, TagCounter
from seqpipe.answers.types import (
    EACH_WORD,
    POSITION,
    PROBABILITY,
    TEXT,
    Answer,
    Array,
    Choice,
    Counts,
    HeadInfo,
    MakeTargets,
    Metric,
    Schema,
    SpanRules,
    Targets,
    UnseenLabelError,
    array,
    obj,
    one_of,
)
from seqpipe.errors import DataError
from seqpipe.features.document import CURE, Arrays, Doc, Record, locate
from seqpipe.features.vocabulary import Vocabulary

STOPS = "stops"  # the output (B,): what `closes` of the last word of the piece before lacks


@dataclass
class _Span:
    """A span that may be incomplete: its label, its place in the whole text, and the log-probabilities of its ends."""

    label: str
    start: int
    end: int
    opens: float
    closes: float


class SpanPieces(PieceReader):
    """The same spans with the same scores as of the whole text: `opens` and `closes` of a piece count from its first.

    Args:
        labels: The tags.
    """

    outputs: ClassVar = (STOPS,)

    def __init__(self, labels: Sequence[str]):
        super().__init__()
        self.labels = labels
        self._before, self._open = schemes.OUTSIDE, None  # type: schemes.Role, _Span | None
        self._sum = 0.0  # of the log-probabilities of all tags so far; in float64, since a text may be long
        self._text, self._shift = "", 0  # what was read from the open span on, and where that stands

    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> list[dict[str, Any]]:
        begin, self._text = self._shift + len(self._text), self._text + doc.text
        tags, opens, closes = (decision[name][0].tolist() for name in ("tags", "opens", "closes"))
        if self._open:
            self._open.closes += float(decision[STOPS][0])
        spans, self.tags = [], []
        for i, (start, end) in enumerate(doc.word_offsets):
            role = schemes.role_of(self.labels[tags[i]])
            begins = schemes.opens(self._before, role)
            if begins or role == schemes.OUTSIDE:
                spans += self._closed()
            if begins:
                self._open = _Span(role[1], begin + start, 0, opens[i] - self._sum, 0.0)
            if self._open:
                self._open.end, self._open.closes = begin + end, self._sum + closes[i]
            if schemes.closes(role):
                spans += self._closed()
            self.tags.append("O" if role == schemes.OUTSIDE else f"{'B' if begins else 'I'}-{role[1]}")
            self._before = role
        self._sum += closes[len(doc.word_offsets) - 1]  # nothing continues the last word yet, so that this is the sum
        kept = self._open.start if self._open else self._shift + len(self._text)
        self._text, self._shift = self._text[kept - self._shift :], kept
        return spans

    def finish(self) -> list[dict[str, Any]]:
        return self._closed()

    def _closed(self) -> list[dict[str, Any]]:
        """The open span, if there is one, as an answer has it."""
        span, self._open = self._open, None
        if span is None:
            return []
        word = self._text[span.start - self._shift : span.end - self._shift]
        score = probability(np.exp(span.opens + span.closes))
        return [{"entity_group": span.label, "score": score, "word": word, "start": span.start, "end": span.end}]


# Answer kinds tags and spans: a label for each word, and labelled spans of a text.

NO_SCHEME = "none"  # of a head that tags words: its labels are tags, not parts of spans
PATH_SCORES = "path_scores"


class Tags(HeadAnswer):
    """One label a word: `[{"entity", "score", "word", "start", "end"}, …]`; score: the tag's probability there."""

    kind = "tags"
    settings = {"scheme": NO_SCHEME}
    decided = {
        "tags": Array("(B, T)", "int64", "label"),
        "scores": Array("(B, T)", "float32", "probability"),
        "opens": Array("(B, T)", "float32"),
        "closes": Array("(B, T)", "float32"),
        "paths": Array("(B, K, T)", "int64", "label", required=False),
        PATH_SCORES: Array("(B, K)", "float32", required=False),
        STOPS: Array("(B,)", "float32", required=False),
    }
    targets = {"tags": Array("(B, T)", "int64", "label")}
    metrics = {"accuracy": Metric(), "f1": Metric(), "precision": Metric(), "recall": Metric()}
    choices = (Choice(("tags",)), Choice(("paths",), ranked=True, scored_as="tags"))
    subject = EACH_WORD
    has_labels = True
    joins_sources = True
    tags_words = True
    default_target = "tags"
    label_key = "entity"  # of a word in an answer

    def __init__(self, labels: Sequence[str], target: str | None = None):
        self.labels, self.target = tuple(labels), target

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": self.kind, "several": self.kind, "label": self.label_key, "labels": sorted(self.answer_labels())}

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Tags:
        return cls(labels, head.target)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Tags:
        return cls(manifest["labels"], manifest["target"])

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        field, old = head.target or cls.default_target, head.old_labels
        return Vocabulary([*old, *sorted({tag for record in records for tag in present(record, field)} - {*old})])

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        ids, field = {label: i for i, label in enumerate(self.labels)}, self.target or self.default_target
        return lambda record, doc: {"tags": label_ids(ids, present(record, field))}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        docs = [doc.first for doc in docs]
        if "paths" in decision and decision["paths"].shape[1] > 1:
            return [self._alternatives(doc, decision, i) for i, doc in enumerate(docs)]
        tags, scores = decision["tags"].tolist(), decision["scores"]
        return [self._words(doc, tags[i], scores[i]) for i, doc in enumerate(docs)]

    def piece_reader(self) -> PieceReader:
        return TagPieces()

    def _words(self, doc: Doc, tags: Sequence[int], scores: np.ndarray | None) -> list[dict[str, Any]]:
        words = []
        for i, ((start, end), tag) in enumerate(zip(doc.word_offsets, tags, strict=False)):
            score = {} if scores is None else {"score": probability(scores[i])}
            words.append({"entity": self.labels[tag], **score, "word": doc.text[start:end], "start": start, "end": end})
        return words

    def _alternatives(self, doc: Doc, decision: Arrays, i: int) -> list[dict[str, Any]]:
        paths, log_p = decision["paths"][i].tolist(), decision[PATH_SCORES][i].tolist()
        return [
            {self.kind: self._words(doc, path, None), "score": probability(np.exp(p))}
            for path, p in without_missing(zip(paths, log_p, strict=True), log_p)
        ]

    def rated_decisions(self, decision: Arrays, mask: np.ndarray) -> list[tuple[Arrays, np.ndarray]]:
        last = mask.sum(1, keepdims=True) - 1
        closes = np.take_along_axis(decision["closes"], last, 1)[:, 0]
        return [(decision, decision["opens"][:, 0] + closes)]

    def empty(self, several: bool) -> Answer:
        """No word, for certain."""
        return [{self.kind: [], "score": 1.0}] if several else []

    def is_invalid(self, name: str, array: np.ndarray, docs: Sequence[Doc]) -> np.ndarray:
        invalid = np.isnan(array)
        if array.ndim == 2 and name != PATH_SCORES:
            lengths = np.array([[len(doc.first.word_offsets)] for doc in docs])
            invalid &= np.arange(array.shape[1]) < lengths  # (B, T): what follows a text means nothing
        return invalid

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """(tag, start, end) of every word of the reference."""
        tags, places = required_field(record, self.target or self.default_target), word_places(record)
        return [(tag, *place) for tag, place in zip(tags, places, strict=True)]

    def part_schema(self) -> Schema:
        return self._parts_schema({"score": PROBABILITY})

    def alternative_schema(self) -> Schema:
        return obj({self.kind: self._parts_schema({}), "score": PROBABILITY})

    def _parts_schema(self, score: Schema) -> Schema:
        label = one_of(self._label_names)
        return array(obj({self.label_key: label, **score, "word": TEXT, "start": POSITION, "end": POSITION}))

    @property
    def _label_names(self) -> Sequence[str]:
        """What an answer may call a word, or a span."""
        return self.labels

    def part_lines(self, part: Any) -> list[str]:
        if self.kind in part:  # one of several alternatives
            return [with_score("; ".join(self.lines(part[self.kind])), part)]
        return [f"{part['word']}: {with_score(part[self.label_key], part)}"]

    def word_tags(self, answer: Answer, places: Sequence[tuple[int, int]]) -> list[str]:
        return [word["entity"] for word in answer]

    def predicted(self, answer: Answer) -> list[tuple[str, int, int]]:
        return [(word["entity"], word["start"], word["end"]) for word in answer]

    def counter(self) -> Counts:
        return TagCounter()

    def answer_labels(self) -> set[Any]:
        return {*self.labels}

    def labels_in(self, gold: Any) -> list[str]:
        return [label for label, *_ in gold]

    def one_sided(self, labels: Counter[str], records: int) -> str:
        if not labels:
            return f"none of {records:,} records holds a label"
        return f"every word has the tag {next(iter(labels))!r} ({records:,} records)" if len(labels) == 1 else ""


class Spans(Tags):
    """Labelled spans of a text: `[{"entity_group", "score", "word", "start", "end"}, …]`, `word == text[start:end]`.

    The score is the probability that exactly these tags stand at these words.
    """

    kind = "spans"
    label_key = "entity_group"
    metrics = {"f1": Metric(), "precision": Metric(), "recall": Metric()}

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        known = get_args(schemes.Scheme)
        if settings["scheme"] not in known:
            raise ValueError(f"spans need the setting `scheme`, one of {', '.join(known)}, not {settings['scheme']!r}")

    def __init__(self, labels: Sequence[str], target: str | None = None, scheme: schemes.Scheme = "IOB2"):
        super().__init__(labels, target)
        self.scheme = scheme
        self._outside = self.labels.index("O") if "O" in self.labels else None

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Spans:
        return cls(labels, head.target, head.settings["scheme"])

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Spans:
        return cls(manifest["labels"], manifest["target"], manifest["scheme"])

    def manifest(self) -> dict[str, Any]:
        return {**super().manifest(), "scheme": self.scheme}

    @classmethod
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        scheme = old["scheme"]
        return "" if scheme == settings["scheme"] else f"the tags of {where} are {scheme}; set scheme: {scheme}"

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        names: set[str] = set()
        has_tags = False
        for record in records:
            tags = record.get(head.target or "tags")
            if tags is not None:
                has_tags = True
                names.update(label for label, *_ in schemes.spans(tags))
            else:
                names.update(span["label"] for span in present(record, head.target or "spans"))
        if not names:
            cure = "name the field or column of the tags with the reader's option `tags`"
            if not has_tags:
                cure = f"the field {head.target or 'spans'!r} is empty in every record: mark what is to be found"
            raise DataError(f"the training data holds no span at all; {cure}")
        old, tags = head.old_labels, schemes.tag_set(sorted(names), head.settings["scheme"])
        return Vocabulary([*old, *(tag for tag in tags if tag not in {*old})])

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        ids = {label: i for i, label in enumerate(self.labels)}

        def targets(record: Record, doc: Doc) -> Targets:
            doc = doc.first
            spans = _word_spans(record, doc, self.target, rules)
            if self._outside is None:
                _refuse_gaps(spans, doc, record)
            try:
                return {"tags": label_ids(ids, schemes.to_tags(spans, len(doc.word_offsets), self.scheme))}
            except ValueError as error:
                raise DataError.at(record, f"{error} (in words); {CURE}") from error

        return targets

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        docs = [doc.first for doc in docs]
        if "paths" in decision and decision["paths"].shape[1] > 1:
            return [self._alternatives(doc, decision, i) for i, doc in enumerate(docs)]
        if self._outside is None:
            return [self._scored(doc, decision, i) for i, doc in enumerate(docs)]
        inside = (decision["tags"] != self._outside).any(1)  # most texts of most data hold no span
        return [self._scored(doc, decision, i) if inside[i] else [] for i, doc in enumerate(docs)]

    def piece_reader(self) -> PieceReader:
        return SpanPieces(self.labels)

    def _scored(self, doc: Doc, decision: Arrays, i: int) -> list[dict[str, Any]]:
        tags = decision["tags"][i, : len(doc.word_offsets)].tolist()
        return self._spans(doc, tags, decision["opens"][i], decision["closes"][i])

    def _spans(
        self, doc: Doc, tags: Sequence[int], opens: np.ndarray | None, closes: np.ndarray | None
    ) -> list[dict[str, Any]]:
        spans = []
        for label, first, end in schemes.spans([self.labels[tag] for tag in tags]):
            start, stop = doc.word_offsets[first][0], doc.word_offsets[end - 1][1]
            score = {}
            if opens is not None and closes is not None:
                score["score"] = probability(np.exp(opens[first] + closes[end - 1]))
            spans.append({"entity_group": label, **score, "word": doc.text[start:stop], "start": start, "end": stop})
        return spans

    def _words(self, doc: Doc, tags: Sequence[int], scores: np.ndarray | None) -> list[dict[str, Any]]:
        return self._spans(doc, tags[: len(doc.word_offsets)], None, None)

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """(label, start, end) of every span of the reference, in code points."""
        tags = record.get(self.target or "tags")
        if tags is None:
            return [(span["label"], span["start"], span["end"]) for span in required_field(record, "spans")]
        places = word_places(record)
        return [(label, places[a][0], places[b - 1][1]) for label, a, b in schemes.spans(tags)]

    @property
    def _label_names(self) -> Sequence[str]:
        return [*dict.fromkeys(label for label, *_ in schemes.spans(sorted(self.labels)))]

    def word_tags(self, answer: Answer, places: Sequence[tuple[int, int]]) -> list[str]:
        """Tags in the scheme IOB2."""
        first = {start: i for i, (start, _) in enumerate(places)}
        last = {end: i + 1 for i, (_, end) in enumerate(places)}
        spans = [(span["entity_group"], first[span["start"]], last[span["end"]]) for span in answer]
        return schemes.to_tags(spans, len(places), "IOB2")

    def predicted(self, answer: Answer) -> list[tuple[str, int, int]]:
        return [(span["entity_group"], span["start"], span["end"]) for span in answer]

    def counter(self) -> Counts:
        return SpanCounter()

    def answer_labels(self) -> set[Any]:
        """The labels of spans, without the B-, I-, … of tags."""
        return {label.partition("-")[2] or label for label in self.labels}

    def one_sided(self, labels: Counter[str], records: int) -> str:
        """Records with one kind of span are enough: it is found among words that are in none."""
        return "" if labels else f"none of {records:,} records holds a span"


def label_ids(ids: Mapping[str, int], labels: Sequence[str]) -> list[int]:
    """The ids of labels; UnseenLabelError for one without an id."""
    for label in labels:
        if label not in ids:
            raise UnseenLabelError(f"no training record has the label {label!r}")
    return [ids[label] for label in labels]


def word_places(record: Record) -> list[tuple[int, int]]:
    """Where each word of a record stands in its text, which is the words joined by spaces if it has none."""
    words = required_field(record, "words")
    return locate(words, record.get("text") or " ".join(words))


def _refuse_gaps(spans: Sequence[schemes.Span], doc: Doc, record: Record) -> None:
    """DataError for a token in no span: the scheme BMES has no tag for it."""
    covered = {i for _, start, end in spans for i in range(start, end)}
    for i, (start, end) in enumerate(doc.word_offsets):
        if i not in covered:
            token = doc.text[start:end]
            blank = "a tokenizer that drops white space, such as {use: chars, keep_spaces: false}"
            cure = blank if token.isspace() else "a span for each token, or scheme: BIOES"
            raise DataError.at(record, f"the token {token!r} at {start} is in no span, as BMES needs it; use {cure}")


def _word_spans(record: Record, doc: Doc, target: str | None, rules: SpanRules) -> list[schemes.Span]:
    """The record's spans over words; a character span that cuts a word is an error, widened, or skipped."""
    tags = record.get(target or "tags")
    if tags is not None:
        return schemes.spans(tags)
    spans, words = [], doc.word_offsets
    for span in present(record, target or "spans"):
        place = (span["start"], span["end"])
        problem = f"span {doc.text[slice(*place)]!r} ({span['label']}) cuts a word"
        inside = rules.align(words, place, doc, record, problem)
        if inside is not None:
            spans.append((span["label"], inside[0], inside[1] + 1))
    return rules.without_overlaps(spans, record)
