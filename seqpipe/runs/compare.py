"""Several runs: statistical comparison of their answers, settings and cost, and the table of those in a folder."""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from datetime import datetime
from html import escape
from operator import itemgetter
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.metrics.numbers import metric_of
from seqpipe.api.model import Bundle
from seqpipe.api.run import RUNS, Run
from seqpipe.config import yaml
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import BUNDLE, FEATURES, MAPPED, SCORES, STATE, YAML
from seqpipe.errors import SeqpipeError, UsageError
from seqpipe.evaluation.scores import answered, group_of, headlines, new_counter
from seqpipe.features.document import Record
from seqpipe.features.sources import fields_of
from seqpipe.files import Rows, locked, read_json
from seqpipe.runs.scoring import QUIET, add_own_metrics, open_bundle, open_target
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.artifacts import Artifacts

# Statistics of the answers of two models to the same records: paired bootstrap, randomisation test, changed answers.

RESAMPLES = 1000
LEVEL = 0.05  # a smaller p is a difference; 1 - LEVEL is the level of the interval
CELLS = 4_000_000  # numbers of an array of weights
Key = tuple[str, str]  # of a score: the label, or "", and the metric
Triple = tuple[Any, Any, Any]  # the reference of a record, and both predictions


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
            texts = [str(record[field]) for field in fields_of(predictor.featurizer) if record.get(field) is not None]
            text = " | ".join(texts) or " ".join(record.get("words", []))
            example = {"change": kind, "where": record.get("where"), "text": text, "expected": gold}
            changes[kind].append(example | {"answers": ["; ".join(predictor.kind.lines(answer)) for answer in answers]})
    scores = _differences(predictor, triples, resamples)
    # Tokens of two tokenizers are no common unit.
    differ = predictor.kind.is_generated and any(a["tokens"] != b["tokens"] for _, a, b in triples)
    overall = [key for key in scores if not key[0] and not (differ and key[1] in ("perplexity", "loss"))]
    main = min(overall, key=lambda key: scores[key].p is None)
    of_groups = [replace(_differences(predictor, groups[name], resamples)[main], name=name) for name in sorted(groups)]
    of_labels = [row for (label, _), row in scores.items() if label]
    ordered = [scores[main], *(scores[key] for key in overall if key != main)]
    counts = {kind: len(some) for kind, some in changes.items()}
    shown = [example for some in changes.values() for example in some[:examples]]
    facts = data, first.name, second.name, len(triples), resamples
    return SetComparison(*facts, ordered, of_labels, of_groups, counts, shown)


