"""Properties of a data file: counts over its records, of which a large file's are read in pieces."""

from __future__ import annotations

import functools
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.files import PACKED, open_file
from seqpipe.init.scripts import Scripts, has_unspaced

WHOLE = 4_000_000  # bytes: of a larger file, records are taken from pieces of a quarter of this size together
PIECES = 40
OBJECTS = 10_000  # taken of a large JSON list that has more
SEGMENTED = 1 / 20  # of the words without spaces have several characters, if they are words; else they are characters
LISTED = 3  # records that cannot be read
MOST_LEFT_OUT = 0.05  # of the records
_CHUNK = 1_000_000
_SENTENCE_END = re.compile(rb"\n[ \t\r]*\n")
_ENDS = {
    "conll": _SENTENCE_END,
    "conllu": _SENTENCE_END,
    "fasttext": re.compile(rb"\n"),
    "jsonl": re.compile(rb"\n"),
}  # of a record, for the readers that can read a piece

LabelKind = Literal["Entities", "Tags", "Labels", "Numbers", "Texts", "Answers", "Pointers", "Continuations"]


@dataclass(frozen=True)
class Doubt:
    """Something that may be otherwise: in words, and by the options of `seqpipe init` that read it so, if there are."""

    text: str
    options: tuple[str, ...]

    def command(self, data: Path) -> str:
        """Return the command for the other reading, behind a colon; nothing if there is none."""
        return f": {shlex.join(['seqpipe', 'init', str(data), *self.options])}" if self.options else ""


@dataclass
class DataSummary:
    """Properties of a data file.

    Attributes:
        use: The reader that takes it.
        options: The reader's options.
        notes: Further remarks for people.
        doubts: What may be read otherwise, each with the options of `seqpipe init` for the other reading.
        left_out: The errors of records that cannot be read; None where the first one ends the reading.
        bad_rows: How records that cannot be read are left out: none, "skip", or "error" where they are to be corrected.
        records: Number of records.
        words: Number of words.
        unspaced: Whether its words are (or the texts to write) are written without spaces, as in Chinese.
        segmented: Whether they are, but the data splits them into words.
        scripts: What the texts are written in.
        labels: How often each label occurs.
        label_kind: What is learned: labels of spans, words or whole texts ("Labels"), a number or a text to write,
            answers within passages, positions of points, or how a plain text continues.
        target: The field of the number or of the text to write.
        written: Texts to write, from all over the file.
        writer: The tokenizer of the texts to write, as YAML, and its reason.
        is_word: Whether the text is one word, as in spelling and inflection.
        unanswered: Number of questions without an answer.
        counted: Number of records whose words count 1 2 3.
        fields: The fields of the text, or of a pair of texts.
        saw: What the file looks like, in one line.
        why: Why this is learned, in one line.
        factor: The size of the file over that of the pieces in which the records were counted.
        multi: Whether a text has any number of labels.
        pointer: The options of a pointer network's head.
        characters: Number of characters of a plain text.
        joint: Whether spans and a label of each text are learned together.
    """

    use: str
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    left_out: list[str] | None = None
    bad_rows: str = ""
    records: int = 0
    words: int = 0
    unspaced: bool = False
    segmented: bool = False
    scripts: Scripts = field(default_factory=Scripts)
    labels: Counter[str] = field(default_factory=Counter)
    label_kind: LabelKind = "Entities"
    target: str = "target"
    written: list[str] = field(default_factory=list)
    writer: tuple[str, str] | None = None
    is_word: bool = False
    unanswered: int = 0
    counted: int = 0
    fields: list[str] = field(default_factory=lambda: ["text"])
    saw: str = ""
    why: str = ""
    factor: float = 1.0
    multi: bool = False
    pointer: dict[str, Any] = field(default_factory=dict)
    characters: int = 0
    joint: bool = False

    def scale(self) -> None:
        """Turn the numbers that were counted in pieces of a file into estimates for all of it."""
        self.records, self.words = round(self.records * self.factor), round(self.words * self.factor)
        self.counted, self.unanswered = round(self.counted * self.factor), round(self.unanswered * self.factor)
        self.labels = Counter({label: round(number * self.factor) for label, number in self.labels.items()})

    def doubt(self, text: str, *options: str) -> None:
        """Add a doubt; its text ends with the reading that the options take, if there are any."""
        self.doubts.append(Doubt(text, options))

    def doubt_left_out(self, data: Path) -> None:
        """Doubt the records that could not be read, with the places of the first three; DataError if they are many."""
        left_out = self.left_out or []
        number = round(len(left_out) * self.factor)
        if self.factor != 1:  # pieces have no line numbers of the file
            reader = reader_of(self.use, self.options)
            reader.left_out = left_out = []
            for _ in reader.read(data):
                if len(left_out) == LISTED:
                    break
            number = max(number, len(left_out))
        self.left_out = left_out
        if number > MOST_LEFT_OUT * (self.records + number):
            raise DataError(left_out[0])
        first = "; ".join(problem.partition("; ")[0] for problem in left_out[:LISTED])
        if not left_out:
            return
        records = "1 record" if number == 1 else f"{number:,} records"
        more = " …" if number > LISTED else ""
        if self.bad_rows == "skip":
            self.doubt(f"{records} cannot be read and left out by `bad_rows: skip`: {first}{more}")
        else:
            fix = "correct them, or set `bad_rows: skip` to leave them out. For plain tags"
            self.doubt(f"{records} cannot be read: {first}{more}; {fix}", "--task", "tags")

    def reasons(self) -> list[str]:
        """Return what was seen in the file, and why this is learned."""
        reasons = {"Saw": self.saw, "Chose": self.why}
        return [f"{title}: {text}." for title, text in reasons.items() if text]

    def remarks(self) -> list[str]:
        """Return what else there is to know."""
        return [f"Note: {note}." for note in self.notes]

    def doubtful(self, data: Path) -> list[str]:
        """Return the doubts, each with the command for the other reading."""
        return [f"doubtful: {doubt.text}{doubt.command(data)}" for doubt in self.doubts]


