"""Score a predictor's answers to records and perturbed ones, with the same code for PyTorch and bundles."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, starmap, tee
from operator import itemgetter, ne
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.comparison import compare_heads
from seqpipe.answers.metrics.numbers import mean_of, metric_of, ratio
from seqpipe.answers.task import HeadTask, Task
from seqpipe.answers.text import RECORD_CONTINUES
from seqpipe.answers.types import PASSAGE, Counts, Metric, Pair, Scores, Statistics
from seqpipe.errors import DataError, PluginError, UsageError, did_you_mean
from seqpipe.features.document import Arrays, Doc, Record, locate_words, location
from seqpipe.features.media import json_value
from seqpipe.features.raw_text import with_raw_text
from seqpipe.features.sources import read_fields
from seqpipe.files import Rows, file_lines, json_bytes, null_non_finite, write
from seqpipe.runtime.decode_options import refuse_several, resolve_options
from seqpipe.runtime.predictor import CHUNK, Predictor, chunks

if TYPE_CHECKING:
    from seqpipe.config.contract import Metrics


def score_records(
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
    return score_answers(predictor, answered(predictor, records, raw=raw, options=options), by=by, errors=errors)


def answered(
    predictor: Predictor, records: Iterable[Record], *, raw: bool = False, options: Mapping[str, Any] | None = None
) -> Iterator[tuple[Record, Answer]]:
    """Yield each record with the answer to it, of a language model its loss; arguments are those of `score_records`."""
    options = options or {}
    if predictor.kind.is_generated and options:
        names = ", ".join(options)
        raise UsageError(f"{names}: perplexity needs no decoding; leave the option out")
    refuse_several(options, "only the best answer is scored")
    for_model, for_gold = tee(map(with_raw_text, records) if raw else records)
    if predictor.kind.is_generated:
        return zip(for_gold, _losses(predictor, for_model), strict=True)
    questions: Iterable[Record] = map(predictor.task.question, for_model)
    if raw:
        questions = ({key: value for key, value in question.items() if key != "words"} for question in questions)
    return zip(for_gold, predictor.stream(questions, CHUNK, **options), strict=True)


def score_answers(
    predictor: Predictor,
    answered: Iterable[tuple[Record, Answer]],
    *,
    by: str | None = None,
    errors: Path | None = None,
    pairs: list[Pair] | None = None,
) -> dict[str, Scores]:
    """Return the scores of answers to records, in the format of `score_records`.

    `pairs` receives the reference and the prediction of each record.
    """
    task = predictor.task
    if errors and not task.is_comparable:
        kind = predictor.kind.kind
        raise UsageError(f"errors: answers of kind {kind} are neither right nor wrong; leave the file out")
    counters = {"": new_counter(predictor)}
    wrong = []
    for record, answer in answered:
        gold, predicted = task.gold(record), task.predicted(answer)
        if pairs is not None:
            pairs.append((gold, predicted))
        for group in ["", group_of(record, by)] if by else [""]:
            if group not in counters:
                counters[group] = new_counter(predictor)
            counters[group].add(gold, predicted)
        if errors and not task.is_right(gold, predicted):
            rows = compare_heads(task, gold, answer)
            confidence = max((row["wrongness"] for row in rows if not row["right"]), default=0.0)
            wrong.append((confidence, _error_line(predictor, record, gold, answer, confidence)))
    if errors:
        wrong.sort(key=itemgetter(0), reverse=True)
        write(errors, b"".join(json_bytes(null_non_finite(line), default=str) + b"\n" for _, line in wrong))
    return {group: counter.result() for group, counter in counters.items()}


def _error_line(predictor: Predictor, record: Record, gold: Any, answer: Answer, confidence: float) -> dict[str, Any]:
    """Return a record with a wrong answer, after the answer, its confidence and its mistakes."""
    task = predictor.task
    mistakes = task.mistakes(gold, task.predicted(answer))
    # `reader_for` recognises a file of errors by the first three keys.
    line: dict[str, Any] = {"confidence": confidence, "where": record.get("where"), "answer": answer}
    line |= mistakes if "" in task.parts else {"mistakes": mistakes}
    # Of the record's fields with the same names, as in a file of errors that is read again, only those stay that the
    # model reads or whose values are references.
    needed = {*read_fields(predictor.featurizer), *(part.kind.target for part in task.parts.values())}
    kept = {key: value for key, value in record.items() if key in needed or key.partition(".")[0] not in line}
    return line | {key: json_value(value) for key, value in kept.items()}


def _losses(predictor: Predictor, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield the loss of a language model on each record's text, as `GenerationTask.losses` documents it."""
    task: Any = predictor.task
    options = resolve_options(predictor.options, task.kind.scoring_options, task.kind).arrays

    def other_features(docs: Sequence[Doc]) -> Arrays:
        arrays = predictor.featurizer.collate(docs)
        return {name: array for name, array in arrays.items() if name not in ("ids", "mask")}

    def docs() -> Iterator[tuple[Doc, bool]]:
        for chunk in chunks(records, CHUNK):
            continues = [record.get(RECORD_CONTINUES) is True for record in chunk]
            yield from zip(predictor.featurizer.docs(chunk), continues, strict=True)

    yield from task.losses(docs(), lambda feeds: predictor.run(feeds | options), other_features)


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name and value of the metric that selects the best weights; NaN if a file has null there."""
    name, value = next(iter(scores.items()))
    return name, math.nan if value is None else float(value)


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
        scores: The result of `score_records`.
        metric: The score that selected the weights, which comes first if it is among the scores.
    """
    parts = {name: headline(part) for name, part in scores.items() if isinstance(part, dict) and name != "labels"}
    chosen = [headline({metric: _score(scores, metric)})] if metric and metric in _names(scores) else []
    return dict([*chosen, headline(scores)]) | {f"{name}.{inner}": value for name, (inner, value) in parts.items()}


