"""Training examples and their batches, and texts as one row of tokens on disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqpipe.answers.text import RECORD_CONTINUES, concatenate
from seqpipe.answers.types import SpanRules, Targets, UnseenLabelError
from seqpipe.config.contract import answer_settings, build_component, has_member
from seqpipe.config.loader import Component, Config
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Overlaps, Record, dropped_message, resolve_overlaps
from seqpipe.features.parts import DataPath, Part, read_records
from seqpipe.features.spans import offsets_of
from seqpipe.features.vocabulary import BOS, EOS, SPECIALS
from seqpipe.files import make_folder, remove_partial_files, writing
from seqpipe.runtime.predictor import chunks
from seqpipe.training.artifacts import Artifacts

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Example:
    """One training example: the tokenized text, its targets, and the candidate in its batch."""

    doc: Doc
    targets: Targets
    match: Example | None = None

    @property
    def length(self) -> int:
        longest = max([len(self.doc), *(len(target) for target in self.targets.values() if isinstance(target, list))])
        return 2 * max(longest, self.match.length) if self.match else longest


def read(
    reader: Component,
    path: DataPath,
    most: int | None = None,
    overlaps: Overlaps = "error",
    left_out: list[str] | None = None,
) -> list[Record]:
    """Return the records of a file, or its first `most`; DataError if there are none.

    `left_out` takes the errors of records that cannot be read; without it the first one is raised.
    """
    records = list(itertools.islice(read_records(build_component(reader), path, overlaps, left_out), most))
    if not records:
        reason = f", except those that cannot be read, such as {left_out[0]}" if left_out else ""
        raise DataError(f"{path}: has no records{reason}")
    return records


def of_epoch(config: Config, artifacts: Artifacts) -> Callable[[int], Sequence[Example]] | None:
    """Return the examples of an epoch if the reader makes other records in each; None if it does not."""
    reader, path = build_component(config.data.reader), config.data.train
    if not (has_member(reader, "epoch") and reader.changes(path)):
        return None
    if isinstance(path, Part):
        raise DataError(f"{path}: its records are made anew in each epoch; give data.dev and data.test a file")
    return lambda number: examples(
        config, artifacts, list(resolve_overlaps(reader.epoch(path, number), config.data.overlaps))
    )


def examples(
    config: Config,
    artifacts: Artifacts,
    records: Sequence[Record],
    skip_unseen: bool = False,
    warn: Callable[[str], None] | None = None,
) -> list[Example]:
    """Return records as examples, without empty texts and records to be skipped.

    Args:
        config: The pipeline.
        artifacts: Artifacts fitted to its training records.
        records: Records with targets.
        skip_unseen: Leave out records with labels that training never saw.
        warn: Called with a line about empty texts, and one about spans that were widened, skipped or dropped.
    """
    makers, rules = [], list[SpanRules]()
    for head, task in zip(config.head, artifacts.tasks, strict=True):
        rules.append(SpanRules(config.data.misaligned, config.data.overlaps))
        make = task.head_task.target_maker(answer_settings(head), rules[-1])
        makers.append((f"{task.name}." if task.name else "", make))
    offsets, message = offsets_of(records)
    if offsets != "characters":
        message = f"{config.data.train}: {message}; set data.offsets: {offsets}"
        if config.data.misaligned == "error":
            raise DataError(message)
        if warn:
            warn(message)
    data, empty, unseen = list[Example](), [], 0
    for record, doc in zip(records, artifacts.featurizer.docs(records), strict=True):
        if not len(doc):
            empty.append(record)
            continue
        try:
            by_head = [(prefix, make(record, doc)) for prefix, make in makers]
        except UnseenLabelError:
            if not skip_unseen:
                raise
            unseen += 1
            continue
        if all(target is not None for _, target in by_head):
            named = {prefix + name: value for prefix, target in by_head for name, value in (target or {}).items()}
            data.append(Example(doc, named))
    if empty and warn:
        message = f"{len(empty):,} of {len(records):,} records have no tokens, and are left out of training"
        warn(f"{message}; the first: {empty[0].get('where', 'no file and line known')}")
    if warn:
        for line in dropped_message(records, config.data.overlaps):
            warn(line)
        for line in dict.fromkeys(line for rule in rules for line in rule.messages()):  # two heads may have the same
            warn(line)
    if not data and not unseen:
        file = config.data.dev if skip_unseen else config.data.train
        raise DataError(f"{file}: every text is empty, or has no target")
    return data


class Batches:
    """Batches of similar lengths within a budget of padded tokens.

    Args:
        artifacts: Artifacts that convert examples to arrays.
        data: The examples; those of the first epoch if epochs differ.
        tokens: The budget.
        most: Maximum number of examples of a batch; None: limited by the budget only.
        seed: Seed of the order.
        of_epoch: Function that returns the examples of an epoch; they are kept until another epoch begins.
    """

    stateful = False

    def __init__(
        self,
        artifacts: Artifacts,
        data: Sequence[Example],
        tokens: int,
        most: int | None,
        seed: int,
        of_epoch: Callable[[int], Sequence[Example]] | None = None,
    ):
        self.artifacts, self.data, self.tokens, self.most, self.seed = artifacts, data, tokens, most, seed
        self._of_epoch, self._epoch = of_epoch, 0

    def order(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch as positions: a function of seed and epoch."""
        if self._of_epoch is not None and epoch != self._epoch:
            self.data, self._epoch = self._of_epoch(epoch), epoch
        random = np.random.default_rng((self.seed, epoch))
        lengths = np.array([example.length for example in self.data], float)
        noisy = lengths * random.uniform(0.9, 1.1, len(self.data)) + random.uniform(0, 1, len(self.data))
        batches: list[list[int]] = []
        batch: list[int] = []
        longest = 0.0
        for i in np.argsort(noisy, kind="stable").tolist():
            longest = max(longest, lengths[i])
            if batch and ((len(batch) + 1) * longest > self.tokens or len(batch) == self.most):
                batches.append(batch)
                batch, longest = [], lengths[i]
            batch.append(i)
        batches += [batch] if batch else []
        return [batches[i] for i in random.permutation(len(batches))]

    def __call__(self, rows: Sequence[int]) -> Batch:
        data = [self.data[i] for i in rows]
        if matches := [example.match for example in data if example.match]:
            # The matching candidates of the examples are added to the batch, each text once.
            data = list({(example.doc.text, str(example.targets)): example for example in [*data, *matches]}.values())
        return collate(self.artifacts, data)


