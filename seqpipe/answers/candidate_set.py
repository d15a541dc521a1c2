"""A set of texts that an answer is chosen from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANSWER = "answer"  # the field of what is to be answered where a candidate is the nearest


@dataclass(frozen=True)
class Candidates:
    """A set of texts to choose from, in the order of their file.

    Attributes:
        texts: The texts.
        labels: The label of each; None where the texts have no label: then each is its own.
        answers: What each says in its field `answer`; None where none has that field.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    answers: tuple[str | None, ...] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What a reference is compared with: the label of each, or its text."""
        return self.texts if self.labels is None else self.labels

    def entry(self, number: int) -> dict[str, Any]:
        """A candidate as an answer states it."""
        entry: dict[str, Any] = {"text": self.texts[number]}
        if self.labels is not None:
            entry["label"] = self.labels[number]
        if self.answers is not None:
            entry[ANSWER] = self.answers[number]
        return entry

    def manifest(self) -> dict[str, Any]:
        columns = {"texts": self.texts, "labels": self.labels, "answers": self.answers}
        return {name: list(values) for name, values in columns.items() if values is not None}

    @staticmethod
    def from_manifest(manifest: Mapping[str, Any]) -> Candidates:
        """ValueError for columns that are not equally long lists of texts."""
        columns = {"texts": None, **manifest}
        for name, column in columns.items():
            allowed = (str, type(None)) if name == "answers" else str
            if not isinstance(column, list) or not all(isinstance(value, allowed) for value in column):
                raise ValueError(f"candidates: {name} is no list of texts")
            if not column or len(column) != len(manifest["texts"]):
                raise ValueError(f"candidates: there are {len(column)} {name}")
        return Candidates(**{name: tuple(column) for name, column in manifest.items()})