def new_counter(predictor: Predictor) -> Counts:
    """Return a new counter of all scores of a predictor's answers."""
    parts, metrics, declared = predictor.task.parts, predictor.metrics, predictor.metric_types
    counters = {name: _HeadCounter(part, metrics.get(name), declared) for name, part in parts.items()}
    return counters[""] if "" in counters else _JointCounter(predictor.task, counters)


class _JointCounter:
    """Scores of several heads by head, the mean of their headlines, and the share of records correct in all heads."""

    def __init__(self, task: Task, counters: Mapping[str, _HeadCounter]):
        self.task, self.counters = task, counters
        self.compared = [name for name, part in task.parts.items() if not part.kind.self_supervised]
        self.records = self.exact = 0

    def add(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> None:
        self.records += 1
        self.exact += self.task.is_right(gold, predicted)
        for name, counter in self.counters.items():
            counter.add(gold[name], predicted[name])

    def result(self) -> Scores:
        scores = {name: counter.result() for name, counter in self.counters.items()}
        headlines = [next(iter(self.counters[name].counter.result().values())) for name in self.compared]
        return {"mean": ratio(sum(headlines), len(headlines)), "exact": ratio(self.exact, self.records), **scores}

    def statistics(self, sides: Sequence[Sequence[Pair]], at: Sequence[int]) -> Iterator[Statistics]:
        yield mean_of("exact", [float(self.task.is_right(*side[i])) for side in sides for i in at])
        parts = []
        for name, counter in self.counters.items():
            of_head = [[(gold[name], predicted[name]) for gold, predicted in side] for side in sides]
            parts += [(name, *statistic) for statistic in counter.statistics(of_head, at)]
        ends = np.cumsum([rows.shape[1] for _, rows, _ in parts])

        def scores(sums: np.ndarray) -> Scores:
            by_head: dict[str, Scores] = {name: {} for name in self.counters}
            for (name, _, score), of_part in zip(parts, np.split(sums, ends[:-1], 1), strict=True):
                by_head[name] |= score(of_part)
            headlines = [next(iter(by_head[name].values())) for name in self.compared]
            return {"mean": ratio(sum(headlines), len(headlines)), **by_head}

        yield np.hstack([rows for _, rows, _ in parts]), scores


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

    def statistics(self, sides: Sequence[Sequence[Pair]], at: Sequence[int]) -> Iterator[Statistics]:
        """Yield the statistics of the answer kind, then those of the head's scores that are means over records."""
        yield from self.counter.statistics(sides, at)
        if self.metrics and self.answers:
            singles = [[*starmap(self._score_one, side)] for side in sides]
            wholes = [self.metrics(*zip(*side, strict=True)) for side in sides]
            for name in wholes[0]:
                values = np.array([[scores.get(name, math.nan) for scores in of_side] for of_side in singles])
                if np.allclose(values.mean(1), [scores.get(name, math.nan) for scores in wholes]):
                    yield mean_of(name, values[:, at].ravel())

    def _score_one(self, gold: Any, predicted: Any) -> Mapping[str, float]:
        try:
            return self.metrics([gold], [predicted]) if self.metrics else {}
        except PluginError:  # a correlation, for example, is no score of one record
            return {}

    def result(self) -> Scores:
        scores = self.counter.result()
        if not (self.metrics and self.answers):
            return scores
        head_scores = self.metrics(*zip(*self.answers, strict=True))
        if taken := sorted(scores.keys() & head_scores.keys()):
            raise PluginError(f"the head's `metrics` returns {taken[0]!r}, a name of its answer kind; rename it")
        labels = {"labels": scores.pop("labels")} if "labels" in scores else {}
        if next(iter(head_scores), None) in self.declared:
            return {**head_scores, **scores, **labels}
        return {**scores, **head_scores, **labels}


def group_of(record: Record, by: str) -> str:
    """Return the name of a record's group by a field, such as `topic=news`; DataError if it has no such field."""
    if by not in record:
        has = ", ".join(record)
        raise DataError(f"{record.get('where', 'record')}: no field {by!r} to split by; the record has: {has}")
    return f"{by}={record[by]}"


MIN_GROUP_RECORDS, MAX_GROUPS = 20, 50  # of a field's values that are scored for the model card


def group_scores(
    predictor: Predictor, rows: Iterable[Mapping[str, Any]], by: str, metric: str | None = None
) -> dict[str, Any]:
    """Return the main scores of each value of a field, by set; values of few records are only counted.

    Args:
        predictor: A predictor with PyTorch or onnxruntime.
        rows: The stored answers of a run (`RunFolder.answers`).
        by: The field. At most `MAX_GROUPS` values with `MIN_GROUP_RECORDS` records are scored, the most frequent first.
        metric: The score that selected the weights, which comes first.

    Raises:
        DataError: if a record has no such field.
    """
    sets, result = dict[str, list[tuple[Record, Answer]]](), dict[str, Any]()
    for row in rows:
        sets.setdefault(row["set"], []).append((row["record"], row["answer"]))
    for name, pairs in sets.items():
        counts = Counter(group_of(record, by) for record, _ in pairs)
        kept = {group: count for group, count in counts.most_common(MAX_GROUPS) if count >= MIN_GROUP_RECORDS}
        values = {}
        for group, count in kept.items():
            scores = score_answers(predictor, [pair for pair in pairs if group_of(pair[0], by) == group])[""]
            values[group.removeprefix(f"{by}=")] = {"records": count, "scores": headlines(scores, metric)}
        left_out = {"values": len(counts) - len(kept), "records": len(pairs) - sum(kept.values())}
        result[name] = {"values": values, "left_out": left_out}
    return {"field": by, "sets": result}


# Robustness and fairness: answers to perturbed texts, and to texts with words swapped, such as he and she.

EXAMPLES_PER_CHANGE = 5  # of each perturbation or pair
_WIDE = {code: code + 0xFEE0 for code in range(33, 127)}


def _mistype(word: str, draw: random.Random) -> str:
    i = draw.randrange(1, len(word) - 2)
    return word if draw.random() < 0.8 else word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def _other_case(part: str, text: str) -> str:
    changed = part.upper() if text == text.lower() else part.lower()
    return changed if len(changed) == len(part) else part


# Functions of a part of a text, the text, and random numbers that depend on it.
PERTURBATIONS: Mapping[str, Callable[[str, str, random.Random], str]] = {
    "typos": lambda part, text, draw: re.sub(r"\w{4,}", lambda match: _mistype(match[0], draw), part),
    "case": lambda part, text, draw: re.sub(r"\S+", lambda match: _other_case(match[0], text), part),
    "width": lambda part, text, draw: part.translate(_WIDE),
    "emoji": lambda part, text, draw: part,
    "blanks": lambda part, text, draw: re.sub(" ", lambda _: draw.choice("\u00a0\u2003\t"), part),
}


def _change(record: Record, fields: Sequence[str], change: Callable[[str], str], end: str = "") -> Record:
    """Return a record with changed texts and words, of which the last is followed by `end`."""
    texts = {field: record[field] for field in fields if isinstance(record.get(field), str)}
    changed = {**record, **{field: change(text) + (end and f" {end}") for field, text in texts.items()}}
    if "text" in fields and record.get("words"):
        words = [change(word) for word in record["words"]]
        changed["words"] = [*words[:-1], words[-1] + end]
        if text := texts.get("text"):
            places = [(0, 0), *locate_words(record["words"], text, location(record)), (len(text), len(text))]
            between = [change(text[a:b]) for (_, a), (b, _) in pairwise(places)]
            changed["text"] = "".join(map("".join, zip(between, [*changed["words"], ""], strict=True)))
    return changed


def perturb_record(record: Record, fields: Sequence[str], name: str, seed: int) -> Record:
    """Return a record with perturbed texts in these fields; typos and blanks depend on the seed and the texts only."""
    text = _text(record, fields)
    draw = random.Random(f"{seed} {name} {text}")
    end = "🙂" if name == "emoji" else ""
    return _change(record, fields, lambda part: PERTURBATIONS[name](part, text, draw), end)


def _text(record: Record, fields: Sequence[str]) -> str:
    texts = [record[field] for field in fields if isinstance(record.get(field), str)]
    return "\n".join(texts) or " ".join(record.get("words") or ())


def robustness(predictor: Predictor, records: Sequence[Record], perturb: Sequence[str], seed: int = 1) -> Rows:
    """Return the headline score on records with references, and on perturbations of them.

    Texts keep their length up to an emoji at the end, and so references their offsets; of a question about a passage
    only the question changes.

    Returns:
        Rows of `perturbation` (`none` first), `metric`, `score`, `drop`, the loss of quality, `changed`, the number of
        changed records, `broken`, that of answers that are no longer right, and `examples` of these.
    """
    task, fields, rows = predictor.task, predictor.featurizer.fields, Rows()
    if any(part.subject == PASSAGE for part in task.parts.values()):
        fields = fields[:1]
    for name in sorted({*perturb} - PERTURBATIONS.keys()):
        hint = did_you_mean(name, PERTURBATIONS)
        raise UsageError(f"no perturbation {name!r}{hint} (there is: {', '.join(PERTURBATIONS)})")
    for name in ("none", *perturb):
        variants = [perturb_record(record, fields, name, seed) if rows else record for record in records]
        pairs = [*answered(predictor, variants)]
        metric, score = headline(score_answers(predictor, pairs)[""])
        golds = [(task.gold(record), task.predicted(answer)) for record, answer in pairs]
        right = {i for i, gold in enumerate(golds) if task.is_comparable and task.is_right(*gold)}
        if name == "none":
            first_score, first_right = score, right
        broken = sorted(first_right - right)
        examples = [
            {"text": _text(records[i], fields), "changed": _text(variants[i], fields), **task.mistakes(*golds[i])}
            for i in broken[:EXAMPLES_PER_CHANGE]
        ]
        more_is_better = metric_of(metric, predictor.metric_types).more_is_better
        drop = first_score - score if more_is_better else score - first_score
        changed = sum(map(ne, records, variants))
        row = {"perturbation": name, "metric": metric, "score": score, "drop": drop, "changed": changed}
        rows.append({**row, "broken": len(broken), "examples": examples})
    return rows


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of words of a file with two columns, separated by a tab; DataError for another line."""
    pairs = []
    lines = (line.removeprefix("\ufeff").rstrip("\r\n") for line in file_lines(path))
    for number, line in enumerate(lines, 1):
        match line.split("\t"):
            case [first, second] if first.strip() and second.strip():
                pairs.append((first.strip(), second.strip()))
            case _ if line.strip():
                raise DataError(f"{path}:{number}: {line!r} is not a pair; write two words with a tab between them")
    return pairs


def swap(predictor: Predictor, records: Sequence[Record], pairs: Sequence[tuple[str, str]]) -> Rows:
    """Return the share of answers that change when the words of a pair are swapped, as none should.

    Whole words are swapped in both directions, and their case is kept. Answers are the same if they differ only in
    swapped words, scores and offsets; numbers if they have the same two leading digits. References are not needed.

    Returns:
        Rows of `pair` (`all` first), `texts`, the number of texts with one of its words, `changed`, that of answers
        that change, `share`, and `examples` of these.
    """
    if predictor.kind.is_generated:
        raise UsageError("a language model has no answers to compare; score it on minimal pairs")
    fields, rows = predictor.featurizer.fields, Rows()
    for pair in pairs:
        change = partial(swap_words, *pair)
        variants = [(record, _change(record, fields, change)) for record in records]
        variants = [both for both in variants if both[0] != both[1]]
        answers = [*predictor.stream(record for both in variants for record in both)]
        examples = []
        for both, before, after in zip(variants, answers[::2], answers[1::2], strict=True):
            first, second = _comparable(predictor, before), _comparable(predictor, after)
            if second not in (first, change(first)):
                shown = {"text": _text(both[0], fields), "changed": _text(both[1], fields)}
                examples.append({**shown, "before": before, "after": after})
        counts = {"texts": len(variants), "changed": len(examples), "share": ratio(len(examples), len(variants))}
        rows.append({"pair": " ↔ ".join(pair), **counts, "examples": examples[:EXAMPLES_PER_CHANGE]})
    texts, changed = (sum(row[key] for row in rows) for key in ("texts", "changed"))
    rows.insert(0, {"pair": "all", "texts": texts, "changed": changed, "share": ratio(changed, texts), "examples": []})
    return rows


def swap_words(first: str, second: str, text: str) -> str:
    """Return a text in which two words or names replace each other, as whole words and in the case of the text."""

    def partner(match: re.Match[str]) -> str:
        word = second if match[0].casefold() == first.casefold() else first
        if match[0].islower():
            return word.lower()
        return word.upper() if match[0].isupper() and len(match[0]) > 1 else word[:1].upper() + word[1:]

    return re.sub(rf"(?<!\w)(?:{re.escape(first)}|{re.escape(second)})(?!\w)", partner, text, flags=re.IGNORECASE)


def _comparable(predictor: Predictor, answer: Any) -> str:
    """Return each head's answer without scores and offsets as text."""
    parts: dict[str, Any] = {}
    for head, part in predictor.task.parts.items():
        head_answer = answer[head] if head else answer
        if part.kind.tags_words:
            parts[head] = [(item[part.kind.label_key], item["word"]) for item in head_answer]
        else:
            parts[head] = part.predicted(head_answer)[:1] if part.has_candidates else part.predicted(head_answer)
            if isinstance(parts[head], float):
                parts[head] = f"{parts[head]:.2g}"
    return json.dumps(parts, ensure_ascii=False)
