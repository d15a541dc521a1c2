"""Data that is no table, no JSON and no CoNLL: folders of texts, fastText's files, points and plain text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from seqpipe.errors import DataError
from seqpipe.init.columns import Column
from seqpipe.init.scripts import has_unspaced
from seqpipe.init.summary import DataSummary, count, records

CHARACTERS = 10_000  # of a plain text; a language model learns nothing from fewer
CJK_CHARACTERS = 4_000
_PREFIX = "__label__"
_POINTS = re.compile(r"[-+.\deE \t]+ output( \d+)*\s*")
_RECIPE = {"task", "points", "records", "seed"}
_UNLABELLED = {"unsup", "unlabeled", "unlabelled", "unsupervised"}  # names of folders of texts without a label


def summarise_folder(data: Path) -> DataSummary:
    """Summarise a folder of texts by label, or the one in it that holds the training texts."""
    summary = DataSummary("folders", label_kind="Labels")
    patterns = Counter(file.suffix for file in data.glob("*/*") if file.is_file() and not file.name.startswith("."))
    if patterns and ".txt" not in patterns:
        ((suffix, _),) = patterns.most_common(1)
        summary.options["pattern"] = f"*{suffix}"
    folders = sorted(file.name for file in data.iterdir() if file.is_dir() and not file.name.startswith("."))
    without = [name for name in folders if name in _UNLABELLED]
    if without:
        summary.options["labels"] = [name for name in folders if name not in without]
    count(summary, data)
    left_out = f"; {', '.join(without)} has no labels and is left out" if without else ""
    summary.notes.append(f"a folder for each label, with a file for each text{left_out}")
    return summary


def summarise_fasttext(data: Path, lines: Sequence[str], task: str | None = None) -> DataSummary | None:
    """Summarise a file of fastText; None if it is none. `task` is what labels are learned as, if it is asked for."""
    filled = [line for line in lines if line.strip()]
    if sum(line.startswith(_PREFIX) for line in filled) <= 0.9 * len(filled):
        return None
    summary = DataSummary("fasttext", {"multi": True}, label_kind="Labels")
    labels, counts = Column(), Counter[int]()
    for record in records(summary, data):
        if record["labels"]:
            labels.add(record["labels"], 1)
        counts[min(len(record["labels"]), 2)] += 1
    if counts[1] == counts.total() and labels.is_measured and task in (None, "Numbers"):
        summary.options, summary.label_kind, summary.target = {"numbers": True}, "Numbers", "label"
        size = f"{len(labels.values):,} different numbers from {labels.low:g} to {labels.high:g}"
        summary.saw, summary.why = "fastText's form", f"the labels are {size}, which a score learns"
        summary.doubt("To take the numbers as names of classes", "--task", "label")
        return count(summary, data)
    summary.multi = counts[1] < counts.total()
    if not summary.multi:
        summary.options = {}
    several = f"{counts[2]:,} texts have several labels, {counts[0]:,} none" if summary.multi else "one label each"
    summary.notes.append(f"fastText's form, texts with labels that begin with {_PREFIX}: {several}")
    return count(summary, data)


def summarise_points(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise points with their order, or a recipe from which the reader `points` makes them; None if it is neither.

    A line of one number a point has an odd number of them, or positions behind.
    """
    filled = [line for line in lines if line.strip()]
    summary = DataSummary("points", label_kind="Pointers")
    if all(map(_POINTS.fullmatch, filled)):
        parts = [line.partition("output") for line in filled]
        rows = [(len(numbers.split()), [int(word) for word in order.split()]) for numbers, _, order in parts]
        is_narrow = any(numbers % 2 or max(order, default=0) > numbers // 2 for numbers, order in rows)
        if is_narrow:
            summary.options["width"] = 1
        closed = every = True
        for record in records(summary, data):
            summary.records += 1
            pointers = record["pointers"]
            closed = closed and len(pointers) > 1 and pointers[0] == pointers[-1]
            every = every and {*pointers} == {*range(len(record["points"]))}
        kind = "numbers" if is_narrow else "points of two numbers"
        which = f"{'all' if every else 'some'} of their positions in an order"
        summary.notes.append(f"{kind}, and {which}{' that ends where it began' if closed else ''}")
        task = ("tour" if every else "hull") if closed and not is_narrow else None
    else:
        try:
            recipe = json.loads("\n".join(filled)) if filled[0].lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(recipe, dict) or recipe.keys() != _RECIPE:
            return None
        if recipe["task"] == "sort":
            summary.options["width"] = 1
        next(records(summary, data))  # DataError if it is wrong
        every, closed = recipe["task"] != "hull", recipe["task"] != "sort"
        summary.records = recipe["records"]
        summary.notes.append(f"a recipe, from which each epoch's points are made: {recipe['task']}")
        task = recipe["task"] if closed else None
    summary.pointer = {"task": task, "every": every or None, "close": closed or None}
    return summary


def summarise_text(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise plain text for a language model; None if the file is no prose.

    Raises:
        DataError: if the text is too short, or its lines may begin with labels.
    """
    filled = [line.strip() for line in lines if line.strip()]
    # Running text has several words or Chinese characters a line, no columns and no markup.
    characters, words = sum(map(len, filled)), sum(len(line.split()) for line in filled)
    unspaced = sum(map(has_unspaced, filled)) > len(filled) / 2
    markup = sum(line[0] in "<{[" or "\t" in line for line in filled)
    is_long = characters >= 5 * len(filled) if unspaced else words >= 4 * len(filled)
    if {".txt", ".text"}.isdisjoint(data.suffixes) or not is_long or markup > len(filled) / 4:
        return None
    firsts = Counter(line.split()[0] for line in filled)
    is_sentence = len(firsts) > 3 and any(word.istitle() for word in firsts)
    if len(filled) >= 20 and 1 < len(firsts) <= min(50, len(filled) / 10) and not is_sentence:
        ((word, _),) = firsts.most_common(1)
        fix = "if it labels the line, write a tab behind it, as in `label<TAB>text`"
        raise DataError(f"{data}: each line begins with one of {len(firsts)} words, such as {word!r}; {fix}")
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
        fix = f"a language model needs at least {least:,}; to learn labels, give a table with a label for each text"
        raise DataError(f"{data}: is plain text of {summary.characters:,} characters, without labels; {fix}")
    summary.notes.append(f"plain text of {summary.characters:,} characters, without labels: for a language model")
    return summary
