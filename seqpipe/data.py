"""Records in, batches of tensors out, in an order that is a function of seed and epoch alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqpipe.answers import label_of
from seqpipe.config import Component, Config
from seqpipe.errors import DataError
from seqpipe.features import Doc, Record
from seqpipe.learned import Learned, Targets, targets
from seqpipe.wiring import answer_kind, built

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Example:
    """One training example: the split text and what the head learns of it."""

    doc: Doc
    targets: Targets

    @property
    def length(self) -> int:
        return max([len(self.doc), *(len(one) for one in self.targets.values() if isinstance(one, list))])


def read(reader: Component, path: Path, most: int | None = None) -> list[Record]:
    """The records of a file, or its first `most`; DataError if there are none."""
    found = built(reader).read(path)
    records = list(itertools.islice(found, most))
    if not records:
        raise DataError(f"{path}: holds no record")
    return records


def sample(config: Config, most: int) -> list[Record]:
    """The first records of the training file and, of texts with a label, one more of each label that comes later."""
    found: Iterator[Record] = built(config.data.reader).read(config.data.train)
    records = list(itertools.islice(found, most))
    if answer_kind(config.head[0]) == "label":
        field = config.head[0].frame.get("target") or "label"
        seen = {label_of(record, field) for record in records}
        for record in found:
            if (label := label_of(record, field)) not in seen:
                seen.add(label)
                records.append(record)
    if not records:
        raise DataError(f"{config.data.train}: holds no record")
    return records


def examples(config: Config, learned: Learned, records: Sequence[Record]) -> list[Example]:
    """Records as examples; empty texts are left out."""
    make = targets(learned, config.head[0], config.data.misaligned)
    made = []
    for record, doc in zip(records, learned.featurizer.docs(records), strict=True):
        if len(doc):
            made.append(Example(doc, make(record, doc)))
    if not made:
        raise DataError(f"{config.data.train}: every text is empty")
    return made


class Batches:
    """Batches of similar lengths within a budget of padded tokens."""

    def __init__(self, learned: Learned, data: Sequence[Example], tokens: int, most: int | None, seed: int):
        self.learned, self.data, self.tokens, self.most, self.seed = learned, data, tokens, most, seed
        self._lengths = np.array([example.length for example in data], float)

    def order(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, as positions: the same for the same seed and epoch, whatever ran before."""
        random = np.random.default_rng((self.seed, epoch))
        noisy = self._lengths * random.uniform(0.9, 1.1, len(self.data)) + random.uniform(0, 1, len(self.data))
        batches: list[list[int]] = []
        batch: list[int] = []
        longest = 0.0
        for i in np.argsort(noisy, kind="stable").tolist():
            longest = max(longest, self._lengths[i])
            if batch and ((len(batch) + 1) * longest > self.tokens or len(batch) == self.most):
                batches.append(batch)
                batch, longest = [], self._lengths[i]
            batch.append(i)
        batches.append(batch)
        return [batches[i] for i in random.permutation(len(batches))]

    def __call__(self, rows: Sequence[int]) -> Batch:
        return collate(self.learned, [self.data[i] for i in rows])


def collate(learned: Learned, some: Sequence[Example]) -> Batch:
    """Examples as padded tensors: features, then targets (padding 0; `…_mask` boolean; one number a record: (B,))."""
    arrays = learned.featurizer.collate([example.doc for example in some])
    batch = {name: torch.from_numpy(np.require(array, requirements=["C", "W"])) for name, array in arrays.items()}
    for name in some[0].targets:
        rows: list[Any] = [example.targets[name] for example in some]
        if isinstance(rows[0], list):
            width = max(map(len, rows))
            rows = [row + [0] * (width - len(row)) for row in rows]
        batch[name] = torch.tensor(rows, dtype=torch.bool if name.endswith("_mask") else torch.int64)
    return batch


def unseen_labels(learned: Learned, records: Iterable[Record]) -> Iterator[str]:
    """Labels of these records that training never saw, each once."""
    known = (
        {tag.partition("-")[2] or tag for tag in learned.labels}
        if learned.answer["kind"] == "spans"
        else set(learned.labels)
    )
    seen: set[str] = set()
    for record in records:
        gold = learned.kind.gold(record) if learned.labels else ()
        for label in [gold] if isinstance(gold, str) else [label for label, *_ in gold]:
            if label not in known and label not in seen:
                seen.add(label)
                yield label
