"""A predictor and records in, the task's scores out: one code for PyTorch and bundles, so both print one number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

from seqpipe.answers.base import Answer, Kind
from seqpipe.answers.fill_mask import Filled
from seqpipe.answers.generation import RECORD_CONTINUES, SCORE_PROMPT, Continuation
from seqpipe.answers.metrics import counters as metrics
from seqpipe.answers.metrics.squad import match
from seqpipe.answers.multi_head import Joint
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.span_infilling import Hidden
from seqpipe.config.contract import Metrics
from seqpipe.errors import DataError, PluginError, UsageError, nearest
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.sources import fields_of
from seqpipe.files import json_bytes, write
from seqpipe.runtime.decode_options import chosen
from seqpipe.runtime.predictor import CHUNK, Predictor, chunks

Scores = dict[str, Any]
Tag = tuple[str, int, int]  # tag, start and end of its word
SPLIT = "(split otherwise)"


def evaluate(
    predictor: Predictor,
    records: Iterable[Record],
    *,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
) -> dict[str, Scores]:
    """Scores of all records under `""`, and for each value of the field `by` under that value.

    Args:
        predictor: Answers with PyTorch or onnxruntime.
        records: With their references.
        raw: Give the model the text alone, not the words of the data: what deployment sees.
        by: A field of the records to split the scores by.
        errors: A file to list every record in that was answered wrongly, as JSONL.
    """
    kind = predictor.kind
    if isinstance(kind, Continuation):
        return _perplexity_scores(kind, predictor, records, by, errors)
    if errors and (kind.kind == "vector" or getattr(kind, "self_supervised", False)):
        raise UsageError(f"errors: a {kind.kind} is neither right nor wrong; leave the file out")
    for_model, for_gold = tee(records)
    asked = (posed(kind, record) for record in for_model)
    answers = predictor.stream(map(_unsplit, asked) if raw else asked)
    return judged(predictor, zip(for_gold, answers, strict=True), by=by, errors=errors)


def judged(
    predictor: Predictor,
    answered: Iterable[tuple[Record, Answer]],
    *,
    by: str | None = None,
    errors: Path | None = None,
) -> dict[str, Scores]:
    """The scores of answers to records, as `evaluate` gives them."""
    kind = predictor.kind
    counters = {"": _counts(kind, predictor.metrics)}
    wrong = []
    for record, answer in answered:
        gold, predicted = kind.gold(record), kind.predicted(answer)
        for group in ["", _group(record, by)] if by else [""]:
            if group not in counters:
                counters[group] = _counts(kind, predictor.metrics)
            counters[group].add(gold, predicted)
        if errors and not _right(kind, gold, predicted):
            text = {field: record.get(field) for field in fields_of(predictor.featurizer)}
            wrong.append({"where": record.get("where")} | text | _error(kind, gold, predicted))
    if errors:
        write(errors, b"".join(json_bytes(line) + b"\n" for line in wrong))
    return {group: counter.result() for group, counter in counters.items()}


def _perplexity_scores(
    kind: Continuation, predictor: Predictor, records: Iterable[Record], by: str | None, errors: Path | None
) -> dict[str, Scores]:
    """Perplexity of a language model: of all texts, and for each value of a field."""
    if errors:
        raise UsageError("errors: a language model has no reference answers; leave --errors out")
    options = chosen(predictor.options, {SCORE_PROMPT: True, "max_length": 1}, kind).arrays
    size = kind.tokenizer.get_vocab_size()

    def beside(docs: Sequence[Doc]) -> Arrays:
        arrays = predictor.featurizer.collate(docs)
        return {name: array for name, array in arrays.items() if name not in ("ids", "mask")}

    def judged(some: Iterable[Record]) -> Scores:
        docs = (
            one
            for part in chunks(some, CHUNK)
            for one in zip(
                predictor.featurizer.docs(part), [r.get(RECORD_CONTINUES) is True for r in part], strict=True
            )
        )
        return dict(kind.judged(docs, lambda feeds: predictor.run(feeds | options), size, beside))

    if by is None:
        return {"": judged(records)}
    groups: dict[str, list[Record]] = {}
    every = list(records)
    for record in every:
        groups.setdefault(_group(record, by), []).append(record)
    return {"": judged(every)} | {group: judged(some) for group, some in groups.items()}


def posed(kind: Kind, record: Record) -> Record:
    """What a model is asked to judge it by a record: the record itself, or, of what fills gaps, one with gaps."""
    return kind.posed(record) if isinstance(kind, Filled | Hidden) else record


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """The name and value of the metric that decides which weights are best; NaN if a file has null there."""
    name, value = next(iter(scores.items()))
    return name, math.nan if value is None else float(value)


def deciding(scores: Mapping[str, Any], metric: str | None) -> tuple[str, float]:
    """The name and value of the dev score that decides which weights are best: `train.metric`, or the headline.

    Raises:
        UsageError: if there is no such score.
    """
    if metric is None:
        return headline(scores)
    name = metric.removeprefix("-")
    found: Any = scores
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, Mapping) or found is None:
        names = [*_names(scores)]
        told = f"there is no dev score {name!r}{nearest(name, names)} (there is: {', '.join(names)})"
        raise UsageError(f"train.metric: {told}")
    return name, float(found)


def goodness(scores: Mapping[str, Any], metric: str | None) -> float:
    """The deciding score so that more is better: those of which less is better are negated."""
    name, value = deciding(scores, metric)
    less = (metric or "").startswith("-") or name.rpartition(".")[2] in metrics.LOWER
    return -value if less else value


def _names(scores: Mapping[str, Any]) -> Iterator[str]:
    for name, score in scores.items():
        if not isinstance(score, Mapping):
            yield name
        elif name != "labels":
            yield from (f"{name}.{one}" for one in _names(score))


def headlines(scores: Mapping[str, Any]) -> dict[str, float]:
    """The headline of a head alone; of several heads together that of each, and first the mean of these."""
    parts = {name: headline(part) for name, part in scores.items() if isinstance(part, dict) and name != "labels"}
    return dict([headline(scores)]) | {f"{name}.{metric}": value for name, (metric, value) in parts.items()}


def _counts(kind: Kind, own: Mapping[str, Metrics]) -> _Counts | _JointCounts:
    if isinstance(kind, Joint):
        return _JointCounts(kind, {name: _Counts(part, own.get(name)) for name, part in kind.parts.items()})
    return _Counts(kind, own.get(""))


class _JointCounts:
    """The scores of several heads by head, the mean of their headlines, and the share of records all right in all."""

    def __init__(self, kind: Joint, parts: Mapping[str, _Counts]):
        self.kind, self.parts = kind, parts
        self.records = self.exact = 0

    def add(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> None:
        self.records += 1
        self.exact += _right(self.kind, gold, predicted)
        for name, part in self.parts.items():
            part.add(gold[name], predicted[name])

    def result(self) -> Scores:
        parts = {name: part.result() for name, part in self.parts.items()}
        judged = [name for name, part in self.kind.parts.items() if not getattr(part, "self_supervised", False)]
        mean = sum(headline(parts[name])[1] for name in judged) / max(1, len(judged))
        return {"mean": mean, "exact": self.exact / max(1, self.records), **parts}


class _Counts:
    """The answer kind's scores, then the head's own where it has any: for those the answers are kept to the end."""

    def __init__(self, kind: Kind, own: Metrics | None):
        self.kind, self.own = kind.kind, own
        judged_as = getattr(kind, "judged_as", kind.kind)
        self.counter = metrics.counter(judged_as, getattr(kind, metrics.TOLD.get(judged_as, ""), None))
        self.answers: list[tuple[Any, Any]] = []

    def add(self, gold: Any, predicted: Any) -> None:
        if self.own:
            self.answers.append((gold, predicted))
        self.counter.add(*(_word_by_word(gold, predicted) if self.kind == "tags" else (gold, predicted)))

    def result(self) -> Scores:
        scores = self.counter.result()
        if not (self.own and self.answers):
            return scores
        own = self.own(*zip(*self.answers, strict=True))
        if taken := sorted(scores.keys() & own.keys()):
            raise PluginError(
                f"the head's `metrics` gives {taken[0]!r}, which its answer kind gives; name it otherwise"
            )
        labels = {"labels": scores.pop("labels")} if "labels" in scores else {}
        return scores | dict(own) | labels


def _word_by_word(gold: Sequence[Tag], predicted: Sequence[Tag]) -> tuple[list[str], list[str]]:
    """The tags of the reference's words, and those predicted for the same words where the model split alike."""
    found = {(start, end): tag for tag, start, end in predicted}
    return [tag for tag, _, _ in gold], [found.get((start, end), SPLIT) for _, start, end in gold]