def collate(artifacts: Artifacts, data: Sequence[Example]) -> Batch:
    """Collate examples to padded tensors: features, then targets.

    Targets of tokens are padded with 0, and `…_mask` is boolean; one number per record is (B,), a row (B, L).
    """
    arrays = artifacts.featurizer.collate([example.doc for example in data])
    batch = {name: torch.from_numpy(np.require(array, requirements=["C", "W"])) for name, array in arrays.items()}
    if artifacts.kind.is_generated:  # predictions begin after [BOS]
        for name, first in (("ids", SPECIALS.index(BOS)), ("mask", 1)):
            batch[name] = torch.nn.functional.pad(batch[name], (1, 0), value=first)
    for name in data[0].targets:
        rows: list[Any] = [example.targets[name] for example in data]
        number = torch.float32 if _holds_fractions(rows[0]) else torch.int64
        batch[name] = torch.tensor(_padded(rows), dtype=torch.bool if name.endswith("_mask") else number)
    return batch


def _holds_fractions(target: Any) -> bool:
    if isinstance(target, (list, tuple)):
        return any(map(_holds_fractions, target))
    return isinstance(target, float)


def _padded(rows: list[Any]) -> list[Any]:
    """Pad rows, lists or lists of lists, with zeros to equal shape."""
    if not isinstance(rows[0], list):
        return rows
    width = max(map(len, rows))
    if not any(row and isinstance(row[0], list) for row in rows):
        return [row + [0] * (width - len(row)) for row in rows]
    inner = max(len(cell) for row in rows for cell in row)
    return [[cell + [0] * (inner - len(cell)) for cell in row] + [[0] * inner] * (width - len(row)) for row in rows]


def unseen_labels(artifacts: Artifacts, records: Iterable[Record]) -> Iterator[tuple[str, Record]]:
    """Yield labels of these records that are not in the training data, each once, with its first record."""
    tasks = [fitted.head_task for fitted in artifacts.tasks if fitted.labels]
    known = [(task, task.answer_labels()) for task in tasks if task.answer_labels()]
    for record in records:
        for task, labels in known:
            for label in task.labels_in(task.gold(record)):
                if label not in labels:
                    labels.add(label)
                    yield label, record


# A token corpus: the tokens of all texts in one file, which may be larger than memory, and windows of it.

_CHUNK = 256  # records split at a time
_WRITE = 1 << 20  # tokens written at a time


class Records(Sequence[Record]):
    """Records of a file, read again at each iteration."""

    def __init__(self, reader: Component, path: DataPath):
        self.reader, self.path = reader, path

    def __iter__(self) -> Iterator[Record]:
        empty = True
        for record in read_records(build_component(self.reader), self.path):
            empty = False
            yield record
        if empty:
            raise DataError(f"{self.path}: has no records")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        raise TypeError("records of a stream have no index; iterate over them")


