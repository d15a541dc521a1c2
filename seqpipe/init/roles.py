"""Choose the columns of a table, or the keys of objects, that are the text and what is learned."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seqpipe.errors import DataError
from seqpipe.init.columns import LABELS, SCORES, SECOND, SOURCES, TARGETS, TEXTS, Column, describe
from seqpipe.init.summary import DataSummary, records

ColumnTask = Literal["Labels", "Numbers", "Texts"]
_NEEDS: dict[ColumnTask, tuple[str, str]] = {
    "Labels": ("label", "a {} of few values beside one of texts"),
    "Numbers": ("score", "a {} of numbers beside one of texts"),
    "Texts": ("seq2seq", "two {}s of texts"),
}
LIST_FIX = 'write them as JSON, `{"text": …, "labels": ["a", "b"]}` on each line'
SEPARATORS = ("|", ";", ",")
SEVERAL = 1 / 20  # of the cells hold several labels at least
WORDS = 3  # of a label on average, at most
PEEK = 1_000  # records that are read to see that they can be
_PLURAL = {"labels", "tags", "topics", "categories", "genres", "classes", "intents"}
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)


@dataclass
class Roles:
    """The roles of columns.

    Attributes:
        columns: All columns.
        learns: What is learned.
        texts: The column of the text, or those of a pair of texts.
        target: The column of the label, number or text to write.
        why: Why these columns, in a few words.
    """

    columns: list[Column]
    learns: ColumnTask
    texts: list[Column]
    target: Column
    why: str

    def summarise(self, summary: DataSummary, data: Path) -> DataSummary:
        """Complete the summary of a file, of which the reader and what was seen are known.

        Raises:
            DataError: if the reader cannot read the first records.
        """
        texts, target = self.texts, self.target
        separator = target.separator if self.learns == "Labels" else None
        field = target.name
        if field is None:
            field = "target" if self.learns == "Texts" else "labels" if separator else "label"
        summary.fields = ["text", *("text_pair" if text.name is None else text.name for text in texts[1:])]
        if target.name is None:
            names = dict(zip((text.number for text in texts), summary.fields, strict=True)) | {target.number: field}
            summary.options["columns"] = [names.get(column.number, "_") for column in self.columns]
        elif texts[0].name != "text":
            summary.options["text"] = texts[0].name
        if self.learns == "Numbers" and target.number:
            summary.options["numbers"] = [field]
        elif separator:
            summary.options |= {"labels": field} | ({} if separator == "|" else {"separator": separator})
        elif self.learns == "Labels" and field != "label":
            summary.options["label"] = field
        first, *_ = itertools.islice(records(summary, data), PEEK)
        summary.label_kind, summary.why = self.learns, self.why
        summary.records, summary.words = target.cells, sum(text.words for text in texts)
        summary.unspaced = any(text.is_unspaced for text in texts)
        for cell in itertools.chain.from_iterable(text.sample for text in texts):
            summary.scripts.add(cell)
        if self.learns == "Labels":
            summary.multi = separator is not None
            for value, count in target.values.items():
                for label in value.split(separator) if separator else [value]:
                    summary.labels[label.strip()] += count
            several = f"several labels each, separated by {separator!r}"
            summary.notes.append(f"texts with {several if summary.multi else 'one label each'}")
            summary.scale()
            return summary
        renamed = f"source_{field}"  # by the reader, where the column has the name of another field
        summary.target = renamed if renamed in first else field
        if self.learns == "Numbers":
            summary.notes.append(f"texts with a number each: {summary.target!r}, {target.low:g} to {target.high:g}")
        else:
            summary.unspaced = summary.unspaced or target.blanks < target.cells / 2  # such as dates
            summary.notes.append(f"texts with a text to write each: {summary.target!r} is learned from 'text'")
        summary.scale()
        return summary


def find_roles(columns: list[Column], task: ColumnTask | None, where: str, must: bool) -> Roles | None:
    """Return the roles of columns; None if there is nothing to learn and the file may be no table (not `must`).

    Raises:
        DataError: if the columns leave a choice open, or the task lacks something.
    """
    for column in columns:
        column.classify()
        if column.kind in ("few values", "texts"):
            separator = separator_of(column)
            # A bar is rare within texts; commas and semicolons are not, and separate labels in columns of labels alone.
            if separator and (column.kind == "few values" or column.key in LABELS or separator == "|"):
                column.kind, column.separator = "few values", separator
    classes = [column for column in columns if column.kind == "few values"]
    candidates = [column for column in classes if column.is_spaced and column.key not in LABELS | SCORES]
    if candidates and len(classes) > 1 and all(column.kind != "texts" for column in columns):
        # Few texts that repeat look like labels: the column of most characters holds the texts.
        longest = max(candidates, key=lambda column: column.characters)
        if longest.characters == max(column.characters for column in columns):
            longest.kind = "texts"
    roles = _choose(columns, task, where)
    noun = columns[0].noun
    if roles is None and task:
        head, needs = _NEEDS[task]
        raise DataError(f"{where}: --task {head} needs {needs.format(noun)}, and the {noun}s are: {describe(columns)}")
    if roles is None and must:
        fix = f"give texts with a {noun} of labels (few values), of numbers, or of texts to write"
        kinds = {column.kind for column in columns}
        if "texts" in kinds and any(column.is_key and column.is_numeric for column in columns):
            fix += f"; numbers that differ in every row are taken as identifiers unless their {noun} is named score"
        raise DataError(f"{where}: nothing to learn in it: the {noun}s are {describe(columns)}; {fix}")
    if roles and roles.learns == "Labels" and roles.target.share(lambda cell: _LIST.fullmatch(cell.strip())) > 0.5:
        raise DataError(f"{where}: the cells of {roles.target.title} are lists; {LIST_FIX}")
    return roles


def separator_of(column: Column) -> str | None:
    """Return the separator of the labels in a cell; None if each cell is one label."""
    cells = Counter(column.sample)
    for separator in SEPARATORS:
        lists = [[part.strip() for part in cell.split(separator)] for cell in cells]
        several = [parts for parts in lists if len(parts) > 1]
        share = sum(cells[cell] for cell, parts in zip(cells, lists, strict=True) if len(parts) > 1)
        counts = Counter(part for parts in lists for part in {*parts})
        words = sum(part.count(" ") + 1 for part in counts)
        if share < max(1, SEVERAL * cells.total()) or "" in counts or words > WORDS * len(counts):
            continue
        again = sum(all(counts[part] > 1 for part in parts) for parts in several)
        if column.key in _PLURAL or again > len(several) / 2:
            return separator
    return None


def _choose(columns: list[Column], task: ColumnTask | None, where: str) -> Roles | None:
    """Choose by the kinds of the columns; None if there are no texts, or nothing beside them."""
    texts = _sentences([column for column in columns if column.kind == "texts"])
    kinds_of_tasks: dict[ColumnTask | None, set[str]] = {
        None: {"few values", "numbers"},
        "Labels": {"few values"},
        "Numbers": {"numbers"},
        "Texts": set(),
    }
    targets = [column for column in columns if column.kind in kinds_of_tasks[task]]
    if task == "Numbers":
        targets += [column for column in columns if column.kind == "few values" and column.is_numeric]
    if task == "Labels":
        targets += [column for column in columns if column.kind == "numbers" and not column.many]
    if not texts or (task and task != "Texts" and not targets):
        return None
    if task == "Texts" or not targets:
        return _choose_pair(columns, [c for c in columns if c.kind in ("texts", "dates") or c in texts], where)
    usual = LABELS | SCORES
    targets.sort(key=lambda column: (column.key not in usual, column.kind == "numbers", len(column.values)))
    target, *rest = targets
    if len(texts) > 1 and not task and target.key not in usual:
        if target.kind == "numbers":
            ask = f"{target.title} may be learned, or the second text; say which with --task score or seq2seq"
        elif sum(value.count(" ") > 1 or not value.strip() for value in target.values) > len(target.values) / 2:
            return _choose_pair(columns, texts, where)  # with remarks such as licences beside it
        else:
            ask = (
                f"{target.title} may label the texts, or be a remark on a text and the one to write for it; "
                "say which with --task label or --task seq2seq"
            )
        raise DataError(f"{where}: {describe(columns)}; {ask}")
    if len(texts) > 1:
        first = next((text for text in texts if text.key == "text"), None)
        if first and all(text.key not in SECOND for text in texts):
            texts = [first]
        elif len(texts) > 2:
            raise DataError(
                f"{where}: {describe(columns)}: {len(texts)} {target.noun}s of texts; "
                "remove those that nothing is to be learned from, or name the one to learn from 'text'"
            )
        elif first and texts[0] is not first:
            texts = [first, texts[0]]
    learns: ColumnTask = task or ("Numbers" if target.kind == "numbers" else "Labels")
    _refuse_empty(target, where)
    size = f"{len(target.values):,} values in {target.cells:,} {target.row}s"
    if learns == "Numbers":
        size = f"numbers from {target.low:g} to {target.high:g}"
    others = f"; it could also be {' or '.join(column.title for column in rest)}" if rest else ""
    return Roles(columns, learns, texts, target, f"{target.title} has {size}{others}")


def _sentences(texts: list[Column]) -> list[Column]:
    """Return the columns of texts with words, if there are any: the others are names of something."""
    named = SOURCES | TARGETS | SECOND | TEXTS
    sentences = [text for text in texts if text.words > 1.5 * text.cells or not text.is_ascii or text.key in named]
    return sentences or texts


def _choose_pair(columns: list[Column], texts: list[Column], where: str) -> Roles | None:
    """Choose a text and the text to write for it; None if there are no two texts."""
    if len(texts) > 2:
        texts = _sentences(texts)
    known = [text for text in texts if text.key in SOURCES | TARGETS]
    if len(texts) > 2 and len(known) == 2:
        texts = known
    if len(texts) > 2:
        noun = texts[0].noun
        fix = "keep two, the text and the one to write"
        if texts[0].number:
            fix += ", for instance with `cut -f1,2`"
        raise DataError(f"{where}: {describe(columns)}: {len(texts)} {noun}s of texts; {fix}")
    if len(texts) < 2:
        return None
    source, target = texts
    if source.key in TARGETS or (target.key in SOURCES and source.key not in SOURCES):
        source, target = target, source
    _refuse_empty(target, where)
    why = f"{target.title} is written from {source.title}: both are different texts"
    return Roles(columns, "Texts", [source], target, why)


def _refuse_empty(target: Column, where: str) -> None:
    """DataError if what is to be learned is empty somewhere."""
    if target.empty:
        count = f"1 {target.row}" if target.empty == 1 else f"{target.empty:,} {target.row}s"
        raise DataError(
            f"{where}: {target.title} is to be learned and empty in {count}; fill it in, or remove the {target.row}"
        )
