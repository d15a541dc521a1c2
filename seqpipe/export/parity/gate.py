"""Parity gate: all comparisons of a bundle with PyTorch; a difference fails the export."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.metrics.numbers import format_score, metric_of
from seqpipe.answers.registry import part_of
from seqpipe.console import Console, Tick
from seqpipe.errors import DataError, ParityError, PluginError
from seqpipe.evaluation.scores import goodness, headline, score_answers, score_records
from seqpipe.export.graph import random_batches, random_doc
from seqpipe.export.parity.answers import DualPredictor, check_features, same_array
from seqpipe.export.parity.decisions import (
    OWN,
    SCORE_ATOL,
    DecisionParity,
    ParityFault,
    equal_decisions,
    option_inputs,
    own_error,
    probe_records,
)
from seqpipe.export.tracing.settings import temporarily
from seqpipe.features.document import Arrays, Doc, Record, words_of
from seqpipe.features.sources import NumericSource, masks, sources_of
from seqpipe.runtime.decode_options import MAX_LENGTH, MIN_LENGTH, length_options
from seqpipe.runtime.manifest import next_inputs
from seqpipe.runtime.opened import OpenedBundle, same_answer
from seqpipe.runtime.predictor import RUN_ROWS, Predictor, batches
from seqpipe.types import OPTION_TYPES

# Compare incremental decoding, with the graph's cache as input, with decoding in one run.

RUNS = (1, 2, 4)  # tokens of each run after the prompt
CHUNKS_DIFFER = "a text in chunks, with `past.…`, is not the text as a whole"


def compare_runs(parity: DecisionParity, batches: Iterable[Arrays]) -> None:
    """Continue each prompt of a batch in runs of `RUNS` tokens with the cache of the previous run; add to the tally.

    Each run is compared with PyTorch on the same `past.…`, and the tokens of all runs with those of one run.

    Raises:
        PluginError: if the head lacks the options for the length of a text.
    """
    cache, options = parity.network.cache, parity.options
    if missing := [name for name in (MAX_LENGTH, MIN_LENGTH) if name not in options]:
        head = type(parity.network.head).__name__
        raise PluginError(f"head: {head} continues texts without the decode option {missing[0]!r}; add it")
    for feeds in batches:
        defaults = option_inputs(feeds, options, {})
        whole = parity.onnx_run(feeds | defaults | length_options(sum(RUNS), sum(RUNS)))
        pieces, run_feeds, past = [], feeds, dict[str, np.ndarray]()
        for length in RUNS:
            inputs = defaults | length_options(length, length)
            _, got, _ = parity.compare(run_feeds, inputs | past, garbage=False)
            pieces.append(got["tokens"])
            past = next_inputs(cache, got)
            run_feeds = feeds | {"ids": got["tokens"][:, 0, -1:], "mask": np.ones((len(got["tokens"]), 1), bool)}
        joined = np.concatenate(pieces, 2)
        tied = differ = (joined != whole["tokens"]).any((1, 2))
        batch, joined_texts = parity.batch(feeds, defaults, whole), whole | {"tokens": joined}
        if differ.any():
            tied = differ & parity.ties(batch, joined_texts)
        parity.add(batch, joined_texts, ParityFault(differ & ~tied, tied, CHUNKS_DIFFER, ["tokens"]))


# Compare answers in chunks, with the graph's cache as input, with the answers to whole texts.

RAGGED_LENGTHS = ((9, 4, 1, 6), (5, 7, 3, 12))  # of ragged batches
CHUNK_WORDS = (1, 2, 3)  # words of a chunk


def compare_streams(parity: DecisionParity, seed: int) -> None:
    """Answer random texts chunk by chunk with the cache of the former chunk, and add to the tally.

    PyTorch also decides each chunk with the same `past.…`, and the graph's answers in chunks must be those of PyTorch
    to the whole texts, which use no cache.
    """
    random, source = np.random.default_rng(seed), parity.network.artifacts.featurizer
    for lengths in RAGGED_LENGTHS:
        docs = [random_doc(source, length, random) for length in lengths]
        for size in CHUNK_WORDS:
            _compare_chunks(parity, docs, size)


def ragged_chunks(docs: Sequence[Doc], size: int) -> Iterable[list[Doc]]:
    """Yield the next chunk of each text until all have ended; every second text starts one chunk later (ragged).

    The sizes of chunks differ between texts, from `size` words on, and are 0 before the start and after the end.
    """
    counts = [len(doc.word_offsets) for doc in docs]
    done, turn = [0] * len(docs), 0
    while done != counts:
        ends = [
            position if row % 2 > turn else min(count, position + size + row % 3)
            for row, (position, count) in enumerate(zip(done, counts, strict=True))
        ]
        yield [words_of(*piece) for piece in zip(docs, done, ends, strict=True)]
        done, turn = ends, turn + 1


def _compare_chunks(parity: DecisionParity, docs: Sequence[Doc], size: int) -> None:
    """Answer texts as a whole, and in chunks of `size` words, and add the comparison to the tally."""
    network, rows = parity.network, len(docs)
    source, (kind,) = network.artifacts.featurizer, network.artifacts.kind.parts.values()
    feeds = source.collate(docs)
    options = option_inputs(feeds, parity.options, {})
    whole = parity.torch_run(feeds | options)
    joined = {name: np.zeros_like(whole[name]) for name in kind.outputs if whole[name].dtype.kind == "i"}
    readers, answers = [kind.chunk_reader() for _ in docs], [list[Answer]() for _ in docs]
    done = [0] * rows  # words
    other, off = np.zeros((2, rows), bool)  # texts whose decisions differ, and whose numbers do
    past = {entry.input: np.zeros(entry.shape(1, 0), entry.dtype) for entry in network.cache}
    for pieces in ragged_chunks(docs, size):
        inputs = source.collate(pieces) | past
        batch, got = parity.batch(inputs, options), parity.onnx_run(inputs | options)
        past = next_inputs(network.cache, got)
        answered = np.array([len(piece.word_offsets) > 0 for piece in pieces])
        for name in joined:
            other |= answered & (got[name] != batch.expected[name]).reshape(rows, -1).any(1)
        # Numbers are compared only while all decisions are equal: after a tie they belong to other labels.
        for fault in parity.numbers(parity.tally, batch, got, answered & ~other):
            off |= fault.wrong
            if fault.wrong.any():
                parity.refuse(batch, got, fault._replace(what=CHUNKS_DIFFER))
        for row in np.flatnonzero(answered).tolist():
            piece, decision = pieces[row], {name: array[row : row + 1] for name, array in got.items()}
            begin, done[row] = done[row], done[row] + len(piece.word_offsets)
            for name, array in joined.items():
                if kind.decided[name].shape.startswith("(B, T"):
                    array[row, begin : done[row]] = decision[name][0, : done[row] - begin]
                else:
                    array[row] = decision[name][0]
            (answer,) = kind.answers([piece], decision)
            answers[row].append(readers[row].read(piece, decision, answer))
    for name, array in joined.items():
        other |= (array != whole[name]).reshape(rows, -1).any(1)
    batch, tied = parity.batch(feeds, options, whole), other
    if other.any():
        tied = other & parity.ties(batch, whole | joined)
    for row, answer in enumerate(kind.answers(docs, whole)):
        parts = readers[row].finish()
        if kind.tags_words:
            parts = [part for chunk_answer in answers[row] for part in chunk_answer] + parts
        if not other[row] and not same_answer(parts, answer, SCORE_ATOL):
            exact = batch.reference.items()
            error = max((own_error(whole[name], array)[row] for name, array in exact), default=0.0)
            off[row] |= not same_answer(parts, answer, SCORE_ATOL + OWN * error)
    parity.add(batch, whole | joined, ParityFault(off | (other & ~tied), tied, CHUNKS_DIFFER, [*joined]))


# Verify that a bundle answers like its pipeline, on random features and on records.

MOST_RECORDS = 2_000  # records that both answer
WITH_OPTIONS = {"records": MOST_RECORDS, "texts": 50}  # those that both also answer with non-default options
MOST_GARBAGE = 1_024  # tokens, including padding, of a random batch that is also run with other padding
PROBED = 60  # tokens of such a probe
SAMPLE_SEED = 1  # of samples of records
SPREAD = 8  # pieces of a vocabulary that are banned in a comparison
SCORED = 2  # additional readings of each record by a language model, for the perplexity of both sides
TRIED = 9  # random texts in which a decode option may show an effect


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread: on small batches, threads wait longer than they work."""
    with temporarily(torch.get_num_threads, torch.set_num_threads, 1):
        yield


