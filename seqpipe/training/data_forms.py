"""Forms of training data: examples, candidates, windows of a running text."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from seqpipe.answers.task import list_examples, warnings_about
from seqpipe.answers.text import MAX_LOGITS, evaluation_window, prompt_records
from seqpipe.config.contract import (
    CorpusSettings,
    build_component,
    corpus_settings,
    declaration,
    describe,
    has_member,
    is_quadratic,
    task_class,
)
from seqpipe.config.loader import Component, Config
from seqpipe.config.run_layout import TOKENS_DIR
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import KeptRecord, Record
from seqpipe.features.mapped import FeatureStore, StoredRecords, UnmappableError, write_values
from seqpipe.features.parts import DataPart, DataPath, Role, left_out_message, no_records_left, paths_of, read_part
from seqpipe.files import sha256_file
from seqpipe.runtime.predictor import batches
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import (
    TICK,
    Batch,
    Batches,
    Example,
    Records,
    TargetFacts,
    Windows,
    epoch_examples,
    examples,
    in_memory,
    load_records,
    mapped_examples,
    tensors,
    token_file,
)
from seqpipe.training.evaluation import evaluation
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network

# Examples in training that are paired with a candidate of their label, or with another text of it; all candidates are
# encoded after an epoch.


def with_matches(artifacts: Artifacts, data: Sequence[Example]) -> Sequence[Example]:
    """Pair each example with another candidate of its label, in rotation; without one if there is none."""
    candidates = artifacts.candidates
    if candidates is None:
        return data
    ids = {label: i for i, label in enumerate(artifacts.tasks[0].kind.labels)}
    by_label: dict[int, list[Example]] = defaultdict(list)
    for key, text in zip(candidates.keys, candidates.texts, strict=True):
        by_label[ids[key]].append(Example(artifacts.candidate_docs[text], {"label": ids[key]}))
    turns: dict[int, int] = defaultdict(int)
    matched = []
    for example in data:
        label = example.targets["label"]
        assert isinstance(label, int)
        alike = by_label[label]
        in_turn = (alike[(turns[label] + i) % len(alike)] for i in range(len(alike)))
        match = next((candidate for candidate in in_turn if candidate.doc.text != example.doc.text), None)
        turns[label] += 1
        matched.append(replace(example, match=match))
    return matched


def with_pairs(head: Component, task: FittedTask, data: Sequence[Example], epoch: tuple[int, int]) -> list[Example]:
    """Pair each example with another text of its label, drawn by the seed and the number of the epoch.

    Raises:
        DataError: A label has only one text.
    """
    target, by_label = f"{task.name}.label" if task.name else "label", defaultdict[Any, dict[str, Example]](dict)
    for example in data:
        by_label[example.targets[target]].setdefault(example.doc.text, example)
    groups = {label: [*texts.values()] for label, texts in by_label.items()}
    if alone := [f"{task.labels[label]!r} ({texts[0].where})" for label, texts in groups.items() if len(texts) == 1]:
        fix = "add another text with the label, or leave these out"
        raise DataError(
            f"{describe(head)} compares texts of one label, and has only one of: {list_examples(alone)}; {fix}"
        )
    places = {label: {text: i for i, text in enumerate(texts)} for label, texts in by_label.items()}
    draws, pairs = np.random.default_rng(epoch).random(len(data)), []
    for example, draw in zip(data, draws, strict=True):
        label = example.targets[target]
        others = len(groups[label]) - 1
        place = places[label][example.doc.text] + 1 + int(draw * others)
        pairs.append(replace(example, match=groups[label][place % (others + 1)]))
    return pairs


def encode_candidates(network: Network, device: torch.device | str = "cpu") -> None:
    """Give the head the vectors of its candidates under the current weights; equal texts have equal vectors."""
    artifacts, candidates = network.artifacts, network.artifacts.candidates
    if candidates is None:
        return
    texts, docs, vectors = [*artifacts.candidate_docs], [*artifacts.candidate_docs.values()], dict[str, Tensor]()
    with evaluation(network):
        for rows in batches([len(doc) for doc in docs]):
            features = tensors(artifacts.featurizer.collate([docs[i] for i in rows]), device)
            vectors |= zip((texts[i] for i in rows), network.decide(features, {})["vector"], strict=True)
    network.head.set_candidates(torch.stack([vectors[text] for text in candidates.texts]))  # (N, D)


# The two forms of training data, examples and a token corpus, of which the head chooses one.

MIN_MAPPED_BYTES = 16_000_000  # of a data file whose features are mapped: in memory they are 20 to 50 times that
FEATURES_VARIABLE = "SEQPIPE_FEATURES"  # auto, memory or mapped
TRAIN = "train.bin"  # the file of training tokens in the folder TOKENS
COMPARED = 200  # training records for the parity check if there is no dev or test set


def features_mode() -> str:
    """Return auto, memory or mapped, as the environment says; UsageError for another value."""
    mode = os.environ.get(FEATURES_VARIABLE, "auto")
    if mode not in ("auto", "memory", "mapped"):
        raise UsageError(f"{FEATURES_VARIABLE}={mode}: must be auto, memory or mapped")
    return mode


@dataclass(frozen=True)
class TrainingData:
    """Training and dev data of a pipeline."""

    batches: Batches | Windows  # with targets, like the dev batches
    size: str  # of the training data, as text
    artifacts: Artifacts  # with the length of target texts
    # Returns lines about the targets of dev, or without dev of train, that a head cannot generate.
    target_messages: Callable[[], Sequence[str]] = lambda: ()
    dev: Sequence[Record] = ()  # the records on which answers are compared; empty if only batches are scored
    dev_batches: Callable[[], Iterable[Batch]] | None = None  # None without a dev set
    warnings: Sequence[str] = ()  # about the records


class DataForm(ABC):
    """Conversion of a config's files to training data."""

    def __init__(self, config: Config, corpus: CorpusSettings | None, store: FeatureStore | None = None):
        self.config, self.corpus, self.store = config, corpus, store
        self.left_out: dict[str, list[str]] = {}  # the errors of records that were left out, by file
        self.unlabelled: Sequence[Record] = ()  # which only a teacher answers
        self.soft_targets: Sequence[
            Mapping[str, Any]
        ] = ()  # its answers by head to the training records, then to those

    @abstractmethod
    def read(self, path: DataPath) -> Sequence[Record]:
        """Return the records of a file."""

    def fit(self, records: Sequence[Record], folder: Path | None = None) -> Artifacts:
        """Return the artifacts fitted to the training records, of a run in this folder."""
        unlabelled = self.read(self.config.data.unlabelled) if self.config.data.unlabelled else ()
        return fit_artifacts(self.config, records, unlabelled, folder and folder / TOKENS_DIR / TRAIN)

    @abstractmethod
    def load(self, artifacts: Artifacts, records: Sequence[Record], folder: Path | None = None) -> TrainingData:
        """Return the training data of these records; without the folder of a run nothing is cached."""

    def stream(self, path: DataPath) -> Records:
        """Return the records of a file, which are read again at each iteration and not kept."""
        data, left_out = self.config.data, self.left_out.setdefault(str(path), [])
        return Records(data.reader, path, data.overlaps, left_out if data.bad_rows == "skip" else None)

    def compared_records(self, folder: Path) -> Sequence[Record]:
        """Return the records for the parity check: those of `data.compared`, of train the first."""
        data = self.config.data
        path = next(iter(data.tests.values()), None) or data.dev
        if self.corpus is None:
            return self.read(path) if path else self.read(data.train)[:COMPARED]
        source, corpus = Artifacts.load(folder).featurizer, Records(data.reader, path or data.train)
        return prompt_records(corpus, source.docs, source.fields[-1], self.corpus.context)


