"""What a data file is like, and its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from seqpipe.commands.init.files import WHOLE, Pieces, Unit, size_of
from seqpipe.commands.init.json_sample import sample_lines
from seqpipe.commands.init.scripts import Scripts
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import DataError

_BLOCKS: dict[str, Unit] = {
    "conll": "sentence",
    "conllu": "sentence",
    "fasttext": "line",
    "jsonl": "line",
}  # what is read a piece at a time


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
        segmented: Whether they are, but the data splits them into words.
        scripts: What the texts are written in.
        labels: How often each label occurs.
        label_kind: What is learned: labels of spans, words or whole texts ("Labels"), a number or a text to write,
            answers within passages, positions of points, or how a plain text continues.
        target: The field of the number or of the text to write.
        unanswered: Number of questions without an answer.
        counted: Number of records whose words count 1 2 3.
        fields: The fields of the text, or of a pair of texts.
        saw: What the file looks like, in one line.
        why: Why this is learned, in one line.
        sampled: Whether the records were counted in a sample of the file.
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
    segmented: bool = False
    scripts: Scripts = field(default_factory=Scripts)
    labels: Counter[str] = field(default_factory=Counter)
    label_kind: Literal["Entities", "Tags", "Labels", "Numbers", "Texts", "Answers", "Pointers", "Continuations"] = (
        "Entities"
    )
    target: str = "target"
    unanswered: int = 0
    counted: int = 0
    fields: list[str] = field(default_factory=lambda: ["text"])
    saw: str = ""
    why: str = ""
    sampled: bool = False
    multi: bool = False
    pointer: dict[str, Any] = field(default_factory=dict)
    characters: int = 0

    def reasons(self) -> list[str]:
        """Return what was seen in the file, and why this is learned."""
        reasons = {"Saw": self.saw, "Chose": self.why}
        return [f"{title}: {text}." for title, text in reasons.items() if text]

    def remarks(self) -> list[str]:
        """Return what else there is to know."""
        return [f"Note: {note}." for note in self.notes]


def records(summary: DataSummary, data: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; of a large one, those of pieces that are evenly spread over it.

    Raises:
        DataError: for a record that cannot be read, with its line.
    """
    reader: Any = construct(Plugins().find("reader", summary.use).load(), **summary.options)
    if summary.use == "json" and size_of(data) > WHOLE:
        yield from _of_list(summary, data, reader)
        return
    blocks = _BLOCKS.get(summary.use)
    pieces = Pieces(data, blocks) if blocks else None
    if pieces is None or pieces.is_whole:
        yield from reader.read(data)
        return
    yield from _sampled(summary, data, reader, reader.records(pieces.lines(), str(data)))


def _of_list(summary: DataSummary, data: Path, reader: Any) -> Iterator[dict[str, Any]]:
    """Yield records from all over a large JSON list, which the reader of JSON Lines makes of its objects."""
    lines, _ = sample_lines(data, summary.options.get("list"))
    options = {name: value for name, value in summary.options.items() if name != "list"}
    of_lines: Any = construct(Plugins().find("reader", "jsonl").load(), **options)
    yield from _sampled(summary, data, reader, of_lines.records(lines, str(data)) if lines else reader.read(data))


def _sampled(
    summary: DataSummary, data: Path, reader: Any, sample: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the records of a sample; DataError with the line in the file for one that cannot be read."""
    summary.sampled = True
    try:
        yield from sample
    except DataError:
        for _ in reader.read(data):
            pass  # until the same fault, which then has its line in the file
        raise


def scale(summary: DataSummary, data: Path) -> None:
    """Turn the numbers that were counted in pieces of a file into estimates for all of it."""
    if summary.sampled:
        in_list = sample_lines(data, summary.options.get("list"))[1] if summary.use == "json" else None
        factor = in_list or Pieces(data, _BLOCKS[summary.use]).factor
        summary.records = round(summary.records * factor)
        summary.words = round(summary.words * factor)
        summary.counted = round(summary.counted * factor)
        summary.labels = Counter({label: round(count * factor) for label, count in summary.labels.items()})
