"""The proof that a bundle answers as its pipeline does: on random features, then on records as they are read."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.types import Scores
from seqpipe.console import Console, Tick
from seqpipe.errors import DataError, ParityError
from seqpipe.export.example_inputs import random_batches
from seqpipe.export.parity.answers import Comparison
from seqpipe.export.parity.decisions import CLOSE
from seqpipe.export.parity.features import check_features, same_array
from seqpipe.export.parity.generated_records import probe_records
from seqpipe.export.parity.incremental import compare_pieces
from seqpipe.export.parity.streaming import compare_streams
from seqpipe.export.parity.trial_options import option_inputs, options_off_default, trial_options, with_short_texts
from seqpipe.features.document import Arrays, Record
from seqpipe.runtime.evaluate import evaluate, headline, judged
from seqpipe.runtime.predictor import ROWS, Predictor

MOST_RECORDS = 2_000  # records that both answer
WITH_OPTIONS = {"records": MOST_RECORDS, "texts": 50}  # how many both also answer with options off their defaults
MOST_GARBAGE = 1_024  # tokens, padding included, of a random batch that is also run with other padding
PROBED = 60  # tokens of such a probe
SEED = 1  # of every sample
SCORED = 2  # more times that a language model reads each record, for the perplexity of both sides
TRIED = 3  # random batches in which a decode option may show an effect


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: on small batches the others wait for longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def verify_parity(comparison: Comparison, records: Sequence[Record], console: Console) -> dict[str, Any]:
    """Compares what a pipeline and its bundle read of texts, decide about random features and answer to records.

    - Decisions on random ragged batches, under many decode options (`seqpipe.export.parity.decisions`).
    - Features, exactly, of all records and of probes: texts of every script and of every vocabulary.
    - Answers to the records, or to a sample of `MOST_RECORDS`, and to some generated texts; at the default and at
      other decode options.
    - The metric of these answers.

    Args:
        comparison: Of the two.
        records: With references.
        console: For progress.

    Returns:
        The manifest's record of it: how many decisions, ties, the largest difference of a score, the metric.

    Raises:
        ParityError: if they differ.
    """
    ours, theirs, decisions = comparison.ours, comparison.model.predictor, comparison.decisions
    tried = len(trial_options(ours.options)) + len(options_off_default(ours.options))
    with _counting(comparison, "comparing random inputs", tried, console) as count:
        _compare_random_features(comparison, count)
    probes = [*probe_records(ours.featurizer, ours.limits["tokens"], SEED)]
    sample = sampled(records)
    trials = _trials(comparison, sample, probes)
    scored = len(sample) * (1 + SCORED * ours.kind.is_generated)
    total = len(records) + len(probes) + scored + sum(len(texts) for texts, _ in trials.rounds())
    with _counting(comparison, "comparing texts", total, console) as count:
        count.stage = "features"
        check_features(ours, theirs, records, probes, count)
        count.stage = "answers"
        metric, pytorch, onnxruntime = _compare_metric(comparison, sample)
        count.stage = "answers under decode options"
        for texts, decode_options in trials.rounds():
            comparison.answer_both(texts, **decode_options)
    decisions.resolve_ties()
    tally = decisions.tally
    return {
        "decisions": tally.decisions,
        "ties": tally.ties,
        "worst_score": tally.worst,
        "records": len(sample),
        "read": len(records) + len(probes),
        "texts": len(trials.texts),
        "without_effect": comparison.without_effect,
        "records_with_options": len(trials.records) if any(trials.options) else 0,
        "metric": metric,
        "pytorch": pytorch,
        "onnxruntime": onnxruntime,
    }


def sampled(records: Sequence[Record]) -> list[Record]:
    """The records; of more than `MOST_RECORDS` a sample of so many, in order."""
    chosen = random.Random(SEED).sample(range(len(records)), min(MOST_RECORDS, len(records)))
    return [records[i] for i in sorted(chosen)]


def _compare_metric(comparison: Comparison, records: Sequence[Record]) -> tuple[str, float, float]:
    """Compare the answers to records and their metric; its name, PyTorch's value and the bundle's."""
    ours, theirs = comparison.ours, comparison.model.predictor
    without_targets = [ours.kind.question(record) for record in records]
    if ours.kind.is_generated:  # judged by perplexity, not by its continuations
        comparison.answer_both(without_targets[:ROWS])
        comparison.answer_both(without_targets[ROWS:], **with_short_texts(ours.options, {}))
        expected_scores, scores = evaluate(ours, records)[""], evaluate(theirs, records)[""]
        comparison.on_compared(SCORED * len(records))
    else:
        both = comparison.answer_both(without_targets)
        expected_scores, scores = (judged(ours, zip(records, answers, strict=True))[""] for answers in both)
    (name, expected), (_, got) = (_kind_headline(ours.kind, side) for side in (expected_scores, scores))
    measured = ours.kind.is_generated or any(part.is_numeric for part in ours.kind.parts.values())
    rounding = CLOSE * len(records) * max(1.0, abs(expected)) if measured else 0
    if abs(got - expected) * len(records) > comparison.ties + 1e-6 + rounding:
        raise ParityError(
            f"{name} is {got:.6f} with onnxruntime and {expected:.6f} with PyTorch on {len(records)} records"
        )
    return name, expected, got


def _kind_headline(kind: AnswerKind, scores: Scores) -> tuple[str, float]:
    """The first score of the answer kind, of which a record changes its share at most: a head's own may be anything."""
    return headline({name: score for name, score in scores.items() if name in kind.metrics})


