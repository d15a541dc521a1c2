"""What both a run and `check` make of a config before training: windows of a long text, and notes on the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from seqpipe.answers.generation import ENOUGH, judged_in
from seqpipe.config.contract import is_language_model_head, is_stateful
from seqpipe.config.loader import Config
from seqpipe.features.document import Record
from seqpipe.training.fit import Learned, unwritable
from seqpipe.training.pipeline import option_table
from seqpipe.training.token_corpus import Windows

LOOKED_AT = 1000  # records that notes before training are of


def packed(config: Config) -> bool:
    """Whether the records are one text to learn from."""
    head = config.head[0]
    return is_language_model_head(head) and head.options["packed"] is True


def windows(config: Config, tokens: np.ndarray) -> Windows:
    """Windows of texts as one, as a YAML has them."""
    settings, options = config.train, config.head[0].options
    rows = settings.batch_size or max(1, settings.batch_tokens // options["context"])
    batches = settings.epoch_steps and settings.epoch_steps * settings.accumulate
    return Windows(tokens, options["context"], rows, settings.seed, batches, is_stateful(config.head[0]))


def judging_windows(config: Config, tokens: np.ndarray, size: int) -> Windows:
    """The same to judge a model of so many tokens by, every token once."""
    if not is_stateful(config.head[0]):
        return windows(config, tokens)
    context = max(1, min(judged_in(config.head[0].options["context"], True, size), len(tokens) - 1))
    return Windows(tokens, context, max(1, ENOUGH // (size * context)))


def unwritable_notes(config: Config, learned: Learned, records: Sequence[Record]) -> Iterator[str]:
    """What heads that write texts cannot write of some records, a line each."""
    for head, task in zip(config.head, learned.tasks, strict=True):
        longest = option_table(head).get("max_length", {}).get("default")
        yield from (f"{head.key}: {note}" for note in unwritable(learned, task, records[:LOOKED_AT], longest))
