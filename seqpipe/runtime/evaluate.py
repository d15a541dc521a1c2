"""Score a predictor's answers to records, with the same code for PyTorch and bundles."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import tee
from operator import itemgetter
from pathlib import Path
from typing import Any

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.metrics.numbers import metric_of
from seqpipe.answers.task import HeadTask, Task
from seqpipe.answers.text import RECORD_CONTINUES, SCORE_PROMPT
from seqpipe.answers.types import Counts, Metric, Scores
from seqpipe.config.contract import Metrics
from seqpipe.errors import DataError, PluginError, UsageError, did_you_mean
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.raw_text import with_raw_text
from seqpipe.features.sources import fields_of
from seqpipe.files import json_bytes, null_non_finite, write
from seqpipe.runtime.decode_options import resolve_options
from seqpipe.runtime.predictor import CHUNK, Predictor, chunks


def evaluate(
    predictor: Predictor,
    records: Iterable[Record],
    *,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Scores]:
    """Return the scores of all records under `""`, and for each value of the field `by` under that value.

    Args:
        predictor: A predictor with PyTorch or onnxruntime.
        records: Records with references.
        raw: Give the model the text only, not the words of the data, as in deployment.
        by: A field of the records to split the scores by.
        errors: A file for the records with wrong answers, as JSONL, the most confident answers first.
        options: Decode options, such as `beams`.
    """
    kind, task = predictor.kind, predictor.task
    options = options or {}
    if kind.is_generated and options:
        names = ", ".join(options)
        raise UsageError(f"{names}: perplexity needs no decoding; leave the option out")
    for name, value in options.items():
        if name.rpartition(".")[2] == "n_best" and value != 1:
            raise UsageError(f"{name}: only the best answer is scored; leave it out")
    if kind.is_generated:
        return _perplexity_scores(predictor, records, by, errors)
    if errors and not task.is_comparable:
        raise UsageError(f"errors: answers of kind {kind.kind} are neither right nor wrong; leave the file out")
    return score_answers(predictor, answered(predictor, records, raw=raw, options=options), by=by, errors=errors)


def answered(
    predictor: Predictor, records: Iterable[Record], *, raw: bool = False, options: Mapping[str, Any] | None = None
) -> Iterator[tuple[Record, Answer]]:
    """Yield each record with the answer to it; arguments are those of `evaluate`."""
    for_model, for_gold = tee(map(with_raw_text, records) if raw else records)
    questions: Iterable[Record] = map(predictor.task.question, for_model)
    if raw:
        questions = ({key: value for key, value in question.items() if key != "words"} for question in questions)
    return zip(for_gold, predictor.stream(questions, **(options or {})), strict=True)


def score_answers(
    predictor: Predictor,
    answered: Iterable[tuple[Record, Answer]],
    *,
    by: str | None = None,
    errors: Path | None = None,
) -> dict[str, Scores]:
    """Return the scores of answers to records, in the format of `evaluate`."""
    task = predictor.task
    counters = {"": _counter(predictor)}
    wrong = []
    for record, answer in answered:
        gold, predicted = task.gold(record), task.predicted(answer)
        for group in ["", _group(record, by)] if by else [""]:
            if group not in counters:
                counters[group] = _counter(predictor)
            counters[group].add(gold, predicted)
        if errors and not task.is_right(gold, predicted):
            confidence = task.confidence(gold, answer)
            wrong.append((confidence, _error_line(predictor, record, gold, answer, confidence)))
    if errors:
        wrong.sort(key=itemgetter(0), reverse=True)
        write(errors, b"".join(json_bytes(null_non_finite(line), default=str) + b"\n" for _, line in wrong))
    return {group: counter.result() for group, counter in counters.items()}


def _error_line(predictor: Predictor, record: Record, gold: Any, answer: Answer, confidence: float) -> dict[str, Any]:
    """Return a record with a wrong answer, after the answer, its confidence and its mistakes.

    These replace fields of the record with their names, as in a file of errors that is read again, except for those
    that the model reads or whose values are references.
    """
    task = predictor.task
    mistakes = task.mistakes(gold, task.predicted(answer))
    if "" not in task.parts:
        mistakes = {"mistakes": mistakes}
    # `reader_for` recognises a file of errors by the first three keys.
    about = {"confidence": confidence, "where": record.get("where"), "answer": answer}
    line: dict[str, Any] = about | mistakes
    needed = {*fields_of(predictor.featurizer), *(part.kind.target for part in task.parts.values())}
    return line | {key: value for key, value in record.items() if key in needed or key.partition(".")[0] not in line}


def _perplexity_scores(
    predictor: Predictor, records: Iterable[Record], by: str | None, errors: Path | None
) -> dict[str, Scores]:
    """Return the perplexity of a language model: of all texts, and for each value of a field."""
    if errors:
        raise UsageError("errors: a language model has no reference answers; leave it out")
    options = resolve_options(predictor.options, {SCORE_PROMPT: True, "max_length": 1}, predictor.kind).arrays

    def other_features(docs: Sequence[Doc]) -> Arrays:
        arrays = predictor.featurizer.collate(docs)
        return {name: array for name, array in arrays.items() if name not in ("ids", "mask")}

    def score_records(some: Iterable[Record]) -> Scores:
        def docs() -> Iterator[tuple[Doc, bool]]:
            for part in chunks(some, CHUNK):
                continues = [record.get(RECORD_CONTINUES) is True for record in part]
                yield from zip(predictor.featurizer.docs(part), continues, strict=True)

        return dict(predictor.task.perplexity(docs(), lambda feeds: predictor.run(feeds | options), other_features))

    if by is None:
        return {"": score_records(records)}
    groups: dict[str, list[Record]] = {}
    every = list(records)
    for record in every:
        groups.setdefault(_group(record, by), []).append(record)
    return {"": score_records(every)} | {group: score_records(some) for group, some in groups.items()}


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name and value of the metric that selects the best weights; NaN if a file has null there."""
    name, value = next(iter(scores.items()))
    return name, _number(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def deciding(scores: Mapping[str, Any], metric: str | None) -> tuple[str, float]:
    """Return the name and value of the dev score that selects the best weights: `train.metric`, or the headline.

    Raises:
        UsageError: if there is no such score.
    """
    if metric is None:
        return headline(scores)
    name = metric.removeprefix("-")
    value = _score(scores, name)
    if isinstance(value, Mapping) or value is None:
        names = [*_names(scores)]
        message = f"there is no dev score {name!r}{did_you_mean(name, names)} (there is: {', '.join(names)})"
        raise UsageError(f"train.metric: {message}")
    return name, float(value)


def _score(scores: Mapping[str, Any], name: str) -> Any:
    """Return the score of this name, such as `slots.f1` for a head's; None if it does not exist."""
    value: Any = scores
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def goodness(scores: Mapping[str, Any], metric: str | None, metrics: Mapping[str, Metric]) -> float:
    """Return the deciding score, negated if lower is better."""
    name, value = deciding(scores, metric)
    less_is_better = (metric or "").startswith("-") or not metric_of(name, metrics).more_is_better
    return -value if less_is_better else value


def is_perfect(scores: Mapping[str, Any], metric: str | None, metrics: Mapping[str, Metric]) -> bool:
    """Return whether the deciding score is perfect: an error of 0, or a fraction of 1."""
    name, _ = deciding(scores, metric)
    value, known = goodness(scores, metric, metrics), metric_of(name, metrics)
    if (metric or "").startswith("-") or not known.more_is_better:
        return value >= 0
    return known.percent and value >= 1


def _names(scores: Mapping[str, Any]) -> Iterator[str]:
    for name, score in scores.items():
        if not isinstance(score, Mapping):
            yield name
        elif name != "labels":
            yield from (f"{name}.{inner}" for inner in _names(score))


def headlines(scores: Mapping[str, Any], metric: str | None = None) -> dict[str, float]:
    """Return the headline score; for several heads their mean, followed by that of each.

    Args:
        scores: The result of `evaluate`.
        metric: The score that selected the weights, which comes first if it is among the scores.
    """
    parts = {name: headline(part) for name, part in scores.items() if isinstance(part, dict) and name != "labels"}
    chosen = {metric: _number(_score(scores, metric))} if metric and metric in _names(scores) else {}
    return chosen | dict([headline(scores)]) | {f"{name}.{inner}": value for name, (inner, value) in parts.items()}


def _counter(predictor: Predictor) -> Counts:
    parts, metrics, declared = predictor.task.parts, predictor.metrics, predictor.metric_types
    counters = {name: _HeadCounter(part, metrics.get(name), declared) for name, part in parts.items()}
    return counters[""] if "" in counters else _JointCounter(predictor.task, counters)


class _JointCounter:
    """Scores of several heads by head, the mean of their headlines, and the share of records correct in all heads."""

    def __init__(self, task: Task, counters: Mapping[str, _HeadCounter]):
        self.task, self.counters = task, counters
        self.records = self.exact = 0

    def add(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> None:
        self.records += 1
        self.exact += self.task.is_right(gold, predicted)
        for name, counter in self.counters.items():
            counter.add(gold[name], predicted[name])

    def result(self) -> Scores:
        scores = {name: counter.result() for name, counter in self.counters.items()}
        compared = [name for name, part in self.task.parts.items() if not part.kind.self_supervised]
        mean = sum(headline(self.counters[name].counter.result())[1] for name in compared) / max(1, len(compared))
        return {"mean": mean, "exact": self.exact / max(1, self.records), **scores}


class _HeadCounter:
    """Scores of the answer kind and of the head itself, for which all answers are stored until the end.

    The head's scores come first, and so select the best weights, if it declares the first of them in `score_types`.
    """

    def __init__(self, task: HeadTask, metrics: Metrics | None, declared: Container[str]):
        self.metrics, self.counter, self.declared = metrics, task.counter(), declared
        self.answers: list[tuple[Any, Any]] = []

    def add(self, gold: Any, predicted: Any) -> None:
        if self.metrics:
            self.answers.append((gold, predicted))
        self.counter.add(gold, predicted)

    def result(self) -> Scores:
        scores = self.counter.result()
        if not (self.metrics and self.answers):
            return scores
        of_head = self.metrics(*zip(*self.answers, strict=True))
        if taken := sorted(scores.keys() & of_head.keys()):
            raise PluginError(f"the head's `metrics` returns {taken[0]!r}, a name of its answer kind; rename it")
        labels = {"labels": scores.pop("labels")} if "labels" in scores else {}
        if next(iter(of_head), None) in self.declared:
            return {**of_head, **scores, **labels}
        return {**scores, **of_head, **labels}


def _group(record: Record, by: str) -> str:
    if by not in record:
        has = ", ".join(record)
        raise DataError(f"{record.get('where', 'record')}: no field {by!r} to split by; the record has: {has}")
    return f"{by}={record[by]}"
