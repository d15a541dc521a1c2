"""Positions of a first and a last token in, what stands there in the second text of a pair out: the kind `span`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqpipe.answers.metrics import squad as reading
from seqpipe.features.document import Arrays, Doc, Record

NOTHING = -1e8  # a log-probability of this or less stands for what does not exist


class Span:
    """A stretch of the second text: `{"answer", "score", "start", "end"}`, `answer == second[start:end]`.

    No answer is an empty one, from 0 to 0. With `n_best` over 1 a list of them, best first. The score is a probability.
    """

    kind = "span"
    outputs: tuple[str, ...] = ("starts", "ends", "scores")

    def __init__(self, target: str | None = None):
        self.target = target

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Any]:
        columns = (decision[name].tolist() for name in self.outputs)
        found = []
        for doc, *row in zip(docs, *columns, strict=True):
            several = [_answer(doc, *one) for one in zip(*row, strict=True) if one[2] > NOTHING]
            found.append(several if len(row[0]) > 1 else several[0])
        return found

    def empty(self, several: bool) -> Any:
        """The answer where neither text has a token: none, for certain."""
        nothing = {"answer": "", "score": 1.0, "start": 0, "end": 0}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> list[str]:
        """The texts of the answers, none if the question has none."""
        return [text for text, _ in reading.gold_answers(record, self.target or "answers")]

    def predicted(self, answer: Any) -> str:
        best = answer[0] if isinstance(answer, list) else answer
        return str(best["answer"])

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target}


def second_text(doc: Doc) -> tuple[int, str]:
    """Where the second text of a pair begins in the joined text, and that text; of a pair with tokens."""
    at = doc.offsets[(doc.second or 1) - 1][1]
    return at, doc.text[at:]


def _answer(doc: Doc, first: int, last: int, log_p: float) -> Mapping[str, Any]:
    score = round(min(1.0, float(np.exp(np.float32(log_p)))), 6)
    if first < 0:
        return {"answer": "", "score": score, "start": 0, "end": 0}
    at, text = second_text(doc)
    start, end = doc.offsets[first][0] - at, doc.offsets[last][1] - at
    return {"answer": text[start:end], "score": score, "start": start, "end": end}
