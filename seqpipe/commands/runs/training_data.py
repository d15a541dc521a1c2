"""What a pipeline is trained on: its records, its fitted artifacts and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seqpipe.answers.data_warnings import warnings_about
from seqpipe.commands.runs.run_folder import Run
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import TOKENS
from seqpipe.errors import DataError
from seqpipe.features.document import Record
from seqpipe.training.datasets import Batch, Batches, examples, of_epoch, read
from seqpipe.training.fit import FILE, Learned, learn
from seqpipe.training.prepare import judging_windows, packed, windows
from seqpipe.training.token_corpus import Records, Windows, token_file


@dataclass(frozen=True)
class TrainingData:
    """What a pipeline is trained on.

    Attributes:
        records: The training records.
        dev: The dev records; none where texts are packed, for windows of their tokens take their place.
        learned: The fitted artifacts: tokenizers, vocabularies, labels.
        batches: The training batches: of examples, or of windows of packed texts.
        warnings: What a person should know about the records.
    """

    records: Sequence[Record]
    dev: Sequence[Record]
    learned: Learned
    batches: Batches | Windows
    warnings: Sequence[str]


def load_data(run: Run) -> TrainingData:
    """Read the records and fit the artifacts, or load those that an interrupted run has fitted."""
    config = run.config
    reader, train, dev = config.data.reader, config.data.train, config.data.dev
    is_packed = packed(config)
    records = Records(reader, train) if is_packed else read(reader, train)
    dev_records = read(reader, dev) if dev and not is_packed else []
    learned = _fit_or_load(run, records)
    if is_packed:
        return TrainingData(records, [], learned, text_windows(config, learned, run.folder, "train"), [])
    warnings: list[str] = []
    batches = Batches(
        learned,
        examples(config, learned, records, tell=warnings.append),
        config.train.batch_tokens,
        config.train.batch_size,
        config.train.seed,
        of_epoch(config, learned),
    )
    warnings += warnings_about(learned.kind, "train", records)
    warnings += warnings_about(learned.kind, "dev", dev_records)
    return TrainingData(records, dev_records, learned, batches, warnings)


def _fit_or_load(run: Run, records: Sequence[Record]) -> Learned:
    if (run.folder / FILE).exists():
        return Learned.load(run.folder)
    learned = learn(run.config, records)
    learned.save(run.folder)
    return learned


def text_windows(config: Config, learned: Learned, folder: Path, part: str) -> Windows:
    """Return the windows of the packed texts of `train` or `dev`, whose tokens are cached in the folder of the run."""
    path = getattr(config.data, part)
    tokens = token_file(folder / TOKENS / f"{part}.bin", learned, Records(config.data.reader, path))
    try:
        return windows(config, tokens) if part == "train" else judging_windows(config, tokens, len(learned.vocabulary))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def dev_batches(config: Config, learned: Learned, dev: Sequence[Record]) -> Callable[[], Iterator[Batch]]:
    """Return a function that yields the dev data as batches with targets; they are made at its first call."""

    @cache
    def batches() -> Batches:
        data = examples(config, learned, dev, unseen=True)
        return Batches(learned, data, config.train.batch_tokens, config.train.batch_size, config.train.seed)

    return lambda: (batches()(rows) for rows in batches().order(0))
