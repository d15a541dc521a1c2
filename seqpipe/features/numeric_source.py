"""The source of a field that holds rows of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqpipe.errors import DataError
from seqpipe.features.document import MASK, Arrays, Doc, Record, field_names, place_of
from seqpipe.features.kinds.base import TOKEN_AXES, FeatureKind


class NumericSource:
    """A field that holds rows of numbers, or the numbers of one row: each row stands where a token of a text would."""

    pairs = False

    def __init__(self, features: Mapping[str, FeatureKind], field: str):
        self.features, self.field, self.fields = dict(features), field, (field,)

    @property
    def width(self) -> int:
        """How many numbers a row has; 1 where no feature says it."""
        return next((feature.size for feature in self.features.values()), 1)

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """The rows of each record; DataError for what is no matrix of finite numbers of the fitted width."""
        return [self._doc(record) for record in records]

    def _doc(self, record: Record) -> Doc:
        rows = self._rows(record)
        numbers = [str(position) for position in range(len(rows))]
        ends = np.cumsum([len(number) + 1 for number in numbers]).tolist()
        offsets = [(end - 1 - len(number), end - 1) for end, number in zip(ends, numbers, strict=True)]
        words = [row.astype("<f4").tobytes().hex() for row in rows]  # what a seed is keyed by
        return Doc(" ".join(numbers), words, offsets, [1] * len(rows), rows=rows)

    def _rows(self, record: Record) -> np.ndarray:
        value, field = record.get(self.field), f"{place_of(record)}field {self.field!r}"
        try:
            with np.errstate(over="ignore"):  # refused below
                rows = np.array(value, np.float32) if isinstance(value, list | tuple | np.ndarray) else None
        except (TypeError, ValueError):
            rows = None
        if rows is None or rows.ndim not in (1, 2):
            names = "" if self.field in record else f"; the record has: {field_names(record)}"
            message = f"must hold rows of numbers of one length, not {type(value).__name__}{names}"
            raise DataError(f"{field} {message}; give a list of numbers, or a list of such lists of one length")
        if not rows.size:
            return np.zeros((0, 0), np.float32)
        rows = rows[None] if rows.ndim == 1 else rows
        if not np.isfinite(rows).all():
            raise DataError(f"{field} holds a number that is not finite in float32; leave such rows out")
        for width in (feature.size for feature in self.features.values()):
            if width and rows.shape[1] != width:
                message = f"has rows of {rows.shape[1]} numbers, and training data had {width}"
                raise DataError(f"{field} {message}; give {width}")
        return rows

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        """Rows padded to the most of the batch (at least one): every feature, and `mask` (B, T)."""
        lengths = np.array([len(doc) for doc in docs])
        longest = max(1, int(lengths.max(initial=1)))
        mask = np.arange(longest)[None] < lengths[:, None]
        return {name: feature.array(docs, longest) for name, feature in self.features.items()} | {MASK: mask}

    def axes(self, name: str) -> tuple[str | int, ...]:
        return TOKEN_AXES if name == MASK else self.features[name].axes

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Of each input of the graph what it is made by, its axes and its type."""
        inputs: dict[str, dict[str, Any]] = {
            name: {**feature.manifest(), "axes": [*feature.axes], "dtype": feature.dtype}
            for name, feature in self.features.items()
        }
        return inputs | {MASK: {"axes": [*TOKEN_AXES], "dtype": "bool"}}
