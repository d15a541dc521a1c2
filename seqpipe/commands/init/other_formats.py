"""Recognise data that is no table, no JSON and no CoNLL: folders of texts, fastText's files, points, plain text."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from seqpipe.commands.init.files import open_bytes
from seqpipe.commands.init.scripts import are_unspaced
from seqpipe.commands.init.summary import DataSummary, records, scale
from seqpipe.errors import DataError

CHARACTERS = 10_000  # of a plain text; a language model learns nothing from fewer
CJK_CHARACTERS = 4_000
_PREFIX = "__label__"
_POINTS = re.compile(r"[-+.\deE \t]+ output( \d+)*\s*")
_RECIPE = {"task", "points", "records", "seed"}
_TRAIN = ("train", "training")
_UNLABELLED = {"unsup", "unlabeled", "unlabelled", "unsupervised"}  # names of folders of texts without a label
_MARKED = re.compile(r"[^/_|\s]+([/_|])[^/_|\s]+")  # a word and its tag, as in dog/NN
_KINDS = {b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture", b"%PDF": "a PDF", b"PK\x03\x04": "a ZIP archive"}


def summarise_folder(data: Path) -> DataSummary:
    """Summarise a folder of texts by label, or the one in it that holds the training texts."""
    summary = DataSummary("folders")
    patterns = Counter(file.suffix for file in data.glob("*/*") if file.is_file() and not file.name.startswith("."))
    if patterns and ".txt" not in patterns:
        ((suffix, _),) = patterns.most_common(1)
        summary.options["pattern"] = f"*{suffix}"
    folders = sorted(file.name for file in data.iterdir() if file.is_dir() and not file.name.startswith("."))
    without = [name for name in folders if name in _UNLABELLED]
    if without:
        summary.options["labels"] = [name for name in folders if name not in without]
    count_labels(summary, data)
    left_out = f"; {', '.join(without)} has no labels and is left out" if without else ""
    summary.notes.append(f"a folder for each label, with a file for each text{left_out}")
    return summary


def training_folder(data: Path) -> Path:
    """Return the folder with the training texts within a folder that also holds those of dev and test."""
    return next((data / name for name in _TRAIN if (data / name).is_dir()), data)


def is_parquet(data: Path) -> bool:
    """Return whether a file is a Parquet table."""
    return _head(data)[:4] == b"PAR1"


def _head(data: Path) -> bytes:
    """Return the first bytes of a file; none if it cannot be read, which is said where all of it is read."""
    try:
        with open_bytes(data) as file:
            return file.read(8_000)
    except (OSError, EOFError, zlib.error):
        return b""


def refuse_binary(data: Path) -> None:
    """DataError if the file is no text."""
    head = _head(data)
    if b"\0" not in head or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return
    kind = next((f" ({name})" for start, name in _KINDS.items() if head.startswith(start)), "")
    cure = "give a text file (see docs/tasks/your-data.md for the formats), such as a table with a text in each row"
    raise DataError(f"{data}: is binary data, not text{kind}; {cure}")


def summarise_lines(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise a file of fastText or of points; None if it is neither."""
    filled = [line for line in lines if line.strip()]
    if sum(line.startswith(_PREFIX) for line in filled) > 0.9 * len(filled):
        return _fasttext(data)
    _refuse_marked(data, filled)
    if all(map(_POINTS.fullmatch, filled)):
        return _points(data, filled)
    return _recipe(data) if _is_recipe(filled) else None


def _refuse_marked(data: Path, lines: Sequence[str]) -> None:
    """DataError if most words have tags glued to them, as in `dog/NN`."""
    words = [word for line in lines for word in line.split(" ")]
    signs = Counter(match[1] for word in words if (match := _MARKED.fullmatch(word)))
    if len(words) > 2 * len(lines) and signs.total() > 0.9 * len(words):
        ((sign, _),) = signs.most_common(1)
        cure = "write a word, a tab and its tag on each line, and an empty line after each sentence, for instance with "
        command = rf"sed -E 's:[{sign}]([^{sign} ]+)( |$):\t\1\n:g'"
        raise DataError(f"{data}: words with their tags behind {sign!r}, a form that is not read; {cure}`{command}`")


def _fasttext(data: Path) -> DataSummary:
    summary = DataSummary("fasttext", {"multi": True})
    counts = Counter(min(len(record["labels"]), 2) for record in records(summary, data))
    summary.multi = counts[1] < counts.total()
    if not summary.multi:
        summary.options = {}
    count_labels(summary, data)
    scale(summary, data)
    several = f"{counts[2]:,} texts have several labels, {counts[0]:,} none" if summary.multi else "one label each"
    summary.notes.append(f"fastText's form, texts with labels that begin with {_PREFIX}: {several}")
    return summary


