"""Properties of a data file, counted over its records; of a large file, over pieces of it."""

from __future__ import annotations

import functools
import io
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.files import PACKED, open_file
from seqpipe.init.scripts import Scripts, has_unspaced

WHOLE_BYTES = 4_000_000  # bytes; of a larger file, records are read from pieces, together a quarter of this size
PIECES = 40
OBJECTS = 10_000  # sampled from a large JSON list, at most
MAX_LISTED_ERRORS = 3  # errors, at most
MOST_LEFT_OUT = 0.05  # of the records
_SENTENCE_END = re.compile(rb"\n[ \t\r]*\n")
_LINE_END = re.compile(rb"\n")
# The end of a record, for the readers that can read pieces.
_ENDS = dict.fromkeys(("conll", "conllu"), _SENTENCE_END) | dict.fromkeys(("fasttext", "jsonl", "segmented"), _LINE_END)

LabelKind = Literal["Entities", "Tags", "Labels", "Numbers", "Texts", "Answers", "Pointers", "Continuations"]


class Task(NamedTuple):
    """A task that `--task` asks for: its head, what it learns (`DataSummary.label_kind`), and the data it needs."""

    head: str
    kinds: tuple[LabelKind, ...]
    needs: str


TASKS = {
    task.head: task
    for task in (
        Task("crf", ("Entities", "Tags"), "words with a tag each, or texts with spans"),
        Task("tags", ("Tags",), "words with a tag each"),
        Task("label", ("Labels",), "texts with a label (few values) each"),
        Task("score", ("Numbers",), "texts with a number each"),
        Task("seq2seq", ("Texts",), "pairs of texts"),
        Task("answer-span", ("Answers",), "questions on passages, with answers, as in SQuAD"),
        Task("pointer", ("Pointers",), "lines of points and positions"),
        Task("lm", ("Continuations",), "plain text in a .txt file"),
    )
}


def head_for(kind: LabelKind) -> str:
    """Return the first head that learns this, whose name is that of its template too."""
    return next(task.head for task in TASKS.values() if kind in task.kinds)


@dataclass(frozen=True)
class Doubt:
    """A doubt about the data, with the options of `seqpipe init` for another reading, if there is one."""

    text: str
    options: tuple[str, ...]

    def command(self, data: Path) -> str:
        """Return the command for the other reading."""
        return shlex.join(["seqpipe", "init", str(data), *self.options])


@dataclass
class DataSummary:
    """Properties of a data file."""

    use: str  # name of the reader
    options: dict[str, Any] = field(default_factory=dict)  # of the reader
    notes: list[str] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    left_out: list[str] | None = None  # errors of the records that cannot be read; None: the first one is raised
    bad_rows: str = ""  # "skip" if such records are left out, "error" if they should be corrected
    records: int = 0
    words: int = 0
    unspaced: bool = False  # the texts, or the texts to write, have no spaces between words, as in Chinese
    segmented: bool = False  # they have none, but the data splits them into words
    scripts: Scripts = field(default_factory=Scripts)
    labels: Counter[str] = field(default_factory=Counter)
    label_kind: LabelKind = "Entities"  # what is learned; "Labels" are those of whole texts
    target: str = "target"  # field of the number, or of the text to write
    written: list[str] = field(default_factory=list)  # texts to write, from all over the file
    writer: tuple[str, str] | None = None  # tokenizer of the texts to write, as YAML, and the reason for it
    is_word: bool = False  # each text is one word, as in spelling and inflection
    unanswered: int = 0  # questions without an answer
    counted: int = 0  # records whose words are 1 2 3 …
    fields: list[str] = field(default_factory=lambda: ["text"])  # of the text, or of a pair of texts
    saw: str = ""  # format of the file
    why: str = ""  # reason for what is learned
    factor: float = 1.0  # size of the file, divided by that of the pieces in which records were counted
    multi: bool = False  # a text has any number of labels
    pointer: dict[str, Any] = field(default_factory=dict)  # options of a pointer network's head
    characters: int = 0  # of a plain text
    joint: bool = False  # spans and a label of each text are learned together
    media: Literal["", "picture", "sound"] = ""  # what the only field of the inputs names or has
    split: dict[str, str] = field(default_factory=dict)  # `data.split`: a field, and its values for dev and test data
    group: str = ""  # `data.group`: a field whose value several records share
    decision: Any = None  # of `seqpipe.init.decide`, from which the summary was made

    def scale(self) -> None:
        """Multiply the counts by `factor`: those of pieces become estimates for the whole file."""
        self.records, self.words = round(self.records * self.factor), round(self.words * self.factor)
        self.counted, self.unanswered = round(self.counted * self.factor), round(self.unanswered * self.factor)
        self.characters = round(self.characters * self.factor)
        self.labels = Counter({label: round(number * self.factor) for label, number in self.labels.items()})

    def doubt(self, text: str, *options: str) -> None:
        """Add a doubt, with the options for the other reading."""
        self.doubts.append(Doubt(text, options))

    def doubt_left_out(self, data: Path) -> None:
        """Report the records that cannot be read, with the first errors; DataError if they are many."""
        left_out = self.left_out or []
        number = round(len(left_out) * self.factor)
        if self.factor != 1 and (left_out or self.bad_rows == "skip"):  # pieces have no line numbers of the file
            reader = reader_of(self.use, self.options)
            reader.left_out = self.left_out = left_out = []
            for _ in reader.read(data):
                if len(left_out) == MAX_LISTED_ERRORS:
                    break
            number = max(number, len(left_out))
        if not left_out:
            return
        self.bad_rows = self.bad_rows or "skip"
        if number > MOST_LEFT_OUT * (self.records + number):
            raise DataError(left_out[0])
        first = "; ".join(problem.partition("; ")[0] for problem in left_out[:MAX_LISTED_ERRORS])
        records = "1 record" if number == 1 else f"{number:,} records"
        more = " …" if number > MAX_LISTED_ERRORS else ""
        if self.bad_rows == "skip":
            self.doubt(f"{records} cannot be read, and `bad_rows: skip` leaves such records out: {first}{more}")
        else:
            fix = "correct them, or set `bad_rows: skip` to leave them out. For plain tags"
            self.doubt(f"{records} cannot be read: {first}{more}; {fix}", "--task", "tags")

    def reasons(self) -> list[str]:
        """Return what was seen in the file, and why this is learned."""
        reasons = {"Saw": self.saw, "Chose": self.why}
        return [f"{title}: {text}." for title, text in reasons.items() if text]

    def remarks(self, data: Path) -> list[str]:
        """Return the notes, and the doubts with the command for the other reading of each."""
        remarks = [f"Note: {note}." for note in self.notes]
        for doubt in self.doubts:
            command = f": {doubt.command(data)}" if doubt.options else ""
            remarks.append(f"doubtful: {doubt.text}{command}")
        return remarks


