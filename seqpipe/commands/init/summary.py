"""What a data file is like, and its records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from seqpipe.config.plugins import Plugins

SENTENCES = 20_000  # looked at


@dataclass
class DataSummary:
    """What a data file is like.

    Attributes:
        use: The reader that takes it.
        options: The reader's options.
        notes: What a person should know about the data.
        records: Number of records.
        words: Number of words.
        unspaced: Whether its words are (or the texts to write) are written without spaces, as in Chinese.
        labels: How often each label occurs.
        label_kind: What is learned: labels of spans, words or whole texts ("Labels"), a number or a text to write,
            answers within passages, positions of points, or how a plain text continues.
        target: The field of the number or of the text to write.
        unanswered: Number of questions without an answer.
        counted: Number of records whose words count 1 2 3.
        multi: Whether a text has any number of labels.
        pointer: The options of a pointer network's head.
        characters: Number of characters of a plain text.
    """

    use: str
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    words: int = 0
    unspaced: bool = False
    labels: Counter[str] = field(default_factory=Counter)
    label_kind: Literal["Entities", "Tags", "Labels", "Numbers", "Texts", "Answers", "Pointers", "Continuations"] = (
        "Entities"
    )
    target: str = "target"
    unanswered: int = 0
    counted: int = 0
    multi: bool = False
    pointer: dict[str, Any] = field(default_factory=dict)
    characters: int = 0


def records(summary: DataSummary, data: Path) -> Iterator[dict[str, Any]]:
    reader: Any = Plugins().find("reader", summary.use).load()(**summary.options)
    return itertools.islice(reader.read(data), SENTENCES)
