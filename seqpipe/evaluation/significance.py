"""Intervals of scores, scores of constant predictions, and comparison of two models on the same records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.metrics.numbers import metric_of
from seqpipe.answers.types import Pair, Scores
from seqpipe.errors import UsageError
from seqpipe.evaluation.scores import group_of, headlines, new_counter
from seqpipe.features.document import Record
from seqpipe.features.sources import read_fields
from seqpipe.runtime.predictor import Predictor

RESAMPLES = 1000
LEVEL = 0.05  # a smaller p is a difference; 1 - LEVEL is the level of the interval
MAX_SAMPLE_WEIGHTS = 4_000_000  # numbers of an array of weights
MAX_RESAMPLED_GROUPS = 2_000  # of records, drawn together, of which the samples of a large set consist
CHANCE_FIX = "check that the right columns are read, and that the target depends on the text"
WIDE_INTERVAL = 0.1  # of a fraction, above which a score says little
Key = tuple[str, str]  # of a score: the label, or "", and the metric
Triple = tuple[Any, Any, Any]  # the reference of a record, and both predictions


@dataclass(frozen=True)
class ScoreContext:
    """The main score of a set of records with its interval and the score of a constant prediction.

    Attributes:
        metric: Name of the score: the one that selected the weights, or the headline of the answer kind.
        score: Its value.
        records: The number of records.
        percent: Whether it is a fraction, and shown in percent.
        more_is_better: Whether a higher score is better.
        low: Lower end of its 95 % interval by the percentile bootstrap (Efron 1979); where every record is right, or
            none, that of Clopper and Pearson (1934). None for one record, and for what cannot be resampled.
        high: Upper end of the interval.
        constant: A constant prediction, such as `always 'refund'`, the best without reading the text; "" without one.
        baseline: The score of this prediction.
    """

    metric: str
    score: float
    records: int
    percent: bool
    more_is_better: bool
    low: float | None = None
    high: float | None = None
    constant: str = ""
    baseline: float | None = None

    def format(self, value: float | None) -> str:
        """Return a value of this score as text, a fraction in percent."""
        if value is None:
            return "-"
        return f"{100 * value:.2f}" if self.percent else f"{round(value, 12):.4g}"  # no 2e-16 for 0

    @property
    def interval(self) -> str:
        """The interval as text; "" without one."""
        return "" if self.low is None else f"{self.format(self.low)} to {self.format(self.high)}"

    @property
    def line(self) -> str:
        """The score as text, with its interval and the score of the constant prediction."""
        interval = f" (95 % interval {self.interval})" if self.interval else ""
        baseline = f"; {self.constant}: {self.format(self.baseline)}" if self.constant else ""
        return f"{self.metric} {self.format(self.score)}{interval}{baseline}"

    @property
    def is_chance(self) -> bool:
        """True if the constant prediction is within the interval, or better."""
        if self.baseline is None or self.low is None or self.high is None:
            return False
        return self.low <= self.baseline if self.more_is_better else self.high >= self.baseline

    def remarks(self) -> Iterator[str]:
        """Yield in words that the score is no better than that of a constant prediction, or says little."""
        if self.low is None or self.high is None:
            return
        if self.is_chance:
            yield f"no better than a constant prediction, as far as {self.records:,} records show; {CHANCE_FIX}"
        elif self.percent and self.high - self.low > WIDE_INTERVAL:
            points = 100 * (self.high - self.low)
            yield f"{self.records:,} records are few: the interval is {points:.0f} points wide; score more records"


def score_contexts(
    predictor: Predictor, pairs: Sequence[Pair], scores: Scores, metric: str | None = None
) -> list[ScoreContext]:
    """Return the main scores of references and predictions with their intervals; of several heads that of each.

    `metric` is the score that selected the weights, which comes first if it is among the scores.
    """
    main, types = headlines(scores, metric), predictor.metric_types
    intervals = _intervals(predictor, pairs, main)
    baselines, answer = dict[str, float](), ""
    if constant := predictor.task.constant_prediction([gold for gold, _ in pairs]):
        counter, (answer, predictions) = new_counter(predictor), constant
        for (gold, _), predicted in zip(pairs, predictions, strict=True):
            counter.add(gold, predicted)
        baselines = headlines(counter.result(), metric)
    contexts = []
    for name, score in main.items():
        facts = name, score, len(pairs), *astuple(metric_of(name, types)), *intervals.get(name, (None, None))
        contexts.append(ScoreContext(*facts))
    if (baseline := baselines.get(contexts[0].metric)) is not None:
        contexts[0] = replace(contexts[0], constant=answer, baseline=baseline)
    return contexts


def _intervals(
    predictor: Predictor, pairs: Sequence[Pair], scores: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of the scores that can be resampled."""
    if (size := len(pairs)) < 2:
        return {}
    counter, intervals = new_counter(predictor), dict[str, tuple[float, float]]()
    for pair in pairs:
        counter.add(*pair)
    rng, groups = np.random.default_rng(1), min(size, MAX_RESAMPLED_GROUPS)
    places = rng.permutation(size) % groups
    # The first row is the whole set.
    weights = np.vstack([np.ones(groups), rng.multinomial(groups, np.full(groups, 1 / groups), RESAMPLES)])
    for rows, scores_of in counter.statistics([pairs], range(size)):
        if not np.isfinite(rows).all():  # a metric of the head itself
            continue
        sums = np.zeros((groups, rows.shape[1]))
        np.add.at(sums, places, rows)
        samples = _flat(scores_of(weights @ sums), predictor)
        for name, score in scores.items():
            values = samples.get(("", name))
            # Not each metric of the head itself is a function of sums.
            if values is None or not np.isclose(values[0], score, atol=1e-9):
                continue
            low, high = np.percentile(values[1:], [100 * LEVEL / 2, 100 - 100 * LEVEL / 2])
            if metric_of(name, predictor.metric_types).percent and low == high and score in (0, 1):
                low, high = ((LEVEL / 2) ** (1 / size), 1.0) if score else (0.0, 1 - (LEVEL / 2) ** (1 / size))
            intervals[name] = float(low), float(high)
    return intervals