@one_thread()
def verify_parity(
    comparison: DualPredictor, records: Sequence[Record], console: Console, references: bool = True
) -> dict[str, Any]:
    """Compare features, decisions on random features, and answers to records of a pipeline and its bundle.

    - Decisions on random ragged batches, under many decode options (`seqpipe.export.parity.decisions`).
    - Features, exactly, of all records and of probes: texts of every script and of every vocabulary.
    - Answers to the records, or to a sample of `MOST_RECORDS`, and to some generated texts; at the default and at
      other decode options.
    - The metric of these answers, if the records have references.

    Returns:
        The figures for the manifest: numbers of decisions and ties, the largest difference of a score, the metric.

    Raises:
        ParityError: if they differ.
    """
    ours, theirs, decisions = comparison.ours, comparison.model.predictor, comparison.decisions
    tried = len(decisions.trials.together()) + len(decisions.trials.alone())
    with _counting(comparison, "comparing random inputs", tried, console) as count:
        _compare_random_features(comparison, count)
    probes = [*probe_records(ours.featurizer, ours.limits.tokens, comparison.seed)]
    sample = sample_records(records)
    short, again, chosen_options = _trials(comparison, sample, probes)
    # Short texts are answered under all decode options, records under those that are not the default.
    rounds = [([*short, *again] if chosen else short, chosen) for chosen in chosen_options]
    scored = len(sample) * (1 + SCORED * ours.kind.is_generated)
    total = len(records) + len(probes) + scored + sum(len(texts) for texts, _ in rounds)
    with _counting(comparison, "comparing texts", total, console) as count:
        count.stage = "features"
        check_features(ours, theirs, records, probes, count)
        count.stage = "answers"
        scores: dict[str, Any] = {}
        if references:
            scores = dict(zip(("metric", "pytorch", "onnxruntime"), _compare_metric(comparison, sample), strict=True))
        else:
            comparison.answer_both(sample)
        count.stage = "answers with decode options"
        for texts, decode_options in rounds:
            comparison.answer_both(texts, **decode_options)
    decisions.resolve_ties(comparison.seed)
    tally = decisions.tally
    return {
        "decisions": tally.decisions,
        "ties": tally.ties,
        "rounded": tally.rounded,
        "worst_score": tally.worst,
        "records": len(sample),
        "read": len(records) + len(probes),
        "texts": len(short),
        "without_effect": comparison.without_effect,
        "records_with_options": len(again) if any(chosen_options) else 0,
        **scores,
    }


