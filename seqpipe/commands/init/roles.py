"""Decide what the columns of a table are for: texts, labels, numbers, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seqpipe.commands.init.profile import Column

Task = Literal["Labels", "Numbers", "Texts"]
HEADS = {"Labels": "label", "Numbers": "score", "Texts": "seq2seq"}
Kind = Literal["texts", "classes", "numbers", "key", "date", "notice", "constant", "empty", "word"]
_KINDS = {
    "texts": "texts",
    "classes": "few values",
    "numbers": "numbers",
    "key": "identifiers or row numbers",
    "date": "dates",
    "notice": "licences or addresses",
    "constant": "the same value in every row",
    "empty": "mostly empty",
    "word": "other values",
}


@dataclass
class Roles:
    """What the columns of a table are for.

    Attributes:
        columns: The columns.
        names: Their names, if the first row has them.
        learns: What is learned.
        texts: Indices of the columns of the text, or of a pair of texts.
        target: Index of the column of the label, number or text to write.
        kinds: What each column is like.
        why: Why these columns, in a few words.
        separator: What separates the labels in a cell; None if each cell is one label.
    """

    columns: list[Column]
    names: list[str] | None
    learns: Task
    texts: list[int]
    target: int
    kinds: list[Kind]
    why: str
    separator: str | None = None
    use: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    saw: str = ""

    def of_table(self, use: str, options: dict[str, Any], saw: str) -> Roles:
        """Return these roles with the reader `use`, its options and what was seen."""
        self.use, self.options = use, options | (self._with_names() if self.names else self._without())
        self.saw = saw
        return self

    @property
    def target_field(self) -> str:
        """The name of the column that is learned, in the table or in `columns`."""
        if self.names:
            return self.names[self.target]
        return "target" if self.learns == "Texts" else "labels" if self.separator else "label"

    @property
    def title(self) -> str:
        """What the column that is learned is called, for people."""
        return f"column {self.names[self.target]!r}" if self.names else f"column {self.target + 1}"

    def _several(self) -> dict[str, Any]:
        """Return the reader's options for several labels in a cell."""
        separator = {} if self.separator == "|" else {"separator": self.separator}
        return {"labels": self.target_field, **separator}

    @property
    def text_fields(self) -> list[str]:
        """The record's fields of the text or texts."""
        if len(self.texts) == 1:
            return ["text"]
        return ["text", self.names[self.texts[1]] if self.names else "text_pair"]

    def _with_names(self) -> dict[str, Any]:
        names = self.names or []
        text, target = names[self.texts[0]], names[self.target]
        options: dict[str, Any] = {} if text == "text" else {"text": text}
        if self.learns == "Numbers":
            options["numbers"] = [target]
        elif self.separator:
            options |= self._several()
        elif self.learns == "Labels" and target != "label":
            options["label"] = target
        return options

    def _without(self) -> dict[str, Any]:
        columns = ["_"] * len(self.columns)
        for index, name in zip(self.texts, self.text_fields, strict=True):
            columns[index] = name
        columns[self.target] = self.target_field
        numbers = {"numbers": ["label"]} if self.learns == "Numbers" else {}
        return {"columns": columns} | numbers | (self._several() if self.separator else {})


def describe(kinds: Sequence[Kind], names: Sequence[str] | None) -> str:
    """Return what each column is like, for people."""
    titles = [repr(name) for name in names] if names else [str(number) for number in range(1, len(kinds) + 1)]
    return ", ".join(f"{title} {_KINDS[kind]}" for title, kind in zip(titles, kinds, strict=True))


def counts_of(roles: Roles) -> Counter[str]:
    """Return how often each label occurs."""
    counts: Counter[str] = Counter()
    for value, count in roles.columns[roles.target].values.items():
        for label in value.split(roles.separator) if roles.separator else [value]:
            counts[label.strip()] += count
    return counts
