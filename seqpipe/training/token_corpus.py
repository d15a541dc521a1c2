"""A token corpus: the tokens of all texts in one file, which may be larger than memory, and windows of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from seqpipe.answers.generation import RECORD_CONTINUES, flowing
from seqpipe.config.component import build_component
from seqpipe.config.loader import Component
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record
from seqpipe.features.vocabulary import EOS, SPECIALS
from seqpipe.files import make_folder, remove_torn, writing
from seqpipe.runtime.predictor import chunks
from seqpipe.training.artifacts import Artifacts

Batch = dict[str, torch.Tensor]
_CHUNK = 256  # records split at a time
_WRITE = 1 << 20  # tokens written at a time


class Records(Sequence[Record]):
    """The records of a file, read anew at each iteration."""

    def __init__(self, reader: Component, path: Path):
        self.reader, self.path = reader, path

    def __iter__(self) -> Iterator[Record]:
        empty = True
        for record in build_component(self.reader).read(self.path):
            empty = False
            yield record
        if empty:
            raise DataError(f"{self.path}: holds no record")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        raise TypeError("records of a stream have no index; iterate over them")


def split(artifacts: Artifacts, records: Sequence[Record]) -> Iterator[tuple[Doc, bool]]:
    """The records split, each with whether its text continues in the next one."""
    for chunk in chunks(records, _CHUNK):
        record_continues = [record.get(RECORD_CONTINUES) is True for record in chunk]
        yield from zip(artifacts.featurizer.docs(chunk), record_continues, strict=True)


def in_memory(artifacts: Artifacts, records: Sequence[Record]) -> np.ndarray:
    """All texts as one row of tokens."""
    return np.fromiter(flowing(split(artifacts, records), SPECIALS.index(EOS)), np.int64)


def token_file(path: Path, artifacts: Artifacts, records: Sequence[Record]) -> np.memmap:
    """All texts as one row of tokens, memory-mapped; written whole or not at all, and once.

    Two bytes a token, or four where the vocabulary has more than 65,536.
    """
    dtype = np.dtype("<u2" if len(artifacts.vocabulary) <= 1 << 16 else "<u4")
    if not path.exists():
        make_folder(path.parent)
        remove_torn(path.parent, [path.name])
        with writing(path) as temporary, temporary.open("wb") as file:
            for chunk in chunks(flowing(split(artifacts, records), SPECIALS.index(EOS)), _WRITE):
                file.write(np.array(chunk, dtype).tobytes())
    if not path.stat().st_size:
        raise DataError(f"{path}: the texts hold no token")
    return np.memmap(path, dtype, "r")


class Windows:
    """Windows of one long text, drawn at random.

    Args:
        tokens: The text.
        context: T, tokens of a window.
        rows: B, windows of a batch.
        seed: Of the order.
        epoch_batches: Batches of an epoch; None: as many as the text has room for.
        stateful: Whether a batch's windows follow those of the batch before: the text is read in B stretches side by
            side.

    Raises:
        DataError: if the text has no room for a window and the token behind it, or for so many in a row.
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
            message = f"the text has {len(tokens):,} tokens, and a window takes {context:,} and the one behind them"
            raise DataError(f"{message}; give more text, or set head.context to {max(1, len(tokens) // 2):,} or less")
        self.windows = (len(tokens) - 1) // context  # of the whole text
        self.rows = min(rows, self.windows)
        self.epoch_batches, self.stateful = epoch_batches, stateful
        self.stretch = (len(tokens) - 1) // self.rows  # tokens of one of them
        if stateful and (epoch_batches or 0) > (most := self.stretch // context):
            message = f"the text has {most:,} windows for each of {self.rows} rows, not {epoch_batches:,}"
            raise DataError(f"{message}; give more text, or lower train.epoch_steps or train.batch_size")

    def order(self, epoch: int) -> list[list[int]]:
        """Where the windows of each batch of an epoch begin: the same for the same seed and epoch."""
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
        """The windows that begin at these places."""
        return self._batch([self.tokens[start : start + self.context + 1] for start in rows])

    def once(self) -> Iterator[Batch]:
        """Every token of the text but the first once, in order."""
        for starts in chunks(range(0, len(self.tokens) - 1, self.context), self.rows):
            yield self(starts)

    def _batch(self, rows: Sequence[np.ndarray]) -> Batch:
        longest = max(map(len, rows))
        ids = np.zeros((len(rows), longest), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        tokens = torch.from_numpy(ids)
        mask = tokens[:, 1:] > 0
        return {
            "ids": tokens[:, :-1].contiguous(),
            "mask": mask,
            "target_ids": tokens[:, 1:].contiguous(),
            "target_mask": mask,
        }