def _unsplit(record: Record) -> Record:
    return {key: value for key, value in record.items() if key != "words"}


def _group(record: Record, by: str) -> str:
    if by not in record:
        has = ", ".join(record)
        raise DataError(f"{record.get('where', 'record')}: no field {by!r} to split by; the record has: {has}")
    return f"{by}={record[by]}"


def _right(kind: Kind, gold: Any, predicted: Any) -> bool:
    """Whether an answer is right: equal to the reference, or to one of several; without any nothing is wrong."""
    if getattr(kind, "self_supervised", False):
        return True
    if isinstance(kind, Joint):
        return all(_right(part, gold[head], predicted[head]) for head, part in kind.parts.items())
    if kind.kind == "text" and isinstance(gold, list):
        return predicted in gold
    if isinstance(kind, Pointers):
        return kind.right(gold, predicted)
    return match(gold, predicted)[0] == 1 if kind.kind == "span" else bool(gold == predicted)


def _error(kind: Kind, gold: Any, predicted: Any) -> dict[str, Any]:
    """What a wrong answer lacks and has too much, of several heads under the name of each that is wrong."""
    if isinstance(kind, Joint):
        each = ((head, part, gold[head], predicted[head]) for head, part in kind.parts.items())
        return {head: _error(*one) for head, *one in each if not _right(*one)}
    if isinstance(kind, Pointers):
        return {"expected": gold.pointers, "got": predicted}
    if isinstance(predicted, list):
        missed = [part for part in gold if part not in predicted]
        return {"missed": missed, "wrong": [part for part in predicted if part not in gold]}
    return {"expected": gold, "got": predicted}