def count_labels(summary: DataSummary, data: Path) -> None:
    """Count records, words and labels of texts."""
    summary.label_kind = "Labels"
    for record in records(summary, data):
        summary.records += 1
        summary.words += len(record["text"].split())
        summary.scripts.add(record["text"])
        summary.labels.update(record["labels"] if summary.multi else [record["label"]])
    summary.unspaced = summary.scripts.are_unspaced


def _points(data: Path, lines: Sequence[str]) -> DataSummary:
    """Summarise points with pointers; a line of one number a point has an odd number of them, or positions behind."""
    rows = [(len(before.split()), [int(word) for word in after.split()]) for before, _, after in _parted(lines)]
    is_narrow = any(numbers % 2 or max(positions, default=0) > numbers // 2 for numbers, positions in rows)
    summary = DataSummary("points", {"width": 1} if is_narrow else {}, label_kind="Pointers")
    closed = every = True
    for record in records(summary, data):
        summary.records += 1
        pointers = record["pointers"]
        closed = closed and len(pointers) > 1 and pointers[0] == pointers[-1]
        every = every and {*pointers} == {*range(len(record["points"]))}
    options = {"task": "tour" if every else "hull"} if closed and not is_narrow else {}
    summary.pointer = options | ({"every": True} if every else {}) | ({"close": True} if closed else {})
    _note_points(summary, every, closed)
    return summary


def _note_points(summary: DataSummary, every: bool, closed: bool) -> None:
    rows = "numbers" if summary.options.get("width") == 1 else "points of two numbers"
    which = "all of their positions" if every else "some of their positions"
    summary.notes.append(f"{rows}, and {which} in an order{' that ends where it began' * closed}")


def _parted(lines: Sequence[str]) -> list[tuple[str, str, str]]:
    return [line.partition("output") for line in lines]


def _is_recipe(lines: Sequence[str]) -> bool:
    try:
        recipe = json.loads("\n".join(lines)) if lines[0].lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(recipe, dict) and recipe.keys() == _RECIPE


def _recipe(data: Path) -> DataSummary:
    """Summarise a recipe, from which the reader `points` makes records."""
    recipe = json.loads(data.read_bytes())
    summary = DataSummary("points", {"width": 1} if recipe["task"] == "sort" else {}, label_kind="Pointers")
    next(records(summary, data))  # DataError if it is wrong
    every, closed = recipe["task"] != "hull", recipe["task"] != "sort"
    summary.records = recipe["records"]
    options = {"task": recipe["task"]} if closed else {}
    summary.pointer = options | ({"every": True} if every else {}) | ({"close": True} if closed else {})
    summary.notes.append(f"a recipe, from which each epoch's points are made: {recipe['task']}")
    return summary


def summarise_text(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise plain text for a language model; None if the file is no prose.

    Raises:
        DataError: if the text is too short, or its lines may begin with labels.
    """
    filled = [line.strip() for line in lines if line.strip()]
    if {".txt", ".text"}.isdisjoint(data.suffixes) or not _is_prose(filled):
        return None
    firsts = Counter(line.split()[0] for line in filled)
    is_sentence = len(firsts) > 3 and any(word.istitle() for word in firsts)
    if len(filled) >= 20 and 1 < len(firsts) <= min(50, len(filled) / 10) and not is_sentence:
        ((word, _),) = firsts.most_common(1)
        cure = "if it labels the line, write a tab behind it, as in `label<TAB>text`"
        raise DataError(f"{data}: each line begins with one of {len(firsts)} words, such as {word!r}; {cure}")
    summary = DataSummary("text", label_kind="Continuations")
    blank = sum(not line.strip() for line in lines)
    if blank > 2:
        summary.options["unit"] = "paragraph"
    for record in islice(records(summary, data), 1_000_000):
        summary.records += 1
        summary.words += record["text"].count(" ") + 1
        summary.characters += len(record["text"])
        summary.scripts.add(record["text"])
    summary.unspaced = summary.scripts.are_unspaced
    least = CJK_CHARACTERS if summary.unspaced else CHARACTERS
    if summary.characters < least:
        cure = f"a language model needs at least {least:,}; to learn labels, give a table with a label for each text"
        raise DataError(f"{data}: is plain text of {summary.characters:,} characters, without labels; {cure}")
    summary.notes.append(f"plain text of {summary.characters:,} characters, without labels: for a language model")
    return summary


def _is_prose(lines: Sequence[str]) -> bool:
    """Return whether lines are running text: of several words or Chinese characters, in no columns and no markup."""
    words = [word for line in lines for word in line.split()]
    unspaced = are_unspaced(lines)
    is_long = sum(map(len, lines)) >= 5 * len(lines) if unspaced else len(words) >= 4 * len(lines)
    markup = sum(line[0] in "<{[" or "\t" in line for line in lines) > len(lines) / 4
    return is_long and not markup