@dataclass(frozen=True)
class _Trials:
    """What both answer under decode options: short probes, under options off their defaults also records."""

    texts: Sequence[Record]
    records: Sequence[Record]
    options: Sequence[Mapping[str, Any]]

    def rounds(self) -> Iterator[tuple[Sequence[Record], Mapping[str, Any]]]:
        for options in self.options:
            yield [*self.texts, *self.records] if options else self.texts, options


def _trials(comparison: Comparison, records: Sequence[Record], probes: Sequence[Record]) -> _Trials:
    ours, draw = comparison.ours, random.Random(SEED)
    questions = [ours.kind.question(probe) for probe in probes if 0 <= _length(ours, probe) <= PROBED]
    # A question may be of the raw text where its record has words, so that its length is its own.
    short = [question for question in questions if _length(ours, question) <= PROBED]
    texts = draw.sample(short, min(WITH_OPTIONS["texts"], len(short)))
    without_targets = [ours.kind.question(record) for record in records]
    again = draw.sample(without_targets, min(WITH_OPTIONS["records"], len(without_targets)))
    return _Trials(texts, again, [with_short_texts(ours.options, options) for options in trial_options(ours.options)])


class _Count:
    """Adds up what was compared, and shows it as progress with the stage of the comparison."""

    def __init__(self, tick: Tick):
        self.tick, self.done, self.stage = tick, 0, ""

    def __call__(self, more: int) -> None:
        self.done += more
        self.tick(self.done, self.stage)


@contextlib.contextmanager
def _counting(comparison: Comparison, what: str, total: int, console: Console) -> Iterator[_Count]:
    """Show progress while the block counts what it has compared, as the comparison does of answers."""
    with console.progress(what, total) as tick:
        before, comparison.on_compared = comparison.on_compared, (count := _Count(tick))
        yield count
        comparison.on_compared = before


def _compare_random_features(comparison: Comparison, on_compared: Callable[[int], None]) -> None:
    pipeline, decisions, options = comparison.pipeline, comparison.decisions, comparison.options
    for chosen in trial_options(options):
        small = {"sizes": (1, 3), "lengths": (1, 7)} if chosen else {}
        long = () if chosen else random_batches(pipeline.artifacts, 1, (2,), pipeline.long)
        batches = itertools.chain(random_batches(pipeline.artifacts, 1, **small), long)
        decisions.compare_batches(batches, chosen, MOST_GARBAGE)
        on_compared(1)
    for name, candidates in options_off_default(options).items():
        tried = [next(random_batches(pipeline.artifacts, seed, (3,), (7,))) for seed in range(SEED, SEED + TRIED)]
        trials = itertools.product(candidates, tried)
        effective = next(
            ((chosen, feeds) for chosen, feeds in trials if _matters(comparison.ours, feeds, name, chosen)), None
        )
        if effective is None:
            comparison.without_effect.append(name)
        chosen, feeds = effective or (candidates[0], tried[0])
        decisions.compare_batches([feeds], chosen, MOST_GARBAGE)
        on_compared(1)
    if pipeline.streams:
        compare_streams(decisions, SEED)
    elif pipeline.cache:
        prompts = random_batches(pipeline.artifacts, SEED, (1, 3), (1, 7))
        compare_pieces(decisions, prompts)
    decisions.tally.check()


def _matters(ours: Predictor, feeds: Arrays, name: str, chosen: Mapping[str, Any]) -> bool:
    """Whether PyTorch decides otherwise under these options than with the default of one of them."""
    default = {**chosen, name: ours.options[name]["default"]}
    changed, unchanged = (
        ours.run(feeds | option_inputs(feeds, ours.options, with_short_texts(ours.options, options)))
        for options in (chosen, default)
    )
    return any(not same_array(changed[key], unchanged[key]) for key in changed)


def _length(side: Predictor, record: Record) -> int:
    """How many tokens a record has; -1 if it is refused."""
    try:
        return len(side.docs([record])[0])
    except DataError:
        return -1