def _align(data: str, first: AnsweredSets, second: AnsweredSets) -> list[tuple[Record, Answer, Answer]]:
    """Return the records of a test set with both answers, in the order of the first model."""
    sides: list[dict[tuple[str, int], tuple[Record, Answer]]] = [{}, {}]
    for side, model in zip(sides, (first, second), strict=True):
        counts = Counter[str]()
        for record, answer in model.sets[data]:
            content = model.predictor.task.gold(record), {key: record[key] for key in record.keys() - {"where"}}
            key = json.dumps(content, sort_keys=True, default=str)
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
    their weights, and one counter with arrays of sums in place of numbers returns the scores of all samples.
    """
    places: dict[str, list[int]] = defaultdict(list)  # equal records are drawn together
    for i, triple in enumerate(triples):
        places[repr(triple)].append(i)
    at, counts = [some[0] for some in places.values()], np.array([len(some) for some in places.values()])
    # Sums of numbers are about those of the first record, which each counter gets, and which are subtracted.
    start = next(((gold, first) for gold, first, _ in triples if first is not None), triples[0][:2])
    pairs = [[(triple[0], triple[side]) for triple in triples] for side in (1, 2)]
    singles = [_count(predictor, [start, side[i]]) for side in pairs for i in at] + [_count(predictor, [start])]
    whole = [_count(predictor, side) for side in pairs]
    statistics = []
    for head in predictor.task.parts:
        of_head = [(counter.counters[head] if head else counter).statistics() for counter in whole]
        both = zip(*of_head, strict=True)
        statistics += [(head and f"{head}.", np.vstack([a[at], b[at]]), score) for (a, score), (b, _) in both]

    def scores(first: np.ndarray, second: np.ndarray) -> dict[Key, Any]:
        """Return the scores of samples, each a row of weights of the answers of both models."""
        weights = np.hstack([first, second, np.full((len(first), 1), -len(triples))]).astype(float, order="F")
        by_key = _flat(_combine(singles, weights).result(), predictor)
        for head, rows, score in statistics:
            by_key |= _flat(score(weights[:, :-1] @ rows), predictor, head)
        return by_key

    rng, size = np.random.default_rng(1), max(1, CELLS // len(at))
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
    of_first, of_second = (_flat(counter.result(), predictor) for counter in whole)
    for key in (key for key in of_first if key in of_second):
        pair, difference = (of_first[key], of_second[key]), of_second[key] - of_first[key]
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


def _count(predictor: Predictor, pairs: Sequence[tuple[Any, Any]]) -> Any:
    counter = new_counter(predictor)
    for gold, predicted in pairs:
        counter.add(gold, predicted)
    return counter


def _combine(values: Sequence[Any], weights: np.ndarray) -> Any:
    """Return counters of single records, or their sums, as one whose sums are arrays: one for each row of weights."""
    value = values[0]
    if isinstance(value, Counter):
        total: Counter[Any] = Counter()
        for counts, weight in zip(values, weights.T, strict=True):
            for key, count in counts.items():
                total[key] = total[key] + count * weight
        return total
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return weights @ np.array(values, float)
    if isinstance(value, Mapping):
        return {key: _combine([some[key] for some in values], weights) for key in value}
    if isinstance(value, list):  # of counters; stored answers are no sums
        return [_combine(some, weights) for some in zip(*values, strict=False) if hasattr(some[0], "result")]
    if hasattr(value, "result"):
        combined = copy.copy(value)
        vars(combined).update({name: _combine([vars(some)[name] for some in values], weights) for name in vars(value)})
        return combined
    return value


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


# Comparison of runs and bundles.

TEXTS, ROUNDS = 256, 5  # of the measurement of speed: the fastest round counts


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs or bundles with the first of them."""

    tests: list[SetComparison]  # of each other one and each test set
    settings: Rows  # those that differ: `key`, and the value of each run by its name
    cost: Rows  # of each bundle: `target`, `bundle_bytes`, and if measured `texts_per_second`, `tokens_per_second`

    def _repr_html_(self) -> str:
        content = ""
        for test in self.tests:
            scores = Rows(asdict(score) for score in [*test.scores, *test.labels, *test.groups])
            names = test.first, test.second
            changed = Rows(row | dict(zip(names, row["answers"], strict=True)) for row in test.examples)
            for row in changed:
                del row["answers"]
            content += f"<p>{escape(test.data)}: {escape(test.sentence)}</p>{scores.to_html()}{changed.to_html()}"
        return content + self.settings.to_html() + self.cost.to_html()