def sample_records(records: Sequence[Record]) -> list[Record]:
    """Return the records, or an ordered sample of `MOST_RECORDS` if there are more."""
    chosen = random.Random(SAMPLE_SEED).sample(range(len(records)), min(MOST_RECORDS, len(records)))
    return [records[i] for i in sorted(chosen)]


def _compare_metric(comparison: DualPredictor, records: Sequence[Record]) -> tuple[str, float, float]:
    """Compare the answers to records; return the metric's name, PyTorch's value and the bundle's."""
    ours, theirs = comparison.ours, comparison.model.predictor
    without_targets = [ours.task.question(record) for record in records]
    if ours.kind.is_generated:  # evaluated by perplexity, not by its continuations
        comparison.answer_both(without_targets[:RUN_ROWS])
        comparison.answer_both(without_targets[RUN_ROWS:], **comparison.decisions.trials.with_short_texts({}))
        expected_scores, scores = score_records(ours, records)[""], score_records(theirs, records)[""]
        comparison.on_compared(SCORED * len(records))
    else:
        both = comparison.answer_both(without_targets)
        expected_scores, scores = (score_answers(ours, zip(records, answers, strict=True))[""] for answers in both)
    # The first score of the answer kind, which a record changes by its share at most; a head's own may be anything.
    (name, expected), (_, got) = (
        headline({name: score for name, score in side.items() if name in ours.task.metrics})
        for side in (expected_scores, scores)
    )
    measured = ours.kind.is_generated or any(part.is_numeric for part in ours.kind.parts.values())
    rounding = SCORE_ATOL * len(records) * max(1.0, abs(expected)) if measured else 0
    if abs(got - expected) * len(records) > comparison.ties + 1e-6 + rounding:
        values = f"{got:.6f} with onnxruntime and {expected:.6f} with PyTorch"
        raise ParityError(f"{name} is {values} on {len(records)} records")
    return name, expected, got


