"""Answer kinds tags and spans: a label for each word, and labelled spans of a text."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
from typing_extensions import TypeVar

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.answer_types import ScoredSpan, ScoredWord, SpanSequence, TagSequence
from seqpipe.answers.base import A, ChunkReader, HeadAnswer, probability, with_score
from seqpipe.answers.metrics.f1 import SpanCounter, TagCounter
from seqpipe.answers.task import HeadInfo, HeadTask, by_record, present, required_field
from seqpipe.answers.types import (
    EACH_WORD,
    Array,
    Choice,
    Counts,
    MakeTargets,
    Metric,
    SpanRules,
    Targets,
    UnseenLabelError,
)
from seqpipe.errors import DataError, attempts
from seqpipe.features.document import OVERLAP_FIX, Arrays, Doc, Record, first_docs, places_of_words, word_offsets_of
from seqpipe.features.vocabulary import Vocabulary

NO_SCHEME = "none"  # scheme of a head whose labels are tags, not parts of spans
PATH_SCORES = "path_scores"
TagsAnswer = list[ScoredWord] | list[TagSequence]
SpansAnswer = list[ScoredSpan] | list[SpanSequence]
STOPS = "stops"  # the output (B,): the correction of `closes` of the last word of the previous chunk


@dataclass
class _Span:
    """A span that may be incomplete: its label, its place in the whole text, and the log-probabilities of its ends."""

    label: str
    start: int
    end: int
    opens: float
    closes: float


class SpanReader(ChunkReader[SpansAnswer]):
    """Reader of spans, equal to those of the whole text: `opens` and `closes` of a chunk start at its first word."""

    outputs: ClassVar = (STOPS,)

    def __init__(self, labels: Sequence[str]):
        super().__init__([])
        self.labels = labels
        self._before, self._open = schemes.OUTSIDE, None  # type: schemes.Role, _Span | None
        self._sum = 0.0  # of the log-probabilities of all tags so far; in float64, since a text may be long
        self._text, self._shift = "", 0  # the text from the open span on, and its offset

    def read(self, doc: Doc, decision: Arrays, answer: SpansAnswer) -> list[ScoredSpan]:
        begin, self._text = self._shift + len(self._text), self._text + doc.text
        tags, opens, closes = (decision[name][0].tolist() for name in ("tags", "opens", "closes"))
        if self._open:
            self._open.closes += float(decision[STOPS][0])
        spans, self.tags = list[ScoredSpan](), []
        for i, (start, end) in enumerate(doc.word_offsets):
            role = schemes.role_of(self.labels[tags[i]])
            begins = schemes.opens(self._before, role)
            if begins or role == schemes.OUTSIDE:
                spans += self._close_span()
            if begins:
                self._open = _Span(role[1], begin + start, 0, opens[i] - self._sum, 0.0)
            if self._open:
                self._open.end, self._open.closes = begin + end, self._sum + closes[i]
            if role[0] in ("E", "S"):
                spans += self._close_span()
            self.tags.append("O" if role == schemes.OUTSIDE else f"{'B' if begins else 'I'}-{role[1]}")
            self._before = role
        self._sum += closes[len(doc.word_offsets) - 1]  # nothing continues the last word yet, so this is the sum
        kept = self._open.start if self._open else self._shift + len(self._text)
        self._text, self._shift = self._text[kept - self._shift :], kept
        return spans

    def finish(self) -> list[ScoredSpan]:
        return self._close_span()

    def _close_span(self) -> list[ScoredSpan]:
        """End the open span, if there is one, and return it in a list."""
        span, self._open = self._open, None
        if span is None:
            return []
        word = self._text[span.start - self._shift : span.end - self._shift]
        return [_part("entity_group", span.label, np.exp(span.opens + span.closes), word, span.start, span.end)]


def _part(key: str, label: str, score: float | None, word: str, start: int, end: int) -> Any:
    """Return a word or span in the format of an answer, with its score if it has one."""
    scored = {} if score is None else {"score": probability(score)}
    return {key: label, **scored, "word": word, "start": start, "end": end}


class TagReader(ChunkReader[TagsAnswer]):
    """Reader of the tag of each word, with its offsets in the whole text."""

    def __init__(self) -> None:
        super().__init__([])
        self.length = 0  # code points of the earlier chunks

    def read(self, doc: Doc, decision: Arrays, answer: Any) -> list[ScoredWord]:
        shift, self.length = self.length, self.length + len(doc.text)
        words: list[ScoredWord] = answer
        self.tags = [word["entity"] for word in words]
        return [{**word, "start": word["start"] + shift, "end": word["end"] + shift} for word in words]

    def finish(self) -> list[ScoredWord]:
        return []


class WordLabels(HeadAnswer[A]):
    """Base of the answer kinds with a tag for each word."""

    hub_task = "token-classification"
    decided = {
        "tags": Array("(B, T)", "int64", "label", sums="T"),
        "scores": Array("(B, T)", "float32", "probability", sums="T"),
        "opens": Array("(B, T)", "float32", sums="T"),
        "closes": Array("(B, T)", "float32", sums="T"),
        "paths": Array("(B, K, T)", "int64", "label", required=False, sums="T"),
        PATH_SCORES: Array("(B, K)", "float32", required=False, sums="T"),
        STOPS: Array("(B,)", "float32", required=False, sums="T"),
    }
    tags_words, of_whole_text, keeps_places, log_score = True, False, True, True
    manifest_keys: ClassVar[tuple[str, ...]] = ("labels", "target")
    label_key: ClassVar[str]  # of a word, or a span, in an answer

    def __init__(self, labels: Sequence[str], target: str | None = None):
        self.labels, self.target = tuple(labels), target
        labelled = {"label": self.label_key, "labels": sorted(self.known_labels)}
        self.drawing = {"as": self.kind, "several": self.kind, **labelled}

    @property
    def known_labels(self) -> set[str]:
        """Labels that a reference may have."""
        return {*self.labels}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[A]:
        docs = [doc.first for doc in docs]
        if "paths" not in decision or decision["paths"].shape[1] < 2:
            tags = decision["tags"].tolist()
            return [self.labelled(doc, tags[i], decision, i) for i, doc in enumerate(docs)]

        def alternative(doc: Doc, path: Sequence[int], score: float) -> dict[str, Any]:
            return {self.kind: self.labelled(doc, path), "score": score}

        return self.ranked(docs, {**decision, "scores": decision[PATH_SCORES]}, ("paths",), alternative)

    def part_scores(self, docs: Sequence[Doc], decision: Arrays, answer: Any, whole: Arrays) -> np.ndarray:
        """Return the probability of each word's tag or of each span; its upper bound where a variant has another.

        A word whose decided tag has the probability p has any other tag with 1 - p at most, and so has a span with it.
        """
        starts, scores = [start for start, _ in docs[0].first.word_offsets], np.zeros((len(docs), len(answer)))
        bounds = np.where(decision["tags"] != whole["tags"], 1 - decision["scores"], 1.0)  # (B, T)
        for row, variant in enumerate[Any](self.answers(docs, decision)):
            known = {(part[self.label_key], part["start"], part["end"]): part["score"] for part in variant}
            for column, part in enumerate(answer):
                first, last = bisect_left(starts, part["start"]), bisect_left(starts, part["end"])
                if self.kind == Spans.kind:  # whose neighbours may have joined it
                    first, last = max(0, first - 1), last + 1
                key = (part[self.label_key], part["start"], part["end"])
                scores[row, column] = known.get(key, bounds[row, first:last].min())
        return scores

    @abstractmethod
    def labelled(self, doc: Doc, tags: Sequence[int], decision: Arrays | None = None, row: int = 0) -> Any:
        """Return the words or spans of a text with these tags; their scores are in a row of the decision, if any."""

    def empty(self, several: bool) -> Any:
        """Return no word or span, with certainty."""
        return [{self.kind: [], "score": 1.0, **self.log_scored(0.0)}] if several else []

    def is_invalid(self, name: str, array: np.ndarray, docs: Sequence[Doc]) -> np.ndarray:
        invalid = np.isnan(array)
        if array.ndim == 2 and name != PATH_SCORES:
            lengths = np.array([[len(doc.first.word_offsets)] for doc in docs])
            invalid &= np.arange(array.shape[1]) < lengths  # (B, T): values in the padding are arbitrary
        return invalid

    def part_lines(self, part: Any) -> list[str]:
        if self.kind in part:  # one of several alternatives
            return [with_score("; ".join(self.lines(part[self.kind])), part)]
        return [f"{part['word']}: {with_score(part[self.label_key], part)}"]


class Tags(WordLabels[TagsAnswer]):
    """One label per word: `[{"entity", "score", "word", "start", "end"}, …]`; score: the tag's probability."""

    kind = "tags"
    answer_type = list[ScoredWord]
    alternative_type = TagSequence
    label_key = "entity"

    def labelled(self, doc: Doc, tags: Sequence[int], decision: Arrays | None = None, row: int = 0) -> list[Any]:
        scores = decision["scores"][row].tolist() if decision else [None] * len(tags)
        words = zip(doc.word_offsets, tags, scores, strict=False)
        return [_part("entity", self.labels[tag], p, doc.text[a:b], a, b) for (a, b), tag, p in words]

    def chunk_reader(self) -> ChunkReader[TagsAnswer]:
        return TagReader()

    def word_tags(self, answer: Any, places: Sequence[tuple[int, int]]) -> list[str]:
        return [word["entity"] for word in answer]


