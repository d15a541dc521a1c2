"""Whether a bundle reads records as training does: the same tokens, the same features, the same refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from seqpipe.errors import DataError, ParityError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.runtime.predictor import ROWS, Predictor, chunks


def check_features(
    ours: Predictor,
    theirs: Predictor,
    records: Sequence[Record],
    probes: Iterable[Record],
    on_compared: Callable[[int], None],
) -> None:
    """ParityError if the bundle reads a record or a probe as other features than training does: that is exact.

    Args:
        ours: PyTorch's.
        theirs: The bundle's.
        records: What both read without an error.
        probes: What both may refuse, with the same message.
        on_compared: Called with how many more of these were read.
    """
    without_targets = [ours.kind.question(record) for record in records]
    for batch in chunks(without_targets, ROWS):
        _check_batch(ours, theirs, batch)
        on_compared(len(batch))
    for probe in probes:
        _check_batch(ours, theirs, [probe])
        on_compared(1)


def same_array(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Whether both are there and equal in type, shape and content."""
    return first is not None and second is not None and first.dtype == second.dtype and np.array_equal(first, second)


def described(record: Record) -> str:
    """The place and the first words of a record, for a message."""
    text = next((str(value) for name, value in record.items() if name != "where"), "")
    return f"{record.get('where', 'a record')} ({text[:60]!r})"


@dataclass(frozen=True)
class _Reading:
    """What a side reads of records: texts, split, and features; or its message of why it refuses them."""

    docs: Sequence[Doc]
    features: Arrays
    refusal: str = ""

    def difference(self, theirs: _Reading) -> str:
        """What the bundle reads otherwise; empty if nothing."""
        if self.refusal != theirs.refusal:
            return f"its refusal ({theirs.refusal or 'none'}; in training: {self.refusal or 'none'})"
        for name in {**self.features, **theirs.features}:
            if not same_array(self.features.get(name), theirs.features.get(name)):
                return f"its input {name!r}"
        return "" if self.docs == theirs.docs else "where its tokens stand"


def _read(side: Predictor, records: Sequence[Record]) -> _Reading:
    try:
        docs = side.docs(records)
    except DataError as error:
        return _Reading([], {}, str(error))
    return _Reading(docs, side.featurizer.collate(docs))


def _check_batch(ours: Predictor, theirs: Predictor, records: Sequence[Record]) -> None:
    """ParityError about the first record that both read otherwise."""
    if not _read(ours, records).difference(_read(theirs, records)):
        return
    for record in records:
        if difference := _read(ours, [record]).difference(_read(theirs, [record])):
            raise ParityError(
                f"the bundle reads {described(record)} otherwise than training did: {difference} differs; no bundle "
                "was written. All that a tokenizer or a feature does must follow from its file and the manifest"
            )
    raise ParityError("the bundle reads records in a batch otherwise than one by one; no bundle was written")