def compare(
    *targets: str | Path | Run | Bundle,
    data: str | Path | None = None,
    by: str | None = None,
    examples: int = 3,
    resamples: int = RESAMPLES,
    speed: bool = True,
    device: str = "auto",
    plugins: Sequence[Path] = (),
) -> Comparison:
    """Compare runs or bundles with the first one: scores on the same records, changed answers, settings and cost.

    The stored answers of a run are compared, also for its bundle. One in int8 or outside of runs answers the records; a
    language model, which stores none, scores the texts of its test sets. A metric of a plugin's head is resampled if it
    is a mean over records.

    Args:
        targets: Two or more.
        data: A file that all answer, in place of the stored answers.
        by: A field of the records; the main score is also compared for each of its values.
        examples: Maximum number of examples of each sort of changed answers.
        resamples: Number of samples for the intervals and for p.
        speed: Measure the speed of bundles.
        device: Device of models that answer.
        plugins: Python files with components, such as the head whose metrics are compared.

    Raises:
        UsageError: if there are no answers to the same records with the same references.
    """
    paths = [t.folder if isinstance(t, Run) else t.path if isinstance(t, Bundle) else Path(t) for t in targets]
    if len({*paths}) < max(2, len(paths)):
        raise UsageError("name two or more different runs or bundles to compare")
    bundles = [path if (path / BUNDLE).exists() else path / "bundle" for path in paths]
    folders = [Run(path).folder if path != bundle else path.parent for path, bundle in zip(paths, bundles, strict=True)]
    runs = [Run(folder) if (folder / STATE).exists() else None for folder in folders]
    stored = [run.answers if run else Rows() for run in runs]
    first_stored = next(filter(None, stored), Rows())  # a bundle outside of runs answers its records
    sides = [
        _answer(
            path, bundle, run if rows else None, rows or first_stored, Path(data) if data else None, device, plugins
        )
        for path, bundle, run, rows in zip(paths, bundles, runs, stored, strict=True)
    ]
    tests = [test for side in sides[1:] for test in compare_answers(sides[0], side, by, examples, resamples)]
    names = [side.name for side in sides]
    settings = [_settings(run.folder) if run else {} for run in runs]
    differing, cost = Rows(), Rows()
    for key in dict.fromkeys(key for some in settings for key in some if key != "name"):
        values = [some.get(key) for some in settings]
        if any(value != values[0] for value in values):
            differing.append({"key": key, **dict(zip(names, values, strict=True))})
    records = [record for answers in sides[0].sets.values() for record, _ in answers][:TEXTS]
    models = {name: path for name, path in zip(names, bundles, strict=True) if (path / BUNDLE).exists()}
    cost += [{"target": name, "bundle_bytes": _size(path)} for name, path in models.items()]
    if speed:
        loaded = [Bundle(path).load(device).predictor for path in models.values()]
        timers = [Timer(lambda p=predictor: [*answered(p, records)]) for predictor in loaded]  # type: ignore[misc]
        rounds = [[timer.timeit(1) for timer in timers] for _ in range(ROUNDS)]  # in turns
        for row, predictor, times in zip(cost, loaded, zip(*rounds, strict=True), strict=True):
            tokens = sum(len(doc.ids) for doc in predictor.featurizer.docs(records))
            row |= {"texts_per_second": len(records) / min(times), "tokens_per_second": tokens / min(times)}
    return Comparison(tests, differing, cost)


def _answer(
    path: Path, bundle: Path, run: Run | None, rows: Rows, data: Path | None, device: str, files: Sequence[Path]
) -> AnsweredSets:
    """Return the answers that a run stored, or those of a model to stored records or, if there are none, to files."""
    sets: dict[str, Any] = {}
    for row in rows:
        sets.setdefault(row["set"], []).append((row["record"], row["answer"]))
    plugins, has_bundle = Plugins(files=files), (bundle / BUNDLE).exists()
    if data or not rows:
        predictor, read, test_sets = open_target(bundle if has_bundle else path, device, data, QUIET, files)
        sets = {name: answered(predictor, read(file)) for name, file in test_sets.items()}
    elif run and not (bundle == path and Bundle(path).manifest.parity.get("precision") == "int8"):
        fitted = Artifacts.load(run.folder)
        predictor = Predictor(fitted.featurizer, fitted.kind, dict, {}, Limits(tokens=1))
        if has_bundle:
            add_own_metrics(predictor, Bundle(bundle).manifest, plugins, QUIET)
    elif has_bundle:
        predictor = open_bundle(bundle, device, QUIET, plugins).predictor
        sets = {name: answered(predictor, [record for record, _ in pairs]) for name, pairs in sets.items()}
    else:
        raise UsageError(f"{path}: has neither stored answers nor a bundle; name a file of records: --data FILE")
    return AnsweredSets(str(path), predictor, {name: [*pairs] for name, pairs in sets.items()})