def split(artifacts: Artifacts, records: Sequence[Record]) -> Iterator[tuple[Doc, bool]]:
    """Tokenize the records; yield each with a flag whether its text continues in the next one."""
    for chunk in chunks(records, _CHUNK):
        record_continues = [record.get(RECORD_CONTINUES) is True for record in chunk]
        yield from zip(artifacts.featurizer.docs(chunk), record_continues, strict=True)


def in_memory(artifacts: Artifacts, records: Sequence[Record]) -> np.ndarray:
    """Return all texts as one row of tokens."""
    return np.fromiter(concatenate(split(artifacts, records), SPECIALS.index(EOS)), np.int64)


def token_file(path: Path, artifacts: Artifacts, records: Sequence[Record]) -> np.memmap:
    """Return all texts as one memory-mapped row of tokens; written atomically, and only once.

    Two bytes per token, or four if the vocabulary has more than 65,536 tokens.
    """
    dtype = np.dtype("<u2" if len(artifacts.vocabulary) <= 1 << 16 else "<u4")
    if not path.exists():
        make_folder(path.parent)
        remove_partial_files(path.parent, [path.name])
        with writing(path) as temporary, temporary.open("wb") as file:
            for chunk in chunks(concatenate(split(artifacts, records), SPECIALS.index(EOS)), _WRITE):
                file.write(np.array(chunk, dtype).tobytes())
    if not path.stat().st_size:
        raise DataError(f"{path}: the texts have no tokens")
    return np.memmap(path, dtype, "r")


class Windows:
    """Windows of one long text, sampled at random.

    Args:
        tokens: The text.
        context: T, tokens of a window.
        rows: B, windows of a batch.
        seed: Seed of the order.
        epoch_batches: Batches of an epoch; None: as many as fit in the text.
        stateful: Whether a batch's windows follow those of the previous batch: the text is read in B parallel parts.

    Raises:
        DataError: if the text is shorter than a window and the next token, or than this number of windows per row.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        context: int,
        rows: int,
        seed: int = 0,
        epoch_batches: int | None = None,
        stateful: bool = False,
    ):
        self.tokens, self.context, self.seed = tokens, context, seed
        if len(tokens) <= context:
            message = f"the text has {len(tokens):,} tokens, and a window needs {context:,} and the next one"
            raise DataError(f"{message}; give more text, or set head.context to {max(1, len(tokens) // 2):,} or less")
        self.windows = (len(tokens) - 1) // context  # of the whole text
        self.rows = min(rows, self.windows)
        self.epoch_batches, self.stateful = epoch_batches, stateful
        self.stretch = (len(tokens) - 1) // self.rows  # tokens of a part
        if stateful and (epoch_batches or 0) > (most := self.stretch // context):
            message = f"the text has {most:,} windows for each of {self.rows} rows, not {epoch_batches:,}"
            raise DataError(f"{message}; give more text, or lower train.epoch_steps or train.batch_size")

    def order(self, epoch: int) -> list[list[int]]:
        """Return the start offsets of the windows of each batch of an epoch; a function of seed and epoch."""
        random = np.random.default_rng((self.seed, epoch))
        if self.stateful:
            count = self.epoch_batches or self.stretch // self.context
            begin = int(random.integers(0, self.stretch - count * self.context + 1))
            rows = range(begin, begin + self.rows * self.stretch, self.stretch)
            return [[row + i * self.context for row in rows] for i in range(count)]
        if self.epoch_batches is not None:
            starts: list[list[int]] = random.integers(
                0, len(self.tokens) - self.context, (self.epoch_batches, self.rows)
            ).tolist()
            return starts
        rest = len(self.tokens) - 1 - self.windows * self.context
        begins = random.integers(0, rest + 1) + self.context * random.permutation(self.windows)
        return [begins[i : i + self.rows].tolist() for i in range(0, self.windows, self.rows)]

    def __call__(self, rows: Sequence[int]) -> Batch:
        """Return the windows with these start offsets."""
        windows = [self.tokens[start : start + self.context + 1] for start in rows]
        ids = np.zeros((len(windows), max(map(len, windows))), np.int64)
        for number, window in enumerate(windows):
            ids[number, : len(window)] = window
        tokens = torch.from_numpy(ids)
        mask = tokens[:, 1:] > 0
        inputs = {"ids": tokens[:, :-1].contiguous(), "mask": mask}
        return {**inputs, "target_ids": tokens[:, 1:].contiguous(), "target_mask": mask}

    def once(self) -> Iterator[Batch]:
        """Yield batches in which every token of the text except the first is a target once, in order."""
        for starts in chunks(range(0, len(self.tokens) - 1, self.context), self.rows):
            yield self(starts)
