"""Answer kinds tags and spans: a label for each word, and labelled spans of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.base import Answer, probability, required_field
from seqpipe.features.document import Arrays, Doc, Record, locate


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
                **({} if scores is None else {"score": probability(scores[i])}),
                "word": doc.text[start:end],
                "start": start,
                "end": end,
            }
            for i, ((start, end), tag) in enumerate(zip(doc.word_offsets, tags, strict=False))
        ]

    def _alternatives(self, doc: Doc, decision: Arrays, i: int) -> list[dict[str, Any]]:
        scored = zip(decision["paths"][i].tolist(), decision["path_scores"][i].tolist(), strict=True)
        return [
            {self.kind: self._words(doc, path, None), "score": probability(np.exp(s))} for path, s in scored if s > -1e8
        ]

    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens: nothing, for certain."""
        return [{self.kind: [], "score": 1.0}] if several else []

    def gold(self, record: Record) -> list[tuple[str, int, int]]:
        """(tag, start, end) of every word of the reference."""
        tags, places = required_field(record, self.target or "tags"), _places(record)
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
        places = _places(record)
        return [(label, places[a][0], places[b - 1][1]) for label, a, b in schemes.spans(tags)]

    def predicted(self, answer: Answer) -> list[tuple[str, int, int]]:
        return [(span["entity_group"], span["start"], span["end"]) for span in answer]


def _places(record: Record) -> list[tuple[int, int]]:
    """Where each word of a record stands in its text, which is the words joined by spaces if it has none."""
    words = required_field(record, "words")
    return locate(words, record.get("text") or " ".join(words))
