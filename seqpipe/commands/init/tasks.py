"""The tasks that `init --task` can ask for, by the names of their heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqpipe.commands.init.roles import Task
from seqpipe.commands.init.summary import DataSummary
from seqpipe.errors import DataError, UsageError, did_you_mean


@dataclass(frozen=True)
class Wanted:
    """A task that was asked for.

    Attributes:
        head: Its head.
        kinds: What is learned (`DataSummary.label_kind`).
        needs: What data must have for it.
        column: What a column of a table is then for, if a table can be learned from.
        has_words: Whether it takes files of a word a line, even where they look like a table or a text.
        is_plain: Whether it takes plain text, even where its lines look like columns.
    """

    head: str
    kinds: tuple[str, ...]
    needs: str
    column: Task | None = None
    has_words: bool = False
    is_plain: bool = False


TASKS = {
    task.head: task
    for task in (
        Wanted("crf", ("Entities", "Tags"), "words with a tag each, or texts with spans", has_words=True),
        Wanted("label", ("Labels",), "texts with a label (few values) each", "Labels"),
        Wanted("score", ("Numbers",), "texts with a number each", "Numbers"),
        Wanted("seq2seq", ("Texts",), "pairs of texts", "Texts"),
        Wanted("answer-span", ("Answers",), "questions on passages, with answers, as in SQuAD"),
        Wanted("pointer", ("Pointers",), "lines of points and positions"),
        Wanted("lm", ("Continuations",), "plain text in a .txt file", is_plain=True),
    )
}


def task_of(name: str) -> Wanted:
    """Return the task of a name; UsageError if there is none."""
    if name not in TASKS:
        raise UsageError(f"--task: no task is named {name!r}{did_you_mean(name, TASKS)}; there is: {', '.join(TASKS)}")
    return TASKS[name]


def refuse_other(summary: DataSummary, data: Path, wanted: Wanted) -> None:
    """DataError if the data was not found to be what the task needs."""
    if summary.label_kind not in wanted.kinds:
        fits = next(task.head for task in TASKS.values() if summary.label_kind in task.kinds)
        seen = summary.saw or f"data of the reader {summary.use}"
        raise DataError(f"{data}: --task {wanted.head} needs {wanted.needs}; the file is {seen}, for --task {fits}")