class Spans(WordLabels[SpansAnswer]):
    """Labelled spans of a text: `[{"entity_group", "score", "word", "start", "end"}, …]`, `word == text[start:end]`.

    The score is the probability of exactly these tags at these words.
    """

    kind = "spans"
    answer_type = list[ScoredSpan]
    alternative_type = SpanSequence
    manifest_keys = ("labels", "target", "scheme")
    label_key = "entity_group"

    def __init__(self, labels: Sequence[str], target: str | None = None, scheme: schemes.Scheme = "IOB2"):
        super().__init__(labels, target)
        self.scheme = scheme
        self.outside = self.labels.index("O") if "O" in self.labels else None

    @property
    def known_labels(self) -> set[str]:
        """Labels of spans, without the B-, I-, … of tags."""
        return {label.partition("-")[2] or label for label in self.labels}

    @property
    def label_names(self) -> Sequence[str]:
        return [*dict.fromkeys(label for label, *_ in schemes.spans(sorted(self.labels)))]

    def labelled(self, doc: Doc, tags: Sequence[int], decision: Arrays | None = None, row: int = 0) -> list[Any]:
        words, spans = doc.word_offsets, list[Any]()
        if tags.count(self.outside) == len(tags):  # most texts have no span
            return spans
        for label, first, end in schemes.spans([self.labels[tag] for tag in tags[: len(words)]]):
            start, stop = words[first][0], words[end - 1][1]
            p = np.exp(decision["opens"][row, first] + decision["closes"][row, end - 1]) if decision else None
            spans.append(_part("entity_group", label, p, doc.text[start:stop], start, stop))
        return spans

    def chunk_reader(self) -> ChunkReader[SpansAnswer]:
        return SpanReader(self.labels)

    def word_tags(self, answer: Any, places: Sequence[tuple[int, int]]) -> list[str]:
        """Return tags in the scheme IOB2; a span that begins or ends within a word has the words that begin in it."""
        starts = [start for start, _ in places]
        spans = [(s["entity_group"], bisect_left(starts, s["start"]), bisect_left(starts, s["end"])) for s in answer]
        return schemes.to_tags([span for span in spans if span[1] < span[2]], len(places), "IOB2")


