"""Check that a pipeline exports: build it with random weights, take a step, export it, run it and compare."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from seqpipe.answers.task import Census
from seqpipe.answers.types import UnseenLabelError
from seqpipe.config.contract import by_source, describe, task_class
from seqpipe.config.loader import Component, Config
from seqpipe.console import Console
from seqpipe.errors import ConfigError, DataError, TrainingError
from seqpipe.evaluation.scores import deciding
from seqpipe.export.exporter import bundle_files, bundle_manifest, exported_graph
from seqpipe.export.graph import random_batches
from seqpipe.export.parity.answers import DualPredictor
from seqpipe.export.parity.decisions import Tally
from seqpipe.export.parity.gate import compare_streams, one_thread
from seqpipe.features.document import KeptRecord, Record
from seqpipe.features.encoding import text_excerpt
from seqpipe.features.parts import DataPath, left_out_message, record_labels
from seqpipe.features.raw_text import PATTERN_FIX, compare_raw_text, find_fault
from seqpipe.features.sources import tokenizers_of
from seqpipe.runs.train import refuse_long_texts, refuse_missing_group, report_unseen_labels
from seqpipe.runtime import bundle
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.runtime.predictor import chunks, refuse_long
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_faults import data_faults
from seqpipe.training.data_forms import DataForm, ExampleData, TrainingData, data_form
from seqpipe.training.datasets import Batch, Batches, ExampleMaker, load_records, longest_of
from seqpipe.training.evaluation import DevScores, TrainedPipeline, first_not_finite
from seqpipe.training.memory import try_longest_text
from seqpipe.training.network import Network
from seqpipe.training.teacher import teacher_answers
from seqpipe.training.warm_start import warm_start

CORPUS_RECORDS = 200  # of a token corpus, which may be larger than memory, or answered by a teacher, which is slow
EXAMINED = 32  # records at a time: the fewer objects live at once, the less the garbage collector has to do
MAX_RECORDS, SAMPLE_RECORDS = 20_000, 10_000  # the most that a trial is built from, and those of larger data


@dataclass(frozen=True)
class Trial:
    """A pipeline with random weights, and its data."""

    network: Network
    records: Sequence[Record]  # that it was built from
    data: TrainingData
    batch: Batch  # of the data
    size: str  # the number of records, as text
    messages: Sequence[str]  # about the vocabulary of all records
    init_report: Sequence[str]  # lines about the initialisation from the runs that `init` names
    is_sample: bool = False  # whether there are more records; the warnings of the data are about all of them


def build_trial(config: Config) -> Trial:
    """Build a pipeline from all records of the training file; of a token corpus from the first, if they suffice.

    Of more than `MAX_RECORDS` records the first ones are used, and all are examined one at a time, in constant memory.

    Raises DataError, PluginError or ConfigError like the real run.
    """
    form = data_form(config)
    most = MAX_RECORDS if form.corpus is None else CORPUS_RECORDS
    first: list[Record] = [*map(KeptRecord, itertools.islice(form.stream(config.data.train), most + 1))]
    if len(first) <= most:
        return _build(form, first, f"{len(first):,} records")
    if isinstance(form, ExampleData) and form.corpus is None:
        return _build_from_sample(form, first[:SAMPLE_RECORDS])
    with suppress(DataError):  # the first records may not suffice; then try all of them
        return _build(form, first[:CORPUS_RECORDS], f"the first {CORPUS_RECORDS} records", is_partial=True)
    return _build(form, form.read(config.data.train), "all records")


def _build_from_sample(form: ExampleData, sample: list[Record]) -> Trial:
    """Build a pipeline from the first records, and from others with further labels, and examine all records."""
    config, form.most = form.config, SAMPLE_RECORDS
    # Labels of the first records may be too few. Then the first record with each further label is added; if these do
    # not suffice either, to fit the tokenizer or what else is fitted, all records decide as in small data.
    for with_labels in (False, True):
        records = [*sample, *_with_further_labels(form, sample)] if with_labels else sample
        try:
            fitted = form.fit(records)
        except DataError:
            continue
        try:
            trial = _build(form, records, "", fitted=fitted)
            return _examine(form, trial, len(records) - len(sample))
        except (ConfigError, UnseenLabelError):  # options may name labels that these records lack
            if with_labels:
                raise
    form.most = None
    every = form.read(config.data.train)
    return _build(form, every, f"{len(every):,} records")


def _with_further_labels(form: ExampleData, sample: Sequence[Record]) -> Iterator[Record]:
    """Yield the first training record with each label that no record of the sample has."""
    heads = [head for head in form.config.head if task_class(head).has_labels]
    targets = [target for head in heads if (target := head.common_keys.get("target"))]
    known = set[str]()
    for number, record in enumerate(form.stream(form.config.data.train)):
        labels = record_labels(record) | {str(record.get(target)) for target in targets} if heads else set()
        if number >= len(sample) and not labels <= known:
            yield record
        known |= labels


def _examine(form: ExampleData, trial: Trial, further: int) -> Trial:
    """Return a trial with the warnings about all records of train and dev, which are read and not kept."""
    config, artifacts, limits = form.config, trial.network.artifacts, trial.network.limits
    batches = trial.data.batches
    assert isinstance(batches, Batches)
    longest, most, count = batches.data[0], int(batches.lengths.max()), 0
    warnings: dict[str, list[str]] = {"train": [], "dev": []}

    def examined(name: str, path: DataPath) -> Iterator[Record]:
        nonlocal longest, most, count
        trains, census = name == "train", Census(artifacts.task)
        maker = ExampleMaker(config, artifacts, skip_unseen=not trains)
        for chunk in chunks(census.watch(form.stream(path)), EXAMINED):
            docs = artifacts.featurizer.docs(chunk)
            if trains:
                refuse_long(docs, chunk, limits)
            made = [example for _, example in maker.make(chunk, docs)]
            if trains and made and (candidate := longest_of(made)).length > most:
                longest, most = candidate, candidate.length
            yield from chunk
        count = maker.records if trains else count
        lines = [*maker.messages()]  # raises DataError for dev too
        warnings[name] = [*(lines if trains else ()), *census.warnings(name, trains)]

    data = config.data
    train, dev = examined("train", data.train), examined("dev", data.dev) if data.dev else iter(())
    faults = [*data_faults(config, artifacts, train, dev)]
    deque(itertools.chain(train, dev), maxlen=0)  # the records that are not compared with others
    if batches.data[0].match is None and longest is not batches.data[0]:  # it is tried
        batches.data = [*batches.data, longest]
    size = f"the first {SAMPLE_RECORDS:,} of {count:,} records"
    size += f" and {further:,} with further labels" if further else ""
    left_out = [left_out_message(path, errors) for path, errors in form.left_out.items() if errors]
    return replace(
        trial,
        data=replace(trial.data, warnings=[*left_out, *warnings["train"], *warnings["dev"], *faults]),
        size=size,
        messages=[f"{line} (by {size})" for line in trial.messages],
        init_report=[f"{line} (by {size})" for line in trial.init_report],
        is_sample=True,
    )


def _build(
    form: DataForm,
    records: Sequence[Record],
    size: str,
    is_partial: bool = False,
    fitted: Artifacts | None = None,
) -> Trial:
    config = form.config
    artifacts = fitted or form.fit(records)
    if config.train.teacher:
        teacher_answers(config, artifacts, [*itertools.islice(records, CORPUS_RECORDS)], None, Console(-1), "cpu")
    data = form.load(artifacts, records)
    torch.manual_seed(config.train.seed)
    network = Network(config, data.artifacts)
    init_report = warm_start(network, config)
    if is_partial:
        init_report = [f"{line} (by {size})" for line in init_report]
    if artifacts.longest > network.limits.tokens and form.corpus is None:
        refuse_long(artifacts.featurizer.docs(records), records, network.limits)
    messages = [] if is_partial else [*network.messages(), *data.target_messages()]
    return Trial(network, records, data, data.batches(data.batches.order(0)[0]), size, messages, init_report)


@dataclass(frozen=True)
class ExportCheck:
    """The comparison of a graph with PyTorch.

    Attributes:
        decisions: Number of decisions that were compared; all of them are equal.
        ties: Number of ties in PyTorch's own scores, where either decision counts as equal.
        worst_score: Greatest difference between two scores.
        seconds: Duration of the check.
    """

    decisions: int
    ties: int
    worst_score: float
    seconds: float


@one_thread()
def check_export(config: Config, console: Console) -> ExportCheck:
    """Build from all records, take one step of training, export, and compare with PyTorch on ragged batches.

    Raises UsageError, DataError, PluginError, TrainingError, ExportError or ParityError like the real run.
    """
    clock = time.monotonic()
    trial = build_trial(config)
    network, artifacts, data = trial.network, trial.network.artifacts, trial.data
    _try_hostile_texts(config, artifacts, console)
    faults = () if trial.is_sample else data_faults(config, artifacts, trial.records, data.dev)
    for warning in (*data.warnings, *faults):
        console.warn(warning)
    raw = compare_raw_text(artifacts.featurizer, trial.records)
    note = f" (in {trial.size})" if trial.is_sample else ""
    if raw.is_large:
        console.warn(f"train: {raw.summary()}{note}: {raw.suggestion()}")
    elif raw.words:
        console.say(f"train: {raw.summary()}{note}")
    report_unseen_labels(data_form(config), artifacts, console)
    refuse_missing_group(data_form(config))
    if data.dev_batches and not trial.is_sample:
        next(iter(data.dev_batches()), None)  # builds the examples of all dev records
    refuse_long_texts(data_form(config), network, trial.is_sample)
    try_longest_text(network, data.batches)
    loss = network.loss(trial.batch)
    if not torch.isfinite(loss):
        raise TrainingError(f"the loss of the first batch is {loss.item()}: {first_not_finite(network, trial.batch)}")
    loss.backward()
    if config.train.metric and config.data.dev:  # a missing score is reported now, not after an epoch
        two_records = load_records(config.data.reader, config.data.dev, 2)
        scores = DevScores(network, two_records, lambda: [trial.batch], "cpu")
        deciding(scores(lambda: None, only_names=True), config.train.metric)
    for message in trial.messages:
        console.say(message)
    weights = sum(p.numel() for p in network.parameters())
    console.say(f"builds: {weights:,} weights on {trial.size}, loss {loss.item():.3f}")
    for line in trial.init_report:
        console.say(f"  {line}")
    network.eval()
    tally = _compare_graph(TrainedPipeline(network, config), console)
    seconds = time.monotonic() - clock
    console.say(
        f"answers the same in PyTorch and onnxruntime: {tally.decisions} decisions, {tally.ties} ties ({seconds:.1f} s)"
    )
    return ExportCheck(tally.decisions, tally.ties, tally.worst, round(seconds, 2))


def _compare_graph(pipeline: TrainedPipeline, console: Console) -> Tally:
    """Export the graph, and compare it with PyTorch on short ragged batches; ParityError if it answers differently."""
    network, artifacts, config = pipeline.network, pipeline.artifacts, pipeline.config
    with exported_graph(pipeline, console) as graph:
        content = bundle.BundleContent(config.file, bundle_manifest(pipeline), bundle_files(pipeline, graph))
        model = OpenedBundle(content, "cpu", threads=1)
        console.say(f"exports: {len(graph):,} bytes, inputs {', '.join(i.name for i in model.session.get_inputs())}")
        parity = DualPredictor(pipeline, model).decisions
        for sizes, lengths in (((1, 3), (1, 2, 9)), ((2,), network.long)):
            parity.compare_batches(random_batches(artifacts, config.train.seed, sizes, lengths), {})
        if network.streams:
            compare_streams(parity, config.train.seed)
        parity.resolve_ties()
    return parity.tally


def _try_hostile_texts(config: Config, artifacts: Artifacts, console: Console) -> None:
    """Raise ConfigError for a tokenizer that panics at a hostile text; warn of one that is slow at it."""
    tokenizers, problems = tokenizers_of(artifacts.featurizer), []
    components = {name: source.tokenizer for name, source in by_source(config.inputs).items()}
    pairs: list[tuple[Any, Any]] = [(components[name], tokenizer) for name, tokenizer in tokenizers.items()]
    for head, task in zip(config.head, artifacts.tasks, strict=True):
        pairs.append((head.common_keys.get("target_tokenizer"), task.target_tokenizer))
    for component, tokenizer in pairs:
        if not isinstance(component, Component) or tokenizer is None:  # `same` was tried already
            continue
        fault = find_fault(tokenizer)
        if fault and fault.fails:
            message = f"{describe(component)} cannot split {text_excerpt(fault.text)}: {fault.message}; {PATTERN_FIX}"
            problems.append(component.problem(message))
        elif fault:
            console.warn(f"{component.key}: {describe(component)} takes {fault.message}; {PATTERN_FIX}")
    if problems:
        raise ConfigError(problems)
