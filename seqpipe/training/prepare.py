"""What both a run and `check` make of a config before training: windows of a long text, and notes on the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.loader import Config
from seqpipe.features.document import Record
from seqpipe.training.fit import Learned, unwritable
from seqpipe.training.pipeline import option_table

LOOKED_AT = 1000  # records that notes before training are of


def unwritable_notes(config: Config, learned: Learned, records: Sequence[Record]) -> Iterator[str]:
    """What heads that write texts cannot write of some records, a line each."""
    for head, task in zip(config.head, learned.tasks, strict=True):
        longest = option_table(head).get("max_length", {}).get("default")
        yield from (f"{head.key}: {note}" for note in unwritable(learned, task, records[:LOOKED_AT], longest))