@dataclass(frozen=True)
class AnsweredSets:
    """The records of test sets with a model's answers, and the predictor that scores them."""

    name: str
    predictor: Predictor
    sets: Mapping[str, Sequence[tuple[Record, Answer]]]


@dataclass(frozen=True)
class Difference:
    """A score of two models on the same records, and the difference of the second from the first."""

    name: str  # the metric, the label or the group
    first: float
    second: float
    difference: float
    percent: bool  # whether scores are fractions, and 0.01 is a point
    more_is_better: bool
    low: float | None = None  # of the 95 % interval, by the paired bootstrap; None for what cannot be resampled
    high: float | None = None
    p: float | None = None  # probability of at least this difference between equal models

    @property
    def gain(self) -> float:
        """The improvement by the second model, in points for a fraction; negative if it is worse."""
        return self.difference * (100 if self.percent else 1) * (1 if self.more_is_better else -1)

    def format(self, value: float | None, sign: str = "") -> str:
        """Return a score or a difference as text, a fraction in points."""
        if value is None:
            return "-"
        text = f"{100 * value:{sign}.2f}" if self.percent else f"{value:{sign}.4g}"
        return text.replace("-", sign) if float(text) == 0 else text  # not -0.00


@dataclass(frozen=True)
class SetComparison:
    """Comparison of two models on one test set."""

    data: str  # name of the test set
    first: str
    second: str
    records: int
    resamples: int
    scores: list[Difference]  # every metric, the main one first
    labels: list[Difference]  # F1 of each label
    groups: list[Difference]  # the main metric for each value of the field `by`
    changes: dict[str, int]  # records: `fixed`, `broken`, `changed` from a wrong answer to another; of texts none
    examples: list[dict[str, Any]]  # changed answers: `change`, `where`, `text`, `expected`, `answers`

    @property
    def sentence(self) -> str:
        """The result for the main metric. The randomisation test decides, since it is exact for few records too."""
        main = self.scores[0]
        by = f"{main.format(abs(main.difference))}{' points' if main.percent else ''} of {main.name}"
        if main.p is None:
            return f"a difference of {by}, which cannot be resampled"
        better, worse = (self.second, self.first) if main.gain > 0 else (self.first, self.second)
        low, high = sorted(end if main.difference > 0 else -end for end in (main.low or 0.0, main.high or 0.0))
        by += f" (95 % interval {main.format(low)} to {main.format(high)}, p = {main.p:.2g})"
        if main.p >= LEVEL:
            return f"no difference that this test set can show: {by}{f' for {better}' if main.difference else ''}"
        return f"{better} is better than {worse} by {by}"