def reader_of(use: str, options: dict[str, Any]) -> Any:
    """Return the reader of a name, with its options."""
    return construct(Plugins().find("reader", use).load(), **options)


def records(summary: DataSummary, data: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; of a large one, those of pieces all over it, and set the summary's `factor`.

    Raises:
        DataError: for a record that cannot be read, with its line.
    """
    reader = reader_of(summary.use, summary.options)
    if summary.left_out is not None:
        reader.left_out = summary.left_out
    pieces = Pieces(data, _ENDS[summary.use]) if summary.use in _ENDS else None
    if summary.use == "json" and size_of(data) > WHOLE:
        options = {name: value for name, value in summary.options.items() if name != "list"}
        lines, summary.factor = _sample_list(data, summary.options.get("list"), data.stat().st_mtime_ns)
        sample = reader_of("jsonl", options).records(lines, str(data)) if lines else reader.read(data)
    elif pieces and not pieces.is_whole:
        sample = reader.records(pieces.lines(), str(data))
    else:
        yield from reader.read(data)
        return
    try:
        yield from sample
    except DataError:
        # A sample has no line numbers of the file: all of it is read up to the same fault, which then has its line.
        for _ in reader.read(data):
            pass
        raise
    if pieces:
        summary.factor = pieces.factor


@functools.lru_cache(maxsize=1)
def _sample_list(data: Path, key: str | None, changed: int) -> tuple[list[str], float]:
    """Return objects from all over the list below a dotted key as lines, and how many times as many there are.

    There are no lines if the file is not JSON, or holds no such list. The last sample is kept while the file's time of
    change is the same: a large file is parsed for seconds, and its records are asked for several times.
    """
    value = load_json(data)
    for part in key.split(".") if key else []:
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return [], 1.0
    items = value[:: 1 + len(value) // OBJECTS]
    return [json.dumps(item) for item in items], len(value) / max(1, len(items))


def load_json(data: Path) -> Any:
    """Return the value that a file holds; None if it is not JSON."""
    try:
        with open_file(data) as file:
            return json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def count(summary: DataSummary, data: Path) -> DataSummary:
    """Count records, words and labels; find out whether words are written without spaces between them."""
    unspaced = longer = worded = characters = 0
    for record in records(summary, data):
        words = record.get("words") or []
        if summary.label_kind == "Labels":
            words = []  # of which only the text is learned from
            if summary.multi and "labels" not in record:
                fix = "write a list in every object, empty for a text without a label"
                raise DataError(f"{record['where']}: no 'labels' in this object; {fix}")
            summary.labels.update(map(str, (record["labels"] or []) if summary.multi else [record["label"]]))
        else:
            tags = record.get("tags") or []
            summary.labels.update(span["label"] for span in record.get("spans") or [])
            summary.labels.update(tags if summary.label_kind == "Tags" else (t[2:] for t in tags if t[:2] == "B-"))
        summary.records += 1
        summary.counted += bool(words) and words == [str(number) for number in range(1, len(words) + 1)]
        summary.words += len(words or record["text"].split())
        characters += sum(map(len, words))
        lengths = [len(word) for word in words if has_unspaced(word)]
        unspaced += len(lengths)
        longer += sum(length > 1 for length in lengths)
        worded += bool(words)
        summary.scripts.add(record["text"])
    if summary.left_out or summary.bad_rows == "skip":
        summary.doubt_left_out(data)
    if not worded:
        summary.unspaced = summary.scripts.are_unspaced
    elif summary.options.get("joiner") == "" and characters < 1.05 * summary.words:
        summary.unspaced = True  # each character is a word of its own, blanks too
    elif unspaced > summary.words / 2:
        summary.segmented = longer > SEGMENTED * unspaced
        summary.unspaced = not summary.segmented
        if summary.use != "conllu":  # has the spaces of the text itself
            summary.options["joiner"] = ""
    summary.scale()
    return summary


def size_of(data: Path) -> int:
    """Return the size of a file in bytes, when unpacked."""
    if data.suffix not in PACKED:
        return data.stat().st_size
    with open_file(data) as file:
        return sum(map(len, iter(lambda: file.read(_CHUNK), b"")))


class Pieces:
    """PIECES parts of a file, evenly spread over it, each from one end of a record to another.

    Attributes:
        is_whole: Whether the file is so small that all of it is read.
        factor: The size of the file over that of the pieces, once they are read.
    """

    def __init__(self, data: Path, end: re.Pattern[bytes] = _SENTENCE_END, whole: int = WHOLE):
        self.data, self.end, self.whole = data, end, whole
        self.size = size_of(data)
        self.is_whole, self.factor = self.size <= whole, 1.0

    def lines(self) -> Iterator[str]:
        """Yield the lines of the pieces; those of a piece that is no UTF-8 with signs in place of the faults."""
        read = 0
        with open_file(self.data) as file:
            for number in range(1 if self.is_whole else PIECES):
                part = file.read() if self.is_whole else file.read(self.size // PIECES)[: self.whole // 4 // PIECES]
                # A piece is cut within a record at both ends, but for the beginning of the file.
                ends = [0, len(part)]
                if not self.is_whole:
                    ends = [match.end() for match in self.end.finditer(part)] or [part.rfind(b"\n") + 1]
                    if number == 0:
                        ends.insert(0, 0)
                part = part[ends[0] : ends[-1]]
                read += len(part)
                yield from io.StringIO(part.decode("utf-8", "replace"))
        self.factor = self.size / read if read else 1.0
