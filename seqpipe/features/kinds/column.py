"""Feature kind `column`: what another field of the record holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from seqpipe.errors import DataError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import BATCH, FeatureKind

_SHOWN = 20  # values in a message


@dataclass(frozen=True)
class Column(FeatureKind):
    """The position among `values` of what another field of the record holds, such as a label or a topic.

    Another value than these is an error.
    """

    field: str
    values: tuple[str, ...] = ()  # before it is fitted: any will do
    kind = "column"
    shape = "(B, 1)"
    axes = (BATCH, 1)
    of_whole_text = True

    @property
    def names(self) -> tuple[str, ...]:
        return self.values

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def unfitted(self) -> Self:
        return replace(self, values=())

    def fit(self, docs: Iterable[Doc]) -> Self:
        """The same feature with the new values of these records behind its own, in order."""
        new = {doc.columns[self.field] for doc in docs} - {*self.values}
        return replace(self, values=(*self.values, *sorted(new)))

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """The same feature with the values of an older one."""
        return replace(self, values=older.values) if isinstance(older, Column) else self

    def value(self, text: str, place: str = "") -> str:
        if self.values and text not in self.values:
            known = ", ".join(map(repr, self.values[:_SHOWN])) + ", …" * (len(self.values) > _SHOWN)
            raise DataError(f"{place}field {self.field!r} holds {text!r}; training data had: {known}; use one of these")
        return text

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        return np.array([[self.values.index(doc.columns[self.field])] for doc in docs], np.int64)

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "field": self.field, "values": list(self.values)}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        return cls(str(manifest["field"]), tuple(map(str, manifest["values"])))

    def example_fields(self, choose: Callable[[Sequence[str]], Any]) -> dict[str, str]:
        return {self.field: str(choose(self.values))}