def compare_answers(
    first: AnsweredSets, second: AnsweredSets, by: str | None = None, examples: int = 3, resamples: int = RESAMPLES
) -> list[SetComparison]:
    """Return the comparison on each test set of both models; UsageError if these or the heads differ.

    The interval is the percentile interval of the paired bootstrap (Efron 1979; Koehn 2004). p is that of approximate
    randomisation (Noreen 1989; Yeh 2000), with half the weight for equal differences (mid-p; Fagerland et al. 2013).
    """
    kinds = [{head: part.kind for head, part in side.predictor.kind.parts.items()} for side in (first, second)]
    if kinds[0] != kinds[1]:
        raise UsageError(f"{first.name} has the answer kinds {kinds[0]}, {second.name} {kinds[1]}; compare equal ones")
    if not (sets := [name for name in first.sets if name in second.sets]):
        names = f"{first.name} has answers to {[*first.sets]}, {second.name} to {[*second.sets]}"
        raise UsageError(f"{names}: no test set in common; answer one file with both: --data FILE")
    return [_compare_set(name, first, second, by, examples, resamples) for name in sets]


def _compare_set(
    data: str, first: AnsweredSets, second: AnsweredSets, by: str | None, examples: int, resamples: int
) -> SetComparison:
    predictor, task = first.predictor, first.predictor.task
    triples: list[Triple] = []
    groups: dict[str, list[Triple]] = defaultdict(list)
    sorts = () if predictor.kind.is_generated else ("fixed", "broken", "changed")
    changes: dict[str, list[dict[str, Any]]] = {sort: [] for sort in sorts}
    for record, *answers in _align(data, first, second):
        gold, *predicted = triple = (task.gold(record), *map(task.predicted, answers))
        triples.append(triple)
        if by:
            groups[group_of(record, by)].append(triple)
        if changes and predicted[0] != predicted[1]:
            right = [task.is_comparable and task.is_right(gold, each) for each in predicted]
            kind = "changed" if right[0] == right[1] else "fixed" if right[1] else "broken"
            texts = [str(record[field]) for field in read_fields(predictor.featurizer) if record.get(field) is not None]
            text = " | ".join(texts) or " ".join(record.get("words", []))
            example = {"change": kind, "where": record.get("where"), "text": text, "expected": gold}
            changes[kind].append(example | {"answers": ["; ".join(predictor.kind.lines(answer)) for answer in answers]})
    scores = _differences(predictor, triples, resamples)
    # Tokens of two tokenizers are no common unit.
    differ = predictor.kind.is_generated and any(a["tokens"] != b["tokens"] for _, a, b in triples)
    overall = [key for key in scores if not key[0] and not (differ and key[1] in ("perplexity", "loss"))]
    main = min(overall, key=lambda key: scores[key].p is None)
    group_rows = [replace(_differences(predictor, groups[name], resamples)[main], name=name) for name in sorted(groups)]
    label_rows = [row for (label, _), row in scores.items() if label]
    ordered = [scores[main], *(scores[key] for key in overall if key != main)]
    counts = {kind: len(kind_changes) for kind, kind_changes in changes.items()}
    shown = [example for kind_changes in changes.values() for example in kind_changes[:examples]]
    facts = data, first.name, second.name, len(triples), resamples
    return SetComparison(*facts, ordered, label_rows, group_rows, counts, shown)


def _align(data: str, first: AnsweredSets, second: AnsweredSets) -> list[tuple[Record, Answer, Answer]]:
    """Return the records of a test set with both answers, in the order of the first model."""
    sides: list[dict[tuple[str, int], tuple[Record, Answer]]] = [{}, {}]
    for side, model in zip(sides, (first, second), strict=True):
        counts = Counter[str]()
        for record, answer in model.sets[data]:
            content = {key: record[key] for key in record.keys() - {"where"}}
            # JSON cannot hold the reference of a structured head, whose keys are places of words.
            key = f"{model.predictor.task.gold(record)!r}, {json.dumps(content, sort_keys=True, default=str)}"
            counts[key] += 1
            side[key, counts[key]] = record, answer
    if sides[0].keys() != sides[1].keys():
        lines = [f"{data}: the records or their references differ; answer one file with both: --data FILE"]
        for side, reverse, name in zip(sides, sides[::-1], (first.name, second.name), strict=True):
            extra = [key for key in side if key not in reverse]
            lines.append(f"{len(extra):,} of {len(side):,} records only in {name}")
            lines += [f"  {side[key][0].get('where', 'record')}: {key[0][:120]}" for key in extra[:3]]
        raise UsageError("\n".join(lines))
    return [(record, answer, sides[1][key][1]) for key, (record, answer) in sides[0].items()]