W = TypeVar("W", bound=WordLabels, default=Any)


class WordLabelsTask(HeadTask[A, W]):
    """Task of a tag for each word."""

    settings = {"scheme": NO_SCHEME}
    targets = {"tags": Array("(B, T)", "int64", "label")}
    choices = (Choice(("tags",)), Choice(("paths",), ranked=True, scored_as="tags"))
    subject = EACH_WORD
    has_labels = self_trains = True
    joins_sources = True

    def pseudo_label(self, doc: Doc, decision: Arrays, row: int) -> tuple[Record, float]:
        words = [doc.text[start:end] for start, end in doc.word_offsets]
        tags = [self.kind.labels[tag] for tag in decision["tags"][row, : len(words)]]
        return {"words": words, self.kind.target or "tags": tags}, float(decision["scores"][row, : len(words)].min())

    def answer_labels(self) -> set[Any]:
        return {*self.kind.known_labels}

    def labels_in(self, gold: Any) -> list[str]:
        return [label for label, *_ in gold]

    def predicted(self, answer: Any) -> list[tuple[str, int, int]]:
        return [(part[self.kind.label_key], part["start"], part["end"]) for part in answer]


class TagsTask(WordLabelsTask[TagsAnswer, Tags]):
    """Task of the tag of each word."""

    kind_type = Tags
    target_field = "tags"
    metrics = {"accuracy": Metric(), "f1": Metric(), "precision": Metric(), "recall": Metric()}

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        counts = Counter(tag for record in records for tag in present(record, head.target or cls.target_field))
        return ordered_labels(counts, head.old_labels)

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        ids, field = {label: i for i, label in enumerate(self.kind.labels)}, self.kind.target or self.target_field
        return by_record(lambda record, doc: {"tags": label_ids(ids, present(record, field))})

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """Return (tag, start, end) of every word of the reference."""
        return self.golds([record])[0]

    def golds(self, records: Sequence[Record]) -> list[list[tuple[str, int, int]]]:
        tags = [required_field(record, self.kind.target or self.target_field) for record in records]
        rows = zip(tags, word_places(records), strict=True)
        return [[(tag, *place) for tag, place in zip(*row, strict=True)] for row in rows]

    def counter(self) -> Counts:
        return TagCounter()

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        if not (tags := Counter(tag for gold in golds for tag, *_ in gold)):
            return None
        ((tag, _),) = tags.most_common(1)
        return f"always {tag!r}", [[(tag, *place) for _, *place in gold] for gold in golds]

    def one_sided(self, labels: Counter[str], records: int) -> str:
        if not labels:
            return f"none of {records:,} records has a label"
        return f"every word has the tag {next(iter(labels))!r} ({records:,} records)" if len(labels) == 1 else ""


