"""Recognise the format of a data file, and summarise all of it."""

from __future__ import annotations

import itertools
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqpipe.errors import DataError
from seqpipe.init.conll import has_columns, summarise_conll, summarise_conllu
from seqpipe.init.objects import find_json, summarise_answers, summarise_objects
from seqpipe.init.refuse import refuse_glued_tags, refuse_other_formats, refuse_other_lines, refuse_parallel
from seqpipe.init.roles import ColumnTask
from seqpipe.init.summary import DataSummary, LabelKind, open_bytes
from seqpipe.init.tables import summarise_table
from seqpipe.init.texts import summarise_fasttext, summarise_folder, summarise_points, summarise_text

MAJORITY = 0.9  # of the texts have one label: the score of a model that answers nothing else
LINES, BYTES = 1_000, 10_000_000  # read to find out what kind of file it is, at most
_SQUAD = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[-+.\w]+)\s*,\s*)*"data"\s*:\s*\[\s*\{')


@dataclass(frozen=True)
class Task:
    """A task that `--task` asks for.

    Attributes:
        head: Its head.
        kinds: What is learned (`DataSummary.label_kind`).
        needs: Data that can be learned from.
        column: The task of a column of a table, if a table can be learned from.
        has_words: Whether it takes files of a word a line, even where they look like a table or a text.
        is_plain: Whether it takes plain text, even where its lines look like columns.
    """

    head: str
    kinds: tuple[LabelKind, ...]
    needs: str
    column: ColumnTask | None = None
    has_words: bool = False
    is_plain: bool = False


TASKS = {
    task.head: task
    for task in (
        Task("crf", ("Entities", "Tags"), "words with a tag each, or texts with spans", has_words=True),
        Task("tags", ("Tags",), "words with a tag each", has_words=True),
        Task("label", ("Labels",), "texts with a label (few values) each", "Labels"),
        Task("score", ("Numbers",), "texts with a number each", "Numbers"),
        Task("seq2seq", ("Texts",), "pairs of texts", "Texts"),
        Task("answer-span", ("Answers",), "questions on passages, with answers, as in SQuAD"),
        Task("pointer", ("Pointers",), "lines of points and positions"),
        Task("lm", ("Continuations",), "plain text in a .txt file", is_plain=True),
    )
}


def summarise(
    data: Path, task: Task | None = None, target: str | None = None, texts: Sequence[str] = ()
) -> DataSummary:
    """Look at a data file and summarise it; `target` and `texts` are the columns or keys that are asked for.

    Raises:
        DataError: if it is of no known format, or lacks what the task needs.
    """
    summary = _summarise(data, task, target, texts)
    if task and summary.label_kind not in task.kinds:
        fits = next(task_type.head for task_type in TASKS.values() if summary.label_kind in task_type.kinds)
        seen = summary.saw or f"data of the reader {summary.use}"
        raise DataError(f"{data}: --task {task.head} needs {task.needs}; the file is {seen}, for --task {fits}")
    if summary.label_kind == "Labels":
        spelled: dict[str, list[str]] = {}
        for label in summary.labels:
            spelled.setdefault(unicodedata.normalize("NFKC", label).strip().casefold(), []).append(label)
        for alike in (labels for labels in spelled.values() if len(labels) > 1):
            listed = ", ".join(f"{label!a} {summary.labels[label]:,}" for label in alike)
            summary.doubt(f"labels that differ by case, blanks or Unicode form alone are learned as others: {listed}")
    (label, most), *others = summary.labels.most_common() or [("", 0)]
    if summary.label_kind == "Labels" and not summary.multi and others and most >= MAJORITY * summary.labels.total():
        share = f"{most / summary.labels.total():.1%} of the texts have the label {label!r}"
        summary.doubt(f"{share}: so much accuracy has an answer that is always the same; compare macro F1")
    return summary


def _summarise(data: Path, task: Task | None, target: str | None, texts: Sequence[str]) -> DataSummary:
    """Try the formats in turn, those that are recognised for certain first."""
    column = task.column if task else None
    if data.is_dir():
        return summarise_folder(data)
    if data.exists() and not data.is_file():
        raise DataError(f"{data}: is a pipe or a device, and is read more than once; make a file of it first")
    try:
        with open_bytes(data) as file:
            start = file.read(BYTES)
    except (OSError, EOFError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(f"{data}: cannot be read: {reason}") from error
    if start[:4] == b"PAR1":
        return summarise_objects(data, "parquet", {}, column, target, texts)
    refuse_other_formats(data, start)
    lines = start.decode("utf-8-sig", "replace").splitlines()[:LINES]
    lines = [*itertools.dropwhile(lambda line: not line.strip(), lines)]
    if not lines:
        raise DataError(f"{data}: is empty; give the file with your training examples")
    lines[0] = lines[0].lstrip()
    if summary := summarise_fasttext(data, lines, column):
        return summary
    refuse_glued_tags(data, lines)
    if summary := summarise_points(data, lines):
        return summary
    if _SQUAD.match("\n".join(lines)) and any('"paragraphs"' in line for line in lines):
        return summarise_answers(DataSummary("squad"), data)
    if json_form := find_json(data, lines):
        return summarise_objects(data, *json_form, column, target, texts)
    row = next((line.split("\t") for line in lines if line.strip() and not line.startswith("#")), [])
    if len(row) == 10 and row[0].partition("-")[0].isdigit():
        return summarise_conllu(data)
    if task and task.has_words:
        return summarise_conll(data, task.head, target)
    # Plain lines with the same number of lines beside them are no table; commas within their texts may look like one.
    if not (has_columns(lines) or "\t" in lines[0] or (task and task.is_plain)):
        refuse_parallel(data)
    if task and not (task.column or task.is_plain):
        raise DataError(f"{data}: --task {task.head} needs {task.needs}, and the file does not look so")
    is_plain = task.is_plain if task else not has_columns(lines)
    if not (task and task.is_plain) and (summary := summarise_table(data, lines, column, target, texts)):
        return summary
    refuse_other_lines(data, lines)
    text = summarise_text(data, lines) if is_plain else None
    return text or summarise_conll(data, target=target)