def _differences(predictor: Predictor, triples: Sequence[Triple], resamples: int) -> dict[Key, Difference]:
    """Return the difference of each score, by label and metric.

    Scores are functions of sums over records. So a sample needs no counting: its sums are those of single records by
    their weights.
    """
    places: dict[str, list[int]] = defaultdict(list)  # equal records are drawn together
    for i, triple in enumerate(triples):
        places[repr(triple)].append(i)
    at, counts = [indices[0] for indices in places.values()], np.array([len(indices) for indices in places.values()])
    sides = [[(triple[0], triple[side]) for triple in triples] for side in (1, 2)]
    whole = [new_counter(predictor) for _ in sides]
    for counter, side in zip(whole, sides, strict=True):
        for pair in side:
            counter.add(*pair)
    statistics = [*whole[0].statistics(sides, at)]

    def scores(first: np.ndarray, second: np.ndarray) -> dict[Key, Any]:
        """Return the scores of samples, each a row of weights of the answers of both models."""
        weights, by_key = np.hstack([first, second]).astype(float), dict[Key, Any]()
        for rows, score in statistics:
            by_key |= _flat(score(weights @ rows), predictor)
        return by_key

    rng, size = np.random.default_rng(1), max(1, MAX_SAMPLE_WEIGHTS // len(at))
    samples: dict[Key, list[list[np.ndarray]]] = defaultdict(list)
    for number in (min(size, resamples - done) for done in range(0, resamples, size)):
        drawn = rng.multinomial(len(triples), counts / len(triples), size=number)
        kept = rng.binomial(counts, 0.5, size=(number, len(at)))
        # The first row is the whole set.
        weights = np.vstack([counts, drawn, kept]), np.vstack([0 * counts, 0 * drawn, counts - kept])
        before, after = scores(*weights), scores(*weights[::-1])
        for key in before:
            parts = np.split(np.broadcast_to(after[key] - before[key], 1 + 2 * number), [1, 1 + number])
            samples[key].append(parts)
    rows = {}
    first_scores, second_scores = (_flat(counter.result(), predictor) for counter in whole)
    for key in (key for key in first_scores if key in second_scores):
        pair, difference = (first_scores[key], second_scores[key]), second_scores[key] - first_scores[key]
        row = Difference(key[0] or key[1], *pair, difference, *astuple(metric_of(key[1], predictor.metric_types)))
        # Not each metric of the head itself is a function of sums.
        if key in samples and np.isclose(samples[key][0][0], difference, atol=1e-9):
            _, bootstrap, swapped = map(np.concatenate, zip(*samples[key], strict=True))
            low, high = np.percentile(bootstrap, [100 * LEVEL / 2, 100 - 100 * LEVEL / 2])
            equal = np.isclose(np.abs(swapped), abs(difference), rtol=1e-9, atol=1e-12)
            larger = (np.abs(swapped) > abs(difference)) & ~equal
            p = (larger.sum() + (equal.sum() + 1) / 2) / (resamples + 1) if abs(difference) > 1e-12 else 1.0
            row = replace(row, low=float(low), high=float(high), p=float(p))
        rows[key] = row
    return rows


def _flat(scores: Mapping[str, Any], predictor: Predictor, head: str = "") -> dict[Key, Any]:
    """Return the metrics by label and name; those of one of several heads begin with its name."""
    flat: dict[Key, Any] = {}
    for name, value in scores.items():
        if name == "labels":
            flat |= {(f"{head}{label}", f"{head}f1"): row["f1"] for label, row in value.items()}
        elif isinstance(value, Mapping):
            flat |= _flat(value, predictor, f"{name}.")
        elif name in predictor.metric_types:
            flat["", f"{head}{name}"] = value
    return flat
