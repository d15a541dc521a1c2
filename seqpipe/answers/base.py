"""Decisions in, answers out: what a user gets back, made by one piece of code for PyTorch and for onnxruntime.

An answer kind is built from the bundle's `answer` entry alone. It also knows what the reference of a record looks like,
so that every metric compares like with like: spans by label and code-point offsets.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.errors import DataError, UsageError
from seqpipe.features.copy import Copy
from seqpipe.features.document import Arrays, Doc, Record, locate
from seqpipe.features.encoding import encode
from seqpipe.features.vocabulary import EOS, UNK, clean, special_id

Answer = Any  # as each kind's docstring has it; lists of alternatives when more than one is asked for
_LARGEST = float(np.finfo(np.float32).max)


class Kind(Protocol):
    """One of the closed set of answer kinds."""

    kind: str
    outputs: tuple[str, ...]

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]: ...
    def empty(self, several: bool) -> Answer: ...
    def gold(self, record: Record) -> Any: ...
    def predicted(self, answer: Answer) -> Any: ...
    def manifest(self) -> dict[str, Any]: ...


class Tags:
    """One label a word: `[{"entity", "score", "word", "start", "end"}, …]`; score: the tag's probability there."""

    kind = "tags"
    outputs: tuple[str, ...] = ("tags", "scores", "opens", "closes")

    def __init__(self, labels: Sequence[str], target: str | None = None):
        self.labels, self.target = tuple(labels), target

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        if decision["paths"].shape[1] > 1 if "paths" in decision else False:
            return [self._alternatives(doc, decision, i) for i, doc in enumerate(docs)]
        tags, scores = decision["tags"].tolist(), decision["scores"]
        return [self._words(doc, tags[i], scores[i]) for i, doc in enumerate(docs)]

    def _words(self, doc: Doc, tags: Sequence[int], scores: np.ndarray | None) -> list[dict[str, Any]]:
        return [
            {
                "entity": self.labels[tag],
                **({} if scores is None else {"score": _probability(scores[i])}),
                "word": doc.text[start:end],
                "start": start,
                "end": end,
            }
            for i, ((start, end), tag) in enumerate(zip(doc.word_offsets, tags, strict=False))
        ]

    def _alternatives(self, doc: Doc, decision: Arrays, i: int) -> list[dict[str, Any]]:
        scored = zip(decision["paths"][i].tolist(), decision["path_scores"][i].tolist(), strict=True)
        return [
            {self.kind: self._words(doc, path, None), "score": _probability(np.exp(s))}
            for path, s in scored
            if s > -1e8
        ]

    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens: nothing, for certain."""
        return [{self.kind: [], "score": 1.0}] if several else []

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """(tag, start, end) of every word of the reference."""
        tags, places = _required(record, self.target or "tags"), _places(record)
        return [(tag, *place) for tag, place in zip(tags, places, strict=True)]

    def predicted(self, answer: Answer) -> list[tuple[str, int, int]]:
        return [(word["entity"], word["start"], word["end"]) for word in answer]

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}


class Spans(Tags):
    """Stretches of text: `[{"entity_group", "score", "word", "start", "end"}, …]`, with `word == text[start:end]`.

    The score is the probability that exactly these tags stand at these words.
    """

    kind = "spans"

    def __init__(self, labels: Sequence[str], target: str | None = None):
        super().__init__(labels, target)
        self._outside = self.labels.index("O")

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        if decision["paths"].shape[1] > 1 if "paths" in decision else False:
            return [self._alternatives(doc, decision, i) for i, doc in enumerate(docs)]
        inside = (decision["tags"] != self._outside).any(1)  # most texts of most data hold nothing
        return [self._scored(doc, decision, i) if inside[i] else [] for i, doc in enumerate(docs)]

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
                score["score"] = _probability(np.exp(opens[first] + closes[end - 1]))
            spans.append({"entity_group": label, **score, "word": doc.text[start:stop], "start": start, "end": stop})
        return spans

    def _words(self, doc: Doc, tags: Sequence[int], scores: np.ndarray | None) -> list[dict[str, Any]]:
        return self._spans(doc, tags[: len(doc.word_offsets)], None, None)

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """(label, start, end) of every span of the reference, in code points."""
        tags = record.get(self.target or "tags")
        if tags is None:
            return [(span["label"], span["start"], span["end"]) for span in _required(record, "spans")]
        places = _places(record)
        return [(label, places[a][0], places[b - 1][1]) for label, a, b in schemes.spans(tags)]

    def predicted(self, answer: Answer) -> list[tuple[str, int, int]]:
        return [(span["entity_group"], span["start"], span["end"]) for span in answer]


_NO_TEXT = -1e8  # the log-probability of what is no text is below


class Text:
    """Text: `{"generated_text", "score"}`, or a list of them, best first; score: the probability of the sequence.

    Args:
        tokenizer: Of what is written.
        target: The record's field with the reference, or a list of them.
        copies: How words of the source are named, where some of them may be written that the tokenizer lacks.
    """

    kind = "text"
    outputs: tuple[str, ...] = ("tokens", "scores")

    def __init__(self, tokenizer: Tokenizer, target: str | None = None, copies: Copy | None = None):
        self.tokenizer, self.target, self.copies = tokenizer, target, copies
        self._end = special_id(tokenizer, EOS)

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        answers = []
        for doc, row, log_p in zip(docs, decision["tokens"].tolist(), decision["scores"], strict=True):
            hypotheses = [
                {"generated_text": self.decode(tokens, doc), "score": _probability(np.exp(p))}
                for tokens, p in zip(row, log_p, strict=True)
                if p > _NO_TEXT or len(row) == 1
            ]
            answers.append(hypotheses if len(row) > 1 else hypotheses[0])
        return answers

    def encode(self, text: str, doc: Doc, at: str = "") -> list[int]:
        """The ids of a text that answers this one, without an end; DataError, prefixed with `at`, if there are none."""
        if self.copies:
            return self.copies.written(text, doc, at)
        return list(encode(self.tokenizer, text, at).ids)

    def decode(self, tokens: list[int], doc: Doc) -> str:
        """Token ids up to the end token, as text; copied words as they stand in the source."""
        kept = self.kept(tokens)
        if self.copies is None or all(token < self.tokenizer.get_vocab_size() for token in kept):
            return str(self.tokenizer.decode(kept, skip_special_tokens=False))
        words, decoder = self.tokens(tokens, doc), self.tokenizer.decoder
        return str(decoder.decode(words)) if decoder else " ".join(words)

    def tokens(self, tokens: list[int], doc: Doc) -> list[str]:
        """Token ids up to the end token, each as the vocabulary has it, or as it stands in the source."""
        kept, V = self.kept(tokens), self.tokenizer.get_vocab_size()
        new = self.copies.read(doc)[1] if self.copies else []
        return [new[token - V] if token >= V else str(self.tokenizer.id_to_token(token)) for token in kept]

    @property
    def unknown_words(self) -> Callable[[str], list[str]] | None:
        """Where words are copied: those of a text that the vocabulary lacks."""
        return self._unknown_words if self.copies else None

    def _unknown_words(self, text: str) -> list[str]:
        encoding = encode(self.tokenizer, clean(text))
        return [text[a:b] for (a, b), i in zip(encoding.offsets, encoding.ids, strict=True) if i <= self._end]

    def kept(self, tokens: list[int]) -> list[int]:
        """Token ids up to the end token, without special ones."""
        kept = tokens[: tokens.index(self._end)] if self._end in tokens else tokens
        return [token for token in kept if token > self._end]

    def ids(self, option: str, given: str | list[str | int]) -> list[int]:
        """Tokens of the target vocabulary: of a text, which is split, or of a list of tokens or of their ids.

        A list may name the unknown token; a text that holds what is unknown is refused.

        Raises:
            UsageError: if a token is not in the vocabulary, or is one that no text holds.
        """
        unknown, size = special_id(self.tokenizer, UNK), self.tokenizer.get_vocab_size()
        found = self._pieces(given) if isinstance(given, str) else [(one, self._id(one)) for one in given]
        for token, number in found:
            if number is None or not 0 <= number < size or (number == unknown and isinstance(given, str)):
                told = f"the target vocabulary, which has {size:,}; choose others ({given!r})"
                raise UsageError(f"{option}: {token!r} is no token of {told}")
            if number <= self._end and number != unknown:
                raise UsageError(f"{option}: {token!r} stands in no text; leave it out ({given!r})")
        return [number for _, number in found if number is not None]

    def _pieces(self, text: str) -> list[tuple[str | int, int | None]]:
        encoding = encode(self.tokenizer, clean(text))
        return [(text[a:b], number) for (a, b), number in zip(encoding.offsets, encoding.ids, strict=True)]

    def _id(self, token: Any) -> int | None:
        if isinstance(token, str):
            return self.tokenizer.token_to_id(token)
        return token if type(token) is int else None

    def empty(self, several: bool) -> Answer:
        nothing = {"generated_text": "", "score": 1.0}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> str | list[str]:
        """The reference, or several."""
        first, *others = references(record, self.target or "target")
        return [first, *others] if others else first

    def predicted(self, answer: Answer) -> str:
        best = answer[0] if isinstance(answer, list) else answer
        return str(best["generated_text"])

    def manifest(self) -> dict[str, Any]:
        copies = {"copies": {"same": self.copies.same}} if self.copies else {}
        return {"kind": self.kind, "target": self.target, **copies}


class Label:
    """One label a text: `{"label", "score"}`; score: its probability. One label may mean that no other fits."""

    kind = "label"
    outputs: tuple[str, ...] = ("label", "scores")

    def __init__(self, labels: Sequence[str], target: str | None = None, out_of_scope: str | None = None):
        self.labels, self.target, self.out_of_scope = tuple(labels), target, out_of_scope

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        scored = zip(decision["label"].tolist(), decision["scores"], strict=True)
        return [{"label": self.labels[label], "score": _probability(scores[label])} for label, scores in scored]

    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens: no label."""
        nothing = {"label": None, "score": 0.0}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> str:
        return label_of(record, self.target or "label")

    def predicted(self, answer: Answer) -> str | None:
        label: str | None = answer["label"]
        return label

    def manifest(self) -> dict[str, Any]:
        outside = {} if self.out_of_scope is None else {"out_of_scope": self.out_of_scope}
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target, **outside}


