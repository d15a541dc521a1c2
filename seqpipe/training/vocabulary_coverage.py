"""Tokens that the fitted vocabularies do not hold: of inputs unknown, of target texts impossible to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.loader import Config
from seqpipe.features.document import Doc, Record
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.training.artifacts import Artifacts, Task
from seqpipe.training.predictor import option_table


def unknown_share(artifacts: Artifacts, docs: Sequence[Doc]) -> float:
    """The share of tokens of all text sources that the vocabulary does not hold."""
    unknown, texts = SPECIALS.index(UNK), [part for doc in docs for part in doc.parts or (doc,) if part.rows is None]
    return sum(doc.ids.count(unknown) for doc in texts) / max(1, sum(map(len, texts)))


def unwritable(artifacts: Artifacts, task: Task, records: Sequence[Record], longest: int | None) -> Iterator[str]:
    """Report what a head that writes text can never write of these records' targets, a line each.

    Args:
        artifacts: Of the run.
        task: The head's.
        records: With their targets.
        longest: The default limit of tokens of a text, its end included.
    """
    if records and task.target_tokenizer:
        yield from task.kind.unwritable(records, artifacts.featurizer.docs(records), longest)


def unwritable_notes(config: Config, artifacts: Artifacts, records: Sequence[Record]) -> Iterator[str]:
    """Report what heads that write text cannot write of the records, a line each."""
    for head, task in zip(config.head, artifacts.tasks, strict=True):
        longest = option_table(head).get("max_length", {}).get("default")
        yield from (f"{head.key}: {note}" for note in unwritable(artifacts, task, records, longest))