class ExampleData(DataForm):
    """Data of examples: each record has features, and targets or the text itself as the target."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._sets: dict[DataPath, Sequence[Record]] = {}  # with a store: what was read
        self.most: int | None = None  # records of each file that are read; None: all

    def read(self, path: DataPath) -> Sequence[Record]:
        if path not in self._sets:
            records: Sequence[Record] | None = self._map(path) if self.store and self._is_large(path) else None
            data, left_out = self.config.data, self.left_out.setdefault(str(path), [])
            if records is None:
                left_out.clear()
                bad_rows = left_out if data.bad_rows == "skip" else None
                records = [*map(KeptRecord, load_records(data.reader, path, self.most, data.overlaps, bad_rows))]
            if self.store is None:
                return records
            self._sets[path] = records
        return self._sets[path]

    def _is_large(self, path: DataPath) -> bool:
        """Return whether records are mapped; a large file that cannot be is reported."""
        mode = features_mode()
        size = sum(file.stat().st_size for file in self._files(path))
        if mode == "memory" or (mode == "auto" and size < MIN_MAPPED_BYTES):
            return False
        assert self.store
        if reason := unmappable(self.config):
            message = f"{path}: {size / 1e6:,.0f} MB are read into memory, where they are 20 to 50 times that: {reason}"
            self.store.console.warn(message, "  ")
        return not reason

    def _files(self, path: DataPath) -> list[Path]:
        """Return the files of a data path; a reader knows those that belong together."""
        reader, paths = self.config.data.reader, paths_of(path)
        if not has_member(reader.cls, "files"):
            return [*paths]
        return [file for data_path in paths for file in build_component(reader).files(data_path)]

    def _map(self, path: DataPath) -> StoredRecords | None:
        """Return the records from the store; None if `marshal` cannot write them."""
        data, reader, store = self.config.data, self.config.data.reader, self.store
        assert store
        paths = paths_of(path)
        left_out: list[str] | None = [] if data.bad_rows == "skip" else None
        fields = dict[str, None]()

        def make_files(folder: Path) -> None:
            def values() -> Iterator[Record]:
                component = build_component(reader)
                with store.console.progress("reading", None) as tick:
                    records = (r for p in paths for r in read_part(component, p, data.overlaps, left_out))
                    for number, record in enumerate(records, 1):
                        fields.update(dict.fromkeys(record))
                        yield record
                        if number % TICK == 0:
                            tick(number)

            if not write_values(folder / "records", values()):
                reason = f", except those that cannot be read, such as {left_out[0]}" if left_out else ""
                raise DataError(f"{path}: has no records{reason}")
            (folder / "facts.json").write_text(json.dumps({"left_out": left_out or [], "fields": [*fields]}))

        offer = reader.offer
        key = {
            "records": [sha256_file(file) for file in self._files(path)],
            "paths": [*map(str, paths)],
            "reader": [reader.use, offer.distribution, offer.version, repr(reader.options)],
            "rules": [data.overlaps, data.bad_rows],
        }
        try:
            folder = store.make(key, make_files)
        except UnmappableError as error:
            store.console.warn(f"{path}: the records are read into memory: {error}", "  ")
            return None
        facts = json.loads((folder / "facts.json").read_text())
        self.left_out[str(path)] = facts["left_out"]
        every = StoredRecords(folder / "records", None, folder.name, store, facts["fields"])
        if not isinstance(path, DataPart):
            return every

        def make_rows(rows: Path) -> None:
            roles = np.array(path.roles(every))
            for role in get_args(Role):
                (rows / role).write_bytes(np.flatnonzero(roles == role).astype(np.int32).tobytes())

        divided = [path.dev, path.test, path.seed, path.group, path.fold, path.split]
        rows = store.make({"part of": folder.name, "divided": divided}, make_rows)
        records = StoredRecords(folder / "records", rows / path.role, f"{rows.name} {path.role}", store, every.fields)
        if not records:
            raise no_records_left(path, len(every))
        return records

    def load(self, artifacts: Artifacts, records: Sequence[Record], folder: Path | None = None) -> TrainingData:
        config, settings = self.config, self.config.train
        dev = self.read(config.data.dev) if config.data.dev else []
        warnings = [left_out_message(path, errors) for path, errors in self.left_out.items() if errors]
        data: Sequence[Example]
        facts, dev_facts = TargetFacts(is_examined=not dev), TargetFacts()
        if isinstance(records, StoredRecords):
            data = mapped_examples(config, artifacts, records, warn=warnings.append, facts=facts)
        else:
            soft_targets = self.soft_targets[: len(records)]
            data = examples(config, artifacts, records, False, warnings.append, soft_targets, facts=facts)
        tasks = [replace(task, longest=n) for task, n in zip(artifacts.tasks, facts.longest, strict=True)]
        artifacts = replace(artifacts, tasks=tuple(tasks))
        if self.unlabelled:
            answers = self.soft_targets[len(records) :]
            data = [*data, *examples(config, artifacts, self.unlabelled, soft_targets=answers, is_labelled=False)]
        warnings += warnings_about(artifacts.task, "train", records, trains=True)
        warnings += warnings_about(artifacts.task, "dev", dev)
        batches_of = partial(
            Batches,
            artifacts,
            tokens=settings.batch_tokens,
            most=settings.batch_size,
            seed=settings.seed,
            quadratic=any(map(is_quadratic, [stage for s in config.inputs for stage in s.stages] + [*config.head])),
        )

        # The dev examples are built at the first evaluation, or before training if targets are examined.
        @cache
        def dev_batches() -> Batches:
            if isinstance(dev, StoredRecords):
                return batches_of(mapped_examples(config, artifacts, dev, skip_unseen=True, facts=dev_facts))
            return batches_of(examples(config, artifacts, dev, skip_unseen=True, facts=dev_facts))

        def target_messages() -> Sequence[str]:
            if dev and any(task.head_task.has_target_text for task in artifacts.tasks):
                dev_batches()
            return dev_facts.messages if dev else facts.messages

        make = epoch_examples(config, artifacts)
        heads = zip(config.head, artifacts.tasks, strict=True)
        pairing = next((pair for pair in heads if declaration(pair[0], "label_pairs")), None)

        def matched(some: Sequence[Example], number: int = 0) -> Sequence[Example]:
            return with_pairs(*pairing, some, (settings.seed, number)) if pairing else with_matches(artifacts, some)

        def of_epoch(number: int) -> Sequence[Example]:
            return matched(data if make is None else make(number), number)

        return TrainingData(
            batches_of(
                matched(data),
                epoch_examples=of_epoch if make or pairing else None,
                epoch_batches=settings.epoch_steps and settings.epoch_steps * settings.accumulate,
            ),
            f"{len(data):,} examples",
            artifacts,
            target_messages,
            dev,
            (lambda: map(dev_batches(), dev_batches().order(0))) if dev else None,
            warnings,
        )


class TokenCorpus(DataForm):
    """Data of one long text of tokens, from which windows are sampled; it may be larger than memory."""

    corpus: CorpusSettings

    def read(self, path: DataPath) -> Sequence[Record]:
        return Records(self.config.data.reader, path)

    def load(self, artifacts: Artifacts, records: Sequence[Record], folder: Path | None = None) -> TrainingData:
        data = self.config.data
        dev_batches = None
        if folder is None:
            batches = self._windows(in_memory(artifacts, records))
        else:
            batches = self._file_windows(artifacts, data.train, folder / TOKENS_DIR / TRAIN)
            if data.dev:
                dev_batches = self._file_windows(artifacts, data.dev, folder / TOKENS_DIR / "dev.bin", is_dev=True).once
        return TrainingData(batches, f"a text of {len(batches.tokens):,}", artifacts, dev_batches=dev_batches)

    def _file_windows(self, artifacts: Artifacts, path: DataPath, tokens: Path, is_dev: bool = False) -> Windows:
        """Return the windows of a file's texts, whose tokens are cached in another file; errors name the file."""
        cached = token_file(tokens, artifacts.featurizer, self.read(path))
        try:
            if not is_dev or not self.corpus.stateful:
                return self._windows(cached)
            # With carried states, dev is scored in longer windows than those of training.
            size = len(artifacts.vocabulary)
            context = max(1, min(evaluation_window(self.corpus.context, True, size), len(cached) - 1))
            return Windows(cached, context, max(1, MAX_LOGITS // (size * context)))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def _windows(self, tokens: np.ndarray) -> Windows:
        settings, corpus = self.config.train, self.corpus
        rows = settings.batch_size or max(1, settings.batch_tokens // corpus.context)
        epoch_batches = settings.epoch_steps and settings.epoch_steps * settings.accumulate
        return Windows(tokens, corpus.context, rows, settings.seed, epoch_batches, corpus.stateful)


def unmappable(config: Config) -> str:
    """Return the reason why the training data of a config must be in memory; "" if they can be mapped."""
    data, reader, pairs = config.data, build_component(config.data.reader), "label_pairs"
    if has_member(reader, "epoch") and reader.changes(data.train):
        return "the reader yields other records in each epoch"
    if data.candidates or any(task_class(head).has_candidates for head in config.head):
        return "each text is paired with a candidate"
    if alike := [head for head in config.head if declaration(head, pairs)]:
        return f"{describe(alike[0])} pairs texts of one label anew in each epoch"
    if config.train.teacher or config.train.self_training or data.unlabelled:
        return "answers of a model are learned beside them (train.teacher, train.self_training, data.unlabelled)"
    return ""


def data_form(config: Config, store: FeatureStore | None = None) -> DataForm:
    """Return the form of training data that the head of a config requires; with a store, large data are mapped."""
    corpus = corpus_settings(config.head[0])
    return (TokenCorpus if corpus is not None and corpus.packed else ExampleData)(config, corpus, store)