class Labels:
    """Any number of labels a text, the likeliest first: `[{"label", "score"}, …]`; score: each label's probability."""

    kind = "labels"
    outputs: tuple[str, ...] = ("labels", "scores")

    def __init__(self, labels: Sequence[str], target: str | None = None):
        self.labels, self.target = tuple(labels), target

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        scores, found = decision["scores"], decision["labels"] != 0
        return [self._chosen(np.flatnonzero(row), scores[i]) for i, row in enumerate(found)]

    def _chosen(self, chosen: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
        best_first = chosen[np.argsort(-scores[chosen], kind="stable")]
        return [{"label": self.labels[i], "score": _probability(scores[i])} for i in best_first.tolist()]

    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens: no label."""
        return [{"labels": [], "score": 1.0}] if several else []

    def gold(self, record: Record) -> list[str]:
        return sorted(label_set_of(record, self.target or "labels"))

    def predicted(self, answer: Answer) -> list[str]:
        return sorted(one["label"] for one in answer)

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}


class Score:
    """A number for each text: `{"score"}`, None for a text of no tokens.

    Records of a self-supervised head have no target: `gold` is nothing, and its mean is what is measured.
    """

    kind = "score"
    outputs: tuple[str, ...] = ("score",)

    def __init__(self, target: str | None = None, self_taught: bool = False):
        self.target, self.self_taught = target, self_taught

    @property
    def judged_as(self) -> str:
        return "number" if self.self_taught else self.kind

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        return [{"score": _number(value)} for value in decision["score"].tolist()]

    def empty(self, several: bool) -> Answer:
        nothing = {"score": None}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> float | None:
        return None if self.self_taught else number_of(record, self.target or "score")

    def predicted(self, answer: Answer) -> float | None:
        score: float | None = answer["score"]
        return score

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target} | ({"self_taught": True} if self.self_taught else {})


class Vector:
    """A text as numbers, near those of texts that mean the like: `{"vector": […]}`, None for a text of no tokens.

    Records of a self-supervised head have no target: `gold` is nothing.
    """

    kind = "vector"
    outputs: tuple[str, ...] = ("vector",)

    def __init__(self, labels: Sequence[str], target: str | None = None, self_taught: bool = False):
        self.labels, self.target, self.self_taught = tuple(labels), target, self_taught

    @property
    def judged_as(self) -> str:
        return "length" if self.self_taught else self.kind

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        return [{"vector": [_number(value) for value in row]} for row in decision["vector"].tolist()]

    def empty(self, several: bool) -> Answer:
        nothing = {"vector": None}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> str | None:
        """The label whose texts are to be near each other."""
        return None if self.self_taught else label_of(record, self.target or "label")

    def predicted(self, answer: Answer) -> list[float] | None:
        vector: list[float] | None = answer["vector"]
        return vector

    def manifest(self) -> dict[str, Any]:
        if self.self_taught:
            return {"kind": self.kind, "target": self.target, "self_taught": True}
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}


def label_of(record: Record, field: str) -> str:
    """The label of a record, a text or a whole number, as text; DataError if there is none."""
    label = _required(record, field)
    if not _is_label(label):
        raise DataError(
            f"{record.get('where', 'record')}: field {field!r} is {label!r}; a label is a text or a whole number"
        )
    return str(label)


def label_set_of(record: Record, field: str) -> set[str]:
    """The labels of a record, texts or whole numbers in a list that may be empty; DataError if it is no such list."""
    labels = _required(record, field)
    if not isinstance(labels, list) or not all(map(_is_label, labels)):
        told = f"field {field!r} is {labels!r}; several labels are a list of texts or whole numbers"
        raise DataError(f'{record.get("where", "record")}: {told}, such as ["a", "b"] or []')
    return set(map(str, labels))


def references(record: Record, field: str) -> list[str]:
    """The text of a record's field, or the texts of a list, any of which is right; DataError if there is none."""
    given = _required(record, field)
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        told = f"field {field!r} must be a text, or a list of texts any of which is right, not {type(given).__name__}"
        raise DataError(f"{record.get('where', 'record')}: {told}")
    return [clean(text) for text in texts]


def number_of(record: Record, field: str) -> float:
    """The number of a record; DataError if there is none, or if float32 cannot hold it."""
    given = number = _required(record, field)
    if isinstance(given, str):  # columns of a table are texts
        with contextlib.suppress(ValueError):
            number = float(given)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) <= _LARGEST:
        raise DataError(f"{record.get('where', 'record')}: field {field!r} is {given!r}; a finite number is needed")
    return float(number)


def _is_label(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and bool(str(value).strip())


def _number(value: float) -> float:
    """With as many digits as float32 holds."""
    return float(f"{value:.7g}")


def _probability(value: Any) -> float:
    if math.isnan(value):
        raise DataError("a score is NaN for this input; leave it out, or train again: the weights overflow")
    return round(min(1.0, max(0.0, float(value))), 6)


def _places(record: Record) -> list[tuple[int, int]]:
    """Where each word of a record stands in its text, which is the words joined by spaces if it has none."""
    words = _required(record, "words")
    return locate(words, record.get("text") or " ".join(words))


def _required(record: Record, field: str) -> Any:
    if field not in record:
        raise DataError(
            f"{record.get('where', 'record')}: no field {field!r} to compare with; it has: {', '.join(record)}"
        )
    return record[field]