class SpansTask(WordLabelsTask[SpansAnswer, Spans]):
    """Task of the labelled spans of a record, or those of its tags."""

    kind_type = Spans
    target_field = "spans"
    metrics = {"f1": Metric(), "precision": Metric(), "recall": Metric()}

    @classmethod
    def reference_fields(cls, settings: Mapping[str, Any], target: str | None) -> tuple[str, ...]:
        return (target,) if target else ("tags", cls.target_field)

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        known = get_args(schemes.Scheme)
        if settings["scheme"] not in known:
            raise ValueError(f"spans need the setting `scheme`, one of {', '.join(known)}, not {settings['scheme']!r}")

    @classmethod
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        scheme = old["scheme"]
        return "" if scheme == settings["scheme"] else f"the tags of {where} are {scheme}; set scheme: {scheme}"

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """Return the tags; the count of a tag is the number of spans with its label, and that of O is 0."""
        names: Counter[str] = Counter()
        for record in records:
            tags = record.get(head.target or "tags")
            if tags is not None:
                names.update(label for label, *_ in schemes.spans(tags))
            else:
                names.update(span["label"] for span in present(record, head.target or "spans"))
        if not names:
            fix = "name the field or column of the tags with the reader's option `tags`"
            if all(record.get(head.target or "tags") is None for record in records):
                fix = f"the field {head.target or 'spans'!r} is empty in every record: mark the spans to find"
            raise DataError(f"the training data has no span; {fix}")
        old, tags = head.old_labels, schemes.tag_set(sorted(names), head.settings["scheme"])
        every = [*old, *(tag for tag in tags if tag not in {*old})]
        return Vocabulary(every, [names[schemes.parts(tag)[1]] for tag in every])

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        ids = {label: i for i, label in enumerate(self.kind.labels)}

        def targets(record: Record, doc: Doc, words: Sequence[tuple[int, int]]) -> Targets:
            spans = _word_spans(record, doc, words, self.kind.target, rules)
            # The scheme BMES has no tag for a token in no span.
            every = {*range(len(words))}
            if self.kind.outside is None and (gaps := every.difference(*(range(a, b) for _, a, b in spans))):
                start, end = words[min(gaps)]
                blank = "a tokenizer that drops white space, such as {use: chars, keep_spaces: false}"
                fix = blank if doc.text[start:end].isspace() else "a span for each token, or scheme: BIOES"
                message = f"the token {doc.text[start:end]!r} at {start} is in no span, which BMES requires; use {fix}"
                raise DataError.at(record, message)
            try:
                return {"tags": label_ids(ids, schemes.to_tags(spans, len(words), self.kind.scheme))}
            except ValueError as error:
                raise DataError.at(record, f"{error} (in words); {OVERLAP_FIX}") from error

        return lambda records, docs: attempts(targets, records, docs, word_offsets_of(first_docs(docs)))

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """Return (label, start, end) of every span of the reference, in code points."""
        return self.golds([record])[0]

    def golds(self, records: Sequence[Record]) -> list[list[tuple[str, int, int]]]:
        tags, golds = [record.get(self.kind.target or "tags") for record in records], []
        tagged = [record for record, each in zip(records, tags, strict=True) if each is not None]
        places_of_tagged = iter(word_places(tagged))
        for record, each in zip(records, tags, strict=True):
            if each is None:
                golds.append([(span["label"], span["start"], span["end"]) for span in required_field(record, "spans")])
            else:
                places = next(places_of_tagged)
                golds.append([(label, places[a][0], places[b - 1][1]) for label, a, b in schemes.spans(each)])
        return golds

    def counter(self) -> Counts:
        return SpanCounter()

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        return "never a span", [[] for _ in golds]

    def one_sided(self, labels: Counter[str], records: int) -> str:
        """Return a message if no record has a span; one label is enough, since other words differ from it."""
        return "" if labels else f"none of {records:,} records has a span"


