"""Feature kind `matrix`: normalised rows of numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from seqpipe.errors import DataError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import TOKEN_AXES, FeatureKind, unknown_kind

_MIN_RELATIVE_DEVIATION = 1e-7  # a smaller deviation of a column, relative to its mean, is a rounding error


@dataclass(frozen=True)
class Matrix(FeatureKind):
    """Rows of numbers, minus the column's mean in the training data, divided by its standard deviation there; 0
    padding.

    A constant column is divided by 1. Without `normalise` numbers are unchanged: means of 0, deviations of 1. Only for
    a source without a tokenizer.
    """

    means: tuple[float, ...] = field(default=(), kw_only=True)
    deviations: tuple[float, ...] = field(default=(), kw_only=True)
    normalise: bool = field(default=True, kw_only=True)
    kind = "matrix"
    shape = "(B, T, F)"
    dtype = "float32"
    reads_numbers = True

    @property
    def size(self) -> int:
        """F."""
        return len(self.means)

    @property
    def axes(self) -> tuple[str | int, ...]:
        return (*TOKEN_AXES, self.size)

    def rows(self, value: Any, place: str) -> np.ndarray:
        """Return a list of numbers, or of such lists of one length, as rows; DataError if they are not finite."""
        try:
            with np.errstate(over="ignore"):  # overflow is refused below
                rows = np.array(value, np.float32) if isinstance(value, list | tuple | np.ndarray) else None
        except (TypeError, ValueError):
            rows = None
        if rows is None or rows.ndim not in (1, 2):
            message = f"must have rows of numbers of one length, not {type(value).__name__}"
            raise DataError(f"{place} {message}; give a list of numbers, or a list of such lists of one length")
        if not rows.size:
            return np.zeros((0, 0), np.float32)
        rows = rows[None] if rows.ndim == 1 else rows
        if not np.isfinite(rows).all():
            raise DataError(f"{place} has a number that is not finite in float32; leave such rows out")
        if self.size and rows.shape[1] != self.size:
            message = f"has rows of {rows.shape[1]} numbers, but the training data had {self.size}"
            raise DataError(f"{place} {message}; give {self.size}")
        return rows

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the older feature unchanged: numbers keep their meaning."""
        return older if isinstance(older, type(self)) else self

    def fit(self, docs: Iterable[Doc]) -> Self:
        """Return the feature with means and deviations of these rows, if it has none; DataError if widths differ."""
        if self.means:
            return self
        matrices = [doc.rows for doc in docs if doc.rows is not None and len(doc.rows)]
        if not matrices:
            raise DataError("no record has rows of numbers; correct the field of the input")
        width = matrices[0].shape[1]
        for matrix in matrices:
            if matrix.shape[1] != width:
                raise DataError(f"a record has rows of {matrix.shape[1]} numbers, others of {width}; use one length")
        if not self.normalise:
            return replace(self, means=(0.0,) * width, deviations=(1.0,) * width)
        rows = np.concatenate([matrix.astype(np.float64) for matrix in matrices])
        deviations = rows.std(0)
        deviations[deviations < _MIN_RELATIVE_DEVIATION * np.maximum(1.0, np.abs(rows.mean(0)))] = 1.0
        return replace(self, means=tuple(rows.mean(0).tolist()), deviations=tuple(deviations.tolist()))

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        matrix = np.zeros((len(docs), longest, self.size), np.float32)
        for rows, doc in zip(matrix, docs, strict=True):
            if doc.rows is not None and len(doc):
                rows[: len(doc)] = (doc.rows.astype(np.float64) - self.means) / self.deviations
        return matrix

    def example_value(self, draw: random.Random) -> list[list[float]]:
        return [[draw.gauss(0, 3) for _ in range(self.size)] for _ in range(draw.randint(1, 12))]

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "means": list(self.means), "deviations": list(self.deviations)}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        means, deviations = manifest["means"], manifest["deviations"]
        if len(means) != len(deviations):
            raise unknown_kind(f"{cls.kind!r} with {len(means)} means and {len(deviations)} deviations")
        return cls(means=tuple(map(float, means)), deviations=tuple(map(float, deviations)))

    def out_of_bounds(self) -> str:
        if all(map(math.isfinite, (*self.means, *self.deviations))) and min(self.deviations, default=1.0) > 0:
            return ""
        return f"{self.kind}: means that are not finite, or deviations that are not above 0"
