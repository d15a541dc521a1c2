"""Data that nothing can be learned from, refused before a YAML is written for it."""

from __future__ import annotations

from pathlib import Path

from seqpipe.commands.init.summary import DataSummary
from seqpipe.errors import DataError

_COUNTED = {
    "conll": "remove the column of numbers, for instance with `cut -f2-`, or write a YAML with the reader's option "
    "`words`, the column of the words",
    "jsonl": "write the words themselves as `words`",
}


def refuse_useless(summary: DataSummary, data: Path) -> None:
    """DataError if the data is one record, has one label only, or numbers in place of words."""
    if summary.counted == summary.records and summary.use in _COUNTED:
        raise DataError(f"{data}: the words of every record count 1 2 3 …; {_COUNTED[summary.use]}")
    if summary.records == 1 and summary.label_kind != "Continuations":
        hint = "; an empty line ends each sentence" if summary.use == "conll" else ""
        raise DataError(f"{data}: there is one record in it; give a file with many examples{hint}")
    if summary.label_kind in ("Labels", "Tags") and len(summary.labels) == 1:
        (label,) = summary.labels
        what = "text" if summary.label_kind == "Labels" else "word"
        cure = "give examples of at least two labels"
        raise DataError(f"{data}: every {what} has the same label, {label!r}; {cure}")
    if summary.label_kind == "Entities" and not summary.labels:
        raise DataError(
            f"{data}: no record has a span; mark what is to be found, with tags such as B-city or with spans"
        )
