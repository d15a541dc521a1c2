"""SQuAD's metrics: the match of a model's answer with the reference answers to a question."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqpipe.answers.metrics.numbers import SumCounter, ratio
from seqpipe.answers.types import Scores
from seqpipe.errors import DataError

Gold = tuple[str, int]  # the text of an answer, and its start in the passage
_EXPECTED = 'write {"text": ["…"], "answer_start": [0]}, or a list of {"text": "…", "start": 0}; empty lists: no answer'
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_MARKS = str.maketrans("", "", string.punctuation)


def gold_answers(record: Mapping[str, Any], field: str) -> list[Gold]:
    """Return the answers of a record, empty if its question has none; DataError if the field is missing or invalid."""
    where, answers = record.get("where", "record"), record.get(field)
    if answers is None:
        raise DataError(f"{where}: no field {field!r} with the answers; the record has: {', '.join(record)}")
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise DataError(f"{where}: field {field!r}: `answer_start` and `text` must be equally long; {_EXPECTED}")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(answers, list) and all(isinstance(answer, Mapping) for answer in answers):
        pairs = [(answer.get("text"), answer.get("start", answer.get("answer_start"))) for answer in answers]
    else:
        raise DataError(f"{where}: field {field!r} is {type(answers).__name__}; {_EXPECTED}")
    for i, (text, start) in enumerate(pairs, 1):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: answer {i} of {field!r} has no text; {_EXPECTED}")
        if not isinstance(start, int) or isinstance(start, bool):
            raise DataError(
                f"{where}: answer {i} of {field!r}, {text[:40]!r}, has no whole number as its start; {_EXPECTED}"
            )
    return pairs


def locate_answer(gold: Gold, passage: str, where: str) -> tuple[int, int]:
    """Return start and end of an answer without surrounding white space; DataError if the text differs there."""
    text, start = gold
    there = passage[start : start + len(text)] if start >= 0 else ""
    if there != text:
        at = passage.find(text)
        fix = f"it is at {at}" if at >= 0 else "it is not in the passage"
        message = f"the answer {text[:40]!r} is not at {start}, where the passage has {there[:40]!r}"
        raise DataError(f"{where}: {message}; {fix}: correct it (starts count code points from 0)")
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def normalize(text: str) -> str:
    """Normalise an answer: lower case, no punctuation, articles or extra white space (Rajpurkar et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def match(gold: Sequence[str], predicted: str) -> tuple[float, float]:
    """Return exact match and word F1, each with the best reference; no reference counts as the answer ""."""
    golds = [text for text in gold if normalize(text)] or [""]
    return max(float(normalize(text) == normalize(predicted)) for text in golds), max(
        _overlap(text, predicted) for text in golds
    )


def _overlap(gold: str, predicted: str) -> float:
    right, answered = normalize(gold).split(), normalize(predicted).split()
    if not right or not answered:
        return float(right == answered)
    same = (Counter(right) & Counter(answered)).total()
    return 2 * same / (len(right) + len(answered))


class ReadingCounter(SumCounter):
    """F1 and exact match of SQuAD (Rajpurkar et al. 2016), a mean over questions.

    If some questions have no answer, also F1 over those that have one, and the accuracy on those without (Rajpurkar et
    al. 2018).
    """

    def terms(self, gold: Sequence[str], predicted: str) -> dict[str, float]:
        """Return the terms of a question: the texts of its answers, empty if it has none, and the model's answer."""
        exact, f1 = match(gold, predicted)
        without = {} if gold else {"without": 1, "silent": exact}
        return {"questions": 1, "exact": exact, "f1": f1, **without}

    def scores(self, sums: Counter[Any]) -> Scores:
        n, without = sums["questions"], sums["without"]
        scores = {"f1": ratio(sums["f1"], n), "exact_match": ratio(sums["exact"], n)}
        if np.any(without):
            scores["has_answer_f1"] = ratio(sums["f1"] - sums["silent"], n - without)
            scores["no_answer_accuracy"] = ratio(sums["silent"], without)
        return scores