def reader_of(use: str, options: dict[str, Any]) -> Any:
    """Return a reader with these options."""
    return construct(Plugins().find("reader", use).load(), **options)


def spread_records(summary: DataSummary, data: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; of a large one, those of pieces all over it, and set the summary's `factor`."""
    reader = reader_of(summary.use, summary.options)
    reader.left_out = summary.left_out
    pieces = FilePieces(data, _ENDS[summary.use]) if summary.use in _ENDS else None
    if summary.use == "json" and size_of(data) > WHOLE_BYTES:
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
        # A sample has no line numbers of the file; reading the file up to the same fault gives the line.
        for _ in reader.read(data):
            pass
        raise
    if pieces:
        summary.factor = pieces.factor


def tag_sentences(summary: DataSummary, data: Path, most: int | None = None) -> list[Sequence[str]]:
    """Return the tags of the sentences of a file, or of as many sentences, as they are written."""
    plain = DataSummary(summary.use, {**summary.options, "scheme": "none"}, left_out=[])
    records = itertools.islice(spread_records(plain, data), most)
    return [record["tags"] for record in records if "tags" in record]


@functools.lru_cache(maxsize=1)
def _sample_list(data: Path, key: str | None, changed: int) -> tuple[list[str], float]:
    """Return objects from all over the list at a dotted key as lines, and the size of the list over that of the sample.

    There are no lines if the file is not JSON or has no such list. The last sample is cached until the file changes
    (its time is `changed`): parsing a large file takes seconds, and its records are read several times.
    """
    value = load_json(data)
    for part in key.split(".") if key else []:
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return [], 1.0
    items = value[:: 1 + len(value) // OBJECTS]
    return [json.dumps(item) for item in items], len(value) / max(1, len(items))


def load_json(data: Path) -> Any:
    """Return the value in a file; None if it is not JSON."""
    try:
        with open_file(data) as file:
            return json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def count(summary: DataSummary, data: Path) -> DataSummary:
    """Count records, words and labels, and detect texts without spaces between words."""
    unspaced = longer = worded = characters = 0
    for record in spread_records(summary, data):
        # A label is learned from the text alone.
        words = (summary.label_kind != "Labels" and record.get("words")) or []
        if summary.label_kind == "Labels":
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
        longer += len(lengths) - lengths.count(1)
        worded += bool(words)
        summary.scripts.add(record["text"])
    summary.doubt_left_out(data)
    if not worded:
        summary.unspaced = summary.scripts.are_unspaced
    elif summary.options.get("joiner") == "" and characters < 1.05 * summary.words:
        summary.unspaced = True  # each character, blanks too, is a word
    elif unspaced > summary.words / 2:
        summary.segmented = longer > unspaced / 20  # of fewer longer words, each character is a word
        summary.unspaced = not summary.segmented
        if summary.use != "conllu":  # which has the spaces of the text
            summary.options["joiner"] = ""
    summary.scale()
    return summary


def size_of(data: Path) -> int:
    """Return the size of a file in bytes, when unpacked."""
    if data.suffix not in PACKED:
        return data.stat().st_size
    with open_file(data) as file:
        return sum(map(len, iter(lambda: file.read(1_000_000), b"")))


class FilePieces:
    """PIECES parts of a file, evenly spread over it, each from the end of one record to that of another."""

    def __init__(self, data: Path, end: re.Pattern[bytes] = _SENTENCE_END, whole: int = WHOLE_BYTES):
        self.data, self.end, self.whole = data, end, whole
        self.size = size_of(data)
        self.is_whole = self.size <= whole  # the file is small, and read whole
        self.factor = 1.0  # size of the file over that of the pieces, after they are read

    def lines(self) -> Iterator[str]:
        """Yield the lines of the pieces; bytes that are not UTF-8 are replaced."""
        read = 0
        with open_file(self.data) as file:
            if self.is_whole:
                yield from io.StringIO(file.read().decode("utf-8", "replace"))
                return
            for number in range(PIECES):
                part = file.read(self.size // PIECES)[: self.whole // 4 // PIECES]
                # A piece is cut within a record at both ends, except at the beginning of the file.
                ends = [match.end() for match in self.end.finditer(part)] or [part.rfind(b"\n") + 1]
                part = part[ends[0] if number else 0 : ends[-1]]
                read += len(part)
                yield from io.StringIO(part.decode("utf-8", "replace"))
        self.factor = self.size / read if read else 1.0