def _trials(
    comparison: DualPredictor, records: Sequence[Record], probes: Sequence[Record]
) -> tuple[list[Record], list[Record], list[Mapping[str, Any]]]:
    """Return short texts, some of the records without targets, and the sets of decode options to compare."""
    ours, draw = comparison.ours, random.Random(comparison.seed)
    numeric = [part.field for part in sources_of(ours.featurizer).values() if isinstance(part, NumericSource)]
    # The question may have the raw text even if the record has words, and then other tokens, or too many.
    # The rows of numbers are those of a record, since numbers unlike any that training read are no test of a graph.
    known = [{**probe, **{name: draw.choice(records)[name] for name in numeric if records}} for probe in probes]
    questions = [ours.task.question(probe) for probe in known if 0 <= _length(ours, probe) <= PROBED]
    short = [question for question in questions if 0 <= _length(ours, question) <= PROBED]
    texts = draw.sample(short, min(WITH_OPTIONS["texts"], len(short)))
    without_targets = [ours.task.question(record) for record in records]
    again = draw.sample(without_targets, min(WITH_OPTIONS["records"], len(without_targets)))
    options, chosen_options = comparison.decisions.trials, list[Mapping[str, Any]]()
    for chosen in map(dict, options.together()):
        types = {name: OPTION_TYPES[ours.options[name]["type"]] for name in chosen if name in ours.options}
        for name in [name for name, option_type in types.items() if option_type.read and not option_type.takes_ids]:
            part: Any = ours.kind.parts[name.rpartition(".")[0]]  # with an answer kind these are texts
            pieces = [
                piece.decode()
                for piece in part.written_bytes.pieces
                if piece.decode(errors="ignore").encode() == piece != b""
            ]
            if types[name].allows_only:
                # A long prompt may leave no room for a text; random prompts are compared with one.
                pieces = [piece for piece in pieces if part.is_piece(piece) and not part.is_generated]
            chosen[name] = pieces[:: len(pieces) // SPREAD + 1]
        if all(chosen[name] for name, option_type in types.items() if option_type.allows_only):
            chosen_options.append(options.with_short_texts(chosen))
    return texts, again, chosen_options


class _Count:
    """Counts comparisons, and shows them as progress with the stage of the comparison."""

    def __init__(self, tick: Tick):
        self.tick, self.done, self.stage = tick, 0, ""

    def __call__(self, more: int) -> None:
        self.done += more
        self.tick(self.done, self.stage)


@contextlib.contextmanager
def _counting(comparison: DualPredictor, what: str, total: int, console: Console) -> Iterator[_Count]:
    """Show the progress of the comparisons that the block counts."""
    with console.progress(what, total) as tick:
        before, comparison.on_compared = comparison.on_compared, (count := _Count(tick))
        yield count
        comparison.on_compared = before


def _compare_random_features(comparison: DualPredictor, on_compared: Callable[[int], None]) -> None:
    network, decisions, seed = comparison.network, comparison.decisions, comparison.seed
    for chosen in decisions.trials.together():
        small = {"sizes": (1, 3), "lengths": (1, 7)} if chosen else {}
        long = () if chosen else random_batches(network.artifacts, seed, (2,), network.long)
        batches = itertools.chain(random_batches(network.artifacts, seed, **small), long)
        decisions.compare_batches(batches, chosen, MOST_GARBAGE)
        on_compared(1)
    feeds = next(random_batches(network.artifacts, seed, (TRIED,), (7,)))
    for name, candidates in decisions.trials.alone().items():
        effective = next((each for each in candidates if _matters(comparison, feeds, name, each)), None)
        if effective is None:
            comparison.without_effect.append(name)
        decisions.compare_batches([feeds], effective or candidates[0], MOST_GARBAGE)
        on_compared(1)
    decisions.tally.check()  # of texts whose lengths are wrong the chunks cannot be compared
    if network.streams:
        compare_streams(decisions, seed)
    elif network.cache:
        prompts = random_batches(network.artifacts, seed, (1, 3), (1, 7))
        compare_runs(decisions, prompts)
    decisions.tally.check()


def _matters(comparison: DualPredictor, feeds: Arrays, name: str, chosen: Mapping[str, Any]) -> bool:
    """Return whether PyTorch's decisions with these options change if one of them is set to its default."""
    ours, trials = comparison.ours, comparison.decisions.trials
    default = {**chosen, name: ours.options[name]["default"]}
    changed, unchanged = (
        ours.run(feeds | option_inputs(feeds, ours.options, trials.with_short_texts(options)))
        for options in (chosen, default)
    )
    return any(not same_array(changed[key], unchanged[key]) for key in changed)


def _length(side: Predictor, record: Record) -> int:
    """Return the number of tokens of a record; -1 if it is refused."""
    try:
        return len(side.docs([record])[0])
    except DataError:
        return -1


# Evaluate whether a bundle in int8 answers nearly as well as in fp32.

MOST_LOST, MOST_LOST_SHARE = 0.005, 0.02  # allowed loss of a fraction in int8, and of any other metric
MIN_INT8_RECORDS = 200  # minimum for a comparison of metrics
DECISIONS, MOST_CHANGED = 1_000, 0.01  # compared instead, and the share that int8 may change

_INT8_FIX = "set export.precision: fp32, or make the model wider or train it longer"


def judge_int8(comparison: DualPredictor, small: OpenedBundle, records: Sequence[Record]) -> dict[str, Any]:
    """Evaluate a bundle in int8 by its metric on at least `MIN_INT8_RECORDS` records, else by its agreement with fp32.

    Returns:
        For the manifest: the metric in int8, and, for few records, the number of compared and the share of equal
        decisions.

    Raises:
        ParityError: if the metric is worse by more than `MOST_LOST`, or more than `MOST_CHANGED` of the decisions
            differ.
    """
    sample = sample_records(records)
    (name, expected), (_, got) = (
        headline(score_records(side.predictor, sample)[""]) for side in (comparison.model, small)
    )
    metrics = comparison.model.predictor.metric_types
    int8, fp32 = (format_score(name, value, metrics) for value in (got, expected))
    message = f"{name} is {int8} in int8 and {fp32} in fp32 on {len(sample):,} records"
    report = {"precision": "int8", "onnxruntime": got}
    if len(sample) >= MIN_INT8_RECORDS:
        worse = goodness({name: expected}, None, metrics) - goodness({name: got}, None, metrics)
        if worse > (MOST_LOST if metric_of(name, metrics).percent else MOST_LOST_SHARE * abs(expected)) + 1e-9:
            raise ParityError(f"{message}; {_INT8_FIX}")
        return report
    same, count = _agreement(comparison, small, sample)
    if count - same > MOST_CHANGED * count:
        raise ParityError(f"{same:,} of {count:,} decisions in int8 are those in fp32, and {message}; {_INT8_FIX}")
    return report | {"agreement": same / count, "compared": count}


def _agreement(comparison: DualPredictor, small: OpenedBundle, records: Sequence[Record]) -> tuple[int, int]:
    """Count equal and compared decisions: on all records, then on random texts until there are enough."""

    def compare(feeds: Arrays) -> Iterator[np.ndarray]:
        options = option_inputs(feeds, comparison.options, comparison.decisions.trials.with_short_texts({}))
        expected, got = (model.run(feeds | options) for model in (comparison.model, small))
        for head, part in comparison.task.parts.items():
            yield from equal_decisions(part, part_of(expected, head), part_of(got, head), [*masks(feeds).values()])

    docs, equal = comparison.docs([comparison.task.question(record) for record in records]), list[np.ndarray]()
    for rows in batches([len(doc) for doc in docs]):
        equal += compare(comparison.featurizer.collate([docs[i] for i in rows]))
    seeds = itertools.count()
    while sum(map(len, equal)) < DECISIONS:
        for feeds in random_batches(comparison.network.artifacts, next(seeds), (7,), (2, 9)):
            equal += compare(feeds)
    decisions = np.concatenate(equal)
    return int(decisions.sum()), len(decisions)