def _settings(run: Path) -> dict[str, Any]:
    return dict(yaml.flatten(yaml.parse((run / YAML).read_bytes(), str(run / YAML)).data))


def _size(bundle: Path) -> int:
    return sum(file.stat().st_size for file in bundle.iterdir())


# The table of the runs of a folder.

COLUMNS = ("name", "state", "data", "model", "metric", "score", "bundle_bytes", "seconds", "when", "parent", "problem")


def runs(folder: str | Path = RUNS, *, sort: str = "name") -> Rows:
    """Return a row for each run of a folder, sorted by a key; scores from the highest.

    Keys: `name`; `state`: `finished`, `trained` without scores or bundle, `unfinished`, or `damaged`; `data`, the
    training data; `model`, encoder and head; `metric` and `score`, of the first test set, or of dev; `bundle_bytes`;
    `seconds` of training; `when` it was written; `parent`, the run that it continues with more data; `problem` of a
    damaged run, or epochs of an unfinished one; `scores`.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; name a folder of runs")
    if sort not in COLUMNS[:-1]:
        raise UsageError(f"sort: must be one of {', '.join(COLUMNS[:-1])}, not {sort!r}")
    paths = [path for path in sorted(Path(folder).iterdir()) if (path / STATE).exists() or (path / YAML).exists()]
    rows = [*map(_row, paths)]
    with_value = sorted((row for row in rows if row[sort] is not None), key=itemgetter(sort), reverse=sort == "score")
    return Rows([*with_value, *(row for row in rows if row[sort] is None)])


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((*COLUMNS, "scores")) | {"name": folder.name}
    try:
        run, settings = Run(folder), _settings(folder)
        scores, outcome, history = run.scores, run.outcome, run.history
        is_exported, metric = (run.bundle_folder / BUNDLE).exists(), outcome.get("metric")
        row["parent"] = run.parent and run.parent.name
        row["data"] = Path(str(settings.get("data.train") or settings["data.train.0"])).name
        stages = [(key.split("."), use) for key, use in settings.items() if key.startswith(("encoder", "head"))]
        row["model"] = " + ".join(str(use) for key, use in stages if len(key) == 1 or key[-1] == "use")
        written = (folder / (SCORES if scores else STATE)).stat().st_mtime
        row["when"] = datetime.fromtimestamp(written).isoformat(" ", "minutes")
        row["seconds"] = sum(epoch["seconds"] for epoch in history)
        row["scores"], row["metric"], row["score"] = scores, metric, outcome.get("dev")
        if scores:
            row["metric"], row["score"] = next(iter(headlines(next(iter(scores.values())), metric).items()))
        if is_exported and Bundle(run.bundle_folder).manifest.name:  # refuses a damaged one
            row["bundle_bytes"] = _size(run.bundle_folder)
        row["state"] = "finished" if scores and (is_exported or run.folds) else "trained" if outcome else "unfinished"
        if row["state"] == "unfinished":
            row["problem"] = f"running or interrupted, after {len(history)} of {settings.get('train.epochs')} epochs"
    except (SeqpipeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        row |= {"state": "damaged", "problem": str(error) or type(error).__name__}
    return row


# Mapped features


def prune(folder: str | Path = RUNS, *, dry_run: bool = False) -> dict[str, int]:
    """Remove the mapped features that no run of a folder uses, and return their names and sizes in bytes.

    With `dry_run` they stay. Features that a process is making stay too.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; name a folder of runs")
    removed = {}
    for lock in sorted(Path(folder, FEATURES).glob("*.lock")):
        features = lock.with_suffix("")
        with locked(lock, wait=False) as is_locked:
            # The runs are read while the lock is held: one that begins now makes its features again.
            if not is_locked or any(features.name in read_json(path) for path in Path(folder).glob(f"*/{MAPPED}")):
                continue
            removed[features.name] = _size(features) if features.is_dir() else 0
            if not dry_run:
                shutil.rmtree(features, ignore_errors=True)
                lock.unlink()
    return removed