def ordered_labels(counts: Mapping[str, int], old: Sequence[str] = ()) -> Vocabulary:
    """Return labels with their counts: those of an older run, then the others in alphabetical order."""
    labels = [*old, *sorted(counts.keys() - {*old})]
    return Vocabulary(labels, [counts.get(label, 0) for label in labels])


def label_ids(ids: Mapping[str, int], labels: Sequence[str]) -> list[int]:
    """Return the ids of labels; UnseenLabelError for one without an id."""
    for label in labels:
        if label not in ids:
            raise UnseenLabelError(f"no training record has the label {label!r}")
    return [ids[label] for label in labels]


def word_places(records: Sequence[Record]) -> list[list[tuple[int, int]]]:
    """Return start and end of each word in the text of each record, by default the words joined by spaces."""
    words = [required_field(record, "words") for record in records]
    texts = [record.get("text") or " ".join(row) for record, row in zip(records, words, strict=True)]
    return places_of_words([*zip(words, texts, strict=True)])


def _word_spans(
    record: Record, doc: Doc, words: Sequence[tuple[int, int]], target: str | None, rules: SpanRules
) -> list[schemes.Span]:
    """Return the record's spans over words; a character span that cuts a word is an error, widened, or skipped."""
    tags = record.get(target or "tags")
    if tags is not None:
        return schemes.spans(tags)
    spans = []
    for span in present(record, target or "spans"):
        place = (span["start"], span["end"])
        problem = f"span {doc.text[slice(*place)]!r} ({span['label']}) cuts a word"
        inside = rules.align(words, place, doc, record, problem)
        if inside is not None:
            spans.append((span["label"], inside[0], inside[1] + 1))
    return rules.without_overlaps(spans, record)
